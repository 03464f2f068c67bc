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


def waveform_features(
    waveform: Tensor, conf: DatasetConf, *, dither: float = 0.0, generator: torch.Generator | None = None
) -> Tensor:
    """Log-Mel energies: Povey window, no energy floor, only whole windows (Kaldi's `snip-edges`).

    Args:
        waveform: (N,) float32 in [-1, 1].
        dither: standard deviation of the noise added to each sample of each frame, in 16-bit steps (Kaldi's 1.0).
        generator: source of that noise, required where dither > 0: the global random state is never used.

    Returns: (T, F) float32 with T the number of whole windows; (0, F) where the audio is shorter than one window.
    """
    if conf.fbank_conf.num_mel_bins < 4:
        found = conf.fbank_conf.num_mel_bins
        raise ConfigError(f"fbank_conf.num_mel_bins: at least 4 Mel bins are needed, got {found}")
    size, shift = _frame_samples(conf)
    if len(waveform) < size:
        return torch.empty(0, conf.fbank_conf.num_mel_bins)
    wave_N = waveform * INT16_SCALE
    if dither == 0.0:
        return _log_mel(wave_N, conf, conf.fbank_conf.frame_shift)
    if generator is None:
        raise ValueError("waveform_features: dither needs a generator")
    # Kaldi draws new noise for every frame, also for overlapping samples.
    frames_TS = wave_N.unfold(0, size, shift)
    noise_TS = torch.randn(frames_TS.shape, generator=generator, dtype=wave_N.dtype)
    return _log_mel((frames_TS + dither * noise_TS).reshape(-1), conf, conf.fbank_conf.frame_length)


def utterance_features(utterance: Utterance, conf: DatasetConf, incomplete: list[str] | None = None) -> Tensor:
    """The features (T, F) of an utterance without dither. Raises ClipError naming the utterance and the file.

    incomplete: see `read_utterance`.
    """
    return waveform_features(read_utterance(utterance, conf.resample_conf.resample_rate, incomplete), conf)


def batch_features(waveforms: Tensor, conf: DatasetConf) -> Tensor:
    """Features of padded waveforms (B, N) on their device: (B, T, F), computed for the padding too. N is at least S."""
    size, shift = _frame_samples(conf)
    with torch.autocast(waveforms.device.type, enabled=False):  # autocast would round the samples
        frames_BTS = (waveforms * INT16_SCALE).unfold(1, size, shift)
        features_NF = _log_mel(frames_BTS.reshape(-1), conf, conf.fbank_conf.frame_length)
    return features_NF.view(*frames_BTS.shape[:2], -1)


def _log_mel(wave_N: Tensor, conf: DatasetConf, frame_shift_ms: float) -> Tensor:
    """Kaldi's features (T, F) of 16-bit samples (N,), given as floats; at least one window.

    Kaldi processes each frame separately. Frames one after the other, with the frame length as their shift, give the
    same features as frames that overlap.
    """
    features_TF: Tensor = kaldi.fbank(
        wave_N.unsqueeze(0),
        num_mel_bins=conf.fbank_conf.num_mel_bins,
        frame_length=conf.fbank_conf.frame_length,
        frame_shift=frame_shift_ms,
        dither=0.0,
        energy_floor=0.0,
        sample_frequency=float(conf.resample_conf.resample_rate),
    )
    return features_TF


# Numbers of frames


def num_frames(num_samples: int, conf: DatasetConf) -> int:
    """The number of frames that `waveform_features` computes from `num_samples` samples."""
    size, shift = _frame_samples(conf)
    return max(0, 1 + (num_samples - size) // shift)


def count_frames(
    durations: NDArray[np.float64], conf: DatasetConf, speed: float | NDArray[np.float64] = 1.0
) -> NDArray[np.int64]:
    """The number of frames of audio of `durations` seconds, played at a speed. (N,) → (N,)."""
    size, shift = _frame_samples(conf)
    samples = np.rint(np.minimum(durations * conf.resample_conf.resample_rate / speed, _MAX_SAMPLES)).astype(np.int64)
    return np.maximum(0, 1 + (samples - size) // shift)


def _frame_samples(conf: DatasetConf) -> tuple[int, int]:
    """Samples per frame and per frame shift. Raises ConfigError where that is fewer than two."""
    rate, length_ms, shift_ms = (
        conf.resample_conf.resample_rate,
        conf.fbank_conf.frame_length,
        conf.fbank_conf.frame_shift,
    )
    size, shift = int(rate * length_ms * 0.001), int(rate * shift_ms * 0.001)  # rounded as Kaldi rounds
    if size < 2 or shift < 2:
        found = f"frame_length {length_ms:g} ms or frame_shift {shift_ms:g} ms is under two samples at {rate} Hz"
        raise ConfigError(f"fbank_conf: {found}; use more")
    return size, shift
