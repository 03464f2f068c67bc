# SPDX-License-Identifier: Apache-2.0
"""The base of binary and n-ary trees: numbering, levels, sums along paths, codes, code lengths.

Dimension key: V units (leaves), I inner nodes, E = I+V-1 edges, P longest path (edges from root to
deepest leaf), M edges on the paths to some units.

Numbering: inner nodes 0…I-1 breadth first from the root 0, left to right; the leaf of unit i is
I+i. Edge e leads to the node at index e of all children, so the edges of one node are adjacent.
"""

import json
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.fields import FORMAT, check_children, check_frequencies, check_names

NO_EDGE = -1
"""Instead of the edge that leads to the root."""
NO_NODE = -1
"""Instead of the parent of the root."""


class Level(NamedTuple):
    """The inner nodes of one level, which have adjacent numbers, and the edges that start there."""

    nodes: slice
    edges: slice


@dataclass(frozen=True, eq=False)
class UnitTree:
    """Base of `Tree` and `NaryTree`.

    Arrays are read-only. Two trees are equal when all their fields are equal. Raises ValueError
    when the fields are not one tree over distinct units.
    """

    code_separator: ClassVar[str] = "."
    """What stands between the child indexes of a code."""
    kind: str
    """How it was built, such as "huffman"; any printable text."""
    units: tuple[str, ...]
    """The V unit names, in the order of their ids."""
    children: NDArray[np.int64]
    """The children of all inner nodes, node by node, left to right; empty for a single unit."""
    frequencies: NDArray[np.float64]
    """(V,) the counts or relative frequencies it was built from, finite, ≥ 0."""
    options: dict[str, Any] = field(default_factory=dict)
    """What else the builder recorded; JSON values."""
    offsets: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False
    )
    """(I+1,) where the row of each inner node starts in the flat `children`; a `Tree` sets it to 0,
    2, 4, ….
    """

    def __post_init__(self) -> None:
        """Check the fields and replace them by read-only copies; raises ValueError."""
        units = tuple(self.units)
        frequencies = check_frequencies(self.frequencies)
        offsets = np.array(self.offsets, dtype=np.int64)
        children = np.array(self.children, dtype=np.int64)
        check_names(self.kind, units, len(frequencies))
        check_children(offsets, children.reshape(-1), len(units))
        for array in (offsets, children, frequencies):
            array.flags.writeable = False
        # A frozen dataclass cannot be assigned to.
        vars(self).update(units=units, offsets=offsets, children=children, frequencies=frequencies)

    @property
    def num_units(self) -> int:
        """V, the number of leaves."""
        return len(self.units)

    @property
    def num_inner(self) -> int:
        """I, the number of inner nodes; 0 for a single unit."""
        return len(self.offsets) - 1

    @property
    def num_edges(self) -> int:
        """E, the number of children of all nodes together."""
        return self.children.size

    @property
    def depth(self) -> int:
        """P, the number of edges to the deepest leaf.

        0 for a single unit, 1 for a flat softmax (all units are children of the root).
        """
        return len(self.level_starts) - 1

    @cached_property
    def level_starts(self) -> NDArray[np.int64]:
        """(P+1,) where the inner nodes of each level start; the root is level 0.

        Level l has the nodes level_starts[l] … level_starts[l+1]-1. The last value is I.
        """
        is_inner = self.children.reshape(-1) < self.num_inner
        # At index e: how many of the first e edges lead to inner nodes.
        num_inner_below = np.concatenate([[0], np.cumsum(is_inner)])
        starts = [0]
        end = min(1, self.num_inner)  # of the level of the root; a single unit has no levels
        while end > starts[-1]:
            starts.append(end)
            num_edges = self.offsets[end]  # edges that start in the levels so far
            end = 1 + int(num_inner_below[num_edges])  # the root, and where these edges lead
        return np.array(starts, dtype=np.int64)

    @cached_property
    def edge_nodes(self) -> NDArray[np.int64]:
        """(E,) the inner node that each edge starts from."""
        return np.repeat(np.arange(self.num_inner), np.diff(self.offsets))

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        """(I+V,) the edge that leads to each node, leaves included; -1 (`NO_EDGE`) for the root."""
        edges = np.full(self.num_inner + self.num_units, NO_EDGE, dtype=np.int64)
        edges[self.children.reshape(-1)] = np.arange(self.num_edges)
        return edges

    @cached_property
    def parents(self) -> NDArray[np.int64]:
        """(I+V,) the inner node above each node, leaves included; -1 (`NO_NODE`) for the root."""
        parents = np.full(self.num_inner + self.num_units, NO_NODE, dtype=np.int64)
        parents[self.children.reshape(-1)] = self.edge_nodes
        return parents

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """(I+V,) the probability of each node: its frequency divided by that of the root.

        If all frequencies are zero, all units are equally probable.
        """
        weights = self.weights()
        total = weights[0]  # of the root
        if total == 0:
            return self.num_leaves() / self.num_units
        return np.asarray(weights / total)

    def children_of(self, node: int) -> list[int]:
        """The children of an inner node, from left to right."""
        start = self.offsets[node]
        end = self.offsets[node + 1]
        return list(self.children.reshape(-1)[start:end].tolist())

    def code(self, node: int) -> str:
        """The child indexes on the path to a node: "0110" in a binary tree, else "12.0.3".

        Index 0 is the left child. The code of the root is "".
        """
        indexes_from_below = []
        while node != 0:  # 0 is the root
            parent = int(self.parents[node])
            index = self.edges[node] - self.offsets[parent]
            indexes_from_below.append(str(index))
            node = parent
        return self.code_separator.join(reversed(indexes_from_below))

    def codes(self) -> list[str]:
        """The code of each unit; "" for a single unit."""
        return [self.code(self.num_inner + unit_id) for unit_id in range(self.num_units)]

    def depths(self) -> NDArray[np.int64]:
        """(V,) int64: the number of edges from the root to each unit's leaf."""
        return self.path_sums(np.ones(self.num_inner, dtype=np.int64))

    def num_leaves(self) -> NDArray[np.int64]:
        """(I+V,) the number of leaves under each node; 1 for a leaf."""
        return self.sum_leaves(np.ones(self.num_units, dtype=np.int64))

    def weights(self) -> NDArray[np.float64]:
        """(I+V,) the frequency of each node: for an inner node, the sum of its leaves."""
        return self.sum_leaves(self.frequencies)

    def levels(self) -> list[Level]:
        """The inner nodes and the edges of each level, from the root down."""
        node_starts = self.level_starts.tolist()
        edge_starts = self.offsets[self.level_starts].tolist()
        nodes = [slice(start, end) for start, end in pairwise(node_starts)]
        edges = [slice(start, end) for start, end in pairwise(edge_starts)]
        return list(map(Level, nodes, edges))

    def path_edges(self, units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The edges on the paths from the root to `units` (N,), in two arrays (M,).

        Returns: the index into `units` that each edge belongs to, and the edge. The edges to the
            leaves come first, then the edges above them, up to the root.
        """
        indexes = np.arange(len(units))
        edges = self.edges[self.num_inner + units]
        indexes_by_height = [indexes[:0]]  # with an empty array, because there may be no units
        edges_by_height = [edges[:0]]
        while len(edges):
            is_below_root = edges != NO_EDGE
            indexes = indexes[is_below_root]
            edges = edges[is_below_root]
            indexes_by_height.append(indexes)
            edges_by_height.append(edges)
            parents = self.edge_nodes[edges]
            edges = self.edges[parents]
        return np.concatenate(indexes_by_height), np.concatenate(edges_by_height)

    def path_sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values (I,), one per inner node, summed along the path to each unit: (V,)."""
        children = self.children.reshape(-1)
        sums = np.zeros(self.num_inner + self.num_units, dtype=values.dtype)  # above each node
        for _, edges in self.levels():
            parents = self.edge_nodes[edges]
            sums[children[edges]] = sums[parents] + values[parents]
        return sums[self.num_inner :]

    def sum_leaves(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values (V,), one per unit, summed over the leaves under each node: (I+V,).

        Sums of integers that are too large wrap around.
        """
        children = self.children.reshape(-1)
        sums = np.concatenate([np.zeros(self.num_inner, values.dtype), values])
        for nodes, edges in reversed(self.levels()):  # children come before their parents
            row_starts = self.offsets[nodes] - edges.start  # each node's children among these edges
            sums[nodes] = np.add.reduceat(sums[children[edges]], row_starts)
        return sums

    def probabilities(self) -> NDArray[np.float64]:
        """(V,) the frequencies divided by their sum; uniform if all are zero."""
        largest = self.frequencies.max()
        if largest == 0:
            return np.full(self.num_units, 1.0 / self.num_units)
        # Without the scale, subnormal counts would lose digits in the division.
        scaled = self.frequencies / largest
        return np.asarray(scaled / scaled.sum())

    def entropy(self) -> float:
        """Bits per unit of the distribution given by the frequencies."""
        probabilities = self.probabilities()
        present = probabilities[probabilities > 0]
        bits = -(present * np.log2(present)).sum()
        return float(bits) + 0.0  # + 0.0: no "-0.0" for a single unit

    def code_lengths(self) -> NDArray[np.float64]:
        """(V,) bits of each unit's path if each choice among d children costs log2 d bits.

        An untrained head, in which all children of a node are equally probable, has these costs.
        """
        num_children = np.diff(self.offsets)
        return self.path_sums(np.log2(num_children))

    def mean_code_length(self) -> float:
        """Bits per unit: the code lengths weighted by the probabilities.

        Never below `entropy()`.
        """
        return float(self.probabilities() @ self.code_lengths())

    def rows(self) -> list[list[int]]:
        """The children of each inner node, as in `tree.json`."""
        flat = self.children.reshape(-1).tolist()
        return [flat[start:end] for start, end in pairwise(self.offsets.tolist())]

    def save(self, path: Path | str) -> None:
        """Write `tree.json` atomically, one field per line."""
        fields = {
            "format": FORMAT,
            "kind": self.kind,
            "units": self.units,
            "children": self.rows(),
            "frequencies": self.frequencies.tolist(),
            "options": self.options,
        }
        lines = []
        for name, value in fields.items():
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            lines.append(f"{json.dumps(name)}: {text}")
        write_atomic(path, "{" + ",\n ".join(lines) + "}\n")

    def has_same_structure(self, other: "UnitTree") -> bool:
        """Whether the weights of a tree head mean the same with both trees.

        Kind, frequencies and options may differ.
        """
        if type(self) is not type(other) or self.units != other.units:
            return False
        has_same_offsets = np.array_equal(self.offsets, other.offsets)
        return has_same_offsets and np.array_equal(self.children, other.children)

    def __eq__(self, other: object) -> bool:
        """Whether all fields are equal; a binary tree and an n-ary tree never are."""
        if not isinstance(other, UnitTree) or type(self) is not type(other):
            return NotImplemented
        if (self.kind, self.options) != (other.kind, other.options):
            return False
        has_same_frequencies = np.array_equal(self.frequencies, other.frequencies)
        return has_same_frequencies and self.has_same_structure(other)

    def __hash__(self) -> int:
        """The hash of kind, units and children; frequencies and options are left out."""
        return hash((self.kind, self.units, self.offsets.tobytes(), self.children.tobytes()))
