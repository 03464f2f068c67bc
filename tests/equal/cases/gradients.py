# SPDX-License-Identifier: Apache-2.0
"""Loss and gradients of one batch per head, computed through the Python interface."""

from typing import Any

import wenet_program
from case_recorder import CaseRecorder
from file_texts import line_of_tensor

TREE = {"tree": "tree.json"}
HEADS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "hsoftmax": {"head": "hsoftmax", "head_conf": TREE},
    "hsoftmax-bias": {"head": "hsoftmax", "head_conf": {**TREE, "bias": True}},
    "class": {"head": "class", "head_conf": TREE},
    "adaptive": {"head": "adaptive", "head_conf": TREE},
    "ctc-hsoftmax": {"ctc_conf": {"head": "hsoftmax", "head_conf": TREE}},
    "ctc-only": {"decoder": "none", "decoder_conf": None, "model_conf": None},
    "node-smoothing": {
        "head": "hsoftmax",
        "head_conf": TREE,
        "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.1, "lsm_kind": "node"},
    },
}
"""Name → sections of the config that differ from those of a softmax."""


def record_gradients(case: CaseRecorder) -> None:
    """A file per head with a line per parameter."""
    for name, sections in HEADS.items():
        tensors = wenet_program.internals().loss_and_gradients(sections)
        lines = [line_of_tensor(key, tensor) for key, tensor in tensors.items()]
        case.write(f"{name}.txt", "\n".join(lines) + "\n")
