# SPDX-License-Identifier: Apache-2.0
"""What depends on the type of a device: whether the program has to wait for it, and copies to it.

Tests can take the branches of a GPU without one, because all code asks `is_gpu`.
"""

import torch
from torch import Tensor

GPU_TYPES: tuple[str, ...] = ("cuda",)
"""The types of devices that compute while the program goes on.

The program waits for them only where it reads a value. Tests add a type.
"""


def is_gpu(device: torch.device) -> bool:
    """Whether the device computes while the program goes on, so that reading a value waits."""
    return device.type in GPU_TYPES


def copy_to(device: torch.device, values: Tensor) -> Tensor:
    """Copy values from the CPU to the device; the program does not wait for a GPU."""
    if is_gpu(device):
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
