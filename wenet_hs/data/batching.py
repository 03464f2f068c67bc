# SPDX-License-Identifier: Apache-2.0
"""Batches, the plan of the batches of an epoch, and the record of clips that cannot be read.

The plan is a pure function of the lengths, the seed and the epoch. It is one order of batches for
any number of ranks, so a run that is resumed with another world size continues at the same batch.
Of W ranks, rank r takes every W-th remaining batch, beginning with the r-th.

All ranks have the same number of batches: the shortest ones of the epoch are repeated where the
last step lacks some. Only then is an utterance used twice, in at most W - 1 batches per epoch.

Dimension key: B batch, N samples, T frames, F Mel bins, L label,
M = L + 1 positions of the decoder.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
"""Share by which lengths are changed at most before they are sorted.

So batches differ between epochs, with about 2 % more padding.
"""
_TARGET_PADDING = -1
"""Instead of a unit id where a target is padded."""

Indices = NDArray[np.int64]
Masks = tuple[Tensor, Tensor]
"""SpecAugment's masks of frames and of bins, bool; True: keep."""


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
    """(T,) and (F,): the masks for the features of a waveform.

    None if `features` are features, which are masked already.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Utterances, padded to one length."""

    keys: list[str]
    features: Tensor
    """(B, T, F) float32, 0 where padded; waveforms (B, N) if `wave_masks` is set."""
    feature_lengths: Tensor
    """(B,) int64, in frames, of waveforms too."""
    num_frames: int
    """The sum of `feature_lengths`."""
    targets: Tensor
    """(B, L) int64, -1 where padded."""
    target_lengths: Tensor
    """(B,) int64."""
    audio_seconds: float
    num_targets: int
    """Targets of the attention decoder: all labels, and one end of sentence per utterance."""
    target_rows: Tensor
    """(num_targets,) int64: which of the decoder's B · (L + 1) positions have a target."""
    quarantined: tuple[BadClip, ...] = ()
    """Clips that were drawn for this batch and cannot be read."""
    num_incomplete: int = 0
    """Clips of this batch that lack a little of the length in their header."""
    wave_masks: Masks | None = None
    """(B, T) and (B, F): the masks for the features of waveforms.

    `with_features` computes these features on the device. None if `features` are features.
    """

    @property
    def num_drawn(self) -> int:
        """Clips that were drawn for this batch, including those that cannot be read."""
        return len(self.keys) + len(self.quarantined)

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on a device."""
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """The batch in pinned memory, from which it is copied to a GPU while that computes."""
        return self._with_tensors(torch.Tensor.pin_memory)

    def _with_tensors(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with the result of `change` instead of each of its tensors."""
        names = ("features", "feature_lengths", "targets", "target_lengths", "target_rows")
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in names}
        if self.wave_masks is not None:
            keep_BT, keep_BF = self.wave_masks
            changed["wave_masks"] = (change(keep_BT), change(keep_BF))
        return replace(self, **changed)


def collate(examples: Sequence[Example]) -> Batch:
    """A batch of examples in their order, padded to the longest of them.

    All examples have features, or all have waveforms with masks. The lengths of the batch are those
    in frames, for waveforms too.
    """
    lengths = [len(example.features) for example in examples]
    masks = [example.masks for example in examples if example.masks is not None]
    wave_masks: Masks | None = None
    if masks:  # the features are waveforms, and their masks have the lengths in frames
        lengths = [len(keep_T) for keep_T, _ in masks]
        keep_BT = pad_sequence([keep_T for keep_T, _ in masks], batch_first=True)
        keep_BF = torch.stack([keep_F for _, keep_F in masks])
        wave_masks = (keep_BT, keep_BF)
    targets = pad_sequence(
        [example.target for example in examples],
        batch_first=True,
        padding_value=_TARGET_PADDING,
    )
    target_lengths = torch.tensor([len(example.target) for example in examples])
    # The decoder has one target more than the label: the end of sentence.
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
        wave_masks=wave_masks,
    )


class BatchPlan(list[list[int]]):
    """The batches of an epoch or of one of its ranks, each a list of items, in order of use."""

    def __init__(self, batches: Iterable[list[int]], length_ranks: Indices) -> None:
        """length_ranks: (number of batches,) place of each batch by falling length, from 0."""
        super().__init__(batches)
        self._length_ranks = length_ranks

    def share(self, *, rank: int, world_size: int, start: int = 0) -> "BatchPlan":
        """The batches of one rank, beginning at batch `start` of the whole plan.

        Every rank has the same number of batches: the shortest ones of the plan are repeated where
        the last step lacks some.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"share: rank {rank} of {world_size}")
        positions = np.arange(start, len(self))
        num_missing = -len(positions) % world_size  # up to the next multiple of world_size
        if num_missing:
            shortest_first = np.argsort(-self._length_ranks)
            shortest = shortest_first[:num_missing]
            # resize: of a plan with fewer batches some are repeated more than once.
            positions = np.append(positions, np.resize(shortest, num_missing))
        of_rank = positions[rank::world_size]
        batches = [self[position] for position in of_rank.tolist()]
        return BatchPlan(batches, self._length_ranks[of_rank])


def plan_epoch(
    num_frames: Sequence[int] | Indices,
    batch_conf: BatchConf,
    *,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    items: Indices | None = None,
) -> BatchPlan:
    """The batches of an epoch, which contain utterances of similar length.

    Args:
        num_frames: (N,) the length of each utterance.
        batch_conf: `static`: batch_size utterances per batch. `dynamic`: as many as fit into
            max_frames_in_batch with padding (longest × count); a longer utterance is the only one
            of its batch. `bucket`: bucket_batch_sizes[i] utterances shorter than
            bucket_boundaries[i]; the last size is for all longer ones.
        shuffle: change lengths by up to LENGTH_JITTER before they are sorted, and put the batches
            into random order. If false, the longest come first, so that a batch that does not fit
            into memory fails at once.
        items: (N,) the numbers to put into the batches instead of the indices into `num_frames`.
    Raises: DataError if there are no utterances.
    """
    if not len(num_frames):
        raise DataError(
            "no utterances to make batches of", to_do="see the reasons of their rejection"
        )
    lengths = np.asarray(num_frames, dtype=np.int64)
    generator = np.random.default_rng([seed, epoch])
    jitter: NDArray[np.float64] | float = 0.0
    if shuffle:
        jitter = generator.uniform(-LENGTH_JITTER, LENGTH_JITTER, len(lengths))
    longest_first = np.argsort(-(1.0 + jitter) * lengths, kind="stable")
    batches = _cut_into_batches(longest_first, lengths, batch_conf)
    if items is not None:
        batches = [items[batch].tolist() for batch in batches]
    # The position in `batches`, where the longest are first, of each batch of the plan.
    length_ranks = np.arange(len(batches))
    if shuffle:
        length_ranks = generator.permutation(len(batches))
    return BatchPlan([batches[place] for place in length_ranks.tolist()], length_ranks)


def _cut_into_batches(order: Indices, lengths: Indices, conf: BatchConf) -> list[list[int]]:
    """Batches of utterances by the kind of batches in `conf`.

    Args:
        order: (N,) the indices of the utterances, by falling length.
        lengths: (N,) the length of each utterance, by its index.
    """
    match conf.batch_type:
        case "static":
            return _cut_equal(order, conf.batch_size)
        case "bucket":
            return _cut_buckets(
                order, lengths, conf.bucket_boundaries, sizes=conf.bucket_batch_sizes
            )
        case "dynamic":
            return _cut_dynamic(order, lengths, conf.max_frames_in_batch)


def _cut_equal(order: Indices, size: int) -> list[list[int]]:
    """Batches of `size` utterances; the last one may be smaller."""
    return [order[first : first + size].tolist() for first in range(0, len(order), size)]


def _cut_buckets(
    order: Indices, lengths: Indices, boundaries: Sequence[int], *, sizes: Sequence[int]
) -> list[list[int]]:
    """Batches of `sizes[i]` utterances of bucket i, the bucket of the longest utterances first."""
    buckets = np.searchsorted(np.asarray(boundaries), lengths[order], side="right")
    batches = list[list[int]]()
    for bucket in reversed(range(len(sizes))):
        batches += _cut_equal(order[buckets == bucket], sizes[bucket])
    return batches


def _cut_dynamic(order: Indices, lengths: Indices, max_frames: int) -> list[list[int]]:
    """Batches of as many utterances as have at most `max_frames` frames, with padding."""
    batches = list[list[int]]()
    longest = 0  # of the last batch; not always its first one, as the order is by changed lengths
    for index, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        longest = max(longest, length)
        if batches and longest * (len(batches[-1]) + 1) <= max_frames:
            batches[-1].append(index)
        else:
            batches.append([index])
            longest = length
    return batches


# ---- Clips that cannot be read

MIN_DRAWN = 500
"""Clips to be drawn before the share of bad ones is checked.

An epoch of fewer clips is checked at its end.
"""
_HEADER = b"key\tpath\treason\n"
_NUM_NAMED = 5
"""Bad clips of a run that are named in warnings."""


class Quarantine:
    """The file with the bad clips of a rank: lines of key, path and reason, each clip once.

    Only a `ClipError` is recorded: a fault of the audio of an utterance. Any other error ends the
    run.
    """

    def __init__(self, model_dir: Path, *, fresh: bool, rank: int = 0, num_ranks: int = 1) -> None:
        """Read which clips are recorded already. A `fresh` run begins a new file.

        Ranks of different machines cannot share a file, so each rank has its own.
        """
        self.path = model_dir / ("quarantine.tsv" if rank == 0 else f"quarantine-rank{rank}.tsv")
        self._all_paths = self.path if num_ranks == 1 else model_dir / "quarantine*.tsv"
        if fresh:
            self.path.unlink(missing_ok=True)
        content = remove_incomplete_line(self.path).removeprefix(_HEADER)
        lines = content.decode("utf-8", errors="replace").split("\n")
        self._known_keys = {line.partition("\t")[0] for line in lines if line}

    def record(self, clips: Iterable[BadClip]) -> None:
        """Append the clips to the file that are not in it yet.

        A clip is known by its key as it is in the file, without tabs and line ends. Warnings name
        the first _NUM_NAMED clips of the run; the later ones are only in the file.
        """
        new_clips = {
            clip.key: clip for clip in clips if one_field(clip.key) not in self._known_keys
        }
        if not new_clips:
            return
        lines = ["\t".join(_fields_of(clip)) + "\n" for clip in new_clips.values()]
        with self.path.open("ab") as file:
            is_empty = file.tell() == 0
            header = _HEADER if is_empty else b""
            file.write(header + "".join(lines).encode("utf-8"))
        for number, clip in enumerate(new_clips.values(), start=len(self._known_keys) + 1):
            if number > _NUM_NAMED:
                break
            logger.warning("utterance %s: %s: %s; it is skipped", *_fields_of(clip))
            if number == _NUM_NAMED:
                message = "%s lists these %d clips and all further ones that cannot be read"
                logger.warning(message, self.path, number)
        self._known_keys.update(map(one_field, new_clips))

    def record_batches(self, batches: Iterable[Batch], counts: Counter[str]) -> Iterator[Batch]:
        """The same batches, whose bad clips are recorded when a batch is taken.

        Its clips are then also counted in `counts`: the bad ones as `bad`, all as `drawn`.
        """
        for batch in batches:
            self.record(batch.quarantined)
            counts.update(bad=len(batch.quarantined), drawn=batch.num_drawn)
            yield batch

    def check_share(self, num_bad: int, num_drawn: int, limit: float, *, at_end: bool) -> None:
        """Raise DataError if more than the share `limit` of the clips drawn by all ranks are bad.

        at_end: whether an epoch or a validation ended; otherwise the share of fewer than MIN_DRAWN
            clips is not checked.
        """
        is_checked = at_end or num_drawn >= MIN_DRAWN
        if is_checked and num_bad > limit * num_drawn:
            found = f"{num_bad} of {num_drawn} clips cannot be read, more than the share {limit:g}"
            remedy = "restore them, or raise dataset_conf.max_bad_clips"
            raise DataError(self._all_paths, found, remedy)


def _fields_of(clip: BadClip) -> list[str]:
    """The fields of a line of the file: key, path and reason, each without tabs and line ends."""
    return [one_field(clip.key), one_field(clip.wav), one_field(clip.reason)]
