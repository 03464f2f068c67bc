# SPDX-License-Identifier: Apache-2.0
"""Small trees and views of trees for tests."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from wenet_hs.tree import NaryTree, Tree
from wenet_hs.tree_kinds.kinds import TreeSource, build_tree


def tree_of_kind(kind: str, frequencies: Sequence[float] | np.ndarray, **options: Any) -> Tree:
    """A binary tree over the units "0", "1", …."""
    units = tuple(map(str, range(len(frequencies))))
    tree = build_tree(
        kind, TreeSource(units, np.array(frequencies, dtype=np.float64), options=options)
    )
    assert isinstance(tree, Tree)
    return tree


def units_below(tree: Tree | NaryTree) -> list[frozenset[int]]:
    """The unit ids under each inner node."""
    below = [frozenset[int]()] * tree.num_inner + [
        frozenset([unit]) for unit in range(tree.num_units)
    ]
    for node in reversed(range(tree.num_inner)):
        below[node] = frozenset().union(*(below[child] for child in tree.children_of(node)))
    return below[: tree.num_inner]


def comb(num_units: int) -> Tree:
    """The deepest tree: the left child of each inner node is a leaf."""
    inner = np.arange(1, num_units)
    children = np.stack(
        [num_units - 2 + inner, np.append(inner[:-1], 2 * num_units - 2)[: num_units - 1]], axis=1
    )
    return Tree("comb", tuple(map(str, range(num_units))), children, np.ones(num_units))


def merge_levels(tree: Tree, levels: int) -> NaryTree:
    """The n-ary tree in which each `levels` levels of a binary tree are one choice."""
    tops, rows = [0][: tree.num_inner], []
    for top in tops:  # grows
        row = [top]
        for _ in range(levels):
            row = [
                child
                for node in row
                for child in (tree.children_of(node) if node < tree.num_inner else [node])
            ]
        rows.append(row)
        tops += [node for node in row if node < tree.num_inner]
    number = {node: position for position, node in enumerate(tops)}
    rows = [[number.get(node, len(tops) + node - tree.num_inner) for node in row] for row in rows]
    return NaryTree.from_rows(rows, tree.frequencies, units=tree.units)
