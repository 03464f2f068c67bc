# SPDX-License-Identifier: Apache-2.0
"""Results files: what the tables of a study need of one training, small enough to commit and
without transcripts.

A results file is JSON. Of a recogniser it has per decoding mode the errors of every utterance,
their kinds, and the counts of the units by their frequency in training; of a language model the
perplexities. Both have the cost of the training, its run record, and the settings that paired
trainings must share.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from wenet_hs.base.files import read_json
from wenet_hs.results.pairing import TrainingFacts, training_of
from wenet_hs.runs.curves import TAKE_OFF_NATS
from wenet_hs.runs.record import RunRecord
from wenet_hs.score.compare import MACRO, MICRO
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

FORMAT = "wenet_hs.results/3"
BANDS = (
    ("unseen", 0),
    ("1 to 9", 9),
    ("10 to 99", 99),
    ("100 to 999", 999),
    ("1,000 and more", None),
)
"""Name and greatest training count of the frequency bands of units."""
DEV_LOSS = "dev loss, nats"
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
    """The counts of units by their frequency in training; an insertion counts in the band of the
    inserted unit."""


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
    """How far the CTC loss came below its plateau at most, nats, see `ctc_take_off`; None if it is
    not recorded."""


@dataclass(frozen=True, kw_only=True)
class Results(TrainingPart):
    """One training of a system."""

    system: str
    seed: int
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings by dotted name: those that `training_of` reads, or of a language model those without
    the default."""
    run: RunRecord = RunRecord()
    """What the training was started with; paths are relative to the recipe, two folders above the
    experiment."""
    first: TrainingPart | None = None
    """The training whose folder `--checkpoint` names."""
    units: dict[str, list[int]] = field(default_factory=dict)
    """The reference units of each utterance by language, in the order of the keys."""
    modes: dict[str, ModeResults] = field(default_factory=dict)
    decoding: dict[str, Any] = field(default_factory=dict)
    """The options of decoding that are not 0 or absent: beam size, weights, language model, known
    units. Chunks are not among them: they are in the name of the system."""
    implausible: dict[str, list[int]] | None = None
    """The clips of implausible duration by language, as indices of `units`; None if `prepare` named
    none."""
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
        distances = [part.take_off for part in self.parts if part.take_off is not None]
        return max(distances) < TAKE_OFF_NATS if distances else None

    @property
    def training(self) -> TrainingFacts:
        """What two paired trainings must have in common."""
        return training_of(self.name, self.settings | {"seed": self.seed}, self.run)

    def rates(self, mode: str, *, only_plausible: bool = False) -> dict[str, float]:
        """The error rate of each language and of MACRO and MICRO, also without the clips of
        implausible duration.

        A language without units has no rate.
        """
        left_out: Mapping[str, Sequence[int]] = {}
        if only_plausible and self.implausible is not None:
            left_out = self.implausible
        errors = self.modes[mode].errors
        rates = dict[str, float]()
        all_units = 0
        all_errors = 0
        for lang, units in self.units.items():
            num_units = _sum_without(units, left_out.get(lang, ()))
            num_errors = _sum_without(errors[lang], left_out.get(lang, ()))
            all_units += num_units
            all_errors += num_errors
            if num_units:
                rates[lang] = num_errors / num_units
        macro = fmean(rates.values())
        return rates | {MACRO: macro, MICRO: all_errors / all_units}

    def numbers(self, *, only_plausible: bool = False) -> dict[str, float]:
        """The macro average of each mode in %, the loss on the dev set, and the perplexities, by
        name of the column."""
        numbers = dict[str, float]()
        for mode in self.modes:
            numbers[mode] = 100 * self.rates(mode, only_plausible=only_plausible)[MACRO]
        if self.dev_loss is not None:
            numbers[DEV_LOSS] = self.dev_loss
        return numbers | self.scores


def _sum_without(values: Sequence[int], left_out: Sequence[int]) -> int:
    """The sum of the values without those at these indices."""
    indices = {*left_out}
    return sum(value for index, value in enumerate(values) if index not in indices)


def write_results(results: Results, folder: Path) -> Path:
    """Write one results file, named after the system and the seed, into a folder. Returns its
    path."""
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
        if record.pop("format", None) != FORMAT:
            raise ValueError(f"no format {FORMAT!r}")
        run = RunRecord.model_validate(record.pop("run"))
        modes = {mode: ModeResults(**values) for mode, values in record.pop("modes", {}).items()}
        first = record.pop("first", None)
        return Results(**record, run=run, modes=modes, first=first and TrainingPart(**first))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            path, f"not written by `report --results` ({error})", "write it again"
        ) from error
