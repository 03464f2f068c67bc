# SPDX-License-Identifier: Apache-2.0
"""Batches, the plan which utterances each batch of an epoch contains, and the record of clips that
cannot be read.

The plan is a pure function of the lengths, the seed and the epoch: one order of batches for any
number of ranks, so a run that is resumed with another world size continues at the same batch. Of W
ranks, rank r takes every W-th remaining batch, beginning with the r-th. The last step is completed
by repeating the shortest batches of the epoch, so all ranks have the same number. This is the only
case in which an utterance is used twice (at most W - 1 batches per epoch).

Dimension key: B batch, N samples, T frames, F Mel bins, L label,
M = L + 1 positions of the decoder.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.base.files import one_field, remove_incomplete_line
from wenet_hs.config.dataset import BatchConf
from wenet_hs.manifest.data_list import BadClip
from wenet_hs.tree.errors import DataError

logger = logging.getLogger(__name__)

LENGTH_JITTER = 0.02
"""Lengths are changed by up to 2 % before sorting: batches differ between epochs at about 2 % more
padding.
"""

Indices = NDArray[np.int64]
Masks = tuple[Tensor, Tensor]
"""Frames and bins to keep, bool."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One utterance of a batch."""

    key: str
    features: Tensor
    """(T, F) float32, before CMVN; the waveform (N,) where features are computed on the device."""
    target: Tensor
    """(L,) int64 unit ids, without begin and end."""
    audio_seconds: float
    is_incomplete: bool = False
    """Whether the clip lacks a little of the length in its header."""
    masks: Masks | None = None
    """SpecAugment's masks (T,) and (F,) of a waveform's features; None for features, which are
    masked already.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Utterances, padded to one length."""

    keys: list[str]
    features: Tensor
    """(B, T, F) float32, 0 where padded; waveforms (B, N) while `wave_masks` is set."""
    feature_lengths: Tensor
    """(B,) int64, in frames."""
    num_frames: int
    """The sum of the lengths."""
    targets: Tensor
    """(B, L) int64, -1 where padded."""
    target_lengths: Tensor
    """(B,) int64."""
    audio_seconds: float
    num_targets: int
    """Labels plus one end of sentence per utterance: the targets of the attention decoder."""
    target_rows: Tensor
    """(num_targets,) int64: where the targets of the decoder are among its B · (L + 1) positions."""
    quarantined: tuple[BadClip, ...] = ()
    """Clips that were drawn for this batch and cannot be read."""
    num_incomplete: int = 0
    """Clips of this batch that lack a little of the length in their header."""
    wave_masks: Masks | None = None
    """(B, T) and (B, F), while `features` are waveforms, from which `with_features` computes
    features on the device.
    """

    @property
    def num_drawn(self) -> int:
        """Clips that were drawn for this batch, including those that cannot be read."""
        return len(self.keys) + len(self.quarantined)

    def to(self, device: torch.device | str) -> "Batch":
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """The batch in pinned memory, from which it is copied to a GPU while that computes."""
        return self._with_tensors(torch.Tensor.pin_memory)

    def _with_tensors(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        names = ("features", "feature_lengths", "targets", "target_lengths", "target_rows")
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in names}
        if self.wave_masks is not None:
            changed["wave_masks"] = change(self.wave_masks[0]), change(self.wave_masks[1])
        return replace(self, **changed)


def collate(examples: Sequence[Example]) -> Batch:
    """Pad examples to the longest of them, in their order."""
    target_lengths = torch.tensor([len(example.target) for example in examples])
    masks = [example.masks for example in examples if example.masks is not None]
    lengths = [len(frames) for frames, _ in masks] or [
        len(example.features) for example in examples
    ]
    targets = pad_sequence(
        [example.target for example in examples], batch_first=True, padding_value=-1
    )
    has_target_BM = torch.arange(targets.size(1) + 1) <= target_lengths[:, None]
    return Batch(
        keys=[example.key for example in examples],
        features=pad_sequence([example.features for example in examples], batch_first=True),
        feature_lengths=torch.tensor(lengths),
        num_frames=sum(lengths),
        targets=targets,
        target_lengths=target_lengths,
        audio_seconds=sum(example.audio_seconds for example in examples),
        num_targets=int(target_lengths.sum()) + len(examples),
        target_rows=has_target_BM.flatten().nonzero()[:, 0],
        num_incomplete=sum(example.is_incomplete for example in examples),
        wave_masks=(pad_sequence([m[0] for m in masks], True), torch.stack([m[1] for m in masks]))
        if masks
        else None,
    )


class BatchPlan(list[list[int]]):
    """Batches, each a list of indices, and their positions (number of batches,) in an order by
    falling length.
    """

    def __init__(self, batches: Iterable[list[int]], length_order: Indices) -> None:
        super().__init__(batches)
        self._length_order = length_order

    def share(self, *, rank: int, world_size: int, start: int = 0) -> "BatchPlan":
        """The batches of one rank, beginning at batch `start` of the whole plan; the same number on
        every rank.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"share: rank {rank} of {world_size}")
        positions = np.arange(start, len(self))
        missing = -len(positions) % world_size
        if missing:
            shortest = np.argsort(-self._length_order)[:missing]
            positions = np.append(positions, np.resize(shortest, missing))
        own = positions[rank::world_size]
        return BatchPlan([self[position] for position in own.tolist()], self._length_order[own])


def plan_epoch(
    num_frames: Sequence[int] | Indices,
    batch_conf: BatchConf,
    *,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    items: Indices | None = None,
) -> BatchPlan:
    """The batches of an epoch as indices into `num_frames`.

    Args:
        num_frames: length of each utterance.
        batch_conf: `static`: batch_size utterances. `dynamic`: as many as fit into
            max_frames_in_batch with padding (longest × count); a longer utterance is the only one
            of its batch. `bucket`: bucket_batch_sizes[i] utterances shorter than
            bucket_boundaries[i]; the last size is for all longer ones.
        shuffle: if false, the longest come first, so that a batch that does not fit into memory
            fails at once.
        items: (N,) the numbers to put into the batches instead of the indices.
    """
    if not len(num_frames):
        raise DataError(
            "no utterances to make batches of", to_do="see the reasons of their rejection"
        )
    lengths = np.asarray(num_frames, dtype=np.int64)
    generator = np.random.default_rng([seed, epoch])
    jitter = generator.uniform(-LENGTH_JITTER, LENGTH_JITTER, len(lengths)) if shuffle else 0.0
    order = np.argsort(-(1.0 + jitter) * lengths, kind="stable")
    batches = _cut(order, lengths, batch_conf)
    if items is not None:
        batches = [items[batch].tolist() for batch in batches]
    positions = generator.permutation(len(batches)) if shuffle else np.arange(len(batches))
    return BatchPlan([batches[position] for position in positions.tolist()], positions)


def _cut(order: Indices, lengths: Indices, conf: BatchConf) -> list[list[int]]:
    """Batches of indices that are sorted by falling length."""
    match conf.batch_type:
        case "static":
            return _cut_equal(order, conf.batch_size)
        case "bucket":
            bucket_of = np.searchsorted(
                np.asarray(conf.bucket_boundaries), lengths[order], side="right"
            )
            sizes = list(enumerate(conf.bucket_batch_sizes))
            parts = (
                _cut_equal(order[bucket_of == bucket], size) for bucket, size in reversed(sizes)
            )
            return list(chain.from_iterable(parts))
        case "dynamic":
            batches, longest = list[list[int]](), 0
            for index, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
                longest = max(longest, length)
                if batches and longest * (len(batches[-1]) + 1) <= conf.max_frames_in_batch:
                    batches[-1].append(index)
                else:
                    batches.append([index])
                    longest = length
            return batches


def _cut_equal(order: Indices, size: int) -> list[list[int]]:
    return [order[first : first + size].tolist() for first in range(0, len(order), size)]


# ---- clips that cannot be read

MIN_DRAWN = 500
"""Clips to be drawn before their share of bad ones is checked; an epoch of fewer is checked at its
end.
"""
_HEADER = b"key\tpath\treason\n"
_NUM_NAMED = 5


class Quarantine:
    """The file with the bad clips of a rank, `key path reason`, each clip once.

    Only a `ClipError` is recorded: a fault of the utterance's own audio. Any other error ends the
    run.
    """

    def __init__(self, model_dir: Path, *, fresh: bool, rank: int = 0, num_ranks: int = 1) -> None:
        """A `fresh` run begins a new file.

        Ranks of different machines cannot share one, so each has its own.
        """
        self.path = model_dir / ("quarantine.tsv" if rank == 0 else f"quarantine-rank{rank}.tsv")
        self._all_paths = self.path if num_ranks == 1 else model_dir / "quarantine*.tsv"
        if fresh:
            self.path.unlink(missing_ok=True)
        lines = (
            remove_incomplete_line(self.path)
            .removeprefix(_HEADER)
            .decode("utf-8", errors="replace")
            .split("\n")
        )
        self._known = {line.partition("\t")[0] for line in lines if line}

    def record(self, clips: Iterable[BadClip]) -> None:
        """Record new clips. Warnings name the first ones; the later ones are only in the file."""
        new = {clip.key: clip for clip in clips if one_field(clip.key) not in self._known}
        if not new:
            return
        lines = [
            "\t".join(map(one_field, (clip.key, clip.wav, clip.reason))) + "\n"
            for clip in new.values()
        ]
        with self.path.open("ab") as file:
            file.write((b"" if file.tell() else _HEADER) + "".join(lines).encode("utf-8"))
        for number, clip in zip(
            range(len(self._known) + 1, _NUM_NAMED + 1), new.values(), strict=False
        ):
            logger.warning(
                "utterance %s: %s: %s; it is skipped",
                *map(one_field, (clip.key, clip.wav, clip.reason)),
            )
            if number == _NUM_NAMED:
                logger.warning(
                    "%s lists these %d clips and all further ones that cannot be read",
                    self.path,
                    number,
                )
        self._known.update(map(one_field, new))

    def record_batches(self, batches: Iterable[Batch], counts: Counter[str]) -> Iterator[Batch]:
        """The batches.

        When one is taken, its bad clips are recorded, and its `bad` and `drawn` clips are counted.
        """
        for batch in batches:
            self.record(batch.quarantined)
            counts.update(bad=len(batch.quarantined), drawn=batch.num_drawn)
            yield batch

    def check_share(self, num_bad: int, num_drawn: int, limit: float, *, at_end: bool) -> None:
        """Raise DataError if of the clips drawn by all ranks more than the share `limit` are bad.

        at_end: of an epoch or a validation; otherwise fewer than MIN_DRAWN are not checked.
        """
        if num_bad > limit * num_drawn and (at_end or num_drawn >= MIN_DRAWN):
            found = f"{num_bad} of {num_drawn} clips cannot be read, more than the share {limit:g}"
            raise DataError(
                self._all_paths, found, "restore them, or raise dataset_conf.max_bad_clips"
            )
