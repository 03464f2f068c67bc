# SPDX-License-Identifier: Apache-2.0
"""The state of a training, from its run record and metrics.jsonl: step, time left, warnings,
curves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wenet_hs.base.jobs import tail
from wenet_hs.results.folder import ExperimentFolder
from wenet_hs.runs.curves import Curves
from wenet_hs.runs.progress import read_progress
from wenet_hs.runs.record import RunRecord
from wenet_hs.runs.sentences import escape_bytes
from wenet_hs.tree.errors import WenetHsError

MAX_WARNINGS, LOG_LINES = 5, 12


@dataclass(frozen=True, kw_only=True)
class LiveTraining:
    """What a page shows about a training."""

    step: int = 0
    """Optimizer steps done."""
    total: int = 0
    """The planned ones; 0 before they are known."""
    max_minutes: float | None = None
    """A limit of time, which may end the training before them."""
    minutes_left: float | None = None
    minutes_of_all: float | None = None
    """Until all trainings of the recipe have ended."""
    diagnoses: Sequence[str] = ()
    """The last warnings, each once, and the error by which it ended."""
    curves: Curves = field(default_factory=dict)
    """The records so far, by kind."""
    num_valid: int = 0
    """Validations so far."""
    error_rates: Sequence[float] = field(default_factory=list)
    """Of the dev set at each validation: the share of wrong units."""
    lines: Sequence[str] = ()
    """The end of the log."""


def read_state(model: Path) -> LiveTraining:
    """The state of the training of a model folder; of one of a recipe its log is beside the folder.

    Damaged records are among the diagnoses. Raises DataError if metrics.jsonl is damaged.
    """
    folder = ExperimentFolder(model)
    curves = folder.read_curves()
    valid = curves.get("valid", [])
    faults = list[str]()
    record = RunRecord()
    of_all = None
    try:
        record = folder.read_run()
    except WenetHsError as error:
        faults.append(str(error))
    try:
        of_all = read_progress(model.parent)
    except WenetHsError as error:
        faults.append(str(error))
    diagnoses = [escape_bytes(text) for text in (*_diagnoses(record), *faults)]
    seconds_left = None if record.progress is None else record.progress.seconds_left
    seconds_of_all = None if of_all is None else of_all.seconds_left
    return LiveTraining(
        step=_last_step(record, curves),
        total=0 if record.steps is None else record.steps.planned,
        max_minutes=None if record.steps is None else record.steps.max_minutes,
        minutes_left=_minutes(seconds_left),
        minutes_of_all=_minutes(seconds_of_all),
        diagnoses=diagnoses,
        curves=curves,
        num_valid=len(valid),
        error_rates=[
            record_of["ctc_error_rate"] for record_of in valid if "ctc_error_rate" in record_of
        ],
        lines=tail(model.with_name(f"{model.name}.log"), LOG_LINES),
    )


def _minutes(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / 60


def _last_step(record: RunRecord, curves: Curves) -> int:
    """The last step of the record, or of the curves if it has no progress."""
    if record.progress is not None:
        return record.progress.step
    last_steps = [points[-1]["step"] for points in curves.values() if points]
    return int(max(last_steps, default=0))


def _diagnoses(record: RunRecord) -> list[str]:
    texts = [*dict.fromkeys(warning.text for warning in record.warnings)][-MAX_WARNINGS:]
    if record.end is not None and record.end.state == "failed":
        texts.append(record.end.text)
    return texts
