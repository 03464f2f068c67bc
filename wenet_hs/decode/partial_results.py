# SPDX-License-Identifier: Apache-2.0
"""The folder of a recognition in progress: what is kept if the process is killed.

FOLDER/plan.json            the settings, and the batches of the list
FOLDER/batches-RANK.jsonl   one line per decoded batch
"""

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from wenet_hs.base.files import remove_incomplete_line
from wenet_hs.decode.recognition import Segment
from wenet_hs.decode.segments import Piece
from wenet_hs.tree.atomic import write_atomic

logger = logging.getLogger(__name__)

FORMAT = "wenet_hs.partial/2"


@dataclass(frozen=True)
class DecodedBatch:
    """The results of one batch: a line of `batches-RANK.jsonl`."""

    pieces: list[dict[str, Segment] | str]
    """Per piece its results by mode, or the reason why it could not be read."""
    seconds: dict[str, float]
    """Wall-clock seconds by stage."""
    started_at: float
    """Time of the machine's clock in seconds; orders the attempts at one batch."""
    number: int = 0
    """Of the batch in the plan."""
    rank: int = 0
    """The rank that decoded it."""
    incomplete: list[str] = field(default_factory=list)
    """Keys of the clips that lack a little of the length in their header."""

    @property
    def has_failures(self) -> bool:
        """Whether a piece could not be read."""
        return any(isinstance(piece, str) for piece in self.pieces)


_BATCHES = TypeAdapter(list[list[Piece]])
_DECODED_BATCH = TypeAdapter(DecodedBatch)


@dataclass(frozen=True)
class EarlierRun:
    """What an interrupted run has left."""

    batches: list[list[Piece]]
    done: set[int]
    """The numbers of the batches that are decoded."""


class PartialResults:
    """The folder of a recognition in progress."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._plan = folder / "plan.json"

    def find(self, settings: Mapping[str, Any]) -> EarlierRun | None:
        """What an interrupted run with the same settings has left; None if there is none.

        A batch with a clip that could not be read is not done: the clip may have been repaired. If
        the plan is damaged or the settings differ, a warning states this, and nothing is used.
        """
        try:
            record = json.loads(self._plan.read_bytes())
            batches = _BATCHES.validate_python(record["batches"])
            earlier_settings = dict(record["settings"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            logger.warning("%s: damaged; starting from the beginning", self._plan)
            return None
        settings_as_read = json.loads(json.dumps(settings))  # lists instead of tuples, and the like
        changed_names = []
        for name in sorted({*earlier_settings, *settings_as_read}):
            if earlier_settings.get(name) != settings_as_read.get(name):
                changed_names.append(name)
        if changed_names:
            message = (
                "%s: of an interrupted run with other settings (%s); starting from the beginning"
            )
            logger.warning(message, self._plan, changed_names[0])
            return None
        done = {result.number for result in self.read().values() if not result.has_failures}
        message = "%s: %d of %d batches are decoded already; continuing"
        logger.info(message, self.folder, len(done), len(batches))
        return EarlierRun(batches, done)

    def write_plan(
        self, settings: Mapping[str, Any], batches: Sequence[Sequence[Piece]], *, is_new: bool
    ) -> None:
        """Write the plan.

        `is_new`: it does not continue an earlier run, whose folder is removed if there is one.
        """
        if is_new and self.folder.exists():
            shutil.rmtree(self.folder)
        write_atomic(self._plan, json.dumps({"settings": settings, "batches": batches}))

    @contextmanager
    def appending(self, rank: int) -> Iterator[Callable[[DecodedBatch], None]]:
        """A function that appends a batch to the file of a rank.

        A batch that it has appended is not lost if the process is killed. Before that, an
        incomplete line at the end of the file, of a killed run, is removed.
        """
        path = self.folder / f"batches-{rank}.jsonl"
        remove_incomplete_line(path)
        with path.open("ab") as file:

            def append(result: DecodedBatch) -> None:
                file.write(json.dumps(result, default=vars).encode() + b"\n")
                file.flush()

            yield append

    def read(self) -> dict[int, DecodedBatch]:
        """The decoded batches by number.

        Of several attempts at a batch it is the last one without failures, or else the last one. A
        damaged line is left out: its batch is decoded again.
        """
        best: dict[int, DecodedBatch] = {}
        for path in sorted(self.folder.glob("batches-*.jsonl")):
            # What follows the last line end is empty, or a line whose writing was interrupted.
            *lines, _ = path.read_bytes().split(b"\n")
            for line in lines:
                try:
                    result = _DECODED_BATCH.validate_python(json.loads(line))
                except ValueError:
                    continue
                earlier = best.get(result.number)
                if earlier is None or _attempt_order(result) > _attempt_order(earlier):
                    best[result.number] = result
        return best


def _attempt_order(attempt: DecodedBatch) -> tuple[bool, float]:
    """Sorts the attempts at a batch, the best last: without failures, then by time."""
    return (not attempt.has_failures, attempt.started_at)
