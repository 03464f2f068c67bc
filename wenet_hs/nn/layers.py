# SPDX-License-Identifier: Apache-2.0
"""Parts that encoder and decoder layers share: masks, activations, feed-forward, residual branches, recomputation.

Dimension key: B batch, T time, L label, D width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from wenet_hs.nn.cpu import Dropout, Linear

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "swish": nn.SiLU, "gelu": nn.GELU}
"""By WeNet's names."""


def length_mask(lengths: Tensor, max_length: int) -> Tensor:
    """Which positions of a padded batch contain data: lengths (B,) → (B, max_length) bool, True = data."""
    positions_T = torch.arange(max_length, device=lengths.device)
    return positions_T < lengths[:, None]


def causal_mask(length: int, *, device: torch.device | None = None) -> Tensor:
    """Each query (row) sees the keys up to its own position: (length, length) bool, True = seen."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


class FeedForward(nn.Module):
    """Two linear layers that are applied to each position separately."""

    def __init__(self, size: int, hidden_size: int, *, dropout_rate: float, activation: str) -> None:
        super().__init__()
        self.w_1 = Linear(size, hidden_size)
        self.activation = ACTIVATIONS[activation]()
        self.dropout = Dropout(dropout_rate)
        self.w_2 = Linear(hidden_size, size)

    def forward(self, x: Tensor) -> Tensor:
        """x (…, D) → (…, D)."""
        return self.w_2(self.dropout(self.w_1(x, self.activation)))


class Residual(nn.Module):
    """x + scale · dropout(branch(norm(x))), or with the norm after the sum. It has no parameters of its own."""

    def __init__(self, dropout_rate: float, normalize_before: bool) -> None:
        super().__init__()
        self.dropout = Dropout(dropout_rate)
        self.normalize_before = normalize_before

    def forward(self, x: Tensor, norm: nn.Module, branch: Callable[[Tensor], Tensor], scale: float = 1.0) -> Tensor:
        """x (…, D) → (…, D)."""
        change = self.dropout(branch(norm(x) if self.normalize_before else x))
        out = x.add(change, alpha=scale)
        return out if self.normalize_before else norm(out)


def run_layer(layer: nn.Module, *inputs: Tensor, recompute: bool) -> Tensor:
    """layer(*inputs) → (B, T, D). With `recompute` only the inputs are kept for the backward pass (Chen et al. 2016).

    The layer is then computed a second time there. Losses and gradients are bit-equal: dropout draws the same numbers
    again, and buffers such as the running statistics of a batch normalization are not updated twice.
    """
    if not (recompute and torch.is_grad_enabled()):
        return layer(*inputs)
    return checkpoint(
        layer, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), _unchanged_buffers(layer))
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
