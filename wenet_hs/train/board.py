# SPDX-License-Identifier: Apache-2.0
"""TensorBoard's event files, written at once and by this thread.

torch's SummaryWriter writes in a thread: what it has not written yet is lost by a kill, a full disk is a traceback of
its own, and the processes that load data are forked beside it.
"""

import os
import platform
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]


class Board:
    """One event file. A resumed run adds another; of what the earlier ones say from `step` on, nothing is shown."""

    def __init__(self, folder: Path, *, step: int) -> None:
        """`step` is the first that will be written."""
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"events.out.tfevents.{time.time_ns() // 1_000_000_000:010d}.{platform.node()}.{os.getpid()}"
        number = sum(path.name.startswith(stem) for path in folder.iterdir())
        self._records = RecordWriter((folder / f"{stem}.{number}").open("xb"))
        self._write(file_version="brain.Event:2")
        self._write(step=step, session_log=SessionLog(status=SessionLog.START))

    def add(self, tag: str, value: float, step: int) -> None:
        """A number of an optimizer step."""
        self._write(step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))

    def flush(self) -> None:
        """Hand what was added to the operating system."""
        self._records.flush()

    def close(self) -> None:
        """Write the rest and close the file."""
        self._records.close()

    def _write(self, **facts: object) -> None:
        self._records.write(Event(wall_time=time.time(), **facts).SerializeToString())
