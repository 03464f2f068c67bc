# SPDX-License-Identifier: Apache-2.0
"""Trees over the output units: built from frequencies or neighbours, and saved as `tree.json`.

A builder (`huffman.py`, `brown.py`) computes the children of each inner node from the frequencies
or the neighbours of the units, or they are read from a file (`nested.py`, `original.py`).
`fields.py` checks that they form one tree. The value `Tree` or `NaryTree` (`tree.py`, both based on
`unit_tree.py`) numbers nodes and edges, computes paths, codes and code lengths, and writes the
file.

Errors, atomic writes and the compilation of kernels stand here too, because all rooms use them.
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
    """The public object `name` of `wenet_hs.tree.tree`, whose module is imported now.

    Python calls it for each name that this module does not define. Raises AttributeError if `name`
    is not public.
    """
    if name in __all__:
        return getattr(importlib.import_module("wenet_hs.tree.tree"), name)
    raise AttributeError(f"module 'wenet_hs.tree' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
