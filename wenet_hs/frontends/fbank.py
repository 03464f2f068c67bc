# SPDX-License-Identifier: Apache-2.0
"""Log-Mel features as Kaldi and WeNet compute them, bit-equal to
`torchaudio.compliance.kaldi.fbank` on a CPU.

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

INT16_SCALE = (
    1 << 15
)  # Kaldi's features are those of 16-bit integers; checkpoints and CMVN statistics depend on it
_PREEMPHASIS = 0.97
_LOWEST_HZ = 20.0
_FLOOR = torch.finfo(torch.float32).eps  # of a Mel energy


class Fbank(Frontend):
    """Log-Mel energies: Povey window, no energy floor.

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
            num_mel_bins: at least 4.
            dither: standard deviation of the noise added to each sample of each window, in 16-bit
                steps (Kaldi's 1.0). It is only added if `compute` gets a generator.
            dtype: of the computation, float32 or float64; the features are float32.
        """
        # Rounded as Kaldi rounds.
        self.window, self.shift = (
            int(rate * frame_length_ms * 0.001),
            int(rate * frame_shift_ms * 0.001),
        )
        if self.window < 2 or self.shift < 2:
            lengths = f"frame_length {frame_length_ms:g} ms or frame_shift {frame_shift_ms:g} ms"
            raise ConfigError(
                "fbank_conf", f"{lengths} is under two samples at {rate} Hz", "use more"
            )
        self.rate, self.width, self.dither, self.profile, self._dtype = (
            rate,
            num_mel_bins,
            dither,
            profile,
            dtype,
        )
        self.mirrored = self.window // 2 - self.shift // 2 if profile == "sherpa" else 0
        """Samples that are mirrored at the beginning."""
        self.frame_s = self.shift / rate
        self.offset_s = ((self.window - self.shift) / 2 - self.mirrored) / rate
        self._fft_size = 1 << (self.window - 1).bit_length()
        self._weight_S = torch.hann_window(self.window, periodic=False, dtype=dtype).pow(0.85)
        highest_hz = 0.5 * rate - (400 if profile == "sherpa" else 0)
        self._mel_FK = mel_weights(rate, self._fft_size, num_mel_bins, highest_hz, dtype)

    @property
    def window_ms(self) -> tuple[float, float]:
        """Length of a window, and from one to the next, in ms."""
        return 1000 * self.window / self.rate, 1000 * self.shift / self.rate

    def length(self, num_samples: Length) -> Length:
        frames = 1 + (num_samples - self.window) // self.shift
        if self.mirrored:
            frames = (num_samples + self.shift // 2) // self.shift * (num_samples >= self.window)
        return frames.clip(min=0) if isinstance(frames, np.ndarray) else max(0, frames)

    def compute(self, wave_N: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if wave_N.size(-1) < self.window:
            return wave_N.new_empty(*wave_N.shape[:-1], 0, self.width)
        if self.mirrored:
            wave_N = torch.cat(
                [self.before(wave_N), wave_N, self.after(wave_N, wave_N.size(-1))], dim=-1
            )
        return self.compute_windows(wave_N, generator)

    def before(self, wave_N: Tensor) -> Tensor:
        """The mirrored samples before a waveform (…, N) of at least a window."""
        return wave_N[..., : self.mirrored].flip(-1)

    def after(self, end_N: Tensor, num_samples: int) -> Tensor:
        """The mirrored samples after a waveform of `num_samples`, of which the end (…, N) is given:
        half a window.
        """
        last = (self.length(num_samples) - 1) * self.shift + self.window - self.mirrored
        return (
            end_N[..., end_N.size(-1) - (last - num_samples) :].flip(-1)
            if self.mirrored
            else end_N[..., :0]
        )

    def compute_windows(self, wave_N: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The frames of all whole windows of a waveform (…, N), of at least `window` samples → (…,
        T, F).
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
            spectrum_TK = torch.fft.rfft(self._weighted(frames_TS)).abs().square_()
            energies_RF: Tensor = spectrum_TK.flatten(0, -2) @ self._mel_FK.to(wave_N.device).T
        return energies_RF.clamp_(min=_FLOOR).log_().float().view(*frames_TS.shape[:-1], self.width)

    def _weighted(self, frames_TS: Tensor) -> Tensor:
        """Frames after pre-emphasis and the Povey window, with zeros up to the size of the Fourier
        transform.
        """
        padded = frames_TS.new_zeros(*frames_TS.shape[:-1], self._fft_size)
        weighted_TS = padded[..., : self.window]
        # Two roundings, not one: `torch.sub(…, alpha=)` may fuse them.
        torch.sub(frames_TS[..., 1:], frames_TS[..., :-1] * _PREEMPHASIS, out=weighted_TS[..., 1:])
        torch.sub(frames_TS[..., 0], frames_TS[..., 0] * _PREEMPHASIS, out=weighted_TS[..., 0])
        weighted_TS *= self._weight_S.to(frames_TS.device)
        return padded


def mel_weights(
    rate: int,
    fft_size: int,
    num_mel_bins: int,
    highest_hz: float,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Kaldi's triangles from 20 Hz to `highest_hz`, (F, K): the weight of each frequency in each
    Mel bin.

    mel(f) = 1127 ln(1 + f / 700). The triangles have equal widths in mel; each ends at the peak of
    the next one.
    """
    low, high = (1127.0 * math.log(1.0 + hz / 700.0) for hz in (_LOWEST_HZ, highest_hz))
    step = (high - low) / (num_mel_bins + 1)
    bins_F1 = torch.arange(num_mel_bins, dtype=dtype)[:, None]
    left_F1, center_F1, right_F1 = (low + (bins_F1 + edge) * step for edge in (0.0, 1.0, 2.0))
    hz_K = rate / fft_size * torch.arange(fft_size // 2, dtype=dtype)
    mel_K = 1127.0 * (1.0 + hz_K / 700.0).log()
    rising_FK, falling_FK = (
        (mel_K - left_F1) / (center_F1 - left_F1),
        (right_F1 - mel_K) / (right_F1 - center_F1),
    )
    weights_FK = torch.minimum(rising_FK, falling_FK).clamp(min=0.0)
    return torch.nn.functional.pad(weights_FK, (0, 1))  # half the rate has no weight
