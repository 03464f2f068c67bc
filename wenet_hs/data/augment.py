# SPDX-License-Identifier: Apache-2.0
"""Augmentation of training data: SpecAugment, speed, reverberation and noise.

All random numbers are drawn from the caller's generators.   Dimension key: N samples, T frames, F Mel bins.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from wenet_hs.base.files import read_lines
from wenet_hs.config.dataset import DatasetConf, NoiseConf, ReverbConf, SpecAugConf
from wenet_hs.data.audio import AudioError, is_silent, read_audio, read_duration, resample
from wenet_hs.tree.errors import DataError

SPEED_FACTORS = (1.0, 0.9, 1.1)
_TAKE_OUT = "take it out of the list"


def draw_masks(
    num_frames: int, num_bins: int, conf: SpecAugConf, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Bands of time and of frequency to mask (SpecAugment, Park et al. 2019, without warping).

    A width is uniform in 0…max and a position uniform where the band fits. All bands of time
    together mask at most the share `max_t_share` of the frames: a difference from WeNet for
    utterances below num_t_mask * max_t / max_t_share frames (2 s by default).

    Returns: (T,) and (F,) bool, True for frames and bins that are kept.
    """
    keep_T = torch.ones(num_frames, dtype=torch.bool)
    keep_F = torch.ones(num_bins, dtype=torch.bool)
    max_t = min(conf.max_t, int(conf.max_t_share * num_frames / max(1, conf.num_t_mask)))
    for _ in range(conf.num_t_mask):
        begin, end = _draw_band(num_frames, max_t, generator)
        keep_T[begin:end] = False
    for _ in range(conf.num_f_mask):
        begin, end = _draw_band(num_bins, min(conf.max_f, num_bins), generator)
        keep_F[begin:end] = False
    return keep_T, keep_F


def apply_masks(features: Tensor, masks: tuple[Tensor, Tensor]) -> Tensor:
    """Features (T, F) before CMVN with masked values replaced by the utterance's mean of that bin;
    a new tensor.

    Global CMVN maps this mean to about 0. WeNet writes 0 before CMVN, which is near silence and far
    from the mean.
    """
    keep_T, keep_F = masks
    return torch.where(keep_T[:, None] & keep_F, features, features.mean(dim=0, keepdim=True))


def _draw_band(size: int, max_width: int, generator: torch.Generator) -> tuple[int, int]:
    """Begin and end of a band inside 0…size, of a width uniform in 0…max_width."""
    width = int(torch.randint(max_width + 1, (), generator=generator))
    begin = int(torch.randint(size - width + 1, (), generator=generator))
    return begin, begin + width


def speed_perturb(waveform: Tensor, factor: float) -> Tensor:
    """The waveform played `factor` times as fast, by resampling: the pitch changes too (like `sox
    speed`).

    waveform: (N,) float32. Returns: (round(N / factor),).
    """
    if factor == 1.0:
        return waveform
    num_samples = round(len(waveform) / factor)
    changed = resample(waveform, factor, 1.0)[:num_samples]
    return torch.nn.functional.pad(
        changed, (0, num_samples - len(changed))
    )  # soxr may round the length down


# Noise and reverberation


class RecordingList:
    """The recordings of `noise_conf` or `reverb_conf`, and how often one is used."""

    def __init__(self, conf: NoiseConf | ReverbConf) -> None:
        """Read the list, one recording per line. Raises DataError if there are none, or JSON."""
        self._prob = conf.prob
        self._entries: list[tuple[str, str]] = []
        for number, line in enumerate(read_lines(conf.list), start=1):
            where, path = f"{conf.list}:{number}", line.strip()
            if path.startswith("{"):
                raise DataError(
                    where, "not the path of a recording", "write only the path, without JSON"
                )
            if path:
                self._entries.append((path, f"{where}: {path}"))
        if not self._entries:
            raise DataError(conf.list, "contains no recordings", "write one path per line")

    def draw(self, generator: torch.Generator) -> tuple[str, str] | None:
        """With probability `prob` the path of a random recording, and its name for messages."""
        if _uniform(0.0, 1.0, generator) >= self._prob:
            return None
        return self._entries[int(torch.randint(len(self._entries), (), generator=generator))]


class Distortions:
    """Reverberation and noise as `reverb_conf` and `noise_conf` set them."""

    def __init__(self, conf: DatasetConf) -> None:
        """Read the lists. Raises DataError where one is missing or empty."""
        self._rate = conf.resample_conf.resample_rate
        self._reverb = RecordingList(conf.reverb_conf) if conf.reverb_conf else None
        self._noise = RecordingList(conf.noise_conf) if conf.noise_conf else None
        self._snr_db = conf.noise_conf.snr_db if conf.noise_conf else (0.0, 0.0)

    def apply(self, wave: Tensor, generator: Callable[[str], torch.Generator]) -> Tensor:
        """The speech with reverberation, then with noise, each with its own probability.

        Args:
            wave: (N,) float32; not changed.
            generator: gives the generator for "reverb" and for "noise".

        Returns: (N,). Raises: DataError naming the recording, its list and its line: unreadable, or
            silent.
        """
        name = ""
        try:
            if self._reverb is not None and (drawn := self._reverb.draw(generator("reverb"))):
                path, name = drawn
                response = read_audio(path, sample_rate=self._rate)
                if is_silent(response):
                    raise AudioError(path, "silent, no impulse response", _TAKE_OUT)
                wave = reverberate(wave, response)
            if self._noise is not None and (
                drawn := self._noise.draw(numbers := generator("noise"))
            ):
                path, name = drawn
                snr_db = _uniform(*self._snr_db, numbers)
                wave = add_noise(wave, self._read_noise(path, len(wave), numbers), snr_db)
        except AudioError as error:
            raise AudioError(name, error.found, error.to_do) from error
        return wave

    def _read_noise(self, wav: str, num_samples: int, generator: torch.Generator) -> Tensor:
        """`num_samples` samples of a recording from a random position; a shorter one is repeated.

        Never silent.
        """
        duration_s, position = read_duration(wav), _uniform(0.0, 1.0, generator)
        spare_s = duration_s - num_samples / self._rate
        if spare_s > 0:  # of a long recording only a part is read
            start = position * spare_s
            end = min(duration_s, start + num_samples / self._rate + 0.01)  # rates round
            noise = read_audio(wav, start=start, end=end, sample_rate=self._rate)
            if not is_silent(noise):
                return _repeat(noise, 0, num_samples)
        noise = read_audio(wav, sample_rate=self._rate)
        if is_silent(noise):
            raise AudioError(wav, "silent, so no SNR can be set", _TAKE_OUT)
        loudest = int(
            noise.abs().argmax()
        )  # the drawn part was silent: begin at the loudest sample
        return _repeat(noise, loudest if spare_s > 0 else int(position * len(noise)), num_samples)


def add_noise(speech: Tensor, noise: Tensor, snr_db: float) -> Tensor:
    """The sum of both, the noise scaled to 10 log10(power of speech / power of noise) = snr_db.

    speech, noise: (N,); noise is not silent; silent speech stays silent. Nothing is clipped.
    """
    powers = [float(wave.double().square().mean()) for wave in (speech, noise)]
    gain = math.sqrt(powers[0] / powers[1] / math.pow(10.0, snr_db / 10.0))
    return speech + gain * noise


def reverberate(speech: Tensor, response: Tensor) -> Tensor:
    """Speech convolved with a room impulse response, aligned at the peak of the response; length
    and power are kept.

    speech: (N,); response: (M,), not silent. Returns: (N,) float32.
    """
    peak, size = int(response.abs().argmax()), len(speech)
    length = 1 << (size + len(response) - 1).bit_length()
    # NumPy's transform uses one thread and double precision: the same bits in every process.
    spectrum = np.fft.rfft(speech.double().numpy(), length) * np.fft.rfft(
        response.double().numpy(), length
    )
    wet = np.fft.irfft(spectrum, length)[peak : peak + size]
    power = float(np.square(wet).mean())
    gain = math.sqrt(float(speech.double().square().mean()) / power) if power > 0 else 0.0
    return torch.from_numpy((gain * wet).astype(np.float32))


def _repeat(noise: Tensor, start: int, num_samples: int) -> Tensor:
    """`num_samples` samples from `start` on; the noise is repeated where it is too short."""
    repeats = -(-num_samples // len(noise))
    return noise.roll(-start).repeat(repeats)[:num_samples]


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))
