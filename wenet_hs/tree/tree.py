# SPDX-License-Identifier: Apache-2.0
"""Trees over the output units: binary trees, n-ary trees, and their file `tree.json`.

Dimension key: V units (leaves), I inner nodes, E = I+V-1 edges, P longest path (edges from root to
deepest leaf).

Numbering: inner nodes 0…I-1 breadth first from the root 0, left to right; the leaf of unit i is
I+i. In a binary tree I = V-1. Bit 0 is the left child (probability σ(z) in the tree head), bit 1
the right one (σ(-z)).
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.errors import DataError
from wenet_hs.tree.fields import TreeFile, check_frequencies
from wenet_hs.tree.huffman import (
    NO_ROWS,
    balanced_children,
    breadth_first,
    fano_children,
    huffman_children,
    huffman_rows,
    least_depth,
    limited_children,
    random_order,
    two_levels,
)
from wenet_hs.tree.text_file import read_utf8
from wenet_hs.tree.unit_tree import UnitTree

Numbers = Sequence[float] | NDArray[np.float64]
"""Frequencies (V,): counts or probabilities, finite, ≥ 0, V ≥ 1."""
Names = Sequence[str] | None
"""V distinct names; the default is "0", "1", …."""
TreeOptions = Mapping[str, Any] | None
"""What else is recorded in `options` and in the file; JSON values."""

CLASSES = "classes"
"""The kind of every n-ary tree built here.

A file of this kind is an `NaryTree` even if all its rows are pairs.
"""
MAX_PATH_CELLS = 2**30  # entries of `paths()`; a larger table means a tree too deep for any head


class Tree(UnitTree):
    """A binary tree over `units`; `children` (V-1, 2) are the left and the right child of each
    inner node.
    """

    code_separator = ""

    def __post_init__(self) -> None:
        children = np.array(self.children, dtype=np.int64).reshape(-1, 2)
        vars(self).update(children=children, offsets=2 * np.arange(len(children) + 1))
        super().__post_init__()

    # The builders are deterministic, accept V = 1, and raise ValueError on wrong frequencies or
    # units.

    @classmethod
    def build(
        cls,
        kind: str,
        children_of: Callable[[NDArray[np.float64]], NDArray[np.int64]],
        frequencies: Numbers,
        units: Names = None,
        options: TreeOptions = None,
    ) -> "Tree":
        """The tree whose children (V-1, 2) a function computes from the checked frequencies (V,)."""
        weights = check_frequencies(frequencies)
        return cls(
            kind, _names(units, len(weights)), children_of(weights), weights, dict(options or {})
        )

    @classmethod
    def huffman(
        cls, frequencies: Numbers, units: Names = None, max_depth: int | None = None
    ) -> "Tree":
        """Huffman's tree of the paper's appendix A: the less probable of two merged nodes is the
        left child.

        Ties are resolved by unit id, leaves before merged nodes, older merged nodes first. So units
        that never occur form a balanced subtree. If the tree is deeper than `max_depth`, the tree
        of that depth with the least mean code length is built by package-merge. `max_depth` is
        recorded in the options.
        Raises ValueError when it is below ⌈log2 V⌉.
        """
        tree = cls.build("huffman", huffman_children, frequencies, units)
        if max_depth is None:
            return tree
        if max_depth < (least := least_depth(tree.num_units)):
            raise ValueError(
                f"max_depth: {max_depth} is too small for {tree.num_units} units, which need at least {least}"
            )
        children = (
            limited_children(tree.frequencies, max_depth)
            if tree.depth > max_depth
            else tree.children
        )
        return replace(tree, children=children, options={"max_depth": max_depth})

    @classmethod
    def fano(cls, frequencies: Numbers, units: Names = None) -> "Tree":
        """Shannon-Fano: units by falling frequency (ties by id), split repeatedly into halves of
        nearly equal mass.
        """
        return cls.build("fano", fano_children, frequencies, units)

    @classmethod
    def balanced(cls, frequencies: Numbers, units: Names = None) -> "Tree":
        """Units in the order of their ids, halved repeatedly; the left half gets the extra unit of
        an odd number.
        """
        return cls.build(
            "balanced", lambda f: balanced_children(np.arange(len(f))), frequencies, units
        )

    @classmethod
    def random(cls, frequencies: Numbers, units: Names = None, seed: int = 0) -> "Tree":
        """Units in a random order, halved repeatedly; `seed` (≥ 0) is recorded in the options."""
        if seed < 0:
            raise ValueError(f"seed: must be at least 0, got {seed}")
        return cls.build(
            "random",
            lambda f: balanced_children(random_order(len(f), seed)),
            frequencies,
            units,
            {"seed": seed},
        )

    @classmethod
    def brown(
        cls,
        sequences: Sequence[Sequence[int]],
        frequencies: Numbers,
        units: Names = None,
    ) -> "Tree":
        """Brown's tree: units that have the same units before and after them share a branch.

        Args:
            sequences: unit ids in 0…V-1, one sequence per sentence. A unit at a sentence's end has
                nothing after it.
            frequencies: (V,) the order in which units are clustered. `add_unplaced` places units
                of frequency 0, and those without neighbours.
        Raises ValueError if an id is not in 0…V-1. The first call compiles kernels.
        """
        from wenet_hs.tree.brown import brown_children  # imports numba, which takes 0.3 s

        num_units = len(frequencies)
        with_units = [sequence for sequence in sequences if len(sequence)]
        lowest = min(map(min, with_units), default=0)
        highest = max(map(max, with_units), default=0)
        if lowest < 0 or highest >= num_units:
            expected = f"with {num_units} units they are 0…{num_units - 1}"
            raise ValueError(f"sequences: unit ids from {lowest} to {highest}; {expected}")
        return cls.build("brown", lambda f: brown_children(sequences, f), frequencies, units)

    def paths(self) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """Every unit's path from the root (appendix B's Index and Sign).

        Returns: nodes (V, P) int64, the inner nodes on the path, 0 where padded, and turns (V, P)
            int8, the turn taken at each: +1 left, -1 right, 0 padding (after the path).
        Raises ValueError: V × P is too large for memory (a very deep tree).
        """
        num_units = self.num_units
        if num_units * self.depth > MAX_PATH_CELLS:
            raise ValueError(
                f"tree: {num_units} units at depth {self.depth} are too deep for a table of paths"
            )
        nodes = np.zeros((num_units, self.depth), dtype=np.int64)
        turns = np.zeros((num_units, self.depth), dtype=np.int8)
        here, depths = np.arange(num_units) + self.num_inner, self.depths()
        for column in reversed(range(self.depth)):  # all deep enough leaves climb together
            units = np.flatnonzero(depths > column)
            turns[units, column] = 1 - 2 * (
                self.edges[here[units]] % 2
            )  # the edges of a node: even left, odd right
            here[units] = nodes[units, column] = self.parents[here[units]]
        return nodes, turns

    def first_leaves(self) -> NDArray[np.int64]:
        """(2V-1,) how many leaves are to the left of each node."""
        before, num_leaves = (
            np.zeros(self.num_inner + self.num_units, dtype=np.int64),
            self.num_leaves(),
        )
        for nodes, _ in self.levels():
            left, right = self.children[nodes].T
            before[left] = before[nodes]
            before[right] = before[nodes] + num_leaves[left]
        return before

    @classmethod
    def load(cls, path: Path | str) -> "Tree":
        """Read a `tree.json`.

        Raises DataError, one line with path and fault, on anything that is not a binary tree.

        `load_tree` reads binary and n-ary trees.
        """
        tree = load_tree(path)
        if isinstance(tree, Tree):
            return tree
        shape = f"kind {tree.kind}, up to {np.diff(tree.offsets).max(initial=0)} children"
        to_do = "read it with `load_tree`, or build one with `wenet-hs tree build --kind huffman`"
        raise DataError(path, f"an n-ary tree ({shape}), not a binary one", to_do)


class NaryTree(UnitTree):
    """A tree over `units` whose inner nodes have two or more children.

    Edge e leads to the node children[e]; the edges of one node are adjacent.
    """

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Sequence[int]],
        frequencies: Numbers,
        *,
        units: Names = None,
        kind: str = CLASSES,
        options: TreeOptions = None,
    ) -> "NaryTree":
        """A tree from one list of children per inner node, as in `tree.json`.

        Raises ValueError as the class does.
        """
        offsets, children = (
            np.cumsum([0, *map(len, rows)]),
            np.fromiter(chain.from_iterable(rows), dtype=np.int64),
        )
        names, options = _names(units, len(frequencies)), dict(options or {})
        return cls(kind, names, children, np.array(frequencies), options, offsets)

    @classmethod
    def from_binary(cls, tree: Tree, num_classes: int | None = None) -> "NaryTree":
        """Two levels from the top of a binary tree (Goodman 2001): its most probable branches are
        opened until there are C.

        The branches become the root's children, from left to right, with their leaves directly
        below them. A branch that is a leaf stays a leaf of the root. Equally probable branches are
        opened by their number.

        `num_classes`: C ≥ 1, default √V; 1, or V and more, give a flat softmax.
        """
        num_classes = _checked_classes(num_classes, tree.num_units)
        weights = tree.weights().tolist()
        branches, closed = {0}, [(-weights[0], 0)][: tree.num_inner]
        while len(branches) < num_classes and closed:
            node = heapq.heappop(closed)[1]
            branches.remove(node)
            for child in tree.children_of(node):
                branches.add(child)
                if child < tree.num_inner:
                    heapq.heappush(closed, (-weights[child], child))
        first_leaves = tree.first_leaves()
        order = np.argsort(first_leaves[tree.num_inner :])
        sizes = tree.num_leaves()[sorted(branches, key=first_leaves.__getitem__)]
        offsets, children = two_levels(order, sizes)
        options = {**tree.options, "from": tree.kind, "num_classes": num_classes}
        return cls(CLASSES, tree.units, children, tree.frequencies, options, offsets)

    @classmethod
    def frequency_bins(
        cls, frequencies: Numbers, num_classes: int | None = None, *, units: Names = None
    ) -> "NaryTree":
        """Two levels: units by falling frequency (ties by id), cut into C classes of about equal
        mass (cHSM).

        The class of a unit is the share of all occurrences before it, times C, rounded down. So
        frequent units become leaves of the root, and there may be fewer than C classes. If all
        frequencies are zero, they count as equal. `num_classes` is C ≥ 1, default √V.
        """
        weights = check_frequencies(frequencies)
        num_classes = _checked_classes(num_classes, len(weights))
        order = np.argsort(-weights, kind="stable")
        class_of = np.arange(len(order)) * num_classes // len(order)
        if weights.any():
            reached = np.cumsum(weights[order] / weights.max())
            before = np.concatenate([[0.0], reached[:-1]])
            class_of = np.minimum(
                (before / reached[-1] * num_classes).astype(np.int64), num_classes - 1
            )
        offsets, children = two_levels(order, np.unique(class_of, return_counts=True)[1])
        options = {"bins": "mass", "num_classes": num_classes}
        return cls(CLASSES, _names(units, len(weights)), children, weights, options, offsets)

    def binary(self) -> Tree:
        """The binary tree in which every node becomes Huffman's tree over its children's
        frequencies.

        Its kind is "classes_binary". In a node of two children the less frequent child is on the
        left.
        """
        weights, rows, num_rows = self.weights(), [NO_ROWS], 0
        nodes = np.concatenate(
            [np.zeros(self.num_inner, dtype=np.int64), np.arange(self.num_units)]
        )
        for node in reversed(
            range(self.num_inner)
        ):  # breadth-first numbers: children come before their parents
            children = self.children[self.offsets[node] : self.offsets[node + 1]]
            below, nodes[node] = huffman_rows(
                nodes[children], weights[children], self.num_units + num_rows
            )
            rows.append(below)
            num_rows += len(below)
        children = breadth_first(np.concatenate(rows))
        return Tree(
            f"{self.kind}_binary", self.units, children, self.frequencies, dict(self.options)
        )


def load_tree(path: Path | str) -> Tree | NaryTree:
    """Read any `tree.json`: a `Tree` when all its inner nodes have two children and its kind is not
    "classes".

    Raises DataError, one line with path and fault, on anything that is not a tree.
    """
    file = TreeFile.parse(read_utf8(path), path)
    units, frequencies = tuple(file.units), np.array(file.frequencies)
    try:
        if file.kind != CLASSES and all(len(row) == 2 for row in file.children):
            return Tree(file.kind, units, np.array(file.children), frequencies, file.options)
        return NaryTree.from_rows(
            file.children, frequencies, units=units, kind=file.kind, options=file.options
        )
    except ValueError as error:
        raise DataError(path, str(error)) from error


def _names(units: Names, num_units: int) -> tuple[str, ...]:
    return tuple(map(str, range(num_units))) if units is None else tuple(units)


def _checked_classes(num_classes: int | None, num_units: int) -> int:
    if num_classes is None:
        return max(2, round(math.sqrt(num_units)))
    if num_classes < 1:
        raise ValueError(f"num_classes: must be at least 1, got {num_classes}")
    return num_classes
