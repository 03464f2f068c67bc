# SPDX-License-Identifier: Apache-2.0
"""Recordings that are the same on every run: noise, and tones with one frequency per letter."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

RATE = 16000
LETTERS = "abcde"
LETTER_S = 0.16
_LOWEST_HZ = 300
_STEP_HZ = 400

Samples = NDArray[np.float64]


def write_noise(path: Path, seconds: float, rate: int = 8000, channels: int = 1) -> None:
    """Quiet noise; the length of the file name is the seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size = (round(seconds * rate), channels)
    samples = np.random.default_rng(len(path.name)).uniform(-0.1, 0.1, size)
    with path.open("wb") as file:
        soundfile.write(file, samples, rate, subtype="PCM_16", format=_format_of(path))


def _format_of(path: Path) -> str:
    """The format of libsndfile for a file name; a clip of Common Voice is a WAV here."""
    known = {".flac": "FLAC", ".ogg": "OGG"}
    return known.get(path.suffix.lower(), "WAV")


def tones_of(text: str, seed: int) -> Samples:
    """A tone per letter and a short pause per space, in noise."""
    generator = np.random.default_rng(seed)
    times = np.arange(round(LETTER_S * RATE)) / RATE
    parts = []
    for letter in text:
        is_letter = letter in LETTERS
        frequency = _LOWEST_HZ + _STEP_HZ * LETTERS.find(letter)
        volume = 0.3 if is_letter else 0.0
        window = np.hanning(len(times))
        parts.append(volume * window * np.sin(2 * np.pi * frequency * times))
    samples = np.concatenate(parts)
    return samples + 0.001 * generator.normal(size=len(samples))


def write_tones(path: Path, text: str, seed: int, rate: int = RATE) -> float:
    """Write such a clip; its length in seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = tones_of(text, seed)
    soundfile.write(path, samples[:: RATE // rate], rate, subtype="PCM_16")
    return len(samples) / RATE


def write_recording(
    path: Path,
    texts: Sequence[str],
    pause_s: float = 0.8,
    num_samples: int | None = None,
) -> None:
    """A longer recording: the texts with pauses before, between and after them.

    With `num_samples` it is cut there, so that its end may be inside of a text and of a
    millisecond.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    quiet = np.random.default_rng(1).normal(size=round(pause_s * RATE)) * 0.0005
    parts = [quiet]
    for number, text in enumerate(texts):
        parts.append(tones_of(text, seed=100 + number))
        parts.append(quiet)
    samples = np.concatenate(parts)[:num_samples]
    soundfile.write(path, samples, RATE, subtype="PCM_16")


def read_raw_samples(path: Path) -> bytes:
    """The samples of a WAV as a microphone's pipe has them: 16 bits, mono, without a header."""
    samples, _ = soundfile.read(path, dtype="int16")
    return bytes(samples.tobytes())
