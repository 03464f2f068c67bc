# SPDX-License-Identifier: Apache-2.0
"""A linear layer that is as fast on a CPU as the CPU is.   Dimension key: D width in, E width out."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """`nn.Linear`, but where no gradient is wanted on a CPU the product is oneDNN's.

    PyTorch takes MKL's for float32, which on AMD's processors uses half of the vector width: oneDNN is twice as fast
    there, and from the first row on. It adds in another order, so that results differ in the last bits.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(…, D) → (…, E)."""
        if not _fits_onednn(input, self.weight, self.bias):
            return F.linear(input, self.weight, self.bias)
        # What torch.compile calls for a linear layer; it has no gradient.
        rows_ND = input.reshape(-1, input.size(-1))
        rows_NE: Tensor = torch.ops.mkldnn._linear_pointwise(rows_ND, self.weight, self.bias, "none", [], "")
        return rows_NE.view(*input.shape[:-1], -1)


def _fits_onednn(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    if input.device.type != "cpu" or weight.device.type != "cpu" or not _HAS_ONEDNN or input.numel() == 0:
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
