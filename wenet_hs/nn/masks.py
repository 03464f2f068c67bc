# SPDX-License-Identifier: Apache-2.0
"""Masks, True = keep.   Dimension key: B batch, T time, L label."""

import torch
from torch import Tensor


def length_mask(lengths: Tensor, max_length: int) -> Tensor:
    """Which positions of a padded batch hold data: lengths (B,) → (B, max_length) bool."""
    positions_T = torch.arange(max_length, device=lengths.device)
    return positions_T < lengths[:, None]


def causal_mask(length: int, *, offset: int = 0, device: torch.device | None = None) -> Tensor:
    """Query i (row) sees keys up to `offset` + i: (length, offset + length) bool."""
    full = torch.ones(length, offset + length, dtype=torch.bool, device=device)
    return full.tril(offset)
