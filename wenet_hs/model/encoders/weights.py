# SPDX-License-Identifier: Apache-2.0
"""The weights of a pretrained encoder from a folder in Hugging Face's layout.

No code in it is run.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from wenet_hs.base.files import file_sha256, refuse_lfs_pointer
from wenet_hs.model.checkpoint import load_weights, read_weights
from wenet_hs.tree.errors import CheckpointError, list_names

_PREFIXES = ("", "wav2vec2.", "hubert.", "wavlm.", "wav2vec2_bert.", "encoder.", "model.encoder.")
"""What the names of a whole model begin with, before those of its encoder."""
_PARTS = re.compile(
    r"(feature_(extractor|projection)|encoder|adapter|conv[12]|layers|layer_norm|embed_positions)\."
)
"""What the names of an encoder's own parts begin with."""
_RENAMED = {
    ".conv.weight_g": ".conv.parametrizations.weight.original0",
    ".conv.weight_v": ".conv.parametrizations.weight.original1",
}
"""Ends of names before torch 2.1 → now."""


def load_pretrained(module: Any, folder: Path, adapter: str | None = None) -> dict[str, Tensor]:
    """Copies the weights of the folder into a module of transformers.

    Layers that the module lacks are left out.

    Args:
        adapter: the language of an adapter of MMS; `new`: adapters keep the values that they have.
    Returns: `lm_head.*`, the output layer of a fine-tuned model; that of the adapter, if there is
        one.
    Raises: CheckpointError naming the file that is missing, damaged or of another encoder.
    """
    own, found = module.state_dict(), dict[str, Tensor]()
    files = weight_files(folder)
    for path in files:
        found |= read_weights(path)
    state = _with_names_of(module, found)
    if adapter is not None:
        state = {name: value for name, value in state.items() if ".adapter_layer." not in name}
    if adapter == "new":
        state |= {name: value for name, value in own.items() if ".adapter_layer." in name}
    elif adapter is not None:
        file = adapter_file(folder, adapter)
        found = read_weights(file)
        state |= _with_names_of(module, found)
        if missing := [name for name in own if ".adapter_layer." in name and name not in state]:
            raise CheckpointError(file, f"has no {list_names(missing)}", "download it again")
    if "masked_spec_embed" in own:  # a model that was fine-tuned without masks has none
        state.setdefault("masked_spec_embed", own["masked_spec_embed"])
    try:
        floats = {
            name: value.float() if value.is_floating_point() else value
            for name, value in state.items()
        }
        load_weights(module, floats, str(files[0]))
    except CheckpointError as error:
        to_do = "config.json and the weights are not of one model: download both again"
        raise CheckpointError(error.where, error.found, to_do) from None
    return {name: value.float() for name, value in found.items() if name.startswith("lm_head.")}


def hash_pretrained(folder: Path, adapter: str | None) -> str:
    """The SHA-256 of each file of the weights, separated by spaces.

    Raises CheckpointError if one is missing.
    """
    files = weight_files(folder)
    if adapter not in (None, "new"):
        files = [*files, adapter_file(folder, str(adapter))]
    return " ".join(map(file_sha256, files))


def weight_files(folder: Path) -> list[Path]:
    """The files with the weights of a folder, safetensors first.

    Raises CheckpointError if there is none.
    """
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            refuse_lfs_pointer(folder / name)
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            try:
                parts = sorted(
                    {
                        str(one)
                        for one in json.loads(index.read_text("utf-8"))["weight_map"].values()
                    }
                )
            except (
                OSError,
                ValueError,
                KeyError,
                TypeError,
                AttributeError,
                RecursionError,
            ) as error:
                raise CheckpointError(index, "is damaged", "download it again") from error
            if not parts or any(
                part in ("", "..") or Path(part).name != part for part in parts
            ):  # none elsewhere
                raise CheckpointError(index, "names no files of this folder", "download it again")
            for part in parts:
                refuse_lfs_pointer(folder / part)
            return [folder / part for part in parts]
    if folder.is_file():
        to_do = "give --checkpoint with the folder it is in, whose final.pt has them"
        raise CheckpointError(folder, "describes an encoder, without weights", to_do)
    found = "no weights (model.safetensors or pytorch_model.bin)"
    raise CheckpointError(folder, found, "download the whole folder")


def _with_names_of(module: Any, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the names of the module, without those of other parts of a model and of
    layers that were left out. Names that no encoder of this `config.json` has stay: they are of
    another architecture.
    """
    own, renamed, config = module.state_dict(), {}, module.config
    for name, value in state.items():
        end = next((old for old in _RENAMED if name.endswith(old)), "")
        renamed[name.removesuffix(end) + _RENAMED.get(end, "")] = value
    found = (
        {
            name.removeprefix(prefix): value
            for name, value in renamed.items()
            if name.startswith(prefix)
        }
        for prefix in _PREFIXES
    )
    names = max(found, key=lambda one: sum(name in own for name in one))

    def is_left_out(name: str) -> bool:
        layer = re.match(r"(?:encoder\.)?layers\.(\d+)\.", name)
        if layer and int(layer[1]) < config.num_hidden_layers:
            return not any(one.startswith(layer[0]) for one in own)
        return not _PARTS.match(name) or (
            name.startswith("adapter.") and bool(getattr(config, "add_adapter", False))
        )

    return {name: value for name, value in names.items() if name in own or not is_left_out(name)}


def adapter_file(folder: Path, language: str) -> Path:
    """The adapter of a language, never of another one. Raises CheckpointError if it is missing."""
    path = folder / f"adapter.{Path(language).name}.safetensors"
    if not path.is_file():
        others = sorted(one.name.split(".")[1] for one in folder.glob("adapter.*.safetensors"))
        to_do = (
            f"use one of {list_names(others)}, or `new`" if others else "download it, or use `new`"
        )
        raise CheckpointError(path, "no such adapter", to_do)
    refuse_lfs_pointer(path)
    return path
