# SPDX-License-Identifier: Apache-2.0
"""Names and sizes of the weights of WeNet's models, and of ours."""

import re
from collections.abc import Mapping

from torch import Tensor

from wenet_hs.tree.errors import CheckpointError
from wenet_hs.tree.original import convert_tree_head, is_original

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

    The vectors of the original tree head are put in our order of nodes (tree/original.py).
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
