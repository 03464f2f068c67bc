# SPDX-License-Identifier: Apache-2.0
"""Weights with our names, read from our files or translated from WeNet's; the number of their units."""

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
"""Prefix of the names of an output layer in WeNet → in our models. Other names are equal."""
_WITHOUT_EFFECT = re.compile(r"\.pe$|\.concat_linear\d?\.")
"""Names in WeNet of position tables (since 2024-03) and of unused layers (before 2022-05)."""


@dataclass(frozen=True, kw_only=True)
class ModelWeights:
    """The weights of a model."""

    where: str
    """The file of the weights, for error messages."""
    state: Mapping[str, Tensor]
    """The weights with the names of our models."""
    is_foreign: bool
    """Whether the file has WeNet's names."""
    original_tree: Tree | None
    """The tree in the file, if its head is that of the paper's original implementation; else None."""


def read_model_weights(path: Path | str) -> ModelWeights:
    """Reads the weights of a model, ours or WeNet's.

    Raises CheckpointError as `read_weights` and `translate_weights` do.
    """
    return translate_weights(read_weights(path), str(path))


def translate_weights(state: Mapping[str, Tensor], where: str) -> ModelWeights:
    """The weights in a state_dict of ours or of WeNet. Tensors are shared, not copied.

    `where`: the file of the weights, for error messages.

    Raises CheckpointError if the tree of an original head is damaged, or if the number of its units
    is not known.
    """
    is_foreign = is_wenet(state)
    ours = convert_state_dict(state) if is_foreign else state
    tree = None
    if is_original(state):
        tree = saved_tree(state, require_num_units(ours, where), where)
    return ModelWeights(where=where, state=ours, is_foreign=is_foreign, original_tree=tree)


def is_wenet(state: Mapping[str, Tensor]) -> bool:
    """Whether a state_dict is WeNet's.

    It is if an output layer has WeNet's name, or if it has the tree head of the paper's original
    implementation, which was a version of WeNet.
    """
    prefixes = tuple(_OUTPUT_LAYERS)
    return is_original(state) or any(name.startswith(prefixes) for name in state)


def convert_state_dict(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Converts WeNet's state_dict to our names; weights without an effect are left out.

    Tensors are shared, not copied. The vectors of an original tree head are put in our order of
    nodes (tree/original.py).
    """
    if is_original(state):
        state = convert_tree_head(state)
    converted = {}
    for name, value in state.items():
        if _WITHOUT_EFFECT.search(name):
            continue
        if name.endswith(".num_batches_tracked"):
            # WeNet's average_model.py divides this counter too, which makes it a float.
            value = value.long()
        converted[_translate_name(name)] = value
    return converted


def _translate_name(name: str) -> str:
    """The name in our models of a weight of WeNet: `ctc.ctc_lo.bias` → `ctc.head.output.bias`."""
    for wenet_prefix, our_prefix in _OUTPUT_LAYERS.items():
        if name.startswith(wenet_prefix):
            return our_prefix + name.removeprefix(wenet_prefix)
    return name


def has_decoder(state: Mapping[str, Tensor]) -> bool:
    """Whether a state_dict has a decoder."""
    return any(name.startswith("decoder.") for name in state)


COUNTABLE_HEADS = ("softmax", "hsoftmax")
"""The heads of CTC from whose weights the number of units is computed.

The names of the weights do not suffice: a head of classes has those of a softmax.
"""


def is_softmax(parameters: Set[str]) -> bool:
    """Whether a head's parameters have the names of a softmax; those of classes have them too."""
    return parameters == {"output.weight", "output.bias"}


def is_binary_tree(parameters: Set[str]) -> bool:
    """Whether a head's parameters have the names of a binary tree, with or without a bias."""
    return parameters - {"inner_vector.bias"} == {"inner_vector.weight"}


def find_num_units(state: Mapping[str, Tensor]) -> int | None:
    """The number of units of a state_dict, V; None if it cannot be computed.

    It is the number of rows of the decoder's embedding. Without a decoder it is computed from the
    head of CTC, if that has the names of a softmax or of a binary tree. The result is wrong for a
    head of classes, which has the names of a softmax: its rows are not units.
    """
    for name in ("decoder.embed.0.weight", "decoder.left_decoder.embed.0.weight"):
        if name in state:
            return len(state[name])
    prefix = "ctc.head."
    num_rows: dict[str, int] = {}
    for name, value in state.items():
        is_scalar = value.dim() == 0
        if name.startswith(prefix) and not is_scalar:
            num_rows[name.removeprefix(prefix)] = len(value)
    if is_softmax(num_rows.keys()):
        return num_rows["output.weight"]
    if is_binary_tree(num_rows.keys()):
        return num_rows["inner_vector.weight"] + 1  # a binary tree has V - 1 inner nodes
    return None


def require_num_units(state: Mapping[str, Tensor], where: str) -> int:
    """The number of units of a state_dict, V.

    Raises CheckpointError with the file `where` if it cannot be computed.
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
    """Raises CheckpointError if a state_dict has another number of units than a unit table.

    Without a decoder nothing is checked if the head of CTC is not one of `COUNTABLE_HEADS`.

    Args:
        num_units: the number of units of the table.
        where: the file of the weights, and other: the file of the table, for the message.
        ctc_head: the head of CTC by the config of the weights; None: there is no config.
    """
    num_trained = None
    if has_decoder(state):
        num_trained = require_num_units(state, where)
    elif ctc_head in COUNTABLE_HEADS:
        num_trained = find_num_units(state)  # None for a hsoftmax over a tree that is not binary
    if num_trained is not None and num_trained != num_units:
        fault = f"trained with {num_trained} units, but {other} has {num_units}"
        raise CheckpointError(where, fault, "use the same units.txt")
