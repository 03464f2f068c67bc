# SPDX-License-Identifier: Apache-2.0
"""The device of a command: choice, native dtypes, memory."""

import platform
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from wenet_hs.heads.gpu import is_gpu
from wenet_hs.tree.errors import ConfigError

_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
"""Messages of CUDA, of torch's CPU allocator and of cuBLAS; only the first has an exception class
of its own.
"""


def find_device(name: str) -> torch.device:
    """The device of a `--device` flag; `auto` is a GPU if there is one.

    Raises ConfigError if it does not exist.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name}", "not a device", "use cpu, cuda or cuda:N") from error
    if device.type != "cpu" and not is_gpu(device):
        raise ConfigError(f"--device {name}", "not supported", "use cpu, cuda or cuda:N")
    if is_gpu(device) and (device.index or 0) >= (
        count := torch.get_device_module(device).device_count()
    ):
        found = f"there are {count} CUDA devices here"
        raise ConfigError(f"--device {name}", found, "use another one or --device cpu")
    return device


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of the CPU inside, for work in parts of milliseconds: several threads wait for
    each other most of the time there, and on a busy machine 20 times as long as they compute. The
    number is that of the whole process.
    """
    before = torch.get_num_threads()
    if before != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before != 1:
            torch.set_num_threads(before)


def processor_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's model name.

    Linux adds family and model, because virtual machines shorten names.
    """
    if is_gpu(device):
        return str(torch.get_device_module(device).get_device_name(device))
    path = Path("/proc/cpuinfo")
    pairs = (
        (line.partition(":") for line in path.read_text("utf-8").splitlines())
        if path.is_file()
        else ()
    )
    facts = {key.strip(): value.strip() for key, _, value in pairs}
    name = facts.get("model name") or platform.processor() or platform.machine()
    known = [f"{key} {facts[key]}" for key in ("cpu family", "model") if key in facts]
    return f"{name} ({', '.join(known)})" if known else name


def has_native_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16: it is then faster than float32; emulated it is much
    slower.
    """
    if is_gpu(device):
        return bool(torch.get_device_module(device).is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def has_native_fp16(device: torch.device) -> bool:
    """Whether the hardware multiplies float16; emulated by a CPU it takes 50 times as long as
    float32 (measured with torch 2.11).
    """
    return is_gpu(device) or bool(torch.cpu._is_amx_fp16_supported())


def check_native(dtype: str, device: torch.device) -> None:
    """Raise ConfigError for `--dtype` bf16 or fp16 if the device would emulate it."""
    if (dtype == "bf16" and not has_native_bf16(device)) or (
        dtype == "fp16" and not has_native_fp16(device)
    ):
        raise ConfigError(
            f"--dtype {dtype}", f"{processor_name(device)} does not multiply it", "use fp32"
        )


def peak_memory_bytes(device: torch.device) -> int:
    """The maximum memory so far: of tensors on a GPU, or of this process on a CPU."""
    if is_gpu(device):
        return int(torch.get_device_module(device).max_memory_allocated(device))
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return resident if sys.platform == "darwin" else 1024 * resident


def resident_bytes() -> int:
    """The memory of this process now; 0 where there is no /proc."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else 0


def lacks_memory(error: Exception) -> bool:
    """Whether the error reports that the memory is too small."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY)
