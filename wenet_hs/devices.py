# SPDX-License-Identifier: Apache-2.0
"""Which device a command runs on, and what it computes natively."""

import torch

from wenet_hs.errors import ConfigError


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
