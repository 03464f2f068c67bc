# SPDX-License-Identifier: Apache-2.0
"""The card of a packed model: what the folder of the model knows, as Markdown for people and the hub."""

import json
from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from wenet_hs.base.extensions import find_extensions, is_known_name
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.model.encoders.pretrained import PretrainedEncoder
from wenet_hs.model.experiment import Experiment
from wenet_hs.model.modes import DEFAULT_MODE, MODES
from wenet_hs.model.packed import WEIGHTS, split_hub_name
from wenet_hs.results.scorings import Scoring, read_scorings
from wenet_hs.results.speech import has_simulated_speech
from wenet_hs.runs.record import FirstWeights, RunRecord
from wenet_hs.runs.sentences import SHA256_OF, describe_facts
from wenet_hs.score.error_rate import ALL, format_interval, percent
from wenet_hs.share.options import PackOptions
from wenet_hs.share.trained_on import read_training_lists

UNKNOWN = "unknown: ask the author"
_FACTS_OF_TRAINING = (
    f"{SHA256_OF}encoder weights",
    "git",
    "python",
    "processor",
    "ranks",
    "wenet_hs",
    "torch",
    "transformers",
    "overfitted",
    f"{SHA256_OF}training list",
    f"{SHA256_OF}checkpoint",
)
"""Facts in a card, beside the sums of the files."""


def write_card(
    experiment: Experiment,
    options: PackOptions,
    published: RunRecord,
    license_id: str,
    consent: Sequence[str] = (),
) -> str:
    """The text of the card, by the template model_card.md.

    Args:
        published: the run record of the packed model.
        license_id: that of the hub: an SPDX name, `other` for a text in LICENSE, or `unknown`.
        consent: the lines of the section on consent (`summarise_consent`); empty: no section.

    Raises DataError for a damaged file of the model folder.
    """
    scorings = read_scorings(experiment.model_dir)
    clips = read_training_lists(experiment.run, experiment.model_dir)
    base = options.base_model or _find_hub_base(experiment.run)
    return _load_template().render(
        options=options,
        experiment=experiment,
        millions=_count_millions(experiment),
        license=license_id,
        unknown=UNKNOWN,
        languages=options.languages or _find_languages(clips, scorings),
        hours=_describe_hours(clips),
        base=base,
        start=_describe_start(experiment, base),
        name=options.model_name,
        reference=options.reference,
        scorings=scorings,
        with_rates=[scoring for scoring in scorings if _has_rate(scoring)],
        by_language=_choose_scoring_by_language(scorings),
        packages=_find_needed_packages(experiment, scorings),
        modes=experiment.model.supported_modes(),
        published=_choose_facts(published),
        weights_sha256=published.files.get(WEIGHTS),
        consent=consent,
    )


def _load_template() -> Template:
    """The template of the card, with its filters. A variable that is not given is an error."""
    environment = Environment(
        loader=PackageLoader("wenet_hs.share"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "conditions": _describe_conditions,
        "interval": format_interval,
        "percent": percent,
        "yaml": quote_yaml,
    }
    return environment.get_template("model_card.md")


def quote_yaml(value: object) -> str:
    """A text or a list of texts as YAML in one line; its escapes are those of JSON."""
    return json.dumps(value, ensure_ascii=False)


def _count_millions(experiment: Experiment) -> str:
    """The number of parameters in millions, such as `12.3`."""
    num_parameters = sum(parameter.numel() for parameter in experiment.model.parameters())
    return f"{num_parameters / 1e6:.1f}"


def _find_languages(clips: Sequence[Utterance], scorings: Sequence[Scoring]) -> list[str]:
    """The languages of the training lists and of the test sets, by code."""
    languages = {clip.lang for clip in clips if clip.lang}
    for scoring in scorings:
        languages |= scoring.report.languages.keys()
    return sorted(languages - {ALL})  # ALL: the group of a report without languages


def _describe_hours(clips: Sequence[Utterance]) -> str | None:
    """The duration of the training lists, such as `1.50 hours in 3 utterances`.

    None if there is no list, or an utterance without a duration.
    """
    durations = [clip.duration or 0.0 for clip in clips]
    if not clips or not all(durations):
        return None
    return f"{sum(durations) / 3600:.2f} hours in {len(clips):,} utterances"


def _find_hub_base(run: RunRecord) -> str | None:
    """The model of the hub from which the training began, as `user/name`.

    None if it began with other weights.
    """
    name = run.base_name
    if name is None or not name.startswith("hf:"):
        return None
    base, _ = split_hub_name(name)
    return base


def _describe_start(experiment: Experiment, base: str | None) -> str:
    """The weights with which the training began, with their SHA-256 if it is recorded.

    `base`: their name on the hub, if it is known.
    """
    encoder = experiment.model.encoder
    if isinstance(encoder, PretrainedEncoder):
        description = f"a pretrained encoder of the kind {encoder.description.kind}"
        sha256 = experiment.run.encoder_sha256
    else:
        weights = experiment.run.first_weights
        description = _describe_first_weights(weights)
        sha256 = None if weights is None else weights.sha256
    start = description if base is None else base
    return start if sha256 is None else f"{start}, weights with SHA-256 {sha256}"


def _describe_first_weights(weights: FirstWeights | None) -> str:
    """The first weights without their name, which may be a private path; None: not recorded."""
    if weights is None:
        return UNKNOWN
    if weights.kind == "random":
        return "random weights"
    return "another model"


def _has_rate(scoring: Scoring) -> bool:
    """Whether an error rate is known, because a reference of the test set has units."""
    averages = (scoring.report.macro, scoring.report.micro)
    return any(average.rate is not None for average in averages)


def _choose_scoring_by_language(scorings: Sequence[Scoring]) -> Scoring | None:
    """The scoring whose languages are shown; None if there are no scorings.

    It is the first one in the default mode, otherwise the first one.
    """
    in_default_mode = [scoring for scoring in scorings if scoring.mode == DEFAULT_MODE]
    by_preference = [*in_default_mode, *scorings]
    return by_preference[0] if by_preference else None


def _describe_conditions(scoring: Scoring) -> str:
    """How a test set was decoded, and whether it is simulated speech; may be empty."""
    options = scoring.decoding.options
    conditions = list[str]()
    if options.get("beam_size"):
        conditions.append(f"beam of {options['beam_size']}")
    if options.get("lm_weight"):
        conditions.append(f"language model with weight {options['lm_weight']}")
    if options.get("inventory"):
        conditions.append("known units")
    if has_simulated_speech(scoring.report.utterances):
        conditions.append("simulated speech")
    return ", ".join(conditions)


def _find_needed_packages(
    experiment: Experiment, scorings: Sequence[Scoring]
) -> dict[str, list[str]]:
    """The packages of others that the model or the modes of its scorings need.

    Returns: package → what it is needed for, such as `frontend NAME`. A mode whose package is not
    installed any more is left out.
    """
    known_modes = [
        scoring.mode for scoring in scorings if is_known_name("mode", MODES, scoring.mode)
    ]
    of_config = experiment.config.extensions()
    of_modes = find_extensions("mode", MODES, known_modes)
    names_of_packages: dict[str, list[str]] = {}
    for extension in dict.fromkeys([*of_config, *of_modes]):
        names = names_of_packages.setdefault(extension.package, [])
        names.append(f"{extension.kind} {extension.name}")
    return names_of_packages


def _choose_facts(published: RunRecord) -> dict[str, str]:
    """The facts of a published record that the card shows, by name.

    Those of the training come first, then versions of other packages, then the sums of the files.
    """
    facts = describe_facts(published)
    if published.is_overfitted:
        facts["overfitted"] = "yes"
    names = [
        *_FACTS_OF_TRAINING,
        *published.last_start.packages,
        *(f"{SHA256_OF}{file}" for file in sorted(published.files)),
    ]
    # A package that is a fact of the training too keeps its first place.
    return {name: facts[name] for name in names if name in facts}
