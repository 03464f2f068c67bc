# SPDX-License-Identifier: Apache-2.0
"""The NaryTree value: a tree whose inner nodes have any number of children, two levels of classes among them.

Goodman 2001 (classes of words), Kuang-style multi-level cuts of a binary tree, frequency binning (cHSM).

Dimension key: V units (leaves), I inner nodes, E = I+V-1 edges, C classes.

Numbering: inner nodes 0…I-1 breadth first from the root 0, left to right; the leaf of unit i is I+i. Edge e leads to
the node children[e]; the edges of one node are neighbours.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wenet_hs.errors import DataError
from wenet_hs.tree import code_length, nary_build
from wenet_hs.tree.check import check_frequencies, check_kind, check_units
from wenet_hs.tree.file import ChildRows, read_fields, write_fields
from wenet_hs.tree.nary_check import check_nary
from wenet_hs.tree.tree import Tree

KIND = "classes"
"""The kind of every n-ary tree built here. A file of this kind is an `NaryTree` even if all its rows are pairs."""


@dataclass(frozen=True, eq=False)
class NaryTree:
    """A tree over `units`. Arrays are read-only; two trees are equal when all their fields are.

    Raises ValueError when the fields are not one tree over distinct units.
    """

    kind: str
    """How it was built: "classes"."""
    units: tuple[str, ...]
    """The V unit names, in the order of the unit table."""
    offsets: NDArray[np.int64]
    """(I+1,) where the row of each inner node starts in `children`."""
    children: NDArray[np.int64]
    """(E,) the children of all inner nodes, node by node, left to right; empty for a single unit."""
    frequencies: NDArray[np.float64]
    """(V,) the counts or relative frequencies it was built from, finite, ≥ 0."""
    options: dict[str, Any] = field(default_factory=dict)
    """What else the builder wants on record; JSON values."""

    def __post_init__(self) -> None:
        check_kind(self.kind)
        frequencies = check_frequencies(self.frequencies)
        units = tuple(self.units)
        check_units(units, len(frequencies))
        offsets, children = np.array(self.offsets, dtype=np.int64), np.array(self.children, dtype=np.int64).reshape(-1)
        check_nary(offsets, children, len(units))
        arrays = {"offsets": offsets, "children": children, "frequencies": frequencies}
        for name, array in arrays.items():
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        object.__setattr__(self, "units", units)

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Sequence[int]],
        frequencies: Sequence[float] | NDArray[np.float64],
        *,
        units: Sequence[str] | None = None,
        kind: str = KIND,
        options: Mapping[str, Any] | None = None,
    ) -> "NaryTree":
        """A tree from a list of children a node, as `tree.json` has them. Raises ValueError as the class does."""
        offsets = np.cumsum([0, *map(len, rows)])
        children = np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int64)
        return cls(kind, _names(units, len(frequencies)), offsets, children, np.array(frequencies), dict(options or {}))

    @classmethod
    def from_binary(cls, tree: Tree, num_classes: int | None = None) -> "NaryTree":
        """Two levels from the top of a binary tree: its most probable branches are opened until there are C.

        The branches become the root's children, from left to right; the leaves of each hang directly below it, and a
        branch that is a leaf stays a leaf of the root.

        Args:
            num_classes: C ≥ 1, default √V; 1, or V and more, give a flat softmax.
        """
        num_classes = _checked_classes(num_classes, tree.num_units)
        rows = nary_build.contract(tree, nary_build.most_probable_opened(tree, num_classes))
        options = {**tree.options, "from": tree.kind, "num_classes": num_classes}
        return cls(KIND, tree.units, *rows, tree.frequencies, options)

    @classmethod
    def cut(cls, tree: Tree, levels_a_step: int) -> "NaryTree":
        """Every `levels_a_step` ≥ 1 levels of a binary tree become one decision of up to 2^levels_a_step children.

        One level a step is the binary tree itself; as many as it is deep give a flat softmax.
        """
        if levels_a_step < 1:
            raise ValueError(f"levels_a_step: must be at least 1, got {levels_a_step}")
        rows = nary_build.contract(tree, nary_build.every_level(tree, levels_a_step))
        options = {**tree.options, "from": tree.kind, "levels_a_step": levels_a_step}
        return cls(KIND, tree.units, *rows, tree.frequencies, options)

    @classmethod
    def frequency_bins(
        cls,
        frequencies: Sequence[float] | NDArray[np.float64],
        num_classes: int | None = None,
        *,
        units: Sequence[str] | None = None,
        by: Literal["mass", "size"] = "mass",
    ) -> "NaryTree":
        """Two levels: the units in falling order of frequency (ties by id), cut into C classes.

        By "mass" each class has about the same share of all occurrences (cHSM; frequent units stand alone at the root,
        so there may be fewer than C), by "size" the same number of units. Frequencies that are all zero are as equal.

        Args:
            frequencies: (V,) counts or probabilities, finite, ≥ 0, V ≥ 1.
            num_classes: C ≥ 1, default √V.
            units: V distinct names; without them "0", "1", ….
        """
        if by not in ("mass", "size"):
            raise ValueError(f'by: must be "mass" or "size", got {by!r}')
        weights = check_frequencies(frequencies)
        num_classes = _checked_classes(num_classes, len(weights))
        rows = nary_build.bins(weights, num_classes, by)
        return cls(KIND, _names(units, len(weights)), *rows, weights, {"bins": by, "num_classes": num_classes})

    def binary(self) -> Tree:
        """The binary tree in which every node has become Huffman's tree over its children's frequencies.

        Its kind is "classes_binary". A node of two children is one decision, the less frequent child left.
        """
        rows = nary_build.Rows(self.offsets, self.children)
        children = nary_build.huffman_at_each_node(rows, self.weights(), self.num_units)
        return Tree(f"{self.kind}_binary", self.units, children, self.frequencies, dict(self.options))

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
        return len(self.children)

    @property
    def depth(self) -> int:
        """The number of edges to the deepest leaf; 0 for a single unit, 1 for a flat softmax."""
        return len(self.level_starts) - 1

    @cached_property
    def level_starts(self) -> NDArray[np.int64]:
        """(depth+1,): the inner nodes of level l are level_starts[l] … level_starts[l+1]-1; the root is level 0."""
        inner_before = np.concatenate([[0], np.cumsum(self.children < self.num_inner)])
        starts = [0]
        end = min(1, self.num_inner)
        while end > starts[-1]:
            starts.append(end)
            end = 1 + int(inner_before[self.offsets[end]])
        return np.array(starts, dtype=np.int64)

    @cached_property
    def edge_nodes(self) -> NDArray[np.int64]:
        """(E,) the inner node that each edge leaves."""
        return np.repeat(np.arange(self.num_inner), np.diff(self.offsets))

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        """(I+V,) the edge that leads to each node, leaves included; -1 for the root."""
        edges = np.full(self.num_inner + self.num_units, -1, dtype=np.int64)
        edges[self.children] = np.arange(self.num_edges)
        return edges

    @cached_property
    def parents(self) -> NDArray[np.int64]:
        """(I+V,) the inner node above each node, leaves included; -1 for the root."""
        parents = np.full(self.num_inner + self.num_units, -1, dtype=np.int64)
        parents[self.children] = self.edge_nodes
        return parents

    def depths(self) -> NDArray[np.int64]:
        """(V,) the number of decisions on each unit's way from the root."""
        return self.path_sums(np.ones(self.num_inner, dtype=np.int64))

    def num_leaves(self) -> NDArray[np.int64]:
        """(I+V,) how many leaves are under each node; 1 for a leaf."""
        return self.sum_leaves(np.ones(self.num_units, dtype=np.int64))

    def weights(self) -> NDArray[np.float64]:
        """(I+V,) the frequency of every node: a leaf's own, an inner node's the sum of its leaves."""
        return self.sum_leaves(self.frequencies)

    def probabilities(self) -> NDArray[np.float64]:
        """(V,) the frequencies divided by their sum; uniform when all of them are zero."""
        return code_length.probabilities(self.frequencies)

    def entropy(self) -> float:
        """Bits a unit of the distribution that the frequencies describe."""
        return code_length.entropy(self.frequencies)

    def mean_code_length(self) -> float:
        """Bits a unit: `code_lengths()` weighted by the probabilities; ≥ `entropy()`."""
        return float(self.probabilities() @ self.code_lengths())

    def code_lengths(self) -> NDArray[np.float64]:
        """(V,) bits of each unit's way when each of a node's d children costs log2 d, as in an untrained head."""
        return self.path_sums(np.log2(np.diff(self.offsets)))

    def mean_choices(self) -> float:
        """How many children a unit's path looks at on average: the scores that its loss takes."""
        return float(self.probabilities() @ self.path_sums(np.diff(self.offsets)))

    def _levels(self) -> list[tuple[slice, slice]]:
        """The inner nodes and the edges of each level, from the root down."""
        starts, at = self.level_starts.tolist(), self.offsets[self.level_starts].tolist()
        slices = [[slice(*pair) for pair in itertools.pairwise(ends)] for ends in (starts, at)]
        return list(zip(*slices, strict=True))

    def path_sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values (I,), one a node, summed along the way to each unit: (V,)."""
        sums = np.zeros(self.num_inner + self.num_units, dtype=values.dtype)
        for _, edges in self._levels():
            nodes = self.edge_nodes[edges]
            sums[self.children[edges]] = sums[nodes] + values[nodes]
        return sums[self.num_inner :]

    def sum_leaves(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values (V,), one a unit, summed over the leaves under each node: (I+V,); integers wrap around."""
        sums = np.concatenate([np.zeros(self.num_inner, dtype=values.dtype), values])
        for nodes, edges in reversed(self._levels()):
            sums[nodes] = np.add.reduceat(sums[self.children[edges]], self.offsets[nodes] - edges.start)
        return sums

    def rows(self) -> list[list[int]]:
        """The children of each inner node, as in `tree.json`."""
        flat = self.children.tolist()
        return [flat[start:end] for start, end in itertools.pairwise(self.offsets.tolist())]

    def save(self, path: Path | str) -> None:
        """Write `tree.json`, the whole file or nothing."""
        fields = {"kind": self.kind, "units": self.units, "children": self.rows()}
        write_fields(path, fields | {"frequencies": self.frequencies.tolist(), "options": self.options})

    @classmethod
    def load(cls, path: Path | str) -> "NaryTree":
        """Read a `tree.json`, a binary one too. Raises DataError, one line with path and fault, on any other file."""
        return _nary(path, read_fields(path))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NaryTree):
            return NotImplemented
        return (
            (self.kind, self.units, self.options) == (other.kind, other.units, other.options)
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.children, other.children)
            and np.array_equal(self.frequencies, other.frequencies)
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.units, self.offsets.tobytes(), self.children.tobytes()))


def load_tree(path: Path | str) -> Tree | NaryTree:
    """Read any `tree.json`: a `Tree` when all its inner nodes have two children and its kind is not "classes".

    Raises DataError, one line with path and fault, on anything that is no tree.
    """
    fields = read_fields(path)
    rows: ChildRows = fields["children"]
    if fields["kind"] == KIND or (np.diff(rows.offsets) != 2).any():
        return _nary(path, fields)
    try:
        return Tree(**fields | {"children": rows.pairs()})
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def _nary(path: Path | str, fields: dict[str, Any]) -> NaryTree:
    rows: ChildRows = fields["children"]
    try:
        return NaryTree(**fields | {"offsets": rows.offsets, "children": rows.flat})
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def _names(units: Sequence[str] | None, num_units: int) -> tuple[str, ...]:
    return tuple(map(str, range(num_units))) if units is None else tuple(units)


def _checked_classes(num_classes: int | None, num_units: int) -> int:
    if num_classes is None:
        return nary_build.default_num_classes(num_units)
    if num_classes < 1:
        raise ValueError(f"num_classes: must be at least 1, got {num_classes}")
    return num_classes
