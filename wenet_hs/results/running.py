# SPDX-License-Identifier: Apache-2.0
"""The state of a training that may be running: step, time left, warnings and curves."""

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

MAX_WARNINGS = 5
"""How many different warnings are shown, the last ones."""
LOG_LINES = 12
"""How many lines at the end of the log are shown."""


@dataclass(frozen=True, kw_only=True)
class LiveTraining:
    """What a page shows about a training."""

    step: int = 0
    """Optimizer steps done."""
    total: int = 0
    """The planned steps; 0 before they are known."""
    max_minutes: float | None = None
    """A limit of time, which may end the training before the planned steps."""
    minutes_left: float | None = None
    """Until this training has ended; None if unknown."""
    minutes_of_all: float | None = None
    """Until all trainings of the recipe have ended; None if unknown."""
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
    """The state of the training of a model folder.

    The progress of all trainings of a recipe is beside the folder, and so is the log
    `MODEL_DIR.log`. What these files do not have yet is empty, 0 or None. Damaged records are among
    the diagnoses. Raises DataError if metrics.jsonl is damaged.
    """
    folder = ExperimentFolder(model)
    curves = folder.read_curves()
    validations = curves.get("valid", [])
    faults = list[str]()
    record = RunRecord()
    progress_of_all = None
    try:
        record = folder.read_run()
    except WenetHsError as error:
        faults.append(str(error))
    try:
        progress_of_all = read_progress(model.parent)
    except WenetHsError as error:
        faults.append(str(error))
    diagnoses = [*_find_diagnoses(record), *faults]
    seconds_left = None if record.progress is None else record.progress.seconds_left
    seconds_of_all = None if progress_of_all is None else progress_of_all.seconds_left
    return LiveTraining(
        step=_last_step(record, curves),
        total=0 if record.steps is None else record.steps.planned,
        max_minutes=None if record.steps is None else record.steps.max_minutes,
        minutes_left=_minutes(seconds_left),
        minutes_of_all=_minutes(seconds_of_all),
        diagnoses=[escape_bytes(text) for text in diagnoses],
        curves=curves,
        num_valid=len(validations),
        error_rates=[
            validation["ctc_error_rate"]
            for validation in validations
            if "ctc_error_rate" in validation
        ],
        lines=tail(model.with_name(f"{model.name}.log"), LOG_LINES),
    )


def _minutes(seconds: float | None) -> float | None:
    """The same time in minutes; None stays None."""
    return None if seconds is None else seconds / 60


def _last_step(record: RunRecord, curves: Curves) -> int:
    """The last step that the record has, or else the curves; 0 before the first step."""
    if record.progress is not None:
        return record.progress.step
    last_steps = [points[-1]["step"] for points in curves.values() if points]
    return int(max(last_steps, default=0))


def _find_diagnoses(record: RunRecord) -> list[str]:
    """The last different warnings of a training, and the error if it failed."""
    different_warnings = dict.fromkeys(warning.text for warning in record.warnings)
    texts = list(different_warnings)[-MAX_WARNINGS:]
    if record.end is not None and record.end.state == "failed":
        texts.append(record.end.text)
    return texts
