# SPDX-License-Identifier: Apache-2.0
"""Which utterances stand together in a batch, epoch by epoch: a pure function of the lengths, the seed and the epoch.

Every rank computes the whole plan and takes its share; all ranks have the same number of batches by construction:
- every utterance stands in exactly one batch of one rank;
- where the number of batches does not divide by the number of ranks, the largest batches are cut in two;
- where nothing is left to cut (fewer utterances than ranks, say), the shortest batches are repeated: the one case in
  which an utterance is seen twice.
The batches that the ranks work on at the same time are of similar size, so that no rank waits long for another.

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
        """Batch b is items[begins[b]:ends[b]]. items: (N,); begins, ends: (number of batches,)."""
        self._items, self._begins, self._ends = items, begins, ends

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
    """The batches of one rank for one epoch, as indices into `num_frames`.

    Args:
        num_frames: length of each utterance.
        batch_conf: `static`: batch_size utterances. `dynamic`: as many as fit into max_frames_in_batch with padding
            (longest × count); a longer utterance is alone. `bucket`: bucket_batch_sizes[i] utterances shorter than
            bucket_boundaries[i]; the last size is for the rest.
        shuffle: without it the longest come first, so that a batch that does not fit into memory fails at once.
        items: (N,) what to put into the batches in place of the indices.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"plan_epoch: rank {rank} of {world_size}")
    if not len(num_frames):
        raise DataError("no utterances to make batches of; see why they were rejected")
    lengths = np.asarray(num_frames, dtype=np.int64)
    generator = np.random.default_rng([seed, epoch])
    order = _by_length(lengths, generator if shuffle else None)
    order, ends = _cut(order, lengths, batch_conf)
    begins, ends = _level(np.append(0, ends[:-1]), ends, world_size)
    num_steps = len(begins) // world_size
    mine = (generator.permutation(num_steps) if shuffle else np.arange(num_steps)) * world_size + rank
    return BatchPlan(order if items is None else items[order], begins[mine], ends[mine])


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


def _level(begins: Indices, ends: Indices, world_size: int) -> tuple[Indices, Indices]:
    """The same utterances in a number of batches that `world_size` divides; see the module's rule."""
    while len(begins) % world_size:
        sizes = ends - begins
        largest = int(np.argmax(sizes))
        if sizes[largest] == 1:
            missing = -len(begins) % world_size
            repeated = len(begins) - 1 - np.arange(missing) % len(begins)
            return np.append(begins, begins[repeated]), np.append(ends, ends[repeated])
        middle = begins[largest] + sizes[largest] // 2
        begins = np.insert(begins, largest + 1, middle)
        ends = np.insert(ends, largest, middle)
    return begins, ends
