# SPDX-License-Identifier: Apache-2.0
"""Pieces of a data list or a recording: clips cut at pauses, speech between pauses, batches of
similar length.

Dimension key: N samples, T frames of 10 ms.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
_BLOCK_S = 60.0  # seconds of a long clip that are read at a time
_SILERO_RATE = 16000
_MIN_GAP_S = 0.5  # between two segments of speech: shorter pauses are within an utterance
_MARGIN_S = 0.15  # before and after speech: soft consonants and the decay of the last sound
_MIN_SPEECH_S = 0.1  # a click is shorter
_PAUSE = 20  # frames: the closure of a stop lasts a third of that
_MIN_SEGMENT = 100  # frames
_MAX_OFFSET = 1e-3  # -60 dB
_SILENCE_DB = -100.0
_BELOW_PEAK_DB = 35.0  # clean speech: what is this far below the loudest frames is not speech
_SHARE_OF_RANGE = 0.25  # noisy speech: a pause is as loud as the noise, near the lowest level
_MIN_RANGE_DB = (
    12.0  # below this range there is only noise, or only speech, and no pause can be found
)
_SMOOTH = 5  # frames over which the highest level is measured: a click is not speech

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


def cut_pieces(row: int, duration_s: float, cuts: Sequence[float]) -> list[Piece]:
    """The segments between the cuts (seconds, rising) of a clip."""
    bounds, ends = [0.0, *cuts, duration_s], [*cuts, None]
    return [
        Piece(row, bounds[number + 1] - bounds[number], bounds[number], end)
        for number, end in enumerate(ends)
    ]


def plan_batches(
    pieces: Iterable[Piece],
    batch_size: int,
    group_of: Callable[[Piece], Hashable] = lambda piece: None,
    *,
    max_batch_s: float = math.inf,
) -> list[list[Piece]]:
    """Longest first, at most `batch_size` pieces and MAX_BATCH_S seconds with padding; equal ones
    keep their order.

    Args:
        group_of: pieces of different groups are in different batches.
        max_batch_s: of the encoder, instead of MAX_BATCH_S if it is less.
    """
    max_batch_s = min(max_batch_s, MAX_BATCH_S)
    batches: list[list[Piece]] = []
    last_of: dict[Hashable, list[Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.duration_s, reverse=True):
        last = last_of.get(group_of(piece), [])
        if last and len(last) < batch_size and (len(last) + 1) * last[0].duration_s <= max_batch_s:
            last.append(piece)
        else:
            last_of[group_of(piece)] = [piece]
            batches.append(last_of[group_of(piece)])
    return batches


@contextmanager
def out_of_memory_as_error(names: Sequence[str], longest_s: float, remedy: str) -> Iterator[None]:
    """Raise ConfigError with the names of the clips of the batch if the block runs out of memory.

    `longest_s`: seconds of the longest clip, to which the others are padded.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        what = f"out of memory with a batch of {len(names)}, the longest of {longest_s:.1f} s ({list_names(names)})"
        raise ConfigError(what, to_do=remedy) from error


# ---- cut points


def check_max_segment(seconds: float) -> None:
    """Raise ConfigError unless it is 0 (never cut) or at least MIN_SEGMENT_S."""
    if seconds != 0 and not seconds >= MIN_SEGMENT_S:
        raise ConfigError(
            f"--max_segment_s {seconds:g}",
            f"must be at least {MIN_SEGMENT_S:g}, or 0 to cut nothing",
        )


def limit_segment(max_segment_s: float, longest_s: float) -> float:
    """`max_segment_s` for an encoder with this `longest_s`; 0 stays 0."""
    return min(max_segment_s, max(longest_s, MIN_SEGMENT_S))


def find_cuts(utterance: Utterance, max_segment_s: float) -> tuple[float, list[float]]:
    """The length of an utterance's audio and where to cut it, in seconds.

    The audio is read in blocks.

    Raises: DataError if the audio cannot be read, or is not as long as stated in the list.
    """
    levels, read_s = [], 0.0
    for samples, rate in _read_blocks(utterance, segment_duration(utterance)):
        levels.append(frame_levels(samples, rate))
        read_s += len(samples) / rate
    reason = (
        None
        if utterance.duration is None
        else length_fault(read_s, utterance.duration, "the data list")
    )
    if reason is not None:
        raise DataError(utterance.wav, reason, "restore the file, or prepare the data again")
    return read_s, cut_at_pauses(np.concatenate(levels), max_segment_s)


def _read_blocks(utterance: Utterance, length_s: float) -> Iterator[tuple[Samples, int]]:
    """The samples (N,) of an utterance of `length_s` seconds in blocks, with their rate."""
    start = utterance.start or 0.0
    num_blocks = max(
        1, int(length_s / _BLOCK_S)
    )  # the last one is up to two blocks long, and never empty
    for number in range(num_blocks):
        end = utterance.end if number == num_blocks - 1 else start + (number + 1) * _BLOCK_S
        samples, rate, _ = read_segment(
            replace(utterance, start=start + number * _BLOCK_S, end=end)
        )
        yield samples, rate


def frame_levels(samples: NDArray[np.float32], rate: int) -> Levels:
    """The level in dB per 10 ms, without a constant offset. samples: (N,) in [-1, 1].

    Returns: (T,), as close to the length as possible.
    """
    num_frames = round(len(samples) * FRAMES_PER_SECOND / rate)
    if num_frames == 0:
        return np.empty(0)
    bounds_T = (
        np.round(np.arange(num_frames + 1) * (rate / FRAMES_PER_SECOND))
        .astype(int)
        .clip(max=len(samples))
    )
    if abs(offset := np.median(samples[::17])) > _MAX_OFFSET:  # not the mean: pauses may be zeros
        samples = samples - offset
    sums_T = np.add.reduceat(np.square(samples[: bounds_T[-1]], dtype=np.float64), bounds_T[:-1])
    lowest = 10 ** (_SILENCE_DB / 10)
    return np.asarray(10 * np.log10(np.maximum(sums_T / np.diff(bounds_T), lowest)), np.float64)


def cut_at_pauses(levels: Levels, max_segment_s: float) -> list[float]:
    """Where to cut, in seconds, so that no segment is longer than `max_segment_s` or shorter than a
    second.

    A cut is in the middle of the longest pause of at least 0.2 s in the second half of what a
    segment can hold. If there is none, it is in the last pause of the first half, or else where 0.2
    s of the second half are quietest.
    """
    max_frames = int(max_segment_s * FRAMES_PER_SECOND)
    cuts, begin = [], 0
    while len(levels) - begin > max_frames:
        first, last = begin + _MIN_SEGMENT, min(begin + max_frames, len(levels) - _MIN_SEGMENT)
        half = max(first, (begin + last) // 2)
        pauses = _pauses(levels, begin, first, last)
        late = [(end - start, end + start) for start, end in pauses if (start + end) // 2 >= half]
        if late:
            begin = max(late)[1] // 2
        elif pauses:
            begin = sum(pauses[-1]) // 2
        else:
            begin = half + int(_smoothed(levels[half:last], _PAUSE).argmin()) + _PAUSE // 2
        cuts.append(begin / FRAMES_PER_SECOND)
    return cuts


def _pauses(levels: Levels, begin: int, first: int, last: int) -> list[tuple[int, int]]:
    """Ranges [start, end) of at least 0.2 s between `first` and `last` without speech."""
    _, limit = _speech_level(levels[begin:last])
    if limit is None:
        return []
    runs = _runs(levels[first:last] < limit)
    return [(first + start, first + end) for start, end in runs if end - start >= _PAUSE]


def _speech_level(levels: Levels) -> tuple[float, float | None]:
    """The highest level, and the one below which a frame is not speech; None if there is no
    contrast.
    """
    highest = float(np.percentile(_smoothed(levels, _SMOOTH), 99))
    lowest = float(_smoothed(levels, _PAUSE).min())
    if highest - lowest < _MIN_RANGE_DB:
        return highest, None
    return highest, max(highest - _BELOW_PEAK_DB, lowest + _SHARE_OF_RANGE * (highest - lowest))


def _runs(is_inside_T: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The ranges [start, end) of frames that are True."""
    edges = np.flatnonzero(np.diff(is_inside_T.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
    return [(int(start), int(end)) for start, end in edges]


def _smoothed(levels: Levels, size: int) -> Levels:
    """The level of the mean power of each `size` successive frames: (T,) → (T - size + 1,), at
    least one.
    """
    power_T = 10 ** (levels / 10)
    size = min(size, len(power_T))
    return np.asarray(
        10 * np.log10(np.convolve(power_T, np.ones(size) / size, mode="valid")), np.float64
    )


def _cut_region(begin: float, end: float, cuts: Sequence[float]) -> list[Piece]:
    """The segments of a recording from `begin` to `end` in seconds; `cuts` are seconds from
    `begin`.
    """
    bounds = [begin, *(begin + cut for cut in cuts), end]
    return [Piece(0, last - first, first, last) for first, last in pairwise(bounds)]


def cut_span(path: str | Path, begin: float, end: float, max_segment_s: float) -> list[Piece]:
    """A segment of a recording, from `begin` to `end` in seconds, cut at pauses if it is longer (0:
    never).
    """
    cuts = list[float]()
    if 0 < max_segment_s < end - begin:
        _, cuts = find_cuts(
            Utterance(key="", wav=str(path), txt="", start=begin, end=end), max_segment_s
        )
    return _cut_region(begin, end, cuts)


def cut_waveform(waveform_N: Tensor, rate: int, max_segment_s: float) -> list[Piece]:
    """A waveform cut at pauses if it is longer than `max_segment_s` (0: never); nothing if no
    speech is found.
    """
    duration_s, levels_T = len(waveform_N) / rate, frame_levels(waveform_N.numpy(), rate)
    if is_silent(waveform_N) or not join_regions(speech_regions(levels_T), duration_s):
        return []
    return cut_pieces(
        0,
        duration_s,
        cut_at_pauses(levels_T, max_segment_s) if 0 < max_segment_s < duration_s else [],
    )


# ---- speech of a recording


def find_speech(
    path: str | Path, max_segment_s: float, vad: str = "energy"
) -> tuple[float, list[Piece]]:
    """The length of a recording in seconds, and its speech in order, without overlap.

    The audio is read in blocks.

    Pauses of 0.5 s or more separate two pieces. A piece longer than `max_segment_s` is cut (0:
    never).

    Args:
        vad: one of VADS.
    Raises: DataError if the audio cannot be read; ConfigError if silero-vad is not installed.
    """
    detect = _load_silero() if vad == "silero" else None
    levels, regions, read_s, is_all_silent = list[Levels](), list[tuple[float, float]](), 0.0, True
    for samples, rate in _read_blocks(
        Utterance(key="", wav=str(path), txt=""), read_duration(path)
    ):
        levels.append(frame_levels(samples, rate))
        is_all_silent &= is_silent(torch.from_numpy(samples))
        if detect is not None:
            wave_N = resample(torch.from_numpy(samples), rate, _SILERO_RATE)
            regions += [(read_s + begin, read_s + end) for begin, end in detect(wave_N)]
        read_s += len(samples) / rate
    levels_T = np.concatenate(levels)
    if detect is None and not is_all_silent:  # a constant offset or dither has a level too
        regions = speech_regions(levels_T)
    pieces = list[Piece]()
    for begin, end in join_regions(regions, read_s):
        of_region = levels_T[round(begin * FRAMES_PER_SECOND) : round(end * FRAMES_PER_SECOND)]
        cuts = cut_at_pauses(of_region, max_segment_s) if 0 < max_segment_s < end - begin else []
        pieces += _cut_region(begin, end, cuts)
    return read_s, pieces


def speech_regions(levels: Levels) -> list[tuple[float, float]]:
    """Begin and end in seconds of each range whose level is that of speech; levels (T,) of
    `frame_levels`.

    The limit is found per minute, because speakers move and change. A minute without contrast, or
    without a frame as loud as the speech of the whole recording, has the limit of the whole
    recording.
    """
    if not len(levels):
        return []
    overall = _speech_level(levels)[1]
    limit_of_all = (
        _SILENCE_DB + 1 if overall is None else overall
    )  # without contrast all is speech, except zeros
    is_speech = list[NDArray[np.bool_]]()
    for of_minute in np.array_split(levels, max(1, len(levels) // (60 * FRAMES_PER_SECOND))):
        highest, limit = _speech_level(of_minute)
        is_speech.append(
            of_minute >= (limit_of_all if limit is None or highest < limit_of_all else limit)
        )
    return [
        (begin / FRAMES_PER_SECOND, end / FRAMES_PER_SECOND)
        for begin, end in _runs(np.concatenate(is_speech))
    ]


def join_regions(
    regions: Sequence[tuple[float, float]], length_s: float
) -> list[tuple[float, float]]:
    """Regions of speech in seconds, in order: joined over short gaps, without clicks, with a margin
    on both sides.

    Args:
        length_s: the length of the recording, in which all results lie.
    """
    joined = list[tuple[float, float]]()
    for begin, end in regions:
        if joined and begin - joined[-1][1] < _MIN_GAP_S:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    long = [(begin, end) for begin, end in joined if end - begin >= _MIN_SPEECH_S]
    return [(max(0.0, begin - _MARGIN_S), min(length_s, end + _MARGIN_S)) for begin, end in long]


def _load_silero() -> Callable[[Tensor], list[tuple[float, float]]]:
    """Silero VAD: a function from a waveform (N,) of 16 kHz to begin and end in seconds of its
    speech.
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
        found = get_speech_timestamps(wave_N, model, sampling_rate=_SILERO_RATE)
        return [(one["start"] / _SILERO_RATE, one["end"] / _SILERO_RATE) for one in found]

    return detect
