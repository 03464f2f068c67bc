# SPDX-License-Identifier: Apache-2.0
"""Log-Mel features as Kaldi and WeNet compute them, for one waveform or for a batch on a device.

Dimension key: B batch, N samples, T frames, S samples per frame, F Mel bins.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchaudio.compliance import kaldi

from wenet_hs.config.dataset import DatasetConf
from wenet_hs.data.audio import read_utterance
from wenet_hs.errors import ConfigError
from wenet_hs.manifest import Utterance

INT16_SCALE = 1 << 15  # Kaldi's features are those of 16-bit integers; checkpoints and CMVN statistics depend on it
_MAX_SAMPLES = 2.0**53  # the largest integer range of a float: the duration in a list may be any number


def fbank(
    waveform: Tensor,
    *,
    sample_rate: int = 16000,
    num_mel_bins: int = 80,
    frame_length_ms: float = 25.0,
    frame_shift_ms: float = 10.0,
    dither: float = 0.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Log-Mel energies: Povey window, no energy floor, only whole windows (Kaldi's `snip-edges`).

    Args:
        waveform: (N,) float32 in [-1, 1].
        dither: standard deviation of the noise added to each sample of each frame, in 16-bit steps (Kaldi's 1.0).
        generator: source of that noise, required where dither > 0: the global random state is never used.

    Returns: (T, F) float32 with T the number of whole windows; (0, F) where the audio is shorter than one window.
    """
    if num_mel_bins < 4:
        raise ConfigError(f"fbank_conf.num_mel_bins: at least 4 Mel bins are needed, got {num_mel_bins}")
    size = samples_of(sample_rate, frame_length_ms)
    if len(waveform) < size:
        return torch.empty(0, num_mel_bins)
    wave_N = waveform * INT16_SCALE
    if dither > 0.0:
        if generator is None:
            raise ValueError("fbank: dither needs a generator")
        wave_N = _dithered_frames(wave_N, size, samples_of(sample_rate, frame_shift_ms), dither, generator)
        frame_shift_ms = frame_length_ms
    return _log_mel(wave_N, sample_rate, num_mel_bins, frame_length_ms, frame_shift_ms)


def waveform_features(
    waveform: Tensor, conf: DatasetConf, *, dither: float = 0.0, generator: torch.Generator | None = None
) -> Tensor:
    """`fbank` of a waveform (N,) with the settings of `conf`: (T, F)."""
    return fbank(
        waveform,
        sample_rate=conf.resample_conf.resample_rate,
        num_mel_bins=conf.fbank_conf.num_mel_bins,
        frame_length_ms=conf.fbank_conf.frame_length,
        frame_shift_ms=conf.fbank_conf.frame_shift,
        dither=dither,
        generator=generator,
    )


def utterance_features(utterance: Utterance, conf: DatasetConf, incomplete: list[str] | None = None) -> Tensor:
    """The features (T, F) of an utterance without dither. Raises ClipError naming the utterance and the file.

    incomplete: see `read_utterance`.
    """
    return waveform_features(read_utterance(utterance, conf.resample_conf.resample_rate, incomplete), conf)


def batch_fbank(waveforms: Tensor, conf: DatasetConf) -> Tensor:
    """`fbank` of padded waveforms (B, N) on their device: (B, T, F), computed for the padding too. N is at least S."""
    rate, frame_length = conf.resample_conf.resample_rate, conf.fbank_conf.frame_length
    size, shift = _frame_samples(conf)
    with torch.autocast(waveforms.device.type, enabled=False):  # autocast would round the samples
        frames_BTS = (waveforms * INT16_SCALE).unfold(1, size, shift)
        # Kaldi processes each frame separately: consecutive frames without overlap are one long waveform.
        features_NF = _log_mel(frames_BTS.reshape(-1), rate, conf.fbank_conf.num_mel_bins, frame_length, frame_length)
    return features_NF.view(*frames_BTS.shape[:2], -1)


def _log_mel(
    wave_N: Tensor, sample_rate: int, num_mel_bins: int, frame_length_ms: float, frame_shift_ms: float
) -> Tensor:
    """Kaldi's features (T, F) of 16-bit samples (N,), given as floats; at least one window."""
    features_TF: Tensor = kaldi.fbank(
        wave_N.unsqueeze(0),
        num_mel_bins=num_mel_bins,
        frame_length=frame_length_ms,
        frame_shift=frame_shift_ms,
        dither=0.0,
        energy_floor=0.0,
        sample_frequency=float(sample_rate),
    )
    return features_TF


def _dithered_frames(wave_N: Tensor, size: int, shift: int, dither: float, generator: torch.Generator) -> Tensor:
    """The frames, each with its own noise, one after the other: (T*S,).

    Kaldi draws new noise for every frame, also for overlapping samples. All later steps process single frames, so
    frames without overlap give exactly Kaldi's distribution.
    """
    frames_TS = wave_N.unfold(0, size, shift)
    noise_TS = torch.randn(frames_TS.shape, generator=generator, dtype=wave_N.dtype)
    return (frames_TS + dither * noise_TS).reshape(-1)


# Numbers of frames


def num_frames(num_samples: int, conf: DatasetConf) -> int:
    """The number of frames that `waveform_features` computes from `num_samples` samples."""
    size, shift = _frame_samples(conf)
    return 0 if num_samples < size else 1 + (num_samples - size) // shift


def count_frames(
    durations: NDArray[np.float64], conf: DatasetConf, speed: float | NDArray[np.float64] = 1.0
) -> NDArray[np.int64]:
    """The number of frames of audio of `durations` seconds, played at a speed. (N,) → (N,)."""
    size, shift = _frame_samples(conf)
    samples = np.rint(np.minimum(durations * conf.resample_conf.resample_rate / speed, _MAX_SAMPLES)).astype(np.int64)
    return np.where(samples < size, 0, 1 + (samples - size) // shift)


def _frame_samples(conf: DatasetConf) -> tuple[int, int]:
    """Samples per frame and per frame shift."""
    rate = conf.resample_conf.resample_rate
    return samples_of(rate, conf.fbank_conf.frame_length), samples_of(rate, conf.fbank_conf.frame_shift)


def samples_of(sample_rate: int, duration_ms: float) -> int:
    """Whole samples in `duration_ms`. Raises ConfigError where that is fewer than two."""
    samples = int(sample_rate * duration_ms * 0.001)  # rounded as Kaldi rounds
    if samples < 2:
        raise ConfigError(
            f"fbank_conf: a frame of {duration_ms:g} ms is under two samples at {sample_rate} Hz; use more"
        )
    return samples
