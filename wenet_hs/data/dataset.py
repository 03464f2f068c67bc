# SPDX-License-Identifier: Apache-2.0
"""From a data list to batches.   Dimension key: B batch, T frames, F Mel bins, L label.

What is random about an example (speed, noise, masks) comes from generators seeded by (seed, epoch, index): an example
is the same whenever, wherever and in whatever order it is made, so a resumed run sees what an unbroken one would.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.config.dataset import DatasetConf
from wenet_hs.data.audio import probe_audio
from wenet_hs.data.augment import SPEED_FACTORS, spec_augment
from wenet_hs.data.features import num_frames, utterance_features
from wenet_hs.data.loading import load_ahead
from wenet_hs.data.selection import ctc_frames_needed, reason_to_reject
from wenet_hs.errors import DataError
from wenet_hs.manifest import Utterance
from wenet_hs.text.tokenize import Tokenizer

logger = logging.getLogger(__name__)

PADDING_ID = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One utterance, ready for a batch."""

    key: str
    features: Tensor
    """(T, F) float32, before CMVN."""
    target: Tensor
    """(L,) int64 unit ids, without begin and end."""
    audio_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Some utterances, padded to one length."""

    keys: list[str]
    features: Tensor
    """(B, T, F) float32, 0 where padded."""
    feature_lengths: Tensor
    """(B,) int64, in frames."""
    targets: Tensor
    """(B, L) int64, -1 where padded."""
    target_lengths: Tensor
    """(B,) int64."""
    audio_seconds: float
    num_targets: int
    """Labels plus one end of sentence each: what the attention decoder predicts."""

    def to(self, device: torch.device | str) -> "Batch":
        """The batch with its tensors on a device."""
        return replace(
            self,
            features=self.features.to(device, non_blocking=True),
            feature_lengths=self.feature_lengths.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
            target_lengths=self.target_lengths.to(device, non_blocking=True),
        )


def collate(examples: Sequence[Example]) -> Batch:
    """Pad examples to the longest of them, in their order."""
    target_lengths = torch.tensor([len(example.target) for example in examples])
    return Batch(
        keys=[example.key for example in examples],
        features=pad_sequence([example.features for example in examples], batch_first=True),
        feature_lengths=torch.tensor([len(example.features) for example in examples]),
        targets=pad_sequence([example.target for example in examples], batch_first=True, padding_value=PADDING_ID),
        target_lengths=target_lengths,
        audio_seconds=sum(example.audio_seconds for example in examples),
        num_targets=int(target_lengths.sum()) + len(examples),
    )


def conv2d_length(num_frames: int) -> int:
    """Encoder frames of so many feature frames after WeNet's `conv2d`, which reads 7 frames and steps 4."""
    return max(0, ((num_frames - 1) // 2 - 1) // 2)


@dataclass(frozen=True, slots=True)
class _Entry:
    utterance: Utterance
    ids: tuple[int, ...]
    duration_s: float


class SpeechDataset:
    """The usable utterances of a list as examples; `item` is a pure function of (seed, epoch, index).

    Attributes:
        rejected: (key, reason) of each utterance left out. In training: what `filter_conf` excludes, what CTC cannot
            align (fewer encoder frames than labels and repeats) and empty transcripts. Otherwise only what is too
            short for the encoder: a test utterance is decoded, whatever it is.
        unknown: how often each unit outside the table occurs in the kept transcripts.
    """

    def __init__(
        self,
        utterances: Iterable[Utterance],
        tokenizer: Tokenizer,
        conf: DatasetConf,
        *,
        training: bool,
        seed: int,
        subsampled_length: Callable[[int], int] = conv2d_length,
    ) -> None:
        """Encode and check every utterance; those without a duration are probed.

        Args:
            training: speed, dither and masks as `conf` says; without it, none.
            subsampled_length: the encoder's: feature frames → encoder frames.
        """
        self.rejected: list[tuple[str, str]] = []
        self.unknown: Counter[str] = Counter()
        self._conf, self._training, self._seed = conf, training, seed
        self._subsampled_length = subsampled_length
        self._entries: list[_Entry] = []
        self._cache: dict[tuple[int, float], Tensor] = {}
        for utterance in utterances:
            entry = _Entry(utterance, tuple(tokenizer.encode(utterance.txt)), _duration(utterance))
            reason = self._reject(entry)
            if reason is None:
                self._entries.append(entry)
                self.unknown.update(tokenizer.unknown(utterance.txt))
            else:
                self.rejected.append((utterance.key, reason))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def utterances(self) -> list[Utterance]:
        """The kept utterances; an index into them is an index of `item`."""
        return [entry.utterance for entry in self._entries]

    @property
    def caches(self) -> bool:
        """Whether features are kept in memory: about 32 kB a second of audio and speed."""
        return self._conf.cache_features

    @property
    def num_frames(self) -> list[int]:
        """The length of each utterance in feature frames at its own speed, from its duration."""
        return [self._num_frames(entry, 1.0) for entry in self._entries]

    def epoch_frames(self, epoch: int) -> list[int]:
        """The length of each item as that epoch's speeds make it: `plan_epoch` then keeps to a limit of frames."""
        return [self._num_frames(entry, self._speed(index, epoch)) for index, entry in enumerate(self._entries)]

    def item(self, index: int, epoch: int) -> Example:
        """The example `index` as epoch `epoch` sees it. Raises DataError naming the utterance and the file."""
        entry = self._entries[index]
        speed = self._speed(index, epoch)
        features = self._features(index, epoch, speed)
        if self._training and self._conf.spec_aug:
            features = spec_augment(features, self._conf.spec_aug_conf, self._generator("mask", epoch, index))
        return Example(
            key=entry.utterance.key,
            features=features,
            target=torch.tensor(entry.ids, dtype=torch.int64),
            audio_seconds=entry.duration_s / speed,
        )

    def _features(self, index: int, epoch: int, speed: float) -> Tensor:
        """From the cache or the file.

        The cached dither is that of epoch 0, so that the epoch after a resume fills the cache with the same values.
        """
        if not self.caches:
            return self._read(index, epoch, speed)
        if (index, speed) not in self._cache:
            self._cache[index, speed] = self._read(index, 0, speed)
        return self._cache[index, speed]

    def _read(self, index: int, epoch: int, speed: float) -> Tensor:
        utterance = self._entries[index].utterance
        features = utterance_features(
            utterance,
            self._conf,
            speed=speed,
            dither=self._conf.fbank_conf.dither if self._training else 0.0,
            generator=self._generator("dither", epoch, index, speed),
        )
        if self._subsampled_length(len(features)) < 1:
            raise DataError(
                f"utterance {utterance.key}: {utterance.wav}: {len(features)} frames of audio are too few for the "
                "encoder; take it out of the data list"
            )
        return features

    def _reject(self, entry: _Entry) -> str | None:
        frames = self._subsampled_length(self._num_frames(entry, 1.0))
        if not self._training:
            return None if frames > 0 else f"too short for the encoder: {entry.duration_s:.3f} s"
        return reason_to_reject(entry.ids, entry.duration_s, frames, self._conf.filter_conf)

    def _speed(self, index: int, epoch: int) -> float:
        """The speed of an item: one of three in training, but never one at which CTC cannot align it."""
        if not (self._training and self._conf.speed_perturb):
            return 1.0
        entry = self._entries[index]
        speed = SPEED_FACTORS[self._hash("speed", epoch, index) % len(SPEED_FACTORS)]
        frames = self._subsampled_length(self._num_frames(entry, speed))
        return speed if frames >= ctc_frames_needed(entry.ids) else 1.0

    def _num_frames(self, entry: _Entry, speed: float) -> int:
        rate = self._conf.resample_conf.resample_rate
        fbank_conf = self._conf.fbank_conf
        return num_frames(
            round(entry.duration_s * rate / speed),
            sample_rate=rate,
            frame_length_ms=fbank_conf.frame_length,
            frame_shift_ms=fbank_conf.frame_shift,
        )

    def _hash(self, *parts: object) -> int:
        digest = blake2b(repr((self._seed, *parts)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1  # torch's seeds are signed

    def _generator(self, *parts: object) -> torch.Generator:
        return torch.Generator().manual_seed(self._hash(*parts))


def batches(
    dataset: SpeechDataset, plan: Sequence[Sequence[int]], epoch: int, *, num_workers: int = 0, start: int = 0
) -> Iterator[Batch]:
    """The batches of a plan from number `start` on, computed ahead of their use; see `load_ahead` for `num_workers`.

    A dataset that caches features fills its cache in this process: worker processes would each keep a copy and lose it
    at the end of the epoch, so `num_workers` is then not used, which is said once.
    Raises: DataError naming the utterance and the file that cannot be read.
    """
    if num_workers and dataset.caches:
        logger.warning("cache_features: features are kept in this process, num_workers %d is not used", num_workers)
        num_workers = 0
    yield from load_ahead(partial(_batch, dataset, plan, epoch), range(start, len(plan)), num_workers=num_workers)


def _batch(dataset: SpeechDataset, plan: Sequence[Sequence[int]], epoch: int, position: int) -> Batch:
    return collate([dataset.item(index, epoch) for index in plan[position]])


def _duration(utterance: Utterance) -> float:
    """Seconds of the utterance; the header is read where the list does not tell."""
    if utterance.duration is not None:
        return utterance.duration
    end = utterance.end
    if end is None:
        try:
            end = probe_audio(utterance.wav).duration_s
        except DataError as error:
            raise DataError(f"utterance {utterance.key}: {error}") from error
    return max(0.0, end - (utterance.start or 0.0))
