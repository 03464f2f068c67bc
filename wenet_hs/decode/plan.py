# SPDX-License-Identifier: Apache-2.0
"""What is decoded together: clips, or the segments of long ones, in batches by length, and which rank has which."""

import heapq
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wenet_hs.data.audio import length_fault, probe_audio, read_audio_file
from wenet_hs.decode.segments import cut_at_pauses, frame_levels
from wenet_hs.distributed import World
from wenet_hs.errors import DataError
from wenet_hs.manifest import Utterance

MAX_BATCH_S = 600.0
"""Seconds of audio in a batch, padding counted: a bound on memory whatever the batch size. A longer clip is alone."""
_BLOCK_S = 600.0
"""Of a long clip's audio, read at a time to find its pauses."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A clip, or a segment of one."""

    row: int
    """Place of the utterance in the list."""
    duration_s: float
    begin_s: float = 0.0
    """From the beginning of the utterance."""
    end_s: float | None = None
    """None: to the end of the utterance."""

    def of(self, utterance: Utterance) -> Utterance:
        """What is to be read."""
        if self.begin_s == 0 and self.end_s is None:
            return utterance
        origin = utterance.start or 0.0
        end = utterance.end if self.end_s is None else origin + self.end_s
        return replace(utterance, start=origin + self.begin_s, end=end, duration=self.duration_s)


@dataclass(frozen=True)
class Plan:
    """The batches of a list."""

    batches: list[list[Piece]]
    failed: dict[int, str]
    """Row of each utterance whose header (or audio, if it has to be cut) cannot be read → why."""

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        batches = [[[p.row, p.duration_s, p.begin_s, p.end_s] for p in batch] for batch in self.batches]
        return {"batches": batches, "failed": list(self.failed.items())}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Plan":
        """The plan that `to_json` wrote."""
        return cls([[Piece(*piece) for piece in batch] for batch in record["batches"]], dict(record["failed"]))


def make_plan(
    utterances: Sequence[Utterance], rows: Sequence[int], batch_size: int, max_segment_s: float, ranks: World
) -> Plan:
    """The batches of a list; the same for every number of ranks, each of which looks at its share of the audio.

    Args:
        rows: of the utterances that are meant, rising.
        max_segment_s: a clip longer than this is cut (see segments.py); 0: none is.
    """
    found: dict[int, list[Piece] | str] = {}
    for row in rows[ranks.rank :: ranks.size]:
        try:
            found[row] = _pieces(row, utterances[row], max_segment_s)
        except DataError as error:
            found[row] = str(error)
    ranks.barrier()
    all_found = _exchange(found, ranks)
    failed = {row: what for row, what in all_found if isinstance(what, str)}
    pieces = [piece for _, what in all_found if not isinstance(what, str) for piece in what]
    return Plan(plan_batches(pieces, batch_size), failed)


def cut_pieces(row: int, duration_s: float, cuts: Sequence[float]) -> list[Piece]:
    """The segments between the cuts (seconds, rising) of a clip."""
    bounds, ends = [0.0, *cuts, duration_s], [*cuts, None]
    return [Piece(row, bounds[number + 1] - bounds[number], bounds[number], end) for number, end in enumerate(ends)]


def plan_batches(pieces: Iterable[Piece], batch_size: int) -> list[list[Piece]]:
    """Longest first, at most `batch_size` pieces and MAX_BATCH_S seconds with padding; equal ones keep their order."""
    batches: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: piece.duration_s, reverse=True):
        last = batches[-1] if batches else []
        if last and len(last) < batch_size and (len(last) + 1) * last[0].duration_s <= MAX_BATCH_S:
            last.append(piece)
        else:
            batches.append([piece])
    return batches


def deal(batches: Sequence[Sequence[Piece]], done: Collection[int], num_ranks: int) -> list[list[int]]:
    """The numbers of the batches that are not done, by rank: each goes to the rank with the fewest seconds so far."""
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [(0.0, rank) for rank in range(num_ranks)]
    for number, batch in enumerate(batches):
        if number not in done:
            seconds, rank = loads[0]
            shares[rank].append(number)
            heapq.heapreplace(loads, (seconds + len(batch) * batch[0].duration_s, rank))
    return shares


def _exchange(found: dict[int, list[Piece] | str], ranks: World) -> list[tuple[int, list[Piece] | str]]:
    """What all ranks have found, by row."""
    if ranks.size == 1:
        return list(found.items())
    ours = [
        [row, what if isinstance(what, str) else [[p.row, p.duration_s, p.begin_s, p.end_s] for p in what]]
        for row, what in found.items()
    ]
    told = [item for part in ranks.all_gather(json.dumps(ours).encode()) for item in json.loads(part)]
    rows = [(row, what if isinstance(what, str) else [Piece(*piece) for piece in what]) for row, what in told]
    return sorted(rows, key=lambda item: int(item[0]))


def _pieces(row: int, utterance: Utterance, max_segment_s: float) -> list[Piece]:
    duration_s = _duration(utterance)
    if not 0 < max_segment_s < duration_s:
        return [Piece(row, duration_s)]
    return cut_pieces(row, *_cuts(utterance, max_segment_s))


def _duration(utterance: Utterance) -> float:
    return _audio_length(utterance) if utterance.duration is None else utterance.duration


def _audio_length(utterance: Utterance) -> float:
    """What the list's segment, or else the header, says."""
    end = utterance.end if utterance.end is not None else probe_audio(utterance.wav).duration_s
    return end - (utterance.start or 0.0)


def _cuts(utterance: Utterance, max_segment_s: float) -> tuple[float, list[float]]:
    """The length in seconds of what is in the file, and where to cut it. Read by blocks: it may last for hours.

    Raises: DataError where the audio cannot be read, or is not as long as the list says.
    """
    origin, length_s = utterance.start or 0.0, _audio_length(utterance)
    levels, read_s = [], 0.0
    num_blocks = max(1, int(length_s / _BLOCK_S))  # the last one is up to two blocks long, and never empty
    for number in range(num_blocks):
        end = utterance.end if number == num_blocks - 1 else origin + (number + 1) * _BLOCK_S
        samples, rate = read_audio_file(utterance.wav, start=origin + number * _BLOCK_S, end=end)
        levels.append(frame_levels(samples, rate))
        read_s += len(samples) / rate
    reason = None if utterance.duration is None else length_fault(read_s, utterance.duration, "the data list")
    if reason is not None:
        raise DataError(f"{utterance.wav}: {reason}; restore the file, or prepare the data again")
    return read_s, cut_at_pauses(np.concatenate(levels), max_segment_s)
