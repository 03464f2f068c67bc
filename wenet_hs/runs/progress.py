# SPDX-License-Identifier: Apache-2.0
"""The progress of the trainings in an experiment folder, and the time until all have ended.

A recipe trains several models side by side: EXP/NAME is the model folder of each. The command that
shows their progress reads their records and writes EXP/progress.json, which the page reads.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from wenet_hs.base.files import read_lines
from wenet_hs.runs.record import RUN_FILE, RunRecord, RunState, read_run
from wenet_hs.runs.sentences import describe_duration, describe_limit, describe_resources
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

PROGRESS_FILE = "progress.json"
FORMAT: Literal["wenet_hs.progress/1"] = "wenet_hs.progress/1"
MAX_AGE_S = 60
"""EXP/progress.json is written each second. An older one is of a process that was killed."""


class ExperimentProgress(BaseModel):
    """The content of EXP/progress.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["wenet_hs.progress/1"] = FORMAT
    num_trainings: int
    """All trainings of the recipe, also those that have not begun."""
    seconds_left: float | None
    """Until all have ended; None before it is known."""


def write_progress(folder: Path, progress: ExperimentProgress) -> None:
    """Write EXP/progress.json, whole or not at all."""
    write_atomic(folder / PROGRESS_FILE, json.dumps(progress.model_dump(), indent=1) + "\n")


def read_progress(folder: Path) -> ExperimentProgress | None:
    """The content of EXP/progress.json; None if there is none.

    None also if it is older than `MAX_AGE_S`, because no process writes it any more then.

    Raises DataError if it is damaged.
    """
    path = folder / PROGRESS_FILE
    if not path.is_file() or time.time() - path.stat().st_mtime > MAX_AGE_S:
        return None
    try:
        return ExperimentProgress.model_validate_json("\n".join(read_lines(path)))
    except ValidationError as error:
        raise DataError(path, "is damaged, or of a newer version", "remove it") from error


@dataclass(frozen=True)
class ShownTraining:
    """A training whose progress is shown."""

    name: str
    """EXP/NAME: the last two folders of its path."""
    record: RunRecord
    state: RunState
    seconds_elapsed: float
    """Since its last start."""
    is_recent: bool = True
    """Whether its record was written after the command that shows progress was started."""

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def is_over(self) -> bool:
        """Whether no more time is expected for it.

        That is so if it is trained, or if it has ended just now. An older training that ended
        before its last step will be resumed.
        """
        return self.state == "trained" or (self.is_recent and not self.is_running)

    @property
    def seconds_left(self) -> float | None:
        """Until the training has ended; None before it is known."""
        if self.record.progress is None:
            return None
        return self.record.progress.seconds_left


def find_model_folders(path: Path) -> list[Path]:
    """The model folders in the folder of an experiment, by name.

    It is `path` itself if this is a model folder, or has no model folders (yet).
    """
    if (path / RUN_FILE).is_file():
        return [path]
    model_dirs = [record.parent for record in sorted(path.glob(f"*/{RUN_FILE}"))]
    return model_dirs or [path]


def read_trainings(model_dirs: Sequence[Path], *, since: float) -> list[ShownTraining]:
    """The trainings in these folders that have begun.

    A record that cannot be read is left out: `train` itself reports it.

    Args:
        since: records that were written from this time on are recent (seconds, as `time.time`).
    """
    trainings = []
    for model_dir in model_dirs:
        path = model_dir / RUN_FILE
        if not path.is_file():
            continue
        try:
            record = read_run(model_dir)
        except DataError:
            continue
        if record is not None:
            is_recent = path.stat().st_mtime >= since
            trainings.append(_describe_training(model_dir, record, is_recent=is_recent))
    return trainings


def _describe_training(model_dir: Path, record: RunRecord, *, is_recent: bool) -> ShownTraining:
    """The training with this record. No time has elapsed if the record has no time of a start."""
    seconds_elapsed = 0.0
    start_time = record.last_start.time
    if start_time is not None:
        elapsed = datetime.now(UTC) - datetime.fromisoformat(start_time)
        seconds_elapsed = elapsed.total_seconds()
    return ShownTraining(
        name=f"{model_dir.parent.name}/{model_dir.name}",
        record=record,
        state=record.state(model_dir),
        seconds_elapsed=seconds_elapsed,
        is_recent=is_recent,
    )


def estimate_seconds_left(
    trainings: Sequence[ShownTraining], *, jobs: int, num_trainings: int
) -> float | None:
    """The time until all of `num_trainings` have ended, if `jobs` of them run at a time.

    A training that has not begun is expected to take as long as the longest one that runs. The
    remaining work is divided by `jobs`, but the result is not less than the longest time that one
    training has left. `trainings` are those that have begun. None as long as the time left is known
    for none of them.
    """
    seconds_left = list[float]()
    longest_training = 0.0  # seconds from its last start to its end
    for training in trainings:
        if training.is_running and training.seconds_left is not None:
            seconds_left.append(training.seconds_left)
            duration = training.seconds_elapsed + training.seconds_left
            longest_training = max(longest_training, duration)
    if not seconds_left:
        return None
    num_over = sum(training.is_over for training in trainings)
    num_waiting = max(0, num_trainings - len(seconds_left) - num_over)
    seconds_of_work = sum(seconds_left) + num_waiting * longest_training
    longest_left = max(seconds_left)
    return max(longest_left, seconds_of_work / jobs)


def describe_progress(training: ShownTraining) -> str | None:
    """Step, loss and time left of a training that runs, on one line.

    The loss is `nan` if it is not finite, and the time is left out before it is known. None for a
    training that does not run, and before its first steps are logged.
    """
    steps = training.record.steps
    progress = training.record.progress
    if not training.is_running or progress is None or steps is None:
        return None
    if not progress.losses:
        return None
    loss = progress.losses.get("loss")
    parts = [
        f"{training.name}: step {progress.step} of {describe_limit(steps)}",
        "loss nan" if loss is None else f"loss {loss:.3f}",
    ]
    if training.seconds_left is not None:
        parts.append(f"{training.seconds_left / 60:.0f} min left")
    return " | ".join(parts)


def list_statements(training: ShownTraining) -> Iterator[str]:
    """What a training states once: its resources, its expected duration, its warnings.

    What is not known yet is left out. Of the warnings with one code only the first is stated; those
    with the code `general` are different warnings if their texts are.
    """
    record = training.record
    if record.resources is not None:
        yield describe_resources(record.resources)
    if record.steps is not None and record.progress is not None:
        seconds_per_step = record.progress.first_seconds_per_step
        if seconds_per_step is not None:
            yield describe_duration(record.steps, seconds_per_step)
    stated_kinds = set[str]()
    for warning in record.warnings:
        kind = warning.text if warning.code == "general" else warning.code
        if kind not in stated_kinds:
            stated_kinds.add(kind)
            yield f"WARNING {warning.text}"
