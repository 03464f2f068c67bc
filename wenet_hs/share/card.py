# SPDX-License-Identifier: Apache-2.0
"""The card of a packed model: what the folder of the model knows, and the text that a person has
edited.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from wenet_hs.base.extensions import find_extensions, is_known_name
from wenet_hs.base.files import read_lines
from wenet_hs.base.options import REQUIRED, option
from wenet_hs.corpus.consent import CONSENT
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.model.encoders.pretrained import PretrainedEncoder
from wenet_hs.model.experiment import Experiment
from wenet_hs.model.modes import DEFAULT_MODE, MODES
from wenet_hs.model.packed import WEIGHTS, is_packed, split_hub_name
from wenet_hs.results.scorings import Scoring, read_scorings
from wenet_hs.results.speech import has_simulated_speech
from wenet_hs.runs.record import FirstWeights, RunRecord
from wenet_hs.runs.sentences import SHA256_OF, describe_facts
from wenet_hs.score.error_rate import ALL, format_interval, percent
from wenet_hs.share.trained_on import read_training_lists
from wenet_hs.tree.errors import DataError, one_line

logger = logging.getLogger(__name__)

UNKNOWN = "unknown: ask the author"
WEIGHTS_KEY = "weights_sha256"
"""Key in the front matter of a card with the SHA-256 of the weights that its error rates belong to."""
SPDX = re.compile(r"[A-Za-z0-9.+-]+")
"""The name of a licence."""
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
_quote = partial(json.dumps, ensure_ascii=False)  # a text in YAML, whose escapes are those of JSON


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """The flags of `wenet-hs pack`."""

    model_dir: Path = option(REQUIRED, "experiment folder, ours or WeNet's")
    out: Path = option(
        REQUIRED,
        "folder to write, a file that ends with .zip, or with .md: only the card",
        metavar="DIR|ZIP|MD",
    )
    overwrite: bool = option(False, "replace an earlier result of this command, also on the hub")
    license: str | None = option(
        None, "of the model: its SPDX name, such as cc-by-4.0, or a file with its text"
    )
    data: str | None = option(
        None, "what the training data are, in a sentence for the card", metavar="TEXT"
    )
    datasets: tuple[str, ...] = option(
        (), "names of the data sets on the hub, such as mozilla-foundation/common_voice"
    )
    languages: tuple[str, ...] = option(
        (), "codes of its languages (default: those of the lists and scores)"
    )
    card: Path | None = option(
        None, "edited text of the card; its section on consent is renewed", metavar="MD"
    )
    consent: Path | None = option(
        None,
        f"consent per recording (default: {CONSENT} in the folder of the project)",
        metavar="TSV",
    )
    base_model: str | None = option(
        None, "the model from which the training started, by its name on the hub"
    )
    push: str | None = option(
        None, "also upload it as private, after `hf auth login`", metavar="hf://USER/NAME"
    )


_CONSENT_TITLE = "## Consent and access"


def renew_consent(card: str, lines: Sequence[str]) -> str:
    """A card with these lines as its section on consent, which is at its old position or at the
    end.
    """
    section = "\n".join([_CONSENT_TITLE, "", *(f"- {line}" for line in lines)]) + "\n"
    before, title, after = card.partition(_CONSENT_TITLE + "\n")
    _, heading, rest = after.partition("\n## ")
    if not lines:
        section, heading = "", heading.lstrip()
    return f"{before}{section}{heading}{rest}" if title else f"{card}\n{section}" if lines else card


def write_card(
    experiment: Experiment,
    options: PackOptions,
    published: RunRecord,
    license_id: str,
    consent: Sequence[str] = (),
) -> str:
    """The text of the card.

    Args:
        published: the run record of the packed model.
        license_id: that of the hub: an SPDX name, `other` for a text in LICENSE, or `unknown`.
        consent: of `summarise_consent`.

    Raises DataError for a damaged file of the model folder.
    """
    scorings = read_scorings(experiment.model_dir)
    clips = read_training_lists(experiment.run, experiment.model_dir)
    base = options.base_model or _hub_base(experiment.run)
    return _template().render(
        options=options,
        experiment=experiment,
        millions=_count_millions(experiment),
        license=license_id,
        unknown=UNKNOWN,
        languages=options.languages or _find_languages(clips, scorings),
        hours=_describe_hours(clips),
        base=base,
        start=_describe_start(experiment, base),
        name=model_name(options.out),
        reference=reference(options),
        scorings=scorings,
        with_rates=[scoring for scoring in scorings if _has_rate(scoring)],
        by_language=_choose_scoring_by_language(scorings),
        packages=_needed_packages(experiment, scorings),
        modes=experiment.model.supported_modes(),
        published=_published_facts(published),
        weights_sha256=published.files.get(WEIGHTS),
        consent=consent,
    )


def _template() -> Template:
    """The template of the card, with its filters."""
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
        "yaml": _quote,
    }
    return environment.get_template("model_card.md")


def _count_millions(experiment: Experiment) -> str:
    """The number of parameters in millions."""
    num_parameters = sum(parameter.numel() for parameter in experiment.model.parameters())
    return f"{num_parameters / 1e6:.1f}"


def _needed_packages(experiment: Experiment, scorings: Sequence[Scoring]) -> dict[str, list[str]]:
    """The package of each name that is not ours → these names: of the model, and the modes that
    were scored.

    The package of such a mode may not be installed any more; it is left out then.
    """
    modes = [scoring.mode for scoring in scorings if is_known_name("mode", MODES, scoring.mode)]
    extensions = [*experiment.config.extensions(), *find_extensions("mode", MODES, modes)]
    packages: dict[str, list[str]] = {}
    for extension in dict.fromkeys(extensions):
        packages.setdefault(extension.package, []).append(f"{extension.kind} {extension.name}")
    return packages


def _find_languages(clips: Sequence[Utterance], scorings: Sequence[Scoring]) -> list[str]:
    """The languages of the training and of the test sets, by code."""
    languages = {clip.lang for clip in clips if clip.lang}
    for scoring in scorings:
        languages |= scoring.report.languages.keys()
    return sorted(languages - {ALL})


def _describe_hours(clips: Sequence[Utterance]) -> str | None:
    """The duration of the training lists; None if it is not known."""
    durations = [clip.duration or 0.0 for clip in clips]
    if not clips or not all(durations):
        return None
    return f"{sum(durations) / 3600:.2f} hours in {len(clips):,} utterances"


def _has_rate(scoring: Scoring) -> bool:
    """Whether a reference has units."""
    averages = (scoring.report.macro, scoring.report.micro)
    return any(average.rate is not None for average in averages)


def _choose_scoring_by_language(scorings: Sequence[Scoring]) -> Scoring | None:
    """The scoring whose languages are shown: the first one in the default mode, or the first one."""
    in_default_mode = [scoring for scoring in scorings if scoring.mode == DEFAULT_MODE]
    return next(iter([*in_default_mode, *scorings]), None)


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


def _published_facts(run: RunRecord) -> dict[str, str]:
    """The facts of a published record by name: of the training, then the sums of the files by name."""
    facts = describe_facts(run)
    if run.is_overfitted:
        facts["overfitted"] = "yes"
    of_files = [f"{SHA256_OF}{name}" for name in sorted(run.files)]
    of_training = [name for name in _FACTS_OF_TRAINING if name in facts]
    packages = [
        name for name in run.last_start.packages if name in facts and name not in of_training
    ]
    return {name: facts[name] for name in (*of_training, *packages, *of_files)}


def _hub_base(run: RunRecord) -> str | None:
    """The model of the hub from which the training began; None for any other."""
    name = run.base_name
    return split_hub_name(name)[0] if name is not None and name.startswith("hf:") else None


def _describe_start(experiment: Experiment, base: str | None) -> str:
    """The weights with which the training began. `base`: the model of the hub, if it is known."""
    encoder = experiment.model.encoder
    if isinstance(encoder, PretrainedEncoder):
        start = f"a pretrained encoder of the kind {encoder.description.kind}"
        sha256 = experiment.run.encoder_sha256
    else:
        weights = experiment.run.first_weights
        start = _describe_first_weights(weights)
        sha256 = None if weights is None else weights.sha256
    if base is not None:
        start = base
    return start if sha256 is None else f"{start}, weights with SHA-256 {sha256}"


def _describe_first_weights(weights: FirstWeights | None) -> str:
    if weights is None:
        return UNKNOWN
    if weights.kind == "random":
        return "random weights"
    return "another model"


def model_name(out: Path) -> str:
    return out.stem if out.suffix.lower() in (".zip", ".md") else out.name


def reference(options: PackOptions) -> str:
    """How a command names the model."""
    return options.push or (
        f"{options.out.stem}.zip" if options.out.suffix.lower() == ".md" else options.out.name
    )


# ---- a card that was edited


def read_card(options: PackOptions, published: RunRecord, license_id: str) -> str:
    """The text of an edited card, in which the name of the draft's file becomes that of the model.

    Raises DataError if it names other weights, whose error rates are not those of this model, or
        differs from a flag.
    """
    path = options.card or Path()
    text = "\n".join(read_lines(path)).rstrip() + "\n"
    front = _front_matter(path, text)
    if _is_of_other_weights(front, published.files[WEIGHTS]):
        raise DataError(
            path,
            "was made for other weights",
            "make it again with --out FILE.md, and edit it again",
        )
    flags = {"license": options.license and license_id, "languages": [*options.languages]}
    flags |= {"datasets": [*options.datasets], "base_model": options.base_model}
    for flag, value in flags.items():
        stated = front.get(written := flag.replace("languages", "language"))
        stated = [stated] if isinstance(value, list) and isinstance(stated, str) else stated
        if value and stated != value and not (flag == "license" and str(stated).lower() == value):
            raise DataError(
                path, f"has {written}: {stated}, not that of --{flag}", "change one of them"
            )
    if options.data and options.data not in text:
        raise DataError(path, "has not the text of --data", "write it there, or leave --data out")
    name, draft = model_name(options.out), path.stem
    for old, new in (
        (f"# {draft}\n", f"# {name}\n"),
        (f"- name: {_quote(draft)}", f"- name: {_quote(name)}"),
    ):
        text = text.replace(f"\n{old}", f"\n{new}", 1)
    return re.sub(
        rf"(?<![\w.-]){re.escape(draft)}\.zip(?![\w-])", lambda _: reference(options), text
    )


def _is_of_other_weights(front: Mapping[str, Any], weights_sha256: str) -> bool:
    """Whether a card names other weights."""
    return bool(front.get(WEIGHTS_KEY, weights_sha256) != weights_sha256)


def is_card(path: Path) -> bool:
    """Whether a Markdown file is the card of a model of wenet_hs, by its front matter."""
    with suppress(DataError):
        return _front_matter(path, "\n".join(read_lines(path))).get("library_name") == "wenet_hs"
    return False


def _front_matter(path: Path, text: str) -> dict[str, Any]:
    """The settings at the beginning of a card. Raises DataError if they are no YAML."""
    if not text.startswith("---\n"):
        return {}
    try:
        found = yaml.safe_load(text[4:].partition("\n---")[0])
    except (yaml.YAMLError, RecursionError) as error:
        raise DataError(
            path, f"its front matter is no YAML ({one_line(error)})", "correct it"
        ) from error
    return found if isinstance(found, dict) else {}


def known_license(model_dir: Path, card: Path | None) -> str | None:
    """The licence that an edited card names, or that of a packed model which is packed again: a
    name or a file.
    """
    is_again, text = is_packed(model_dir), model_dir / "LICENSE"
    cards = [*([card] if card else []), *([model_dir / "README.md"] if is_again else [])]
    named = [
        _front_matter(one, "\n".join(read_lines(one))).get("license")
        for one in cards
        if one.is_file()
    ]
    found = next((str(one) for one in named if one not in (None, "unknown")), None)
    if found == "other" and is_again and text.is_file():
        return str(text)
    if (
        found and found != "other" and (not SPDX.fullmatch(found) or Path(found).is_file())
    ):  # no file of the user
        raise DataError(
            cards[0], f"license {found[:80]!r} is no SPDX name", "correct it, or give --license"
        )
    return found
