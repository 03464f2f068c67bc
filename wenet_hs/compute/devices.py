# SPDX-License-Identifier: Apache-2.0
"""The device of a command: its choice, name, native dtypes and memory."""

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
"""Parts of the messages of CUDA, of torch's CPU allocator (the next two) and of cuBLAS.

Only CUDA's error has an exception class of its own.
"""


def find_device(name: str) -> torch.device:
    """The device of a `--device` flag: cpu, cuda or cuda:N; `auto` is a GPU if there is one.

    Raises ConfigError if the name is no such device, or if this machine does not have it.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name}", "not a device", "use cpu, cuda or cuda:N") from error
    if device.type == "cpu":
        return device
    if not is_gpu(device):
        raise ConfigError(f"--device {name}", "not supported", "use cpu, cuda or cuda:N")
    num_gpus = torch.get_device_module(device).device_count()
    index = device.index or 0  # `cuda` without a number needs at least one GPU
    if index >= num_gpus:
        found = f"there are {num_gpus} CUDA devices here"
        raise ConfigError(f"--device {name}", found, "use another one or --device cpu")
    return device


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread of the CPU inside of the block, and as many as before after it.

    Work that has parts of only milliseconds is faster with one thread: several threads wait for
    each other most of the time, on a busy machine 20 times as long as they compute. The number
    counts for the whole process.
    """
    num_threads = torch.get_num_threads()
    if num_threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def processor_name(device: torch.device) -> str:
    """The name of the GPU, or of the CPU, such as `AMD EPYC (cpu family 25, model 17)`.

    Only Linux gives family and model. They are added because virtual machines shorten names.
    """
    if is_gpu(device):
        return str(torch.get_device_module(device).get_device_name(device))
    facts = _read_cpu_facts()
    name = facts.get("model name") or platform.processor() or platform.machine()
    numbers = [f"{key} {facts[key]}" for key in ("cpu family", "model") if key in facts]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def _read_cpu_facts() -> dict[str, str]:
    """What /proc/cpuinfo says of the last core, by the keys there; empty if there is no file."""
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return {}
    facts = {}
    for line in path.read_text("utf-8").splitlines():
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    return facts


def has_native_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16, which is then faster than float32.

    Where it is emulated, it is much slower.
    """
    if is_gpu(device):
        return bool(torch.get_device_module(device).is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def has_native_fp16(device: torch.device) -> bool:
    """Whether the hardware multiplies float16, as every GPU does.

    A CPU that emulates it takes 50 times as long as with float32 (measured with torch 2.11).
    """
    return is_gpu(device) or bool(torch.cpu._is_amx_fp16_supported())


def check_native(dtype: str, device: torch.device) -> None:
    """Raise ConfigError for `--dtype` bf16 or fp16 if the device would emulate it."""
    if dtype == "bf16":
        is_native = has_native_bf16(device)
    elif dtype == "fp16":
        is_native = has_native_fp16(device)
    else:
        is_native = True
    if not is_native:
        found = f"{processor_name(device)} does not multiply it"
        raise ConfigError(f"--dtype {dtype}", found, "use fp32")


def peak_memory_bytes(device: torch.device) -> int:
    """The maximum memory so far: of tensors on a GPU, or of this process on a CPU."""
    if is_gpu(device):
        return int(torch.get_device_module(device).max_memory_allocated(device))
    maximum = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    is_in_bytes = sys.platform == "darwin"  # Linux counts in KiB
    return maximum if is_in_bytes else 1024 * maximum


def resident_bytes() -> int:
    """The memory of this process now; 0 where there is no /proc."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0
    num_pages = int(statm.read_text().split()[1])  # total size, resident size, …
    return num_pages * resource.getpagesize()


def lacks_memory(error: Exception) -> bool:
    """Whether the error reports that the memory is too small."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY)
