# SPDX-License-Identifier: Apache-2.0
"""`compile: true`: the layers of encoder and decoder as kernels that torch makes for them.

Layers are compiled in place, so that parameters keep their names: a checkpoint of a compiled model is one of the same
model without. Layers of one kind share their code, whatever their number. Lengths are dynamic: a new one costs nothing.
"""

import importlib.util
import os
import shlex
import shutil
import sysconfig
from pathlib import Path

import torch
from torch import nn

from wenet_hs.errors import ConfigError
from wenet_hs.nn.conformer import ConformerLayer, TransformerEncoderLayer
from wenet_hs.nn.transformer import TransformerDecoderLayer

LAYERS = (ConformerLayer, TransformerEncoderLayer, TransformerDecoderLayer)


def compile_layers(model: nn.Module, device: torch.device, *, where: Path) -> None:
    """Have every layer compiled when it is first called. `where`: the file of the config.

    Raises ConfigError where the tools to compile with are missing.
    """
    missing = missing_tool(device)
    if missing is not None:
        raise ConfigError(f"{where}: compile: true needs {missing}; install it, or set compile: false")
    for module in model.modules():
        if isinstance(module, LAYERS):
            module.compile(dynamic=True)


def missing_tool(device: torch.device) -> str | None:
    """What torch.compile lacks here to make kernels for the device; None where nothing is missing."""
    compiler = shlex.split(os.environ.get("CXX", "g++"))[0]
    if shutil.which(compiler) is None:
        return f"a C++ compiler ({compiler} is not found)"
    if device.type == "cuda":
        return None if importlib.util.find_spec("triton") else "Triton (the package triton is not found)"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return None if header.exists() else f"Python's headers ({header} is not found)"
