# SPDX-License-Identifier: Apache-2.0
"""ONNX files: writing one from a module, running it, and its weights as 8-bit integers."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from wenet_hs.tree.atomic import open_atomic
from wenet_hs.tree.errors import ConfigError, one_line

OPSET = 20
_MAX_BYTES = 2**31  # of a protobuf message
_INT8_OPERATORS = ["MatMul", "Gemm"]  # integer convolutions are slower than those in float32


class Graph(NamedTuple):
    """What becomes one ONNX file."""

    name: str
    """Of the file."""
    module: nn.Module
    """Its inputs and outputs are tensors."""
    inputs: Mapping[str, Tensor]
    """Examples in the order of the module's arguments, with at least 2 in each dynamic dimension."""
    outputs: Sequence[str]
    """Names in the order of the module's outputs."""
    dynamic: Mapping[str, Sequence[int]] = {}
    """Name of an input → its dimensions of any size."""


def check_exporter_installed() -> None:
    """Raises ConfigError if a package of the extra `export` is missing."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(name) is None:
            raise ConfigError(
                "wenet-hs export", f"{name} is not installed", "pip install 'wenet_hs[export]'"
            )


def write_graph(folder: Path, graph: Graph, metadata: Mapping[str, object]) -> None:
    """Writes FOLDER/NAME with the texts of `metadata`; puts the module into evaluation mode.

    Raises ConfigError if the module has too many weights for a file or cannot be exported, and
    OSError as `open_atomic`.
    """
    num_bytes = sum(parameter.nbytes for parameter in graph.module.parameters())
    if num_bytes >= _MAX_BYTES:
        raise ConfigError(
            graph.name,
            f"{num_bytes / 1e9:.1f} GB of weights",
            "ONNX files of one part have at most 2 GB",
        )
    program = _export_program(graph)
    proto = program.model_proto
    for name, value in metadata.items():
        proto.metadata_props.add(key=name, value=str(value))
    with open_atomic(folder / graph.name) as file:
        file.write(proto.SerializeToString())


def _export_program(graph: Graph) -> torch.onnx.ONNXProgram:
    """The module of a graph as ONNX, in evaluation mode.

    Raises ConfigError with the cause if the exporter fails: it raises exceptions of several
    packages, depending on the part of the model.
    """
    dynamic_shapes: list[dict[int, Any] | None] = []
    for name in graph.inputs:
        of_any_size = {dimension: Dim.DYNAMIC for dimension in graph.dynamic.get(name, ())}
        dynamic_shapes.append(of_any_size or None)  # None: the shape of the example is fixed
    try:
        with torch.no_grad(), _without_warnings():
            program = torch.onnx.export(
                graph.module.eval(),
                tuple(graph.inputs.values()),
                dynamo=True,
                opset_version=OPSET,
                input_names=list(graph.inputs),
                output_names=list(graph.outputs),
                dynamic_shapes=tuple(dynamic_shapes),
                external_data=False,
                verbose=False,
            )
    except Exception as error:
        cause = error.__cause__ or error
        reason = f"{type(cause).__name__}: {one_line(cause)}"
        raise ConfigError(
            graph.name,
            f"the model cannot be exported ({reason})",
            "docs/export.md says which models can",
        ) from error
    assert program is not None  # without a file name, the exporter returns the program
    return program


class OnnxFile:
    """A file in onnxruntime, on one thread of the CPU."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3  # errors
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.inputs: dict[str, list[Any]] = {
            argument.name: argument.shape for argument in self.session.get_inputs()
        }
        """Name → shape; a dimension of any size is a string."""

    def run(self, *inputs: Tensor) -> list[Tensor]:
        """The outputs in the order of the file, for all inputs in the order of the file."""
        arrays = {name: tensor.numpy() for name, tensor in zip(self.inputs, inputs, strict=True)}
        all_outputs = None
        outputs = self.session.run(all_outputs, arrays)
        return [torch.from_numpy(np.asarray(output)) for output in outputs]


def run_chunks(file: OnnxFile, features: Tensor, window: int, shift: int) -> Tensor:
    """The first output for all whole chunks of a stream, (T', …), one chunk after the other.

    It calls the file as sherpa-onnx and WeNet's runtime do: an offset of S, the number of cached
    frames, begins a stream, and the mask is false for cached frames before its beginning.

    Args:
        file: of a `ChunkEncoder`.
        features: (T, F), at least one chunk.
        window: input frames of a chunk.
        shift: input frames from one chunk to the next.
    """
    _, offset_shape, _, att_cache_shape, cnn_cache_shape, mask_shape = file.inputs.values()
    num_cached = att_cache_shape[2]
    chunk_size = mask_shape[2] - num_cached
    required_cache_size = torch.full(offset_shape, num_cached)
    att_cache = torch.zeros(att_cache_shape)
    cnn_cache = torch.zeros(cnn_cache_shape)
    outputs_of_chunks = []
    first_frames = range(0, len(features) - window + 1, shift)
    for number, begin in enumerate(first_frames):
        num_before = number * chunk_size  # encoder frames of the chunks before
        # Only the last `num_before` cached frames exist: the stream began with the first of them.
        exists_S = torch.arange(num_cached + chunk_size) >= num_cached - num_before
        first_output, att_cache, cnn_cache, *_ = file.run(
            features[None, begin : begin + window],
            torch.full(offset_shape, num_cached + num_before),
            required_cache_size,
            att_cache,
            cnn_cache,
            exists_S[None, None],
        )
        outputs_of_chunks.append(first_output[0])
    return torch.cat(outputs_of_chunks)


def quantize(path: Path) -> Path:
    """Writes NAME.int8.onnx beside NAME.onnx and returns its path.

    The weights of the matrix products are 8-bit integers in it; its metadata are the same.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantized = path.with_suffix(".int8.onnx")
    with _without_warnings():
        quantize_dynamic(
            path, quantized, weight_type=QuantType.QInt8, op_types_to_quantize=_INT8_OPERATORS
        )
    return quantized


@contextmanager
def _without_warnings() -> Iterator[None]:
    """No warnings and no log messages up to level WARNING within the block.

    The exporter has one about each constant, and about packages that are not installed.
    """
    level_before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level_before)
