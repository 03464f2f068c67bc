# SPDX-License-Identifier: Apache-2.0
"""Weights from files into models: read without running code, and refused with one line where they do not fit."""

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from wenet_hs.errors import CheckpointError
from wenet_hs.interop.state import current_names
from wenet_hs.model import AsrModel

_EMBEDDINGS = ("decoder.embed.0.weight", "decoder.left_decoder.embed.0.weight")


def load_state(path: Path | str) -> dict[str, Tensor]:
    """The state_dict in a file, or in the `model.pt` of a checkpoint folder. No code in the file is ever run.

    Parameters that an earlier release named otherwise have their present names. A file whose SHA-256 stands beside it
    (`final.json`, the manifest of a checkpoint) must have it: torch itself does not notice a flipped bit.

    Raises: CheckpointError, one line, whatever is wrong with the file.
    """
    path = Path(path)
    path = path / "model.pt" if path.is_dir() else path
    if not path.exists():
        raise CheckpointError(f"{path}: no such file; `wenet-hs train` writes checkpoints, `wenet-hs average` final.pt")
    _check_sha256(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks about the pickle protocol of old files
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a damaged or hostile file raises has no end: zip, pickle, struct, key, type …
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise CheckpointError(
            f"{path}: not a readable checkpoint ({reason}); copy or make it again, or use an earlier one"
        ) from error
    if not isinstance(state, dict) or not state or not all(map(_is_parameter, state.items())):
        raise CheckpointError(f"{path}: holds no state_dict (parameter names with tensors); give the model's weights")
    return current_names(state)


def _check_sha256(path: Path) -> None:
    for record in (path.with_suffix(".json"), path.with_name("manifest.json")):
        expected = _recorded_sha256(record, path.name)
        if expected is not None and _sha256(path) != expected:
            raise CheckpointError(
                f"{path}: differs from its SHA-256 in {record.name}; copy or make it again, or remove {record.name} if "
                "you have put other weights here"
            )


def _recorded_sha256(record: Path, name: str) -> str | None:
    """What a file beside the weights says of them; None where it is not there, or is not about them."""
    try:
        content = json.loads(record.read_text("utf-8"))
        entry = content if content.get("file") == name else content["files"][name]
        return str(entry["sha256"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _is_parameter(item: tuple[object, object]) -> bool:
    name, value = item
    if not isinstance(name, str) or not isinstance(value, Tensor):
        return False
    plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
    return plain and not value.is_complex()


def load_weights(model: AsrModel, state: Mapping[str, Tensor], where: str) -> None:
    """Copy a state_dict into a model. Raises CheckpointError naming the first names or shapes that do not fit."""
    own = model.state_dict()
    faults = [
        _listed("missing", [name for name in own if name not in state]),
        _listed("unexpected", [name for name in state if name not in own]),
        _listed(
            "of another shape",
            [
                f"{name} {tuple(state[name].shape)}, expected {tuple(value.shape)}"
                for name, value in own.items()
                if name in state and state[name].shape != value.shape
            ],
        ),
    ]
    if any(faults):
        raise CheckpointError(
            f"{where}: weights of another model: {'; '.join(filter(None, faults))}; "
            "use the train.yaml that these weights were trained with"
        )
    model.load_state_dict(dict(state), strict=True)


def _listed(what: str, names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what} {', '.join(names[:3])}{more}" if names else ""


def state_num_units(state: Mapping[str, Tensor], where: str) -> int:
    """The size of the output layer, V, of a state_dict: the decoder embeds as many units, whatever the heads are."""
    return _embedding(state, where).shape[0]


def state_width(state: Mapping[str, Tensor], where: str) -> int:
    """The width of the decoder and of its heads' input, D, of a state_dict."""
    return _embedding(state, where).shape[1]


def _embedding(state: Mapping[str, Tensor], where: str) -> Tensor:
    for name in _EMBEDDINGS:
        if name in state and state[name].dim() == 2:
            return state[name]
    raise CheckpointError(
        f"{where}: no decoder embedding in it, so not the weights of a model of this toolkit or WeNet's"
    )


def check_num_units(state: Mapping[str, Tensor], num_units: int, where: str, other: str) -> None:
    """Raise CheckpointError where a state_dict is of another number of units than `other`, which it names."""
    found = state_num_units(state, where)
    if found != num_units:
        raise CheckpointError(f"{where}: made for {found} units, but {other} has {num_units}; use the same units.txt")
