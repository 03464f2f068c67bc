# SPDX-License-Identifier: Apache-2.0
"""Sinusoidal positions (Vaswani et al. 2017) as WeNet applies them.   Dimension key: B batch, T time, D width."""

import math

import torch
from torch import Tensor, nn

from wenet_hs.nn.cpu import Dropout

_FIRST_TABLE = 512


def sinusoids(length: int, size: int) -> Tensor:
    """The table of `length` positions, (length, size) float32: sine on even columns, cosine on odd ones."""
    positions_T = torch.arange(length, dtype=torch.float32)
    rates = torch.exp(torch.arange(0, size, 2, dtype=torch.float32) * -(math.log(10000.0) / size))
    angles = positions_T[:, None] * rates
    table_TD = torch.empty(length, size)
    table_TD[:, 0::2] = angles.sin()
    table_TD[:, 1::2] = angles.cos()[:, : size // 2]
    return table_TD


class PositionalEncoding(nn.Module):
    """What the three ways of marking positions share: a table that grows on demand and is no part of the state_dict."""

    def __init__(self, size: int, dropout_rate: float) -> None:
        super().__init__()
        self.size = size
        self.scale = math.sqrt(size)
        self.dropout = Dropout(dropout_rate)
        # A plain attribute: as a buffer, DistributedDataParallel would broadcast tables of different lengths.
        self._table_TD = torch.empty(0, size)

    def positions(self, length: int, *, offset: int = 0, device: torch.device) -> Tensor:
        """Rows `offset` … `offset` + length - 1 of the table, (1, length, D) float32 on `device`."""
        end = offset + length
        if end > len(self._table_TD) or self._table_TD.device != device:
            rows = max(end, _FIRST_TABLE, len(self._table_TD))
            with torch.inference_mode(False):  # training, after recognition, must be able to use the same table
                self._table_TD = sinusoids(1 << (rows - 1).bit_length(), self.size).to(device)
        return self._table_TD[None, offset:end]

    def forward(self, x: Tensor, offset: int = 0) -> tuple[Tensor, Tensor]:
        """x (B, T, D) at positions from `offset` → (x ready for the first layer, positions (1, T, D))."""
        raise NotImplementedError


class AbsolutePositionalEncoding(PositionalEncoding):
    """x·√D + position."""

    def forward(self, x: Tensor, offset: int = 0) -> tuple[Tensor, Tensor]:
        positions_1TD = self.positions(x.size(1), offset=offset, device=x.device)
        return self.dropout(x * self.scale + positions_1TD), self.dropout(positions_1TD)

    def at(self, x: Tensor, positions: Tensor, *, bound: int) -> Tensor:
        """x (M, D), each row at a position of its own (M,), all below `bound` → (M, D), as `forward` makes it."""
        out: Tensor = self.dropout(x * self.scale + self.positions(bound, device=x.device)[0, positions])
        return out


class RelativePositionalEncoding(PositionalEncoding):
    """x·√D; the positions go to the attention (`rel_selfattn`), which adds them to its keys."""

    def forward(self, x: Tensor, offset: int = 0) -> tuple[Tensor, Tensor]:
        positions_1TD = self.positions(x.size(1), offset=offset, device=x.device)
        # Their dtype keeps the sums of the residual branches in float32 under autocast.
        return self.dropout(x.to(positions_1TD.dtype) * self.scale), self.dropout(positions_1TD)


class NoPositionalEncoding(PositionalEncoding):
    """x as it is, and positions that are zero."""

    def forward(self, x: Tensor, offset: int = 0) -> tuple[Tensor, Tensor]:
        return self.dropout(x), x.new_zeros(1, x.size(1), self.size)
