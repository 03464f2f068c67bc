# SPDX-License-Identifier: Apache-2.0
"""What the code does otherwise on a GPU depends on `is_gpu`, so that tests can take its branches
without one.
"""

import torch
from torch import Tensor

GPU_TYPES: tuple[str, ...] = ("cuda",)
"""Types of devices that compute beside the program, which waits only where it reads a value.

Tests add one.
"""


def is_gpu(device: torch.device) -> bool:
    return device.type in GPU_TYPES


def copy_to(device: torch.device, values: Tensor) -> Tensor:
    """The values, computed on the CPU, on the device; a GPU is not waited for."""
    return (
        values.pin_memory().to(device, non_blocking=True) if is_gpu(device) else values.to(device)
    )
