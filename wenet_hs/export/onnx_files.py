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
    """Input → its dimensions of any size."""


def check_exporter_installed() -> None:
    """Raises ConfigError if a package of the extra `export` is missing."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(name) is None:
            raise ConfigError(
                "wenet-hs export", f"{name} is not installed", "pip install 'wenet_hs[export]'"
            )


def write_graph(folder: Path, graph: Graph, metadata: Mapping[str, object]) -> None:
    """Writes FOLDER/NAME.

    Raises ConfigError if the module cannot be exported, OSError as `open_atomic`.
    """
    size = sum(value.nbytes for value in graph.module.parameters())
    if size >= _MAX_BYTES:
        raise ConfigError(
            graph.name,
            f"{size / 1e9:.1f} GB of weights",
            "ONNX files of one part have at most 2 GB",
        )
    free = {name: {axis: Dim.DYNAMIC for axis in axes} for name, axes in graph.dynamic.items()}
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                graph.module.eval(),
                tuple(graph.inputs.values()),
                dynamo=True,
                opset_version=OPSET,
                input_names=list(graph.inputs),
                output_names=list(graph.outputs),
                dynamic_shapes=tuple(free.get(name) for name in graph.inputs),
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # of several packages, by the part of the model
        cause = error.__cause__ or error
        found = (
            f"the model cannot be exported ({type(cause).__name__}: {one_line(Exception(cause))})"
        )
        raise ConfigError(graph.name, found, "docs/export.md says which models can") from error
    assert program is not None
    proto = program.model_proto
    for name, value in metadata.items():
        proto.metadata_props.add(key=name, value=str(value))
    with open_atomic(folder / graph.name) as file:
        file.write(proto.SerializeToString())


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
            one.name: one.shape for one in self.session.get_inputs()
        }
        """Name → shape; a dimension of any size is a string."""

    def run(self, *inputs: Tensor) -> list[Tensor]:
        """The outputs for inputs in the order of the file."""
        given = {name: value.numpy() for name, value in zip(self.inputs, inputs, strict=True)}
        return [torch.from_numpy(np.asarray(output)) for output in self.session.run(None, given)]


def run_chunks(file: OnnxFile, features: Tensor, window: int, shift: int) -> Tensor:
    """The first output for all whole chunks of a stream, as sherpa-onnx and WeNet call such a file.

    Args:
        file: of a `ChunkEncoder`.
        features: (T, F).
        window: input frames of a chunk; shift: from one chunk to the next.
    Returns: (T', …).
    """
    _, offset_shape, _, attention_shape, convolution_shape, mask_shape = file.inputs.values()
    kept, size = attention_shape[2], mask_shape[2] - attention_shape[2]
    caches, found = [torch.zeros(attention_shape), torch.zeros(convolution_shape)], []
    for number, begin in enumerate(range(0, len(features) - window + 1, shift)):
        exists_S = torch.arange(kept + size) >= kept - number * size
        scalars = (torch.full(offset_shape, value) for value in (kept + number * size, kept))
        outputs = file.run(
            features[None, begin : begin + window], *scalars, *caches, exists_S[None, None]
        )
        caches = outputs[1:3]
        found.append(outputs[0][0])
    return torch.cat(found)


def quantize(path: Path) -> Path:
    """Writes NAME.int8.onnx beside NAME.onnx: weights of the matrix products as 8-bit integers,
    same metadata.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantized = path.with_suffix(".int8.onnx")
    with _quiet():
        quantize_dynamic(
            path, quantized, weight_type=QuantType.QInt8, op_types_to_quantize=_INT8_OPERATORS
        )
    return quantized


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the messages of the exporter about each constant, and about packages that are not
    installed.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
