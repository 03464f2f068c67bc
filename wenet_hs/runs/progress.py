# SPDX-License-Identifier: Apache-2.0
"""How far the trainings of an experiment folder are, and the time that is left of all.

A recipe trains several models side by side: EXP/NAME is the model folder of each. The tool that
shows their progress writes EXP/progress.json, which the page reads.
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
"""Of EXP/progress.json, which is written each second.

An older one is of a process that was killed.
"""


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
    """The content of EXP/progress.json; None if there is none, or if nothing renews it any more.

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
    """EXP/NAME, by the last two folders."""
    record: RunRecord
    state: RunState
    seconds_elapsed: float
    """Since its last start."""
    is_recent: bool = True
    """Whether its record was written since the progress is shown."""

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def is_over(self) -> bool:
        """Whether no more time is expected for it: not for one that will be resumed."""
        return self.state == "trained" or (self.is_recent and not self.is_running)

    @property
    def seconds_left(self) -> float | None:
        """None before it is known."""
        return None if self.record.progress is None else self.record.progress.seconds_left


def find_model_folders(path: Path) -> list[Path]:
    """The model folders in the folder of an experiment; `path` itself if it is a model folder, or
    not made yet.
    """
    if (path / RUN_FILE).is_file():
        return [path]
    below = [record.parent for record in sorted(path.glob(f"*/{RUN_FILE}"))]
    return below or [path]


def read_trainings(model_dirs: Sequence[Path], *, since: float) -> list[ShownTraining]:
    """The trainings in these folders that have begun.

    A record that cannot be read is left out: `train` itself reports it.

    Args:
        since: the time from which on a record is recent, in seconds as of `time.time`.
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
    begun = record.last_start.time
    elapsed = 0.0
    if begun is not None:
        elapsed = (datetime.now(UTC) - datetime.fromisoformat(begun)).total_seconds()
    return ShownTraining(
        name=f"{model_dir.parent.name}/{model_dir.name}",
        record=record,
        state=record.state(model_dir),
        seconds_elapsed=elapsed,
        is_recent=is_recent,
    )


def seconds_of_all(
    trainings: Sequence[ShownTraining], *, jobs: int, num_trainings: int
) -> float | None:
    """The time until all of `num_trainings` have ended, `jobs` at a time; None before one of them
    has a time.

    One that has not begun is expected to take as long as the longest one that runs.
    """
    left = list[float]()
    longest = 0.0
    for training in trainings:
        if training.is_running and training.seconds_left is not None:
            left.append(training.seconds_left)
            longest = max(longest, training.seconds_left + training.seconds_elapsed)
    if not left:
        return None
    num_over = sum(training.is_over for training in trainings)
    num_waiting = max(0, num_trainings - len(left) - num_over)
    return max(max(left), (sum(left) + num_waiting * longest) / jobs)


def describe_progress(training: ShownTraining) -> str | None:
    """Step, loss and time left of a training that runs, on one line; None before its first steps
    are logged.
    """
    record = training.record
    if not training.is_running or record.progress is None or record.steps is None:
        return None
    if not record.progress.losses:
        return None
    loss = record.progress.losses.get("loss")
    parts = [
        f"{training.name}: step {record.progress.step} of {describe_limit(record.steps)}",
        "loss nan" if loss is None else f"loss {loss:.3f}",
    ]
    if training.seconds_left is not None:
        parts.append(f"{training.seconds_left / 60:.0f} min left")
    return " | ".join(parts)


def list_statements(training: ShownTraining) -> Iterator[str]:
    """What a training states once: its resources, its expected duration, and each kind of warning."""
    record = training.record
    if record.resources is not None:
        yield describe_resources(record.resources)
    if (
        record.steps is not None
        and record.progress is not None
        and record.progress.first_seconds_per_step is not None
    ):
        yield describe_duration(record.steps, record.progress.first_seconds_per_step)
    seen = set[str]()
    for warning in record.warnings:
        kind = warning.text if warning.code == "general" else warning.code
        if kind not in seen:
            seen.add(kind)
            yield f"WARNING {warning.text}"
