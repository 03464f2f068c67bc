# SPDX-License-Identifier: Apache-2.0
"""Dataset of utterances: from a data list to batches.   Dimension key: B batch, N samples, T frames, F Mel bins.

The random parts of an example (speed, dither, noise, masks) come from generators seeded by (seed,
epoch, item). An example does not depend on the process that makes it, nor on the order, so a
resumed run gets the same examples.
"""

import logging
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import chain
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
HEADER_THREADS, HEADERS_AT_ONCE = 16, 1024
"""Threads that read the headers of clips without a duration, which on a network disk is mostly
waiting; and headers that are read before the next ones are begun.
"""
MAX_REPLACEMENTS = 1000
"""Clips to try for a batch in which all clips are bad; so many bad clips in a row mean that the
disk is not there.
"""


class SpeechDataset:
    """The usable utterances of a list as examples; `item` is a pure function of (seed, epoch,
    item).

    Attributes:
        rejected: (key, reason) of each utterance that is not used. In training: those that
        `filter_conf` excludes,
            those that CTC cannot align (fewer encoder frames than labels and repeats) and empty
            transcripts. Otherwise only those too short for the encoder: all other test utterances
            are decoded. In both cases, utterances without a duration in the list whose audio header
            cannot be read.
        unknown: how often each unit outside the table occurs in the kept transcripts.
        unused_marked: in training: units such as `<pad>` that are in no transcript.
        durations: (U,) seconds of each usable utterance.
        cache: see `cache_in`.
    """

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

        Raises DataError where more than the share `max_bad_clips` of the headers cannot be read, or
        where more than `max_unknown_units` of the units for training are not in the table.

        Args:
            utterances: a table of `open_lists`, or any other utterances.
            training: use speed, noise, dither, masks and sampling as `conf` states; otherwise none
                of them.
            output_length: the encoder's: feature frames → encoder frames.
            frontend: what computes the input of the encoder; None: that of `conf`.
        """
        self._table = (
            utterances if isinstance(utterances, UtteranceTable) else UtteranceTable(utterances)
        )
        self._tokenizer, self._conf, self._training, self._seed = tokenizer, conf, training, seed
        self._subsampled, self._frontend = output_length, frontend or build_frontend(conf)
        # What is computed here: all of it, or nothing where the features are computed on the
        # device.
        on_device = conf.features_on == "device"
        self._worker_frontend: Frontend = (
            Waveform(self._frontend.rate) if on_device else self._frontend
        )
        self.cache: FeatureCache | None = None
        self.rejected: list[tuple[str, str]] = []
        self.unknown: Counter[str] = Counter()
        durations, unreadable = self._find_durations()
        rows, needed, num_units = [], [], 0
        frames = self._encoder_frames(self._frontend.count_frames(durations)).tolist()
        for row, txt in enumerate(self._table.columns["txt"]):
            ids = tokenizer.encode(txt)
            reason = unreadable.get(row)
            if reason is None and training:
                reason = reason_to_reject(ids, float(durations[row]), frames[row], conf.filter_conf)
            elif reason is None and frames[row] < 1:
                reason = f"too short for the encoder: {durations[row]:.3f} s"
            if reason is not None:
                self.rejected.append((self._table.columns["key"][row], reason))
                continue
            rows.append(row)
            needed.append(ctc_frames_needed(ids))
            num_units += len(ids)
            if tokenizer.table.special.unk in ids:
                self.unknown.update(tokenizer.count_unknown(txt))
        self._rows, self._frames_needed = np.array(rows, np.int64), np.array(needed, np.int64)
        self.durations = durations[self._rows]
        marked = tokenizer.marked_units if training else ()
        self.unused_marked = [
            unit for unit in marked if not any(unit in txt for txt in self._table.columns["txt"])
        ]
        if training and self.unknown.total() > conf.max_unknown_units * num_units:
            units = list_names([repr(unit) for unit, _ in self.unknown.most_common()], " ")
            found = f"{self.unknown.total()} of {num_units} units are not in units.txt ({units})"
            limit = f"dataset_conf.max_unknown_units, now {conf.max_unknown_units:g}"
            raise DataError(
                "--train_data", found, f"give the table of these data, or raise {limit}"
            )
        self._distortions = (
            Distortions(conf) if training and (conf.noise_conf or conf.reverb_conf) else None
        )
        self._sampler = None
        if training and conf.sampling and rows:
            self._sampler = make_sampler(
                conf.sampling, self._table, self._rows, self.durations, seed=seed
            )

    def __len__(self) -> int:
        return len(self._rows)

    def cache_in(self, path: Path, *, setting: str = CACHE_FEATURES) -> None:
        """Keep features in a file from their first use on: 32 kB per second of audio and speed,
        with 80 Mel bins.

        `setting`: what asks for it, for messages.
        """
        speeds = SPEED_FACTORS if self._training and self._conf.speed_perturb else SPEED_FACTORS[:1]
        # Two frames more than the list states: a clip may be a little longer. A duration may also
        # be wrong: no space is reserved for more than MAX_CACHED_S, and longer clips are not kept.
        is_kept = self.durations <= MAX_CACHED_S
        frames = [
            np.where(is_kept, self._frontend.count_frames(self.durations, one) + 2, 0)
            for one in speeds
        ]
        width, is_half = self._frontend.width, self._frontend.is_half
        self.cache = FeatureCache(
            path, np.stack(frames, axis=1), width, is_half=is_half, setting=setting
        )

    def cache_key(self) -> str:
        """A hash of what the features in a file of `cache_in` depend on, beside the frontend."""
        rows = (self._table[row] for row in self._rows.tolist())
        clips = [(u.key, u.wav, u.start, u.end, u.channel) for u in rows]
        members = {wav: MEMBER.fullmatch(wav) for wav in {clip[1] for clip in clips}}
        shards = {member[1] for member in members.values() if member}
        # Other URLs are not looked at: there may be a million of them, with a request each.
        files = sorted(
            shards | {wav for wav, member in members.items() if not member and not is_url(wav)}
        )
        parts = (
            clips,
            source_versions(files),
            self.durations.tolist(),
            self._training and self._conf.speed_perturb,
        )
        return blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    @property
    def num_frames(self) -> list[int]:
        """The length of each utterance for `batch_conf`, at its own speed, by its duration."""
        return list(self._frontend.batch_lengths(self.durations).tolist())

    def sample_targets(self, limit: int) -> tuple[list[list[int]], list[int]]:
        """Unit ids and encoder frames of up to `limit` utterances that CTC can align, evenly spaced
        in the list.
        """
        frames = self._encoder_frames(self._frontend.count_frames(self.durations))
        usable = np.flatnonzero((frames >= self._frames_needed) & (self._frames_needed > 0))
        chosen = usable[:: max(1, -(-len(usable) // limit))].tolist()
        texts = self._table.columns["txt"]
        return [self._tokenizer.encode(texts[self._rows[index]]) for index in chosen], frames[
            chosen
        ].tolist()

    def plan(self, epoch: int) -> BatchPlan:
        """The batches of one epoch of training, with the items that `sampling` draws."""
        items = np.arange(len(self)) if self._sampler is None else self._sampler.items(epoch)
        frames = self.item_frames(items, epoch)
        return plan_epoch(frames, self._conf.batch_conf, seed=self._seed, epoch=epoch, items=items)

    def item_frames(self, items: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """The length (N,) for `batch_conf` of each item (N,) at its speed in an epoch."""
        return self._frontend.batch_lengths(
            self.durations[items % len(self)], self._speeds(items, epoch)
        )

    def load_batch(self, plan: Sequence[Sequence[int]], epoch: int, position: int) -> Batch:
        """The batch at a position of a plan, without clips that cannot be read: those are in its
        `quarantined`.

        If all its clips are bad, the first readable item after them replaces them. If
        `max_bad_clips` is 0, the first bad clip is an error.

        Raises: ClipError; DataError where all items, or MAX_REPLACEMENTS in a row, are bad.
        """
        examples: list[Example] = []
        bad: list[BadClip] = []
        items = plan[position]
        end = items[-1] + 1 + min(len(self), MAX_REPLACEMENTS)
        for number, item in enumerate(chain(items, range(items[-1] + 1, end))):
            if examples and number >= len(items):
                break
            try:
                examples.append(self.item(item, epoch))
            except ClipError as error:
                if not self._conf.max_bad_clips:
                    raise
                bad.append(error.clip)
        if not examples:
            where = f"{len(bad)} clips in a row cannot be read, the first is utterance {bad[0].key}"
            raise DataError(
                where, f"{bad[0].wav}: {bad[0].reason}", "is the disk with the audio there?"
            )
        return replace(collate(examples), quarantined=tuple(bad))

    def item(self, item: int, epoch: int) -> Example:
        """The example `item` in an epoch. Raises ClipError naming the utterance and the file.

        item: the index of an utterance, 0…len-1; index + c * len is the same utterance with another
        augmentation.
        """
        index = item % len(self)
        utterance = self._table[int(self._rows[index])]
        speed = float(self._speeds(np.array([item]), epoch)[0])
        column = SPEED_FACTORS.index(speed)
        cached = self.cache.get(index, column) if self.cache else None
        features, is_incomplete = cached or self._compute_features(utterance, item, epoch, speed)
        if self.cache and not cached:
            self.cache.put(index, column, features, key=utterance.key, is_incomplete=is_incomplete)
        is_wave = self._conf.features_on == "device"
        length = self._frontend.length(len(features)) if is_wave else len(features)
        if self._subsampled(length) < 1:
            reason = f"{length} frames of audio are too few for the encoder"
            raise ClipError(utterance.key, utterance.wav, reason, "take it out of the data list")
        masks = (
            torch.ones(length, dtype=torch.bool),
            torch.ones(self._frontend.width, dtype=torch.bool),
        )
        if self._training and self._conf.spec_aug:
            generator = self._generator("mask", epoch, item)
            masks = draw_masks(length, len(masks[1]), self._conf.spec_aug_conf, generator)
            features = features if is_wave else apply_masks(features, masks)
        return Example(
            key=utterance.key,
            features=features,
            masks=masks if is_wave else None,
            target=torch.tensor(self._tokenizer.encode(utterance.txt), dtype=torch.int64),
            audio_seconds=float(self.durations[index]) / speed,
            is_incomplete=is_incomplete,
        )

    def _compute_features(
        self, utterance: Utterance, item: int, epoch: int, speed: float
    ) -> tuple[Tensor, bool]:
        """The features (T, F) of an item before masking, and whether its clip is incomplete.

        With `features_on: device` the frames of `Waveform`: the waveform (N,).

        Cached features have the dither of epoch 0, so that a cache filled after a resume contains
        the same values.
        """
        incomplete: list[str] = []
        waveform = read_utterance(utterance, self._frontend.rate, incomplete)
        waveform = speed_perturb(waveform, speed)
        if self._distortions is not None:
            waveform = self._distortions.apply(
                waveform, lambda what: self._generator(what, epoch, item)
            )
        drawn = (0, item % len(self)) if self._conf.cache_features else (epoch, item)
        generator = self._generator("dither", *drawn, speed) if self._training else None
        return self._worker_frontend.compute(waveform, generator), bool(incomplete)

    def _find_durations(self) -> tuple[NDArray[np.float64], dict[int, str]]:
        """(N,) seconds of each utterance; row of the list → reason of those whose header cannot be
        read, with length 0.

        Raises DataError above the share `max_bad_clips` of the list.
        """
        table, limit = self._table, self._conf.max_bad_clips
        durations = table.columns["duration"].copy()
        unreadable: dict[int, str] = {}
        for row, utterance, found in _read_headers(
            table, np.flatnonzero(np.isnan(durations)).tolist()
        ):
            if isinstance(found, float):
                durations[row] = found
                continue
            durations[row], unreadable[row] = 0.0, f"unreadable: {found.found}"
            if len(unreadable) > limit * len(table):
                text = f"{utterance.wav}: {found.found}; {len(unreadable)} of {len(table)} clips cannot be read"
                to_do = f"dataset_conf.max_bad_clips allows {limit:g}: restore them"
                raise DataError(f"utterance {utterance.key}", f"{text}, {to_do}") from found
        return durations, unreadable

    def _encoder_frames(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Encoder frames of feature frames (N,) → (N,), with one call of the encoder's function per
        distinct number.
        """
        numbers, indexes = np.unique(frames, return_inverse=True)
        return np.array([self._subsampled(number) for number in numbers.tolist()], np.int64)[
            indexes
        ]

    def _speeds(self, items: NDArray[np.int64], epoch: int) -> NDArray[np.float64]:
        """The speed of each item (N,): one of three in training, but never one at which CTC cannot
        align it.
        """
        if not (self._training and self._conf.speed_perturb):
            return np.ones(len(items))
        draws = [self._hash("speed", epoch, item) % len(SPEED_FACTORS) for item in items.tolist()]
        speeds, indices = np.array(SPEED_FACTORS)[draws], items % len(self)
        frames = self._encoder_frames(self._frontend.count_frames(self.durations[indices], speeds))
        return np.where(frames >= self._frames_needed[indices], speeds, 1.0)

    def _hash(self, *parts: object) -> int:
        """63 random bits, the same on every machine."""
        digest = blake2b(repr((self._seed, *parts)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1  # torch's seeds are signed

    def _generator(self, *parts: object) -> torch.Generator:
        return torch.Generator().manual_seed(self._hash(*parts))


def _read_headers(
    table: UtteranceTable, rows: Sequence[int]
) -> Iterator[tuple[int, Utterance, float | AudioError]]:
    """Each row, its utterance, and its duration or why that cannot be read, in order; threads read
    the headers.
    """
    with ThreadPoolExecutor(HEADER_THREADS) as pool:
        for first in range(0, len(rows), HEADERS_AT_ONCE):
            some = rows[first : first + HEADERS_AT_ONCE]
            utterances = [table[row] for row in some]
            yield from zip(some, utterances, pool.map(_duration_or_error, utterances), strict=True)


def _duration_or_error(utterance: Utterance) -> float | AudioError:
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
    """The batches of a plan, computed ahead of their use, for a GPU in pinned memory; see
    `load_ahead` for `num_workers`.

    Only forked worker processes share a feature cache. Where they start in another way,
    `num_workers` is not used.
    """
    if num_workers and dataset.cache and multiprocessing.get_start_method() != "fork":
        logger.warning(
            "worker processes cannot share the cache here; num_workers %d is not used", num_workers
        )
        num_workers = 0
    return load_ahead(
        partial(dataset.load_batch, plan, epoch), range(len(plan)), num_workers=num_workers, pin=pin
    )


def with_features(batch: Batch, frontend: Frontend) -> Batch:
    """The batch with the features of its waveforms, computed on their device; a batch of features
    is returned as it is.

    The features are those of `features_on: worker` to 1e-3, not to the bit.
    """
    if batch.wave_masks is None:
        return batch
    features_BTF = frontend.compute(batch.features)
    keep_BT, keep_BF = (masks.to(features_BTF.device) for masks in batch.wave_masks)
    steps_T = torch.arange(features_BTF.size(1), device=features_BTF.device)
    valid_BT1 = (steps_T < batch.feature_lengths[:, None])[:, :, None]
    mean_B1F = (features_BTF * valid_BT1).sum(1, keepdim=True) / batch.feature_lengths[
        :, None, None
    ]
    masked_BTF = torch.where(keep_BT[:, :, None] & keep_BF[:, None, :], features_BTF, mean_B1F)
    return replace(batch, features=masked_BTF * valid_BT1, wave_masks=None)
