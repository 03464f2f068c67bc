# SPDX-License-Identifier: Apache-2.0
"""Linear layers, on a CPU by oneDNN where no gradient is needed.

Dimension key: D input width, E output width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS: dict[type[nn.Module] | None, tuple[str, str]] = {
    None: ("none", ""),
    nn.ReLU: ("relu", ""),
    nn.SiLU: ("swish", ""),
    nn.GELU: ("gelu", "none"),
}
"""The activations that oneDNN computes with a product → its name and its algorithm for each."""

_HAS_ONEDNN = bool(
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Linear(nn.Linear):
    """`nn.Linear`, computed by the function `linear`; an activation may follow."""

    def forward(self, input: Tensor, activation: nn.Module | None = None) -> Tensor:
        """input (…, D) → (…, E); `activation` as in `linear`."""
        return linear(input, self.weight, self.bias, activation)


def linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: nn.Module | None = None
) -> Tensor:
    """`F.linear` and an activation, computed by oneDNN on a CPU where no gradient is needed.

    For float32 PyTorch uses MKL, which uses only half of the vector width of AMD's processors.
    oneDNN is twice as fast there. It sums in another order, so results differ in the last bits.

    Args:
        input: (…, D); weight: (E, D); bias: (E,).
        activation: applied to the result. oneDNN computes those in `ACTIVATIONS`; with any other
            one PyTorch computes both.
    Returns: (…, E).
    """
    activation_type = None if activation is None else type(activation)
    has_onednn_name = activation_type in ACTIVATIONS
    if not has_onednn_name or not _should_use_onednn(input, weight, bias):
        output = F.linear(input, weight, bias)
        return output if activation is None else activation(output)
    name, algorithm = ACTIVATIONS[activation_type]
    rows_ND = input.reshape(-1, input.size(-1))
    # The operator that torch.compile uses for a linear layer. It has no gradient.
    rows_NE: Tensor = torch.ops.mkldnn._linear_pointwise(rows_ND, weight, bias, name, [], algorithm)
    return rows_NE.view(*input.shape[:-1], -1)


def _should_use_onednn(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether to call oneDNN's operator: if it can compute this product, and PyTorch would use MKL.

    It can only compute float32 on a CPU, without gradients and outside of a traced program.
    """
    # This is asked first, because torch.export cannot trace get_float32_matmul_precision.
    if torch.compiler.is_compiling():
        return False
    is_on_cpu = input.device.type == weight.device.type == "cpu"
    if not _HAS_ONEDNN or not is_on_cpu:
        return False
    is_empty = not input.numel() or not len(weight)
    if is_empty:
        return False
    if torch.is_grad_enabled() and _has_gradient(input, weight, bias):
        return False
    is_float32 = input.dtype == weight.dtype == torch.float32
    if not is_float32 or torch.is_autocast_enabled("cpu"):
        return False
    if torch.get_float32_matmul_precision() == "medium":  # then PyTorch itself calls oneDNN
        return False
    return bool(torch.backends.mkldnn.enabled)


def _has_gradient(*tensors: Tensor | None) -> bool:
    """Whether one of the tensors requires a gradient; None counts as a tensor without one."""
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)
