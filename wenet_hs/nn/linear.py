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
    """`nn.Linear` by `linear`, with an activation behind it if one is given."""

    def forward(self, input: Tensor, activation: nn.Module | None = None) -> Tensor:
        """(…, D) → (…, E)."""
        return linear(input, self.weight, self.bias, activation)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: nn.Module | None = None) -> Tensor:
    """`F.linear`, then the activation; where no gradient is wanted on a CPU both are oneDNN's.

    PyTorch takes MKL's product for float32, which on AMD's processors uses half of the vector width: oneDNN is twice as
    fast there, and from the first row on. It adds in another order, so that results differ in the last bits.

    Args:
        input: (…, D); weight: (E, D); bias: (E,).
        activation: without parameters, as `make_activation` makes them.
    Returns: (…, E).
    """
    post_op = _POST_OPS.get(None if activation is None else type(activation))
    if post_op is None or not _fits_onednn(input, weight, bias):
        out = F.linear(input, weight, bias)
        return out if activation is None else activation(out)
    # What torch.compile calls for a linear layer; it has no gradient.
    rows_ND = input.reshape(-1, input.size(-1))
    rows_NE: Tensor = torch.ops.mkldnn._linear_pointwise(rows_ND, weight, bias, post_op[0], [], post_op[1])
    return rows_NE.view(*input.shape[:-1], -1)


def _fits_onednn(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    if (
        input.device.type != "cpu"
        or weight.device.type != "cpu"
        or not _HAS_ONEDNN
        or 0 in (input.numel(), len(weight))
    ):
        return False
    wanted = input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    if torch.is_grad_enabled() and wanted:
        return False
    if input.dtype != torch.float32 or weight.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        return False
    return bool(torch.backends.mkldnn.enabled) and not torch.compiler.is_compiling()


_HAS_ONEDNN = bool(
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
) and hasattr(torch.ops.mkldnn, "_linear_pointwise")
