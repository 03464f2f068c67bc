# SPDX-License-Identifier: Apache-2.0
"""Results files: what the tables of a study need of one training.

A results file is JSON. It is small enough to commit, and has no transcripts. For a recogniser it
has per decoding mode the errors of every utterance, their kinds, and the counts of the units by
their frequency in training. For a language model it has the perplexities. Both have the cost of the
training, its run record, and the settings that paired trainings must share.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from wenet_hs.base.files import read_json
from wenet_hs.results.pairing import TrainingFacts, training_of
from wenet_hs.runs.curves import TAKE_OFF_NATS
from wenet_hs.runs.record import RunRecord
from wenet_hs.score.compare import MACRO, MICRO
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

FORMAT = "wenet_hs.results/3"


class Band(NamedTuple):
    """Units with similar frequencies in training."""

    name: str
    most: int | None
    """The most occurrences in training; None: any number above the band before."""


BANDS = (
    Band("unseen", 0),
    Band("1 to 9", 9),
    Band("10 to 99", 99),
    Band("100 to 999", 999),
    Band("1,000 and more", None),
)
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
    """The counts of units by the name of their band. An insertion counts in the band of the
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
    """How far the CTC loss came below its plateau at most, in nats (`ctc_take_off`). None if it is
    not recorded."""


@dataclass(frozen=True, kw_only=True)
class Results(TrainingPart):
    """One training of a system."""

    system: str
    seed: int
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings by dotted name. Of a recogniser those that `training_of` reads, of a language model
    those that differ from the defaults."""
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
        """The one or two trainings that led to the weights, in order."""
        return [self] if self.first is None else [self.first, self]

    @property
    def is_on_plateau(self) -> bool | None:
        """Whether the CTC loss never came TAKE_OFF_NATS below its plateau; None if not recorded."""
        take_offs = [part.take_off for part in self.parts if part.take_off is not None]
        if not take_offs:
            return None
        return max(take_offs) < TAKE_OFF_NATS

    @property
    def training(self) -> TrainingFacts:
        """What two paired trainings must have in common."""
        return training_of(self.name, self.settings | {"seed": self.seed}, self.run)

    def rates(self, mode: str, *, only_plausible: bool = False) -> dict[str, float]:
        """The error rate of each language, and their averages MACRO and MICRO, as fractions.

        A language without units has no rate. At least one language must have units.

        Args:
            only_plausible: leave out the clips of implausible duration.
        """
        left_out: Mapping[str, Sequence[int]] = {}
        if only_plausible and self.implausible is not None:
            left_out = self.implausible
        errors = self.modes[mode].errors
        rates = dict[str, float]()
        all_units = 0
        all_errors = 0
        for lang, units in self.units.items():
            left_out_indices = left_out.get(lang, ())
            num_units = _sum_without(units, left_out_indices)
            num_errors = _sum_without(errors[lang], left_out_indices)
            all_units += num_units
            all_errors += num_errors
            if num_units > 0:
                rates[lang] = num_errors / num_units
        macro = fmean(rates.values())
        micro = all_errors / all_units
        return rates | {MACRO: macro, MICRO: micro}

    def numbers(self, *, only_plausible: bool = False) -> dict[str, float]:
        """What the columns of a table show, by their names.

        These are the macro average of each mode in %, the loss on the dev set, and of a language
        model the perplexities. `only_plausible`: as in `rates`.
        """
        numbers = dict[str, float]()
        for mode in self.modes:
            numbers[mode] = 100 * self.rates(mode, only_plausible=only_plausible)[MACRO]
        if self.dev_loss is not None:
            numbers[DEV_LOSS] = self.dev_loss
        return numbers | self.scores


def _sum_without(values: Sequence[int], left_out_indices: Sequence[int]) -> int:
    """The sum of the values without those at these indices."""
    left_out = set(left_out_indices)
    return sum(value for index, value in enumerate(values) if index not in left_out)


def write_results(results: Results, folder: Path) -> Path:
    """Write a results file `SYSTEM-seedN.json` into a folder. Returns its path.

    Fields with their default values are left out. The JSON has a line break after each list and
    object, so that a diff of two versions shows what has changed.
    """
    path = folder / f"{results.name}.json"
    # Required fields get values that no training has, so they are never left out.
    defaults = asdict(Results(system="", seed=-1, steps=-1, train_hours=-1, train_seconds=-1))
    record = {key: value for key, value in asdict(results).items() if value != defaults[key]}
    record["run"] = results.run.model_dump(mode="json", exclude_defaults=True)
    text = json.dumps({"format": FORMAT, **record}, ensure_ascii=False, separators=(",", ":"))
    # These signs stand where a list or object ends before the name of the next field.
    lines = text.replace('],"', '],\n"').replace('},"', '},\n"')
    write_atomic(path, lines + "\n")
    return path


def read_results(path: Path) -> Results:
    """Read a results file. Raises DataError if it is not one."""
    record = read_json(path, "write it again with `report --results`")
    try:
        if record.pop("format", None) != FORMAT:
            raise ValueError(f"no format {FORMAT!r}")
        run = RunRecord.model_validate(record.pop("run"))
        modes = {mode: ModeResults(**values) for mode, values in record.pop("modes", {}).items()}
        first_record = record.pop("first", None)
        first = None if first_record is None else TrainingPart(**first_record)
        # What is left in the record are fields with simple values.
        return Results(**record, run=run, modes=modes, first=first)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            path, f"not written by `report --results` ({error})", "write it again"
        ) from error
