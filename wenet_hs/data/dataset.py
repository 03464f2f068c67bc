# SPDX-License-Identifier: Apache-2.0
"""Dataset of utterances: from a data list to batches.

The random parts of an example (speed, dither, noise, masks) come from generators seeded by (seed,
epoch, item). An example does not depend on the process that makes it, nor on the order, so a
resumed run gets the same examples.

Dimension key: B batch, N samples or items, T frames, F Mel bins, U usable utterances.
"""

import logging
import math
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wenet_hs.config.dataset import DatasetConf
from wenet_hs.data.audio import (
    MEMBER,
    AudioError,
    ClipError,
    is_url,
    read_utterance,
    segment_duration,
)
from wenet_hs.data.augment import SPEED_FACTORS, Distortions, apply_masks, draw_masks, speed_perturb
from wenet_hs.data.batching import Batch, BatchPlan, Example, collate, plan_epoch
from wenet_hs.data.features import CACHE_FEATURES, FeatureCache
from wenet_hs.data.loading import load_ahead
from wenet_hs.data.sampling import UtteranceTable, ctc_frames_needed, make_sampler, reason_to_reject
from wenet_hs.data.shards import source_versions
from wenet_hs.frontends.base import Frontend
from wenet_hs.frontends.build import build_frontend
from wenet_hs.frontends.waveform import Waveform
from wenet_hs.manifest.data_list import BadClip, Utterance
from wenet_hs.text.tokenizer import Tokenizer
from wenet_hs.tree.errors import DataError, list_names

logger = logging.getLogger(__name__)

MAX_CACHED_S = 600
"""Features of longer utterances are not kept."""
HEADER_THREADS = 16
"""Threads that read the headers of clips without a duration: on a network disk mostly waiting."""
HEADERS_AT_ONCE = 1024
"""Headers that are read before the next ones are begun."""
MAX_REPLACEMENTS = 1000
"""Clips to try for a batch in which all clips are bad.

So many bad clips in a row mean that the disk is not there.
"""


class SpeechDataset:
    """The usable utterances of a list as examples, and their batches.

    `make_example` is a pure function of (seed, epoch, item).
    """

    rejected: list[tuple[str, str]]
    """Key and reason of each utterance that is not used.

    In training these are utterances that `filter_conf` excludes, that CTC cannot align (fewer
    encoder frames than labels and repeats), or that have an empty transcript. Otherwise only those
    too short for the encoder: all other test utterances are decoded. In both cases also utterances
    without a duration in the list whose audio header cannot be read.
    """
    unknown: Counter[str]
    """How often each unit outside the table occurs in the transcripts of usable utterances."""
    unused_marked: list[str]
    """In training: units such as `<pad>` that are in no transcript."""
    durations: NDArray[np.float64]
    """(U,) seconds of each usable utterance."""
    cache: FeatureCache | None
    """See `cache_in`."""

    def __init__(
        self,
        utterances: Iterable[Utterance],
        tokenizer: Tokenizer,
        conf: DatasetConf,
        *,
        training: bool,
        seed: int,
        output_length: Callable[[int], int],
        frontend: Frontend | None = None,
    ) -> None:
        """Encode and check every utterance; the headers of those without a duration are read.

        Args:
            utterances: a table of `open_lists`, or any other utterances.
            training: use speed, noise, dither, masks and sampling as `conf` states; otherwise none
                of them.
            output_length: the encoder's: feature frames → encoder frames.
            frontend: what computes the input of the encoder; None: that of `conf`.
        Raises: DataError if more than the share `max_bad_clips` of the headers cannot be read, or
            if more than `max_unknown_units` of the units for training are not in the table.
        """
        if not isinstance(utterances, UtteranceTable):
            utterances = UtteranceTable(utterances)
        self._table = utterances
        self._tokenizer = tokenizer
        self._conf = conf
        self._training = training
        self._seed = seed
        self._output_length = output_length
        self._frontend = frontend or build_frontend(conf)
        # What this process and its workers compute: with `features_on: device` only the waveform.
        self._worker_frontend: Frontend = self._frontend
        if conf.features_on == "device":
            self._worker_frontend = Waveform(self._frontend.rate)
        self.cache = None
        self._select_utterances()
        self.unused_marked = self._find_unused_marked() if training else []
        self._distortions = None
        if training and (conf.noise_conf or conf.reverb_conf):
            self._distortions = Distortions(conf)
        self._sampler = None
        if training and conf.sampling and len(self._rows):
            self._sampler = make_sampler(
                conf.sampling, self._table, self._rows, self.durations, seed=seed
            )

    def _select_utterances(self) -> None:
        """Find the usable utterances, and count the units that are not in the table.

        Sets `rejected`, `unknown`, `durations`, and for each usable utterance its row in the table
        and the encoder frames that CTC needs. Raises: see `__init__`.
        """
        self.rejected = []
        self.unknown = Counter()
        durations, unreadable = self._find_durations()
        num_frames = self._encoder_frames(self._frontend.count_frames(durations)).tolist()
        rows = list[int]()
        frames_needed = list[int]()
        num_units = 0
        for row, txt in enumerate(self._table.columns["txt"]):
            ids = self._tokenizer.encode(txt)
            reason = unreadable.get(row)
            if reason is None:
                reason = self._reason_to_reject(ids, float(durations[row]), num_frames[row])
            if reason is not None:
                self.rejected.append((self._table.columns["key"][row], reason))
                continue
            rows.append(row)
            frames_needed.append(ctc_frames_needed(ids))
            num_units += len(ids)
            if self._tokenizer.table.special.unk in ids:
                self.unknown.update(self._tokenizer.count_unknown(txt))
        self._rows = np.array(rows, np.int64)
        self._frames_needed = np.array(frames_needed, np.int64)
        self.durations = durations[self._rows]
        if self._training:
            self._check_unknown_units(num_units)

    def _reason_to_reject(
        self, ids: Sequence[int], duration_s: float, num_encoder_frames: int
    ) -> str | None:
        """The reason why an utterance with these unit ids is not used; None: it is used."""
        if self._training:
            return reason_to_reject(ids, duration_s, num_encoder_frames, self._conf.filter_conf)
        if num_encoder_frames < 1:
            return f"too short for the encoder: {duration_s:.3f} s"
        return None

    def _check_unknown_units(self, num_units: int) -> None:
        """Raise DataError if too many of the units of all usable utterances are not in the table.

        num_units: how many units these utterances have.
        """
        num_unknown = self.unknown.total()
        max_share = self._conf.max_unknown_units
        if num_unknown <= max_share * num_units:
            return
        units = list_names([repr(unit) for unit, _ in self.unknown.most_common()], separator=" ")
        found = f"{num_unknown} of {num_units} units are not in units.txt ({units})"
        limit = f"dataset_conf.max_unknown_units, now {max_share:g}"
        raise DataError("--train_data", found, f"give the table of these data, or raise {limit}")

    def _find_unused_marked(self) -> list[str]:
        """The units such as `<pad>` that are in no transcript of the table."""
        texts = self._table.columns["txt"]
        marked_units = self._tokenizer.marked_units
        return [unit for unit in marked_units if not any(unit in text for text in texts)]

    def __len__(self) -> int:
        return len(self._rows)

    def cache_in(self, path: Path, *, setting: str = CACHE_FEATURES) -> None:
        """Keep features in a file from their first use on.

        It has 32 kB per second of audio and speed, with 80 Mel bins. Features of utterances longer
        than MAX_CACHED_S are not kept.

        `setting`: what asks for it, for messages. Raises DataError if the file cannot be made.
        """
        speeds = SPEED_FACTORS if self._training and self._conf.speed_perturb else SPEED_FACTORS[:1]
        # A duration in the list may be wrong: no space is reserved for more than MAX_CACHED_S.
        is_kept = self.durations <= MAX_CACHED_S
        max_frames = []
        for speed in speeds:
            # Two frames more than the list states: a clip may be a little longer.
            num_frames = self._frontend.count_frames(self.durations, speed) + 2
            max_frames.append(np.where(is_kept, num_frames, 0))
        self.cache = FeatureCache(
            path,
            np.stack(max_frames, axis=1),
            self._frontend.width,
            is_half=self._frontend.is_half,
            setting=setting,
        )

    def cache_key(self) -> str:
        """A hash of all that the features in a file of `cache_in` depend on, except the frontend.

        That is the clips, their durations and speeds, and the versions of the files they are in.
        Versions of URLs of single clips are not asked for: a million requests may be needed.
        """
        clips = []
        sources = set[str]()
        for row in self._rows.tolist():
            utterance = self._table[row]
            segment = (utterance.start, utterance.end, utterance.channel)
            clips.append((utterance.key, utterance.wav, *segment))
            sources.add(utterance.wav)
        files = set[str]()
        for wav in sources:
            member = MEMBER.fullmatch(wav)
            if member is not None:
                files.add(member[1])  # the shard, a path or URL
            elif not is_url(wav):
                files.add(wav)
        facts = (
            clips,
            source_versions(sorted(files)),
            self.durations.tolist(),
            self._training and self._conf.speed_perturb,
        )
        return blake2b(repr(facts).encode(), digest_size=16).hexdigest()

    @property
    def num_frames(self) -> list[int]:
        """(U,) the length of each utterance for `batch_conf`, at its own speed, by its duration."""
        return list(self._frontend.batch_lengths(self.durations).tolist())

    def sample_targets(self, limit: int) -> tuple[list[list[int]], list[int]]:
        """Unit ids and encoder frames of up to `limit` utterances, evenly spaced in the list.

        Utterances that CTC cannot align, or whose transcript is empty, are left out.
        """
        num_frames = self._encoder_frames(self._frontend.count_frames(self.durations))
        can_align = (num_frames >= self._frames_needed) & (self._frames_needed > 0)
        usable = np.flatnonzero(can_align)
        step = max(1, math.ceil(len(usable) / limit))  # 1 also if there are none
        chosen = usable[::step]
        texts = self._table.columns["txt"]
        targets = [self._tokenizer.encode(texts[row]) for row in self._rows[chosen].tolist()]
        return targets, num_frames[chosen].tolist()

    def plan(self, epoch: int) -> BatchPlan:
        """The batches of one epoch of training, with the items that `sampling` draws."""
        items = np.arange(len(self)) if self._sampler is None else self._sampler.items(epoch)
        frames = self.item_frames(items, epoch)
        return plan_epoch(frames, self._conf.batch_conf, seed=self._seed, epoch=epoch, items=items)

    def item_frames(self, items: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """The frames (N,) that `batch_conf` counts of each item (N,), at its speed in an epoch."""
        durations = self.durations[items % len(self)]
        return self._frontend.batch_lengths(durations, self._speeds(items, epoch))

    def load_batch(self, plan: Sequence[Sequence[int]], epoch: int, position: int) -> Batch:
        """The batch at a position of a plan.

        Clips that cannot be read are not in it, but in its `quarantined`. If all its clips are bad,
        one item replaces them: the first one after the last of them, by number, that can be read.
        If `max_bad_clips` is 0, the first bad clip is an error.

        Raises: ClipError; DataError if all items, or MAX_REPLACEMENTS in a row, are bad.
        """
        examples: list[Example] = []
        bad_clips: list[BadClip] = []
        items = plan[position]
        for item in items:
            self._load_into(examples, bad_clips, item, epoch)
        first_replacement = items[-1] + 1
        num_replacements = min(len(self), MAX_REPLACEMENTS)
        for item in range(first_replacement, first_replacement + num_replacements):
            if examples:
                break
            self._load_into(examples, bad_clips, item, epoch)
        if not examples:
            num_bad = len(bad_clips)
            first = bad_clips[0]
            where = f"{num_bad} clips in a row cannot be read, the first is utterance {first.key}"
            found = f"{first.wav}: {first.reason}"
            raise DataError(where, found, "is the disk with the audio there?")
        return replace(collate(examples), quarantined=tuple(bad_clips))

    def _load_into(
        self, examples: list[Example], bad_clips: list[BadClip], item: int, epoch: int
    ) -> None:
        """Append an item to `examples`, or to `bad_clips` if its clip cannot be read.

        Raises: ClipError if the clip cannot be read and `max_bad_clips` is 0.
        """
        try:
            examples.append(self.make_example(item, epoch))
        except ClipError as error:
            if not self._conf.max_bad_clips:
                raise
            bad_clips.append(error.clip)

    def make_example(self, item: int, epoch: int) -> Example:
        """The example of an item in an epoch.

        It has features that are masked already. With `features_on: device` it has the waveform
        instead, and the masks for its features. Without SpecAugment no value is masked.

        item: index + copy * len, where `index` is that of an utterance, 0…len-1. All copies are of
            this utterance, with different augmentation.

        Raises: ClipError naming the utterance and the file, if the clip cannot be read or is too
            short for the encoder.
        """
        index = item % len(self)
        utterance = self._table[int(self._rows[index])]
        speed = float(self._speeds(np.array([item]), epoch)[0])
        features, is_incomplete = self._load_features(utterance, item, epoch, speed)
        is_waveform = self._conf.features_on == "device"
        num_frames = self._frontend.length(len(features)) if is_waveform else len(features)
        if self._output_length(num_frames) < 1:
            reason = f"{num_frames} frames of audio are too few for the encoder"
            raise ClipError(utterance.key, utterance.wav, reason, "take it out of the data list")
        if self._training and self._conf.spec_aug:
            generator = self._generator("mask", epoch, item)
            conf = self._conf.spec_aug_conf
            masks = draw_masks(num_frames, self._frontend.width, conf, generator)
            if not is_waveform:
                features = apply_masks(features, masks)
        else:
            keep_T = torch.ones(num_frames, dtype=torch.bool)
            keep_F = torch.ones(self._frontend.width, dtype=torch.bool)
            masks = (keep_T, keep_F)
        return Example(
            key=utterance.key,
            features=features,
            masks=masks if is_waveform else None,
            target=torch.tensor(self._tokenizer.encode(utterance.txt), dtype=torch.int64),
            audio_seconds=float(self.durations[index]) / speed,
            is_incomplete=is_incomplete,
        )

    def _load_features(
        self, utterance: Utterance, item: int, epoch: int, speed: float
    ) -> tuple[Tensor, bool]:
        """The features of an item: from the cache, or computed and put into it if they are absent.

        Without a cache they are always computed. Returns: see `_compute_features`.
        """
        if self.cache is None:
            return self._compute_features(utterance, item, epoch, speed)
        index = item % len(self)
        column = SPEED_FACTORS.index(speed)
        cached = self.cache.get(index, column)
        if cached is not None:
            return cached
        features, is_incomplete = self._compute_features(utterance, item, epoch, speed)
        self.cache.put(index, column, features, key=utterance.key, is_incomplete=is_incomplete)
        return features, is_incomplete

    def _compute_features(
        self, utterance: Utterance, item: int, epoch: int, speed: float
    ) -> tuple[Tensor, bool]:
        """The features (T, F) of an item before masking, and whether its clip is incomplete.

        With `features_on: device` it returns the waveform (N,) instead of features.

        Features for the cache have the dither of epoch 0, so that a cache that is filled after a
        resume contains the same values.
        """
        incomplete: list[str] = []
        waveform = read_utterance(utterance, self._frontend.rate, incomplete)
        waveform = speed_perturb(waveform, speed)
        if self._distortions is not None:
            waveform = self._distortions.apply(
                waveform, lambda purpose: self._generator(purpose, epoch, item)
            )
        generator = None
        if self._training and self._conf.cache_features:
            generator = self._generator("dither", 0, item % len(self), speed)
        elif self._training:
            generator = self._generator("dither", epoch, item, speed)
        return self._worker_frontend.compute(waveform, generator), bool(incomplete)

    def _find_durations(self) -> tuple[NDArray[np.float64], dict[int, str]]:
        """The duration of each utterance of the table: the list states it, or its audio header.

        Returns: (N,) seconds, 0 where the header cannot be read; and row → reason of those.
        Raises: DataError if these are more than the share `max_bad_clips` of the list.
        """
        durations = self._table.columns["duration"].copy()
        unreadable: dict[int, str] = {}
        rows = np.flatnonzero(np.isnan(durations)).tolist()  # without a duration in the list
        headers = _read_durations(self._table, rows)
        for row, duration_or_error in zip(rows, headers, strict=True):
            if isinstance(duration_or_error, AudioError):
                durations[row] = 0.0
                unreadable[row] = f"unreadable: {duration_or_error.found}"
                self._check_unreadable(len(unreadable), self._table[row], duration_or_error)
            else:
                durations[row] = duration_or_error
        return durations, unreadable

    def _check_unreadable(self, num_bad: int, utterance: Utterance, error: AudioError) -> None:
        """Raise DataError if `num_bad` headers are more than the share `max_bad_clips` of the list.

        utterance, error: of the last header that could not be read, for the message.
        """
        max_share = self._conf.max_bad_clips
        num_clips = len(self._table)
        if num_bad > max_share * num_clips:
            count = f"{num_bad} of {num_clips} clips cannot be read"
            to_do = f"dataset_conf.max_bad_clips allows {max_share:g}: restore them"
            found = f"{utterance.wav}: {error.found}; {count}, {to_do}"
            raise DataError(f"utterance {utterance.key}", found) from error

    def _encoder_frames(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Encoder frames of each number of feature frames: (N,) → (N,).

        The encoder's function is called once per distinct number: it may be slow.
        """
        distinct, indices = np.unique(frames, return_inverse=True)
        lengths = [self._output_length(number) for number in distinct.tolist()]
        return np.array(lengths, np.int64)[indices]

    def _speeds(self, items: NDArray[np.int64], epoch: int) -> NDArray[np.float64]:
        """The speed of each item (N,) in an epoch: in training one of SPEED_FACTORS, else 1.

        It is 1 if CTC could not align the label at the speed that was drawn.
        """
        if not (self._training and self._conf.speed_perturb):
            return np.ones(len(items))
        draws = [self._hash("speed", epoch, item) % len(SPEED_FACTORS) for item in items.tolist()]
        speeds = np.array(SPEED_FACTORS)[draws]
        indices = items % len(self)
        num_frames = self._frontend.count_frames(self.durations[indices], speeds)
        can_align = self._encoder_frames(num_frames) >= self._frames_needed[indices]
        return np.where(can_align, speeds, 1.0)

    def _hash(self, *parts: object) -> int:
        """63 random bits that depend on the seed and `parts`, the same on every machine."""
        digest = blake2b(repr((self._seed, *parts)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1  # torch's seeds are signed

    def _generator(self, *parts: object) -> torch.Generator:
        """A generator whose numbers depend on the seed and `parts`."""
        return torch.Generator().manual_seed(self._hash(*parts))


def _read_durations(table: UtteranceTable, rows: Sequence[int]) -> Iterator[float | AudioError]:
    """`_duration_or_error` of each of some rows, in order; several threads read the headers."""
    with ThreadPoolExecutor(HEADER_THREADS) as pool:
        for first in range(0, len(rows), HEADERS_AT_ONCE):
            block = rows[first : first + HEADERS_AT_ONCE]
            yield from pool.map(_duration_or_error, [table[row] for row in block])


def _duration_or_error(utterance: Utterance) -> float | AudioError:
    """The duration by the audio header in seconds, or the error if it cannot be read."""
    try:
        return segment_duration(utterance)
    except AudioError as error:
        return error


def batches(
    dataset: SpeechDataset,
    plan: Sequence[Sequence[int]],
    epoch: int,
    *,
    num_workers: int = 0,
    pin: bool = False,
) -> Iterator[Batch]:
    """The batches of a plan, computed ahead of their use; see `load_ahead` for `num_workers`.

    `pin`: put them into pinned memory, for a GPU. Only forked worker processes share a feature
    cache. Where processes are not forked, a dataset with a cache has no workers, with a warning.
    """
    if num_workers and dataset.cache and multiprocessing.get_start_method() != "fork":
        logger.warning(
            "worker processes cannot share the cache here; num_workers %d is not used", num_workers
        )
        num_workers = 0
    load = partial(dataset.load_batch, plan, epoch)
    return load_ahead(load, range(len(plan)), num_workers=num_workers, pin=pin)


def with_features(batch: Batch, frontend: Frontend) -> Batch:
    """The batch with the masked features of its waveforms, computed on their device.

    A batch of features is returned as it is. The features are those of `features_on: worker` to
    1e-3, not to the bit. Masked values are the mean of the bin of the utterance, and padding is 0.
    """
    if batch.wave_masks is None:
        return batch
    features_BTF = frontend.compute(batch.features)
    keep_BT, keep_BF = (masks.to(features_BTF.device) for masks in batch.wave_masks)
    keep_BTF = keep_BT[:, :, None] & keep_BF[:, None, :]
    steps_T = torch.arange(features_BTF.size(1), device=features_BTF.device)
    valid_BT1 = (steps_T < batch.feature_lengths[:, None])[:, :, None]  # not padding
    num_frames_B11 = batch.feature_lengths[:, None, None]
    mean_B1F = (features_BTF * valid_BT1).sum(1, keepdim=True) / num_frames_B11
    masked_BTF = torch.where(keep_BTF, features_BTF, mean_B1F)
    return replace(batch, features=masked_BTF * valid_BT1, wave_masks=None)
