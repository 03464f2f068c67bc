# SPDX-License-Identifier: Apache-2.0
"""The frontend without features: each sample of the waveform is a frame.

It is for encoders that read samples, and for features that are computed on another device.
"""

import torch
from torch import Tensor

from wenet_hs.frontends.base import Frontend, Length


class Waveform(Frontend):
    """The waveform itself; its frames have no dimension of features."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.frame_s = 1 / rate
        self.offset_s = 0.0
        self.width = 1
        self.counts_frames = False

    def length(self, num_samples: Length) -> Length:
        """`num_samples` itself."""
        return num_samples

    def compute(self, wave_N: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The waveform (N,) or (B, N) itself."""
        return wave_N
