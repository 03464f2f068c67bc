# SPDX-License-Identifier: Apache-2.0
"""Children of binary trees from frequencies, or from an order of the units, as arrays.

Huffman's tree (with and without a limit of depth), Fano's tree, the balanced tree, and the
placement of units that a tree does not have yet.

A tree under construction is an array of rows (N, 2), the two children of each inner node, in any
order of the nodes. A value below V is the leaf of that unit, and V+n is the node of row n.
`number_breadth_first` turns rows into the numbering of `Tree`: inner nodes 0…N-1 breadth first, and
the leaf of unit i is N+i. No function recurses, so a tree may be thousands of levels deep.

Dimension key: V units, N = V-1 inner nodes, M ≤ 2V-1 items of a level (units and packages), S
units of a part of the tree.
"""

import heapq
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
NO_ROWS: Ints = np.zeros((0, 2), dtype=np.int64)
"""The rows of a tree of one unit, or of none."""


class Subtree(NamedTuple):
    """A part of a tree under construction."""

    rows: Ints
    """(S-1, 2) for S leaves: the children of its inner nodes."""
    root: int
    """The number of its root: of its last row, or of its only leaf."""


# ---- Huffman


def huffman_children(frequencies: NDArray[np.float64]) -> Ints:
    """The left and the right child of each inner node of Huffman's tree over V units: (N, 2).

    Inner nodes 0…N-1 (N = V-1) are numbered breadth first, and N+i is the leaf of unit i. The less
    frequent child is the left one. Equal weights leave the queue in the order in which they entered
    it: leaves by unit id, then merged nodes by age. So units that never occur (weight 0) form a
    balanced subtree, and equal frequencies give a balanced tree.
    """
    num_units = len(frequencies)
    subtree = huffman_subtree(np.arange(num_units), frequencies, next_node=num_units)
    return number_breadth_first(subtree.rows)


def huffman_subtree(nodes: Ints, weights: NDArray[np.float64], next_node: int) -> Subtree:
    """Huffman's tree whose leaves are some nodes of a tree under construction.

    The two lightest nodes are merged until one is left; the lighter one is the left child. Of equal
    weights the first node in `nodes` comes first, and then merged nodes by age.

    Args:
        nodes: (S,) their numbers, S ≥ 1.
        weights: (S,) their frequencies.
        next_node: the number of the first merged node (row 0); the others have the next numbers.
    """
    num_leaves = len(nodes)
    # The second value decides between equal weights: merged nodes come later than all leaves.
    queue = list(zip(weights.tolist(), range(num_leaves), nodes.tolist(), strict=True))
    heapq.heapify(queue)
    rows: list[tuple[int, int]] = []
    for index in range(num_leaves - 1):
        left_weight, _, left = heapq.heappop(queue)
        right_weight, _, right = heapq.heappop(queue)
        rows.append((left, right))
        merged = (left_weight + right_weight, num_leaves + index, next_node + index)
        heapq.heappush(queue, merged)
    _, _, root = queue[0]
    return Subtree(np.array(rows, dtype=np.int64).reshape(-1, 2), root)


# ---- Huffman with a limit of depth: package-merge (Larmore & Hirschberg 1990)


def least_depth(num_units: int) -> int:
    """⌈log2 V⌉, the least depth of a binary tree over V units."""
    return (num_units - 1).bit_length()


def limited_children(frequencies: NDArray[np.float64], max_depth: int) -> Ints:
    """The children (N, 2) in the tree of depth ≤ `max_depth` with the least mean code length.

    Inner nodes 0…N-1 are numbered breadth first, and N+i is the leaf of unit i. At every node the
    less probable child is the left one; equal weights are ordered as in Huffman's tree. V units
    must fit that depth (`least_depth`).
    """
    units = np.argsort(frequencies, kind="stable")  # the rarest first
    # Scaling by a power of two is exact, and then no sum of packages can overflow.
    _, exponent = np.frexp(frequencies.max())
    weights = np.ldexp(frequencies[units], -int(exponent))
    lengths = code_lengths(weights, max_depth)
    # The nodes of a level are its leaves, and the parents of all nodes of the level below. They are
    # sorted by weight, and each two neighbours get a parent: a row, whose number is V + its index.
    rows = NO_ROWS
    parents = units[:0]  # the deepest level has none
    parent_weights = weights[:0]
    for level in range(int(lengths.max()), 0, -1):
        is_leaf = lengths == level
        nodes = np.concatenate([units[is_leaf], parents])
        node_weights = np.concatenate([weights[is_leaf], parent_weights])
        by_weight = np.argsort(node_weights, kind="stable")
        parent_weights = node_weights[by_weight].reshape(-1, 2).sum(1)
        parents = len(units) + len(rows) + np.arange(len(parent_weights))
        rows = np.concatenate([rows, nodes[by_weight].reshape(-1, 2)])
    return number_breadth_first(rows)


def code_lengths(weights: NDArray[np.float64], max_depth: int) -> Ints:
    """The lengths (V,) in bits of an optimal code in which no length is above `max_depth`.

    `weights` (V,) are in ascending order, so the lengths are in descending order.

    Package-merge: the lowest level has all units as items. Each level above has all units and the
    items of the level below in pairs ("packages"). The 2V-2 lightest items of the top level are
    taken. A taken package takes its two items. A unit's length is how often it is taken.
    """
    num_units = len(weights)
    items_M = weights
    is_unit_M = np.ones(num_units, dtype=bool)
    is_unit_by_level = [is_unit_M]  # from the lowest level up
    for _ in range(max_depth - 1):
        num_packages = len(items_M) // 2  # the heaviest item of an odd number is in no package
        firsts = items_M[0 : 2 * num_packages : 2]
        seconds = items_M[1 : 2 * num_packages : 2]
        packages = firsts + seconds
        # The items of the next level are the units and these packages, sorted by weight. Both are
        # in ascending order; a unit comes before a package of equal weight.
        num_units_before = np.searchsorted(weights, packages, side="right")
        positions = num_units_before + np.arange(num_packages)
        is_unit_M = np.ones(num_units + num_packages, dtype=bool)
        is_unit_M[positions] = False
        items_M = np.empty(num_units + num_packages)
        items_M[is_unit_M] = weights
        items_M[positions] = packages
        is_unit_by_level.append(is_unit_M)
    lengths = np.zeros(num_units, dtype=np.int64)
    num_taken = 2 * num_units - 2
    for is_unit_M in reversed(is_unit_by_level):
        num_taken_units = int(np.count_nonzero(is_unit_M[:num_taken]))
        num_taken_packages = num_taken - num_taken_units
        lengths[:num_taken_units] += 1  # the lightest units come first in every level
        num_taken = 2 * num_taken_packages  # of the level below
    return lengths


# ---- trees that split an order of the units from the top


def balanced_children(order: Ints) -> Ints:
    """The children (N, 2) of the tree that repeatedly halves an order (V,) of the unit ids.

    Inner nodes 0…N-1 are numbered breadth first, and N+i is the leaf of unit i. The left half gets
    the extra unit of an odd number, so all codes have ⌊log2 V⌋ or ⌈log2 V⌉ bits.
    """
    return _split_from_the_top(order, _middle)


def _middle(begin: int, end: int) -> int:
    """Where a range is halved; the left half gets the extra unit of an odd number."""
    return (begin + end + 1) // 2


def fano_children(frequencies: NDArray[np.float64]) -> Ints:
    """The children (N, 2) of the Shannon-Fano tree (Fano 1949).

    Inner nodes 0…N-1 are numbered breadth first, and N+i is the leaf of unit i.

    Units are ordered by falling frequency, ties by id. A range is cut where the masses of its two
    parts are nearest to each other; of two such cuts the left one is taken. Ranges of units that
    never occur are halved.
    """
    order = np.argsort(-frequencies, kind="stable")
    # The sum starts at the rarest unit, so that small masses are not lost in large ones.
    rarest_first = frequencies[order][::-1]
    mass_of_rarest = np.cumsum([0.0, *rarest_first])
    # mass_from[i] is the mass of the units from position i to the end, so mass_from[V] is 0.
    mass_from = mass_of_rarest[::-1].tolist()
    negative_masses = [-mass for mass in mass_from]  # ascending, as `bisect_left` needs them

    def cut_at_half_of_the_mass(begin: int, end: int) -> int:
        """Where the right part of the range begin…end-1 of the units begins.

        It is where the masses of the two parts are nearest to each other; of two such cuts the left
        one. A range without mass is halved.
        """
        mass_at_begin = mass_from[begin]
        mass_at_end = mass_from[end]
        if mass_at_begin == mass_at_end:
            return _middle(begin, end)
        half_way = mass_at_end + (mass_at_begin - mass_at_end) / 2
        # The best cut is the first with at most half of the mass on its right, or the one before.
        first_below = bisect_left(negative_masses, -half_way)
        # Both parts have at least one unit, so a cut is between begin + 1 and end - 1.
        cuts = [min(max(cut, begin + 1), end - 1) for cut in (first_below - 1, first_below)]
        return min(cuts, key=lambda cut: abs(mass_from[cut] - half_way))  # the left of equal ones

    return _split_from_the_top(order, cut_at_half_of_the_mass)


def _split_from_the_top(order: Ints, find_cut: Callable[[int, int], int]) -> Ints:
    """The children (N, 2) of the tree that cuts `order` (V,) in two, and the parts again and again.

    A range begin…end-1 of two or more units is an inner node; `find_cut` returns where its right
    part begins, between begin + 1 and end - 1. Inner nodes 0…N-1 are numbered breadth first, and
    N+i is the leaf of unit i.
    """
    num_inner = len(order) - 1
    ranges = [(0, len(order))] if num_inner else []  # the range at index n is inner node n
    children: list[int] = []
    for begin, end in ranges:  # the loop also visits the ranges that it appends
        cut = find_cut(begin, end)
        for part_begin, part_end in ((begin, cut), (cut, end)):
            if part_end - part_begin > 1:
                children.append(len(ranges))
                ranges.append((part_begin, part_end))
            else:
                children.append(num_inner + int(order[part_begin]))  # the leaf of this unit
    return np.array(children, dtype=np.int64).reshape(-1, 2)


def random_order(num_units: int, seed: int) -> Ints:
    """A random permutation (V,) of the unit ids, the same for the same seed ≥ 0."""
    # NumPy guarantees the stream of raw numbers to be stable, but not `Generator.permutation`.
    return np.argsort(np.random.PCG64(seed).random_raw(num_units), kind="stable")


def alphabetical_order(units: Sequence[str]) -> Ints:
    """The unit ids (V,) sorted by case-folded and decomposed text (NFD); ties by the original text.

    Texts are compared by code point. So A is beside a, é follows e, and the scripts follow each
    other. The order does not depend on a locale, and Unicode's stability policy fixes case folding
    and decomposition.
    """
    keys = [(unicodedata.normalize("NFD", unit.casefold()), unit) for unit in units]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


# ---- n-ary trees


def two_levels(order: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Offsets (I+1,) and children (E,) of the n-ary tree that cuts `order` (V,) into classes.

    The classes have the given `sizes` and are the root's children, from left to right; their units
    are below them. A class of one unit is a leaf of the root. A single class is a flat tree, whose
    units are the root's children. A single unit has no inner node.

    Node 0 is the root, nodes 1…I-1 are the classes of two or more units, and I+i is the leaf of
    unit i. The row of inner node n is children[offsets[n]:offsets[n+1]].
    """
    if len(order) == 1:
        return np.zeros(1, dtype=np.int64), order[:0]
    if len(sizes) == 1:
        return np.array([0, len(order)]), 1 + order  # the root is node 0, the leaf of unit i is 1+i
    is_inner = sizes > 1  # of each class
    num_inner = 1 + np.count_nonzero(is_inner)
    leaves = order + num_inner
    class_starts = np.cumsum(sizes) - sizes  # in `order`
    first_leaves = leaves[class_starts]  # of each class
    class_nodes = np.cumsum(is_inner)  # 1, 2, … for the classes that are inner nodes
    root_row = np.where(is_inner, class_nodes, first_leaves)
    class_rows = leaves[np.repeat(is_inner, sizes)]  # of all inner classes, one after the other
    offsets = np.cumsum([0, len(sizes), *sizes[is_inner].tolist()])
    return offsets, np.concatenate([root_row, class_rows])


# ---- units that a tree does not have yet


def add_unplaced(rows: Ints, placed: Ints, frequencies: NDArray[np.float64]) -> Ints:
    """The children (V-1, 2) of a tree over some units ("placed"), extended by all other units.

    Inner nodes 0…V-2 are numbered breadth first, and V-1+i is the leaf of unit i. A tree built from
    bigrams or vectors has only the units that have these, so the others are added here:

    - Other units that occur form a Huffman tree together with the given tree, which counts as one
      leaf of its total weight and with its lowest unit id.
    - Other units that never occur form a Huffman tree of their own. It becomes the sibling of the
      least frequent unit that occurs (ties by id), as in Huffman's tree.
    - If no unit occurs, all count as equally frequent.

    The lighter child of each new node is on the left; equal weights are ordered as in
    `huffman_children`.

    Args:
        rows: (S-1, 2) the children in the given tree, where a value below V is a unit and V+n is
            the node of row n; the last row is the root.
        placed: (S,) ids of the units in the given tree, S ≥ 0.
        frequencies: (V,) finite, ≥ 0.
    """
    num_units = len(frequencies)
    weights = frequencies if frequencies.any() else np.ones(num_units)
    is_other = np.ones(num_units, dtype=bool)
    is_other[placed] = False
    occurring = np.flatnonzero(is_other & (weights > 0))
    never_occurring = np.flatnonzero(is_other & (weights == 0))
    if len(occurring):
        rows = _merge_with_occurring(rows, placed, occurring, weights)
    if not len(never_occurring):
        return number_breadth_first(rows)
    # The root stays the last of the rows so far. Without rows this is -1, the last row of all: then
    # the new row below is the root.
    root = len(rows) - 1
    subtree = huffman_subtree(never_occurring, weights[never_occurring], num_units + len(rows))
    sibling = int(np.argmin(np.where(weights > 0, weights, np.inf)))
    # A new node takes the place of the sibling, and has the subtree and the sibling as children.
    new_node = num_units + len(rows) + len(subtree.rows)
    new_row = [[subtree.root, sibling]]
    rows = np.where(rows == sibling, new_node, rows)
    return number_breadth_first(np.concatenate([rows, subtree.rows, new_row]), root)


def _merge_with_occurring(
    rows: Ints, placed: Ints, others: Ints, weights: NDArray[np.float64]
) -> Ints:
    """The rows of Huffman's tree whose leaves are `others` and, as one leaf, the tree of `rows`.

    `others` are unit ids in ascending order; `rows`, `placed` and `weights` (V,) are those of
    `add_unplaced`. The given rows stay in front.
    """
    num_units = len(weights)
    nodes = others
    node_weights = weights[others]
    if len(placed):
        has_rows = len(rows) > 0  # else the tree is a single unit
        root = num_units + len(rows) - 1 if has_rows else placed[0]
        # Equal weights are ordered by position: the tree stands where its lowest unit id would.
        position = np.searchsorted(others, placed.min())
        nodes = np.insert(others, position, root)
        node_weights = np.insert(node_weights, position, weights[np.sort(placed)].sum())
    subtree = huffman_subtree(nodes, node_weights, num_units + len(rows))
    return np.concatenate([rows, subtree.rows])


# ---- the numbering of `Tree`


def number_breadth_first(rows: Ints, root: int = -1) -> Ints:
    """The children (N, 2) of a tree of rows in the numbering of `Tree`: inner nodes breadth first.

    The root is node 0, left children come before right ones, and the leaf of unit i is N+i.

    Args:
        rows: (N, 2) the children of each inner node, in any order of the nodes. A value below V =
            N+1 is a unit, V+n is the node of row n.
        root: the index of the root's row; -1 is the last row.
    """
    num_inner = len(rows)
    num_units = num_inner + 1
    order = breadth_first_order(rows, root)
    # From a value in `rows` to the number of its node: first the units, then the inner nodes.
    new_numbers = num_inner + np.arange(num_units + num_inner)
    new_numbers[num_units + order] = np.arange(len(order))
    return new_numbers[rows[order]]


def breadth_first_order(rows: Ints, root: int = -1) -> Ints:
    """(N,) the index of the row of each inner node, in breadth-first order from the root.

    `rows` (N, 2) and `root` are those of `number_breadth_first`. Rows that are not under the root
    are left out. No row may be a child twice.
    """
    num_rows = len(rows)
    if num_rows == 0:  # a single unit
        return np.zeros(0, dtype=np.int64)
    num_units = num_rows + 1
    root_index = root % num_rows  # -1 is the last row
    levels = [np.array([root_index])]
    while len(levels[-1]):
        children = rows[levels[-1]].reshape(-1)
        levels.append(children[children >= num_units] - num_units)
    return np.concatenate(levels)
