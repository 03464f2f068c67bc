# SPDX-License-Identifier: Apache-2.0
"""Which device a command runs on, and what it computes natively."""

import resource
import sys

import torch

from wenet_hs.errors import ConfigError

_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
"""How CUDA, torch's allocator for the CPU and cuBLAS say it; only the first has an exception of its own."""


def find_device(name: str) -> torch.device:
    """The device of a `--device` flag; `auto` is a GPU where there is one. Raises ConfigError if it is not here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name}: not a device; use cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {name}: not supported; use cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ConfigError(f"--device {name}: there are {count} CUDA devices here; use another one or --device cpu")
    return device


def has_native_bf16(device: torch.device) -> bool:
    """Whether products of bfloat16 are faster than those of float32: where they are emulated they are far slower."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def has_native_fp16(device: torch.device) -> bool:
    """Whether products of float16 are computed by the hardware; where a CPU emulates them they take 50 times as long
    as those of float32 (measured with torch 2.11)."""
    return device.type == "cuda" or bool(torch.cpu._is_amx_fp16_supported())


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory held so far: by tensors on the device, or by this process where the device is the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return resident if sys.platform == "darwin" else 1024 * resident


def lacks_memory(error: Exception) -> bool:
    """Whether this is how too little memory shows."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY)
