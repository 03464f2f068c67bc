# SPDX-License-Identifier: Apache-2.0
"""The curves of a training (metrics.jsonl), and what they show: over-fitting, how CTC learns."""

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from wenet_hs.base.files import read_lines
from wenet_hs.runs.file_names import CURVES_FILE
from wenet_hs.tree.errors import DataError

OVERFITTING_RISE = 1.25
"""The validation loss of an over-fitted model is at least this many times its lowest one."""
OVERFITTING_SHARE = 0.5
"""The training loss of an over-fitted model is below this share of its validation loss.

Of the 360 trainings published at 568091f one ended with such losses; it had 7 minutes of speech.
"""
TAKE_OFF_NATS = 0.5
"""CTC has taken off if its loss is so far below its plateau, in nats per target.

Targets are labels and ends of sentence.
"""
_CHECKPOINT_PREFIX = "step-"
"""Before the number of the step in the name of a checkpoint folder."""
Curves = Mapping[str, Sequence[Mapping[str, float]]]
"""Kind of record (`train`, `valid`) → its records in the order of steps, each number by its name."""


def read_curves(path: Path) -> dict[str, list[dict[str, float]]]:
    """The numbers in metrics.jsonl by kind of record, as `Curves`; empty if there is no such file.

    An incomplete last line of a killed training is ignored. Raises DataError for any other line
    that is no record.
    """
    curves: dict[str, list[dict[str, float]]] = {}
    lines = read_lines(path) if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            kind = record["kind"]
            step = record["step"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            is_last_line = number == len(lines)
            if is_last_line:
                break
            found = "not a record of a training with `kind` and `step`"
            raise DataError(f"{path}:{number}", found, "remove the line") from error
        numbers = {
            key: float(value) for key, value in record.items() if isinstance(value, int | float)
        }
        numbers["step"] = float(step)
        curves.setdefault(str(kind), []).append(numbers)
    return curves


class _ValidationInterval(NamedTuple):
    """The part of a training that ends with a validation."""

    training: Sequence[Mapping[str, float]]
    """The records of training since the validation before."""
    validation: Mapping[str, float]


def _split_at_validations(curves: Curves) -> Iterator[_ValidationInterval]:
    """Each validation, with the records of training since the one before it."""
    training = curves.get("train", [])
    begin = 0
    for validation in curves.get("valid", []):
        # After the last record up to the step of the validation.
        end = bisect_right(training, validation["step"], key=itemgetter("step"))
        yield _ValidationInterval(training[begin:end], validation)
        begin = end


def ctc_take_off(curves: Curves) -> float | None:
    """How far the CTC loss came below its plateau at most, in nats per target.

    None if no validation records the plateau. It is negative if the loss was always above it.

    At each validation the smaller loss counts: that of the validation, or the mean loss in training
    since the validation before. By the losses of validations alone, a training that overfits from
    the start would seem not to have learned.
    """
    distances = list[float]()
    for interval in _split_at_validations(curves):
        if "plateau_ctc" not in interval.validation:
            continue
        loss = interval.validation["loss_ctc"]
        training_losses = _losses_of("loss_ctc", interval.training)
        if training_losses:
            loss = min(loss, fmean(training_losses))
        distances.append(interval.validation["plateau_ctc"] - loss)
    return max(distances, default=None)


def losses_by_validation(curves: Curves) -> tuple[list[float], list[float]]:
    """Training and validation loss at each validation, in nats per target.

    They are losses of CTC, or the sums of all losses if the model has no CTC. The training loss is
    the mean of the records since the validation before. A validation without one is left out.
    """
    train_losses = list[float]()
    valid_losses = list[float]()
    for interval in _split_at_validations(curves):
        has_ctc = any(record.get("loss_ctc") for record in interval.training)  # 0 without CTC
        name = "loss_ctc" if has_ctc else "loss"
        training_losses = _losses_of(name, interval.training)
        if training_losses and name in interval.validation:
            train_losses.append(fmean(training_losses))
            valid_losses.append(interval.validation[name])
    return train_losses, valid_losses


def _losses_of(name: str, records: Sequence[Mapping[str, float]]) -> list[float]:
    """The loss with this name in each record that has it."""
    return [record[name] for record in records if name in record]


def is_overfitted(train_losses: Sequence[float], valid_losses: Sequence[float]) -> bool:
    """Whether a model is over-fitted at its last validation, by its losses.

    That is so if the validation loss is at least `OVERFITTING_RISE` times its lowest value, the
    training loss has fallen since then, and it is below `OVERFITTING_SHARE` of the validation loss.

    Both arguments have one value per validation, in nats per target. With fewer than two the model
    is not over-fitted.
    """
    if len(valid_losses) < 2:
        return False
    train_loss = train_losses[-1]
    valid_loss = valid_losses[-1]
    lowest_valid_loss = min(valid_losses)
    index_of_lowest = valid_losses.index(lowest_valid_loss)
    has_risen = valid_loss >= OVERFITTING_RISE * lowest_valid_loss
    has_fallen = train_loss < train_losses[index_of_lowest]
    is_far_below = train_loss < OVERFITTING_SHARE * valid_loss
    return has_risen and has_fallen and is_far_below


def is_model_overfitted(model_dir: Path, weights: Path) -> bool:
    """Whether a model was over-fitted at the last checkpoint that its weights come from.

    False for a folder without readable records, such as WeNet's.

    Args:
        model_dir: the folder of the training, with metrics.jsonl.
        weights: a checkpoint folder, or a file that may have its record beside it (`final.json`).
    """
    try:
        curves = read_curves(model_dir / CURVES_FILE)
        if not curves:
            return False
        last_step = _last_step(weights)
    except (DataError, KeyError, TypeError, ValueError, RecursionError):
        return False
    curves_until_then = {
        kind: [record for record in records if record["step"] <= last_step]
        for kind, records in curves.items()
    }
    train_losses, valid_losses = losses_by_validation(curves_until_then)
    return is_overfitted(train_losses, valid_losses)


def _last_step(weights: Path) -> float:
    """The last step that weights come from; inf (the end of the training) if it is not known.

    It is that of the last averaged checkpoint, if the weights have a record beside them, and
    otherwise that in the name of the folder (`step-1000`).

    Raises an error of Python (KeyError, TypeError, ValueError or RecursionError) if the record or
    the name is damaged.
    """
    step = math.inf
    if weights.name.startswith(_CHECKPOINT_PREFIX):
        step = float(weights.name.removeprefix(_CHECKPOINT_PREFIX))
    record = weights.with_suffix(".json")
    if record.is_file():
        checkpoints = json.loads(record.read_text("utf-8"))["checkpoints"]
        step = max((checkpoint["step"] for checkpoint in checkpoints), default=math.inf)
    return step
