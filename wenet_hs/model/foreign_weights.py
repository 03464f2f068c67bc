# SPDX-License-Identifier: Apache-2.0
"""Weights of a model under our names, also of WeNet's models, and their sizes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from wenet_hs.model.checkpoint import read_weights
from wenet_hs.tree.errors import CheckpointError
from wenet_hs.tree.original import convert_tree_head, is_original, saved_tree
from wenet_hs.tree.tree import Tree

_OUTPUT_LAYERS = {
    "decoder.output_layer.": "head.output.",
    "decoder.left_decoder.output_layer.": "head.output.",
    "decoder.right_decoder.output_layer.": "right_head.output.",
    "ctc.ctc_lo.": "ctc.head.output.",
}
"""Prefix of an output layer in WeNet → ours."""
_LEGACY = re.compile(r"\.pe$|\.concat_linear\d?\.")
"""Position tables (since 2024-03) and unused layers (before 2022-05); neither has an effect."""


@dataclass(frozen=True, kw_only=True)
class ModelWeights:
    """The weights of a model."""

    where: str
    """Their file, for errors."""
    state: Mapping[str, Tensor]
    """Under our names."""
    is_foreign: bool
    """Whether their file has WeNet's names."""
    original_tree: Tree | None
    """The tree in the file, if its head is that of the paper's original implementation."""


def read_model_weights(path: Path | str) -> ModelWeights:
    """Reads the weights of a model, ours or WeNet's.

    Raises CheckpointError as `read_weights` and `translate_weights` do.
    """
    return translate_weights(read_weights(path), str(path))


def translate_weights(state: Mapping[str, Tensor], where: str) -> ModelWeights:
    """The weights in a state_dict of ours or of WeNet. Tensors are shared, not copied.

    Raises CheckpointError with `where` if the tree of an original head is damaged.
    """
    is_foreign = is_wenet(state)
    ours = convert_state_dict(state) if is_foreign else state
    tree = None
    if is_original(state):
        num_units, _ = state_sizes(ours, where)
        tree = saved_tree(state, num_units, where)
    return ModelWeights(where=where, state=ours, is_foreign=is_foreign, original_tree=tree)


def is_wenet(state: Mapping[str, Tensor]) -> bool:
    """Whether a state_dict is WeNet's: an output layer has WeNet's name, or it has the original tree head."""
    return is_original(state) or any(name.startswith(tuple(_OUTPUT_LAYERS)) for name in state)


def convert_state_dict(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Converts WeNet's state_dict to our names and drops entries without effect. Tensors are shared, not copied.

    The vectors of the original tree head are put in our order of nodes (tree/original.py).
    """
    state = convert_tree_head(state) if is_original(state) else state
    converted = {}
    for name, value in state.items():
        prefix = next((theirs for theirs in _OUTPUT_LAYERS if name.startswith(theirs)), "")
        if not _LEGACY.search(name):
            # WeNet's average_model.py also divides the counter of batches, which makes it a float.
            value = value.long() if name.endswith(".num_batches_tracked") else value
            converted[_OUTPUT_LAYERS.get(prefix, "") + name.removeprefix(prefix)] = value
    return converted


def has_decoder(state: Mapping[str, Tensor]) -> bool:
    """Whether a state_dict has a decoder."""
    return any(name.startswith("decoder.") for name in state)


def state_sizes(state: Mapping[str, Tensor], where: str) -> tuple[int, int]:
    """The size of the output layer, V, and the width of the heads' input, D, of a state_dict.

    Without a decoder they are those of CTC's head; V is right there for a softmax and a binary tree only.
    """
    of_decoder = ("decoder.embed.0.weight", "decoder.left_decoder.embed.0.weight")
    for name in (*of_decoder, *(f"ctc.head.{one}.weight" for one in ("inner_vector", "output", "adaptive.head"))):
        if name in state and state[name].dim() == 2:
            num_rows, width = state[name].shape
            return num_rows + name.endswith("inner_vector.weight"), width
    found = "contains no decoder embedding, and no output layer of CTC"
    raise CheckpointError(where, found, "give the weights of a model of this toolkit or WeNet")


def check_num_units(state: Mapping[str, Tensor], num_units: int, where: str, other: str) -> None:
    """Raises CheckpointError if a state_dict with a decoder has another number of units than the file `other`."""
    found, _ = state_sizes(state, where)
    if found != num_units and has_decoder(state):
        fault = f"trained with {found} units, but {other} has {num_units}"
        raise CheckpointError(where, fault, "use the same units.txt")
