# SPDX-License-Identifier: Apache-2.0
"""Results files: what the tables of a study need of one training, small enough to commit and without transcripts.

A results file is JSON. Of a recogniser it has per decoding mode the errors of every utterance, their kinds, and the
counts of the units by their frequency in training; of a language model the perplexities. Both have the cost of the
training, its run record, and the settings that paired trainings must share.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from wenet_hs.base.files import read_json, read_lines
from wenet_hs.config.lm import LmConfig
from wenet_hs.config.load import config_changes, flatten, load_config
from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.manifest.data_list import Utterance, read_data_list
from wenet_hs.results.experiments import SIMULATED_KEY, ExperimentResults, read_experiments
from wenet_hs.results.pairing import Training, training_of
from wenet_hs.runs.curves import Curves, by_validation, read_curves
from wenet_hs.runs.record import DataFile, RunRecord, read_run, run_of_settings
from wenet_hs.runs.sentences import escape_bytes
from wenet_hs.score.compare import MACRO, MICRO
from wenet_hs.score.edit_distance import align
from wenet_hs.score.error_rate import Report, ScoredUtterance
from wenet_hs.score.pfer import with_features
from wenet_hs.score.rules import split_units
from wenet_hs.train.monitor import TAKE_OFF_NATS
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

FORMAT = "wenet_hs.results/3"
EARLIER_FORMAT = "wenet_hs.results/2"
"""With the facts about the training as texts, below the key `provenance`."""
BANDS = (("unseen", 0), ("1 to 9", 9), ("10 to 99", 99), ("100 to 999", 999), ("1,000 and more", None))
"""Name and greatest training count of the frequency bands of units."""
# Of these the first two are in the name of a system.
_CHUNKS = ("decoding_chunk_size", "num_decoding_left_chunks", "simulate_streaming")
_DECODING = (*(option.name for option in fields(DecodeOptions)), "lm", "inventory", "place_unseen")
_SETTINGS = ("dtype", "ctc_conf.")
"""Beginnings of the settings that are kept: those that `training_of` reads. Of a language model: all that differ from
the defaults."""
DEV_LOSS = "dev loss, nats"
LM_SETS = ("valid", "test")
"""Names of the scores `MODEL_DIR/SET.json`, which `lm score --json` writes."""
_FOLDERS = re.compile(r"""(?<![^\s"'=])/[^\s"']*/""")
"""The folders of absolute paths, which are of one machine and are not in results files."""

Counts = tuple[int, int, int, int]
"""Reference units, substitutions, deletions, insertions."""


@dataclass(frozen=True, kw_only=True)
class ModeResults:
    """The scores of one decoding mode."""

    signature: str
    keys: str
    """Hash of the keys and languages: equal for equal test sets."""
    errors: dict[str, list[int]]
    """The errors of each utterance by language, in the order of the keys."""
    kinds: dict[str, tuple[int, int, int]]
    """Substitutions, deletions and insertions by language."""
    feature_errors: dict[str, float] | None
    """The sum of the phone feature distances by language; None if they were not computed."""
    bands: dict[str, Counts]
    """The counts of units by their frequency in training; an insertion counts in the band of the inserted unit."""


@dataclass(frozen=True, kw_only=True)
class TrainingPart:
    """The cost of a training, or of the first part of a training in two parts."""

    steps: int
    train_hours: float | None
    """Hours of audio in the training lists."""
    train_seconds: float
    dev_loss: float | None = None
    """Of the attention decoder at the last validation, nats."""
    take_off: float | None = None
    """How far the CTC loss came below its plateau at most, nats, in validation or in training (validation alone would
    also count trainings that overfit from the start); None if it is not recorded."""


@dataclass(frozen=True, kw_only=True)
class Results(TrainingPart):
    """One training of a system."""

    system: str
    seed: int
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of train.yaml by dotted name."""
    run: RunRecord = RunRecord()
    """What the training was started with; paths are relative to the recipe, two folders above the experiment."""
    first: TrainingPart | None = None
    """The training whose folder `--checkpoint` names."""
    units: dict[str, list[int]] = field(default_factory=dict)
    """The reference units of each utterance by language, in the order of the keys."""
    modes: dict[str, ModeResults] = field(default_factory=dict)
    decoding: dict[str, Any] = field(default_factory=dict)
    """The options of decoding that are not 0 or absent: beam size, weights, language model, known units. Chunks are not
    among them: they are in the name of the system."""
    implausible: dict[str, list[int]] | None = None
    """The clips of implausible duration by language, as indices of `units`; None if `prepare` named none."""
    is_simulated: bool = False
    """Whether the test set is simulated speech."""
    is_pretrained_on_simulated: bool = False
    """Whether the training began from a model of simulated speech."""
    scores: dict[str, float] = field(default_factory=dict)
    """Of a language model: perplexities by name of the column."""

    @property
    def name(self) -> str:
        """The system and the seed: the stem of the file."""
        return f"{self.system}-seed{self.seed}"

    @property
    def parts(self) -> list[TrainingPart]:
        return [self] if self.first is None else [self.first, self]

    @property
    def is_on_plateau(self) -> bool | None:
        """Whether CTC never came TAKE_OFF_NATS below its plateau; None if not recorded."""
        found = [part.take_off for part in self.parts if part.take_off is not None]
        return max(found) < TAKE_OFF_NATS if found else None

    @property
    def training(self) -> Training:
        """What two paired trainings must have in common."""
        return training_of(self.name, self.settings | {"seed": self.seed}, self.run)

    def rates(self, mode: str, *, only_plausible: bool = False) -> dict[str, float]:
        """The error rate of each language and of MACRO and MICRO, also without the clips of implausible duration."""
        left_out, errors = (only_plausible and self.implausible) or {}, self.modes[mode].errors
        sums = {
            lang: [int(np.delete(of, left_out.get(lang, [])).sum()) for of in (counts, errors[lang])]
            for lang, counts in self.units.items()
        }
        rates = {lang: wrong / units for lang, (units, wrong) in sums.items() if units}
        units, wrong = np.sum(list(sums.values()), axis=0)
        return rates | {MACRO: fmean(rates.values()), MICRO: float(wrong / units)}

    def numbers(self, *, only_plausible: bool = False) -> dict[str, float]:
        """The macro average of each mode in %, the loss on the dev set, and the perplexities, by name of the column."""
        rates = {mode: 100 * self.rates(mode, only_plausible=only_plausible)[MACRO] for mode in self.modes}
        return rates | ({} if self.dev_loss is None else {DEV_LOSS: self.dev_loss}) | self.scores


def collect_results(experiment: ExperimentResults, data_folders: Iterable[Path] = ()) -> Results:
    """The results of one experiment folder. `data_folders`: where `prepare` wrote its implausible.tsv.

    Raises DataError if it has no train.yaml with a seed, or no scores.
    """
    settings = flatten(experiment.settings)
    if "seed" not in settings or not experiment.scores:
        what = "no train.yaml with a seed, or no scores"
        raise DataError(experiment.folder, what, "train, decode and score first")
    clips = _read_lists(experiment)
    first = next(iter(experiment.scores.values()))
    names = _identify(experiment.folder, int(settings["seed"]), experiment.run)
    size, left = (experiment.rtf.get(name) for name in _CHUNKS[:2])
    if size not in (None, -1):
        names["system"] += f"-chunk{size}" + ("" if left in (None, -1) else f"-{left}")
    return Results(
        **names,
        settings={key: value for key, value in settings.items() if key.startswith(_SETTINGS)},
        **asdict(_part_of(experiment, clips)),
        first=_read_first_part(experiment.run),
        units={lang: [one.counts.num_units for one in of.values()] for lang, of in _by_language(first).items()},
        modes={mode: _collect_mode(report, clips) for mode, report in experiment.scores.items()},
        decoding={key: experiment.rtf[key] for key in _DECODING if key not in _CHUNKS and experiment.rtf.get(key)},
        implausible=_find_implausible(first, data_folders),
        is_simulated=any(SIMULATED_KEY.search(key) for found in experiment.scores.values() for key in found.utterances),
        is_pretrained_on_simulated=experiment.is_pretrained_on_simulated,
    )


def collect_lm_results(model_dir: Path) -> Results:
    """The results of a trained and scored language model.

    Raises DataError if a file of the folder is missing or damaged.
    """
    config = load_config(model_dir / "train.yaml", (), LmConfig)
    curve = read_curves(model_dir / "metrics.jsonl").get("valid")
    paths = {name: model_dir / f"{name}.json" for name in LM_SETS}
    found = {name: read_json(path, _SCORE_AGAIN) for name, path in paths.items() if path.is_file()}
    if not curve or not found:
        what = f"no validation in metrics.jsonl, or no {' or '.join(path.name for path in paths.values())}"
        raise DataError(model_dir, what, f"train to the end of an epoch, then {_SCORE_AGAIN}")
    scores = {}
    for name, score in found.items():
        if not {"perplexity", "bits_per_unit"} <= score.keys():
            raise DataError(paths[name], "no perplexity in it", _SCORE_AGAIN)
        scores[f"{name} perplexity"] = score["perplexity"]
    if "test" in found:
        scores["bits per word, test"] = found["test"]["bits_per_unit"]
    return Results(
        **_identify(model_dir, config.seed, read_run(model_dir) or RunRecord()),
        settings={key: value for key, _, value in config_changes(LmConfig(), config) if key != "seed"},
        steps=int(curve[-1]["step"]),
        train_hours=None,
        train_seconds=round(curve[-1]["seconds"], 1),
        scores=scores,
    )


_SCORE_AGAIN = "run `wenet-hs lm score --json`"


def _identify(folder: Path, seed: int, run: RunRecord) -> dict[str, Any]:
    """The fields that name a training."""
    folder = folder.resolve()
    of_exp = folder.parent.name.removeprefix("exp")  # what the option --exp of a recipe adds
    return {
        "system": folder.name.removesuffix(f"-seed{seed}") + (of_exp if of_exp.startswith("-") else ""),
        "seed": seed,
        "run": _without_folders(run, folder.parents[1]),
    }


def _without_folders(run: RunRecord, recipe: Path) -> RunRecord:
    """The facts of a record that belong to a study, without times and without folders of one machine.

    Paths below the folder of the recipe are relative to it; of others only the name is kept.
    """

    def shorten(text: str) -> str:
        return escape_bytes(_FOLDERS.sub("", text.replace(f"{recipe}/", "")))

    def shorten_path(file: DataFile) -> DataFile:
        return file if file.path is None else file.model_copy(update={"path": shorten(file.path)})

    starts = []
    for start in run.starts:
        command = tuple(map(shorten, start.command))
        starts.append(start.model_copy(update={"command": command, "time": None}))
    lists = run.lists.model_copy(
        update={
            "train": tuple(map(shorten_path, run.lists.train)),
            "valid": tuple(map(shorten_path, run.lists.valid)),
        }
    )
    weights = run.first_weights
    if weights is not None and weights.name is not None:
        weights = weights.model_copy(update={"name": shorten(weights.name)})
    kept = run.model_copy(update={"starts": tuple(starts), "lists": lists, "first_weights": weights})
    return kept.model_copy(update={"resources": None, "progress": None, "warnings": (), "end": None})


def _read_lists(experiment: ExperimentResults) -> list[Utterance]:
    """The utterances of the training lists that still exist."""
    utterances = list[Utterance]()
    for path in map(Path, experiment.run.lists.train_paths):
        if path.is_file():
            utterances += read_data_list(path)
    return utterances


def _part_of(experiment: ExperimentResults, clips: Sequence[Utterance]) -> TrainingPart:
    durations = [clip.duration for clip in clips if clip.duration is not None]
    last = (experiment.curves.get("valid") or [{}])[-1]
    return TrainingPart(
        steps=int(last.get("step", 0)),
        train_hours=round(sum(durations) / 3600, 4) if len(durations) == len(clips) > 0 else None,
        train_seconds=round(last.get("seconds", 0.0), 1),
        dev_loss=round(last["loss_att"], 4) if "loss_att" in last else None,
        take_off=_take_off(experiment.curves),
    )


def _take_off(curves: Curves) -> float | None:
    """See `TrainingPart.take_off`. The loss in training is its mean between two validations."""
    below = []
    for valid, train in by_validation(curves):
        losses = [one["loss_ctc"] for one in train if "loss_ctc" in one]
        if "plateau_ctc" in valid:
            below.append(valid["plateau_ctc"] - min([valid["loss_ctc"], *([fmean(losses)] if losses else [])]))
    return round(max(below), 4) if below else None


def _read_first_part(run: RunRecord) -> TrainingPart | None:
    """The training of the folder that `--checkpoint` names; None if it is no folder of a training."""
    folder = Path(run.base_name or "")
    is_training = (folder / "train.yaml").is_file() and (folder / "metrics.jsonl").is_file()
    if run.base_name is None or not is_training:
        return None
    (first,) = read_experiments([folder])
    return _part_of(first, _read_lists(first))


def _find_implausible(report: Report, data_folders: Iterable[Path]) -> dict[str, list[int]] | None:
    """The utterances that an implausible.tsv names, by language, as indices in the order of the keys."""
    files = [path for path in (folder / "implausible.tsv" for folder in data_folders) if path.is_file()]
    named = {line.split()[0] for path in files for line in read_lines(path)[1:] if line.strip()}
    indices = {lang: [i for i, key in enumerate(of) if key in named] for lang, of in _by_language(report).items()}
    return {lang: of_lang for lang, of_lang in indices.items() if of_lang} if files else None


def _by_language(report: Report) -> dict[str, dict[str, ScoredUtterance]]:
    """The utterances of each language in the order of their keys."""
    groups: dict[str, dict[str, ScoredUtterance]] = {}
    for key, found in sorted(report.utterances.items()):
        groups.setdefault(found.lang, {})[key] = found
    return groups


def _collect_mode(report: Report, training: Sequence[Utterance]) -> ModeResults:
    has_features = report.rules.metric == "per" and find_spec("panphon") is not None
    groups = _by_language(with_features(report) if has_features else report)
    distances = {lang: [one.feature_distance or 0.0 for one in of.values()] for lang, of in groups.items()}
    lines = (f"{one.lang} {key} {one.counts.num_units}" for key, one in sorted(report.utterances.items()))
    return ModeResults(
        signature=report.signature,
        keys=sha256("\n".join(lines).encode()).hexdigest()[:16],
        errors={lang: [one.counts.errors for one in of.values()] for lang, of in groups.items()},
        kinds={lang: astuple(report.languages[lang].counts)[1:] for lang in groups},
        feature_errors={lang: round(sum(of), 3) for lang, of in distances.items()} if has_features else None,
        bands=_count_bands(report, training),
    )


def _count_bands(report: Report, training: Sequence[Utterance]) -> dict[str, Counts]:
    """The counts of the units of each band; empty if the training list is absent."""
    if not training:
        return {}
    trained = Counter(unit for clip in training for unit in split_units(clip.txt, report.rules, clip.lang or ""))
    sums = {name: [0, 0, 0, 0] for name, _ in BANDS}
    for utterance in report.utterances.values():
        for operation in align(*utterance.split(report.rules)):
            unit = operation.hyp if operation.ref is None else operation.ref
            band = next(name for name, most in BANDS if most is None or trained[unit or ""] <= most)
            sums[band][0] += operation.ref is not None
            if operation.kind != "C":
                sums[band]["_SDI".index(operation.kind)] += 1
    return {name: (of[0], of[1], of[2], of[3]) for name, of in sums.items()}


def write_results(results: Results, folder: Path) -> Path:
    """Write one results file, named after the system and the seed, into a folder. Returns its path."""
    path = folder / f"{results.name}.json"
    defaults = asdict(Results(system="", seed=-1, steps=-1, train_hours=-1, train_seconds=-1))
    record = {key: value for key, value in asdict(results).items() if value != defaults[key]}
    record["run"] = results.run.model_dump(mode="json", exclude_defaults=True)
    text = json.dumps({"format": FORMAT, **record}, ensure_ascii=False, separators=(",", ":"))
    write_atomic(path, text.replace('],"', '],\n"').replace('},"', '},\n"') + "\n")
    return path


def read_results(path: Path) -> Results:
    """Read a results file. Raises DataError if it is not one."""
    record = read_json(path, "write it again with `report --results`")
    try:
        written_format = record.pop("format", None)
        if written_format not in (FORMAT, EARLIER_FORMAT):
            raise ValueError(f"no format {FORMAT!r}")
        if written_format == EARLIER_FORMAT:
            run = run_of_settings({"provenance": record.pop("provenance", {})}) or RunRecord()
        else:
            run = RunRecord.model_validate(record.pop("run"))
        modes = {mode: ModeResults(**found) for mode, found in record.pop("modes", {}).items()}
        first = record.pop("first", None)
        return Results(**record, run=run, modes=modes, first=first and TrainingPart(**first))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(path, f"not written by `report --results` ({error})", "write it again") from error
