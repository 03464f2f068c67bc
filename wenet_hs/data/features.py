# SPDX-License-Identifier: Apache-2.0
"""Log-Mel features as Kaldi and WeNet compute them.

Dimension key: N samples, T frames, S samples a frame, F Mel bins.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torchaudio.compliance import kaldi

from wenet_hs.config.dataset import DatasetConf
from wenet_hs.data.audio import AudioFault, decode, length_fault, resample
from wenet_hs.data.augment import speed_perturb
from wenet_hs.data.quarantine import clip_error
from wenet_hs.errors import ConfigError
from wenet_hs.manifest import Utterance

INT16_SCALE = 1 << 15  # Kaldi's features are those of 16-bit integers; checkpoints and CMVN statistics depend on it


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
        dither: standard deviation of the noise added to each sample of each frame, in steps of 16 bits (Kaldi's 1.0).
        generator: source of that noise, needed where dither > 0: the global random state is never touched.

    Returns: (T, F) float32 with T = num_frames(N): (0, F) where the audio is shorter than one window.
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
    return log_mel(
        wave_N,
        sample_rate=sample_rate,
        num_mel_bins=num_mel_bins,
        frame_length_ms=frame_length_ms,
        frame_shift_ms=frame_shift_ms,
    )


def log_mel(
    wave_N: Tensor, *, sample_rate: int, num_mel_bins: int, frame_length_ms: float, frame_shift_ms: float
) -> Tensor:
    """Kaldi's formula, (N,) → (T, F), for samples of 16 bits (as floats, at least a window of them)."""
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


def num_frames(
    num_samples: int, *, sample_rate: int = 16000, frame_length_ms: float = 25.0, frame_shift_ms: float = 10.0
) -> int:
    """How many frames `fbank` makes of so many samples."""
    size, shift = samples_of(sample_rate, frame_length_ms), samples_of(sample_rate, frame_shift_ms)
    return 0 if num_samples < size else 1 + (num_samples - size) // shift


def samples_of(sample_rate: int, duration_ms: float) -> int:
    """Whole samples in so many milliseconds; at least two. Raises ConfigError where a frame has fewer."""
    samples = int(sample_rate * duration_ms * 0.001)  # rounded as Kaldi rounds
    if samples < 2:
        raise ConfigError(
            f"fbank_conf: a frame of {duration_ms:g} ms is under two samples at {sample_rate} Hz; use more"
        )
    return samples


def _dithered_frames(wave_N: Tensor, size: int, shift: int, dither: float, generator: torch.Generator) -> Tensor:
    """The frames, each with its own noise, laid end to end: (T*S,).

    Kaldi draws fresh noise for every frame, overlapping samples included. Whatever follows works on single frames, so
    frames without overlap give exactly Kaldi's distribution, from our generator.
    """
    frames_TS = wave_N.unfold(0, size, shift)
    noise_TS = torch.randn(frames_TS.shape, generator=generator, dtype=wave_N.dtype)
    return (frames_TS + dither * noise_TS).reshape(-1)


def utterance_waveform(utterance: Utterance, conf: DatasetConf) -> Tensor:
    """The audio (N,) of an utterance as its file has it, at the rate that `conf` wants.

    Raises: ClipError naming the utterance and the file; also where the audio is not as long as the list says.
    """
    rate = conf.resample_conf.resample_rate
    try:
        samples, file_rate = decode(utterance.wav, utterance.start, utterance.end)
    except AudioFault as fault:
        raise clip_error(utterance.key, utterance.wav, str(fault), fault.remedy) from fault
    if utterance.duration is not None:
        reason = length_fault(len(samples) / file_rate, utterance.duration, "the data list")
        if reason is not None:
            raise clip_error(utterance.key, utterance.wav, reason, "restore the file, or prepare the data again")
    return resample(torch.from_numpy(samples), file_rate, rate)


def utterance_waveform_at(
    utterance: Utterance, conf: DatasetConf, speed: float, distort: Callable[[Tensor], Tensor] | None
) -> Tensor:
    """`utterance_waveform` at a speed, through `distort`."""
    waveform = speed_perturb(utterance_waveform(utterance, conf), speed)
    return waveform if distort is None else distort(waveform)


def utterance_features(
    utterance: Utterance,
    conf: DatasetConf,
    *,
    speed: float = 1.0,
    dither: float = 0.0,
    generator: torch.Generator | None = None,
    distort: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The features (T, F) of an utterance's audio, read from its file, as `conf` wants them.

    Args:
        generator: source of the dither.
        distort: what the waveform (N,) goes through after its speed; as long as before.

    Raises: ClipError as `utterance_waveform` does.
    """
    return fbank(
        utterance_waveform_at(utterance, conf, speed, distort),
        sample_rate=conf.resample_conf.resample_rate,
        num_mel_bins=conf.fbank_conf.num_mel_bins,
        frame_length_ms=conf.fbank_conf.frame_length,
        frame_shift_ms=conf.fbank_conf.frame_shift,
        dither=dither,
        generator=generator,
    )
