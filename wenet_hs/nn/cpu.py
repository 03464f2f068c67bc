# SPDX-License-Identifier: Apache-2.0
"""Linear layers and dropout, fast on a CPU.   Dimension key: D input width, E output width."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

_POST_OPS: dict[type[nn.Module] | None, tuple[str, str]] = {
    None: ("none", ""),
    nn.ReLU: ("relu", ""),
    nn.SiLU: ("swish", ""),
    nn.GELU: ("gelu", "none"),
}
"""What oneDNN does to a product while it is in the cache: name and algorithm."""


class Linear(nn.Linear):
    """`nn.Linear` by `linear`, with an activation or a sum behind it if one is given."""

    def forward(self, input: Tensor, activation: nn.Module | None = None, *, plus: Tensor | None = None) -> Tensor:
        """(…, D) → (…, E); plus is (…, E)."""
        return linear(input, self.weight, self.bias, activation, plus=plus)


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: nn.Module | None = None,
    *,
    plus: Tensor | None = None,
) -> Tensor:
    """`F.linear`, then the activation or the sum; where no gradient is wanted on a CPU all of it is oneDNN's.

    PyTorch takes MKL's product for float32, which on AMD's processors uses half of the vector width: oneDNN is twice as
    fast there, and from the first row on. It adds in another order, so that results differ in the last bits.

    Args:
        input: (…, D); weight: (E, D); bias: (E,).
        activation: without parameters, as `make_activation` makes them.
        plus: (…, E), added to the product; not beside an activation.
    Returns: (…, E).
    """
    post_op = _POST_OPS.get(None if activation is None else type(activation))
    if post_op is None or not _fits_onednn(input, weight, bias, plus):
        out = F.linear(input, weight, bias)
        out = out if activation is None else activation(out)
        return out if plus is None else plus + out
    # What torch.compile calls for a linear layer; it has no gradient.
    rows_ND, multiply = input.reshape(-1, input.size(-1)), torch.ops.mkldnn._linear_pointwise
    rows_NE: Tensor
    if plus is None:
        rows_NE = multiply(rows_ND, weight, bias, post_op[0], [], post_op[1])
    else:
        rows_NE = multiply.binary(rows_ND, plus.reshape(-1, len(weight)), weight, bias, "add")
    return rows_NE.view(*input.shape[:-1], -1)


def _fits_onednn(input: Tensor, weight: Tensor, bias: Tensor | None, plus: Tensor | None) -> bool:
    if input.device.type != "cpu" or weight.device.type != "cpu" or not _HAS_ONEDNN:
        return False
    if not (input.numel() and len(weight)):
        return False
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (input, weight, bias, plus)):
        return False
    if not (input.dtype == weight.dtype == torch.float32) or torch.is_autocast_enabled("cpu"):
        return False
    return bool(torch.backends.mkldnn.enabled) and not torch.compiler.is_compiling()


_HAS_ONEDNN = bool(
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


MANY_VALUES = 1 << 16
"""From so many on; below, torch has drawn them before Numba would be there."""

_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
_RANGE = 1 << 16


class Dropout(nn.Dropout):
    """nn.Dropout with other random numbers for large tensors on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """Any shape → the same."""
        if (
            not (self.training and 0 < self.p < 1)
            or input.device.type != "cpu"
            or input.numel() < MANY_VALUES
            or input.dtype not in _BITS
            or torch.compiler.is_compiling()
        ):
            return super().forward(input)
        return input * random_factors(input.shape, input.dtype, 1 - self.p)


def random_factors(shape: torch.Size, dtype: torch.dtype, keep: float) -> Tensor:
    """1 / keep with probability `keep`, else 0; both rounded to a multiple of 2^-16, so that their product is one.

    `dtype`: float32, bfloat16 or float16.
    """
    threshold = min(_RANGE, max(1, round(keep * _RANGE)))
    kept = torch.tensor(_RANGE / threshold, dtype=dtype).view(_BITS[dtype])
    seed = int(torch.randint(torch.iinfo(torch.int64).max, ()))
    num_values = shape.numel()
    factors_N = torch.empty((num_values + 3) // 4 * 4, dtype=_BITS[dtype])
    _compiled_fill()(factors_N.numpy(), np.uint64(seed), np.uint64(threshold), kept.numpy()[()])
    return factors_N[:num_values].view(dtype).view(shape)


@cache
def _compiled_fill() -> Callable[..., None]:
    import numba

    compiled: Callable[..., None] = numba.njit(nogil=True, cache=True)(_fill)
    return compiled


def _fill(out: Any, seed: Any, threshold: Any, kept: Any) -> None:
    """The bits `kept` where a hash of the place is below `threshold`, else 0; four values of each hash."""
    for quarter in range(len(out) // 4):
        mixed = seed + np.uint64(quarter) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
        for lane in range(4):
            value = (mixed >> np.uint64(16 * lane)) & np.uint64(0xFFFF)
            out[4 * quarter + lane] = kept if value < threshold else 0
