# SPDX-License-Identifier: Apache-2.0
"""Where to cut long audio: in pauses, which the energy shows.   Dimension key: N samples, T frames of 10 ms."""

import numpy as np
from numpy.typing import NDArray

from wenet_hs.errors import ConfigError

DEFAULT_MAX_SEGMENT_S = 60.0
"""A clip longer than this is cut before it is decoded."""
MIN_SEGMENT_S = 4.0
"""The least that `max_segment_s` can be: a segment has at least a second on both sides of a cut."""
FRAMES_A_SECOND = 100
_PAUSE = 20  # frames: the closure of a stop lasts a third of that
_EDGE = 100  # frames: no segment is shorter
_SILENCE_DB = -100.0
_BELOW_PEAK_DB = 35.0  # clean speech: what is so far below the loudest is not speech
_SHARE_OF_RANGE = 0.25  # noisy speech: a pause is as loud as the noise, near the floor
_CONTRAST_DB = 12.0  # under this range there is only noise, or only speech, and no pause can be told
_SMOOTH = 5  # frames over which the loudest is measured: a click is not speech

Levels = NDArray[np.float64]


def check_max_segment(seconds: float) -> None:
    """Raise ConfigError unless it is 0 (never cut) or at least MIN_SEGMENT_S."""
    if seconds != 0 and not seconds >= MIN_SEGMENT_S:
        raise ConfigError(f"--max_segment_s {seconds:g}: must be at least {MIN_SEGMENT_S:g}, or 0 to cut nothing")


def frame_levels(samples: NDArray[np.float32], rate: int) -> Levels:
    """The level in dB of each 10 ms. samples: (N,) in [-1, 1]. Returns: (T,), T as close to the length as can be."""
    num_frames = round(len(samples) * FRAMES_A_SECOND / rate)
    if num_frames == 0:
        return np.empty(0)
    bounds_T = np.round(np.arange(num_frames + 1) * (rate / FRAMES_A_SECOND)).astype(int).clip(max=len(samples))
    sums_T = np.add.reduceat(np.square(samples[: bounds_T[-1]], dtype=np.float64), bounds_T[:-1])
    floor = 10 ** (_SILENCE_DB / 10)
    return np.asarray(10 * np.log10(np.maximum(sums_T / np.diff(bounds_T), floor)), np.float64)


def cut_at_pauses(levels: Levels, max_segment_s: float) -> list[float]:
    """Where to cut, in seconds, so that no segment is longer than `max_segment_s` or shorter than a second.

    A cut lies in the middle of the longest pause of at least 0.2 s in the second half of what a segment can hold; if
    there is none, in the last one of the first half; if there is none, where 0.2 s of the second half are quietest.
    """
    most = int(max_segment_s * FRAMES_A_SECOND)
    cuts, begin = [], 0
    while len(levels) - begin > most:
        first, last = begin + _EDGE, min(begin + most, len(levels) - _EDGE)
        begin = _best_cut(levels, begin, first, last)
        cuts.append(begin / FRAMES_A_SECOND)
    return cuts


def _best_cut(levels: Levels, begin: int, first: int, last: int) -> int:
    """The frame from `first` to `last` before which to cut."""
    half = max(first, (begin + last) // 2)
    pauses = _pauses(levels, begin, first, last)
    late = [(end - start, end + start) for start, end in pauses if (start + end) // 2 >= half]
    if late:
        return max(late)[1] // 2
    if pauses:
        return sum(pauses[-1]) // 2
    return half + int(_smoothed(levels[half:last], _PAUSE).argmin()) + _PAUSE // 2


def _pauses(levels: Levels, begin: int, first: int, last: int) -> list[tuple[int, int]]:
    """Stretches [start, end) of at least 0.2 s between `first` and `last` without speech."""
    loudest = float(np.percentile(_smoothed(levels[begin:last], _SMOOTH), 99))
    floor = float(_smoothed(levels[begin:last], _PAUSE).min())
    if loudest - floor < _CONTRAST_DB:
        return []
    limit = max(loudest - _BELOW_PEAK_DB, floor + _SHARE_OF_RANGE * (loudest - floor))
    is_quiet_T = np.concatenate([[False], levels[first:last] < limit, [False]])
    edges = np.flatnonzero(np.diff(is_quiet_T.astype(np.int8))).reshape(-1, 2) + first
    return [(int(start), int(end)) for start, end in edges if end - start >= _PAUSE]


def _smoothed(levels: Levels, size: int) -> Levels:
    """The level of the mean power of each `size` successive frames: (T,) → (T - size + 1,), at least one."""
    power_T = 10 ** (levels / 10)
    size = min(size, len(power_T))
    return np.asarray(10 * np.log10(np.convolve(power_T, np.ones(size) / size, mode="valid")), np.float64)
