# SPDX-License-Identifier: Apache-2.0
"""Weights: names of WeNet and of this toolkit, reading files, loading into models."""

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from wenet_hs.errors import CheckpointError
from wenet_hs.heads.softmax import SoftmaxHead
from wenet_hs.interop.hsoftmax_original import convert_tree_head, is_original
from wenet_hs.model import AsrModel

_OUTPUT_LAYERS = {
    "decoder.output_layer.": "head.output.",
    "decoder.left_decoder.output_layer.": "head.output.",
    "decoder.right_decoder.output_layer.": "right_head.output.",
}
_CTC_LAYER = {"ctc.ctc_lo.": "ctc.head.output."}
"""The layer of a softmax CTC, in WeNet and in the first release of this toolkit."""
_LEGACY = re.compile(r"\.pe$|\.concat_linear\d?\.")
"""Tables of positions (since 2024-03) and layers that were never used (before 2022-05); neither has an effect."""


def current_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state_dict of an earlier release of this toolkit under the present names; the tensors are shared."""
    return {_renamed(name, _CTC_LAYER): value for name, value in state.items()}


def is_wenet(state: Mapping[str, Tensor]) -> bool:
    """Whether a state_dict is WeNet's: its decoder has an output layer inside, or beside it the original tree head."""
    return is_original(state) or any(name.startswith(prefix) for name in state for prefix in _OUTPUT_LAYERS)


def convert_state_dict(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """WeNet's state_dict under our names, without what has no effect; the tensors are shared, not copied.

    That of the original tree head too: its vectors in our order of the nodes (interop/hsoftmax_original.py).
    """
    state = convert_tree_head(state) if is_original(state) else state
    converted = {_our_name(name): value for name, value in state.items() if not _LEGACY.search(name)}
    # WeNet's average_model.py divides the counter of batches too, which makes it a float.
    return {name: value.long() if name.endswith(".num_batches_tracked") else value for name, value in converted.items()}


def to_wenet_state_dict(model: AsrModel) -> dict[str, Tensor]:
    """The state_dict of a model under WeNet's names. Raises ValueError if a head is not a softmax."""
    heads = [head for head in (model.head, model.right_head, model.ctc.head) if head is not None]
    for head in heads:
        if not isinstance(head, SoftmaxHead):
            raise ValueError(f"WeNet has no {type(head).__name__}: only a model with softmax heads has a WeNet form")
    both = model.right_head is not None
    renames = {ours: theirs for theirs, ours in _OUTPUT_LAYERS.items() if (theirs != "decoder.output_layer.") == both}
    renames |= {ours: theirs for theirs, ours in _CTC_LAYER.items()}
    return {_renamed(name, renames): value for name, value in model.state_dict().items()}


def _our_name(name: str) -> str:
    return _renamed(name, _OUTPUT_LAYERS | _CTC_LAYER)


def _renamed(name: str, prefixes: Mapping[str, str]) -> str:
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


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
