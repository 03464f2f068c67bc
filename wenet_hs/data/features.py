# SPDX-License-Identifier: Apache-2.0
"""Log-Mel features as Kaldi and WeNet compute them, for one waveform or a batch; the cache that keeps them in a file.

Dimension key: B batch, N samples, T frames, S samples per frame, F Mel bins; in FeatureCache N utterances, S speeds.
"""

import logging
import os
import threading
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchaudio.compliance import kaldi

from wenet_hs.config.dataset import DatasetConf
from wenet_hs.data.audio import read_utterance
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.files import NO_SPACE
from wenet_hs.manifest import Utterance

logger = logging.getLogger(__name__)

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
    size, shift = frame_samples(conf)
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
    size, shift = frame_samples(conf)
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


# ---- numbers of frames


def num_frames(num_samples: int, conf: DatasetConf) -> int:
    """The number of frames that `waveform_features` computes from `num_samples` samples."""
    size, shift = frame_samples(conf)
    return max(0, 1 + (num_samples - size) // shift)


def count_frames(
    durations: NDArray[np.float64], conf: DatasetConf, speed: float | NDArray[np.float64] = 1.0
) -> NDArray[np.int64]:
    """The number of frames of audio of `durations` seconds, played at a speed. (N,) → (N,)."""
    size, shift = frame_samples(conf)
    samples = np.rint(np.minimum(durations * conf.resample_conf.resample_rate / speed, _MAX_SAMPLES)).astype(np.int64)
    return np.maximum(0, 1 + (samples - size) // shift)


def frame_samples(conf: DatasetConf) -> tuple[int, int]:
    """Samples per frame and per frame shift. Raises ConfigError where that is fewer than two."""
    rate, fbank = conf.resample_conf.resample_rate, conf.fbank_conf
    length_ms, shift_ms = fbank.frame_length, fbank.frame_shift
    size, shift = int(rate * length_ms * 0.001), int(rate * shift_ms * 0.001)  # rounded as Kaldi rounds
    if size < 2 or shift < 2:
        found = f"frame_length {length_ms:g} ms or frame_shift {shift_ms:g} ms is under two samples at {rate} Hz"
        raise ConfigError("fbank_conf", found, "use more")
    return size, shift


# ---- features kept in a file


class FeatureCache:
    """Features of each utterance at each speed, kept from their first use on by whichever process computes them.

    The ranks of a machine and their forked worker processes share the memory; the operating system may write it to the
    file and drop it. Two processes may compute the same features at the same time: they write the same values.
    """

    def __init__(self, path: Path, max_frames_NS: NDArray[np.int64], num_bins: int) -> None:
        """Open the file, and reserve its space first if no other process has.

        max_frames_NS: the longest length (N, S) in frames that is kept.
        Raises DataError if the file cannot be made, for instance on a full disk.
        """
        self._max_frames_NS = max_frames_NS
        self._starts_NS = max_frames_NS.cumsum().reshape(max_frames_NS.shape) - max_frames_NS
        num_slots, num_frames = max_frames_NS.size, int(max_frames_NS.sum())
        if not path.exists():
            _reserve(path, 4 * (num_slots + num_frames * num_bins))
        # Frames of each slot: 0 if it is empty, negative if the clip is incomplete. It is written after the features.
        self._lengths_NS = np.memmap(path, np.int32, "r+", shape=max_frames_NS.shape)
        self._frames = np.memmap(path, np.float32, "r+", offset=4 * num_slots, shape=(num_frames, num_bins))

    def get(self, index: int, column: int) -> tuple[Tensor, bool] | None:
        """The features (T, F) of an utterance at a speed, not to be changed, and whether its clip is incomplete."""
        length, start = int(self._lengths_NS[index, column]), int(self._starts_NS[index, column])
        if length == 0:
            return None
        _memory_barrier()
        return torch.from_numpy(self._frames[start : start + abs(length)]), length < 0

    def put(self, index: int, column: int, features_TF: Tensor, *, is_incomplete: bool) -> None:
        """Keep features. Those of a clip that is longer than its list states are not kept."""
        length, start = len(features_TF), int(self._starts_NS[index, column])
        if 0 < length <= self._max_frames_NS[index, column]:
            self._frames[start : start + length] = features_TF.numpy()
            _memory_barrier()
            self._lengths_NS[index, column] = -length if is_incomplete else length


def _memory_barrier() -> None:
    """Order the accesses to features and length: ARM may otherwise show another process the length first."""
    with threading.Lock():
        pass


def _reserve(path: Path, num_bytes: int) -> None:
    """Make a file of zeros whose space is reserved, so that no later write can fail; it appears when it is complete."""
    incomplete = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    logger.info("cache_features: %s: %.1f MB for features", path, num_bytes / 1e6)
    try:
        with incomplete.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, max(1, num_bytes))
            else:  # macOS
                file.truncate(num_bytes)
        os.link(incomplete, path)
    except FileExistsError:
        pass  # another rank was faster
    except OSError as error:
        remedy = "free disk space" if error.errno in NO_SPACE else "check this folder"
        found = f"cache_features: cannot reserve {num_bytes / 1e6:.1f} MB ({error.strerror})"
        to_do = f"{remedy}, name another one in TMPDIR, or set dataset_conf.cache_features: false"
        raise DataError(path.parent, found, to_do) from error
    finally:
        incomplete.unlink(missing_ok=True)
