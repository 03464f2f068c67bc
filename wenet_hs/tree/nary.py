# SPDX-License-Identifier: Apache-2.0
"""N-ary trees, two levels of classes among them; how they are built, and how they become binary.

Goodman 2001 (classes of words), multi-level cuts of a binary tree, frequency binning (cHSM).

Dimension key: V units (leaves), I inner nodes, E = I+V-1 edges, C classes. Numbering: see `tree.py`.
"""

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

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
        is_kept = np.zeros(num_inner, dtype=np.bool_)
        is_kept[[0, *(node for _, node in closed)] if num_inner else []] = True
        options = {**tree.options, "from": tree.kind, "num_classes": num_classes}
        return cls(KIND, tree.units, *_contract(tree, is_kept), tree.frequencies, options)

    @classmethod
    def cut(cls, tree: Tree, levels_per_step: int) -> "NaryTree":
        """Every `levels_per_step` ≥ 1 levels of a binary tree become one choice among up to 2^levels_per_step children.

        With one level per step the tree stays binary; with the tree's depth it becomes a flat softmax.
        """
        if levels_per_step < 1:
            raise ValueError(f"levels_per_step: must be at least 1, got {levels_per_step}")
        levels = np.repeat(np.arange(tree.depth), np.diff(tree.level_starts))
        rows = _contract(tree, np.asarray(levels % levels_per_step == 0))
        options = {**tree.options, "from": tree.kind, "levels_per_step": levels_per_step}
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
        """Two levels: the units by falling frequency (ties by id), cut into C classes.

        With "mass" each class has about the same share of all occurrences (cHSM). Frequent units become leaves of the
        root, so there may be fewer than C classes. With "size" each class has about the same number of units.

        Args:
            frequencies: (V,) counts or probabilities, finite, ≥ 0, V ≥ 1. If all are zero, they count as equal.
            num_classes: C ≥ 1, default √V.
            units: V distinct names; the default is "0", "1", ….
        """
        if by not in ("mass", "size"):
            raise ValueError(f'by: must be "mass" or "size", got {by!r}')
        weights = check_frequencies(frequencies)
        num_classes = _checked_classes(num_classes, len(weights))
        rows = _bins(weights, num_classes, by)
        return cls(KIND, _names(units, len(weights)), *rows, weights, {"bins": by, "num_classes": num_classes})

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


def _contract(tree: Tree, is_kept: NDArray[np.bool_]) -> Rows:
    """The tree with only the inner nodes that are kept (V-1,), the root among them. The order of leaves stays."""
    num_nodes, num_inner = 2 * tree.num_units - 1, tree.num_inner
    num_leaves = tree.num_leaves()
    first_leaf = np.zeros(num_nodes, dtype=np.int64)  # of each node, counted from the left
    above = np.zeros(num_nodes, dtype=np.int64)  # the nearest kept node above
    level = np.zeros(num_nodes, dtype=np.int64)  # the number of kept nodes above
    for start, end in itertools.pairwise(tree.level_starts):
        here = np.arange(start, end)
        below = tree.children[here]
        first_leaf[below] = first_leaf[here, None]
        first_leaf[below[:, 1]] += num_leaves[below[:, 0]]
        above[below] = np.where(is_kept[here], here, above[here])[:, None]
        level[below] = (level[here] + is_kept[here])[:, None]
    inner = np.flatnonzero(is_kept)
    inner = inner[np.lexsort((first_leaf[inner], level[inner]))]
    number = np.concatenate([np.zeros(num_inner, dtype=np.int64), len(inner) + np.arange(tree.num_units)])
    number[inner] = np.arange(len(inner))
    nodes = np.concatenate([inner[1:], np.arange(num_inner, num_nodes if num_inner else 0)])
    nodes = nodes[np.lexsort((first_leaf[nodes], number[above[nodes]]))]
    return _offsets(np.bincount(number[above[nodes]], minlength=len(inner))), number[nodes]


def _bins(frequencies: NDArray[np.float64], num_classes: int, by: str) -> Rows:
    """Units by falling frequency (ties by id) cut into classes; a class of one unit is a leaf of the root.

    By "mass" the class of a unit is the share of all occurrences before it, times C, rounded down.
    """
    num_units = len(frequencies)
    if num_units == 1:
        return np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    order = np.argsort(-frequencies, kind="stable")
    largest = frequencies[order[0]]
    if by == "size" or largest == 0:
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
