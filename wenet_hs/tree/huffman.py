# SPDX-License-Identifier: Apache-2.0
"""Huffman's tree (the paper's appendix A) as an array of children, without recursion and without combs.

Dimension key: V units, N = V-1 inner nodes.
"""

import numpy as np
from numpy.typing import NDArray


def huffman_children(frequencies: NDArray[np.float64]) -> NDArray[np.int64]:
    """The children (N, 2) of Huffman's tree in the numbering of `Tree`; the less probable child is the left one.

    Equal weights leave the queue in the order in which they entered it: leaves by unit id, then merged nodes by age.
    So units that never occur (weight 0) pair up level by level into a balanced subtree instead of a comb, and
    frequencies that are all equal, all zero among them, give a balanced tree.
    """
    num_units = len(frequencies)
    by_weight = np.argsort(frequencies, kind="stable")
    # Two queues do the work of a heap: merged weights come out in ascending order by themselves.
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


def breadth_first(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Renumber a tree whose last row is the root.

    Args:
        pairs: (N, 2); a value below V = N+1 is that unit's leaf, V+n is row n.
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


def breadth_first_order(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) the rows of `pairs` as `breadth_first` numbers them: inner node n of `Tree` is row order[n].

    Fewer than N where rows hang outside the tree; no row may be a child twice.
    """
    num_inner = len(pairs)
    levels = [np.array([num_inner - 1], dtype=np.int64)] if num_inner else []
    while levels and len(levels[-1]):
        below = pairs[levels[-1]].reshape(-1)
        levels.append(below[below > num_inner] - num_inner - 1)
    return np.concatenate(levels) if levels else np.zeros(0, dtype=np.int64)
