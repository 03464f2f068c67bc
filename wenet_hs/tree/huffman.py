# SPDX-License-Identifier: Apache-2.0
"""Trees from frequencies or from an order of the units: Huffman (with a depth limit), Fano,
balanced; as arrays.

A tree under construction is an array of rows (N, 2): a value below V is the leaf of that unit, V+n
is row n. `breadth_first` numbers it as `Tree` does. No function recurses, so a tree may be
thousands of levels deep.

Dimension key: V units, N = V-1 inner nodes, M ≤ 2V-1 items of a level (units and packages), S
placed units.
"""

import heapq
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
NO_ROWS: Ints = np.zeros((0, 2), dtype=np.int64)


def breadth_first(rows: Ints, root: int = -1) -> Ints:
    """The children (N, 2) of a tree of rows in the numbering of `Tree`: breadth first, left before
    right.

    `root` is the index of the root's row.
    """
    num_inner = len(rows)
    order = breadth_first_order(rows, root)
    number = np.arange(2 * num_inner + 1) + num_inner  # units first
    number[num_inner + 1 + order] = np.arange(len(order))
    return number[rows[order]]


def breadth_first_order(rows: Ints, root: int = -1) -> Ints:
    """(N,) the index of the row of each inner node in breadth-first order.

    Shorter than N if some rows are not in the tree; no row may be a child twice.
    """
    num_inner = len(rows)
    levels = [np.arange(num_inner)[root:][:1]]
    while len(levels[-1]):
        below = rows[levels[-1]].reshape(-1)
        levels.append(below[below > num_inner] - num_inner - 1)
    return np.concatenate(levels)


# ---- Huffman


def huffman_children(frequencies: NDArray[np.float64]) -> Ints:
    """The children (N, 2) of Huffman's tree in the numbering of `Tree`; the less probable child is
    the left one.

    Equal weights leave the queue in the order in which they entered it: leaves by unit id, then
    merged nodes by age. So units that never occur (weight 0) form a balanced subtree, and equal
    frequencies give a balanced tree.
    """
    num_units = len(frequencies)
    return breadth_first(huffman_rows(np.arange(num_units), frequencies, num_units)[0])


def huffman_rows(nodes: Ints, weights: NDArray[np.float64], next_node: int) -> tuple[Ints, int]:
    """Huffman's tree over some nodes; of equal weights the first node is taken first.

    Args:
        nodes: (S,) S ≥ 1. weights: (S,).
        next_node: the number of the first row.
    Returns: The rows (S-1, 2), and the root: the last row, or the only node.
    """
    num_nodes = len(nodes)
    queue = list(zip(weights.tolist(), range(num_nodes), nodes.tolist(), strict=True))
    heapq.heapify(queue)
    rows: list[tuple[int, int]] = []
    for age in range(
        num_nodes, 2 * num_nodes - 1
    ):  # later than all nodes and earlier rows of the same weight
        (first, _, left), (second, _, right) = heapq.heappop(queue), heapq.heappop(queue)
        heapq.heappush(queue, (first + second, age, next_node + len(rows)))
        rows.append((left, right))
    return np.array(rows, dtype=np.int64).reshape(-1, 2), queue[0][2]


# ---- Huffman with a depth limit: package-merge (Larmore & Hirschberg 1990)


def least_depth(num_units: int) -> int:
    """⌈log2 V⌉, the least depth of a binary tree over V units."""
    return (num_units - 1).bit_length()


def limited_children(frequencies: NDArray[np.float64], max_depth: int) -> Ints:
    """The children (N, 2) of the tree with the least mean code length among trees of depth ≤
    `max_depth`.

    At every node the less probable child is the left one; equal weights are ordered as in Huffman's
    tree. V units must fit that depth.
    """
    units = np.argsort(frequencies, kind="stable")
    # Scaling by a power of two is exact, and then no sum of packages can overflow.
    weights = np.ldexp(frequencies[units], -int(np.frexp(frequencies.max())[1]))
    lengths = code_lengths(weights, max_depth)
    rows = NO_ROWS
    nodes, node_weights = units[:0], weights[:0]
    for length in range(
        int(lengths.max()), 0, -1
    ):  # from the deepest level up, nodes are paired by weight
        here = lengths == length
        nodes = np.concatenate([units[here], nodes])
        node_weights = np.concatenate([weights[here], node_weights])
        order = np.argsort(node_weights, kind="stable")
        node_weights = node_weights[order].reshape(-1, 2).sum(1)
        rows = np.concatenate([rows, nodes[order].reshape(-1, 2)])
        nodes = np.arange(len(units) + len(rows) - len(node_weights), len(units) + len(rows))
    return breadth_first(rows)


def code_lengths(weights: NDArray[np.float64], max_depth: int) -> Ints:
    """The lengths (V,) ≤ `max_depth` of an optimal code for ascending weights (V,); in descending
    order.

    The items of a level are all units, and the items of the level below in pairs ("packages"). The
    2V-2 lightest items of the top level are taken. A taken package takes its two items. A unit's
    length is how often it is taken.
    """
    num_units = len(weights)
    is_unit_M = np.ones(num_units, dtype=bool)
    items_M, levels = weights, [is_unit_M]
    for _ in range(max_depth - 1):
        packages = items_M[0 : len(items_M) // 2 * 2 : 2] + items_M[1::2]
        # Both lists are in ascending order; a unit comes before a package of equal weight.
        indexes = np.searchsorted(weights, packages, side="right") + np.arange(len(packages))
        is_unit_M = np.ones(num_units + len(packages), dtype=bool)
        is_unit_M[indexes] = False
        items_M = np.empty(len(is_unit_M))
        items_M[is_unit_M], items_M[indexes] = weights, packages
        levels.append(is_unit_M)
    lengths = np.zeros(num_units, dtype=np.int64)
    num_taken = 2 * num_units - 2
    for is_unit_M in reversed(levels):
        num_taken_units = int(np.count_nonzero(is_unit_M[:num_taken]))
        lengths[:num_taken_units] += 1
        num_taken = 2 * (num_taken - num_taken_units)
    return lengths


# ---- trees that split an order of the units from the top


def balanced_children(order: Ints) -> Ints:
    """The children (N, 2) of the tree that repeatedly halves `order` (V,), a permutation of the
    unit ids.

    The left half gets the extra unit of an odd number, so all codes have ⌊log2 V⌋ or ⌈log2 V⌉ bits.
    """
    return _split(order, lambda begin, end: (begin + end + 1) // 2)


def fano_children(frequencies: NDArray[np.float64]) -> Ints:
    """The children (N, 2) of the Shannon-Fano tree (Fano 1949).

    Units are ordered by falling frequency, ties by id. A range is cut where the masses of its two
    parts are nearest to each other; of two such cuts the left one is taken. Ranges of units that
    never occur are halved.
    """
    order = np.argsort(-frequencies, kind="stable")
    # The sum starts at the rarest unit, so that small masses are not lost in large ones.
    # mass_from[V] is 0.
    mass_from = np.cumsum([0.0, *frequencies[order][::-1]])[::-1].tolist()
    negative = [-mass for mass in mass_from]  # ascending

    def nearest(begin: int, end: int) -> int:
        before, after = mass_from[begin], mass_from[end]
        if before == after:
            return (begin + end + 1) // 2
        middle = after + (before - after) / 2
        first = bisect_left(
            negative, -middle
        )  # the first cut with at most half of the mass on its right
        cuts = (min(max(cut, begin + 1), end - 1) for cut in (first - 1, first))
        return min(cuts, key=lambda cut: abs(mass_from[cut] - middle))  # of equal ones the left one

    return _split(order, nearest)


def random_order(num_units: int, seed: int) -> Ints:
    """A permutation (V,) of the unit ids."""
    # NumPy guarantees the stream of raw numbers to be stable, but not `Generator.permutation`.
    return np.argsort(np.random.PCG64(seed).random_raw(num_units), kind="stable")


def alphabetical_order(units: Sequence[str]) -> Ints:
    """The unit ids (V,) sorted by case-folded and decomposed text (NFD), by code point; ties by the
    original text.

    So A is beside a, é follows e, and the scripts follow each other. The order does not depend on a
    locale, and Unicode's stability policy fixes case folding and decomposition.
    """
    keys = [(unicodedata.normalize("NFD", unit.casefold()), unit) for unit in units]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


def _split(order: Ints, cut: Callable[[int, int], int]) -> Ints:
    """Cut the ranges of two or more units in two, breadth first; `cut` is from begin and end to
    begin < cut < end.
    """
    num_inner = len(order) - 1
    ranges, children = [(0, len(order))][:num_inner], list[int]()
    for begin, end in ranges:  # grows
        middle = cut(begin, end)
        for part in ((begin, middle), (middle, end)):
            is_inner = part[1] - part[0] > 1
            children.append(len(ranges) if is_inner else num_inner + int(order[part[0]]))
            ranges += [part] if is_inner else []
    return np.array(children, dtype=np.int64).reshape(-1, 2)


def two_levels(order: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Offsets (I+1,) and children (E,) of the n-ary tree of two levels that cuts `order` (V,) into
    classes of `sizes`.

    A class of one unit is a leaf of the root; a single class is a flat tree.
    """
    if len(order) == 1:
        return np.zeros(1, dtype=np.int64), order[:0]
    if len(sizes) == 1:
        return np.array([0, len(order)]), 1 + order
    is_inner = sizes > 1
    leaves = order + 1 + np.count_nonzero(is_inner)
    at_root = np.where(is_inner, np.cumsum(is_inner), leaves[np.cumsum(sizes) - sizes])
    offsets = np.cumsum([0, len(sizes), *sizes[is_inner].tolist()])
    return offsets, np.concatenate([at_root, leaves[np.repeat(is_inner, sizes)]])


# ---- units without features


def add_unplaced(rows: Ints, placed: Ints, frequencies: NDArray[np.float64]) -> Ints:
    """The children (V-1, 2) of a tree of rows over some units (those with bigrams, with a vector)
    and all other units.

    Other units that occur form a Huffman tree together with the given tree, which counts as one
    leaf of its total weight. Other units that never occur form a Huffman tree of their own, the
    sibling of the least frequent unit that occurs (ties by id), as in Huffman's tree. The lighter
    child of each new node is on the left; equal weights are ordered as in `huffman_children`, where
    the given tree is a leaf with its lowest unit id. If no unit occurs, all count as equal.

    Args:
        rows: (S-1, 2); the last row is the root.
        placed: (S,) ids of the units in this tree, S ≥ 0.
        frequencies: (V,) finite, ≥ 0.
    """
    num_units = len(frequencies)
    weights = frequencies if frequencies.any() else np.ones(num_units)
    is_other = np.ones(num_units, dtype=bool)
    is_other[placed] = False
    others, never = (
        np.flatnonzero(is_other & (weights > 0)),
        np.flatnonzero(is_other & (weights == 0)),
    )
    if len(others):
        nodes, node_weights = others, weights[others]
        if len(placed):
            root = num_units + len(rows) - 1 if len(rows) else placed[0]
            at = np.searchsorted(others, placed.min())  # the tree is sorted by its lowest unit id
            nodes = np.insert(others, at, root)
            node_weights = np.insert(node_weights, at, weights[np.sort(placed)].sum())
        rows = np.concatenate([rows, huffman_rows(nodes, node_weights, num_units + len(rows))[0]])
    if not len(never):
        return breadth_first(rows)
    sibling = int(np.argmin(np.where(weights > 0, weights, np.inf)))
    below, top = huffman_rows(never, weights[never], num_units + len(rows))
    parent = num_units + len(rows) + len(below)
    joined = np.concatenate([np.where(rows == sibling, parent, rows), below, [[top, sibling]]])
    return breadth_first(joined, len(rows) - 1)
