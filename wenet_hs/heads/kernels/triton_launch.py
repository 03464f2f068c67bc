# SPDX-License-Identifier: Apache-2.0
"""Where Triton kernels run, and how they are started.

When Triton is imported, it decides whether it compiles kernels or interprets them.
"""

import importlib.util
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from wenet_hs.heads.gpu import is_gpu


def has_triton() -> bool:
    """Whether Triton is installed; on Linux it comes with torch."""
    return importlib.util.find_spec("triton") is not None


def can_use_triton(rows: Tensor) -> bool:
    """Whether Triton kernels compute with this tensor: it is float32 on a GPU.

    They do not if torch.compile or an export traces the program.
    """
    is_float32_on_gpu = rows.dtype == torch.float32 and is_gpu(rows.device)
    return is_float32_on_gpu and has_triton() and not torch.compiler.is_compiling()


def launch(
    kernel: Any, grid: tuple[int, ...], *arguments: Tensor | float, **constants: Any
) -> None:
    """Start a kernel on the device of its first tensor; Triton itself would take the current one.

    Args:
        grid: the number of programs in each dimension; with a 0 nothing is started.
        arguments: of the kernel, in its order.
        constants: its compile-time arguments, and options of Triton such as `num_warps`.
    """
    if 0 in grid:
        return
    device = next(value.device for value in arguments if isinstance(value, Tensor))
    is_interpreted = not is_gpu(device)
    with nullcontext() if is_interpreted else torch.get_device_module(device).device(device):
        _start(kernel, grid, arguments, constants)


def _start(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]
) -> None:
    """Start the kernel on the current device; tests replace this function to count launches."""
    kernel[grid](*arguments, **constants)
