# SPDX-License-Identifier: Apache-2.0
"""The ways to an n-ary tree and back to a binary one, as arrays, without recursion.

Dimension key: V units, I inner nodes of the n-ary tree, E = I+V-1 edges, C classes.
"""

import heapq
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.huffman import breadth_first, huffman_children
from wenet_hs.tree.tree import Tree


class Rows(NamedTuple):
    """The children of every inner node: those of node n are children[offsets[n]:offsets[n+1]]."""

    offsets: NDArray[np.int64]
    children: NDArray[np.int64]


def default_num_classes(num_units: int) -> int:
    """√V rounded, at least 2: about as many classes as units in each."""
    return max(2, round(math.sqrt(num_units)))


def most_probable_opened(tree: Tree, num_branches: int) -> NDArray[np.bool_]:
    """(V-1,) the inner nodes to keep for two levels: the root, and where the opening from the top ends.

    The most probable branch is replaced by its two children until there are `num_branches` or only leaves; equally
    probable ones go by their number.
    """
    weights, num_inner = tree.weights(), tree.num_units - 1
    inner = [(-float(weights[0]), 0)] if num_inner else []
    branches = 1
    while branches < num_branches and inner:
        node = heapq.heappop(inner)[1]
        for child in tree.children[node].tolist():
            if child < num_inner:
                heapq.heappush(inner, (-float(weights[child]), child))
        branches += 1
    kept = np.zeros(num_inner, dtype=np.bool_)
    kept[[0, *(node for _, node in inner)] if num_inner else []] = True
    return kept


def every_level(tree: Tree, levels_a_step: int) -> NDArray[np.bool_]:
    """(V-1,) the inner nodes whose level is a multiple of `levels_a_step`."""
    levels = np.repeat(np.arange(tree.depth), np.diff(tree.level_starts))
    return np.asarray(levels % levels_a_step == 0)


def contract(tree: Tree, kept: NDArray[np.bool_]) -> Rows:
    """The tree with only the inner nodes that are `kept` (V-1,), the root among them; the order of leaves stays."""
    num_nodes, num_inner = 2 * tree.num_units - 1, tree.num_units - 1
    num_leaves = tree.num_leaves()
    first_leaf = np.zeros(num_nodes, dtype=np.int64)  # where each node's leaves begin, read from left to right
    above = np.zeros(num_nodes, dtype=np.int64)  # the nearest kept node above
    level = np.zeros(num_nodes, dtype=np.int64)  # how many kept nodes are above
    for start, end in zip(tree.level_starts[:-1], tree.level_starts[1:], strict=True):
        here = np.arange(start, end)
        below = tree.children[here]
        first_leaf[below] = first_leaf[here, None]
        first_leaf[below[:, 1]] += num_leaves[below[:, 0]]
        above[below] = np.where(kept[here], here, above[here])[:, None]
        level[below] = (level[here] + kept[here])[:, None]
    inner = np.flatnonzero(kept)
    inner = inner[np.lexsort((first_leaf[inner], level[inner]))]
    number = np.concatenate([np.zeros(num_inner, dtype=np.int64), len(inner) + np.arange(tree.num_units)])
    number[inner] = np.arange(len(inner))
    nodes = np.concatenate([inner[1:], np.arange(num_inner, num_nodes if num_inner else 0)])
    nodes = nodes[np.lexsort((first_leaf[nodes], number[above[nodes]]))]
    return Rows(_offsets(np.bincount(number[above[nodes]], minlength=len(inner))), number[nodes])


def bins(frequencies: NDArray[np.float64], num_classes: int, by: str) -> Rows:
    """Units in falling order of frequency (ties by id) cut into classes; a class of one unit is a leaf of the root.

    By "mass" a unit's class is the share of all occurrences that comes before it, times C, rounded down; by "size"
    the classes have V / C units, give or take one.
    """
    num_units = len(frequencies)
    if num_units == 1:
        return Rows(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64))
    order = np.argsort(-frequencies, kind="stable")
    largest = frequencies[order[0]]
    if by == "size" or largest == 0:
        class_of = np.arange(num_units) * num_classes // num_units
    else:
        reached = np.cumsum(frequencies[order] / largest)
        before = np.concatenate([[0.0], reached[:-1]])
        class_of = np.minimum((before / reached[-1] * num_classes).astype(np.int64), num_classes - 1)
    _, sizes = np.unique(class_of, return_counts=True)
    return _two_levels(order, sizes)


def _two_levels(order: NDArray[np.int64], sizes: NDArray[np.int64]) -> Rows:
    if len(sizes) == 1:
        return Rows(np.array([0, len(order)]), 1 + order)
    is_inner = sizes > 1
    leaves = order + 1 + int(is_inner.sum())
    at_root = np.where(is_inner, np.cumsum(is_inner), leaves[np.cumsum(sizes) - sizes])
    below = leaves[np.repeat(is_inner, sizes)]
    return Rows(_offsets(np.concatenate([[len(sizes)], sizes[is_inner]])), np.concatenate([at_root, below]))


def huffman_at_each_node(rows: Rows, weights: NDArray[np.float64], num_units: int) -> NDArray[np.int64]:
    """(V-1, 2) children of the binary tree in which every n-ary node is Huffman's tree over its children's weights.

    Args:
        rows: of the n-ary tree.
        weights: (I+V,) of its nodes.
    """
    num_inner, num_rows = len(rows.offsets) - 1, num_units - 1
    degrees = np.diff(rows.offsets)
    # A node of d children becomes d - 1 rows; rows are filled from the end, so that the last one is the root.
    tops = num_rows - 1 - np.concatenate([[0], np.cumsum(degrees - 1)])[:num_inner]
    inner = np.minimum(rows.children, max(num_inner - 1, 0))
    ids = np.where(rows.children < num_inner, num_units + tops[inner], rows.children - num_inner)
    pairs = np.zeros((num_rows, 2), dtype=np.int64)
    edge_weights = weights[rows.children]
    first = rows.offsets[:-1][degrees == 2]
    swapped = (edge_weights[first] > edge_weights[first + 1]).astype(np.int64)  # the less probable is left
    pairs[tops[degrees == 2]] = np.stack([ids[first + swapped], ids[first + 1 - swapped]], axis=1)
    for node in np.flatnonzero(degrees > 2):
        start, end = rows.offsets[node : node + 2]
        local = huffman_children(edge_weights[start:end])
        names = np.concatenate([num_units + tops[node] - np.arange(len(local)), ids[start:end]])
        pairs[tops[node] - np.arange(len(local))] = names[local]
    return breadth_first(pairs)


def _offsets(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
