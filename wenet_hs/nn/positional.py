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
    """Base of the three positional encodings: a table that is extended when needed and is not in the state_dict."""

    def __init__(self, size: int, dropout_rate: float) -> None:
        super().__init__()
        self.size = size
        self.scale = math.sqrt(size)
        self.dropout = Dropout(dropout_rate)
        # Not a buffer: DistributedDataParallel would broadcast tables of different lengths.
        self._table_TD = torch.empty(0, size)

    def positions(self, length: int, device: torch.device) -> Tensor:
        """The first rows of the table, (1, length, D) float32 on `device`."""
        if length > len(self._table_TD) or self._table_TD.device != device:
            rows = max(length, _FIRST_TABLE, len(self._table_TD))
            with torch.inference_mode(False):  # training after recognition uses the same table
                self._table_TD = sinusoids(1 << (rows - 1).bit_length(), self.size).to(device)
        return self._table_TD[None, :length]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, D) → (input of the first layer, positions (1, T, D))."""
        raise NotImplementedError


class AbsolutePositionalEncoding(PositionalEncoding):
    """x·√D + position."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        positions_1TD = self.positions(x.size(1), x.device)
        return self.dropout(x * self.scale + positions_1TD), self.dropout(positions_1TD)

    def at(self, x: Tensor, positions: Tensor, *, bound: int) -> Tensor:
        """x (M, D), each row at its own position (M,), all below `bound` → (M, D), as in `forward`."""
        return self.dropout(x * self.scale + self.positions(bound, x.device)[0, positions])


class RelativePositionalEncoding(PositionalEncoding):
    """x·√D; the attention (`rel_selfattn`) adds the positions to its keys."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        positions_1TD = self.positions(x.size(1), x.device)
        # float32 positions keep the sums of the residual branches in float32 under autocast.
        return self.dropout(x.to(positions_1TD.dtype) * self.scale), self.dropout(positions_1TD)


class NoPositionalEncoding(PositionalEncoding):
    """x unchanged, and positions that are zero."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.dropout(x), x.new_zeros(1, x.size(1), self.size)
