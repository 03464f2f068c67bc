# SPDX-License-Identifier: Apache-2.0
"""The curves of a training (metrics.jsonl): whether they show over-fitting, and how far CTC has
taken off.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import fmean

from wenet_hs.base.files import read_lines
from wenet_hs.runs.file_names import CURVES_FILE
from wenet_hs.tree.errors import DataError

OVERFITTING_RISE, OVERFITTING_SHARE = 1.25, 0.5
"""A model is over-fitted if its validation loss is this many times its lowest one, and the training
loss is below this share of it and still falls. Of the 360 trainings published at 568091f one ended
so, with 7 minutes of speech.
"""
TAKE_OFF_NATS = 0.5
"""A CTC that has taken off has a loss so far below its plateau, in nats per target (labels and end
of sentence).
"""
Curves = Mapping[str, Sequence[Mapping[str, float]]]


def read_curves(path: Path) -> dict[str, list[dict[str, float]]]:
    """The numbers in metrics.jsonl by kind of record.

    An incomplete last line of a killed training is ignored.
    """
    curves: dict[str, list[dict[str, float]]] = {}
    lines = read_lines(path) if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            kind, step = record["kind"], record["step"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if number == len(lines):
                break
            found = "not a record of a training with `kind` and `step`"
            raise DataError(f"{path}:{number}", found, "remove the line") from error
        numbers = {
            key: float(value) for key, value in record.items() if isinstance(value, int | float)
        }
        curves.setdefault(str(kind), []).append(numbers | {"step": float(step)})
    return curves


def by_validation(
    curves: Curves,
) -> Iterator[tuple[Mapping[str, float], Sequence[Mapping[str, float]]]]:
    """Each validation, and the records of training since the one before."""
    records, first = curves.get("train", []), 0
    for valid in curves.get("valid", []):
        last = bisect_right(records, valid["step"], key=itemgetter("step"))
        yield valid, records[first:last]
        first = last


def ctc_take_off(curves: Curves) -> float | None:
    """How far the CTC loss came below its plateau at most, nats; None if no validation records the
    plateau.

    At each validation the smaller loss counts: that of the validation, or the mean loss in training
    since the one before. Validations only would also count trainings that overfit from the start.
    """
    distances = list[float]()
    for valid, since in by_validation(curves):
        if "plateau_ctc" not in valid:
            continue
        loss = valid["loss_ctc"]
        train_losses = [record["loss_ctc"] for record in since if "loss_ctc" in record]
        if train_losses:
            loss = min(loss, fmean(train_losses))
        distances.append(valid["plateau_ctc"] - loss)
    return max(distances, default=None)


def losses_by_validation(curves: Curves) -> tuple[list[float], list[float]]:
    """Training and validation loss at each validation: of CTC, or of all if the model has none.

    The training loss is the mean of the records since the validation before; a validation without
    one is left out.
    """
    train_losses, valid_losses = list[float](), list[float]()
    for valid, since in by_validation(curves):
        name = "loss_ctc" if any(one.get("loss_ctc") for one in since) else "loss"
        train = [one[name] for one in since if name in one]
        if train and name in valid:
            train_losses.append(fmean(train))
            valid_losses.append(valid[name])
    return train_losses, valid_losses


def is_overfitted(train_losses: Sequence[float], valid_losses: Sequence[float]) -> bool:
    """Whether the validation loss has risen from its minimum while the training loss fell, by the
    rule above.

    Both have one value per validation, in nats per target; with fewer than two the answer is no.
    """
    if len(valid_losses) < 2:
        return False
    train, valid = train_losses[-1], valid_losses[-1]
    best = min(range(len(valid_losses)), key=valid_losses.__getitem__)
    has_risen = valid >= OVERFITTING_RISE * valid_losses[best]
    return has_risen and train < train_losses[best] and train < OVERFITTING_SHARE * valid


def is_model_overfitted(model_dir: Path, weights: Path) -> bool:
    """Whether the training of a model folder had over-fitted at the last checkpoint that the
    weights come from.

    Weights of unknown step are those of the end. A folder without readable records, such as
    WeNet's, gives no.

    Args:
        weights: a checkpoint folder, or a file that may have its record beside it (`final.json`).
    """
    record = weights.with_suffix(".json")
    try:
        curves = read_curves(model_dir / CURVES_FILE)
        step = float(weights.name[5:]) if weights.name.startswith("step-") else math.inf
        if curves and record.is_file():
            checkpoints = json.loads(record.read_text("utf-8"))["checkpoints"]
            step = max((one["step"] for one in checkpoints), default=math.inf)
    except (DataError, KeyError, TypeError, ValueError, RecursionError):
        return False
    until = {
        kind: [one for one in records if one["step"] <= step] for kind, records in curves.items()
    }
    return is_overfitted(*losses_by_validation(until))
