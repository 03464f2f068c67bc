# SPDX-License-Identifier: Apache-2.0
"""Masks of padded batches.  Dimension key: B sequences."""

import torch
from torch import Tensor


def length_mask(lengths: Tensor, max_length: int) -> Tensor:
    """Which positions of a padded batch contain data: lengths (B,) → (B, max_length) bool."""
    positions_T = torch.arange(max_length, device=lengths.device)
    return positions_T < lengths[:, None]
