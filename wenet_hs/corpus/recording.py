# SPDX-License-Identifier: Apache-2.0
"""Recording conditions of simulated speech: spectra and noise floors of real recordings, rooms, hum.

`measure_recordings` measures real recordings. The other functions give speech their properties.

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

_FRAME = 512  # samples: 32 ms
_SHIFT = 256  # samples: 16 ms
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
        """The power of the speech over that of the noise floor, dB.

        It is at most 60 dB, also for recordings with digital silence.
        """
        noise_power = max(1e-6, self.noise_F.mean())  # -60 dB
        return float(-10 * np.log10(noise_power))

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
    """The common properties of clips (N,), none of them silent.

    The spectra of each clip are divided by the mean power of its speech, so that all clips count
    equally. The noise floor is the mean spectrum of the quietest frames of all clips together.
    """
    speech_spectra = []
    frames = []
    peaks_db = []
    for wave in waves:
        power_TF = _compute_power_spectra(wave)
        loudness_T = power_TF.mean(axis=1)
        is_speech_T = loudness_T > loudness_T.max() * 10 ** (-_SPEECH_DB / 10)
        spoken_F = power_TF[is_speech_T].mean(axis=0)
        speech_spectra.append(spoken_F / spoken_F.mean())
        frames.append(power_TF / spoken_F.mean())
        peaks_db.append(20 * np.log10(np.abs(wave).max()))
    all_frames_TF = np.concatenate(frames)
    loudness_T = all_frames_TF.mean(axis=1)
    is_quiet_T = loudness_T <= np.quantile(loudness_T, _QUIET)
    noise_F = all_frames_TF[is_quiet_T].mean(axis=0)
    lowest_db, highest_db = np.quantile(peaks_db, (0.1, 0.9))
    return Recording(
        speech_F=_smooth_spectrum(np.mean(speech_spectra, axis=0)),
        noise_F=noise_F,
        peak_db=(float(lowest_db), float(highest_db)),
    )


def _smooth_spectrum(spectrum_F: Floats) -> Floats:
    """The means of `_SMOOTH` neighbouring bins (F,); the ends are continued by their values."""
    padded = np.pad(spectrum_F, _SMOOTH // 2, mode="edge")
    return np.convolve(padded, np.full(_SMOOTH, 1 / _SMOOTH), mode="valid")


def _compute_power_spectra(wave: Floats) -> Floats:
    """(T, F) power of frames of 32 ms; white noise of unit power has a mean of 1."""
    padded = np.pad(wave, (0, max(0, _FRAME - len(wave))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FRAME)[::_SHIFT]
    power: Floats = np.square(np.abs(np.fft.rfft(frames * _WINDOW))) / np.square(_WINDOW).sum()
    return power


def match_spectrum(wave: NDArray[np.floating[Any]], source_F: Floats, target_F: Floats) -> Floats:
    """Speech (N,) with the spectrum `source_F`, filtered so that it has the shape of `target_F`.

    Both are long-term power spectra. The overall level does not count: the median gain of the
    filter is 0 dB. No frequency is changed by more than 60 dB.
    """
    # 1e-12 in place of 0, which has no logarithm.
    gain_db_F = 10 * np.log10(np.maximum(target_F, 1e-12) / np.maximum(source_F, 1e-12))
    relative_db_F = np.clip(gain_db_F - np.median(gain_db_F), -_MOST_DB, _MOST_DB)
    return _apply_gain(wave, 10 ** (relative_db_F / 20))


def make_coloured_noise(power_F: Floats, num_samples: int, draw: np.random.Generator) -> Floats:
    """Random noise (N,) with the power spectrum (F,)."""
    return _apply_gain(draw.standard_normal(num_samples), np.sqrt(power_F))


def _apply_gain(wave: NDArray[np.floating[Any]], gain_F: Floats) -> Floats:
    """The wave (N,) with the amplitude of each frequency multiplied by a gain, without a delay.

    Gains between the bins are interpolated.
    """
    # A power of two, longer than the wave by at least a frame, so that the filtered end of the wave
    # does not reach its beginning.
    fft_length = 1 << (len(wave) + _FRAME).bit_length()
    spectrum = np.fft.rfft(wave, fft_length)
    spectrum_position = np.linspace(0, 1, len(spectrum))  # 0: 0 Hz, 1: 8,000 Hz
    gain_position = np.linspace(0, 1, len(gain_F))
    gains = np.interp(spectrum_position, gain_position, gain_F)
    filtered: Floats = np.fft.irfft(spectrum * gains, fft_length)[: len(wave)]
    return filtered


def add_room(wave: Floats, decay_s: float, direct_db: float, draw: np.random.Generator) -> Floats:
    """The wave (N,) as it sounds in a room; `reverberate` keeps its power.

    The impulse response of the room is the direct sound and then decaying noise.

    Args:
        decay_s: time in which the sound falls by 60 dB.
        direct_db: energy of the direct sound over that of the reverberation, dB.
    """
    num_samples = round(decay_s * SAMPLE_RATE)
    decay = np.logspace(0, -3, num_samples)  # to a thousandth of the amplitude: -60 dB
    tail = draw.standard_normal(num_samples) * decay
    wanted_norm = 10 ** (-direct_db / 20)  # of the reverberation, where the direct sound has 1
    tail *= wanted_norm / np.sqrt(np.square(tail).sum())
    response = np.concatenate(([1.0], tail))
    in_room = reverberate(torch.from_numpy(wave), torch.from_numpy(response))
    return in_room.numpy().astype(np.float64)


def make_hum(num_samples: int, frequency_hz: int, draw: np.random.Generator) -> Floats:
    """Mains hum (N,) of unit power: a tone and four harmonics of random phase and strength.

    On average, a harmonic is the softer the higher it is.
    """
    seconds = np.arange(num_samples) / SAMPLE_RATE
    orders = np.arange(1, 6)[:, None]  # 1: the tone, 2 to 5: its harmonics
    phases = draw.uniform(0, 2 * np.pi, (5, 1))
    weights = draw.uniform(0, 1, (5, 1)) / orders
    tones = weights * np.sin(2 * np.pi * frequency_hz * orders * seconds + phases)
    mixture: Floats = tones.sum(axis=0)
    hum: Floats = mixture / np.sqrt(np.square(mixture).mean())
    return hum
