# SPDX-License-Identifier: Apache-2.0
"""Collects the content of a results file from the folder of a recogniser or language model."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from wenet_hs.base.files import read_json, read_lines
from wenet_hs.config.lm import LmConfig
from wenet_hs.config.load import config_changes, flatten, load_config
from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.manifest.data_list import Utterance, read_data_list
from wenet_hs.results.experiment import ExperimentResults
from wenet_hs.results.folder import DecodingRecord, ExperimentFolder
from wenet_hs.results.results_file import BANDS, Counts, ModeResults, Results, TrainingPart
from wenet_hs.results.speech import has_simulated_speech
from wenet_hs.runs.curves import Curves, ctc_take_off
from wenet_hs.runs.record import DataFile, FirstWeights, RunRecord, Start
from wenet_hs.runs.sentences import escape_bytes
from wenet_hs.score.edit_distance import align
from wenet_hs.score.error_rate import Report, ScoredUtterance
from wenet_hs.score.pfer import with_pfer
from wenet_hs.score.rules import split_units
from wenet_hs.tree.errors import DataError

_CHUNK_SIZE = "decoding_chunk_size"
_LEFT_CHUNKS = "num_decoding_left_chunks"
_WITHOUT_LIMIT = (None, -1)
"""The values of these options for whole utterances, and for all chunks to the left."""
_OTHER_OPTIONS = ("lm", "inventory", "place_unseen")
"""Conditions of decoding that are not in `DecodeOptions`."""
_LEFT_OUT_OPTIONS = (_CHUNK_SIZE, _LEFT_CHUNKS, "simulate_streaming")
"""Chunks are in the name of a system."""
_KEPT_SETTINGS = ("dtype", "ctc_conf.")
"""Beginnings of the settings that are kept: those that `training_of` reads."""
_LM_SETS = ("valid", "test")
"""Names of the scores `MODEL_DIR/SET.json`, which `lm score --json` writes."""
_SCORE_LM_AGAIN = "run `wenet-hs lm score --json`"
_FOLDERS = re.compile(r"""(?<![^\s"'=])/[^\s"']*/""")
"""The folders of an absolute path in a text: `/home/a/` in `--text=/home/a/b.txt`.

They are those of one machine, so results files do not have them.
"""

_ByLanguage = Mapping[str, Mapping[str, ScoredUtterance]]
"""Language → the utterances by key, in the order of their keys."""


def collect_results(experiment: ExperimentResults, data_folders: Iterable[Path] = ()) -> Results:
    """The results of one recogniser.

    Args:
        experiment: all its modes must have the same references.
        data_folders: where `prepare` wrote its implausible.tsv.

    Raises DataError if it has no train.yaml with a seed, or no scores.
    """
    settings = flatten(experiment.settings)
    if "seed" not in settings or not experiment.scores:
        fault = "no train.yaml with a seed, or no scores"
        raise DataError(experiment.folder, fault, "train, decode and score first")
    seed = int(settings["seed"])
    training_clips = _read_existing_lists(experiment.run)
    cost = _describe_part(experiment.curves, training_clips)
    kept_settings = {
        name: value for name, value in settings.items() if name.startswith(_KEPT_SETTINGS)
    }
    reports = list(experiment.scores.values())
    utterances = _group_by_language(reports[0])  # the references are the same in all modes
    modes = {
        mode: _collect_mode(report, training_clips) for mode, report in experiment.scores.items()
    }
    return Results(
        **asdict(cost),
        system=_name_system(experiment.folder, seed) + _name_chunks(experiment.decoding),
        seed=seed,
        settings=kept_settings,
        run=_without_folders(experiment.run, _folder_of_recipe(experiment.folder)),
        first=_read_first_part(experiment.run),
        units={lang: _list_num_units(group) for lang, group in utterances.items()},
        modes=modes,
        decoding=_decoding_options(experiment.decoding),
        implausible=_find_implausible(utterances, data_folders),
        is_simulated=any(has_simulated_speech(report.utterances) for report in reports),
        is_pretrained_on_simulated=experiment.is_pretrained_on_simulated,
    )


# ---- language models


@dataclass(frozen=True)
class _LmScore:
    """The score of a language model on one set."""

    perplexity: float
    bits_per_unit: float


def collect_lm_results(model_dir: Path) -> Results:
    """The results of a trained and scored language model.

    Raises DataError if a file of the folder is missing or damaged.
    """
    folder = ExperimentFolder(model_dir)
    config = load_config(folder.settings_path, (), LmConfig)
    validations = folder.read_curves().get("valid", [])
    scores = _read_lm_scores(model_dir)
    if not validations or not scores:
        files = " or ".join(f"{name}.json" for name in _LM_SETS)
        fault = f"no validation in metrics.jsonl, or no {files}"
        raise DataError(model_dir, fault, f"train to the end of an epoch, then {_SCORE_LM_AGAIN}")
    last_validation = validations[-1]
    changed_settings = {
        change.key: change.new
        for change in config_changes(LmConfig(), config)
        if change.key != "seed"
    }
    numbers = {f"{name} perplexity": score.perplexity for name, score in scores.items()}
    if "test" in scores:
        numbers["bits per word, test"] = scores["test"].bits_per_unit
    return Results(
        steps=int(last_validation["step"]),
        train_hours=None,
        train_seconds=round(last_validation["seconds"], 1),
        system=_name_system(model_dir, config.seed),
        seed=config.seed,
        settings=changed_settings,
        run=_without_folders(folder.read_run(), _folder_of_recipe(model_dir)),
        scores=numbers,
    )


def _read_lm_scores(model_dir: Path) -> dict[str, _LmScore]:
    """The scores of the sets that are scored, by name. Raises DataError if one is damaged."""
    scores = dict[str, _LmScore]()
    for name in _LM_SETS:
        path = model_dir / f"{name}.json"
        if not path.is_file():
            continue
        record = read_json(path, _SCORE_LM_AGAIN)
        if not {"perplexity", "bits_per_unit"} <= record.keys():
            raise DataError(path, "no perplexity in it", _SCORE_LM_AGAIN)
        scores[name] = _LmScore(record["perplexity"], record["bits_per_unit"])
    return scores


# ---- the name of a system, and its record


def _name_system(folder: Path, seed: int) -> str:
    """The name of a system: that of its folder, without the seed.

    The folder above it may be called `exp-SOMETHING`; then `-SOMETHING` is added. An example:
    `softmax-streaming` for `exp-streaming/softmax-seed1`, but `softmax` for `exp/softmax-seed1`.
    """
    folder = folder.resolve()
    name = folder.name.removesuffix(f"-seed{seed}")
    ending = folder.parent.name.removeprefix("exp")
    if ending.startswith("-"):
        name += ending
    return name


def _name_chunks(decoding: DecodingRecord) -> str:
    """What decoding in chunks adds to the name of a system; empty for whole utterances.

    `-chunk16-4` is for chunks of 16 frames with 4 chunks to the left, `-chunk16` with all of them.
    """
    chunk_size = decoding.options.get(_CHUNK_SIZE)
    num_left_chunks = decoding.options.get(_LEFT_CHUNKS)
    if chunk_size in _WITHOUT_LIMIT:
        return ""
    if num_left_chunks in _WITHOUT_LIMIT:
        return f"-chunk{chunk_size}"
    return f"-chunk{chunk_size}-{num_left_chunks}"


def _decoding_options(decoding: DecodingRecord) -> dict[str, Any]:
    """The options of decoding by name, without those that are 0 or absent.

    Options of chunks are left out too, because they are in the name of the system.
    """
    names = [option.name for option in fields(DecodeOptions)]
    names += _OTHER_OPTIONS
    options = dict[str, Any]()
    for name in names:
        value = decoding.options.get(name)
        if name not in _LEFT_OUT_OPTIONS and value:
            options[name] = value
    return options


def _folder_of_recipe(model_dir: Path) -> Path:
    """The folder s0 of s0/exp/MODEL_DIR."""
    return model_dir.resolve().parents[1]


def _without_folders(run: RunRecord, recipe: Path) -> RunRecord:
    """A run record with only what a study needs: without times, warnings and local folders.

    Paths below the folder `recipe` become relative to it. Of other absolute paths only the name is
    kept.
    """

    def shorten(text: str) -> str:
        """Shorten all paths in a text."""
        below_recipe = text.replace(f"{recipe}/", "")
        names_only = _FOLDERS.sub("", below_recipe)
        return escape_bytes(names_only)

    def shorten_file(file: DataFile) -> DataFile:
        if file.path is None:
            return file
        return file.model_copy(update={"path": shorten(file.path)})

    def shorten_start(start: Start) -> Start:
        command = tuple(map(shorten, start.command))
        return start.model_copy(update={"command": command, "time": None})

    def shorten_weights(weights: FirstWeights | None) -> FirstWeights | None:
        if weights is None or weights.name is None:
            return weights
        return weights.model_copy(update={"name": shorten(weights.name)})

    train_lists = tuple(map(shorten_file, run.lists.train))
    valid_lists = tuple(map(shorten_file, run.lists.valid))
    return run.model_copy(
        update={
            "starts": tuple(map(shorten_start, run.starts)),
            "lists": run.lists.model_copy(update={"train": train_lists, "valid": valid_lists}),
            "first_weights": shorten_weights(run.first_weights),
            "resources": None,
            "progress": None,
            "warnings": (),
            "end": None,
        }
    )


# ---- the cost of a training


def _read_existing_lists(run: RunRecord) -> list[Utterance]:
    """The utterances of those training lists that still exist."""
    utterances = list[Utterance]()
    for path in map(Path, run.lists.train_paths):
        if path.is_file():
            utterances += read_data_list(path)
    return utterances


def _describe_part(curves: Curves, clips: Sequence[Utterance]) -> TrainingPart:
    """The cost of a training. Without a validation, steps and seconds are 0.

    `clips`: of the training lists; empty if they do not exist any more.
    """
    validations = curves.get("valid", ())
    last: Mapping[str, float] = validations[-1] if validations else {}
    dev_loss = last.get("loss_att")
    take_off = ctc_take_off(curves)
    return TrainingPart(
        steps=int(last.get("step", 0)),
        train_hours=_sum_hours(clips),
        train_seconds=round(last.get("seconds", 0.0), 1),
        dev_loss=None if dev_loss is None else round(dev_loss, 4),
        take_off=None if take_off is None else round(take_off, 4),
    )


def _sum_hours(clips: Sequence[Utterance]) -> float | None:
    """The hours of the clips; None if a duration is not known, or there is no clip."""
    durations = [clip.duration for clip in clips if clip.duration is not None]
    if not clips or len(durations) < len(clips):
        return None
    return round(sum(durations) / 3600, 4)


def _read_first_part(run: RunRecord) -> TrainingPart | None:
    """The cost of the training from which this one began: of the folder that `--checkpoint` names.

    None without `--checkpoint`, or if the folder is not one of a training.
    """
    if run.base_name is None:
        return None
    folder = ExperimentFolder(Path(run.base_name))
    if not folder.has_settings() or not folder.curves_path.is_file():
        return None
    return _describe_part(folder.read_curves(), _read_existing_lists(folder.read_run()))


# ---- the scores of a mode


def _group_by_language(report: Report) -> _ByLanguage:
    """The utterances of a scoring by language, in the order of their keys."""
    groups: dict[str, dict[str, ScoredUtterance]] = {}
    for key, scored in sorted(report.utterances.items()):
        groups.setdefault(scored.lang, {})[key] = scored
    return groups


def _find_implausible(
    utterances: _ByLanguage, data_folders: Iterable[Path]
) -> dict[str, list[int]] | None:
    """The utterances that a file implausible.tsv names: by language, their indices in `utterances`.

    None if no folder has such a file. Languages without such utterances are left out.
    """
    candidates = [folder / "implausible.tsv" for folder in data_folders]
    files = [path for path in candidates if path.is_file()]
    if not files:
        return None
    implausible_keys = set[str]()
    for path in files:
        rows = read_lines(path)[1:]  # after the names of the columns, of which `key` is the first
        implausible_keys |= {row.split()[0] for row in rows if row.strip()}
    implausible = dict[str, list[int]]()
    for lang, group in utterances.items():
        indices = [index for index, key in enumerate(group) if key in implausible_keys]
        if indices:
            implausible[lang] = indices
    return implausible


def _collect_mode(report: Report, training_clips: Sequence[Utterance]) -> ModeResults:
    """The errors of one decoding mode, by language and by kind.

    `training_clips`: of the training lists, from which the frequency of each unit in training is
    known; empty if the lists do not exist any more.
    """
    groups = _group_by_language(report)
    return ModeResults(
        signature=report.signature,
        keys=_hash_keys(report),
        errors={lang: _list_errors(group) for lang, group in groups.items()},
        kinds={lang: _kinds_of_errors(report, lang) for lang in groups},
        feature_errors=_sum_feature_errors(report),
        bands=_count_bands(report, training_clips),
    )


def _list_num_units(group: Mapping[str, ScoredUtterance]) -> list[int]:
    """The number of reference units of each utterance."""
    return [scored.counts.num_units for scored in group.values()]


def _list_errors(group: Mapping[str, ScoredUtterance]) -> list[int]:
    """The number of errors of each utterance."""
    return [scored.counts.errors for scored in group.values()]


def _hash_keys(report: Report) -> str:
    """The beginning of a SHA-256 of the keys, their languages and numbers of units.

    It is equal for equal test sets.
    """
    lines = [
        f"{scored.lang} {key} {scored.counts.num_units}"
        for key, scored in sorted(report.utterances.items())
    ]
    return sha256("\n".join(lines).encode()).hexdigest()[:16]


def _kinds_of_errors(report: Report, lang: str) -> tuple[int, int, int]:
    """The substitutions, deletions and insertions of one language."""
    counts = report.languages[lang].counts
    return (counts.substitutions, counts.deletions, counts.insertions)


def _sum_feature_errors(report: Report) -> dict[str, float] | None:
    """The sum of the phone feature distances by language.

    None for other units than phones, and if panphon is not installed.
    """
    if report.rules.metric != "per" or find_spec("panphon") is None:
        return None
    groups = _group_by_language(with_pfer(report))
    sums = dict[str, float]()
    for lang, group in groups.items():
        # `or 0.0` is for the type checker: `with_pfer` has computed all distances.
        distances = [scored.feature_distance or 0.0 for scored in group.values()]
        sums[lang] = round(sum(distances), 3)
    return sums


def _count_bands(report: Report, training_clips: Sequence[Utterance]) -> dict[str, Counts]:
    """The errors by the frequency of the units in training.

    For each band of frequencies, by its name: reference units, substitutions, deletions and
    insertions. An insertion counts in the band of the inserted unit. Other errors count in that of
    the reference unit. Without `training_clips` the result is empty.
    """
    if not training_clips:
        return {}
    num_trained = _count_training_units(report, training_clips)
    # In each band: the number of units, and of errors by their kind "S", "D" or "I".
    counts = {band.name: Counter[str]() for band in BANDS}
    for utterance in report.utterances.values():
        ref, hyp = utterance.split(report.rules)
        for operation in align(ref, hyp):
            is_insertion = operation.ref is None
            unit = operation.hyp if is_insertion else operation.ref
            assert unit is not None  # an operation has a unit on one side at least
            band_counts = counts[_find_band(num_trained[unit])]
            if not is_insertion:
                band_counts["units"] += 1
            band_counts[operation.kind] += 1
    return {
        name: (band_counts["units"], band_counts["S"], band_counts["D"], band_counts["I"])
        for name, band_counts in counts.items()
    }


def _count_training_units(report: Report, training_clips: Sequence[Utterance]) -> Counter[str]:
    """How often each unit is in the transcripts, which are split by the rules of the scoring."""
    counts = Counter[str]()
    for clip in training_clips:
        counts.update(split_units(clip.txt, report.rules, clip.lang or ""))
    return counts


def _find_band(num_trained: int) -> str:
    """The name of the band of a unit with this number of occurrences in training."""
    for band in BANDS:
        if band.most is not None and num_trained <= band.most:
            return band.name
    return BANDS[-1].name  # it has no upper limit
