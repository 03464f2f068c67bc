# SPDX-License-Identifier: Apache-2.0
"""The decisions on the paths to some units of an n-ary tree, and the edges of their nodes.

Dimension key: N targets, M decisions on their paths, G groups of decisions at one node, U edges of
some nodes, I inner nodes.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.tree import NaryTree

Ints = NDArray[np.int64]


class DecisionGroups(NamedTuple):
    """The M decisions on the paths of some targets, in G groups: one per node.

    The nodes ascend, and so do the rows within a node.
    """

    rows: Ints
    """(M,) the row of each decision."""
    choices: Ints
    """(M,) the child on the path, as its number among the children of the node."""
    first: Ints
    """(G,) the first decision of each group."""
    sizes: Ints
    """(G,) the number of decisions of each group."""
    edges: Ints
    """(G,) the first edge of the group's node."""
    degrees: Ints
    """(G,) the number of children of the group's node."""


def group_decisions(tree: NaryTree, targets: Ints) -> DecisionGroups:
    """The decisions on the paths to `targets` (N,), grouped by node."""
    rows, edges = tree.path_edges(targets)
    nodes = tree.edge_nodes[edges]
    order = np.lexsort((rows, nodes))  # by node, then by row
    rows = rows[order]
    edges = edges[order]
    nodes = nodes[order]
    nodes_G, first_G, sizes_G = np.unique(nodes, return_index=True, return_counts=True)
    first_edges_G = tree.offsets[nodes_G]
    return DecisionGroups(
        rows=rows,
        choices=edges - tree.offsets[nodes],
        first=first_G,
        sizes=sizes_G,
        edges=first_edges_G,
        degrees=tree.offsets[nodes_G + 1] - first_edges_G,
    )


@dataclass(frozen=True)
class EdgesAbove:
    """All edges of the inner nodes above some units, node by node."""

    edges: Ints
    """(U,) ascending."""
    degrees: Ints
    """The number of edges of each of these nodes."""
    path_units: Ints
    """(M,) per decision on the path of a unit, the index of the unit."""
    path_columns: Ints
    """(M,) the index of the decision's edge in `edges`."""


def edges_above(tree: NaryTree, units: Ints) -> EdgesAbove:
    """The edges of all inner nodes on the paths to some units (any number of unit ids)."""
    path_units, path_edges = tree.path_edges(units)
    is_above_I = np.zeros(tree.num_inner, np.bool_)
    is_above_I[tree.edge_nodes[path_edges]] = True
    edges_U = np.flatnonzero(is_above_I[tree.edge_nodes])
    return EdgesAbove(
        edges=edges_U,
        degrees=np.diff(tree.offsets)[is_above_I],
        path_units=path_units,
        path_columns=np.searchsorted(edges_U, path_edges),
    )
