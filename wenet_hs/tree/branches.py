# SPDX-License-Identifier: Apache-2.0
"""One view of a binary and an n-ary tree for those who draw them: children, shares, leaves, codes.

Dimension key: V units, I inner nodes, E = I+V-1 edges.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.nary import NaryTree
from wenet_hs.tree.tree import Tree


@dataclass(frozen=True, eq=False)
class Branches:
    """A tree in the numbering of `NaryTree`: inner nodes 0…I-1 breadth first, the leaf of unit i is I+i."""

    kind: str
    units: tuple[str, ...]
    depth: int
    binary: bool
    """Whether codes are bits; else they are the numbers of the children, counted from 0, with dots between."""
    offsets: NDArray[np.int64]
    """(I+1,) where the row of each inner node starts in `children`."""
    children: NDArray[np.int64]
    """(E,) the children of all inner nodes, left to right."""
    parents: NDArray[np.int64]
    """(I+V,) the inner node above each node; -1 for the root."""
    shares: NDArray[np.float64]
    """(I+V,) the probability of each node; by the number of its units when all frequencies are zero."""
    leaves: NDArray[np.int64]
    """(I+V,) how many units are under each node."""

    @classmethod
    def of(cls, tree: Tree | NaryTree) -> "Branches":
        """The view of a tree of either sort."""
        binary = isinstance(tree, Tree)
        offsets = np.arange(len(tree.children) + 1) * 2 if isinstance(tree, Tree) else tree.offsets
        weights, leaves = tree.weights(), tree.num_leaves()
        shares = weights / weights[0] if weights[0] > 0 else leaves / tree.num_units
        children = tree.children.reshape(-1)
        return cls(tree.kind, tree.units, tree.depth, binary, offsets, children, tree.parents, shares, leaves)

    @property
    def num_inner(self) -> int:
        """I, the number of inner nodes; 0 for a single unit."""
        return len(self.offsets) - 1

    def children_of(self, node: int) -> list[int]:
        """The children of an inner node, left to right."""
        return list(self.children[self.offsets[node] : self.offsets[node + 1]].tolist())

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """(I+V,) which child of its parent each node is, counted from 0; 0 for the root."""
        places = np.zeros(self.num_inner + len(self.units), dtype=np.int64)
        places[self.children] = np.arange(len(self.children)) - np.repeat(self.offsets[:-1], np.diff(self.offsets))
        return places

    def code(self, node: int) -> str:
        """The way from the root to a node, as `codes()` of a binary tree has it, or as "12.0.3"; "" for the root."""
        places = []
        while (parent := int(self.parents[node])) >= 0:
            places.append(int(self.places[node]))
            node = parent
        return self.join(reversed(places))

    def join(self, places: Iterable[int]) -> str:
        """Places from the root down as one code."""
        return ("" if self.binary else ".").join(map(str, places))

    def title(self) -> str:
        """Kind, size and depth in words."""
        return f"{self.kind} tree of {len(self.units):,} units, depth {self.depth}"
