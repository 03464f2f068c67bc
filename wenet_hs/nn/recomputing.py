# SPDX-License-Identifier: Apache-2.0
"""Layers that keep nothing for the backward pass and compute it a second time there (Chen et al. 2016).

Losses and gradients are the same to the last bit: dropout draws the same numbers again, and what a layer wrote into its
buffers the first time, the running statistics of a batch normalization, it does not write twice.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


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
