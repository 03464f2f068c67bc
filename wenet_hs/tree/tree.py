# SPDX-License-Identifier: Apache-2.0
"""Trees over the output units: binary trees, n-ary trees, and their file `tree.json`.

Dimension key: V units (leaves), I inner nodes, E = I+V-1 edges, P longest path (edges from root to
deepest leaf), C classes.

Numbering: inner nodes 0…I-1 breadth first from the root 0, left to right; the leaf of unit i is
I+i. In a binary tree I = V-1, and edges 2n and 2n+1 lead to the left and the right child of node n.
Bit 0 is the left child (probability σ(z) in the tree head), bit 1 the right one (σ(-z)).
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
    fano_children,
    huffman_children,
    huffman_subtree,
    least_depth,
    limited_children,
    number_breadth_first,
    random_order,
    two_levels,
)
from wenet_hs.tree.text_file import read_utf8
from wenet_hs.tree.unit_tree import UnitTree

Frequencies = Sequence[float] | NDArray[np.float64]
"""Frequencies (V,): counts or probabilities, finite, ≥ 0, V ≥ 1."""
UnitNames = Sequence[str] | None
"""V distinct names; None stands for "0", "1", …."""
TreeOptions = Mapping[str, Any] | None
"""What else is recorded in `options` and in the file; JSON values."""

CLASSES = "classes"
"""The kind of every n-ary tree built here.

A file of this kind is an `NaryTree` even if all its rows are pairs.
"""
MAX_PATH_CELLS = 2**30
"""The most entries of `Tree.paths`; a larger table means a tree too deep for any head."""
TURNS = np.array([1, -1], dtype=np.int8)
"""The turn to the left child (index 0) and to the right child (index 1), as `Tree.paths` has it."""


class Tree(UnitTree):
    """A binary tree over `units`; row n of `children` (V-1, 2) has the children of inner node n.

    The first of the two is the left child.
    """

    code_separator = ""

    def __post_init__(self) -> None:
        """Set the offsets to 0, 2, 4, … and check the fields; raises ValueError."""
        children = np.array(self.children, dtype=np.int64).reshape(-1, 2)
        offsets = 2 * np.arange(len(children) + 1)
        vars(self).update(children=children, offsets=offsets)  # a frozen dataclass
        super().__post_init__()

    # The builders are deterministic, accept V = 1, and raise ValueError on wrong frequencies or
    # units.

    @classmethod
    def build(
        cls,
        kind: str,
        children_of: Callable[[NDArray[np.float64]], NDArray[np.int64]],
        frequencies: Frequencies,
        units: UnitNames = None,
        options: TreeOptions = None,
    ) -> "Tree":
        """The tree whose children a function computes from the frequencies (V,).

        `children_of` is called with the frequencies, after they were checked, and returns (V-1, 2)
        the left and the right child of each inner node. Raises ValueError on wrong frequencies,
        names or children.
        """
        weights = check_frequencies(frequencies)
        names = _names_or_ids(units, len(weights))
        return cls(kind, names, children_of(weights), weights, dict(options or {}))

    @classmethod
    def huffman(
        cls, frequencies: Frequencies, units: UnitNames = None, max_depth: int | None = None
    ) -> "Tree":
        """Huffman's tree (the paper's appendix A): the rarer of two merged nodes is the left child.

        Of equally frequent nodes, leaves are merged first, in the order of their unit ids, then
        merged nodes, the oldest first. So units that never occur form a balanced subtree. If the
        tree is deeper than `max_depth`, the tree of that depth with the least mean code length is
        built by package-merge. `max_depth` is recorded in the options.
        Raises ValueError when `max_depth` is below ⌈log2 V⌉.
        """
        tree = cls.build("huffman", huffman_children, frequencies, units)
        if max_depth is None:
            return tree
        least = least_depth(tree.num_units)
        if max_depth < least:
            fault = f"{max_depth} is too small for {tree.num_units} units"
            raise ValueError(f"max_depth: {fault}, which need at least {least}")
        children = tree.children
        if tree.depth > max_depth:
            children = limited_children(tree.frequencies, max_depth)
        return replace(tree, children=children, options={"max_depth": max_depth})

    @classmethod
    def fano(cls, frequencies: Frequencies, units: UnitNames = None) -> "Tree":
        """Shannon-Fano: units by falling frequency, split repeatedly.

        The two parts have about equal mass. Equally frequent units are ordered by id.
        """
        return cls.build("fano", fano_children, frequencies, units)

    @classmethod
    def balanced(cls, frequencies: Frequencies, units: UnitNames = None) -> "Tree":
        """Units in the order of their ids, halved repeatedly.

        The left half gets the extra unit of an odd number.
        """

        def children_of(weights: NDArray[np.float64]) -> NDArray[np.int64]:
            return balanced_children(np.arange(len(weights)))

        return cls.build("balanced", children_of, frequencies, units)

    @classmethod
    def random(cls, frequencies: Frequencies, units: UnitNames = None, seed: int = 0) -> "Tree":
        """Units in a random order, halved repeatedly; `seed` (≥ 0) is recorded in the options."""
        if seed < 0:
            raise ValueError(f"seed: must be at least 0, got {seed}")

        def children_of(weights: NDArray[np.float64]) -> NDArray[np.int64]:
            return balanced_children(random_order(len(weights), seed))

        return cls.build("random", children_of, frequencies, units, {"seed": seed})

    @classmethod
    def brown(
        cls,
        sequences: Sequence[Sequence[int]],
        frequencies: Frequencies,
        units: UnitNames = None,
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

        _check_unit_ids(sequences, num_units=len(frequencies))

        def children_of(weights: NDArray[np.float64]) -> NDArray[np.int64]:
            return brown_children(sequences, weights)

        return cls.build("brown", children_of, frequencies, units)

    def paths(self) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """Every unit's path from the root (Index and Sign in the paper's appendix B).

        Returns: nodes (V, P) int64, the inner nodes on the path, 0 where padded, and turns (V, P)
            int8, the turn taken at each: +1 left, -1 right, 0 padding (after the path).
        Raises ValueError: V × P is too large for memory (a very deep tree).
        """
        num_units = self.num_units
        if num_units * self.depth > MAX_PATH_CELLS:
            size = f"{num_units} units at depth {self.depth}"
            raise ValueError(f"tree: {size} are too deep for a table of paths")
        nodes = np.zeros((num_units, self.depth), dtype=np.int64)
        turns = np.zeros((num_units, self.depth), dtype=np.int8)
        depths = self.depths()
        # All units climb together from their leaves to the root, which is column 0. A unit at depth
        # d begins in column d-1.
        reached = self.num_inner + np.arange(num_units)
        for column in reversed(range(self.depth)):
            units = np.flatnonzero(depths > column)
            edges = self.edges[reached[units]]
            turns[units, column] = TURNS[edges % 2]  # even edges lead to left children
            parents = self.parents[reached[units]]
            nodes[units, column] = parents
            reached[units] = parents
        return nodes, turns

    def first_leaves(self) -> NDArray[np.int64]:
        """(2V-1,) the position of the first leaf under each node: how many leaves are left of it."""
        first_leaves = np.zeros(self.num_inner + self.num_units, dtype=np.int64)
        num_leaves = self.num_leaves()
        for nodes, _ in self.levels():
            left, right = self.children[nodes].T
            first_leaves[left] = first_leaves[nodes]
            first_leaves[right] = first_leaves[nodes] + num_leaves[left]
        return first_leaves

    @classmethod
    def load(cls, path: Path | str) -> "Tree":
        """Read a `tree.json` of a binary tree; `load_tree` reads binary and n-ary trees.

        Raises DataError, one line with path and fault, on anything that is not a binary tree.
        """
        tree = load_tree(path)
        if isinstance(tree, Tree):
            return tree
        most_children = np.diff(tree.offsets).max(initial=0)
        shape = f"kind {tree.kind}, up to {most_children} children"
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
        frequencies: Frequencies,
        *,
        units: UnitNames = None,
        kind: str = CLASSES,
        options: TreeOptions = None,
    ) -> "NaryTree":
        """A tree from one list of children per inner node, as in `tree.json`.

        Raises ValueError as the class does.
        """
        return cls(
            kind=kind,
            units=_names_or_ids(units, len(frequencies)),
            children=np.fromiter(chain.from_iterable(rows), dtype=np.int64),
            frequencies=np.array(frequencies),
            options=dict(options or {}),
            offsets=np.cumsum([0, *map(len, rows)]),
        )

    @classmethod
    def from_binary(cls, tree: Tree, num_classes: int | None = None) -> "NaryTree":
        """The tree of two levels whose classes are C branches of a binary tree (Goodman 2001).

        Beginning at the root, the most probable branch is replaced by its two children until there
        are C branches. They become the root's children, from left to right, with their leaves
        directly below them. A branch that is a leaf stays a leaf of the root.

        `num_classes`: C ≥ 1, default √V; 1, or V and more, give a flat softmax.
        """
        num_classes = _checked_num_classes(num_classes, tree.num_units)
        first_leaves = tree.first_leaves()  # sorts nodes from left to right
        units_from_left = np.argsort(first_leaves[tree.num_inner :])
        branches = _most_probable_branches(tree, num_classes)
        branches_from_left = sorted(branches, key=first_leaves.__getitem__)
        sizes = tree.num_leaves()[branches_from_left]
        offsets, children = two_levels(units_from_left, sizes)
        options = {**tree.options, "from": tree.kind, "num_classes": num_classes}
        return cls(
            kind=CLASSES,
            units=tree.units,
            children=children,
            frequencies=tree.frequencies,
            options=options,
            offsets=offsets,
        )

    @classmethod
    def frequency_bins(
        cls, frequencies: Frequencies, num_classes: int | None = None, *, units: UnitNames = None
    ) -> "NaryTree":
        """Two levels: units by falling frequency, cut into C classes of about equal mass (cHSM).

        The class of a unit is the share of all occurrences that the units before it in this order
        have, times C, rounded down. So frequent units become leaves of the root, and there may be
        fewer than C classes. Equally frequent units are ordered by id. If all frequencies are zero,
        they count as equal.

        `num_classes` is C ≥ 1, default √V.
        """
        weights = check_frequencies(frequencies)
        num_classes = _checked_num_classes(num_classes, len(weights))
        order = np.argsort(-weights, kind="stable")
        # The class 0…C-1 of each unit in this order; a class may have no units.
        if weights.any():
            scaled = weights[order] / weights.max()  # so that no sum overflows
            mass = np.cumsum(scaled)
            mass_before = np.concatenate([[0.0], mass[:-1]])
            class_of = (mass_before / mass[-1] * num_classes).astype(np.int64)
            class_of = np.minimum(class_of, num_classes - 1)  # rounding may give class C
        else:
            class_of = np.arange(len(order)) * num_classes // len(order)
        _, sizes = np.unique(class_of, return_counts=True)
        offsets, children = two_levels(order, sizes)
        names = _names_or_ids(units, len(weights))
        options = {"bins": "mass", "num_classes": num_classes}
        return cls(
            kind=CLASSES,
            units=names,
            children=children,
            frequencies=weights,
            options=options,
            offsets=offsets,
        )

    def binary(self) -> Tree:
        """The binary tree in which each node is replaced by Huffman's tree over its children.

        Its kind is that of this tree and `_binary`, such as "classes_binary". In a node of two
        children the less frequent child is on the left.
        """
        weights = self.weights()
        # The new tree is built as rows: a number below V is a unit, V+n is row n.
        rows = [NO_ROWS]
        num_rows = 0
        # The number of each node in these rows. A leaf has its unit id; inner nodes follow below.
        new_numbers = np.concatenate(
            [np.zeros(self.num_inner, dtype=np.int64), np.arange(self.num_units)]
        )
        for node in reversed(range(self.num_inner)):  # children come before their parents
            children = self.children[self.offsets[node] : self.offsets[node + 1]]
            subtree = huffman_subtree(
                new_numbers[children], weights[children], next_node=self.num_units + num_rows
            )
            new_numbers[node] = subtree.root
            rows.append(subtree.rows)
            num_rows += len(subtree.rows)
        return Tree(
            kind=f"{self.kind}_binary",
            units=self.units,
            children=number_breadth_first(np.concatenate(rows)),
            frequencies=self.frequencies,
            options=dict(self.options),
        )


def load_tree(path: Path | str) -> Tree | NaryTree:
    """Read any `tree.json`, binary or n-ary.

    It is a `Tree` when all its inner nodes have two children and its kind is not "classes".
    Raises DataError, one line with path and fault, on anything that is not a tree.
    """
    file = TreeFile.parse(read_utf8(path), path)
    units = tuple(file.units)
    frequencies = np.array(file.frequencies)
    is_binary = file.kind != CLASSES and all(len(row) == 2 for row in file.children)
    try:
        if is_binary:
            return Tree(file.kind, units, np.array(file.children), frequencies, file.options)
        return NaryTree.from_rows(
            file.children, frequencies, units=units, kind=file.kind, options=file.options
        )
    except ValueError as error:
        raise DataError(path, str(error)) from error


def _names_or_ids(units: UnitNames, num_units: int) -> tuple[str, ...]:
    """The names of the units; without names their ids as text."""
    return tuple(map(str, range(num_units))) if units is None else tuple(units)


def _check_unit_ids(sequences: Sequence[Sequence[int]], num_units: int) -> None:
    """Raise ValueError with the lowest and the highest id if one of them is not in 0…V-1."""
    not_empty = [sequence for sequence in sequences if len(sequence)]
    if not not_empty:
        return
    lowest = min(map(min, not_empty))
    highest = max(map(max, not_empty))
    if lowest < 0 or highest >= num_units:
        expected = f"with {num_units} units they are 0…{num_units - 1}"
        raise ValueError(f"sequences: unit ids from {lowest} to {highest}; {expected}")


def _checked_num_classes(num_classes: int | None, num_units: int) -> int:
    """The given number of classes; for None it is √V, rounded and at least 2.

    Raises ValueError if it is below 1.
    """
    if num_classes is None:
        return max(2, round(math.sqrt(num_units)))
    if num_classes < 1:
        raise ValueError(f"num_classes: must be at least 1, got {num_classes}")
    return num_classes


def _most_probable_branches(tree: Tree, num_branches: int) -> set[int]:
    """The nodes at which a binary tree is cut into `num_branches` branches, or into all its leaves.

    The first branch is the root. The most frequent branch is replaced by its two children until
    there are enough; of equally frequent ones the branch with the lowest number is replaced.
    """
    weights = tree.weights().tolist()
    branches = {0}
    inner_branches = [(-weights[0], 0)] if tree.num_inner else []  # a heap: the most frequent first
    while len(branches) < num_branches and inner_branches:
        _, node = heapq.heappop(inner_branches)
        branches.remove(node)
        for child in tree.children_of(node):
            branches.add(child)
            if child < tree.num_inner:
                heapq.heappush(inner_branches, (-weights[child], child))
    return branches
