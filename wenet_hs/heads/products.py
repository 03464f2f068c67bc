# SPDX-License-Identifier: Apache-2.0
"""Matrix products on a CPU: linear layers by oneDNN where no gradient is needed.

Dimension key: D input width, E output width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_POST_OPS: dict[type[nn.Module] | None, tuple[str, str]] = {
    None: ("none", ""),
    nn.ReLU: ("relu", ""),
    nn.SiLU: ("swish", ""),
    nn.GELU: ("gelu", "none"),
}
"""Activation → oneDNN's name and algorithm for it."""

_HAS_ONEDNN = bool(
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Linear(nn.Linear):
    """`nn.Linear`, computed by the function `linear`; an activation may follow."""

    def forward(self, input: Tensor, activation: nn.Module | None = None) -> Tensor:
        return linear(input, self.weight, self.bias, activation)


def linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: nn.Module | None = None
) -> Tensor:
    """`F.linear` and an activation, computed by oneDNN on a CPU where no gradient is needed.

    PyTorch uses MKL for float32, which uses only half of the vector width of AMD's processors;
    oneDNN is twice as fast there. It sums in another order, so results differ in the last bits.

    Args:
        input: (…, D); weight: (E, D); bias: (E,).
        activation: without parameters, one of `ACTIVATIONS`.
    Returns: (…, E).
    """
    post_op = _POST_OPS.get(None if activation is None else type(activation))
    if post_op is None or not _is_for_onednn(input, weight, bias):
        out = F.linear(input, weight, bias)
        return out if activation is None else activation(out)
    # The operator that torch.compile uses for a linear layer. It has no gradient.
    rows_ND, (name, algorithm) = input.reshape(-1, input.size(-1)), post_op
    rows_NE: Tensor = torch.ops.mkldnn._linear_pointwise(rows_ND, weight, bias, name, [], algorithm)
    return rows_NE.view(*input.shape[:-1], -1)


def _is_for_onednn(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    if (
        torch.compiler.is_compiling()
    ):  # first: torch.export cannot trace get_float32_matmul_precision
        return False
    if not (
        _HAS_ONEDNN
        and input.device.type == weight.device.type == "cpu"
        and input.numel()
        and len(weight)
    ):
        return False
    if torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (input, weight, bias)
    ):
        return False
    if not (input.dtype == weight.dtype == torch.float32) or torch.is_autocast_enabled("cpu"):
        return False
    if torch.get_float32_matmul_precision() == "medium":  # then PyTorch itself calls oneDNN
        return False
    return bool(torch.backends.mkldnn.enabled)
