# SPDX-License-Identifier: Apache-2.0
"""From a data list to batches.   Dimension key: B batch, T frames, F Mel bins, L label.

What is random about an example (speed, noise, masks) comes from generators seeded by (seed, epoch, index): an example
is the same whenever, wherever and in whatever order it is made, so a resumed run sees what an unbroken one would.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wenet_hs.config.dataset import DatasetConf, SamplingConf
from wenet_hs.data.audio import AudioFault, probe
from wenet_hs.data.augment import SPEED_FACTORS, Masks, draw_masks, spec_augment
from wenet_hs.data.batch import Batch, Example, collate
from wenet_hs.data.batching import BatchPlan, plan_epoch
from wenet_hs.data.device_features import collate_waves, frames_of
from wenet_hs.data.distort import Distortions
from wenet_hs.data.features import utterance_features, utterance_waveform_at
from wenet_hs.data.frame_counts import FrameCounts, conv2d_length
from wenet_hs.data.listing import ListedUtterances, UtteranceTable
from wenet_hs.data.loading import load_ahead
from wenet_hs.data.plan_kernels import numbered_hashes, text_hash
from wenet_hs.data.quarantine import clip_error, take_readable
from wenet_hs.data.sampling import Sampler, make_sampler
from wenet_hs.data.selection import reason_to_reject, usable
from wenet_hs.data.transcripts import Transcripts, read_transcripts
from wenet_hs.errors import DataError
from wenet_hs.manifest import Utterance
from wenet_hs.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

__all__ = ["Batch", "Example", "SpeechDataset", "batches", "collate", "conv2d_length"]

_ITEMS_AT_ONCE = 1 << 20


class SpeechDataset:
    """The usable utterances of a list as examples; `item` is a pure function of (seed, epoch, index).

    An utterance is a row of a few columns until its item is made: a list may be of any length.

    Attributes:
        rejected: (key, reason) of each utterance left out. In training: what `filter_conf` excludes, what CTC cannot
            align (fewer encoder frames than labels and repeats) and empty transcripts. Otherwise only what is too
            short for the encoder: a test utterance is decoded, whatever it is. In both, what had to be probed for its
            duration and cannot be read.
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

        Raises DataError where more than `max_bad_clips` of them cannot be read.

        Args:
            utterances: a table of `open_lists`, or any others, which are then kept in memory.
            training: speed, noise, dither, masks and sampling as `conf` says; without it, none.
            subsampled_length: the encoder's: feature frames → encoder frames.
        """
        self._table = utterances if isinstance(utterances, UtteranceTable) else ListedUtterances(utterances)
        self._tokenizer, self._conf, self._training, self._seed = tokenizer, conf, training, seed
        self._lengths = FrameCounts(conf, subsampled_length)
        self._cache: dict[tuple[int, float], Tensor] = {}
        transcripts = read_transcripts(self._table, tokenizer)
        durations, self._unreadable = _durations(self._table, conf.max_bad_clips)
        good = self._usable(transcripts, durations)
        good[list(self._unreadable)] = False
        self._rows = np.flatnonzero(good)
        self._durations, self._frames_needed = durations[self._rows], transcripts.frames_needed[self._rows]
        self.rejected = [self._rejected(row, durations[row]) for row in np.flatnonzero(~good).tolist()]
        self.unknown: Counter[str] = Counter()
        for row in transcripts.with_unknown[good[transcripts.with_unknown]].tolist():
            self.unknown.update(tokenizer.unknown(self._table.row(row).txt))
        self._distortions = Distortions(conf) if training and (conf.noise_conf or conf.reverb_conf) else None
        self._sampler = self._make_sampler(conf.sampling) if training and conf.sampling and len(self) else None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def utterances(self) -> list[Utterance]:
        """The kept utterances; an index into them is an index of `item`."""
        return [self._table.row(row) for row in self._rows.tolist()]

    @property
    def caches(self) -> bool:
        """Whether features are kept in memory: about 32 kB a second of audio and speed."""
        return self._conf.cache_features

    def collate(self, examples: Sequence[Example]) -> Batch:
        """A batch of items, of features or of waveforms as `features_on` says."""
        return collate_waves(examples, self._conf) if self._conf.features_on == "device" else collate(examples)

    @property
    def stops_at_bad_clips(self) -> bool:
        """Whether the first clip that cannot be read ends the run."""
        return self._conf.max_bad_clips == 0

    @property
    def num_frames(self) -> list[int]:
        """The length of each utterance in feature frames at its own speed, from its duration."""
        frames: list[int] = self._lengths.of(self._durations).tolist()
        return frames

    def epoch_frames(self, epoch: int) -> list[int]:
        """The length of each item as that epoch's speeds make it: `plan_epoch` then keeps to a limit of frames."""
        frames: list[int] = self._item_frames(np.arange(len(self)), epoch).tolist()
        return frames

    def plan(self, epoch: int, *, rank: int = 0, world_size: int = 1) -> BatchPlan:
        """The batches of one rank in one epoch of training, of what `sampling` draws where it is set."""
        items = np.arange(len(self)) if self._sampler is None else self._sampler.items(epoch)
        return plan_epoch(
            self._item_frames(items, epoch),
            self._conf.batch_conf,
            seed=self._seed,
            epoch=epoch,
            rank=rank,
            world_size=world_size,
            items=None if self._sampler is None else items,
        )

    def item(self, index: int, epoch: int) -> Example:
        """The example `index` as epoch `epoch` sees it. Raises ClipError naming the utterance and the file.

        index: 0…len-1; index + c * len is the same utterance, augmented in another way.
        """
        place = index % len(self)
        utterance = self._table.row(int(self._rows[place]))
        speed = self._speed(index, epoch)
        masks = None
        if self._conf.features_on == "device":
            features, masks = self._wave(utterance, index, epoch, speed)
        else:
            features = self._features(utterance, index, epoch, speed)
            if self._hides:
                features = spec_augment(features, self._conf.spec_aug_conf, self._generator("mask", epoch, index))
        return Example(
            key=utterance.key,
            features=features,
            masks=masks,
            target=torch.tensor(self._tokenizer.encode(utterance.txt), dtype=torch.int64),
            audio_seconds=float(self._durations[place]) / speed,
        )

    def _features(self, utterance: Utterance, index: int, epoch: int, speed: float) -> Tensor:
        """From the cache or the file.

        The cached dither is that of epoch 0, so that the epoch after a resume fills the cache with the same values.
        """
        if not self.caches:
            return self._read(utterance, index, epoch, speed)
        place = index % len(self)
        if (place, speed) not in self._cache:
            self._cache[place, speed] = self._read(utterance, place, 0, speed)
        return self._cache[place, speed]

    @property
    def _hides(self) -> bool:
        return self._training and self._conf.spec_aug

    def _wave(self, utterance: Utterance, index: int, epoch: int, speed: float) -> tuple[Tensor, Masks | None]:
        """The waveform (N,), and what is to be hidden of its features."""
        wave = utterance_waveform_at(utterance, self._conf, speed, self._distortion(epoch, index))
        frames = frames_of(len(wave), self._conf)
        self._refuse_too_few(frames, utterance)
        if not self._hides:
            return wave, None
        generator, bins = self._generator("mask", epoch, index), self._conf.fbank_conf.num_mel_bins
        return wave, draw_masks(frames, bins, self._conf.spec_aug_conf, generator)

    def _read(self, utterance: Utterance, index: int, epoch: int, speed: float) -> Tensor:
        features = utterance_features(
            utterance,
            self._conf,
            speed=speed,
            dither=self._conf.fbank_conf.dither if self._training else 0.0,
            generator=self._generator("dither", epoch, index, speed),
            distort=self._distortion(epoch, index),
        )
        self._refuse_too_few(len(features), utterance)
        return features

    def _refuse_too_few(self, num_frames: int, utterance: Utterance) -> None:
        if self._lengths.subsampled(num_frames) < 1:
            reason = f"{num_frames} frames of audio are too few for the encoder"
            raise clip_error(utterance.key, utterance.wav, reason, "take it out of the data list")

    def _distortion(self, epoch: int, index: int) -> Callable[[Tensor], Tensor] | None:
        distortions = self._distortions
        if distortions is None:
            return None
        return lambda wave: distortions.apply(wave, lambda what: self._generator(what, epoch, index))

    def _usable(self, transcripts: Transcripts, durations: NDArray[np.float64]) -> NDArray[np.bool_]:
        frames = self._lengths.after_encoder(self._lengths.of(durations))
        if not self._training:
            return frames > 0
        conf = self._conf.filter_conf
        return usable(transcripts.num_units, transcripts.frames_needed, durations, frames, conf)

    def _rejected(self, row: int, duration_s: float) -> tuple[str, str]:
        """The key and the reason, in words."""
        utterance = self._table.row(row)
        if row in self._unreadable:
            return utterance.key, f"unreadable: {self._unreadable[row]}"
        if not self._training:
            return utterance.key, f"too short for the encoder: {duration_s:.3f} s"
        frames = self._lengths.subsampled(int(self._lengths.of(np.array([duration_s]))[0]))
        ids = self._tokenizer.encode(utterance.txt)
        reason = reason_to_reject(ids, float(duration_s), frames, self._conf.filter_conf)
        assert reason is not None, f"{utterance.key}: left out without a reason"
        return utterance.key, reason

    def _make_sampler(self, conf: SamplingConf) -> Sampler:
        starts = np.asarray(self._table.list_starts)
        return make_sampler(
            conf,
            self._table.langs[self._rows],
            (np.searchsorted(starts, self._rows, side="right") - 1).astype(np.int32),
            self._durations,
            lang_names=self._table.lang_names,
            num_lists=len(starts),
            seed=self._seed,
        )

    @property
    def _has_speeds(self) -> bool:
        return self._training and self._conf.speed_perturb

    def _speed(self, index: int, epoch: int) -> float:
        """The speed of an item: one of three in training, but never one at which CTC cannot align it."""
        if not self._has_speeds:
            return 1.0
        place = index % len(self)
        speed = SPEED_FACTORS[self._hash("speed", epoch, index) % len(SPEED_FACTORS)]
        frames = self._lengths.subsampled(int(self._lengths.of(self._durations[[place]], speed)[0]))
        return speed if frames >= self._frames_needed[place] else 1.0

    def _item_frames(self, items: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """The length of each item, a stretch at a time: what is in between needs ten times the memory."""
        frames = np.empty(len(items), np.int64)
        for first in range(0, len(items), _ITEMS_AT_ONCE):
            stretch = slice(first, first + _ITEMS_AT_ONCE)
            frames[stretch] = self._frames_of(items[stretch], epoch, num_all=len(items))
        return frames

    def _frames_of(self, items: NDArray[np.int64], epoch: int, *, num_all: int) -> NDArray[np.int64]:
        places = items % len(self)
        durations = self._durations[places]
        frames = self._lengths.of(durations)
        if not self._has_speeds:
            return frames
        opening = f"({self._seed!r}, 'speed', {epoch!r}, "
        draws = numbered_hashes(opening, items, num_all=num_all) % len(SPEED_FACTORS)
        for draw, speed in enumerate(SPEED_FACTORS):
            mine = draws == draw
            changed = self._lengths.of(durations[mine], speed)
            fits = self._lengths.after_encoder(changed) >= self._frames_needed[places[mine]]
            frames[mine] = np.where(fits, changed, frames[mine])
        return frames

    def _hash(self, *parts: object) -> int:
        return text_hash(repr((self._seed, *parts)))

    def _generator(self, *parts: object) -> torch.Generator:
        return torch.Generator().manual_seed(self._hash(*parts))


def batches(
    dataset: SpeechDataset, plan: Sequence[Sequence[int]], epoch: int, *, num_workers: int = 0, start: int = 0
) -> Iterator[Batch]:
    """The batches of a plan from number `start` on, computed ahead of their use; see `load_ahead` for `num_workers`.

    A dataset that caches features fills its cache in this process: worker processes would each keep a copy and lose it
    at the end of the epoch, so `num_workers` is then not used, which is said.
    A clip that cannot be read is in `quarantined` of its batch instead; `data/quarantine.py` says what stands in.
    Raises: DataError naming the utterance and the file that cannot be read, where `max_bad_clips` is 0.
    """
    if num_workers and dataset.caches:
        logger.warning("cache_features: features are kept in this process, num_workers %d is not used", num_workers)
        num_workers = 0
    yield from load_ahead(partial(_batch, dataset, plan, epoch), range(start, len(plan)), num_workers=num_workers)


def _batch(dataset: SpeechDataset, plan: Sequence[Sequence[int]], epoch: int, position: int) -> Batch:
    if dataset.stops_at_bad_clips:
        return dataset.collate([dataset.item(index, epoch) for index in plan[position]])
    examples, bad = take_readable(lambda index: dataset.item(index, epoch), plan[position], num_items=len(dataset))
    return replace(dataset.collate(examples), quarantined=bad)


def _durations(table: UtteranceTable, max_bad_clips: float) -> tuple[NDArray[np.float64], dict[int, str]]:
    """(N,) seconds of each utterance, and row → reason of those that cannot be read, whose length is 0.

    The header is read where the list does not tell. Raises DataError above the share `max_bad_clips` of the list.
    """
    missing = np.flatnonzero(np.isnan(table.durations))
    durations = table.durations.copy() if len(missing) else table.durations
    unreadable: dict[int, str] = {}
    for row in missing.tolist():
        utterance = table.row(row)
        try:
            durations[row] = _duration(utterance)
        except AudioFault as fault:
            durations[row], unreadable[row] = 0.0, str(fault)
            if len(unreadable) > max_bad_clips * len(table):
                raise DataError(
                    f"utterance {utterance.key}: {utterance.wav}: {fault}; {len(unreadable)} of {len(table)} clips "
                    f"cannot be read, dataset_conf.max_bad_clips allows {max_bad_clips:g}: restore them"
                ) from fault
    return durations, unreadable


def _duration(utterance: Utterance) -> float:
    end = probe(utterance.wav).duration_s if utterance.end is None else utterance.end
    return max(0.0, end - (utterance.start or 0.0))
