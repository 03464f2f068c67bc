# SPDX-License-Identifier: Apache-2.0
"""Results files: what the tables of a study need of one training, small enough to commit and without transcripts.

A results file is JSON: the system and the seed, the provenance, the learning curve, and per decoding mode the error
counts of every utterance, of the units by their frequency in training, and the phone feature distances.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from wenet_hs.config.load import flatten
from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.errors import DataError
from wenet_hs.files import read_lines, write_atomic
from wenet_hs.manifest import Utterance, read_data_list
from wenet_hs.report.collect import SIMULATED_KEY, ExperimentResults, read_experiments
from wenet_hs.score.compare import MACRO, MICRO
from wenet_hs.score.edit_distance import align
from wenet_hs.score.error_rate import Report
from wenet_hs.score.features import with_features
from wenet_hs.score.pairing import Training, command_values, training_of
from wenet_hs.score.units import split_units
from wenet_hs.train.monitor import TAKE_OFF_NATS

FORMAT = "wenet_hs.results/1"
BANDS = (("unseen", 0), ("1 to 9", 9), ("10 to 99", 99), ("100 to 999", 999), ("1,000 and more", None))
"""Name and greatest training count of the frequency bands of units."""
CURVE_POINTS = 40
_DECODING = (*(option.name for option in fields(DecodeOptions)), "lm", "inventory", "place_unseen", "renormalize")
_CURVE = ("step", "loss", "loss_att", "loss_ctc", "plateau_ctc", "accuracy")

Counts = tuple[int, int, int, int]
"""Reference units, substitutions, deletions, insertions."""


@dataclass(frozen=True, kw_only=True)
class ModeResults:
    """The scores of one decoding mode."""

    signature: str
    keys: str
    """Hash of the keys and languages: equal for equal test sets."""
    utterances: dict[str, list[Counts]]
    """The counts of each utterance by language, in the order of the keys."""
    distances: dict[str, list[float]] | None
    """The phone feature distances likewise; None if they were not computed."""
    bands: dict[str, Counts]
    """The counts of units by their frequency in training; an insertion counts in the band of the inserted unit."""


@dataclass(frozen=True, kw_only=True)
class TrainingPart:
    """The cost and the learning curve of a training, or of the first part of a training in two parts."""

    steps: int
    train_hours: float | None
    """Hours of audio in the training lists."""
    train_seconds: float
    curve: list[dict[str, float]]
    """Up to CURVE_POINTS validations: step, losses, plateau of CTC, and CTC's mean training loss since the last one."""


@dataclass(frozen=True, kw_only=True)
class Results(TrainingPart):
    """One training of a system."""

    system: str
    seed: int
    settings: dict[str, Any]
    """The settings of train.yaml by dotted name, without the seed."""
    provenance: dict[str, str]
    """That of train.yaml; paths are relative to the folder of the recipe, two above the experiment's."""
    first: TrainingPart | None = None
    """The training whose folder `--checkpoint` names."""
    modes: dict[str, ModeResults] = field(default_factory=dict)
    decoding: dict[str, Any] = field(default_factory=dict)
    """The options of decoding that are not 0 or absent: beam size, weights, language model, known units."""
    implausible: dict[str, list[int]] | None = None
    """The clips of implausible duration by language, as indices of `utterances`; None if `prepare` named none."""
    is_simulated: bool = False
    """Whether the test set is simulated speech."""
    is_pretrained_on_simulated: bool = False
    """Whether the training began from a model of simulated speech."""

    @property
    def name(self) -> str:
        """The system and the seed: the stem of the file."""
        return f"{self.system}-seed{self.seed}"

    @property
    def parts(self) -> list[TrainingPart]:
        return [self] if self.first is None else [self.first, self]

    @property
    def is_on_plateau(self) -> bool | None:
        """Whether CTC never came TAKE_OFF_NATS below its plateau, in validation or in training; None if not recorded.

        Validation alone would also count trainings that overfit from the start.
        """
        points = [point for part in self.parts for point in part.curve if "plateau_ctc" in point]
        below = [
            point["plateau_ctc"] - point[key] for point in points for key in ("loss_ctc", "train_ctc") if key in point
        ]
        return max(below) < TAKE_OFF_NATS if below else None

    @property
    def training(self) -> Training:
        """What two paired trainings must have in common."""
        return training_of(self.name, self.settings | {"seed": self.seed}, self.provenance)

    def rates(self, mode: str, *, only_plausible: bool = False) -> dict[str, float]:
        """The error rate of each language and of MACRO and MICRO, also without the clips of implausible duration."""
        left_out, utterances = (only_plausible and self.implausible) or {}, self.modes[mode].utterances
        sums = {lang: np.delete(of, left_out.get(lang, []), axis=0).sum(axis=0) for lang, of in utterances.items()}
        rates = {lang: float(counts[1:].sum() / counts[0]) for lang, counts in sums.items() if counts[0]}
        total = np.sum(list(sums.values()), axis=0)
        return rates | {MACRO: fmean(rates.values()), MICRO: float(total[1:].sum() / total[0])}


def collect_results(experiment: ExperimentResults, data_folders: Iterable[Path] = ()) -> Results:
    """The results of one experiment folder. `data_folders`: where `prepare` wrote its implausible.tsv.

    Raises DataError if it has no train.yaml with a seed, or no scores.
    """
    settings, provenance = flatten(experiment.settings), experiment.provenance
    if "seed" not in settings or not experiment.scores:
        raise DataError(f"{experiment.folder}: no train.yaml with a seed, or no scores; train, decode and score first")
    seed = int(settings.pop("seed"))
    clips = _read_lists(experiment)
    folder = experiment.folder.resolve()
    of_data = folder.parent.name.removeprefix("exp")  # recipes name it after the options that change the data
    return Results(
        system=folder.name.removesuffix(f"-seed{seed}") + (of_data if of_data.startswith("-") else ""),
        seed=seed,
        settings=settings,
        provenance={key: str(value).replace(f"{folder.parents[1]}/", "") for key, value in provenance.items()},
        **_part_of(experiment, clips),
        first=_read_first_part(provenance),
        modes={mode: _collect_mode(report, clips) for mode, report in experiment.scores.items()},
        decoding={key: experiment.rtf[key] for key in _DECODING if experiment.rtf.get(key)},
        implausible=_find_implausible(next(iter(experiment.scores.values())), data_folders),
        is_simulated=any(SIMULATED_KEY.search(key) for found in experiment.scores.values() for key in found.utterances),
        is_pretrained_on_simulated=experiment.is_pretrained_on_simulated,
    )


def _read_lists(experiment: ExperimentResults) -> list[Utterance]:
    """The utterances of the training lists that still exist."""
    lists = map(Path, command_values(experiment.provenance, "--train_data"))
    return [clip for path in lists if path.is_file() for clip in read_data_list(path)]


def _part_of(experiment: ExperimentResults, clips: Sequence[Utterance]) -> dict[str, Any]:
    """The fields of `TrainingPart`."""
    durations = [clip.duration for clip in clips if clip.duration is not None]
    valid = experiment.curves.get("valid", [])
    last = valid[-1] if valid else {}
    thinned = valid[:: -max(1, -(-len(valid) // CURVE_POINTS))][::-1]  # every n-th, counted from the last one
    curve = [{key: round(record[key], 4) for key in _CURVE if key in record} for record in thinned]
    for before, point in itertools.pairwise([{"step": 0.0}, *curve]):
        of_train = [one for one in experiment.curves.get("train", []) if before["step"] < one["step"] <= point["step"]]
        if of_train and "plateau_ctc" in point:
            point["train_ctc"] = round(fmean(one["loss_ctc"] for one in of_train), 4)
    return {
        "steps": int(last.get("step", 0)),
        "train_hours": round(sum(durations) / 3600, 4) if len(durations) == len(clips) > 0 else None,
        "train_seconds": round(last.get("seconds", 0.0), 1),
        "curve": curve,
    }


def _read_first_part(provenance: Mapping[str, Any]) -> TrainingPart | None:
    """The training of the folder that `--checkpoint` names; None if it is no folder of a training."""
    for folder in map(Path, command_values(provenance, "--checkpoint")):
        if (folder / "train.yaml").is_file() and (folder / "metrics.jsonl").is_file():
            (first,) = read_experiments([folder])
            return TrainingPart(**_part_of(first, _read_lists(first)))
    return None


def _find_implausible(report: Report, data_folders: Iterable[Path]) -> dict[str, list[int]] | None:
    """The utterances that an implausible.tsv names, by language, as indices in the order of the keys."""
    files = [path for path in (folder / "implausible.tsv" for folder in data_folders) if path.is_file()]
    named = {line.split()[0] for path in files for line in read_lines(path)[1:] if line.strip()}
    by_lang: dict[str, list[str]] = {}
    for key, found in sorted(report.utterances.items()):
        by_lang.setdefault(found.lang, []).append(key)
    indices = {lang: [i for i, key in enumerate(keys) if key in named] for lang, keys in by_lang.items()}
    return {lang: of_lang for lang, of_lang in indices.items() if of_lang} if files else None


def _collect_mode(report: Report, training: Sequence[Utterance]) -> ModeResults:
    utterances = sorted(report.utterances.items())
    counts: dict[str, list[Counts]] = {}
    distances: dict[str, list[float]] = {}
    if report.rules.metric == "per" and find_spec("panphon") is not None:
        utterances = sorted(with_features(report).utterances.items())
    for _, found in utterances:
        counts.setdefault(found.lang, []).append(astuple(found.counts))
        if found.feature_distance is not None:
            distances.setdefault(found.lang, []).append(round(found.feature_distance, 3))
    keys = "\n".join(f"{found.lang} {key} {found.counts.num_units}" for key, found in utterances)
    return ModeResults(
        signature=report.signature,
        keys=sha256(keys.encode()).hexdigest()[:16],
        utterances=counts,
        distances=distances or None,
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
    record = {"format": FORMAT, **asdict(results)}
    write_atomic(path, json.dumps(record, ensure_ascii=False, separators=(",", ":")).replace('],"', '],\n"') + "\n")
    return path


def read_results(path: Path) -> Results:
    """Read a results file. Raises DataError if it is not one."""
    try:
        record = json.loads("\n".join(read_lines(path)))
        if record.pop("format", None) != FORMAT:
            raise ValueError(f"no format {FORMAT!r}")
        modes = {mode: ModeResults(**found) for mode, found in record.pop("modes").items()}
        first = record.pop("first", None)
        return Results(**record, modes=modes, first=first and TrainingPart(**first))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path}: not written by `report --results` ({error}); write it again") from error
