# SPDX-License-Identifier: Apache-2.0
"""What depends on the type of a device: whether it computes beside the program, copies to it.

Tests can take the branches of a GPU without one, because all code asks `is_gpu`.
"""

import torch
from torch import Tensor

GPU_TYPES: tuple[str, ...] = ("cuda",)
"""The types of devices that compute beside the program, which waits only where it reads a value.

Tests add one.
"""


def is_gpu(device: torch.device) -> bool:
    """Whether the device computes beside the program."""
    return device.type in GPU_TYPES


def copy_to(device: torch.device, values: Tensor) -> Tensor:
    """A copy on the device of values that are on the CPU; the program does not wait for a GPU."""
    if is_gpu(device):
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
