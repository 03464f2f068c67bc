# SPDX-License-Identifier: Apache-2.0
"""Logarithmic magnitudes of a short-time Fourier transform.

Dimension key: B batch, N samples, T frames, F features, W samples per window.
"""

import torch
from torch import Tensor

from wenet_hs.config.section import Count, Section
from wenet_hs.frontends.base import Frontend, Length


class Spectrum(Frontend):
    """Windows without overlap; the features are the magnitudes below half the rate."""

    def __init__(self, rate: int, window: int) -> None:
        self.rate = rate
        self.window = window
        self.frame_s = window / rate
        self.offset_s = 0.0
        self.width = window // 2

    def length(self, num_samples: Length) -> Length:
        return num_samples // self.window

    def compute(self, wave_N: Tensor, generator: torch.Generator | None = None) -> Tensor:
        num_frames = self.length(wave_N.size(-1))
        windows_TW = wave_N[..., : num_frames * self.window].unfold(-1, self.window, self.window)
        magnitudes_TF: Tensor = torch.fft.rfft(windows_TW).abs()[..., 1:]
        return magnitudes_TF.add(1e-6).log()


class SpectrumConf(Section):
    """`frontend: spectrum`."""

    window: Count = 160
    """Samples per window, an even number."""

    def build(self, rate: int) -> Spectrum:
        """The frontend for waveforms of `rate` samples per second."""
        return Spectrum(rate, self.window)
