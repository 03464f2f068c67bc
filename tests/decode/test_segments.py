# SPDX-License-Identifier: Apache-2.0
"""Cut points of long audio: in the longest pause of the second half, in speech only if there is no
pause. Speech of a recording: between pauses of half a second.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from wenet_hs.corpus.espeak import ENGINE_RATE, speak
from wenet_hs.decode import segments
from wenet_hs.decode.segments import (
    FRAMES_PER_SECOND,
    cut_at_pauses,
    find_speech,
    frame_levels,
    join_regions,
    speech_regions,
)
from wenet_hs.tree.errors import ConfigError

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


def test_the_longest_pause_of_the_second_half_then_the_last_of_the_first_then_the_quietest_point() -> (
    None
):
    pauses = [(2.0, 3.5), (6.0, 6.3), (7.0, 7.6), (9.0, 9.3), (12.0, 12.25), (14.0, 14.25)]
    found = cuts(speech(22.0, pauses), 10.0)
    assert found[0] == pytest.approx(
        7.3, abs=0.03
    )  # 1.5 s at 2.75 are longer, but would leave a short segment
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
    for samples in (
        np.zeros(25 * RATE, np.float32),
        speech(25.0, [], seed=3),
        speech(25.0, [(0, 25)]),
    ):
        bounds = [0.0, *cuts(samples, 10.0), 25.0]
        assert all(
            1 <= end - begin <= 10 for begin, end in zip(bounds[:-1], bounds[1:], strict=True)
        )


def test_levels_per_10_ms_at_every_sample_rate() -> None:
    for rate in (8000, 11025, 44100):
        samples = np.resize(
            np.float32(0.02**0.5) * np.array([0, 1, 0, -1], np.float32), 10 * rate + 7
        )
        levels = frame_levels(
            samples + np.float32(0.2), rate
        )  # the offset of an amplifier does not count
        assert len(levels) == 10 * FRAMES_PER_SECOND
        assert levels == pytest.approx(np.full(len(levels), -20.0), abs=0.05)
    assert len(frame_levels(np.zeros(3, np.float32), RATE)) == 0


# ---- speech of a recording


def test_speech_is_found_between_pauses_of_half_a_second(tmp_path: Path) -> None:
    quiet = [
        (0.0, 1.0),
        (3.0, 3.3),
        (5.0, 5.8),
        (9.0, 12.0),
        (12.05, 15.0),
    ]  # 50 ms at 12 s: a click
    soundfile.write(tmp_path / "a.wav", speech(15.0, quiet), RATE)
    length_s, pieces = find_speech(tmp_path / "a.wav", 60.0)
    assert length_s == 15.0
    expected = [0.85, 5.15, 5.65, 9.15]
    assert [second for one in pieces for second in (one.begin_s, one.end_s)] == pytest.approx(
        expected, abs=0.03
    )
    _, cut = find_speech(tmp_path / "a.wav", 4.0)
    assert [one.duration_s <= 4.0 for one in cut] == [True] * 3
    assert (cut[0].begin_s, cut[0].end_s, cut[1].end_s) == pytest.approx(
        (0.85, 3.15, 5.15), abs=0.03
    )


def test_blocks_change_nothing_and_each_minute_has_its_own_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud, soft = (
        speech(60.0, [(20, 30), (59, 60)]),
        0.02 * speech(60.0, [(0, 1), (30, 35)], noise=1e-3),
    )
    soundfile.write(tmp_path / "a.wav", np.concatenate([loud, soft]), RATE, subtype="FLOAT")
    length_s, pieces = find_speech(tmp_path / "a.wav", 0)
    bounds = [second for one in pieces for second in (one.begin_s, one.end_s)]
    assert bounds == pytest.approx([0, 20.15, 29.85, 59.15, 60.85, 90.15, 94.85, 120], abs=0.03)
    monkeypatch.setattr(segments, "_BLOCK_S", 7.0)
    assert find_speech(tmp_path / "a.wav", 0) == (length_s, pieces)


def test_silence_and_continuous_speech() -> None:
    assert (
        speech_regions(np.empty(0))
        == speech_regions(frame_levels(np.zeros(5 * RATE, np.float32), RATE))
        == []
    )
    assert speech_regions(frame_levels(speech(5.0, []), RATE)) == [(0.0, 5.0)]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_regions_are_in_order_inside_of_the_recording(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bounds = rng.uniform(0.01, 1.5, 2 * rng.integers(0, 20)).cumsum().reshape(-1, 2)
    regions = [(float(begin), float(end)) for begin, end in bounds]
    length_s = float(bounds.max(initial=0)) + rng.uniform(0, 0.3)
    joined = join_regions(regions, length_s)
    flat = [0.0, *(second for region in joined for second in region), length_s]
    assert flat == sorted(flat)
    for begin, end in regions:
        assert end - begin < 0.1 or any(first <= begin and end <= last for first, last in joined)


def test_silero_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "silero_vad", None)
    with pytest.raises(
        ConfigError, match=r"--vad silero: needs silero-vad; pip install 'wenet_hs\[vad\]'"
    ):
        find_speech(tmp_path / "a.wav", 60.0, "silero")


@pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning"
)  # silero-vad loads a TorchScript model
def test_silero_finds_speech_but_no_music(tmp_path: Path) -> None:
    spoken = speak("Hola, ¿qué tal estás?", voice="es")
    seconds = np.arange(2 * ENGINE_RATE, dtype=np.float32) / ENGINE_RATE
    chord = np.sin(2 * np.pi * seconds[:, None] * np.array([220, 277, 330], np.float32)).sum(1)
    gap = np.zeros(ENGINE_RATE, np.float32)
    parts = [gap, 0.5 * spoken / np.abs(spoken).max(), gap, 0.1 * chord, gap]
    soundfile.write(tmp_path / "a.wav", np.concatenate(parts), ENGINE_RATE)
    assert len(find_speech(tmp_path / "a.wav", 60.0)[1]) == 2
    _, pieces = find_speech(tmp_path / "a.wav", 60.0, "silero")
    end = 1 + len(spoken) / ENGINE_RATE
    assert [(one.begin_s, one.end_s) for one in pieces] == [
        pytest.approx((0.85, end + 0.15), abs=0.15)
    ]
