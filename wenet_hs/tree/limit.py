# SPDX-License-Identifier: Apache-2.0
"""Huffman's tree with a limit on its depth: optimal code lengths by package-merge (Larmore & Hirschberg 1990).

Dimension key: V units, N = V-1 inner nodes, P the limit, M ≤ 2V-1 items of a level (units and packages).
"""

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.huffman import breadth_first


def least_depth(num_units: int) -> int:
    """⌈log2 V⌉: no binary tree over V units is less deep."""
    return (num_units - 1).bit_length()


def check_max_depth(max_depth: int, num_units: int) -> None:
    """Raise ValueError when so many units do not fit under that depth."""
    if max_depth < least_depth(num_units):
        raise ValueError(
            f"max_depth: {max_depth} is too small for {num_units} units, which need at least {least_depth(num_units)}"
        )


def limited_children(frequencies: NDArray[np.float64], max_depth: int) -> NDArray[np.int64]:
    """The children (N, 2) of a tree of depth ≤ `max_depth` with the least mean code length that such a tree can have.

    At every node the less probable child is the left one; equal weights go as in Huffman's tree.
    Raises ValueError when V units do not fit under that depth.
    """
    check_max_depth(max_depth, len(frequencies))
    by_weight = np.argsort(frequencies, kind="stable")
    # A power of two changes no digit, and no sum of as many packages as there are levels can overflow any more.
    weights = np.ldexp(frequencies[by_weight], -int(np.frexp(frequencies.max())[1]))
    return _tree_of(by_weight, weights, code_lengths(weights, max_depth))


def code_lengths(weights: NDArray[np.float64], max_depth: int) -> NDArray[np.int64]:
    """The lengths (V,) ≤ `max_depth` of an optimal code for ascending weights (V,); they never rise with the weight.

    A level's items are all units and, two by two, the items of the level below as packages. Of the top level the 2V-2
    lightest are taken; a package that is taken takes its two items. A unit's length is how often it is taken.
    """
    num_units = len(weights)
    is_unit_M = np.ones(num_units, dtype=bool)
    items_M, levels = weights, [is_unit_M]
    for _ in range(max_depth - 1):
        packages = items_M[0 : len(items_M) // 2 * 2 : 2] + items_M[1::2]
        # Both lists ascend, so a package's place is known; a unit stands before a package of its weight.
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


def _tree_of(units: NDArray[np.int64], weights: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The tree with these code lengths, from the deepest level up: a level's nodes are paired in order of weight."""
    num_units, num_pairs = len(units), 0
    pairs = np.empty((num_units - 1, 2), dtype=np.int64)
    nodes, node_weights = units[:0], weights[:0]
    for length in range(int(lengths.max()), 0, -1):
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
