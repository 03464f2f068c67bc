# SPDX-License-Identifier: Apache-2.0
"""What the class head knows of its tree, and which rows meet at which node.

Dimension key: N rows, V units, I inner nodes, E edges, M pairs of a row and a node on the path of its target,
G groups of pairs of one node.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.nary import NaryTree

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Edges:
    """The tree as arrays of int64 that kernels take. Edge e leaves node edge_nodes[e] for node children[e]."""

    offsets: Ints
    """(I+1,) the first edge of each node."""
    children: Ints
    """(E,)"""
    edge_nodes: Ints
    """(E,)"""
    node_edges: Ints
    """(I+V,) the edge that leads to a node; -1 for the root."""

    @classmethod
    def of(cls, tree: NaryTree) -> "Edges":
        """Copies, because the tree's own are read-only, for which a kernel would be compiled again."""
        return cls(tree.offsets.copy(), tree.children.copy(), tree.edge_nodes.copy(), tree.edges.copy())

    @property
    def num_inner(self) -> int:
        """I."""
        return len(self.offsets) - 1

    def paths(self, units: Ints) -> tuple[Ints, Ints]:
        """Climb from the leaves of `units` (N,): the index into `units` and the edge of each decision, (M,) each."""
        at = np.arange(len(units))
        edges = self.node_edges[self.num_inner + units]
        found = [(at[:0], edges[:0])]
        while len(edges):
            at, edges = at[edges >= 0], edges[edges >= 0]
            found.append((at, edges))
            edges = self.node_edges[self.edge_nodes[edges]]
        rows, path_edges = zip(*found, strict=True)
        return np.concatenate(rows), np.concatenate(path_edges)


@dataclass(frozen=True)
class Groups:
    """Pairs of a row and a node on the path of its target, those of a node together, nodes and rows ascending."""

    starts: Ints
    """(G+1,) where each group's pairs start."""
    edges: Ints
    """(G,) the first edge of each group's node."""
    degrees: Ints
    """(G,) how many edges it has."""
    rows: Ints
    """(M,)"""
    choices: Ints
    """(M,) which of the node's children is on the path."""
    outs: Ints
    """(G,) where the gradients of its edges begin: at the edge itself, or, compact, one group after the other."""

    @classmethod
    def on_paths(cls, tree: Edges, targets: Ints, *, compact: bool) -> "Groups":
        """The decisions on the ways to `targets` (N,)."""
        rows, edges = tree.paths(targets)
        # Ascending edges are ascending nodes; within a node the rows shall ascend.
        nodes = tree.edge_nodes[edges]
        order = np.lexsort((rows, nodes))
        rows, edges, nodes = rows[order], edges[order], nodes[order]
        starts = np.flatnonzero(np.diff(nodes, prepend=-1))
        present = nodes[starts]
        first = tree.offsets[present]
        degrees = tree.offsets[present + 1] - first
        outs = np.cumsum(degrees) - degrees if compact else first
        return cls(np.append(starts, len(rows)), first, degrees, rows, edges - tree.offsets[nodes], outs)

    @property
    def sizes(self) -> Ints:
        """(G,) how many rows meet at each node."""
        return np.diff(self.starts)

    def selected(self, mask: NDArray[np.bool_]) -> "Groups":
        """The groups of a mask (G,) alone."""
        pairs = np.repeat(mask, self.sizes)
        starts = np.append(0, np.cumsum(self.sizes[mask]))
        per_group = self.edges[mask], self.degrees[mask], self.outs[mask]
        return Groups(starts, *per_group[:2], self.rows[pairs], self.choices[pairs], per_group[2])

    def all_edges(self) -> Ints:
        """(T,) every edge of every group's node, ascending."""
        return spread(self.edges, self.degrees)


def spread(starts: Ints, sizes: Ints) -> Ints:
    """start, start + 1, … of each range, one after the other."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()))
