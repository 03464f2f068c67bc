# SPDX-License-Identifier: Apache-2.0
"""Linear layers that are as fast on a CPU as the CPU is.   Dimension key: D width in, E width out."""

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
