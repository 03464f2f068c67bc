# SPDX-License-Identifier: Apache-2.0
"""Where the units hang that a kind of tree knows nothing of: no bigram, no vector, no phone.

Those that never occur (<blank>, <unk>) stand beside the least frequent unit, as in Huffman's tree: at the root they
would cost every unit a decision that is never in doubt. Those that occur (<sos/eos> beside phones, <blank> under CTC)
are as near to the root as they are frequent.

Dimension key: V units, P placed units.
"""

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.huffman import huffman_children

Ints = NDArray[np.int64]


def with_unplaced(pairs: Ints, placed: Ints, frequencies: NDArray[np.float64]) -> Ints:
    """A tree of some units, completed by all others; the lighter child of each new node is on the left.

    The others that occur and the tree, as one leaf of all its weight, make a Huffman tree; of equal weights the one of
    the lowest unit id is on the left. The others that never occur are a Huffman tree of their own, the sibling of the
    least frequent unit that occurs, of equal ones that of the lowest id. Where no unit occurs, all count as equal.

    Args:
        pairs: (P-1, 2) as `breadth_first` takes them: a value below V is that unit's leaf, V+n is row n, the last row
            is the root.
        placed: (P,) ids of the units in this tree, P ≥ 0.
        frequencies: (V,) finite, ≥ 0.
    Returns:
        (V-1, 2) of the same form.
    """
    weights = frequencies if frequencies.any() else np.ones(len(frequencies))
    is_other = np.ones(len(weights), dtype=bool)
    is_other[placed] = False
    pairs = _joined(pairs, placed, np.flatnonzero(is_other & (weights > 0)), weights)
    never = np.flatnonzero(is_other & (weights == 0))
    return _with_never(pairs, never, weights) if len(never) else pairs


def huffman_rows(ids: Ints, weights: NDArray[np.float64], first_row: int) -> Ints:
    """Huffman's tree over some units in ascending order as rows `first_row`…; its root is the last of them.

    Args:
        weights: (V,) of all units.
    """
    num_units, children = len(weights), huffman_children(weights[ids])
    inner = len(children)  # the root is row 0 there, so the rows are turned round
    rows = num_units + first_row + inner - 1 - children
    return np.where(children < inner, rows, ids[np.maximum(children - inner, 0)])[::-1]


def _joined(pairs: Ints, placed: Ints, others: Ints, weights: NDArray[np.float64]) -> Ints:
    """Huffman's tree over the others and, as one leaf, the tree that is there."""
    if not len(others):
        return pairs
    if not len(placed):
        return huffman_rows(others, weights, len(pairs))
    lowest = int(placed.min())  # the leaf of this unit stands for the tree
    leaves = np.sort(np.append(others, lowest))
    with_tree = weights.copy()
    with_tree[lowest] = weights[np.sort(placed)].sum()
    rows = huffman_rows(leaves, with_tree, len(pairs))
    root = len(weights) + len(pairs) - 1 if len(pairs) else lowest
    return np.concatenate([pairs, np.where(rows == lowest, root, rows)])


def _with_never(pairs: Ints, never: Ints, weights: NDArray[np.float64]) -> Ints:
    """Their Huffman tree takes the place of the least frequent unit, which becomes its sibling."""
    num_units = len(weights)
    beside = int(np.argmin(np.where(weights > 0, weights, np.inf)))
    rows = huffman_rows(never, weights, 0)
    root = num_units + len(rows) - 1 if len(rows) else int(never[0])
    new = np.concatenate([rows, np.array([[root, beside]])])
    # In front of the others, so that these keep their root as the last row.
    pairs = np.where(pairs >= num_units, pairs + len(new), pairs)
    return np.concatenate([new, np.where(pairs == beside, num_units + len(new) - 1, pairs)])
