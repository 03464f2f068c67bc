# SPDX-License-Identifier: Apache-2.0
"""Cut points of long audio: in the longest pause of the second half, in speech only if there is no pause."""

import numpy as np
import pytest
from numpy.typing import NDArray

from wenet_hs.decode.segments import FRAMES_PER_SECOND, cut_at_pauses, frame_levels

RATE = 8000


def speech(
    seconds: float, pauses: list[tuple[float, float]], noise: float = 1e-3, seed: int = 0
) -> NDArray[np.float32]:
    """Noise with the rhythm of syllables, and silence in the pauses [begin, end)."""
    rng = np.random.default_rng(seed)
    times = np.arange(round(seconds * RATE)) / RATE
    loudness = 0.15 + 0.1 * np.sin(2 * np.pi * 4 * times)
    for begin, end in pauses:
        loudness[(times >= begin) & (times < end)] = 0
    return ((loudness + noise) * rng.normal(size=len(times))).astype(np.float32)


def cuts(samples: NDArray[np.float32], max_segment_s: float) -> list[float]:
    return cut_at_pauses(frame_levels(samples, RATE), max_segment_s)


def test_the_longest_pause_of_the_second_half_then_the_last_of_the_first_then_the_quietest_point() -> None:
    pauses = [(2.0, 3.5), (6.0, 6.3), (7.0, 7.6), (9.0, 9.3), (12.0, 12.25), (14.0, 14.25)]
    found = cuts(speech(22.0, pauses), 10.0)
    assert found[0] == pytest.approx(7.3, abs=0.03)  # 1.5 s at 2.75 are longer, but would leave a short segment
    assert found[1] == pytest.approx(14.125, abs=0.03)
    assert len(found) == 2
    early = cuts(speech(14.0, [(1.5, 1.8), (3.0, 3.3)]), 10.0)
    assert early == [pytest.approx(3.15, abs=0.03), *early[1:]]
    assert len(early) == 2  # the rest is longer than 10 s
    softer = speech(12.0, [])
    softer[round(8.5 * RATE) : round(8.7 * RATE)] *= 0.5
    (quietest,) = cuts(softer, 10.0)
    assert 8.5 < quietest < 8.7
    assert cuts(speech(10.0, pauses), 10.0) == []


def test_no_cut_in_speech_if_there_is_a_pause() -> None:
    rng = np.random.default_rng(1)
    for seed, noise in enumerate((0.0, 1e-3, 1e-3, 0.02, 0.02)):
        pauses, time = [], 0.0
        while time < 40:
            time += rng.uniform(0.5, 9)
            pauses.append((time, time + rng.uniform(0.24, 0.9)))
            time = pauses[-1][1]
        begin = 0.0
        bounds = [*cuts(speech(40.0, pauses, noise, seed), 6.0), 40.0]
        for cut in bounds:
            assert 0.99 <= cut - begin <= 6.001
            in_pause = any(start <= cut <= end for start, end in pauses)
            last = min(begin + 6, 39)
            in_reach = [min(end, last) - max(start, begin + 1) for start, end in pauses]
            assert cut == 40.0 or in_pause or max(in_reach) < 0.23, f"{cut} of {pauses}"
            begin = cut


def test_audio_without_speech_or_without_pauses_is_cut_too() -> None:
    for samples in (np.zeros(25 * RATE, np.float32), speech(25.0, [], seed=3), speech(25.0, [(0, 25)])):
        bounds = [0.0, *cuts(samples, 10.0), 25.0]
        assert all(1 <= end - begin <= 10 for begin, end in zip(bounds[:-1], bounds[1:], strict=True))


def test_levels_per_10_ms_at_every_sample_rate() -> None:
    for rate in (8000, 11025, 44100):
        samples = np.full(10 * rate + 7, 0.1, np.float32)
        levels = frame_levels(samples, rate)
        assert len(levels) == 10 * FRAMES_PER_SECOND
        assert levels == pytest.approx(np.full(len(levels), -20.0), abs=1e-3)
    assert len(frame_levels(np.zeros(3, np.float32), RATE)) == 0
