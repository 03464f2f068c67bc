# SPDX-License-Identifier: Apache-2.0
"""Noise and rooms, put over the speech in training.   Dimension key: N samples.

What is random comes from the caller's generators; recordings are read when they are drawn.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wenet_hs.config.dataset import DatasetConf, NoiseConf, ReverbConf
from wenet_hs.data.audio import is_silent, probe_audio, read_audio
from wenet_hs.errors import DataError
from wenet_hs.files import read_lines


@dataclass(frozen=True, slots=True)
class Recordings:
    """The recordings of a list."""

    list_path: str
    places: tuple[tuple[int, str], ...]
    """Line in the list and path or URL of each."""

    def draw(self, generator: torch.Generator) -> tuple[str, str]:
        """Where a recording is, and how to name it in a message."""
        line, wav = self.places[int(torch.randint(len(self.places), (), generator=generator))]
        return wav, f"{self.list_path}:{line}: {wav}"


def read_recordings(path: str) -> Recordings:
    """The recordings of a list, one a line, relative ones to the working folder. Raises DataError if there are none."""
    lines = enumerate(read_lines(path), start=1)
    places = tuple((number, line.strip()) for number, line in lines if line.strip())
    if not places:
        raise DataError(f"{path}: no recordings in it; write the path of one a line")
    for number, wav in places:
        if wav.startswith("{"):
            raise DataError(f"{path}:{number}: not the path of a recording; write the path alone, without JSON")
    return Recordings(path, places)


class Distortions:
    """What `noise_conf` and `reverb_conf` ask for."""

    def __init__(self, conf: DatasetConf) -> None:
        """Read the lists. Raises DataError where one is missing or empty."""
        self._rate = conf.resample_conf.resample_rate
        self._reverb = _Choice.of(conf.reverb_conf)
        self._noise = _Choice.of(conf.noise_conf)
        self._snr_db = conf.noise_conf.snr_db if conf.noise_conf else (0.0, 0.0)

    def apply(self, wave: Tensor, generator: Callable[[str], torch.Generator]) -> Tensor:
        """The speech in a room, then with noise, each with its own probability.

        Args:
            wave: (N,) float32; not changed.
            generator: of the draws for "reverb" and for "noise".

        Returns: (N,). Raises: DataError naming the recording, its list and its line: unreadable, or silent.
        """
        if self._reverb is not None:
            wave = self._in_a_room(wave, self._reverb, generator("reverb"))
        if self._noise is not None:
            wave = self._with_noise(wave, self._noise, generator("noise"))
        return wave

    def _in_a_room(self, wave: Tensor, choice: "_Choice", generator: torch.Generator) -> Tensor:
        if not choice.falls(generator):
            return wave
        wav, name = choice.recordings.draw(generator)
        response = _read(wav, name, self._rate)
        if is_silent(response):
            raise DataError(f"{name}: silent, no impulse response; take it out of the list")
        return reverberate(wave, response)

    def _with_noise(self, wave: Tensor, choice: "_Choice", generator: torch.Generator) -> Tensor:
        if not choice.falls(generator):
            return wave
        wav, name = choice.recordings.draw(generator)
        snr_db = _uniform(self._snr_db, generator)
        noise = self._stretch(wav, name, len(wave), generator)
        return add_noise(wave, noise, snr_db)

    def _stretch(self, wav: str, name: str, num_samples: int, generator: torch.Generator) -> Tensor:
        """So many samples of a recording from a random place on; a shorter one is repeated. Never silent."""
        duration_s = _duration(wav, name)
        place = float(torch.rand((), generator=generator, dtype=torch.float64))
        spare_s = duration_s - num_samples / self._rate
        if spare_s > 0:  # a long recording is not read as a whole
            start = place * spare_s
            end = min(duration_s, start + num_samples / self._rate + 0.01)  # rates round
            noise = _read(wav, name, self._rate, start=start, end=end)
            if not is_silent(noise):
                return _repeated(noise, 0, num_samples)
        noise = _read(wav, name, self._rate)
        if is_silent(noise):
            raise DataError(f"{name}: silent, so no SNR can be set; take it out of the list")
        loudest = int(noise.abs().argmax())  # a pause was drawn: begin where there is sound
        return _repeated(noise, loudest if spare_s > 0 else int(place * len(noise)), num_samples)


@dataclass(frozen=True, slots=True)
class _Choice:
    recordings: Recordings
    prob: float

    @classmethod
    def of(cls, conf: NoiseConf | ReverbConf | None) -> "_Choice | None":
        return None if conf is None else cls(read_recordings(conf.list), conf.prob)

    def falls(self, generator: torch.Generator) -> bool:
        return bool(torch.rand((), generator=generator, dtype=torch.float64) < self.prob)


def add_noise(speech: Tensor, noise: Tensor, snr_db: float) -> Tensor:
    """The sum of both, the noise scaled to 10 log10(power of speech / power of noise) = snr_db; silence stays silence.

    speech, noise: (N,); noise is not silent. Nothing is clipped: features are computed from floats.
    """
    powers = [float(wave.double().square().mean()) for wave in (speech, noise)]
    gain = math.sqrt(powers[0] / powers[1] / math.pow(10.0, snr_db / 10.0))
    return speech + gain * noise


def reverberate(speech: Tensor, response: Tensor) -> Tensor:
    """Speech convolved with a room's impulse response, aligned at the peak of the response, as long and as loud.

    speech: (N,); response: (M,), not silent. Returns: (N,) float32 of the same power; a transcript's times stay true.
    """
    peak, size = int(response.abs().argmax()), len(speech)
    length = 1 << (size + len(response) - 1).bit_length()
    # NumPy's transform runs in one thread in double precision: the same bits here and in any worker.
    spectrum = np.fft.rfft(speech.double().numpy(), length) * np.fft.rfft(response.double().numpy(), length)
    wet = np.fft.irfft(spectrum, length)[peak : peak + size]
    power = float(np.square(wet).mean())
    gain = math.sqrt(float(speech.double().square().mean()) / power) if power > 0 else 0.0
    return torch.from_numpy((gain * wet).astype(np.float32))


def _repeated(noise: Tensor, start: int, num_samples: int) -> Tensor:
    """So many samples from `start` on, going round."""
    repeats = -(-num_samples // len(noise))
    return noise.roll(-start).repeat(repeats)[:num_samples]


def _uniform(bounds: tuple[float, float], generator: torch.Generator) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * float(torch.rand((), generator=generator, dtype=torch.float64))


def _duration(wav: str, name: str) -> float:
    try:
        return probe_audio(wav).duration_s
    except DataError as error:
        raise DataError(f"{name}: {str(error).removeprefix(f'{wav}: ')}") from error


def _read(wav: str, name: str, rate: int, *, start: float | None = None, end: float | None = None) -> Tensor:
    try:
        return read_audio(wav, start=start, end=end, sample_rate=rate)
    except DataError as error:
        raise DataError(f"{name}: {str(error).removeprefix(f'{wav}: ')}") from error
