# SPDX-License-Identifier: Apache-2.0
"""Brown clustering of the units: those that stand in the same contexts share a branch (p-tHSM's best tree).

Brown et al. 1992, "Class-based n-gram models of natural language": of all pairs of classes, merge the one that loses
least of the average mutual information of adjacent classes; and again, until one class is left. The merges are the
tree. Above `FULL_UP_TO` units a window (Liang 2005, "Semi-supervised learning for natural language"): the most
frequent units are the first classes, each next unit joins as a class of its own and the best pair is merged, and at
the end the classes of the window are merged to the root. Units that have not joined yet count as one class. Within a
class of the window the units are a Huffman tree: the order in which they joined would be a comb with the most
frequent unit at its end (wikitext-2: 106 bits a word instead of 12.4).

Dimension key: V units, M units that occur, B different bigrams.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.check import check_frequencies
from wenet_hs.tree.huffman import breadth_first
from wenet_hs.tree.unplaced import huffman_rows, with_unplaced

FULL_UP_TO = 1000
"""So many units that occur, and every one is a class of its own from the start."""
WINDOW = 400
"""Classes of the window above that; time grows with its square, and so does what it tells apart."""
MAX_BIGRAMS = 2**31
"""Above that the fixed-point sums of the kernel would be coarse."""

Ints = NDArray[np.int64]


def brown_children(
    sequences: Sequence[Sequence[int]],
    frequencies: Sequence[float] | NDArray[np.float64],
    *,
    window: int | None = None,
) -> Ints:
    """The children of Brown's tree in the numbering of `Tree`; the less frequent of two classes is on the left.

    Deterministic: losses are sums of fixed-point integers. Equal losses: the pair with the lowest unit id in it, then
    the lowest in its other class; equal frequencies: the class with the lowest unit id is on the left. Units with
    frequency 0, and those in no bigram, hang where `with_unplaced` puts them; bigrams with a unit of frequency 0 are
    left out.

    Args:
        sequences: unit ids in 0…V-1, a transcript each; a bigram never crosses from one to the next.
        frequencies: (V,) finite, ≥ 0: the order in which units join the window, and what is heavier.
        window: how many classes at a time; by default all units up to `FULL_UP_TO`, else `WINDOW`.
    Returns:
        (V-1, 2) int64.
    Raises:
        ValueError: an id outside 0…V-1, a window below 1, too many bigrams, or frequencies that are none.
    """
    weights_V = check_frequencies(frequencies)
    firsts, seconds, counts = _bigrams(sequences, weights_V)
    occurs_V = np.zeros(len(weights_V), dtype=bool)
    occurs_V[firsts] = occurs_V[seconds] = True
    occurring = np.flatnonzero(occurs_V)
    ids_M = occurring[np.argsort(-weights_V[occurring], kind="stable")]
    if window is None:
        window = max(1, len(ids_M)) if len(ids_M) <= FULL_UP_TO else WINDOW
    if window < 1:
        raise ValueError(f"window: must be at least 1 class, got {window}")
    pairs = np.zeros((0, 2), dtype=np.int64)
    if len(ids_M) > 1:
        from wenet_hs.tree.brown_merges import brown_merges  # numba, only when there is something to merge

        rank_V = np.zeros(len(weights_V), dtype=np.int64)
        rank_V[ids_M] = np.arange(len(ids_M))
        follow = _rows(rank_V[firsts], rank_V[seconds], counts, len(ids_M))
        precede = _rows(rank_V[seconds], rank_V[firsts], counts, len(ids_M))
        pairs = brown_merges(follow, precede, weights_V[ids_M], ids_M, min(window, len(ids_M)))
    seen = _whole_tree(pairs, window, ids_M, weights_V) if len(ids_M) else pairs
    return breadth_first(with_unplaced(seen, ids_M, weights_V))


def _bigrams(sequences: Sequence[Sequence[int]], weights_V: NDArray[np.float64]) -> tuple[Ints, Ints, Ints]:
    """The different bigrams of units that have a frequency: first units (B,), second units (B,), counts (B,)."""
    num_units = len(weights_V)
    lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
    ids = np.fromiter(chain.from_iterable(sequences), dtype=np.int64, count=int(lengths.sum()))
    outside = np.flatnonzero((ids < 0) | (ids >= num_units))
    if len(outside):
        raise ValueError(f"sequences: unit {ids[outside[0]]} is not one of the {num_units} units 0…{num_units - 1}")
    crosses = np.zeros(len(ids), dtype=bool)
    crosses[np.cumsum(lengths)[lengths > 0] - 1] = True  # the last unit of a sequence is followed by nothing
    begins = np.flatnonzero(~crosses)
    if len(begins) > MAX_BIGRAMS:
        raise ValueError(f"sequences: {len(begins)} bigrams are more than {MAX_BIGRAMS}; cluster a part of the text")
    firsts, seconds = ids[begins], ids[begins + 1]
    known = (weights_V[firsts] > 0) & (weights_V[seconds] > 0)
    codes, counts = np.unique(firsts[known] * num_units + seconds[known], return_counts=True)
    return codes // num_units, codes % num_units, counts.astype(np.int64)


def _rows(units: Ints, others: Ints, counts: Ints, num_units: int) -> tuple[Ints, Ints, Ints]:
    """The bigrams row by row: starts (M+1,), and for the bigrams of each unit the other unit and the count (B,)."""
    order = np.argsort(units, kind="stable")
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.bincount(units, minlength=num_units))])
    return starts, others[order], counts[order]


def _whole_tree(pairs: Ints, window: int, ids_M: Ints, weights_V: NDArray[np.float64]) -> Ints:
    """Merges over ranks as merges over unit ids: Huffman's within the classes of the window, then those between them.

    The last row is the root of the units that occur; a value below V is a unit, V+n is row n.
    """
    num_units, num_seen = len(weights_V), len(ids_M)
    num_within = max(0, num_seen - window)  # merges until every unit had joined: they only say who is in which class
    class_of = np.arange(num_seen + num_within)
    for row in range(num_within - 1, -1, -1):
        class_of[pairs[row]] = class_of[num_seen + row]
    new_node = np.arange(num_seen + len(pairs)) - num_seen + num_units
    rows, num_rows = [], 0
    by_class = np.argsort(class_of[:num_seen], kind="stable")
    nodes, starts = np.unique(class_of[by_class], return_index=True)
    for node, members in zip(nodes, np.split(ids_M[by_class], starts[1:]), strict=True):
        rows.append(huffman_rows(np.sort(members), weights_V, num_rows))
        num_rows += len(members) - 1
        new_node[node] = num_units + num_rows - 1 if len(members) > 1 else members[0]
    return np.concatenate([*rows, new_node[pairs[num_within:]]])
