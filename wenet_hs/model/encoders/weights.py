# SPDX-License-Identifier: Apache-2.0
"""The weights of a pretrained encoder, read from a folder in Hugging Face's layout.

The files are found, their weights get the names of the module, and are loaded into it. No code in
the folder is run.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from wenet_hs.base.files import file_sha256, refuse_lfs_pointer
from wenet_hs.model.checkpoint import load_weights, read_weights
from wenet_hs.tree.errors import CheckpointError, list_names

_PREFIXES = ("", "wav2vec2.", "hubert.", "wavlm.", "wav2vec2_bert.", "encoder.", "model.encoder.")
"""Prefixes that a whole model may have before the names of its encoder's weights."""
_PARTS = re.compile(
    r"(feature_(extractor|projection)|encoder|adapter|conv[12]|layers|layer_norm|embed_positions)\."
)
"""The beginnings of the names of an encoder's own parts, after the prefix."""
_LAYER = re.compile(r"(?:encoder\.)?layers\.(\d+)\.")
"""The beginning of the names of a layer, with its number from 0."""
_RENAMED = {
    ".conv.weight_g": ".conv.parametrizations.weight.original0",
    ".conv.weight_v": ".conv.parametrizations.weight.original1",
}
"""End of a name before torch 2.1 → the end of the name since then."""
_ADAPTER_OF_LAYER = ".adapter_layer."
"""A part of the names of the weights of MMS's adapters, which are in each layer."""


def load_pretrained(module: Any, folder: Path, adapter: str | None = None) -> dict[str, Tensor]:
    """Copies the weights of the folder into a module of transformers.

    Weights of layers that the module lacks are not used. If the folder has no vector that replaces
    masked frames, the module keeps its own one.

    Args:
        adapter: for MMS, the language of the adapters to load; `new`: the module's adapters keep
            the values that they have. None: the adapters are those of the weights, if they have
            any.
    Returns: `lm_head.*`, the output layer of a fine-tuned model, in float32; that of the adapter of
        a language, if one is loaded. Empty for an encoder that was not fine-tuned.
    Raises: CheckpointError naming the file that is missing, damaged or of another encoder.
    """
    module_state = module.state_dict()
    files = weight_files(folder)
    weights: dict[str, Tensor] = {}
    for file in files:
        weights |= read_weights(file)
    state = _translate_names(module, weights)
    if adapter is not None:  # the adapters of the weights are replaced
        state = {name: value for name, value in state.items() if _ADAPTER_OF_LAYER not in name}
    weights_with_output = weights
    if adapter == "new":
        new_adapters = {
            name: value for name, value in module_state.items() if _ADAPTER_OF_LAYER in name
        }
        state |= new_adapters
    elif adapter is not None:
        file = adapter_file(folder, adapter)
        weights_with_output = read_weights(file)
        state |= _translate_names(module, weights_with_output)
        missing = [name for name in module_state if _ADAPTER_OF_LAYER in name and name not in state]
        if missing:
            raise CheckpointError(file, f"has no {list_names(missing)}", "download it again")
    if "masked_spec_embed" in module_state:  # a model that was fine-tuned without masks has none
        state.setdefault("masked_spec_embed", module_state["masked_spec_embed"])
    floats = {name: _to_float32(value) for name, value in state.items()}
    try:
        load_weights(module, floats, str(files[0]))
    except CheckpointError as error:
        to_do = "config.json and the weights are not of one model: download both again"
        raise CheckpointError(error.where, error.found, to_do) from None
    return {
        name: value.float()
        for name, value in weights_with_output.items()
        if name.startswith("lm_head.")
    }


def hash_pretrained(folder: Path, adapter: str | None) -> str:
    """The SHA-256 of each file that `load_pretrained` reads, in its order, separated by spaces.

    `adapter`: the language of the adapters; None or `new`: no file of adapters is read.

    Raises CheckpointError if one is missing.
    """
    files = weight_files(folder)
    if adapter is not None and adapter != "new":
        files = [*files, adapter_file(folder, adapter)]
    return " ".join(map(file_sha256, files))


def weight_files(folder: Path) -> list[Path]:
    """The files with the weights of a folder: one file, or the parts that an index names.

    safetensors come before pickles, and one file before an index.

    `folder`: it may be the `encoder.json` of a model folder, which has no weights beside it.

    Raises CheckpointError if there are none, if an index is damaged, or for a pointer of Git LFS in
    place of a file.
    """
    for name in ("model.safetensors", "pytorch_model.bin"):
        file = folder / name
        if file.is_file():
            refuse_lfs_pointer(file)
            return [file]
        index = folder / f"{name}.index.json"
        if index.is_file():
            files = [folder / part for part in _read_index(index)]
            for file in files:
                refuse_lfs_pointer(file)
            return files
    if folder.is_file():
        to_do = "give --checkpoint with the folder it is in, whose final.pt has them"
        raise CheckpointError(folder, "describes an encoder, without weights", to_do)
    found = "no weights (model.safetensors or pytorch_model.bin)"
    raise CheckpointError(folder, found, "download the whole folder")


def _read_index(index: Path) -> list[str]:
    """The names of the files that an index of weights lists, sorted.

    Raises CheckpointError if it is damaged, or if a name is not that of a file of the same folder:
    a downloaded index must not choose files elsewhere.
    """
    try:
        content = json.loads(index.read_text("utf-8"))
        parts = sorted({str(part) for part in content["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(index, "is damaged", "download it again") from error
    if not parts or not all(map(_is_file_name, parts)):
        raise CheckpointError(index, "names no files of this folder", "download it again")
    return parts


def _is_file_name(name: str) -> bool:
    """Whether this can be the name of a file in the folder itself: not empty, `.`, `..` or a path."""
    return name not in ("", "..") and Path(name).name == name


def adapter_file(folder: Path, language: str) -> Path:
    """The file with the adapters of a language.

    Raises CheckpointError, with the languages that there are, if it is missing, or for a pointer of
    Git LFS in its place.
    """
    language_name = Path(language).name  # never a path to another folder
    path = folder / f"adapter.{language_name}.safetensors"
    if not path.is_file():
        to_do = "download it, or use `new`"
        adapters = folder.glob("adapter.*.safetensors")
        languages = sorted(file.name.split(".")[1] for file in adapters)
        if languages:
            to_do = f"use one of {list_names(languages)}, or `new`"
        raise CheckpointError(path, "no such adapter", to_do)
    refuse_lfs_pointer(path)
    return path


def _translate_names(module: Any, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of an encoder, with the names that they have in the module.

    Names before torch 2.1 are replaced. The prefix of a whole model is removed. Weights of other
    parts of the model and of layers that the module lacks are left out. All other names are kept,
    so that `load_weights` reports those that the module lacks: they are of another architecture.
    """
    names_of_module = module.state_dict().keys()
    renamed = {_modern_name(name): value for name, value in state.items()}
    weights = _remove_prefix(renamed, names_of_module)
    return {
        name: value
        for name, value in weights.items()
        if name in names_of_module or not _is_left_out(name, names_of_module, module.config)
    }


def _modern_name(name: str) -> str:
    """The name of a weight since torch 2.1."""
    for old_end, new_end in _RENAMED.items():
        if name.endswith(old_end):
            return name.removesuffix(old_end) + new_end
    return name


def _remove_prefix(
    state: Mapping[str, Tensor], names_of_module: Collection[str]
) -> dict[str, Tensor]:
    """The weights that have the best prefix of `_PREFIXES`, without it; others are left out.

    It is the prefix whose removal gives the most names of the module, and the first of several such
    prefixes.
    """
    best: dict[str, Tensor] = {}
    most_known = -1  # below every number, so that the first prefix is the best one so far
    for prefix in _PREFIXES:
        candidates = {
            name.removeprefix(prefix): value
            for name, value in state.items()
            if name.startswith(prefix)
        }
        num_known = sum(name in names_of_module for name in candidates)
        if num_known > most_known:
            best = candidates
            most_known = num_known
    return best


def _is_left_out(name: str, names_of_module: Collection[str], config: Any) -> bool:
    """Whether a weight that the module lacks may be left out; otherwise it is an error.

    These may be left out: the weights of a layer that the config has and the module has not,
    because it was deleted; weights that are of no part of an encoder; and with `add_adapter` in
    `config` the weights `adapter.*`, because the adapter of the module may have been deleted.
    """
    layer = _LAYER.match(name)
    if layer is not None and int(layer[1]) < config.num_hidden_layers:
        prefix = layer[0]
        return not any(name_of_module.startswith(prefix) for name_of_module in names_of_module)
    if _PARTS.match(name) is None:
        return True
    return name.startswith("adapter.") and bool(getattr(config, "add_adapter", False))


def _to_float32(value: Tensor) -> Tensor:
    """The value in float32; integers are not changed."""
    return value.float() if value.is_floating_point() else value
