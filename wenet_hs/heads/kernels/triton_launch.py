# SPDX-License-Identifier: Apache-2.0
"""Where Triton kernels run, and how they are started.

Triton decides when it is imported whether it interprets them.
"""

import importlib.util
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from wenet_hs.heads.gpu import is_gpu


def has_triton() -> bool:
    """Whether Triton is installed; torch brings it on Linux."""
    return importlib.util.find_spec("triton") is not None


def can_use_triton(rows: Tensor) -> bool:
    """Whether Triton kernels compute with this tensor: float32 on a GPU, and torch.compile or
    export does not trace.
    """
    is_float32_on_gpu = rows.dtype == torch.float32 and is_gpu(rows.device)
    return is_float32_on_gpu and has_triton() and not torch.compiler.is_compiling()


def launch(
    kernel: Any, grid: tuple[int, ...], *arguments: Tensor | float, **constants: Any
) -> None:
    """Start a kernel on the device of its first tensor; Triton itself would take the current
    device.
    """
    device = next(value.device for value in arguments if isinstance(value, Tensor))
    is_interpreted = not is_gpu(device)
    if 0 not in grid:
        with nullcontext() if is_interpreted else torch.get_device_module(device).device(device):
            _start(kernel, grid, arguments, constants)


def _start(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]
) -> None:
    kernel[grid](*arguments, **constants)
