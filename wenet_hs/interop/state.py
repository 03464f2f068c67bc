# SPDX-License-Identifier: Apache-2.0
"""Names of parameters: WeNet's, the original tree head's and ours.

They differ in the output layers alone, which are heads of their own here.
"""

import re
from collections.abc import Mapping

from torch import Tensor

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
