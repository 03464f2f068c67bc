# SPDX-License-Identifier: Apache-2.0
"""The Tree value: a complete binary tree whose leaves are the units, as two small arrays.

Dimension key: V units (leaves), N = V-1 inner nodes, P longest path (edges from the root to the deepest leaf).

Numbering: inner nodes 0…V-2 breadth first from the root 0, left before right; the leaf of unit i is V-1+i.
Bit 0 is the left child (probability σ(z) in the tree head), bit 1 the right one (σ(-z)).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wenet_hs.errors import DataError
from wenet_hs.tree import code_length
from wenet_hs.tree.check import check_children, check_frequencies, check_kind, check_units
from wenet_hs.tree.file import read_fields, write_fields
from wenet_hs.tree.huffman import huffman_children
from wenet_hs.tree.limit import check_max_depth, limited_children
from wenet_hs.tree.split import alphabetical_order, balanced_children, fano_children, random_order

Numbers = Sequence[float] | NDArray[np.float64]
"""Frequencies (V,): counts or probabilities, finite, ≥ 0, V ≥ 1."""
Names = Sequence[str] | None
"""V distinct names; without them "0", "1", …."""
Record = Mapping[str, Any] | None
"""What the builder wants on record in `Tree.options` and so in the file; JSON values."""

MAX_PATH_CELLS = 2**30  # entries of `paths()`; a tree above it is a comb that no head could use


@dataclass(frozen=True, eq=False)
class Tree:
    """A tree over `units`. Arrays are read-only; two trees are equal when all their fields are.

    Raises ValueError when the fields are not one complete binary tree over distinct units.
    """

    kind: str
    """How it was built: one of `wenet_hs.tree.build.KINDS`, or a name of another builder's."""
    units: tuple[str, ...]
    """The V unit names, in the order of the unit table."""
    children: NDArray[np.int64]
    """(V-1, 2) left and right child of each inner node; shape (0, 2) for a single unit."""
    frequencies: NDArray[np.float64]
    """(V,) the counts or relative frequencies it was built from, finite, ≥ 0."""
    options: dict[str, Any] = field(default_factory=dict)
    """What else the builder wants on record; JSON values."""

    def __post_init__(self) -> None:
        check_kind(self.kind)
        frequencies = check_frequencies(self.frequencies)
        units = tuple(self.units)
        check_units(units, len(frequencies))
        children = np.array(self.children, dtype=np.int64).reshape(-1, 2)
        check_children(children, len(units))
        frequencies.flags.writeable = children.flags.writeable = False
        for name, value in (("units", units), ("children", children), ("frequencies", frequencies)):
            object.__setattr__(self, name, value)

    # How each kind is built. All are deterministic, take V = 1, and raise ValueError on wrong frequencies or units.

    @classmethod
    def huffman(
        cls, frequencies: Numbers, units: Names = None, options: Record = None, max_depth: int | None = None
    ) -> "Tree":
        """Huffman's tree of the paper's appendix A: the less probable of two merged nodes is the left child.

        Ties go by unit id, leaves before merged nodes, older merged nodes first, so units that never occur form a
        balanced subtree. Where it is deeper than `max_depth`, the least mean code length within that depth, by
        package-merge; `max_depth` is then among the options. Raises ValueError when it is below ⌈log2 V⌉.
        """
        if max_depth is None:
            return cls._built("huffman", huffman_children, frequencies, units, options)
        tree = cls._built("huffman", huffman_children, frequencies, units, {**(options or {}), "max_depth": max_depth})
        check_max_depth(max_depth, tree.num_units)
        return (
            tree if tree.depth <= max_depth else replace(tree, children=limited_children(tree.frequencies, max_depth))
        )

    @classmethod
    def fano(cls, frequencies: Numbers, units: Names = None, options: Record = None) -> "Tree":
        """Shannon–Fano: by falling frequency, ties by id, cut again and again where the halves' masses are nearest."""
        return cls._built("fano", fano_children, frequencies, units, options)

    @classmethod
    def balanced(cls, frequencies: Numbers, units: Names = None, options: Record = None) -> "Tree":
        """The order of the ids, halved again and again; the left half has one more of an odd number."""
        return cls._built("balanced", lambda f: balanced_children(np.arange(len(f))), frequencies, units, options)

    @classmethod
    def alphabetical(cls, frequencies: Numbers, units: Sequence[str], options: Record = None) -> "Tree":
        """The units in the order of their text (see `alphabetical_order`), halved again and again."""
        return cls._built(
            "alphabetical", lambda _: balanced_children(alphabetical_order(units)), frequencies, units, options
        )

    @classmethod
    def random(cls, frequencies: Numbers, units: Names = None, options: Record = None, seed: int = 0) -> "Tree":
        """The ids in a random order, halved again and again; `seed` (≥ 0) is among the options."""
        options = {**(options or {}), "seed": seed}
        return cls._built(
            "random", lambda f: balanced_children(random_order(len(f), seed)), frequencies, units, options
        )

    @classmethod
    def brown(
        cls, sequences: Sequence[Sequence[int]], frequencies: Numbers, units: Names = None, options: Record = None
    ) -> "Tree":
        """Brown clusters (Brown et al. 1992) of the bigrams of `sequences` of unit ids; see `tree/brown.py`."""
        from wenet_hs.tree.brown import brown_children  # builders that few need are imported when one does

        return cls._built("brown", lambda f: brown_children(sequences, f), frequencies, units, options)

    @classmethod
    def embedding(
        cls, vectors: NDArray[np.floating[Any]], frequencies: Numbers, units: Names = None, options: Record = None
    ) -> "Tree":
        """Ward clusters of the directions of vectors (V, F), NaN where a unit has none; see `tree/cluster.py`."""
        from wenet_hs.tree.cluster import cluster_children

        return cls._built("embedding", lambda f: cluster_children(vectors, f, cosine=True), frequencies, units, options)

    @classmethod
    def articulatory(cls, units: Sequence[str], frequencies: Numbers, options: Record = None) -> "Tree":
        """Ward clusters of phones by their phonological features; see `tree/articulatory.py`."""
        from wenet_hs.tree.articulatory import articulatory_vectors
        from wenet_hs.tree.cluster import cluster_children

        return cls._built(
            "articulatory", lambda f: cluster_children(articulatory_vectors(units), f), frequencies, units, options
        )

    @classmethod
    def _built(
        cls,
        kind: str,
        children_of: Callable[[NDArray[np.float64]], NDArray[np.int64]],
        frequencies: Numbers,
        units: Names,
        options: Record,
    ) -> "Tree":
        weights = check_frequencies(frequencies)
        names = tuple(map(str, range(len(weights)))) if units is None else tuple(units)
        check_units(names, len(weights))
        return cls(kind, names, children_of(weights), weights, dict(options or {}))

    @property
    def num_units(self) -> int:
        """V, the number of leaves."""
        return len(self.units)

    @property
    def depth(self) -> int:
        """P, the number of edges to the deepest leaf; 0 for a single unit."""
        return len(self.level_starts) - 1

    @cached_property
    def level_starts(self) -> NDArray[np.int64]:
        """(P+1,): the inner nodes of level l are level_starts[l] … level_starts[l+1]-1; the root is level 0."""
        inner_below = np.cumsum((self.children < len(self.children)).sum(1))  # how many are children of rows 0…n
        starts = [0]
        end = min(1, len(self.children))
        while end > starts[-1]:
            starts.append(end)
            end = 1 + int(inner_below[end - 1])
        return np.array(starts, dtype=np.int64)

    @cached_property
    def parents(self) -> NDArray[np.int64]:
        """(2V-1,) the inner node above each node, leaves included; -1 for the root."""
        parents = np.full(2 * self.num_units - 1, -1, dtype=np.int64)
        parents[self.children.reshape(-1)] = np.repeat(np.arange(len(self.children)), 2)
        return parents

    def depths(self) -> NDArray[np.int64]:
        """(V,) int64: the number of edges from the root to each unit's leaf, the length of its code."""
        levels = np.zeros(2 * self.num_units - 1, dtype=np.int64)
        for level, (start, end) in enumerate(zip(self.level_starts[:-1], self.level_starts[1:], strict=True)):
            levels[self.children[start:end]] = level + 1
        return levels[self.num_units - 1 :]

    def paths(self) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """Every unit's way from the root (appendix B's Index and Sign).

        Returns:
            nodes (V, P) int64, the inner nodes on the way, 0 where padded, and turns (V, P) int8, the turn taken at
            each: +1 left, -1 right, 0 padding (it follows the path).
        Raises:
            ValueError: V × P is beyond what fits a machine (a tree that is one long comb).
        """
        num_units = self.num_units
        if num_units * self.depth > MAX_PATH_CELLS:
            raise ValueError(f"tree: {num_units} units at depth {self.depth} are too deep for a table of paths")
        turn_into = np.zeros(2 * num_units - 1, dtype=np.int8)
        turn_into[self.children] = np.array([1, -1], dtype=np.int8)
        nodes = np.zeros((num_units, self.depth), dtype=np.int64)
        turns = np.zeros((num_units, self.depth), dtype=np.int8)
        # Climb from all leaves at once; those that have reached the root drop out.
        units, here, column = np.arange(num_units), np.arange(num_units) + num_units - 1, self.depths() - 1
        for _ in range(self.depth):
            climbing = column >= 0
            units, here, column = units[climbing], here[climbing], column[climbing]
            turns[units, column] = turn_into[here]
            here = self.parents[here]
            nodes[units, column] = here
            column = column - 1
        return nodes, turns

    def leaf_counts(self) -> NDArray[np.int64]:
        """(V-1, 2) int64: L_n and R_n, how many leaves are under the left and the right child of each inner node."""
        return self.num_leaves()[self.children]

    def num_leaves(self) -> NDArray[np.int64]:
        """(2V-1,) how many leaves are under each node; 1 for a leaf."""
        return self.sum_leaves(np.ones(self.num_units, dtype=np.int64))

    def weights(self) -> NDArray[np.float64]:
        """(2V-1,) the frequency of every node: a leaf's own, an inner node's the sum of its leaves."""
        return self.sum_leaves(self.frequencies)

    def sum_leaves(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values (V,), one a unit, summed over the leaves under each node: (2V-1,); integers wrap around."""
        sums = np.concatenate([np.zeros(len(self.children), dtype=values.dtype), values])
        for level in reversed(range(self.depth)):
            start, end = self.level_starts[level : level + 2]
            sums[start:end] = sums[self.children[start:end]].sum(1)
        return sums

    def codes(self) -> list[str]:
        """The code of each unit, "0" a left and "1" a right turn, from the root; "" for a single unit."""
        _, turns = self.paths()
        digits = np.where(turns > 0, ord("0"), ord("1")).astype(np.uint8)
        return [row.tobytes()[:depth].decode("ascii") for row, depth in zip(digits, self.depths(), strict=True)]

    def probabilities(self) -> NDArray[np.float64]:
        """(V,) the frequencies divided by their sum; uniform when all of them are zero."""
        return code_length.probabilities(self.frequencies)

    def mean_code_length(self) -> float:
        """Bits a unit: depths weighted by the probabilities; never below `entropy()`, in Huffman's tree < 1 above."""
        return code_length.mean_code_length(self.frequencies, self.depths())

    def entropy(self) -> float:
        """Bits a unit of the distribution that the frequencies describe."""
        return code_length.entropy(self.frequencies)

    def save(self, path: Path | str) -> None:
        """Write `tree.json`, the whole file or nothing."""
        fields = {"kind": self.kind, "units": self.units, "children": self.children.tolist()}
        write_fields(path, fields | {"frequencies": self.frequencies.tolist(), "options": self.options})

    @classmethod
    def load(cls, path: Path | str) -> "Tree":
        """Read a `tree.json`. Raises DataError, one line with path and fault, on anything that is not a binary tree.

        A file of an n-ary tree is read by `wenet_hs.tree.nary.load_tree`, which takes either.
        """
        fields = read_fields(path)
        try:
            return cls(**fields | {"children": fields["children"].pairs()})
        except ValueError as error:
            raise DataError(f"{path}: {error}") from error

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        return (
            (self.kind, self.units, self.options) == (other.kind, other.units, other.options)
            and np.array_equal(self.children, other.children)
            and np.array_equal(self.frequencies, other.frequencies)
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.units, self.children.tobytes()))
