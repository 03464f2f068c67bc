# SPDX-License-Identifier: Apache-2.0
"""Computation of the output heads: the plain PyTorch reference, Numba kernels for CPUs and Triton kernels for GPUs."""

import torch
from torch import Tensor


def can_use_kernels(rows: Tensor) -> bool:
    """Whether Numba kernels compute with this tensor: float32 on a CPU."""
    return rows.device.type == "cpu" and rows.dtype == torch.float32
