# SPDX-License-Identifier: Apache-2.0
"""Files that the example examples/runtime/decode_wav.py cannot read."""

import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from model_folders import noise

pytest.importorskip("onnxruntime")
SCRIPT = Path(__file__).parents[2] / "examples/runtime/decode_wav.py"
CONVERT = "convert it to 16000 Hz, 16 bits, 1 channel: sox IN -r 16000 -b 16 -c 1 OUT.wav"
ReadWav = Callable[[str], np.ndarray]


@pytest.fixture(scope="module")
def read_wav() -> ReadWav:
    read: ReadWav = runpy.run_path(str(SCRIPT))["read_wav"]
    return read


def line_of(read_wav: ReadWav, path: Path) -> str:
    """The line with which the program exits."""
    with pytest.raises(SystemExit) as caught:
        read_wav(str(path))
    return str(caught.value)


def test_files_that_are_no_wav_of_integers(read_wav: ReadWav, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", noise(0.1), 16000)
    soundfile.write(tmp_path / "float.wav", noise(0.1), 16000, subtype="FLOAT")
    (tmp_path / "empty.wav").write_bytes(b"")
    for name in ("a.flac", "float.wav", "empty.wav"):
        path = tmp_path / name
        expected = f"{path}: not a WAV with integer samples; {CONVERT}"
        assert line_of(read_wav, path) == expected
    missing = tmp_path / "none.wav"
    assert line_of(read_wav, missing) == f"{missing}: No such file or directory"


def test_a_wav_of_another_kind(read_wav: ReadWav, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    stereo = np.stack([noise(0.1, rate=48000), noise(0.1, rate=48000)], axis=1)
    soundfile.write(path, stereo, 48000, subtype="PCM_24")
    assert line_of(read_wav, path) == f"{path}: 48000 Hz, 24 bits, 2 channels; {CONVERT}"


def test_a_converted_file_is_read(read_wav: ReadWav, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, noise(0.1), 16000, subtype="PCM_16")
    np.testing.assert_allclose(read_wav(str(path)), noise(0.1), atol=1 / 32768)
