# SPDX-License-Identifier: Apache-2.0
"""How few and how many units a hypothesis may have.   Dimension key: B utterances still searched."""

import torch
from torch import Tensor

from wenet_hs.decode.hypothesis import DecodeOptions

_ROUNDING = 1e-9  # 0.29 · 100 is 28.999999999999996


class LengthLimits:
    """Bounds from the encoder frames of each utterance. They stay on the CPU: no step waits for a device to tell."""

    def __init__(self, lengths: Tensor, options: DecodeOptions) -> None:
        frames_B = lengths.cpu().double()
        self._device = lengths.device
        self.most = (frames_B * options.max_len_ratio + _ROUNDING).long().clamp(min=1)
        """(B,) int64 on the CPU: the most units."""
        self._least_B = torch.minimum((frames_B * options.min_len_ratio + _ROUNDING).long(), self.most)

    def reached(self, num_units: int) -> Tensor:
        """(B,) on the CPU: whose hypotheses can have no unit more than `num_units`."""
        return num_units >= self.most

    def forbid_end(self, num_units: int) -> bool:
        """Whether any utterance has too few units to end."""
        return bool((num_units < self._least_B).any())

    def too_early(self, num_units: int) -> Tensor:
        """(B,) on the device: whose hypotheses of `num_units` units may not end."""
        return (num_units < self._least_B).to(self._device)

    def keep(self, kept: Tensor) -> None:
        """Go on with the utterances that `kept` (B,), on the CPU, marks."""
        self.most, self._least_B = self.most[kept], self._least_B[kept]
