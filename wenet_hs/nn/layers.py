# SPDX-License-Identifier: Apache-2.0
"""Parts that encoder and decoder share: masks, feed-forward, residual branches, recomputation,
positional encodings.

Dimension key: B batch, T time, L label, D width.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from wenet_hs.heads.gpu import copy_to
from wenet_hs.heads.products import Linear
from wenet_hs.nn.dropout import Dropout

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "swish": nn.SiLU, "gelu": nn.GELU}
"""By WeNet's names."""


def causal_mask(length: int, *, device: torch.device | None = None) -> Tensor:
    """Each query (row) sees the keys up to its own position: (length, length) bool, True = seen."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


class Chunk(NamedTuple):
    """Chunks of the attention of an encoder: a frame sees its own chunk and some before it (Zhang
    et al. 2020).
    """

    size: int
    """Encoder frames."""
    left: int = -1
    """Chunks before its own that a frame sees; -1: all."""

    def mask(self, length: int, device: torch.device | None = None) -> Tensor:
        """Which frames (columns) each frame sees: (length, length) bool, True = seen."""
        frames_T = torch.arange(length, device=device)
        numbers_T = frames_T // self.size
        seen_TT = frames_T < (numbers_T[:, None] + 1) * self.size
        return (
            seen_TT
            if self.left < 0
            else seen_TT & (frames_T >= (numbers_T[:, None] - self.left) * self.size)
        )


class FeedForward(nn.Module):
    """Two linear layers that are applied to each position separately."""

    def __init__(
        self, size: int, hidden_size: int, *, dropout_rate: float, activation: str
    ) -> None:
        super().__init__()
        self.w_1 = Linear(size, hidden_size)
        self.activation = ACTIVATIONS[activation]()
        self.dropout = Dropout(dropout_rate)
        self.w_2 = Linear(hidden_size, size)

    def forward(self, x: Tensor) -> Tensor:
        """x (…, D) → (…, D)."""
        return self.w_2(self.dropout(self.w_1(x, self.activation)))


class Residual(nn.Module):
    """x + scale · dropout(branch(norm(x))), or with the norm after the sum.

    It has no parameters of its own.
    """

    def __init__(self, dropout_rate: float, normalize_before: bool) -> None:
        super().__init__()
        self.dropout = Dropout(dropout_rate)
        self.normalize_before = normalize_before

    def forward(
        self, x: Tensor, norm: nn.Module, branch: Callable[[Tensor], Tensor], scale: float = 1.0
    ) -> Tensor:
        """x (…, D) → (…, D)."""
        change = self.dropout(branch(norm(x) if self.normalize_before else x))
        out = x.add(change, alpha=scale)
        return out if self.normalize_before else norm(out)


def run_layer(layer: nn.Module, *inputs: Tensor, recompute: bool) -> Tensor:
    """layer(*inputs) → (B, T, D).

    With `recompute` only the inputs are kept for the backward pass (Chen et al. 2016).

    The layer is then computed a second time there. Losses and gradients are bit-equal: dropout
    draws the same numbers again, and buffers such as the running statistics of a batch
    normalization are not updated twice.
    """
    if not (recompute and torch.is_grad_enabled()):
        return layer(*inputs)
    return checkpoint(
        layer,
        *inputs,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), _unchanged_buffers(layer)),
    )


@contextmanager
def _unchanged_buffers(layer: nn.Module) -> Iterator[None]:
    before = [(buffer, buffer.clone()) for buffer in layer.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


# ---- sinusoidal positions (Vaswani et al. 2017) as WeNet applies them


def sinusoids(length: int, size: int, offset: int | Tensor = 0) -> Tensor:
    """`length` positions from `offset` on, (length, size) float32: sine on even columns, cosine on
    odd ones.

    Positions below 0 are those of cached frames that do not exist yet; they get 0. `offset`: a
    number, or 0-dim.
    """
    positions_T = (torch.arange(length, dtype=torch.float32) + offset).clamp(min=0)
    rates = torch.exp(torch.arange(0, size, 2, dtype=torch.float32) * -(math.log(10000.0) / size))
    angles = positions_T[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :size]


class PositionalEncoding(nn.Module):
    """Scales the input of the first layer and gives it positions: a table that is extended when
    needed.

    `kind` is WeNet's name. "abs_pos": x·√D + position. "rel_pos": x·√D; the attention
    (`rel_selfattn`) adds the positions to its keys. "no_pos": x, and positions that are zero. The
    table is not in the state_dict.
    """

    def __init__(self, size: int, dropout_rate: float, kind: str = "abs_pos") -> None:
        super().__init__()
        self.size, self.scale, self.kind = size, math.sqrt(size), kind
        self.dropout = Dropout(dropout_rate)
        # Not a buffer: DistributedDataParallel would broadcast tables of different lengths.
        self._table_TD = torch.empty(0, size)

    def positions(self, length: int, device: torch.device, offset: int | Tensor = 0) -> Tensor:
        """The positions from `offset` on, (1, length, D) float32 on `device`: rows of the table
        from 0 on.
        """
        # torch.export would fix the greatest length of a table; that of a stream would grow.
        if torch.compiler.is_compiling() or not isinstance(offset, int) or offset:
            return sinusoids(length, self.size, offset).to(device)[None]
        if length > len(self._table_TD) or self._table_TD.device != device:
            rows = max(length, 512, len(self._table_TD))
            with torch.inference_mode(False):  # training after recognition uses the same table
                self._table_TD = copy_to(device, sinusoids(1 << (rows - 1).bit_length(), self.size))
        return self._table_TD[None, :length]

    def forward(
        self, x: Tensor, offset: int | Tensor = 0, cached: int = 0
    ) -> tuple[Tensor, Tensor]:
        """x (B, T, D) from position `offset` on → (input of the first layer, positions (1, cached +
        T, D)).

        The positions are those of x and of `cached` frames before it.
        """
        if self.kind == "no_pos":
            return self.dropout(x), x.new_zeros(1, cached + x.size(1), self.size)
        positions_1SD = self.positions(cached + x.size(1), x.device, offset - cached)
        if self.kind == "rel_pos":
            # float32 positions keep the sums of the residual branches in float32 under autocast.
            return self.dropout(x.to(positions_1SD.dtype) * self.scale), self.dropout(positions_1SD)
        return self.dropout(x * self.scale + positions_1SD[:, cached:]), self.dropout(positions_1SD)

    def at(self, x: Tensor, positions: Tensor, *, bound: int) -> Tensor:
        """x (M, D), each row at its own position (M,), all below `bound` → (M, D), as in `forward`
        of "abs_pos".
        """
        return self.dropout(x * self.scale + self.positions(bound, x.device)[0, positions])
