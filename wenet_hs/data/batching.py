# SPDX-License-Identifier: Apache-2.0
"""Which utterances stand together in a batch, epoch by epoch: a pure function of the lengths, the seed and the epoch.

The plan is one order of batches, whatever the number of ranks: a run that goes on with another number goes on at the
same place. `BatchPlan.share` deals it out: of W ranks, rank r takes batch i * W + r of what is left as its i-th.
- Every utterance stands in exactly one batch of one rank.
- All ranks have the same number of batches: the last step is filled by repeating the shortest batches of the epoch, the
  one case in which an utterance is seen twice (at most W - 1 batches an epoch).
Given up for that: the batches of one step are as different in length as those of a random order are, so ranks wait for
the one with the longest. With `dynamic` batches, which hold about as many frames each, that is little.

Nothing here is a Python object an utterance: fifty million of them are arrays of 400 MB, and seconds.
"""

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from wenet_hs.config.dataset import BatchConf
from wenet_hs.data.plan_kernels import fill_batches
from wenet_hs.errors import DataError

LENGTH_JITTER = 0.02
"""Lengths are blurred by up to 2 % before sorting: batches differ from epoch to epoch at about 2 % more padding."""

Indices = NDArray[np.int64]


class BatchPlan(Sequence[list[int]]):
    """Batches, each a list of indices, kept as three arrays; equal to a list of the same lists."""

    def __init__(self, items: Indices, begins: Indices, ends: Indices) -> None:
        """Batch b is items[begins[b]:ends[b]]. items: (N,), the longest first; begins, ends: (number of batches,)."""
        self._items, self._begins, self._ends = items, begins, ends

    def share(self, *, rank: int, world_size: int, start: int = 0) -> "BatchPlan":
        """The batches of one rank from batch `start` of the whole plan on; as many on every rank."""
        if not 0 <= rank < world_size:
            raise ValueError(f"share: rank {rank} of {world_size}")
        positions = np.arange(start, len(self))
        missing = -len(positions) % world_size
        if missing:  # items stand in order of falling length, so the last of them are the shortest
            shortest = np.argsort(-self._begins, kind="stable")[:missing]
            positions = np.append(positions, np.resize(shortest, missing))
        mine = positions[rank::world_size]
        return BatchPlan(self._items, self._begins[mine], self._ends[mine])

    def __len__(self) -> int:
        return len(self._begins)

    @overload
    def __getitem__(self, position: int) -> list[int]: ...
    @overload
    def __getitem__(self, position: slice) -> list[list[int]]: ...
    def __getitem__(self, position: int | slice) -> list[int] | list[list[int]]:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        indices: list[int] = self._items[self._begins[position] : self._ends[position]].tolist()
        return indices

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(left == right for left, right in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"BatchPlan({len(self)} batches)" if len(self) > 20 else repr(list(self))


def plan_epoch(
    num_frames: Sequence[int] | Indices,
    batch_conf: BatchConf,
    *,
    seed: int,
    epoch: int,
    rank: int = 0,
    world_size: int = 1,
    shuffle: bool = True,
    items: Indices | None = None,
) -> BatchPlan:
    """The batches of an epoch as indices into `num_frames`: all of them, or the share of one rank.

    Args:
        num_frames: length of each utterance.
        batch_conf: `static`: batch_size utterances. `dynamic`: as many as fit into max_frames_in_batch with padding
            (longest × count); a longer utterance is alone. `bucket`: bucket_batch_sizes[i] utterances shorter than
            bucket_boundaries[i]; the last size is for the rest.
        shuffle: without it the longest come first, so that a batch that does not fit into memory fails at once.
        items: (N,) what to put into the batches in place of the indices.
    """
    if not len(num_frames):
        raise DataError("no utterances to make batches of; see why they were rejected")
    lengths = np.asarray(num_frames, dtype=np.int64)
    generator = np.random.default_rng([seed, epoch])
    order = _by_length(lengths, generator if shuffle else None)
    order, ends = _cut(order, lengths, batch_conf)
    begins = np.append(0, ends[:-1])
    if shuffle:
        drawn = generator.permutation(len(begins))
        begins, ends = begins[drawn], ends[drawn]
    plan = BatchPlan(order if items is None else items[order], begins, ends)
    return plan.share(rank=rank, world_size=world_size)


def _by_length(lengths: Indices, generator: np.random.Generator | None) -> Indices:
    """Indices, the longest first, lengths blurred by the generator if there is one; ties stay in order."""
    if generator is None:
        return np.argsort(-lengths, kind="stable")
    keys = generator.uniform(-LENGTH_JITTER, LENGTH_JITTER, len(lengths))
    keys += 1.0  # in place: at fifty million an array is 400 MB
    keys *= lengths
    return np.argsort(np.negative(keys, out=keys), kind="stable")


def _cut(order: Indices, lengths: Indices, conf: BatchConf) -> tuple[Indices, Indices]:
    """Indices, sorted by about their length, in the order of the batches; and where each batch ends in that order."""
    match conf.batch_type:
        case "static":
            return order, _chunk_ends(len(order), conf.batch_size)
        case "dynamic":
            return order, fill_batches(lengths[order], conf.max_frames_in_batch)
        case "bucket":
            return _cut_buckets(order, lengths, conf)


def _cut_buckets(order: Indices, lengths: Indices, conf: BatchConf) -> tuple[Indices, Indices]:
    bucket_of = np.searchsorted(np.asarray(conf.bucket_boundaries), lengths[order], side="right")
    members, ends, done = [], [], 0
    for bucket in reversed(range(len(conf.bucket_batch_sizes))):
        inside = order[bucket_of == bucket]
        members.append(inside)
        ends.append(done + _chunk_ends(len(inside), conf.bucket_batch_sizes[bucket]))
        done += len(inside)
    return np.concatenate(members), np.concatenate(ends)


def _chunk_ends(count: int, size: int) -> Indices:
    """The ends of chunks of `size`, the last one what is left."""
    return np.minimum(np.arange(size, count + size, size, dtype=np.int64), count)
