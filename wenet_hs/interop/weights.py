# SPDX-License-Identifier: Apache-2.0
"""Reads weights from files, loads them into models, and converts WeNet's names."""

import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from wenet_hs.errors import CheckpointError, list_names, one_line
from wenet_hs.files import file_sha256
from wenet_hs.interop.hsoftmax_original import convert_tree_head, is_original

_OUTPUT_LAYERS = {
    "decoder.output_layer.": "head.output.",
    "decoder.left_decoder.output_layer.": "head.output.",
    "decoder.right_decoder.output_layer.": "right_head.output.",
}
_LEGACY = re.compile(r"\.pe$|\.concat_linear\d?\.")
"""Position tables (since 2024-03) and unused layers (before 2022-05); neither has an effect."""


def is_wenet(state: Mapping[str, Tensor]) -> bool:
    """Whether a state_dict is WeNet's: the output layer is in the decoder, or it has the original tree head."""
    return is_original(state) or any(name.startswith(prefix) for name in state for prefix in _OUTPUT_LAYERS)


def convert_state_dict(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Converts WeNet's state_dict to our names and drops entries without effect. Tensors are shared, not copied.

    The vectors of the original tree head are put in our order of nodes (interop/hsoftmax_original.py).
    """
    state = convert_tree_head(state) if is_original(state) else state
    renames = {**_OUTPUT_LAYERS, "ctc.ctc_lo.": "ctc.head.output."}
    converted = {}
    for name, value in state.items():
        prefix = next((theirs for theirs in renames if name.startswith(theirs)), "")
        if not _LEGACY.search(name):
            # WeNet's average_model.py also divides the counter of batches, which makes it a float.
            value = value.long() if name.endswith(".num_batches_tracked") else value
            converted[renames.get(prefix, "") + name.removeprefix(prefix)] = value
    return converted


def hash_weights(checkpoint: Path) -> str:
    """The SHA-256 of the file of the weights that `--checkpoint` names: a file, a checkpoint or a model folder.

    Raises CheckpointError if it cannot be read.
    """
    path = checkpoint
    if checkpoint.is_dir():
        path = checkpoint / ("model.pt" if (checkpoint / "model.pt").exists() else "final.pt")
    try:
        return file_sha256(path)
    except OSError as error:
        what = f"--checkpoint {path}: cannot be read ({error.strerror})"
        raise CheckpointError(f"{what}; check the path; a resumed run needs no --checkpoint") from error


def load_state(path: Path | str) -> dict[str, Tensor]:
    """Reads the state_dict of a file, or of the `model.pt` of a checkpoint folder. Code in the file is never run.

    The SHA-256 of the file is checked if it is recorded in the folder (`final.json`, the manifest of a checkpoint):
    torch does not detect a flipped bit.

    Raises CheckpointError, always one line.
    """
    path = Path(path)
    path = path / "model.pt" if path.is_dir() else path
    if not path.exists():
        raise CheckpointError(f"{path}: no such file; `wenet-hs train` writes checkpoints, `wenet-hs average` final.pt")
    try:
        _check_sha256(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the pickle protocol of old files
            state = torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged or hostile file may raise anything: zip, pickle, struct, key, type …
        raise CheckpointError(
            f"{path}: not a readable checkpoint ({one_line(error)}); copy or create it again, or use an earlier one"
        ) from error
    if not isinstance(state, dict) or not state or not all(map(_is_parameter, state.items())):
        what = f"{path}: contains no state_dict (parameter names with tensors)"
        raise CheckpointError(f"{what}; give the weights of a model")
    return state


def _check_sha256(path: Path) -> None:
    for record in (path.with_suffix(".json"), path.with_name("manifest.json")):
        try:
            content = json.loads(record.read_text("utf-8"))
            expected = (content if content.get("file") == path.name else content["files"][path.name])["sha256"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no record, or it does not have the file
            continue
        if file_sha256(path) != expected:
            what_to_do = f"copy or create it again, or remove {record.name} if these are other weights on purpose"
            raise CheckpointError(f"{path}: differs from its SHA-256 in {record.name}; {what_to_do}")


def _is_parameter(item: tuple[object, object]) -> bool:
    name, value = item
    if not isinstance(name, str) or not isinstance(value, Tensor):
        return False
    plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
    return plain and not value.is_complex()


def load_weights(model: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Copies a state_dict into a model. Raises CheckpointError with the first names and shapes that do not fit."""
    own = model.state_dict()
    wrong_shapes = [
        f"{name} {tuple(state[name].shape)}, expected {tuple(value.shape)}"
        for name, value in own.items()
        if name in state and state[name].shape != value.shape
    ]
    missing, unexpected = [name for name in own if name not in state], [name for name in state if name not in own]
    found = {"missing": missing, "unexpected": unexpected, "of another shape": wrong_shapes}
    faults = "; ".join(f"{what} {list_names(names)}" for what, names in found.items() if names)
    if faults:
        what_to_do = "use the train.yaml that these weights were trained with"
        raise CheckpointError(f"{where}: weights of another model: {faults}; {what_to_do}")
    model.load_state_dict(dict(state), strict=True)


def state_sizes(state: Mapping[str, Tensor], where: str) -> tuple[int, int]:
    """The size of the output layer, V, and the width of the decoder and of its heads' input, D, of a state_dict."""
    for name in ("decoder.embed.0.weight", "decoder.left_decoder.embed.0.weight"):
        if name in state and state[name].dim() == 2:
            num_units, width = state[name].shape
            return num_units, width
    what_to_do = "give the weights of a model of this toolkit or WeNet"
    raise CheckpointError(f"{where}: contains no decoder embedding; {what_to_do}")


def check_num_units(state: Mapping[str, Tensor], num_units: int, where: str, other: str) -> None:
    """Raises CheckpointError if a state_dict has another number of units than the file `other`."""
    found, _ = state_sizes(state, where)
    if found != num_units:
        what = f"{where}: trained with {found} units, but {other} has {num_units}"
        raise CheckpointError(f"{what}; use the same units.txt")
