# SPDX-License-Identifier: Apache-2.0
"""Pruning: the tree over some units of a tree, for a head that knows which units can occur.

Dimension key: V units, I inner nodes, E edges of the given tree.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.tree import UnitTree

_AnyTree = TypeVar("_AnyTree", bound=UnitTree)


def prune_tree(tree: _AnyTree, unit_ids: Sequence[int]) -> tuple[_AnyTree, NDArray[np.int64]]:
    """The tree without all other leaves. An inner node with one child left is replaced by that child.

    Args:
        unit_ids: distinct ids in 0…V-1, at least one; unit i of the result is unit_ids[i].
    Returns:
        the pruned tree, and for each of its edges the edge of `tree` that leaves the same inner node for the same
        units. Edges of one node keep their order.
    """
    leaves = [tree.num_inner + unit_id for unit_id in unit_ids]
    below = dict(zip(leaves, leaves, strict=True))  # node → the node that replaces it; without an entry it is removed
    kept: dict[int, list[int]] = {}  # inner node → its edges that are left
    offsets, child_of = tree.offsets.tolist(), tree.children.reshape(-1).tolist()
    for node in reversed(range(tree.num_inner)):  # breadth-first numbers: children come before their parents
        kept[node] = [edge for edge in range(offsets[node], offsets[node + 1]) if child_of[edge] in below]
        if kept[node]:
            below[node] = node if len(kept[node]) > 1 else below[child_of[kept[node][0]]]
    nodes, edges = [below[0]][: len(leaves) - 1], list[int]()  # a single unit has no inner node
    for node in nodes:  # grows, level by level
        edges += kept[node]
        nodes += [child for edge in kept[node] if (child := below[child_of[edge]]) < tree.num_inner]
    number = {node: index for index, node in enumerate([*nodes, *leaves])}
    pruned = replace(
        tree,
        units=tuple(tree.units[unit_id] for unit_id in unit_ids),
        children=np.array([number[below[child_of[edge]]] for edge in edges], dtype=np.int64),
        frequencies=tree.frequencies[list(unit_ids)],
        offsets=np.cumsum([0, *(len(kept[node]) for node in nodes)]),
    )
    return pruned, np.array(edges, dtype=np.int64)
