# SPDX-License-Identifier: Apache-2.0
"""Pieces of a data list or a recording: batches of similar length, clips cut at pauses, speech
between pauses.

Dimension key: N samples, T frames of 10 ms.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wenet_hs.compute.devices import lacks_memory
from wenet_hs.data.audio import (
    Samples,
    is_silent,
    length_fault,
    read_duration,
    read_segment,
    resample,
    segment_duration,
)
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import ConfigError, DataError, list_names

DEFAULT_MAX_SEGMENT_S = 60.0
"""A longer clip is cut before it is decoded."""
MIN_SEGMENT_S = 4.0
"""Smallest `max_segment_s`: a segment has at least one second on both sides of a cut."""
MAX_BATCH_S = 600.0
"""Maximum seconds of audio per batch, including padding: bounds the memory.

A longer clip is a batch of its own.
"""
CUT_AT_PAUSES = "with --max_segment_s above 0 they are cut at pauses"
"""What to do where an encoder cuts segments."""
FRAMES_PER_SECOND = 100
VADS = ("energy", "silero")
"""How speech is found (voice activity detection)."""
_BLOCK_S = 60.0
"""Seconds of a long clip that are read at a time."""
_SILERO_RATE = 16000
_MIN_GAP_S = 0.5
"""Between two segments of speech: shorter pauses are within an utterance."""
_MARGIN_S = 0.15
"""Before and after speech: soft consonants and the decay of the last sound."""
_MIN_SPEECH_S = 0.1
"""Of a segment of speech: a click is shorter."""
_MIN_PAUSE = 20
"""Frames of a pause: the closure of a stop lasts a third of that."""
_MIN_SEGMENT = 100
"""Frames on both sides of a cut."""
_MAX_OFFSET = 1e-3
"""A larger constant offset (-60 dB) is subtracted."""
_SILENCE_DB = -100.0
"""The level of zeros, and the lowest one."""
_BELOW_PEAK_DB = 35.0
"""Clean speech: what is this far below the loudest frames is not speech."""
_SHARE_OF_RANGE = 0.25
"""Noisy speech: a pause is as loud as the noise, near the lowest level."""
_MIN_RANGE_DB = 12.0
"""Below this range there is only noise, or only speech, and no pause can be found."""
_SMOOTH = 5
"""Frames over which the highest level is measured: a click is not speech."""

Levels = NDArray[np.float64]


class Piece(NamedTuple):
    """A clip, or a segment of one."""

    row: int
    """Index of the utterance in the list."""
    duration_s: float
    begin_s: float = 0.0
    """From the beginning of the utterance."""
    end_s: float | None = None
    """None: to the end of the utterance."""

    def select(self, utterances: Sequence[Utterance]) -> Utterance:
        """The utterance, limited to this piece."""
        utterance = utterances[self.row]
        if self.begin_s == 0 and self.end_s is None:
            return utterance
        origin = utterance.start or 0.0
        end = utterance.end if self.end_s is None else origin + self.end_s
        return replace(utterance, start=origin + self.begin_s, end=end, duration=self.duration_s)


def utterance_duration(utterance: Utterance) -> float:
    """Seconds of an utterance: those that the list states, or else those of its audio.

    Raises AudioError if the header of the audio is needed and cannot be read.
    """
    if utterance.duration is not None:
        return utterance.duration
    return segment_duration(utterance)


def plan_batches(
    pieces: Iterable[Piece],
    batch_size: int,
    group_of: Callable[[Piece], Hashable] = lambda piece: None,
    *,
    max_batch_s: float = math.inf,
) -> list[list[Piece]]:
    """Batches of pieces of similar length, the longest first; equal ones keep their order.

    A batch has at most `batch_size` pieces, and MAX_BATCH_S seconds with padding. A longer piece is
    a batch of its own.

    Args:
        group_of: pieces of different groups are in different batches.
        max_batch_s: of the encoder, instead of MAX_BATCH_S if it is less.
    """
    max_batch_s = min(max_batch_s, MAX_BATCH_S)
    batches: list[list[Piece]] = []
    last_batch_of: dict[Hashable, list[Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.duration_s, reverse=True):
        group = group_of(piece)
        batch = last_batch_of.get(group)
        if batch is None or not _has_room(batch, batch_size, max_batch_s):
            batch = []
            batches.append(batch)
            last_batch_of[group] = batch
        batch.append(piece)
    return batches


def _has_room(batch: Sequence[Piece], batch_size: int, max_batch_s: float) -> bool:
    """Whether one more piece fits, which is no longer than the first; all are padded to that."""
    padded_s = (len(batch) + 1) * batch[0].duration_s
    return len(batch) < batch_size and padded_s <= max_batch_s


@contextmanager
def out_of_memory_as_error(names: Sequence[str], longest_s: float, remedy: str) -> Iterator[None]:
    """Raise ConfigError with the names of the clips of the batch if the block runs out of memory.

    Args:
        longest_s: seconds of the longest clip, to which the others are padded.
        remedy: what to do, for the message.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        batch = f"a batch of {len(names)}, the longest of {longest_s:.1f} s ({list_names(names)})"
        raise ConfigError(f"out of memory with {batch}", to_do=remedy) from error


# ---- cut points


def check_max_segment(seconds: float) -> None:
    """Raise ConfigError unless it is 0 (never cut) or at least MIN_SEGMENT_S."""
    is_long_enough = seconds >= MIN_SEGMENT_S  # False for NaN
    if seconds != 0 and not is_long_enough:
        raise ConfigError(
            f"--max_segment_s {seconds:g}",
            f"must be at least {MIN_SEGMENT_S:g}, or 0 to cut nothing",
        )


def limit_segment(max_segment_s: float, longest_s: float) -> float:
    """The smaller one of `max_segment_s` and the `longest_s` of an encoder; 0 (never cut) stays 0.

    A `longest_s` below MIN_SEGMENT_S counts as MIN_SEGMENT_S.
    """
    longest_segment_s = max(longest_s, MIN_SEGMENT_S)
    return min(max_segment_s, longest_segment_s)


def cut_clip(row: int, utterance: Utterance, max_segment_s: float) -> list[Piece]:
    """A clip of a data list as one piece, or cut at pauses if it is longer than `max_segment_s`.

    Args:
        row: index of the utterance in the list.
        max_segment_s: 0: never cut.
    Raises: DataError if its audio, or the header of it, is needed and cannot be read; and as
        `find_cuts`.
    """
    duration_s = utterance_duration(utterance)
    is_too_long = 0 < max_segment_s < duration_s
    if not is_too_long:
        return [Piece(row, duration_s)]
    read_s, cuts = find_cuts(utterance, max_segment_s)
    return _clip_pieces(row, read_s, cuts)


def cut_waveform(waveform_N: Tensor, rate: int, max_segment_s: float) -> list[Piece]:
    """A waveform as one piece, or cut at pauses if it is longer than `max_segment_s` (0: never).

    Nothing if no speech is found.
    """
    duration_s = len(waveform_N) / rate
    levels_T = frame_levels(waveform_N.numpy(), rate)
    if is_silent(waveform_N):
        return []
    regions = speech_regions(levels_T)
    if not join_regions(regions, duration_s):
        return []
    cuts = list[float]()
    if 0 < max_segment_s < duration_s:
        cuts = cut_at_pauses(levels_T, max_segment_s)
    return _clip_pieces(0, duration_s, cuts)


def _clip_pieces(row: int, duration_s: float, cuts: Sequence[float]) -> list[Piece]:
    """The pieces of a whole clip between the cuts (seconds, rising).

    The last one has no `end_s`, so that no sample at the end is lost by rounding.
    """
    begins = [0.0, *cuts]
    ends = [*cuts, duration_s]
    pieces = [Piece(row, end - begin, begin, end) for begin, end in zip(begins, ends, strict=True)]
    pieces[-1] = pieces[-1]._replace(end_s=None)
    return pieces


def cut_span(path: str | Path, begin: float, end: float, max_segment_s: float) -> list[Piece]:
    """A segment of a recording as one piece, or cut at pauses if it is longer than `max_segment_s`.

    Args:
        begin, end: of the segment, in seconds.
        max_segment_s: 0: never cut.
    Raises: as `find_cuts`.
    """
    cuts = list[float]()
    if 0 < max_segment_s < end - begin:
        segment = Utterance(key="", wav=str(path), txt="", start=begin, end=end)
        _, cuts = find_cuts(segment, max_segment_s)
    return _region_pieces(begin, end, cuts)


def _region_pieces(begin: float, end: float, cuts: Sequence[float]) -> list[Piece]:
    """The pieces of a recording from `begin` to `end` in seconds; `cuts` count from `begin`."""
    bounds = [begin, *(begin + cut for cut in cuts), end]
    return [
        Piece(row=0, duration_s=piece_end - piece_begin, begin_s=piece_begin, end_s=piece_end)
        for piece_begin, piece_end in pairwise(bounds)
    ]


def find_cuts(utterance: Utterance, max_segment_s: float) -> tuple[float, list[float]]:
    """The length of an utterance's audio and where to cut it, in seconds.

    The audio is read in blocks.

    Raises: DataError if the audio cannot be read, or is not as long as stated in the list.
    """
    levels = list[Levels]()
    read_s = 0.0
    for samples, rate in _read_blocks(utterance, segment_duration(utterance)):
        levels.append(frame_levels(samples, rate))
        read_s += len(samples) / rate
    if utterance.duration is not None:
        fault = length_fault(read_s, utterance.duration, "the data list")
        if fault is not None:
            raise DataError(utterance.wav, fault, "restore the file, or prepare the data again")
    return read_s, cut_at_pauses(np.concatenate(levels), max_segment_s)


def _read_blocks(utterance: Utterance, length_s: float) -> Iterator[tuple[Samples, int]]:
    """The samples (N,) of an utterance of `length_s` seconds in blocks, with their rate.

    The last block is up to two blocks long, and never empty.
    """
    start = utterance.start or 0.0
    num_blocks = max(1, int(length_s / _BLOCK_S))
    for number in range(num_blocks):
        is_last = number == num_blocks - 1
        end = utterance.end if is_last else start + (number + 1) * _BLOCK_S
        block = replace(utterance, start=start + number * _BLOCK_S, end=end)
        samples, rate, _ = read_segment(block)
        yield samples, rate


def frame_levels(samples: NDArray[np.float32], rate: int) -> Levels:
    """The level in dB per 10 ms, without a constant offset. samples: (N,) in [-1, 1].

    Returns: (T,), as close to the length as possible; values of at least _SILENCE_DB.
    """
    num_frames = round(len(samples) * FRAMES_PER_SECOND / rate)
    if num_frames == 0:
        return np.empty(0)
    bounds = np.round(np.arange(num_frames + 1) * (rate / FRAMES_PER_SECOND))
    bounds = bounds.astype(int).clip(max=len(samples))
    # Not the mean: pauses may be zeros. Every 17th sample is enough, and faster.
    offset = np.median(samples[::17])
    if abs(offset) > _MAX_OFFSET:
        samples = samples - offset
    squares_N = np.square(samples[: bounds[-1]], dtype=np.float64)
    power_T = np.add.reduceat(squares_N, bounds[:-1]) / np.diff(bounds)
    lowest_power = 10 ** (_SILENCE_DB / 10)
    return np.asarray(10 * np.log10(np.maximum(power_T, lowest_power)), np.float64)


def cut_at_pauses(levels: Levels, max_segment_s: float) -> list[float]:
    """Where to cut, in seconds, so that no segment is longer than `max_segment_s`.

    None is shorter than a second. Cuts are made from the beginning on, each at `_cut_point` of what
    the next segment can hold.
    """
    max_frames = int(max_segment_s * FRAMES_PER_SECOND)
    cuts = []
    begin = 0
    while len(levels) - begin > max_frames:
        last = min(begin + max_frames, len(levels) - _MIN_SEGMENT)
        begin = _cut_point(levels, begin, last)
        cuts.append(begin / FRAMES_PER_SECOND)
    return cuts


def _cut_point(levels: Levels, begin: int, last: int) -> int:
    """The frame at which to cut a segment that begins at the frame `begin` and may reach to `last`.

    It is the middle of the longest pause of at least 0.2 s in the second half of this range; of
    equally long ones the last. If there is none, it is the middle of the last pause in the first
    half, or else of the quietest 0.2 s in the second half. The first second is never cut.
    """
    first = begin + _MIN_SEGMENT
    half = max(first, (begin + last) // 2)
    pauses = _pauses(levels, begin, first, last)
    late_pauses = [pause for pause in pauses if pause.middle >= half]
    if late_pauses:
        return max(late_pauses, key=lambda pause: (pause.length, pause.middle)).middle
    if pauses:
        return pauses[-1].middle
    levels_of_windows = _smoothed(levels[half:last], _MIN_PAUSE)
    begin_of_quietest = half + int(levels_of_windows.argmin())
    return begin_of_quietest + _MIN_PAUSE // 2


@dataclass(frozen=True)
class _FrameRange:
    """Successive frames."""

    start: int
    end: int
    """The frame after the last one."""

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def middle(self) -> int:
        return (self.start + self.end) // 2


def _pauses(levels: Levels, begin: int, first: int, last: int) -> list[_FrameRange]:
    """The pauses of at least 0.2 s between the frames `first` and `last`, in order.

    What is speech is decided by the levels from `begin` on. Without contrast there is no pause.
    """
    limit = _speech_levels(levels[begin:last]).limit
    if limit is None:
        return []
    ranges = _true_ranges(levels[first:last] < limit)
    return [
        _FrameRange(first + pause.start, first + pause.end)
        for pause in ranges
        if pause.length >= _MIN_PAUSE
    ]


@dataclass(frozen=True)
class _SpeechLevels:
    """Levels of a part of a recording in dB."""

    highest: float
    limit: float | None
    """A frame below it is not speech; None: there is no contrast between speech and pauses."""


def _speech_levels(levels: Levels) -> _SpeechLevels:
    """The highest level, and the limit of speech.

    The limit is 35 dB below the highest level, or a quarter of the range above the lowest level if
    that is more. The loudest hundredth does not count for the highest level.
    """
    highest = float(np.percentile(_smoothed(levels, _SMOOTH), 99))
    lowest = float(_smoothed(levels, _MIN_PAUSE).min())
    if highest - lowest < _MIN_RANGE_DB:
        return _SpeechLevels(highest, limit=None)
    noise_limit = lowest + _SHARE_OF_RANGE * (highest - lowest)
    return _SpeechLevels(highest, limit=max(highest - _BELOW_PEAK_DB, noise_limit))


def _true_ranges(is_inside_T: NDArray[np.bool_]) -> list[_FrameRange]:
    """The ranges of frames that are True, in order."""
    steps = np.diff(is_inside_T.astype(np.int8), prepend=0, append=0)
    bounds = np.flatnonzero(steps).reshape(-1, 2)  # start and end of each range in turn
    return [_FrameRange(int(start), int(end)) for start, end in bounds]


def _smoothed(levels: Levels, size: int) -> Levels:
    """The level of the mean power of each `size` successive frames.

    (T,) → (T - size + 1,). Of fewer than `size` frames there is one value, of all of them.
    """
    power_T = 10 ** (levels / 10)
    size = min(size, len(power_T))
    mean_power = np.convolve(power_T, np.ones(size) / size, mode="valid")
    return np.asarray(10 * np.log10(mean_power), np.float64)


# ---- speech of a recording


def find_speech(
    path: str | Path, max_segment_s: float, vad: str = "energy"
) -> tuple[float, list[Piece]]:
    """The length of a recording in seconds, and its speech in order, without overlap.

    Pauses of 0.5 s or more separate two pieces. A piece longer than `max_segment_s` is cut at
    pauses. The audio is read in blocks.

    Args:
        max_segment_s: 0: never cut.
        vad: one of VADS.
    Raises: DataError if the audio cannot be read; ConfigError if silero-vad is not installed.
    """
    detect = _load_silero() if vad == "silero" else None
    levels = list[Levels]()
    regions = list[tuple[float, float]]()
    read_s = 0.0
    is_all_silent = True
    recording = Utterance(key="", wav=str(path), txt="")
    for samples, rate in _read_blocks(recording, read_duration(path)):
        waveform_N = torch.from_numpy(samples)
        levels.append(frame_levels(samples, rate))
        is_all_silent &= is_silent(waveform_N)
        if detect is not None:
            resampled_N = resample(waveform_N, rate, _SILERO_RATE)
            regions += [(read_s + begin, read_s + end) for begin, end in detect(resampled_N)]
        read_s += len(samples) / rate
    levels_T = np.concatenate(levels)
    # The levels of a silent recording are not searched: an offset or dither could look like speech.
    if detect is None and not is_all_silent:
        regions = speech_regions(levels_T)
    pieces = list[Piece]()
    for begin, end in join_regions(regions, read_s):
        cuts = list[float]()
        if 0 < max_segment_s < end - begin:
            first = round(begin * FRAMES_PER_SECOND)
            last = round(end * FRAMES_PER_SECOND)
            cuts = cut_at_pauses(levels_T[first:last], max_segment_s)
        pieces += _region_pieces(begin, end, cuts)
    return read_s, pieces


def speech_regions(levels: Levels) -> list[tuple[float, float]]:
    """Begin and end in seconds of each range whose level is that of speech.

    The limit is found per minute, because speakers move and change. A minute without contrast, or
    without a frame as loud as the speech of the whole recording, has the limit of the whole
    recording. If that has no contrast either, all is speech except zeros.

    levels: (T,) of `frame_levels`.
    """
    if not len(levels):
        return []
    overall_limit = _speech_levels(levels).limit
    if overall_limit is None:
        overall_limit = _SILENCE_DB + 1
    num_minutes = max(1, len(levels) // (60 * FRAMES_PER_SECOND))
    is_speech = list[NDArray[np.bool_]]()
    for levels_of_minute in np.array_split(levels, num_minutes):
        minute = _speech_levels(levels_of_minute)
        limit = minute.limit
        if limit is None or minute.highest < overall_limit:
            limit = overall_limit
        is_speech.append(levels_of_minute >= limit)
    return [
        (frames.start / FRAMES_PER_SECOND, frames.end / FRAMES_PER_SECOND)
        for frames in _true_ranges(np.concatenate(is_speech))
    ]


def join_regions(
    regions: Sequence[tuple[float, float]], length_s: float
) -> list[tuple[float, float]]:
    """Regions of speech, in order, in seconds: joined over short gaps, and with a margin.

    Clicks are left out. The margin is on both sides of a region.

    Args:
        length_s: the length of the recording, in which all results lie.
    """
    joined = list[tuple[float, float]]()
    for begin, end in regions:
        if not joined:
            joined.append((begin, end))
            continue
        previous_begin, previous_end = joined[-1]
        if begin - previous_end < _MIN_GAP_S:
            joined[-1] = (previous_begin, max(end, previous_end))
        else:
            joined.append((begin, end))
    with_margin = []
    for begin, end in joined:
        if end - begin >= _MIN_SPEECH_S:
            with_margin.append((max(0.0, begin - _MARGIN_S), min(length_s, end + _MARGIN_S)))
    return with_margin


def _load_silero() -> Callable[[Tensor], list[tuple[float, float]]]:
    """Silero VAD, as a function from a waveform (N,) of 16 kHz to its speech.

    The function returns begin and end of each region in seconds. Raises ConfigError if silero-vad
    is not installed.
    """
    num_threads = torch.get_num_threads()
    try:
        from silero_vad import get_speech_timestamps, load_silero_vad
    except ImportError as error:
        raise ConfigError(
            "--vad silero", "needs silero-vad", "pip install 'wenet_hs[vad]'"
        ) from error
    torch.set_num_threads(num_threads)  # the import sets it to 1
    model = load_silero_vad()

    def detect(wave_N: Tensor) -> list[tuple[float, float]]:
        spans = get_speech_timestamps(wave_N, model, sampling_rate=_SILERO_RATE)
        return [(span["start"] / _SILERO_RATE, span["end"] / _SILERO_RATE) for span in spans]

    return detect
