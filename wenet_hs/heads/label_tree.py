# SPDX-License-Identifier: Apache-2.0
"""The part of a tree that leads to a few units, itself a binary tree: what lies beside their paths becomes a leaf.

Dimension key: L units, V units of the whole tree, I = V-1 inner nodes, K inner nodes above the L units.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class LabelTree(NamedTuple):
    """A binary tree of K nodes and K+1 leaves, numbered as any: breadth first, the leaves from K on."""

    nodes: NDArray[np.int64]
    """(K,) the inner nodes of the whole tree, ascending."""
    children: NDArray[np.int32]
    """(K, 2)."""
    leaves: NDArray[np.int64]
    """(L,) which of the K+1 leaves each of the units is."""


def label_tree(units: NDArray[np.int64], up: NDArray[np.int32], children: NDArray[np.int32]) -> LabelTree:
    """The least part of a tree with all paths to `units` (L,), which may repeat.

    Args:
        up: (2V-1,) twice the inner node above each node, plus 1 for its right child; -1 above the root.
        children: (V-1, 2) of the whole tree.
    """
    num_inner = len(children)
    turns = up[np.unique(units) + num_inner]
    levels = [np.empty(0, dtype=np.int64)]
    while len(turns := turns[turns >= 0]):
        levels.append(np.unique(turns >> 1))
        turns = up[levels[-1]]
    nodes = np.unique(np.concatenate(levels))
    below = children[nodes].reshape(-1)
    place = np.searchsorted(nodes, below)
    inside = np.append(nodes, -1)[place] == below
    numbers = np.where(inside, place, len(nodes) - 1 + np.cumsum(~inside)).astype(np.int32)
    if not len(nodes):  # a tree of one unit
        return LabelTree(nodes, numbers.reshape(0, 2), np.zeros(len(units), dtype=np.int64))
    last = up[units + num_inner]
    turn_place = 2 * np.searchsorted(nodes, last >> 1) + (last & 1)
    return LabelTree(nodes, numbers.reshape(-1, 2), numbers[turn_place].astype(np.int64) - len(nodes))
