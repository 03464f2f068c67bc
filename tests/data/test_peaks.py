# SPDX-License-Identifier: Apache-2.0
"""Peaks of a waveform: their values, and that they are computed once per state of the file."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from wenet_hs.data import audio, peaks
from wenet_hs.data.peaks import compute_peaks, read_peaks
from wenet_hs.tree.errors import DataError


def write(path: Path, seconds: float, rate: int = 8000) -> Path:
    """Silence, with a click of half of full scale at every whole second, in the second channel."""
    samples = np.zeros((round(seconds * rate), 2), np.float32)
    samples[::rate, 1] = -0.5
    soundfile.write(path, samples, rate, subtype="FLOAT")
    return path


@pytest.mark.parametrize("rate", [8000, 11025, 44100])
def test_a_peak_is_where_the_sound_is_also_after_many_blocks(tmp_path: Path, rate: int) -> None:
    found = compute_peaks(write(tmp_path / "a.wav", 130.25, rate))
    assert len(found) == 13_025
    assert np.flatnonzero(found).tolist() == [100 * second for second in range(131)]
    assert {*found[found > 0]} == {128}


def test_samples_that_are_not_numbers_or_too_loud_do_no_harm(tmp_path: Path) -> None:
    samples = np.array([0.0, np.nan, 7.0, np.inf] * 400, np.float32)
    soundfile.write(tmp_path / "a.wav", samples, 8000, subtype="FLOAT")
    assert {*compute_peaks(tmp_path / "a.wav")} == {255}


def test_peaks_are_computed_once_and_again_if_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder, calls = write(tmp_path / "a.wav", 2.0), tmp_path / "kept", list[Path]()

    def compute(source: Path) -> np.typing.NDArray[np.uint8]:
        calls.append(source)
        return compute_peaks(source)

    monkeypatch.setattr(peaks, "compute_peaks", compute)
    first = read_peaks(path, folder)
    assert read_peaks(path, folder) == first and len(first) == 200 and len(calls) == 1
    write(path, 3.0)
    assert len(read_peaks(path, folder)) == 300 and len(calls) == 2
    assert len([*folder.iterdir()]) == 1  # the outdated ones are gone


def test_what_is_no_audio_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_text("no audio")
    with pytest.raises(DataError, match=r"a\.wav: not audio that can be read"):
        read_peaks(tmp_path / "a.wav", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_audio_that_is_too_long_has_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audio, "MAX_HOURS", 0.001)
    with pytest.raises(audio.TooLongError, match="more than 0.001; divide it into shorter files"):
        audio.read_duration(write(tmp_path / "a.wav", 5.0))
