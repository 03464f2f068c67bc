# SPDX-License-Identifier: Apache-2.0
"""Augmentation of training data: SpecAugment, speed, reverberation and noise.

All random numbers are drawn from the caller's generators.

Dimension key: N samples, T frames, F Mel bins.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wenet_hs.base.files import read_lines
from wenet_hs.config.dataset import DatasetConf, NoiseConf, ReverbConf, SpecAugConf
from wenet_hs.data.audio import AudioError, is_silent, read_audio, read_duration, resample
from wenet_hs.tree.errors import DataError

SPEED_FACTORS = (1.0, 0.9, 1.1)
"""The speeds of training; the first one is that of the recording."""
_TAKE_OUT = "take it out of the list"
_ROUNDING_S = 0.01
"""Seconds of noise that are read in excess: resampling may round the number of samples down."""


def draw_masks(
    num_frames: int, num_bins: int, conf: SpecAugConf, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw bands of time and of frequency to mask (SpecAugment, Park et al. 2019, without warping).

    The width of a band is uniform in 0…max, and its position is uniform where the band fits. All
    bands of time together mask at most the share `max_t_share` of the frames. This differs from
    WeNet for utterances below num_t_mask * max_t / max_t_share frames (2 s by default).

    Returns: the masks of frames (T,) and of bins (F,), bool; True: keep.
    """
    keep_T = torch.ones(num_frames, dtype=torch.bool)
    keep_F = torch.ones(num_bins, dtype=torch.bool)
    # Each band has an equal part of the share; without bands (num_t_mask 0) the number is not used.
    max_t_by_share = int(conf.max_t_share * num_frames / max(1, conf.num_t_mask))
    max_t = min(conf.max_t, max_t_by_share)
    max_f = min(conf.max_f, num_bins)
    for _ in range(conf.num_t_mask):
        begin, end = _draw_band(num_frames, max_t, generator)
        keep_T[begin:end] = False
    for _ in range(conf.num_f_mask):
        begin, end = _draw_band(num_bins, max_f, generator)
        keep_F[begin:end] = False
    return keep_T, keep_F


def apply_masks(features: Tensor, masks: tuple[Tensor, Tensor]) -> Tensor:
    """Features (T, F) with the mean of the utterance's bin instead of each masked value, as a copy.

    The features are those before CMVN. Global CMVN maps this mean to about 0. WeNet writes 0 before
    CMVN, which is near silence and far from the mean.

    masks: of frames (T,) and of bins (F,), True: keep; a value is kept if both keep it.
    """
    keep_T, keep_F = masks
    return torch.where(keep_T[:, None] & keep_F, features, features.mean(dim=0, keepdim=True))


def _draw_band(size: int, max_width: int, generator: torch.Generator) -> tuple[int, int]:
    """Draw the begin and the end of a band inside 0…size, with a width uniform in 0…max_width."""
    width = int(torch.randint(max_width + 1, (), generator=generator))
    begin = int(torch.randint(size - width + 1, (), generator=generator))
    return begin, begin + width


def speed_perturb(waveform: Tensor, factor: float) -> Tensor:
    """The waveform played `factor` times as fast, by resampling, as `sox speed` does.

    The pitch changes too. waveform: (N,) float32. Returns: (round(N / factor),).
    """
    if factor == 1.0:
        return waveform
    num_samples = round(len(waveform) / factor)
    # Only the ratio of the rates matters: 1 / factor as many samples, played at the same rate.
    changed = resample(waveform, from_rate=factor, to_rate=1.0)[:num_samples]
    num_missing = num_samples - len(changed)  # soxr may round the length down
    return torch.nn.functional.pad(changed, (0, num_missing))


# ---- Noise and reverberation


@dataclass(frozen=True)
class _ListedRecording:
    """A line of a list of noises or of impulse responses."""

    path: str
    name: str
    """List, line and path, for messages: `noise.list:3: a.wav`."""


class RecordingList:
    """The recordings of `noise_conf` or `reverb_conf`, and how often one is used."""

    def __init__(self, conf: NoiseConf | ReverbConf) -> None:
        """Read the list, one recording per line. Raises DataError if there are none, or JSON."""
        self._prob = conf.prob
        self._recordings: list[_ListedRecording] = []
        for number, line in enumerate(read_lines(conf.list), start=1):
            where = f"{conf.list}:{number}"
            path = line.strip()
            if path.startswith("{"):
                raise DataError(
                    where, "not the path of a recording", "write only the path, without JSON"
                )
            if path:
                self._recordings.append(_ListedRecording(path=path, name=f"{where}: {path}"))
        if not self._recordings:
            raise DataError(conf.list, "contains no recordings", "write one path per line")

    def draw(self, generator: torch.Generator) -> _ListedRecording | None:
        """A random recording with probability `prob`, otherwise None."""
        if _uniform(0.0, 1.0, generator) >= self._prob:
            return None
        number = int(torch.randint(len(self._recordings), (), generator=generator))
        return self._recordings[number]


class Distortions:
    """Reverberation and noise as `reverb_conf` and `noise_conf` set them."""

    def __init__(self, conf: DatasetConf) -> None:
        """Read the lists. Raises DataError where one is missing or empty."""
        self._rate = conf.resample_conf.resample_rate
        self._reverb = RecordingList(conf.reverb_conf) if conf.reverb_conf else None
        self._noise = RecordingList(conf.noise_conf) if conf.noise_conf else None
        # The lowest and the highest ratio of speech to noise; without noise they are not used.
        self._snr_db = conf.noise_conf.snr_db if conf.noise_conf else (0.0, 0.0)

    def apply(self, wave: Tensor, generator: Callable[[str], torch.Generator]) -> Tensor:
        """The speech with reverberation, then with noise, each with its own probability.

        Args:
            wave: (N,) float32; not changed.
            generator: returns the generator for "reverb" or for "noise".

        Returns: (N,).
        Raises: DataError with the recording, its list and its line: it is unreadable, or silent.
        """
        wave = self._reverberate(wave, generator)
        return self._add_noise(wave, generator)

    def _reverberate(self, wave: Tensor, generator: Callable[[str], torch.Generator]) -> Tensor:
        """The speech (N,) with reverberation if one is drawn; see `apply`."""
        if self._reverb is None:
            return wave
        recording = self._reverb.draw(generator("reverb"))
        if recording is None:
            return wave
        with _naming(recording):
            response = read_audio(recording.path, sample_rate=self._rate)
            if is_silent(response):
                raise AudioError(recording.path, "silent, no impulse response", _TAKE_OUT)
        return reverberate(wave, response)

    def _add_noise(self, wave: Tensor, generator: Callable[[str], torch.Generator]) -> Tensor:
        """The speech (N,) with noise if one is drawn; see `apply`."""
        if self._noise is None:
            return wave
        noise_generator = generator("noise")
        recording = self._noise.draw(noise_generator)
        if recording is None:
            return wave
        snr_db = _uniform(*self._snr_db, noise_generator)
        with _naming(recording):
            noise = self._read_noise(recording.path, len(wave), noise_generator)
        return add_noise(wave, noise, snr_db)

    def _read_noise(self, wav: str, num_samples: int, generator: torch.Generator) -> Tensor:
        """Read `num_samples` samples of a recording from a random position.

        Of a recording that is longer than this, only a part is read. If that part is silent, the
        samples from the loudest one on are returned. A shorter recording is repeated.

        Returns: (num_samples,), not silent.
        Raises: AudioError for a recording that is unreadable, or silent as a whole.
        """
        duration_s = read_duration(wav)
        position = _uniform(0.0, 1.0, generator)  # as a share of the possible positions
        spare_s = duration_s - num_samples / self._rate
        is_long = spare_s > 0
        if is_long:
            start = position * spare_s
            end = min(duration_s, start + num_samples / self._rate + _ROUNDING_S)
            part = read_audio(wav, start=start, end=end, sample_rate=self._rate)
            if not is_silent(part):
                return _repeat(part, 0, num_samples)
        noise = read_audio(wav, sample_rate=self._rate)
        if is_silent(noise):
            raise AudioError(wav, "silent, so no SNR can be set", _TAKE_OUT)
        start_sample = int(noise.abs().argmax()) if is_long else int(position * len(noise))
        return _repeat(noise, start_sample, num_samples)


@contextmanager
def _naming(recording: _ListedRecording) -> Iterator[None]:
    """Name the list and the line of a recording in each AudioError of the block."""
    try:
        yield
    except AudioError as error:
        raise AudioError(recording.name, error.found, error.to_do) from error


def add_noise(speech: Tensor, noise: Tensor, snr_db: float) -> Tensor:
    """The speech plus the noise, scaled for a signal-to-noise ratio of `snr_db` in dB.

    The ratio is 10 log10(power of speech / power of noise), of the powers of the whole waveforms.
    Silent speech stays silent. Nothing is clipped.

    speech, noise: (N,); noise is not silent. Returns: (N,).
    """
    speech_power = _power(speech)
    noise_power = _power(noise)
    gain = math.sqrt(speech_power / noise_power / math.pow(10.0, snr_db / 10.0))
    return speech + gain * noise


def reverberate(speech: Tensor, response: Tensor) -> Tensor:
    """Speech convolved with a room impulse response, with the length and power of the speech.

    The peak of the response is at time 0, so the speech is not delayed. Silent speech becomes
    zeros.

    speech: (N,); response: (M,), not silent. Returns: (N,) float32.
    """
    num_samples = len(speech)
    peak = int(response.abs().argmax())
    # A power of two, and longer than the convolution: its end does not wrap to its beginning.
    length = 1 << (num_samples + len(response) - 1).bit_length()
    # NumPy's transform uses one thread and double precision: the same bits in every process.
    speech_spectrum = np.fft.rfft(speech.double().numpy(), length)
    response_spectrum = np.fft.rfft(response.double().numpy(), length)
    convolved = np.fft.irfft(speech_spectrum * response_spectrum, length)
    aligned = convolved[peak : peak + num_samples]
    power = float(np.square(aligned).mean())
    gain = math.sqrt(_power(speech) / power) if power > 0 else 0.0
    return torch.from_numpy((gain * aligned).astype(np.float32))


def _power(wave: Tensor) -> float:
    """The mean of the squares of samples (N,)."""
    return float(wave.double().square().mean())


def _repeat(noise: Tensor, start: int, num_samples: int) -> Tensor:
    """`num_samples` samples of a noise (N,) from the sample `start` on.

    After the end of the noise it begins again, as often as is needed.
    """
    from_start = noise.roll(-start)
    num_repeats = math.ceil(num_samples / len(noise))
    return from_start.repeat(num_repeats)[:num_samples]


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    """Draw a number that is uniform in low…high."""
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))
