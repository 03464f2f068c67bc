# SPDX-License-Identifier: Apache-2.0
"""Which utterances stand together in a batch, epoch by epoch: a pure function of the lengths, the seed and the epoch.

Every rank computes the whole plan and takes its share; all ranks have the same number of batches by construction:
- every utterance stands in exactly one batch of one rank;
- where the number of batches does not divide by the number of ranks, the largest batches are cut in two;
- where nothing is left to cut (fewer utterances than ranks, say), the shortest batches are repeated: the one case in
  which an utterance is seen twice.
The batches that the ranks work on at the same time are of similar size, so that no rank waits long for another.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

from wenet_hs.config.dataset import BatchConf
from wenet_hs.errors import DataError

LENGTH_JITTER = 0.02
"""Lengths are blurred by up to 2 % before sorting: batches differ from epoch to epoch at about 2 % more padding."""


def plan_epoch(
    num_frames: Sequence[int],
    batch_conf: BatchConf,
    *,
    seed: int,
    epoch: int,
    rank: int = 0,
    world_size: int = 1,
    shuffle: bool = True,
) -> list[list[int]]:
    """The batches of one rank for one epoch, as indices into `num_frames`.

    Args:
        num_frames: length of each utterance.
        batch_conf: `static`: batch_size utterances. `dynamic`: as many as fit into max_frames_in_batch with padding
            (longest × count); a longer utterance is alone. `bucket`: bucket_batch_sizes[i] utterances shorter than
            bucket_boundaries[i]; the last size is for the rest.
        shuffle: without it the longest come first, so that a batch that does not fit into memory fails at once.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"plan_epoch: rank {rank} of {world_size}")
    if not len(num_frames):
        raise DataError("no utterances to make batches of; see why they were rejected")
    lengths = np.asarray(num_frames, dtype=np.int64)
    generator = np.random.default_rng([seed, epoch])
    jitter = generator.uniform(-LENGTH_JITTER, LENGTH_JITTER, len(lengths)) if shuffle else np.zeros(len(lengths))
    order = np.argsort(-lengths * (1.0 + jitter), kind="stable").tolist()
    batches = _level(list(_cut(order, lengths.tolist(), batch_conf)), lengths.tolist(), world_size)
    steps = [batches[first : first + world_size] for first in range(0, len(batches), world_size)]
    if shuffle:
        steps = [steps[i] for i in generator.permutation(len(steps))]
    return [step[rank] for step in steps]


def _cut(order: list[int], lengths: list[int], conf: BatchConf) -> Iterable[list[int]]:
    """Cut indices, sorted by about their length, into batches."""
    match conf.batch_type:
        case "static":
            yield from _chunks(order, conf.batch_size)
        case "dynamic":
            yield from _fill(order, lengths, conf.max_frames_in_batch)
        case "bucket":
            buckets: list[list[int]] = [[] for _ in conf.bucket_batch_sizes]
            for index in order:
                buckets[bisect_right(conf.bucket_boundaries, lengths[index])].append(index)
            for bucket, size in zip(reversed(buckets), reversed(conf.bucket_batch_sizes), strict=True):
                yield from _chunks(bucket, size)


def _chunks(indices: list[int], size: int) -> Iterable[list[int]]:
    return (indices[first : first + size] for first in range(0, len(indices), size))


def _fill(order: list[int], lengths: list[int], max_frames: int) -> Iterable[list[int]]:
    batch: list[int] = []
    longest = 0
    for index in order:
        longest = max(longest, lengths[index])
        if batch and longest * (len(batch) + 1) > max_frames:
            yield batch
            batch, longest = [], lengths[index]
        batch.append(index)
    yield batch


def _level(batches: list[list[int]], lengths: list[int], world_size: int) -> list[list[int]]:
    """The same utterances in a number of batches that `world_size` divides; see the module's rule."""
    if len(batches) % world_size == 0:
        return batches
    batches = list(batches)
    while len(batches) % world_size:
        largest = max(range(len(batches)), key=lambda i: len(batches[i]))
        batch = batches[largest]
        if len(batch) == 1:
            missing = -len(batches) % world_size
            batches += [batches[-1 - i % len(batches)] for i in range(missing)]
            break
        batches[largest : largest + 1] = [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
    return batches
