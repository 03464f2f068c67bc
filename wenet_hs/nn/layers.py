# SPDX-License-Identifier: Apache-2.0
"""Parts that encoder and decoder share.

They are masks, feed-forward, residual branches, recomputation and positional encodings.

Dimension key: B batch, T time, L label, D width, M rows at positions of their own.
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

_LEAST_ROWS = 512
"""The fewest rows that a table of positions is made with."""
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "swish": nn.SiLU, "gelu": nn.GELU}
"""WeNet's name of an activation → its module."""


def causal_mask(length: int, *, device: torch.device | None = None) -> Tensor:
    """The mask by which each query (row) sees the keys (columns) up to its own position.

    Returns: (length, length) bool, True = seen.
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


class Chunk(NamedTuple):
    """The chunks of an encoder's attention (Zhang et al. 2020).

    A frame sees all frames of its own chunk and of some chunks before it.
    """

    size: int
    """Encoder frames."""
    left: int = -1
    """Chunks before its own that a frame sees; -1: all."""

    def mask(self, length: int, device: torch.device | None = None) -> Tensor:
        """Which frames (columns) each frame (row) sees: (length, length) bool, True = seen."""
        frames_T = torch.arange(length, device=device)
        chunks_T1 = (frames_T // self.size)[:, None]  # the chunk of each row
        end_of_chunk_T1 = (chunks_T1 + 1) * self.size
        seen_TT = frames_T < end_of_chunk_T1
        sees_all_before = self.left < 0
        if sees_all_before:
            return seen_TT
        first_seen_T1 = (chunks_T1 - self.left) * self.size
        return seen_TT & (frames_T >= first_seen_T1)


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
    """x + scale · dropout(branch(norm(x))), or norm(x + scale · dropout(branch(x))).

    The first one is computed if `normalize_before` is set. The module has no parameters of its own:
    `norm` and `branch` are arguments of `forward`.
    """

    def __init__(self, dropout_rate: float, normalize_before: bool) -> None:
        super().__init__()
        self.dropout = Dropout(dropout_rate)
        self.normalize_before = normalize_before

    def forward(
        self, x: Tensor, norm: nn.Module, branch: Callable[[Tensor], Tensor], scale: float = 1.0
    ) -> Tensor:
        """x (…, D) → (…, D): x plus `scale` times what the branch makes of it, after dropout.

        `norm` is applied to the input of the branch, or to the sum if `normalize_before` is False.
        """
        branch_input = norm(x) if self.normalize_before else x
        change = self.dropout(branch(branch_input))
        out = x.add(change, alpha=scale)
        return out if self.normalize_before else norm(out)


def run_layer(layer: nn.Module, *inputs: Tensor, recompute: bool) -> Tensor:
    """layer(*inputs) → (B, T, D).

    With `recompute` only the inputs are kept for the backward pass (Chen et al. 2016), which
    computes the layer a second time. Losses and gradients are bit-equal: dropout draws the same
    numbers again, and buffers such as the running statistics of a batch normalization are not
    updated twice. Without gradients `recompute` has no effect.
    """
    if not (recompute and torch.is_grad_enabled()):
        return layer(*inputs)
    return checkpoint(
        layer,
        *inputs,
        use_reentrant=False,
        # The contexts of the first and of the second computation.
        context_fn=lambda: (nullcontext(), _unchanged_buffers(layer)),
    )


@contextmanager
def _unchanged_buffers(layer: nn.Module) -> Iterator[None]:
    """A context after which the buffers of a layer have the values that they had before."""
    before = [(buffer, buffer.clone()) for buffer in layer.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


# ---- sinusoidal positions (Vaswani et al. 2017) as WeNet applies them


def sinusoids(length: int, size: int, offset: int | Tensor = 0) -> Tensor:
    """The vectors of `length` positions from `offset` on, (length, size) float32.

    Columns 2 i and 2 i + 1 are sine and cosine of position / 10000^(2 i / size). Positions below 0
    are those of cached frames that do not exist yet; they get the vector of position 0.

    offset: a number, or a 0-dim tensor.
    """
    positions_T = (torch.arange(length, dtype=torch.float32) + offset).clamp(min=0)
    even_columns = torch.arange(0, size, 2, dtype=torch.float32)
    rates = torch.exp(even_columns * -(math.log(10000.0) / size))
    angles = positions_T[:, None] * rates
    sines_and_cosines = torch.stack([angles.sin(), angles.cos()], dim=-1)
    return sines_and_cosines.flatten(1)[:, :size]  # an odd size has one cosine less


class PositionalEncoding(nn.Module):
    """Scales the input of the first layer and gives it positions.

    `kind` is WeNet's name. "abs_pos": x·√D + position. "rel_pos": x·√D; the attention
    (`rel_selfattn`) adds the positions to its keys. "no_pos": x, and positions that are zero.

    Positions are rows of a table, which is extended when needed and is not in the state_dict.
    """

    def __init__(self, size: int, dropout_rate: float, kind: str = "abs_pos") -> None:
        super().__init__()
        self.size = size
        self.scale = math.sqrt(size)
        self.kind = kind
        self.dropout = Dropout(dropout_rate)
        # Not a buffer: DistributedDataParallel would broadcast tables of different lengths.
        self._table_TD = torch.empty(0, size)

    def positions(self, length: int, device: torch.device, offset: int | Tensor = 0) -> Tensor:
        """The vectors of `length` positions from `offset` on, (1, length, D) float32 on `device`.

        Those from 0 on are rows of the table. Others are computed, and so are all while torch
        compiles.
        """
        # With another offset the table would grow as long as a stream goes on. torch.export would
        # fix its length.
        if torch.compiler.is_compiling() or not _is_zero(offset):
            return sinusoids(length, self.size, offset).to(device)[None]
        if length > len(self._table_TD) or self._table_TD.device != device:
            self._renew_table(length, device)
        return self._table_TD[None, :length]

    def _renew_table(self, length: int, device: torch.device) -> None:
        """Computes the table on `device`, for at least `length` positions.

        It never has fewer rows than before, nor fewer than `_LEAST_ROWS`.
        """
        least_rows = max(length, _LEAST_ROWS, len(self._table_TD))
        num_rows = 1 << (least_rows - 1).bit_length()  # rounded up to a power of two
        with torch.inference_mode(False):  # training after recognition uses the same table
            self._table_TD = copy_to(device, sinusoids(num_rows, self.size))

    def forward(
        self, x: Tensor, offset: int | Tensor = 0, cached: int = 0
    ) -> tuple[Tensor, Tensor]:
        """The input of the first layer, and the positions, both after dropout.

        The input is x·√D + position ("abs_pos"), x·√D ("rel_pos"), or x ("no_pos", with positions
        that are zero).

        Args:
            x: (B, T, D), frames or units from position `offset` on.
            cached: the number of frames before x in a cache, which get positions too.
        Returns: (B, T, D) and (1, cached + T, D).
        """
        length = cached + x.size(1)
        if self.kind == "no_pos":
            return self.dropout(x), x.new_zeros(1, length, self.size)
        positions_1SD = self.positions(length, x.device, offset - cached)
        if self.kind == "rel_pos":
            # float32 positions keep the sums of the residual branches in float32 under autocast.
            scaled_BTD = x.to(positions_1SD.dtype) * self.scale
        else:
            scaled_BTD = x * self.scale + positions_1SD[:, cached:]
        return self.dropout(scaled_BTD), self.dropout(positions_1SD)

    def at(self, x: Tensor, positions: Tensor, *, bound: int) -> Tensor:
        """Like `forward` of "abs_pos", for rows that have each a position of its own.

        Args:
            x: (M, D).
            positions: (M,), all below `bound`.
        Returns: (M, D).
        """
        positions_MD = self.positions(bound, x.device)[0, positions]
        return self.dropout(x * self.scale + positions_MD)


def _is_zero(offset: int | Tensor) -> bool:
    """Whether an offset is the number 0; False for a tensor, whose value is not read."""
    return isinstance(offset, int) and offset == 0
