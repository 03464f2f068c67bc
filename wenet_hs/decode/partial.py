# SPDX-License-Identifier: Apache-2.0
"""What a recognition has found so far, on disk: a crash loses the batches in flight, and the next run goes on.

    RESULT_DIR/partial/plan.json            the settings, and the batches of the list
    RESULT_DIR/partial/batches-RANK.jsonl   a line for each batch that is done

The batches of a plan do not depend on the ranks, and each is decoded as a whole: so a run that was interrupted, or
shared, has the bits of one that was not. The folder goes when the results are written, unless clips could not be read:
then the next run tries those again.
"""

import json
import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from wenet_hs.decode.hypothesis import Alignment, Hypothesis
from wenet_hs.decode.plan import Plan
from wenet_hs.files import write_atomic

logger = logging.getLogger(__name__)

NBest = list[Hypothesis]


@dataclass
class BatchResult:
    """What one batch has given."""

    number: int
    """Of the plan."""
    rank: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """By stage."""
    audio_seconds: float = 0.0
    failed: dict[int, str] = field(default_factory=dict)
    """Place in the batch of each piece that could not be read → why."""
    too_short: list[int] = field(default_factory=list)
    """Places in the batch of the pieces without a single encoder frame."""
    nbest: dict[str, dict[int, NBest]] = field(default_factory=dict)
    """Mode → place in the batch → hypotheses, best first."""
    begun_at: float = field(default_factory=time.time)
    """By the clock of the machine, in seconds: tells two tries of one batch apart."""


class PartialResults:
    """The folder of a recognition in progress."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def _plan(self) -> Path:
        return self.folder / "plan.json"

    def find(self, settings: Mapping[str, Any]) -> tuple[Plan, set[int]] | None:
        """The plan of an interrupted run with the same settings, and the batches that are done; None if there is none.

        A batch is not done where a clip could not be read: it may have been mended.
        What a run with other settings has left is of no use here: that is said in one line.
        """
        try:
            record = json.loads(self._plan.read_bytes())
            plan, before = Plan.from_json(record["plan"]), record["settings"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):  # no more than half of it on the disk when the power went
            logger.warning("%s: damaged; starting anew", self._plan)
            return None
        now = json.loads(json.dumps(settings))
        if before != now:
            names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
            logger.warning("%s: of an interrupted run with other settings (%s); starting anew", self._plan, *names[:1])
            return None
        found = self.read()
        done = {result.number for result in found if not result.failed}
        logger.info("%s: %d of %d batches are decoded already; going on", self.folder, len(done), len(plan.batches))
        num_failed = len(plan.failed) + sum(len(result.failed) for result in found)
        if num_failed:
            logger.info("%s: clips (or segments) that were not read: %d; trying them again", self.folder, num_failed)
        return plan, done

    def start(self, settings: Mapping[str, Any], plan: Plan) -> None:
        """Begin anew: whatever stood here goes."""
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.write_plan(settings, plan)

    def write_plan(self, settings: Mapping[str, Any], plan: Plan) -> None:
        """Write the plan, in place of the one that may stand there; what is done stays."""
        write_atomic(self._plan, json.dumps({"settings": settings, "plan": plan.to_json()}))

    @contextmanager
    def appending(self, rank: int) -> Iterator["Appender"]:
        """The file of a rank, to add to. Half a line at its end, of a run that was killed, goes."""
        path = self.folder / f"batches-{rank}.jsonl"
        with path.open("a+b") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            yield Appender(file)

    def read(self) -> list[BatchResult]:
        """The batches that were decoded, each once. Half a line is none.

        A batch with clips that could not be read may have been tried again: a try without such clips counts, or else
        the last one.
        """
        best: dict[int, BatchResult] = {}
        for path in sorted(self.folder.glob("batches-*.jsonl")):
            rank = int(path.stem.rpartition("-")[2])
            for line in path.read_bytes().split(b"\n")[:-1]:
                result = _parse(line, rank)
                if result is None:
                    continue
                before = best.get(result.number, result)
                best[result.number] = max(before, result, key=lambda one: (not one.failed, one.begun_at))
        return list(best.values())

    def remove(self) -> None:
        """The results are written."""
        shutil.rmtree(self.folder)


class Appender:
    """A file that grows by a line for each batch."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def append(self, result: BatchResult) -> None:
        """Write a line, out of this process at once: from then on only the machine can lose it."""
        record = {
            "number": result.number,
            "begun_at": result.begun_at,
            "seconds": result.seconds,
            "audio_seconds": result.audio_seconds,
            "failed": list(result.failed.items()),
            "too_short": result.too_short,
            "nbest": {
                mode: [[place, [_pack(one) for one in nbest]] for place, nbest in of_place.items()]
                for mode, of_place in result.nbest.items()
            },
        }
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.flush()


def _parse(line: bytes, rank: int) -> BatchResult | None:
    """None where the line is not whole: then the batch is decoded again."""
    try:
        record = json.loads(line)
        nbest = {
            mode: {place: [_unpack(one) for one in packed] for place, packed in of_place}
            for mode, of_place in record["nbest"].items()
        }
        return BatchResult(
            number=record["number"],
            rank=rank,
            seconds=record["seconds"],
            audio_seconds=record["audio_seconds"],
            failed=dict(record["failed"]),
            too_short=record["too_short"],
            begun_at=record["begun_at"],
            nbest=nbest,
        )
    except (ValueError, KeyError, TypeError):
        return None


def _pack(hypothesis: Hypothesis) -> list[Any]:
    alignment = hypothesis.alignment
    timing = None if alignment is None else [alignment.spans, alignment.log_probs, alignment.score]
    return [hypothesis.ids, hypothesis.score, timing]


def _unpack(packed: Sequence[Any]) -> Hypothesis:
    ids, score, timing = packed
    if timing is None:
        return Hypothesis(tuple(ids), score)
    spans, log_probs, total = timing
    alignment = Alignment(tuple((first, end) for first, end in spans), tuple(log_probs), total)
    return Hypothesis(tuple(ids), score, alignment)
