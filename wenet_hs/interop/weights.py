# SPDX-License-Identifier: Apache-2.0
"""Weights from files into models: read without running code, and refused with one line where they do not fit."""

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

    Parameters that an earlier release named otherwise have their present names.

    Raises: CheckpointError, one line, whatever is wrong with the file.
    """
    path = Path(path)
    path = path / "model.pt" if path.is_dir() else path
    if not path.exists():
        raise CheckpointError(f"{path}: no such file; `wenet-hs train` writes checkpoints, `wenet-hs average` final.pt")
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
