# SPDX-License-Identifier: Apache-2.0
"""Trees from frequencies or from an order of the units: Huffman (with a depth limit), Fano, balanced; as arrays.

No function recurses, so a tree may be thousands of levels deep.

Dimension key: V units, N = V-1 inner nodes, M ≤ 2V-1 items of a level (units and packages), R ranges of a level,
S placed units.
"""

import unicodedata
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Cut = Callable[[Ints, Ints], Ints]
"""From the begins and ends (R,) of ranges of at least two units to where each is cut: begin < cut < end."""


# ---- Huffman


def huffman_children(frequencies: NDArray[np.float64]) -> Ints:
    """The children (N, 2) of Huffman's tree in the numbering of `Tree`; the less probable child is the left one.

    Equal weights leave the queue in the order in which they entered it: leaves by unit id, then merged nodes by age.
    So units that never occur (weight 0) form a balanced subtree, and equal frequencies give a balanced tree.
    """
    num_units = len(frequencies)
    by_weight = np.argsort(frequencies, kind="stable")
    # Two queues replace a heap: merged weights come out in ascending order by themselves.
    leaf_ids, leaf_weights = by_weight.tolist(), frequencies[by_weight].tolist()
    merged: list[float] = []
    taken_leaves = taken_merged = 0
    pairs: list[tuple[int, int]] = []
    for _ in range(num_units - 1):
        nodes, weight = [], 0.0
        for _ in range(2):
            leaf_first = taken_leaves < num_units and (
                taken_merged == len(merged) or leaf_weights[taken_leaves] <= merged[taken_merged]
            )
            if leaf_first:
                nodes.append(leaf_ids[taken_leaves])
                weight += leaf_weights[taken_leaves]
                taken_leaves += 1
            else:
                nodes.append(num_units + taken_merged)
                weight += merged[taken_merged]
                taken_merged += 1
        pairs.append((nodes[0], nodes[1]))
        merged.append(weight)
    return breadth_first(np.array(pairs, dtype=np.int64).reshape(-1, 2))


def huffman_rows(ids: Ints, weights: NDArray[np.float64], first_row: int) -> Ints:
    """Huffman's tree over some units in ascending order as rows `first_row`…; its root is the last row.

    Args:
        weights: (V,) of all units.
    Returns:
        (len(ids)-1, 2) as `breadth_first` takes them.
    """
    num_units, children = len(weights), huffman_children(weights[ids])
    inner = len(children)  # the root is row 0 there, so the order of rows is reversed
    rows = num_units + first_row + inner - 1 - children
    return np.where(children < inner, rows, ids[np.maximum(children - inner, 0)])[::-1]


def breadth_first(pairs: Ints) -> Ints:
    """Renumber a tree whose last row is the root.

    Args:
        pairs: (N, 2); a value below V = N+1 is the leaf of that unit, V+n is row n.
    Returns:
        (N, 2) in the numbering of `Tree`: root 0, inner nodes breadth first, left before right, unit i at V-1+i.
    """
    num_inner = len(pairs)
    num_units = num_inner + 1
    order = breadth_first_order(pairs)
    new_number = np.zeros(num_inner, dtype=np.int64)
    new_number[order] = np.arange(len(order))
    ordered = pairs[order]
    is_leaf = ordered < num_units
    inner = new_number[np.where(is_leaf, 0, ordered - num_units)] if num_inner else ordered
    return np.where(is_leaf, ordered + num_inner, inner)


def breadth_first_order(pairs: Ints) -> Ints:
    """(N,) the rows of `pairs` as `breadth_first` numbers them: inner node n of `Tree` is row order[n].

    Shorter than N if some rows are not in the tree; no row may be a child twice.
    """
    num_inner = len(pairs)
    levels = [np.array([num_inner - 1], dtype=np.int64)] if num_inner else []
    while levels and len(levels[-1]):
        below = pairs[levels[-1]].reshape(-1)
        levels.append(below[below > num_inner] - num_inner - 1)
    return np.concatenate(levels) if levels else np.zeros(0, dtype=np.int64)


# ---- Huffman with a depth limit: package-merge (Larmore & Hirschberg 1990)


def least_depth(num_units: int) -> int:
    """⌈log2 V⌉, the least depth of a binary tree over V units."""
    return (num_units - 1).bit_length()


def check_max_depth(max_depth: int, num_units: int) -> None:
    """Raise ValueError when no binary tree over so many units has that depth or less."""
    if max_depth < least_depth(num_units):
        raise ValueError(
            f"max_depth: {max_depth} is too small for {num_units} units, which need at least {least_depth(num_units)}"
        )


def limited_children(frequencies: NDArray[np.float64], max_depth: int) -> Ints:
    """The children (N, 2) of the tree with the least mean code length among trees of depth ≤ `max_depth`.

    At every node the less probable child is the left one; equal weights are ordered as in Huffman's tree.
    Raises ValueError when V units do not fit that depth.
    """
    check_max_depth(max_depth, len(frequencies))
    units = np.argsort(frequencies, kind="stable")
    # Scaling by a power of two is exact, and then no sum of packages can overflow.
    weights = np.ldexp(frequencies[units], -int(np.frexp(frequencies.max())[1]))
    lengths = code_lengths(weights, max_depth)
    num_units, num_pairs = len(units), 0
    pairs = np.empty((num_units - 1, 2), dtype=np.int64)
    nodes, node_weights = units[:0], weights[:0]
    for length in range(int(lengths.max()), 0, -1):  # from the deepest level up, nodes are paired by weight
        here = lengths == length
        nodes = np.concatenate([units[here], nodes])
        node_weights = np.concatenate([weights[here], node_weights])
        order = np.argsort(node_weights, kind="stable")
        row = nodes[order].reshape(-1, 2)
        node_weights = node_weights[order].reshape(-1, 2).sum(1)
        nodes = np.arange(num_units + num_pairs, num_units + num_pairs + len(row))
        pairs[num_pairs : num_pairs + len(row)] = row
        num_pairs += len(row)
    return breadth_first(pairs)


def code_lengths(weights: NDArray[np.float64], max_depth: int) -> Ints:
    """The lengths (V,) ≤ `max_depth` of an optimal code for ascending weights (V,); in descending order.

    The items of a level are all units, and the items of the level below in pairs ("packages"). The 2V-2 lightest items
    of the top level are taken. A taken package takes its two items. A unit's length is how often it is taken.
    """
    num_units = len(weights)
    is_unit_M = np.ones(num_units, dtype=bool)
    items_M, levels = weights, [is_unit_M]
    for _ in range(max_depth - 1):
        packages = items_M[0 : len(items_M) // 2 * 2 : 2] + items_M[1::2]
        # Both lists are in ascending order; a unit comes before a package of equal weight.
        places = np.searchsorted(weights, packages, side="right") + np.arange(len(packages))
        is_unit_M = np.ones(num_units + len(packages), dtype=bool)
        is_unit_M[places] = False
        items_M = np.empty(len(is_unit_M))
        items_M[is_unit_M], items_M[places] = weights, packages
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
    """The children (N, 2) of the tree that repeatedly halves `order` (V,), a permutation of the unit ids.

    The left half gets the extra unit of an odd number, so all codes have ⌊log2 V⌋ or ⌈log2 V⌉ bits.
    """
    return _split_levels(order, _middles)


def fano_children(frequencies: NDArray[np.float64]) -> Ints:
    """The children (N, 2) of the Shannon-Fano tree (Fano 1949).

    Units are ordered by falling frequency, ties by id. A range is cut where the masses of its two parts are nearest to
    each other; of two such cuts the left one is taken. Ranges of units that never occur are halved.
    """
    order = np.argsort(-frequencies, kind="stable")
    # The sum starts at the rarest unit, so that small masses are not lost in large ones. mass_from[V] is 0.
    mass_from = np.zeros(len(order) + 1)
    mass_from[:-1] = np.cumsum(frequencies[order][::-1])[::-1]

    def nearest(begins_R: Ints, ends_R: Ints) -> Ints:
        before_R, after_R = mass_from[begins_R], mass_from[ends_R]
        middle_R = after_R + (before_R - after_R) / 2
        below_R = np.searchsorted(-mass_from, -middle_R)  # the first cut with at most half of the mass on its right
        above_R = np.clip(below_R - 1, begins_R + 1, ends_R - 1)
        below_R = np.clip(below_R, begins_R + 1, ends_R - 1)
        below_is_nearer_R = np.abs(mass_from[below_R] - middle_R) < np.abs(mass_from[above_R] - middle_R)
        cut_R = np.where(below_is_nearer_R, below_R, above_R)
        return np.where(before_R == after_R, _middles(begins_R, ends_R), cut_R)

    return _split_levels(order, nearest)


def alphabetical_order(units: Sequence[str]) -> Ints:
    """The unit ids (V,) sorted by case-folded and decomposed text (NFD), by code point; ties by the original text.

    So A is beside a, é follows e, and the scripts follow each other. The order does not depend on a locale, and
    Unicode's stability policy fixes case folding and decomposition.
    """
    keys = [(unicodedata.normalize("NFD", unit.casefold()), unit) for unit in units]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


def random_order(num_units: int, seed: int) -> Ints:
    """A permutation (V,) that depends only on the seed (≥ 0).

    It sorts raw numbers of PCG64: NumPy guarantees this stream to be stable, but not `Generator.permutation`.
    """
    if seed < 0:
        raise ValueError(f"seed: must be at least 0, got {seed}")
    return np.argsort(np.random.PCG64(seed).random_raw(num_units), kind="stable")


def _middles(begins_R: Ints, ends_R: Ints) -> Ints:
    return (begins_R + ends_R + 1) // 2


def _split_levels(order: Ints, cut: Cut) -> Ints:
    """Cut all ranges of a level at once, level by level, so that the numbers are breadth first."""
    num_inner = len(order) - 1
    children = np.empty((num_inner, 2), dtype=np.int64)
    begins_R, ends_R = np.array([0])[:num_inner], np.array([len(order)])[:num_inner]
    first = 0
    while len(begins_R):
        cuts_R = cut(begins_R, ends_R)
        begins = np.stack([begins_R, cuts_R], axis=1).reshape(-1)
        ends = np.stack([cuts_R, ends_R], axis=1).reshape(-1)
        is_inner = ends - begins > 1
        next_level = first + len(begins_R)
        numbers = num_inner + order[begins]
        numbers[is_inner] = np.arange(next_level, next_level + np.count_nonzero(is_inner))
        children[first:next_level] = numbers.reshape(-1, 2)
        first, begins_R, ends_R = next_level, begins[is_inner], ends[is_inner]
    return children


# ---- units without features


def add_unplaced(pairs: Ints, placed: Ints, frequencies: NDArray[np.float64]) -> Ints:
    """Complete a tree of some units (those with bigrams, with a vector) by all other units.

    Other units that occur form a Huffman tree together with the given tree, which counts as one leaf of its total
    weight. Other units that never occur form a Huffman tree of their own, the sibling of the least frequent unit that
    occurs (ties by id), as in Huffman's tree. The lighter child of each new node is on the left; of equal weights the
    one with the lowest unit id. If no unit occurs, all count as equal.

    Args:
        pairs: (S-1, 2) as `breadth_first` takes them: a value below V is the leaf of that unit, V+n is row n, the last
            row is the root.
        placed: (S,) ids of the units in this tree, S ≥ 0.
        frequencies: (V,) finite, ≥ 0.
    Returns:
        (V-1, 2) in the numbering of `Tree`.
    """
    weights = frequencies if frequencies.any() else np.ones(len(frequencies))
    is_other = np.ones(len(weights), dtype=bool)
    is_other[placed] = False
    others, never = np.flatnonzero(is_other & (weights > 0)), np.flatnonzero(is_other & (weights == 0))
    if len(others):
        pairs = _join_occurring(pairs, placed, others, weights)
    if len(never):
        pairs = _join_never_occurring(pairs, never, weights)
    return breadth_first(pairs)


def _join_occurring(pairs: Ints, placed: Ints, others: Ints, weights: NDArray[np.float64]) -> Ints:
    if not len(placed):
        return huffman_rows(others, weights, len(pairs))
    lowest = int(placed.min())  # the leaf of this unit represents the tree
    with_tree = weights.copy()
    with_tree[lowest] = weights[np.sort(placed)].sum()
    rows = huffman_rows(np.sort(np.append(others, lowest)), with_tree, len(pairs))
    root = len(weights) + len(pairs) - 1 if len(pairs) else lowest
    return np.concatenate([pairs, np.where(rows == lowest, root, rows)])


def _join_never_occurring(pairs: Ints, never: Ints, weights: NDArray[np.float64]) -> Ints:
    num_units = len(weights)
    sibling = int(np.argmin(np.where(weights > 0, weights, np.inf)))
    rows = huffman_rows(never, weights, 0)
    root = num_units + len(rows) - 1 if len(rows) else int(never[0])
    new = np.concatenate([rows, np.array([[root, sibling]])])
    # The new rows come first, so that the last row stays the root.
    pairs = np.where(pairs >= num_units, pairs + len(new), pairs)
    return np.concatenate([new, np.where(pairs == sibling, num_units + len(new) - 1, pairs)])
