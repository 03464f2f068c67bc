# SPDX-License-Identifier: Apache-2.0
"""What binary and n-ary trees share: the value, its levels, sums over leaves and over paths, codes,
code lengths.

Dimension key: V units (leaves), I inner nodes, E = I+V-1 edges, P longest path (edges from root to
deepest leaf), M edges on the paths to some units.

Numbering: inner nodes 0…I-1 breadth first from the root 0, left to right; the leaf of unit i is
I+i.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.fields import FORMAT, check_children, check_frequencies, check_names


@dataclass(frozen=True, eq=False)
class UnitTree:
    """Base of `Tree` and `NaryTree`.

    Arrays are read-only. Two trees are equal when all their fields are equal. Raises ValueError
    when the fields are not one tree over distinct units.
    """

    code_separator: ClassVar[str] = "."
    """Between the child indexes of a code."""
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
        frequencies, units = check_frequencies(self.frequencies), tuple(self.units)
        offsets, children = (
            np.array(array, dtype=np.int64) for array in (self.offsets, self.children)
        )
        check_names(self.kind, units, len(frequencies))
        check_children(offsets, children.reshape(-1), len(units))
        for array in (offsets, children, frequencies):
            array.flags.writeable = False
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
        """P, the number of edges to the deepest leaf; 0 for a single unit, 1 for a flat softmax."""
        return len(self.level_starts) - 1

    @cached_property
    def level_starts(self) -> NDArray[np.int64]:
        """(P+1,): the inner nodes of level l are level_starts[l] … level_starts[l+1]-1; the root is
        level 0.
        """
        inner_before = np.concatenate([[0], np.cumsum(self.children.reshape(-1) < self.num_inner)])
        starts = [0]
        end = min(1, self.num_inner)
        while end > starts[-1]:
            starts.append(end)
            end = 1 + int(inner_before[self.offsets[end]])
        return np.array(starts, dtype=np.int64)

    @cached_property
    def edge_nodes(self) -> NDArray[np.int64]:
        """(E,) the inner node that each edge starts from."""
        return np.repeat(np.arange(self.num_inner), np.diff(self.offsets))

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        """(I+V,) the edge that leads to each node, leaves included; -1 for the root."""
        edges = np.full(self.num_inner + self.num_units, -1, dtype=np.int64)
        edges[self.children.reshape(-1)] = np.arange(self.num_edges)
        return edges

    @cached_property
    def parents(self) -> NDArray[np.int64]:
        """(I+V,) the inner node above each node, leaves included; -1 for the root."""
        return np.append(self.edge_nodes, -1)[self.edges]

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """(I+V,) the probability of each node; proportional to its number of units if all
        frequencies are zero.
        """
        weights = self.weights()
        return weights / weights[0] if weights[0] > 0 else self.num_leaves() / self.num_units

    def children_of(self, node: int) -> list[int]:
        return list(self.children.reshape(-1)[self.offsets[node] : self.offsets[node + 1]].tolist())

    def code(self, node: int) -> str:
        """The child indexes from the root to a node: "0110" in a binary tree, else "12.0.3"; "" for
        the root.
        """
        indexes = []
        while node:
            parent = int(self.parents[node])
            indexes.append(str(self.edges[node] - self.offsets[parent]))
            node = parent
        return self.code_separator.join(reversed(indexes))

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

    def levels(self) -> Iterable[tuple[slice, slice]]:
        """The inner nodes and the edges of each level, from the root down."""
        starts, at = self.level_starts.tolist(), self.offsets[self.level_starts].tolist()
        slices = [[slice(*pair) for pair in pairwise(ends)] for ends in (starts, at)]
        return list(zip(*slices, strict=True))

    def path_edges(self, units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The edges on the paths to `units` (N,): the index into `units` and the edge of each, (M,)
        each.
        """
        rows, edges = np.arange(len(units)), self.edges[self.num_inner + units]
        found = [(rows[:0], edges[:0])]
        while len(edges):
            rows, edges = rows[edges >= 0], edges[edges >= 0]
            found.append((rows, edges))
            edges = self.edges[self.edge_nodes[edges]]
        all_rows, all_edges = zip(*found, strict=True)
        return np.concatenate(all_rows), np.concatenate(all_edges)

    def path_sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values (I,), one per inner node, summed along the path to each unit: (V,)."""
        sums, children = (
            np.zeros(self.num_inner + self.num_units, dtype=values.dtype),
            self.children.reshape(-1),
        )
        for _, edges in self.levels():
            nodes = self.edge_nodes[edges]
            sums[children[edges]] = sums[nodes] + values[nodes]
        return sums[self.num_inner :]

    def sum_leaves(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values (V,), one per unit, summed over the leaves under each node: (I+V,); integers wrap
        around.
        """
        sums, children = (
            np.concatenate([np.zeros(self.num_inner, values.dtype), values]),
            self.children.reshape(-1),
        )
        for nodes, edges in reversed(list(self.levels())):
            sums[nodes] = np.add.reduceat(sums[children[edges]], self.offsets[nodes] - edges.start)
        return sums

    def probabilities(self) -> NDArray[np.float64]:
        """(V,) the frequencies divided by their sum; uniform if all are zero."""
        largest = self.frequencies.max()
        if largest == 0:
            return np.full(self.num_units, 1.0 / self.num_units)
        scaled = (
            self.frequencies / largest
        )  # otherwise subnormal counts would lose digits in the division
        return np.asarray(scaled / scaled.sum())

    def entropy(self) -> float:
        """Bits per unit of the distribution given by the frequencies."""
        p = self.probabilities()
        p = p[p > 0]
        return float(-(p * np.log2(p)).sum()) + 0.0  # + 0.0: no "-0.0" for a single unit

    def code_lengths(self) -> NDArray[np.float64]:
        """(V,) bits of each unit's path if each choice among d children costs log2 d, as in an
        untrained head.
        """
        return self.path_sums(np.log2(np.diff(self.offsets)))

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
        lines = [
            f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False, allow_nan=False)}"
            for k, v in fields.items()
        ]
        write_atomic(path, "{" + ",\n ".join(lines) + "}\n")

    def has_same_structure(self, other: "UnitTree") -> bool:
        """Whether the weights of a tree head mean the same with both trees."""
        is_equal = type(self) is type(other) and self.units == other.units
        return is_equal and all(
            np.array_equal(getattr(self, n), getattr(other, n)) for n in ("offsets", "children")
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UnitTree) or type(self) is not type(other):
            return NotImplemented
        is_equal = (self.kind, self.units, self.options) == (other.kind, other.units, other.options)
        arrays = ("offsets", "children", "frequencies")
        return is_equal and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in arrays
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.units, self.offsets.tobytes(), self.children.tobytes()))
