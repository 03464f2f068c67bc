# SPDX-License-Identifier: Apache-2.0
"""The waveform itself as frames of one sample: for encoders of samples, and for features computed
on another device.
"""

import torch
from torch import Tensor

from wenet_hs.frontends.base import Frontend, Length


class Waveform(Frontend):
    """The identity: `compute` returns the waveform (N,) or (B, N) itself, without a dimension of
    features.
    """

    def __init__(self, rate: int) -> None:
        self.rate, self.frame_s, self.offset_s, self.width = rate, 1 / rate, 0.0, 1
        self.counts_frames = False

    def length(self, num_samples: Length) -> Length:
        return num_samples

    def compute(self, wave_N: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return wave_N
