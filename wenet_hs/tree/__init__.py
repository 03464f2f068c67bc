# SPDX-License-Identifier: Apache-2.0
"""Trees over the output units: built from frequencies or neighbours, and saved as `tree.json`.

This room and `wenet_hs.heads` use only each other, numpy, numba, torch and the standard library.

The trees are loaded at first use: commands that only need the errors of this room start without
numpy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wenet_hs.tree.tree import NaryTree, Tree, load_tree

__all__ = ["NaryTree", "Tree", "load_tree"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("wenet_hs.tree.tree"), name)
    raise AttributeError(f"module 'wenet_hs.tree' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
