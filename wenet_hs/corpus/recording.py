# SPDX-License-Identifier: Apache-2.0
"""Recording conditions of simulated speech: rooms, hum, and the spectra and noise floors of real
recordings.

Dimension key: N samples, T frames, F bins of a power spectrum from 0 to 8,000 Hz.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wenet_hs.corpus.espeak import SAMPLE_RATE
from wenet_hs.data.audio import read_audio
from wenet_hs.data.augment import reverberate
from wenet_hs.manifest.data_list import Utterance

Floats = NDArray[np.float64]

_FRAME, _SHIFT = 512, 256  # samples: 32 and 16 ms
_WINDOW = np.hanning(_FRAME)
_SPEECH_DB = 20.0  # frames that are at most so much softer than the loudest one are speech
_QUIET = 0.05  # share of all frames that are taken for the noise floor
_SMOOTH = 13  # bins, about 400 Hz: wider than a harmonic, narrower than a vowel's spectrum
_MOST_DB = 60.0  # of a filter: some recordings have nothing above 3 kHz


@dataclass(frozen=True)
class Recording:
    """What the recordings of a language have in common."""

    speech_F: Floats
    """Long-term power spectrum of the speech, of mean 1, smoothed."""
    noise_F: Floats
    """Power spectrum of the noise floor, where the mean of the speech is 1."""
    peak_db: tuple[float, float]
    """Tenth and ninetieth percentile of the clips' highest samples, dB of full scale."""

    @property
    def snr_db(self) -> float:
        """Power of the speech over that of the noise floor; at most 60 dB, for recordings with
        digital silence.
        """
        return float(-10 * np.log10(max(1e-6, self.noise_F.mean())))

    @property
    def name(self) -> str:
        """A digest of the values: clips of other recordings get other names."""
        values = np.concatenate((self.speech_F, self.noise_F, self.peak_db))
        return hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()[:8]


def measure_recordings(utterances: Iterable[Utterance]) -> dict[str, Recording]:
    """A recording per language, by language code and digest.

    Raises AudioError for a clip that cannot be read.
    """
    waves = defaultdict[str, list[Floats]](list)
    for u in utterances:
        wave = read_audio(
            u.wav, start=u.start, end=u.end, channel=u.channel, sample_rate=SAMPLE_RATE
        )
        waves[u.lang or ""].append(wave.numpy().astype(np.float64))
    measured = {lang: measure_recording(of_lang) for lang, of_lang in sorted(waves.items())}
    return {f"{lang}-{recording.name}": recording for lang, recording in measured.items()}


def measure_recording(waves: Iterable[Floats]) -> Recording:
    """The common properties of clips (N,), none of them silent."""
    speech, frames, peaks = [], [], []
    for wave in waves:
        power_TF = _power_spectra(wave)
        loudness_T = power_TF.mean(axis=1)
        is_speech_T = loudness_T > loudness_T.max() * 10 ** (-_SPEECH_DB / 10)
        spoken_F = power_TF[is_speech_T].mean(axis=0)
        speech.append(spoken_F / spoken_F.mean())
        frames.append(power_TF / spoken_F.mean())
        peaks.append(20 * np.log10(np.abs(wave).max()))
    all_TF = np.concatenate(frames)
    loudness_T = all_TF.mean(axis=1)
    noise_F = all_TF[loudness_T <= np.quantile(loudness_T, _QUIET)].mean(axis=0)
    low, high = np.quantile(peaks, (0.1, 0.9))
    speech_F = np.pad(np.mean(speech, axis=0), _SMOOTH // 2, mode="edge")
    smoothed_F = np.convolve(speech_F, np.full(_SMOOTH, 1 / _SMOOTH), mode="valid")
    return Recording(smoothed_F, noise_F, (float(low), float(high)))


def _power_spectra(wave: Floats) -> Floats:
    """(T, F) power of frames of 32 ms; white noise of unit power has a mean of 1."""
    padded = np.pad(wave, (0, max(0, _FRAME - len(wave))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FRAME)[::_SHIFT]
    power: Floats = np.square(np.abs(np.fft.rfft(frames * _WINDOW))) / np.square(_WINDOW).sum()
    return power


def transfer(wave: NDArray[np.floating[Any]], source_F: Floats, target_F: Floats) -> Floats:
    """Speech (N,) of long-term spectrum `source_F`, filtered so that it has `target_F`; by at most
    60 dB.
    """
    gain_db = 10 * np.log10(np.maximum(target_F, 1e-12) / np.maximum(source_F, 1e-12))
    return _filter(wave, 10 ** (np.clip(gain_db - np.median(gain_db), -_MOST_DB, _MOST_DB) / 20))


def colour(power_F: Floats, num_samples: int, draw: np.random.Generator) -> Floats:
    """Noise (N,) with the power spectrum (F,)."""
    return _filter(draw.standard_normal(num_samples), np.sqrt(power_F))


def _filter(wave: NDArray[np.floating[Any]], gain_F: Floats) -> Floats:
    """The wave (N,) with the amplitude of each frequency multiplied by a gain, without a delay."""
    length = 1 << (len(wave) + _FRAME).bit_length()
    spectrum = np.fft.rfft(wave, length)
    gains = np.interp(np.linspace(0, 1, len(spectrum)), np.linspace(0, 1, len(gain_F)), gain_F)
    filtered: Floats = np.fft.irfft(spectrum * gains, length)[: len(wave)]
    return filtered


def add_room(wave: Floats, decay_s: float, direct_db: float, draw: np.random.Generator) -> Floats:
    """The wave (N,) in a room: an impulse response of decaying noise, of the same power.

    Args:
        decay_s: time in which the sound falls by 60 dB.
        direct_db: energy of the direct sound over that of the reverberation, dB.
    """
    tail = draw.standard_normal(round(decay_s * SAMPLE_RATE)) * np.logspace(
        0, -3, round(decay_s * SAMPLE_RATE)
    )
    tail *= 10 ** (-direct_db / 20) / np.sqrt(np.square(tail).sum())
    response = np.concatenate(([1.0], tail))
    return (
        reverberate(torch.from_numpy(wave), torch.from_numpy(response)).numpy().astype(np.float64)
    )


def make_hum(num_samples: int, frequency_hz: int, draw: np.random.Generator) -> Floats:
    """Mains hum (N,) of unit power: a tone and four harmonics of random phase."""
    seconds = np.arange(num_samples) / SAMPLE_RATE
    orders = np.arange(1, 6)[:, None]
    phases, weights = draw.uniform(0, 2 * np.pi, (5, 1)), draw.uniform(0, 1, (5, 1)) / orders
    tones: Floats = (weights * np.sin(2 * np.pi * frequency_hz * orders * seconds + phases)).sum(
        axis=0
    )
    hum: Floats = tones / np.sqrt(np.square(tones).mean())
    return hum
