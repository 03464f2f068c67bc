# SPDX-License-Identifier: Apache-2.0
"""Run records of trainings that were never run, and changed ones."""

from pathlib import Path
from typing import Any

from wenet_hs.runs.record import (
    Resources,
    RunProgress,
    RunRecord,
    RunWarning,
    Start,
    Steps,
    read_run,
    utc_now,
    write_run,
)


def write_progress_of(
    model_dir: Path,
    step: int,
    planned: int,
    *,
    minutes_left: float | None = None,
    max_minutes: float | None = None,
    first_seconds_per_step: float | None = None,
    resources: Resources | None = None,
    **changes: Any,
) -> RunRecord:
    """Write the record of a training that has done `step` of `planned` steps.

    `changes`: other fields of the record.
    """
    progress = RunProgress(
        step=step,
        epoch=0,
        seconds=float(step),
        losses={"loss": 0.431},
        seconds_left=None if minutes_left is None else 60 * minutes_left,
        first_seconds_per_step=first_seconds_per_step,
    )
    values: dict[str, Any] = {
        "starts": (Start(time=utc_now(), processors=("P1",), ranks=1),),
        "steps": Steps(planned=planned, per_epoch=60, warmup=10, max_minutes=max_minutes),
        "progress": progress,
        "resources": resources,
    }
    record = RunRecord(**(values | changes))
    write_run(model_dir, record)
    return record


def change_run(model_dir: Path, **changes: Any) -> None:
    """Change fields of the record in a folder."""
    record = read_run(model_dir)
    assert record is not None
    write_run(model_dir, record.model_copy(update=changes))


def overfits(step: int) -> RunWarning:
    """A warning of a training."""
    return RunWarning(code="overfitted", step=step, text=f"step {step}: the model over-fits")
