# SPDX-License-Identifier: Apache-2.0
"""A GPU that computes on the CPU: the device "gpu", which torch calls PrivateUse1, written in
Python.

It raises an error where an operation mixes devices, as CUDA does. It records the launches of
kernels, the copies to the device and the synchronisations (the program waits for the device), each
with the line of wenet_hs that caused it. Its autocast casts the operations that CUDA's casts and
this project uses.

`on_gpu()` makes it a device in which the code takes the branches of a GPU; `on_gpu(kernels=True)`
those of a GPU with Triton, whose kernels its interpreter computes: then the process needs
TRITON_INTERPRET=1.
"""

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from wenet_hs.heads import gpu
from wenet_hs.heads.kernels import triton_launch

NAME = "gpu"
DEVICE = torch.device("privateuseone", 0)  # the name is set below

VIEWS = {
    *(
        "view",
        "_unsafe_view",
        "reshape",
        "_reshape_alias",
        "expand",
        "expand_as",
        "transpose",
        "t",
        "mT",
        "permute",
    ),
    *(
        "slice",
        "select",
        "unsqueeze",
        "squeeze",
        "split",
        "split_with_sizes",
        "tensor_split",
        "unsafe_split",
        "chunk",
    ),
    *(
        "unsafe_chunk",
        "detach",
        "alias",
        "as_strided",
        "unbind",
        "diagonal",
        "unfold",
        "narrow",
        "view_as",
        "movedim",
    ),
    *(
        "swapaxes",
        "lift_fresh",
        "is_same_size",
        "unflatten",
        "_indices",
        "_values",
        "_nnz",
        "is_coalesced",
    ),
    *(
        "dim",
        "size",
        "stride",
        "numel",
        "sym_size",
        "sym_stride",
        "sym_numel",
        "sym_storage_offset",
        "layout",
    ),
    "is_contiguous",
    *("is_strides_like_format", "is_non_overlapping_and_dense"),
}
"""Operations that launch no kernel."""
WAITING = {
    *(
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "is_nonzero",
        "equal",
        "_unique2",
        "unique_dim",
    ),
    *("unique_consecutive", "bincount", "allclose", "coalesce", "_coalesce"),
}
"""Operations whose result, or its size, has to be read."""
INDEXING = {
    "index",
    "index_put",
    "index_put_",
    "_unsafe_index",
    "_index_put_impl_",
    "_unsafe_index_put",
}


@dataclass
class Record:
    """What the device was asked for since the last `clear`: counts by operation, or by `file:line
    operation`.
    """

    launches: Counter[str] = field(default_factory=Counter)
    launch_lines: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    """Synchronisations."""
    copies: Counter[str] = field(default_factory=Counter)
    """To the device, from memory that is pinned."""
    unpinned: Counter[str] = field(default_factory=Counter)
    """To the device, from other memory: the copy waits, and cannot run beside kernels."""

    def clear(self) -> None:
        for counter in vars(self).values():
            counter.clear()

    def copied(self, source: torch.Tensor, what: str) -> None:
        (self.copies if id(source) in _pinned else self.unpinned)[f"{_line()} {what}"] += 1

    def waited(self, what: str, times: int = 1) -> None:
        self.waits[f"{_line()} {what}"] += times

    def __str__(self) -> str:
        parts = [f"{sum(self.launches.values())} launches"]
        for name in ("waits", "unpinned", "copies"):
            counter = getattr(self, name)
            parts += [
                f"{sum(counter.values())} {name}",
                *(f"  {count} {line}" for line, count in counter.items()),
            ]
        return "\n".join(parts)


RECORD = Record()
_pinned: set[int] = set()


def _line() -> str:
    """The innermost line of wenet_hs that is running, or of another file outside torch."""
    frame, other = sys._getframe(1), ""
    while frame is not None:
        name = frame.f_code.co_filename
        if "/wenet_hs/" in name:
            return f"{name.rpartition('/wenet_hs/')[2]}:{frame.f_lineno}"
        if not other and "/torch/" not in name and name != __file__:
            other = f"{name.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return other


class GpuTensor(torch.Tensor):
    """A tensor on the device; its values are in `inner`, a tensor on the CPU."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "GpuTensor":
        assert not isinstance(inner, GpuTensor)
        facts = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=DEVICE,
            requires_grad=False,
            dispatch_sizes_strides_policy="sizes",  # an operation in place may change them
            **(facts if inner.layout == torch.strided else {}),
        )
        made.inner = inner
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"GpuTensor({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})

    def tolist(self) -> Any:
        RECORD.waited("tolist")
        return self.inner.tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert a tensor of the device gpu to numpy: use Tensor.cpu() first")

    __array__ = numpy


class _Mode(TorchDispatchMode):
    """Sees the operations without a tensor of the device: those that make one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


def _is_here(value: object) -> bool:
    return isinstance(value, GpuTensor)


def _inner(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == NAME else value
    return value.inner if isinstance(value, GpuTensor) else value


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation: on the CPU as it is if it has no part on the device."""
    name = func._schema.name.split("::")[1]
    tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    here = [value for value in tensors if _is_here(value)]
    target = kwargs.get("device")
    to_device = isinstance(target, torch.device) and target.type == NAME
    if not here and not to_device:
        return func(*args, **kwargs)
    to_cpu = isinstance(target, torch.device) and target.type == "cpu"
    _check(func, name, args, tensors, kwargs, to_cpu=to_cpu)
    inner_args, inner_kwargs = tree_map(_inner, (args, kwargs))
    if name == "_fused_sdp_choice":
        return 0
    out = _CELLS.get(name, func)(*inner_args, **inner_kwargs)
    if name in ("_to_copy", "copy_"):
        is_launch = len(here) == len(tensors) and not to_cpu
    else:
        is_launch = name not in VIEWS and not name.startswith(
            ("empty", "new_empty", "_local_scalar")
        )
    if is_launch:
        RECORD.launches[name] += 1
        RECORD.launch_lines[_line()] += 1
    return out if to_cpu else _wrap(func, args, kwargs, out)


def _gru_cell(
    inputs: Any, hidden: Any, state: Any, input_bias: Any = None, hidden_bias: Any = None
) -> Any:
    if input_bias is not None:
        inputs, hidden = inputs + input_bias, hidden + hidden_bias
    (reset, update, new), (reset_h, update_h, new_h) = inputs.chunk(3, -1), hidden.chunk(3, -1)
    new = (new + (reset + reset_h).sigmoid() * new_h).tanh()
    return new + (update + update_h).sigmoid() * (state - new), torch.empty(0)


def _lstm_cell(
    inputs: Any, hidden: Any, state: Any, input_bias: Any = None, hidden_bias: Any = None
) -> Any:
    gates = inputs + hidden if input_bias is None else inputs + hidden + input_bias + hidden_bias
    entered, kept, new, shown = gates.chunk(4, -1)
    after = kept.sigmoid() * state + entered.sigmoid() * new.tanh()
    return shown.sigmoid() * after.tanh(), after, torch.empty(0)


_CELLS = {"_thnn_fused_gru_cell": _gru_cell, "_thnn_fused_lstm_cell": _lstm_cell}
"""Operations that torch has for GPUs only."""


def _check(
    func: Any,
    name: str,
    args: Any,
    tensors: list[torch.Tensor],
    kwargs: dict[str, Any],
    *,
    to_cpu: bool,
) -> None:
    """Record copies and waits. Raises RuntimeError where devices are mixed."""
    elsewhere = [value for value in tensors if not _is_here(value)]
    if name == "copy_":
        if _is_here(args[0]) and not _is_here(args[1]):
            RECORD.copied(args[1], name)
        elif _is_here(args[1]) and not _is_here(args[0]):
            RECORD.waited(name)
    elif name == "_to_copy":
        if to_cpu:
            RECORD.waited("copy to the CPU")
        elif elsewhere:
            RECORD.copied(elsewhere[0], "copy to the device")
    elif name in INDEXING:
        if elsewhere and not _is_here(args[0]):
            raise RuntimeError(f"indices should be on the CPU: {func} at {_line()}")
        for value in elsewhere:
            RECORD.copied(value, "index on the CPU")
        if any(value is not None and value.dtype in (torch.bool, torch.uint8) for value in args[1]):
            RECORD.waited("index by a mask")
    elif any(value.dim() for value in elsewhere):
        places = [(tuple(value.shape), str(value.device)) for value in tensors]
        raise RuntimeError(
            f"expected all tensors to be on the same device: {func} {places} at {_line()}"
        )
    if name in WAITING or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        RECORD.waited(name)
    if name == "_ctc_loss" and _is_here(args[2]):
        RECORD.waited("lengths of CTC", 2)


def _wrap(func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> Any:
    """The results as tensors of the device; an argument that was changed in place is returned
    itself.
    """
    changed = {}
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            is_positional = number < len(args) and not argument.kwarg_only
            given = args[number] if is_positional else kwargs.get(argument.name)
            changed |= {
                id(_inner(value)): value
                for value in tree_leaves(given)
                if isinstance(value, torch.Tensor)
            }

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or _is_here(value):
            return value
        if id(value) not in changed:
            return GpuTensor(value)
        return changed[id(value)]

    return tree_map(one, out)


# ---- what torch asks of a device


_entered: list[object] = []
"""The devices that the code has chosen; the last one is the current one."""


class _Module(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        torch.set_rng_state(state)

    def synchronize(self, device: object = None) -> None: ...

    def set_device(self, device: object) -> None: ...

    @contextlib.contextmanager
    def device(self, device: object) -> Iterator[None]:
        _entered.append(device)
        yield
        _entered.pop()

    def max_memory_allocated(self, device: object = None) -> int:
        return 0

    def get_device_name(self, device: object = None) -> str:
        return "the GPU of the tests"

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True


backend_registration._setup_privateuseone_for_python_backend(NAME, _Module())
DEVICE = torch.device(NAME, 0)

# Below the dispatch mode, in C++: torch.tensor(…, device="gpu").
_LIBRARY = torch.library.Library("aten", "IMPL")


def _empty_strided(
    size: Any,
    stride: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    return GpuTensor(torch.empty_strided(size, stride, dtype=dtype))


def _empty(
    size: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Any:
    return GpuTensor(torch.empty(size, dtype=dtype))


def _copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    if _is_here(target):
        RECORD.copied(source, "torch.tensor")
    else:
        RECORD.waited("copy to the CPU")
    _inner(target).copy_(_inner(source))
    return target


_LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
_LIBRARY.impl("empty.memory_format", _empty, "PrivateUse1")
_LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")

# Autocast, by CUDA's lists: https://docs.pytorch.org/docs/stable/amp.html
_CASTS = {
    "low": "matmul mm bmm addmm baddbmm linear conv2d conv1d mv addmv scaled_dot_product_attention",
    "float32": "exp log log1p softmax.int log_softmax.int layer_norm sum sum.dim_IntList cumsum pow.Tensor_Scalar "
    "rsqrt reciprocal norm.Scalar nll_loss logsumexp prod",
    "widest": "addcmul cat stack index_put scatter_add dot",
}
_OUTSIDE = torch.library.Library("_", "IMPL")
_OUTSIDE.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
_AUTOCAST_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def _register_cast(name: str, kind: str) -> None:
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEY):
            values = [
                one
                for one in tree_leaves((args, kwargs))
                if isinstance(one, torch.Tensor) and one.is_floating_point()
            ]
            dtype = torch.get_autocast_dtype(NAME) if kind == "low" else torch.float32
            if (
                kind == "widest"
                and values
                and all(value.dtype != torch.float32 for value in values)
            ):
                dtype = values[0].dtype

            def cast(value: Any) -> Any:
                is_cast = (
                    any(value is one for one in values)
                    and value.device.type == NAME
                    and value.dtype != torch.float64
                )
                return value.to(dtype) if is_cast else value

            args, kwargs = tree_map(cast, (args, kwargs))
            return operation(*args, **kwargs)

    _LIBRARY.impl(name, kernel, "AutocastPrivateUse1")


for _kind, _names in _CASTS.items():
    for _name in _names.split():
        _register_cast(_name, _kind)


def _pin_memory(tensor: torch.Tensor) -> torch.Tensor:
    pinned = tensor.clone()
    _pinned.add(id(pinned))
    _kept.append(pinned)
    return pinned


_kept: list[torch.Tensor] = []
"""Pinned tensors, so that no other tensor gets their id."""


def _save(content: Any, *arguments: Any, **options: Any) -> None:
    _real_save(to_cpu(content), *arguments, **options)


def _load(*arguments: Any, map_location: Any = None, **options: Any) -> Any:
    is_here = map_location is not None and torch.device(map_location).type == NAME
    loaded = _real_load(*arguments, map_location="cpu" if is_here else map_location, **options)
    return (
        tree_map(
            lambda value: GpuTensor(value) if isinstance(value, torch.Tensor) else value, loaded
        )
        if is_here
        else loaded
    )


_real_save, _real_load = torch.save, torch.load


def _start(kernel: Any, grid: tuple[int, ...], arguments: Any, constants: Any) -> None:
    if _entered[-1:] != [DEVICE]:
        raise RuntimeError(
            f"a kernel of Triton is started on whatever device is the current one at {_line()}"
        )
    for value in arguments:
        if isinstance(value, torch.Tensor) and not _is_here(value):
            raise RuntimeError(f"a kernel of Triton gets a tensor on the CPU at {_line()}")
    RECORD.launches[kernel.fn.__name__] += 1
    RECORD.launch_lines[_line()] += 1
    kernel[grid](*to_cpu(arguments), **constants)


@contextlib.contextmanager
def on_gpu(*, kernels: bool = False) -> Iterator[Record]:
    """Let the code take "gpu" for a GPU. The record is empty at the beginning."""
    RECORD.clear()
    with (
        mock.patch.object(triton_launch, "has_triton", lambda: kernels),
        mock.patch.object(triton_launch, "_start", _start),
        mock.patch.object(gpu, "GPU_TYPES", (*gpu.GPU_TYPES, NAME)),
        mock.patch.object(torch.Tensor, "pin_memory", _pin_memory),
        mock.patch.object(torch, "save", _save),
        mock.patch.object(torch, "load", _load),
        _Mode(),
    ):
        try:
            yield RECORD
        finally:
            _pinned.clear()
            _kept.clear()


def to_cpu(value: Any) -> Any:
    """The values of tensors of the device, without a record."""
    return tree_map(_inner, value)
