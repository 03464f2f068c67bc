# SPDX-License-Identifier: Apache-2.0
"""Parts that encoder and decoder layers share: masks, activations, feed-forward, residual branches, recomputation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from wenet_hs.nn.cpu import Dropout, Linear


def length_mask(lengths: Tensor, max_length: int) -> Tensor:
    """Which positions of a padded batch hold data: lengths (B,) → (B, max_length) bool."""
    positions_T = torch.arange(max_length, device=lengths.device)
    return positions_T < lengths[:, None]


def causal_mask(length: int, *, offset: int = 0, device: torch.device | None = None) -> Tensor:
    """Query i (row) sees keys up to `offset` + i: (length, offset + length) bool."""
    full = torch.ones(length, offset + length, dtype=torch.bool, device=device)
    return full.tril(offset)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "swish": nn.SiLU,
    "gelu": nn.GELU,
}


def make_activation(name: str) -> nn.Module:
    """The activation of WeNet's name; ValueError lists the names there are."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]()


class FeedForward(nn.Module):
    """Two linear layers, applied to each position alone."""

    def __init__(self, size: int, hidden_size: int, *, dropout_rate: float, activation: str) -> None:
        super().__init__()
        self.w_1 = Linear(size, hidden_size)
        self.activation = make_activation(activation)
        self.dropout = Dropout(dropout_rate)
        self.w_2 = Linear(hidden_size, size)

    def forward(self, x: Tensor, *, plus: Tensor | None = None) -> Tensor:
        """x (…, D) → (…, D), added to `plus` if it is given."""
        out: Tensor = self.w_2(self.dropout(self.w_1(x, self.activation)), plus=plus)
        return out


class Residual(nn.Module):
    """x + scale · dropout(branch(norm(x))), or the norm behind the sum. It holds no parameter of its own."""

    def __init__(self, dropout_rate: float, normalize_before: bool) -> None:
        super().__init__()
        self.dropout = Dropout(dropout_rate)
        self.normalize_before = normalize_before

    def forward(self, x: Tensor, norm: nn.Module, branch: Callable[[Tensor], Tensor], scale: float = 1.0) -> Tensor:
        """x (B, T, D) → (B, T, D)."""
        change_BTD = self.dropout(branch(norm(x) if self.normalize_before else x))
        out: Tensor = x.add(change_BTD, alpha=scale)
        return out if self.normalize_before else norm(out)

    def onto(self, x: Tensor, norm: nn.Module, branch: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The same without dropout, of a branch that adds itself: branch(y, x) = x + what it makes of y."""
        out = branch(norm(x) if self.normalize_before else x, x)
        return out if self.normalize_before else norm(out)


def run_layer(layer: nn.Module, *inputs: Tensor, recompute: bool) -> Tensor:
    """layer(*inputs) → (B, T, D). With `recompute`, while gradients are wanted, only the inputs are kept for them."""
    if not (recompute and torch.is_grad_enabled()):
        out: Tensor = layer(*inputs)
        return out
    recomputed: Tensor = checkpoint(
        layer, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), _unchanged_buffers(layer))
    )
    return recomputed


@contextmanager
def _unchanged_buffers(layer: nn.Module) -> Iterator[None]:
    before = [(buffer, buffer.clone()) for buffer in layer.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
