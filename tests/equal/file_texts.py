# SPDX-License-Identifier: Apache-2.0
"""Any file as text. Tensors, graphs and archives become one line per part with its SHA-256."""

import hashlib
import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

_LONG_BASE64 = re.compile(r"[A-Za-z0-9+/]{400,}={0,2}")
"""Pictures and audio inside a page."""
_MAX_SHOWN = 60
"""Numbers of a list that are written out."""


def sha256(content: bytes) -> str:
    """The first 16 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()[:16]


def text_of_file(path: Path) -> str:
    """The text of the file, or a line per part of a binary file."""
    return text_of_content(path.name, path.read_bytes())


def text_of_content(name: str, content: bytes) -> str:
    """The same for a file of this name inside an archive."""
    if name.endswith(".pt"):
        return _join(_lines_of_torch(content))
    if name.endswith(".onnx"):
        return _join(_lines_of_onnx(content))
    if name.endswith(".safetensors"):
        return _join(_lines_of_safetensors(content))
    if name.endswith(".zip"):
        return _join(_lines_of_zip(content))
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return f"{len(content)} bytes, sha256 {sha256(content)}\n"
    if "\0" in text:
        return f"{len(content)} bytes, sha256 {sha256(content)}\n"
    return _LONG_BASE64.sub(_hash_of_base64, text)


def _hash_of_base64(match: re.Match[str]) -> str:
    return f"<base64, sha256 {sha256(match[0].encode())}>"


def line_of_tensor(name: str, tensor: torch.Tensor) -> str:
    """Name, type, shape, hash of the bits, and the sum for people who compare two lines."""
    dense = tensor.detach().cpu()
    is_bfloat16 = dense.dtype == torch.bfloat16  # NumPy has no such type
    bits = dense.view(torch.int16) if is_bfloat16 else dense
    content = bits.numpy().tobytes()
    dtype = str(dense.dtype).removeprefix("torch.")
    total = float(dense.double().sum())
    return f"{name}: {dtype} {list(dense.shape)} sha256 {sha256(content)} sum {total:.9g}"


def _join(lines: Iterator[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _lines_of_torch(content: bytes) -> Iterator[str]:
    value = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    yield from _lines_of_value("", value)


def _lines_of_value(name: str, value: Any) -> Iterator[str]:
    """A line per tensor and per other value in nested dicts and lists, in their order."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _lines_of_value(f"{name}.{key}" if name else str(key), part)
    elif isinstance(value, torch.Tensor):
        yield line_of_tensor(name, value)
    elif isinstance(value, list | tuple) and len(value) <= _MAX_SHOWN:
        yield f"{name}: {type(value).__name__} of {len(value)}"
        for number, part in enumerate(value):
            yield from _lines_of_value(f"{name}[{number}]", part)
    elif isinstance(value, list | tuple):
        yield f"{name}: {len(value)} values, sha256 {sha256(repr(value).encode())}"
    else:
        yield f"{name}: {value!r}"


def _lines_of_safetensors(content: bytes) -> Iterator[str]:
    from safetensors.torch import load

    size = int.from_bytes(content[:8], "little")
    yield f"header: {content[8 : 8 + size].decode('utf-8').rstrip()}"
    for name, tensor in sorted(load(content).items()):
        yield line_of_tensor(name, tensor)


def _lines_of_zip(content: bytes) -> Iterator[str]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            yield f"==== {name}"
            yield text_of_content(name, archive.read(name)).rstrip("\n")


def _lines_of_onnx(content: bytes) -> Iterator[str]:
    """The graph without the names of source files, which the exporter of PyTorch writes into it."""
    import onnx

    model = onnx.load_from_string(content)
    for opset in model.opset_import:
        yield f"opset {opset.domain or 'ai.onnx'} {opset.version}"
    for entry in sorted(model.metadata_props, key=lambda entry: entry.key):
        yield f"metadata {entry.key}: {entry.value}"
    for value in model.graph.input:
        yield f"input {_line_of_onnx_value(value)}"
    for value in model.graph.output:
        yield f"output {_line_of_onnx_value(value)}"
    for tensor in model.graph.initializer:
        yield line_of_tensor(f"weight {tensor.name}", _tensor_of_onnx(tensor))
    for node in model.graph.node:
        attributes = [_text_of_attribute(attribute) for attribute in node.attribute]
        settings = f" {{{', '.join(attributes)}}}" if attributes else ""
        yield f"{', '.join(node.output)} = {node.op_type}({', '.join(node.input)}){settings}"
    if model.functions:
        yield f"{len(model.functions)} functions, sha256 {sha256(str(model.functions).encode())}"


def _line_of_onnx_value(value: Any) -> str:
    shape = [part.dim_param or part.dim_value for part in value.type.tensor_type.shape.dim]
    return f"{value.name}: type {value.type.tensor_type.elem_type}, shape {shape}"


def _tensor_of_onnx(tensor: Any) -> torch.Tensor:
    from onnx import numpy_helper

    return torch.from_numpy(np.array(numpy_helper.to_array(tensor)))


def _text_of_attribute(attribute: Any) -> str:
    from onnx import helper

    value = helper.get_attribute_value(attribute)
    if hasattr(value, "SerializeToString"):  # a tensor or a graph
        return f"{attribute.name}=sha256 {sha256(value.SerializeToString(deterministic=True))}"
    return f"{attribute.name}={value}"
