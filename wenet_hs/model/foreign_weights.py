# SPDX-License-Identifier: Apache-2.0
"""Weights of a model under our names, also of WeNet's models, and the number of their units."""

import re
from collections.abc import Mapping, Set
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
        tree = saved_tree(state, require_num_units(ours, where), where)
    return ModelWeights(where=where, state=ours, is_foreign=is_foreign, original_tree=tree)


def is_wenet(state: Mapping[str, Tensor]) -> bool:
    """Whether a state_dict is WeNet's: an output layer has WeNet's name, or it has the original
    tree head.
    """
    return is_original(state) or any(name.startswith(tuple(_OUTPUT_LAYERS)) for name in state)


def convert_state_dict(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Converts WeNet's state_dict to our names and drops entries without effect.

    Tensors are shared, not copied.

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


COUNTABLE_HEADS = ("softmax", "hsoftmax")
"""Heads whose weights tell the number of units. Those of other heads may have the same names."""


def is_softmax(parameters: Set[str]) -> bool:
    """Whether the names of a head's parameters are those of a softmax.

    Classes have the same names.
    """
    return parameters == {"output.weight", "output.bias"}


def is_binary_tree(parameters: Set[str]) -> bool:
    """Whether the names of a head's parameters are those of a binary tree."""
    return parameters - {"inner_vector.bias"} == {"inner_vector.weight"}


def find_num_units(state: Mapping[str, Tensor]) -> int | None:
    """The number of units of a state_dict, V; None if the weights do not tell it.

    It is the number of rows of the decoder's embedding. Without a decoder only a softmax and a
    binary tree of CTC tell it; classes are taken for a softmax, which has another number of rows.
    """
    for name in ("decoder.embed.0.weight", "decoder.left_decoder.embed.0.weight"):
        if name in state:
            return len(state[name])
    prefix = "ctc.head."
    rows = {
        name.removeprefix(prefix): len(value)
        for name, value in state.items()
        if name.startswith(prefix) and value.dim() > 0
    }
    if is_softmax(rows.keys()):
        return rows["output.weight"]
    if is_binary_tree(rows.keys()):
        return rows["inner_vector.weight"] + 1  # a binary tree has V - 1 inner nodes
    return None


def require_num_units(state: Mapping[str, Tensor], where: str) -> int:
    """The number of units of a state_dict, V.

    Raises CheckpointError if the weights do not tell it.
    """
    num_units = find_num_units(state)
    if num_units is None:
        fault = "contains no decoder embedding, and no output layer of CTC that tells the number of units"
        raise CheckpointError(where, fault, "give the weights of a model of this toolkit or WeNet")
    return num_units


def check_num_units(
    state: Mapping[str, Tensor],
    num_units: int,
    where: str,
    other: str,
    *,
    ctc_head: str | None,
) -> None:
    """Raises CheckpointError if a state_dict has another number of units than the file `other`.

    Without a decoder nothing is checked if the head of CTC is not one of `COUNTABLE_HEADS`.

    Args:
        where: the file of the weights.
        ctc_head: the head of CTC by the config of the weights; None: there is no config.
    """
    num_trained = None
    if has_decoder(state):
        num_trained = require_num_units(state, where)
    elif ctc_head in COUNTABLE_HEADS:
        num_trained = find_num_units(state)  # None for a tree that is not binary
    if num_trained is not None and num_trained != num_units:
        fault = f"trained with {num_trained} units, but {other} has {num_units}"
        raise CheckpointError(where, fault, "use the same units.txt")
