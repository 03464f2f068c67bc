# SPDX-License-Identifier: Apache-2.0
"""Log-Mel features as Kaldi and WeNet compute them.

On a CPU they are bit-equal to `torchaudio.compliance.kaldi.fbank`.

Dimension key: B batch, N samples, T frames, S samples per window, K frequencies of the Fourier
transform, F Mel bins, R frames of all waveforms.
"""

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from wenet_hs.frontends.base import Frontend, Length
from wenet_hs.tree.errors import ConfigError

INT16_SCALE = 1 << 15
"""From samples in [-1, 1] to 16-bit integers, of which Kaldi computes features.

Checkpoints and CMVN statistics depend on it.
"""
_PREEMPHASIS = 0.97
_POVEY_EXPONENT = 0.85
"""Kaldi's window is a Hann window to this power."""
_LOWEST_HZ = 20.0
_SHERPA_TOP_GAP_HZ = 400
"""The Mel bins of sherpa-onnx end so far below half the rate."""
_FLOOR = torch.finfo(torch.float32).eps
"""Smallest Mel energy, before its logarithm."""


class Fbank(Frontend):
    """Log-Mel energies with Kaldi's Povey window.

    Profile `wenet`: only whole windows (Kaldi's `snip-edges`), Mel bins up to half the rate.
    Profile `sherpa`, that of sherpa-onnx's recognizers for streams: the window of frame t is in the
    middle of the t-th shift, the audio is mirrored at both ends, and the Mel bins end 400 Hz lower.
    The order of the operations is that of torchaudio 2.11, because another order rounds otherwise.
    """

    def __init__(
        self,
        rate: int = 16000,
        *,
        num_mel_bins: int = 80,
        frame_length_ms: float = 25.0,
        frame_shift_ms: float = 10.0,
        dither: float = 0.0,
        profile: Literal["wenet", "sherpa"] = "wenet",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Raises ConfigError where a window or the distance of windows is under two samples.

        Args:
            rate: samples per second of the waveform.
            num_mel_bins: features per frame, at least 4.
            frame_length_ms, frame_shift_ms: length of a window, and distance from one to the next.
            dither: standard deviation of the noise added to each sample of each window, in steps of
                16-bit samples (Kaldi uses 1.0). It is only added if `compute` gets a generator.
            profile: whose features are computed; see the class.
            dtype: of the computation, float32 or float64; the features are float32.
        """
        # Kaldi rounds down too.
        self.window = int(rate * frame_length_ms * 0.001)
        self.shift = int(rate * frame_shift_ms * 0.001)
        if self.window < 2 or self.shift < 2:
            lengths = f"frame_length {frame_length_ms:g} ms or frame_shift {frame_shift_ms:g} ms"
            found = f"{lengths} is under two samples at {rate} Hz"
            raise ConfigError("fbank_conf", found, "use more")
        self.rate = rate
        self.width = num_mel_bins
        self.dither = dither
        self.profile = profile
        self._dtype = dtype
        highest_hz = 0.5 * rate
        self.mirrored = 0
        """Samples that are mirrored at the beginning."""
        if profile == "sherpa":
            highest_hz -= _SHERPA_TOP_GAP_HZ
            self.mirrored = self.window // 2 - self.shift // 2
        self.frame_s = self.shift / rate
        # A frame stands for the `shift` samples in the middle of its window.
        self.offset_s = ((self.window - self.shift) / 2 - self.mirrored) / rate
        self._fft_size = _next_power_of_two(self.window)
        hann_window_S = torch.hann_window(self.window, periodic=False, dtype=dtype)
        self._weight_S = hann_window_S.pow(_POVEY_EXPONENT)
        self._mel_FK = mel_weights(rate, self._fft_size, num_mel_bins, highest_hz, dtype)

    @property
    def window_ms(self) -> tuple[float, float]:
        """Length of a window, and distance from one to the next, in ms."""
        return 1000 * self.window / self.rate, 1000 * self.shift / self.rate

    def length(self, num_samples: Length) -> Length:
        """The number of frames of `num_samples` samples: a number, or an array of numbers (U,).

        Profile `wenet`: the windows that are whole. Profile `sherpa`, in which audio is mirrored:
        the shifts whose middle is in the audio. Audio that is shorter than a window has 0 frames.
        """
        if self.mirrored:
            has_window = num_samples >= self.window  # as a factor: 0 frames without a window
            frames = (num_samples + self.shift // 2) // self.shift * has_window
        else:
            frames = 1 + (num_samples - self.window) // self.shift
        return frames.clip(min=0) if isinstance(frames, np.ndarray) else max(0, frames)

    def compute(self, wave_N: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The frames of waveforms (…, N) → (…, T, F), after both ends are mirrored (`sherpa`).

        Audio that is shorter than a window has no frames. With a generator noise is added.
        """
        num_samples = wave_N.size(-1)
        if num_samples < self.window:
            return wave_N.new_empty(*wave_N.shape[:-1], 0, self.width)
        if self.mirrored:
            start_N = self.mirror_start(wave_N)
            end_N = self.mirror_end(wave_N, num_samples)
            wave_N = torch.cat([start_N, wave_N, end_N], dim=-1)
        return self.compute_windows(wave_N, generator)

    def mirror_start(self, wave_N: Tensor) -> Tensor:
        """The mirrored samples that come before a waveform (…, N) of at least a window."""
        return wave_N[..., : self.mirrored].flip(-1)

    def mirror_end(self, end_N: Tensor, num_samples: int) -> Tensor:
        """The mirrored samples that come after a waveform of `num_samples`, at least a window.

        There are as many as the window of the last frame needs: none in the profile `wenet`.

        end_N: (…, N), the last samples of the waveform: at least half a window.
        """
        if not self.mirrored:
            return end_N[..., :0]
        # From the first sample of the waveform; window 0 begins at -mirrored.
        start_of_last_window = (self.length(num_samples) - 1) * self.shift - self.mirrored
        num_missing = start_of_last_window + self.window - num_samples
        return end_N[..., end_N.size(-1) - num_missing :].flip(-1)

    def compute_windows(self, wave_N: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The frames (…, T, F) of all whole windows of a waveform (…, N), at least one window long.

        Of each window of S samples: noise is added (if there is a generator and `dither` is above
        0), the mean is subtracted, and pre-emphasis and Povey window are applied. The power of K
        frequencies then becomes F logarithmic Mel energies. Nothing is mirrored.
        """
        with torch.autocast(wave_N.device.type, enabled=False):  # autocast would round the products
            frames_TS = (wave_N.to(self._dtype) * INT16_SCALE).unfold(-1, self.window, self.shift)
            if generator is not None and self.dither:
                # Kaldi draws new noise for every window, also for overlapping samples.
                noise_TS = torch.randn(
                    frames_TS.shape,
                    generator=generator,
                    dtype=frames_TS.dtype,
                    device=wave_N.device,
                )
                frames_TS = frames_TS + noise_TS * self.dither
            frames_TS = frames_TS - frames_TS.mean(-1, keepdim=True)
            power_TK = torch.fft.rfft(self._weighted(frames_TS)).abs().square_()
            power_RK = power_TK.flatten(0, -2)  # the frames of all waveforms, one after the other
            energies_RF: Tensor = power_RK @ self._mel_FK.to(wave_N.device).T
        log_energies_RF = energies_RF.clamp_(min=_FLOOR).log_().float()
        return log_energies_RF.view(*frames_TS.shape[:-1], self.width)

    def _weighted(self, frames_TS: Tensor) -> Tensor:
        """Frames (…, T, S) after pre-emphasis and Povey window, padded for the Fourier transform.

        Pre-emphasis subtracts 0.97 of the sample before; the first sample of a window subtracts
        from itself. Zeros follow, up to the size of the transform: (…, T, `_fft_size`).
        """
        padded = frames_TS.new_zeros(*frames_TS.shape[:-1], self._fft_size)
        weighted_TS = padded[..., : self.window]
        # Two roundings, not one: `torch.sub(…, alpha=)` may fuse them.
        torch.sub(frames_TS[..., 1:], frames_TS[..., :-1] * _PREEMPHASIS, out=weighted_TS[..., 1:])
        torch.sub(frames_TS[..., 0], frames_TS[..., 0] * _PREEMPHASIS, out=weighted_TS[..., 0])
        weighted_TS *= self._weight_S.to(frames_TS.device)
        return padded


def _next_power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number` (2 or more)."""
    return 1 << (number - 1).bit_length()


def mel_weights(
    rate: int,
    fft_size: int,
    num_mel_bins: int,
    highest_hz: float,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Kaldi's triangles from 20 Hz to `highest_hz`: the weight of each frequency in each Mel bin.

    mel(f) = 1127 ln(1 + f / 700). The triangles have equal widths in mel; each ends at the peak of
    the next one.

    Returns: (F, K) with K = fft_size // 2 + 1; the last frequency, half the rate, has no weight.
    """
    lowest_mel = 1127.0 * math.log(1.0 + _LOWEST_HZ / 700.0)
    highest_mel = 1127.0 * math.log(1.0 + highest_hz / 700.0)
    step = (highest_mel - lowest_mel) / (num_mel_bins + 1)
    bins_F1 = torch.arange(num_mel_bins, dtype=dtype)[:, None]
    left_F1 = lowest_mel + bins_F1 * step
    center_F1 = lowest_mel + (bins_F1 + 1.0) * step
    right_F1 = lowest_mel + (bins_F1 + 2.0) * step
    hz_K = rate / fft_size * torch.arange(fft_size // 2, dtype=dtype)
    mel_K = 1127.0 * (1.0 + hz_K / 700.0).log()
    rising_FK = (mel_K - left_F1) / (center_F1 - left_F1)
    falling_FK = (right_F1 - mel_K) / (right_F1 - center_F1)
    weights_FK = torch.minimum(rising_FK, falling_FK).clamp(min=0.0)
    return torch.nn.functional.pad(weights_FK, (0, 1))  # half the rate
