# SPDX-License-Identifier: Apache-2.0
"""The binary tree over the output units, and what it shares with n-ary trees.

Dimension key: V units (leaves), I inner nodes, E = I+V-1 edges, P longest path (edges from root to deepest leaf).

Numbering: inner nodes 0…I-1 breadth first from the root 0, left to right; the leaf of unit i is I+i.
In a binary tree I = V-1. Bit 0 is the left child (probability σ(z) in the tree head), bit 1 the right one (σ(-z)).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wenet_hs.errors import DataError
from wenet_hs.files import read_lines, write_atomic
from wenet_hs.tree.articulatory import articulatory_vectors
from wenet_hs.tree.fields import check_children, check_frequencies, check_names, format_fields, parse_fields
from wenet_hs.tree.huffman import (
    alphabetical_order,
    balanced_children,
    check_max_depth,
    fano_children,
    huffman_children,
    limited_children,
    random_order,
)

Numbers = Sequence[float] | NDArray[np.float64]
"""Frequencies (V,): counts or probabilities, finite, ≥ 0, V ≥ 1."""
Names = Sequence[str] | None
"""V distinct names; the default is "0", "1", …."""
Options = Mapping[str, Any] | None
"""What else is recorded in `options` and in the file; JSON values."""

MAX_PATH_CELLS = 2**30  # entries of `paths()`; a larger table means a tree too deep for any head


class UnitTree:
    """Base of `Tree` and `NaryTree`: levels, sums over leaves and over paths, codes, code lengths, the file.

    Arrays are read-only. Two trees are equal when all their fields are equal.
    """

    kind: str
    units: tuple[str, ...]
    offsets: NDArray[np.int64]
    children: NDArray[np.int64]
    frequencies: NDArray[np.float64]
    options: dict[str, Any]

    def _set_checked(self, offsets: NDArray[np.int64], children: NDArray[np.int64]) -> None:
        """Set all fields after their checks. Raises ValueError unless they are one tree over distinct units."""
        frequencies = check_frequencies(self.frequencies)
        units = tuple(self.units)
        check_names(self.kind, units, len(frequencies))
        check_children(offsets, children.reshape(-1), len(units))
        arrays = {"offsets": offsets, "children": children, "frequencies": frequencies}
        for name, array in arrays.items():
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        object.__setattr__(self, "units", units)

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
        """(P+1,): the inner nodes of level l are level_starts[l] … level_starts[l+1]-1; the root is level 0."""
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
        parents = np.full(self.num_inner + self.num_units, -1, dtype=np.int64)
        parents[self.children.reshape(-1)] = self.edge_nodes
        return parents

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """(I+V,) the probability of each node; proportional to its number of units if all frequencies are zero."""
        weights = self.weights()
        return weights / weights[0] if weights[0] > 0 else self.num_leaves() / self.num_units

    def children_of(self, node: int) -> list[int]:
        """The children of an inner node, left to right."""
        row: list[int] = self.children.reshape(-1)[self.offsets[node] : self.offsets[node + 1]].tolist()
        return row

    def child_index(self, node: int) -> int:
        """Which child of its parent a node is, counted from 0."""
        return int(self.edges[node] - self.offsets[self.parents[node]])

    def code(self, node: int) -> str:
        """The child indexes from the root to a node: "0110" in a binary tree, else "12.0.3"; "" for the root."""
        indexes = []
        while (parent := int(self.parents[node])) >= 0:
            indexes.append(str(self.child_index(node)))
            node = parent
        return ("" if isinstance(self, Tree) else ".").join(reversed(indexes))

    def depths(self) -> NDArray[np.int64]:
        """(V,) int64: the number of edges from the root to each unit's leaf."""
        return self.path_sums(np.ones(self.num_inner, dtype=np.int64))

    def num_leaves(self) -> NDArray[np.int64]:
        """(I+V,) the number of leaves under each node; 1 for a leaf."""
        return self.sum_leaves(np.ones(self.num_units, dtype=np.int64))

    def weights(self) -> NDArray[np.float64]:
        """(I+V,) the frequency of each node: for an inner node, the sum of its leaves."""
        return self.sum_leaves(self.frequencies)

    def _levels(self) -> Iterable[tuple[slice, slice]]:
        """The inner nodes and the edges of each level, from the root down."""
        starts, at = self.level_starts.tolist(), self.offsets[self.level_starts].tolist()
        slices = [[slice(*pair) for pair in pairwise(ends)] for ends in (starts, at)]
        return list(zip(*slices, strict=True))

    def path_sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values (I,), one per inner node, summed along the path to each unit: (V,)."""
        sums, children = np.zeros(self.num_inner + self.num_units, dtype=values.dtype), self.children.reshape(-1)
        for _, edges in self._levels():
            nodes = self.edge_nodes[edges]
            sums[children[edges]] = sums[nodes] + values[nodes]
        return sums[self.num_inner :]

    def sum_leaves(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values (V,), one per unit, summed over the leaves under each node: (I+V,); integers wrap around."""
        sums, children = np.concatenate([np.zeros(self.num_inner, values.dtype), values]), self.children.reshape(-1)
        for nodes, edges in reversed(list(self._levels())):
            sums[nodes] = np.add.reduceat(sums[children[edges]], self.offsets[nodes] - edges.start)
        return sums

    def probabilities(self) -> NDArray[np.float64]:
        """(V,) the frequencies divided by their sum; uniform if all are zero."""
        return to_probabilities(self.frequencies)

    def entropy(self) -> float:
        """Bits per unit of the distribution given by the frequencies."""
        return entropy_bits(self.frequencies)

    def code_lengths(self) -> NDArray[np.float64]:
        """(V,) bits of each unit's path if each choice among d children costs log2 d, as in an untrained head."""
        return self.path_sums(np.log2(np.diff(self.offsets)))

    def mean_code_length(self) -> float:
        """Bits per unit: the code lengths weighted by the probabilities. Never below `entropy()`."""
        return float(self.probabilities() @ self.code_lengths())

    def rows(self) -> list[list[int]]:
        """The children of each inner node, as in `tree.json`."""
        flat = self.children.reshape(-1).tolist()
        return [flat[start:end] for start, end in pairwise(self.offsets.tolist())]

    def save(self, path: Path | str) -> None:
        """Write `tree.json` atomically."""
        names = {"kind": self.kind, "units": self.units, "children": self.rows()}
        fields = names | {"frequencies": self.frequencies.tolist(), "options": self.options}
        write_atomic(path, format_fields(fields))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UnitTree) or type(self) is not type(other):
            return NotImplemented
        names = (self.kind, self.units, self.options) == (other.kind, other.units, other.options)
        pairs = zip(self._arrays(), other._arrays(), strict=True)
        return names and all(np.array_equal(mine, others) for mine, others in pairs)

    def __hash__(self) -> int:
        return hash((self.kind, self.units, self.offsets.tobytes(), self.children.tobytes()))

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return self.offsets, self.children, self.frequencies


@dataclass(frozen=True, eq=False)
class Tree(UnitTree):
    """A binary tree over `units`. Raises ValueError when the fields are not one complete binary tree."""

    kind: str
    """How it was built: a name in `wenet_hs.tree.build.KINDS`, or the name of another builder."""
    units: tuple[str, ...]
    """The V unit names, in the order of the unit table."""
    children: NDArray[np.int64]
    """(V-1, 2) left and right child of each inner node; shape (0, 2) for a single unit."""
    frequencies: NDArray[np.float64]
    """(V,) the counts or relative frequencies it was built from, finite, ≥ 0."""
    options: dict[str, Any] = field(default_factory=dict)
    """What else the builder recorded; JSON values."""
    offsets: NDArray[np.int64] = field(init=False, repr=False)
    """(V,) where the row of each inner node starts in the flat `children`: 0, 2, 4, …."""

    def __post_init__(self) -> None:
        children = np.array(self.children, dtype=np.int64).reshape(-1, 2)
        num_units = len(self.units)
        if len(children) != num_units - 1 and num_units == len(self.frequencies) > 0:
            raise ValueError(
                f"children: {len(children)} inner nodes for {num_units} units; there must be {num_units - 1}"
            )
        self._set_checked(2 * np.arange(len(children) + 1), children)

    # The builders are deterministic, accept V = 1, and raise ValueError on wrong frequencies or units.

    @classmethod
    def huffman(
        cls, frequencies: Numbers, units: Names = None, options: Options = None, max_depth: int | None = None
    ) -> "Tree":
        """Huffman's tree of the paper's appendix A: the less probable of two merged nodes is the left child.

        Ties are resolved by unit id, leaves before merged nodes, older merged nodes first. So units that never occur
        form a balanced subtree. If the tree is deeper than `max_depth`, the tree of that depth with the least mean
        code length is built by package-merge. `max_depth` is recorded in the options.
        Raises ValueError when it is below ⌈log2 V⌉.
        """
        if max_depth is None:
            return cls._built("huffman", huffman_children, frequencies, units, options)
        tree = cls._built("huffman", huffman_children, frequencies, units, {**(options or {}), "max_depth": max_depth})
        check_max_depth(max_depth, tree.num_units)
        if tree.depth <= max_depth:
            return tree
        return replace(tree, children=limited_children(tree.frequencies, max_depth))

    @classmethod
    def fano(cls, frequencies: Numbers, units: Names = None, options: Options = None) -> "Tree":
        """Shannon-Fano: units by falling frequency (ties by id), split repeatedly into halves of nearly equal mass."""
        return cls._built("fano", fano_children, frequencies, units, options)

    @classmethod
    def balanced(cls, frequencies: Numbers, units: Names = None, options: Options = None) -> "Tree":
        """Units in the order of their ids, halved repeatedly; the left half gets the extra unit of an odd number."""
        return cls._built("balanced", lambda f: balanced_children(np.arange(len(f))), frequencies, units, options)

    @classmethod
    def alphabetical(cls, frequencies: Numbers, units: Sequence[str], options: Options = None) -> "Tree":
        """Units in the order of their text (`huffman.alphabetical_order`), halved repeatedly."""
        return cls._built(
            "alphabetical", lambda _: balanced_children(alphabetical_order(units)), frequencies, units, options
        )

    @classmethod
    def random(cls, frequencies: Numbers, units: Names = None, options: Options = None, seed: int = 0) -> "Tree":
        """Units in a random order, halved repeatedly; `seed` (≥ 0) is recorded in the options."""
        options = {**(options or {}), "seed": seed}
        return cls._built(
            "random", lambda f: balanced_children(random_order(len(f), seed)), frequencies, units, options
        )

    @classmethod
    def brown(
        cls, sequences: Sequence[Sequence[int]], frequencies: Numbers, units: Names = None, options: Options = None
    ) -> "Tree":
        """Brown clusters (Brown et al. 1992) of the bigrams in `sequences` of unit ids; see `tree/brown.py`."""
        from wenet_hs.tree.brown import brown_children  # imports numba, which takes seconds

        return cls._built("brown", lambda f: brown_children(sequences, f), frequencies, units, options)

    @classmethod
    def embedding(
        cls, vectors: NDArray[np.floating[Any]], frequencies: Numbers, units: Names = None, options: Options = None
    ) -> "Tree":
        """Ward clusters of the directions of vectors (V, F), NaN for a unit without one; see `tree/clustering.py`."""
        from wenet_hs.tree.clustering import ward_children  # imports scipy

        return cls._built("embedding", lambda f: ward_children(vectors, f, cosine=True), frequencies, units, options)

    @classmethod
    def articulatory(cls, units: Sequence[str], frequencies: Numbers, options: Options = None) -> "Tree":
        """Ward clusters of phones by their phonological features; see `tree/articulatory.py`."""
        from wenet_hs.tree.clustering import ward_children

        vectors = articulatory_vectors(units)
        return cls._built("articulatory", lambda f: ward_children(vectors, f), frequencies, units, options)

    @classmethod
    def _built(
        cls,
        kind: str,
        children_of: Callable[[NDArray[np.float64]], NDArray[np.int64]],
        frequencies: Numbers,
        units: Names,
        options: Options,
    ) -> "Tree":
        weights = check_frequencies(frequencies)
        names = tuple(map(str, range(len(weights)))) if units is None else tuple(units)
        check_names(kind, names, len(weights))
        return cls(kind, names, children_of(weights), weights, dict(options or {}))

    def paths(self) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """Every unit's path from the root (appendix B's Index and Sign).

        Returns:
            nodes (V, P) int64, the inner nodes on the path, 0 where padded, and turns (V, P) int8, the turn taken at
            each: +1 left, -1 right, 0 padding (after the path).
        Raises:
            ValueError: V × P is too large for memory (a very deep tree).
        """
        num_units = self.num_units
        if num_units * self.depth > MAX_PATH_CELLS:
            raise ValueError(f"tree: {num_units} units at depth {self.depth} are too deep for a table of paths")
        turn_into = np.zeros(2 * num_units - 1, dtype=np.int8)
        turn_into[self.children] = np.array([1, -1], dtype=np.int8)
        nodes = np.zeros((num_units, self.depth), dtype=np.int64)
        turns = np.zeros((num_units, self.depth), dtype=np.int8)
        # Climb from all leaves at once; leaves that have reached the root are dropped.
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
        """(V-1, 2) int64: L_n and R_n, the number of leaves under the left and the right child of each inner node."""
        return self.num_leaves()[self.children]

    def codes(self) -> list[str]:
        """The code of each unit, "0" for a left and "1" for a right turn, from the root; "" for a single unit."""
        _, turns = self.paths()
        digits = np.where(turns > 0, ord("0"), ord("1")).astype(np.uint8)
        return [row.tobytes()[:depth].decode("ascii") for row, depth in zip(digits, self.depths(), strict=True)]

    @classmethod
    def load(cls, path: Path | str) -> "Tree":
        """Read a `tree.json`. Raises DataError, one line with path and fault, on anything that is not a binary tree.

        `wenet_hs.tree.load_tree` reads binary and n-ary trees.
        """
        fields = parse_fields("\n".join(read_lines(path)), path)
        sizes = np.diff(fields.pop("offsets"))
        if (sizes != 2).any():
            wide = int(np.argmax(sizes != 2))
            raise DataError(
                f"{path}: children: inner node {wide} has {sizes[wide]} children, so this is an n-ary tree, for "
                "`head: class`; build a binary one with `wenet-hs tree build --kind huffman`"
            )
        try:
            return cls(**fields | {"children": fields["children"].reshape(-1, 2)})
        except ValueError as error:
            raise DataError(f"{path}: {error}") from error


def to_probabilities(frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
    """(V,) the frequencies divided by their sum; uniform if all are zero."""
    largest = frequencies.max()
    if largest == 0:
        return np.full(len(frequencies), 1.0 / len(frequencies))
    scaled = frequencies / largest  # otherwise subnormal counts would lose digits in the division
    return np.asarray(scaled / scaled.sum())


def entropy_bits(frequencies: NDArray[np.float64]) -> float:
    """Bits per unit of the distribution given by the frequencies (V,)."""
    p = to_probabilities(frequencies)
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum()) + 0.0  # + 0.0: no "-0.0" for a single unit
