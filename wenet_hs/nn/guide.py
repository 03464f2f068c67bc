# SPDX-License-Identifier: Apache-2.0
"""Guided attention: a penalty that teaches a young decoder to read its memory from front to back.

Speech is monotonic, and an untrained attention decoder does not know it: on an hour of speech it learns a language
model long before it learns to listen. The penalty is small where unit l of L looks at frame t of T with l/L near t/T
(Tachibana, Uenoyama and Aihara 2018, "Efficiently trainable text-to-speech system based on deep convolutional
networks with guided attention", section 4.1). It is for training alone and fades out.

Dimension key: B batch, H heads, L label, T time.
"""

import torch
from torch import Tensor

from wenet_hs.nn.masks import length_mask


class AttentionGuide:
    """Watches the attention of a decoder's layers to the memory during one forward pass, and sums the penalty."""

    def __init__(self, memory_lengths: Tensor, unit_lengths: Tensor, *, width: float) -> None:
        """memory_lengths (B,) in T; unit_lengths (B,) in L, each at least 1; `width`: the deviation, as a share of the
        utterance, at which the penalty is 1 - exp(-1/2) ≈ 0.39 of its greatest."""
        self._memory_lengths = memory_lengths
        self._unit_lengths = unit_lengths
        self._width = width
        self._layers: list[Tensor] = []

    def watch(self, weights: Tensor) -> None:
        """Take in the attention weights of a layer, (B, H, L, T); each row sums to one."""
        cost_BLT = self._cost(weights.size(2), weights.size(3))
        self._layers.append((weights.float().mean(1) * cost_BLT).sum())

    def penalty(self) -> Tensor:
        """The mean over layers and heads, summed over the units of the batch: 0-dim, at most 1 a unit."""
        return torch.stack(self._layers).mean()

    def _cost(self, num_labels: int, num_frames: int) -> Tensor:
        """(B, L, T): 1 - exp(-(l/L - t/T)² / 2·width²); 0 in the rows behind an utterance's last unit."""
        device = self._unit_lengths.device
        label_BL1 = (torch.arange(num_labels, device=device) / self._unit_lengths[:, None])[..., None]
        frame_B1T = (torch.arange(num_frames, device=device) / self._memory_lengths.clamp(min=1)[:, None])[:, None]
        cost_BLT = 1 - torch.exp(-(label_BL1 - frame_B1T).square() / (2 * self._width**2))
        return cost_BLT * length_mask(self._unit_lengths, num_labels)[..., None]
