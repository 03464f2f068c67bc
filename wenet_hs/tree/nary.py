# SPDX-License-Identifier: Apache-2.0
"""N-ary trees: two levels of classes from a binary tree (Goodman 2001) or from frequency bins (cHSM).

Dimension key: V units (leaves), I inner nodes, E = I+V-1 edges, C classes. Numbering: see `tree.py`.
"""

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wenet_hs.errors import DataError
from wenet_hs.files import read_lines
from wenet_hs.tree.fields import check_frequencies, parse_fields
from wenet_hs.tree.huffman import breadth_first, huffman_children
from wenet_hs.tree.tree import Tree, UnitTree

KIND = "classes"
"""The kind of every n-ary tree built here. A file of this kind is an `NaryTree` even if all its rows are pairs."""

Ints = NDArray[np.int64]
Rows = tuple[Ints, Ints]
"""Offsets (I+1,) and children (E,): the children of node n are children[offsets[n]:offsets[n+1]]."""


@dataclass(frozen=True, eq=False)
class NaryTree(UnitTree):
    """A tree over `units` whose inner nodes have two or more children. Raises ValueError when the fields are not one.

    Edge e leads to the node children[e]; the edges of one node are adjacent.
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
    """What else the builder recorded; JSON values."""

    def __post_init__(self) -> None:
        self._set_checked(np.array(self.offsets, dtype=np.int64), np.array(self.children, dtype=np.int64).reshape(-1))

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
        """A tree from one list of children per inner node, as in `tree.json`. Raises ValueError as the class does."""
        offsets = np.cumsum([0, *map(len, rows)])
        children = np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int64)
        return cls(kind, _names(units, len(frequencies)), offsets, children, np.array(frequencies), dict(options or {}))

    @classmethod
    def from_binary(cls, tree: Tree, num_classes: int | None = None) -> "NaryTree":
        """Two levels from the top of a binary tree: its most probable branches are opened until there are C.

        The branches become the root's children, from left to right, with their leaves directly below them. A branch
        that is a leaf stays a leaf of the root. Equally probable branches are opened by their number.

        Args:
            num_classes: C ≥ 1, default √V; 1, or V and more, give a flat softmax.
        """
        num_classes = _checked_classes(num_classes, tree.num_units)
        weights, num_inner = tree.weights(), tree.num_inner
        closed = [(-float(weights[0]), 0)] if num_inner else []
        branches = 1
        while branches < num_classes and closed:
            node = heapq.heappop(closed)[1]
            for child in tree.children[node].tolist():
                if child < num_inner:
                    heapq.heappush(closed, (-float(weights[child]), child))
            branches += 1
        first_leaf, num_leaves = _first_leaves(tree), tree.num_leaves()
        classes = sorted((node for _, node in closed if node), key=first_leaf.__getitem__)
        units = np.argsort(first_leaf[num_inner:])  # from left to right
        leaves = (1 + len(classes) + units).tolist()
        at_root: list[int] = []
        rows, end = [at_root][:num_inner], 0
        for number, node in enumerate(classes, start=1):
            at_root += [*leaves[end : first_leaf[node]], number]
            end = first_leaf[node] + num_leaves[node]
            rows.append(leaves[first_leaf[node] : end])
        at_root += leaves[end:]
        options = {**tree.options, "from": tree.kind, "num_classes": num_classes}
        return cls.from_rows(rows, tree.frequencies, units=tree.units, options=options)

    @classmethod
    def frequency_bins(
        cls,
        frequencies: Sequence[float] | NDArray[np.float64],
        num_classes: int | None = None,
        *,
        units: Sequence[str] | None = None,
    ) -> "NaryTree":
        """Two levels: the units by falling frequency (ties by id), cut into C classes of about equal mass (cHSM).

        Frequent units become leaves of the root, so there may be fewer than C classes.

        Args:
            frequencies: (V,) counts or probabilities, finite, ≥ 0, V ≥ 1. If all are zero, they count as equal.
            num_classes: C ≥ 1, default √V.
            units: V distinct names; the default is "0", "1", ….
        """
        weights = check_frequencies(frequencies)
        num_classes = _checked_classes(num_classes, len(weights))
        options = {"bins": "mass", "num_classes": num_classes}
        return cls(KIND, _names(units, len(weights)), *_bins(weights, num_classes), weights, options)

    def binary(self) -> Tree:
        """The binary tree in which every node becomes Huffman's tree over its children's frequencies.

        Its kind is "classes_binary". In a node of two children the less frequent child is on the left.
        """
        degrees = np.diff(self.offsets)
        num_rows = self.num_units - 1
        # A node of d children becomes d - 1 rows. Rows are filled from the end, so that the last one is the root.
        tops = num_rows - 1 - np.concatenate([[0], np.cumsum(degrees - 1)])[: self.num_inner]
        inner = np.minimum(self.children, max(self.num_inner - 1, 0))
        is_inner = self.children < self.num_inner
        ids = np.where(is_inner, self.num_units + tops[inner], self.children - self.num_inner)
        pairs = np.zeros((num_rows, 2), dtype=np.int64)
        edge_weights = self.weights()[self.children]
        first = self.offsets[:-1][degrees == 2]
        swapped = (edge_weights[first] > edge_weights[first + 1]).astype(np.int64)
        pairs[tops[degrees == 2]] = np.stack([ids[first + swapped], ids[first + 1 - swapped]], axis=1)
        for node in np.flatnonzero(degrees > 2):
            start, end = self.offsets[node : node + 2]
            local = huffman_children(edge_weights[start:end])
            names = np.concatenate([self.num_units + tops[node] - np.arange(len(local)), ids[start:end]])
            pairs[tops[node] - np.arange(len(local))] = names[local]
        return Tree(f"{self.kind}_binary", self.units, breadth_first(pairs), self.frequencies, dict(self.options))


def load_tree(path: Path | str) -> Tree | NaryTree:
    """Read any `tree.json`: a `Tree` when all its inner nodes have two children and its kind is not "classes".

    Raises DataError, one line with path and fault, on anything that is not a tree.
    """
    fields = parse_fields("\n".join(read_lines(path)), path)
    try:
        if fields["kind"] == KIND or (np.diff(fields["offsets"]) != 2).any():
            return NaryTree(**fields)
        del fields["offsets"]
        return Tree(**fields | {"children": fields["children"].reshape(-1, 2)})
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def _names(units: Sequence[str] | None, num_units: int) -> tuple[str, ...]:
    return tuple(map(str, range(num_units))) if units is None else tuple(units)


def _checked_classes(num_classes: int | None, num_units: int) -> int:
    if num_classes is None:
        return max(2, round(math.sqrt(num_units)))
    if num_classes < 1:
        raise ValueError(f"num_classes: must be at least 1, got {num_classes}")
    return num_classes


def _first_leaves(tree: Tree) -> Ints:
    """(2V-1,) the position of the first leaf under each node, counted from the left."""
    num_leaves = tree.num_leaves()
    first_leaf = np.zeros_like(num_leaves)
    for start, end in itertools.pairwise(tree.level_starts):
        below = tree.children[start:end]
        first_leaf[below] = first_leaf[start:end, None]
        first_leaf[below[:, 1]] += num_leaves[below[:, 0]]
    return first_leaf


def _bins(frequencies: NDArray[np.float64], num_classes: int) -> Rows:
    """Units by falling frequency (ties by id) cut into classes; a class of one unit is a leaf of the root.

    The class of a unit is the share of all occurrences before it, times C, rounded down.
    """
    num_units = len(frequencies)
    if num_units == 1:
        return np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    order = np.argsort(-frequencies, kind="stable")
    largest = frequencies[order[0]]
    if largest == 0:
        class_of = np.arange(num_units) * num_classes // num_units
    else:
        reached = np.cumsum(frequencies[order] / largest)
        before = np.concatenate([[0.0], reached[:-1]])
        class_of = np.minimum((before / reached[-1] * num_classes).astype(np.int64), num_classes - 1)
    _, sizes = np.unique(class_of, return_counts=True)
    if len(sizes) == 1:
        return np.array([0, num_units]), 1 + order
    is_inner = sizes > 1
    leaves = order + 1 + int(is_inner.sum())
    at_root = np.where(is_inner, np.cumsum(is_inner), leaves[np.cumsum(sizes) - sizes])
    below = leaves[np.repeat(is_inner, sizes)]
    return _offsets(np.concatenate([[len(sizes)], sizes[is_inner]])), np.concatenate([at_root, below])


def _offsets(sizes: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
