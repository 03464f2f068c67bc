# SPDX-License-Identifier: Apache-2.0
"""Brown clustering of the units: units with the same neighbours share a branch (Numba kernel).

Brown et al. 1992, "Class-based n-gram models of natural language": of all pairs of classes, merge
the pair that loses the least average mutual information of adjacent classes, until one class is
left. The merges are the tree.

Above `FULL_UP_TO` units a window is used (Liang 2005, "Semi-supervised learning for natural
language"). The most frequent units are the first classes. Each next unit joins as a class of its
own, and the best pair is merged. Units that have not joined yet count as one class. At the end the
classes of the window are merged up to the root. Within a class of the window the units form a
Huffman tree; their merges would give the most frequent unit the longest code.

With h(n) = n·log n, n(a, b) the bigrams from class a to class b, l(a) and r(a) the sums of a's row
and column and T the sum of all, T times the average mutual information is Σ h(n(a, b)) - Σ h(l(a))
- Σ h(r(a)) + h(T): a merge changes a few terms h. They are fixed-point integers, whose sums are
exact in any order. For small n, h is n times a sum of logarithms of primes, so that ties such as
h(4) = 4·h(2) are exact. The loss of every pair a < b is updated at each merge: for a pair without i
and j, a merge of i and j changes only the terms of columns (rows) i and j. The reverse change
happens when a unit leaves the class of units that have not joined.

Dimension key: V units, M units that occur, B different bigrams; C slots of classes, of which the
first m are in use.
"""

import math
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.compiled import njit
from wenet_hs.tree.huffman import NO_ROWS, add_unplaced, huffman_subtree

FULL_UP_TO = 1000
"""The most units for which every unit is a class of its own from the start."""
WINDOW = 400
"""Classes of the window above that; the time is proportional to its square."""
TABLE = 2**16  # h of counts below this comes from a table

Ints = NDArray[np.int64]
Rows = tuple[Ints, Ints, Ints]
Terms = tuple[Ints, float]


def brown_children(sequences: Sequence[Sequence[int]], frequencies: NDArray[np.float64]) -> Ints:
    """The children (V-1, 2) of Brown's tree; the less frequent of two classes is on the left.

    Of equal losses, the pair with the lowest unit id in it is merged, then the one with the lowest
    id in its other class. Of equal frequencies, the class with the lowest unit id is on the left.
    Units with frequency 0, and those in no bigram, are placed by `add_unplaced`. Bigrams with a
    unit of frequency 0 are left out.

    Args:
        sequences: unit ids in 0…V-1, one sequence per transcript; a bigram never spans two
            sequences.
        frequencies: (V,) finite, ≥ 0: the order in which units join the window, and the order of
            children.
    """
    lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
    ids = np.fromiter(chain.from_iterable(sequences), dtype=np.int64, count=int(lengths.sum()))
    is_last = np.zeros(len(ids), dtype=bool)
    is_last[np.cumsum(lengths)[lengths > 0] - 1] = True
    begins = np.flatnonzero(~is_last)
    begins = begins[(frequencies[ids[begins]] > 0) & (frequencies[ids[begins + 1]] > 0)]
    firsts, seconds = ids[begins], ids[begins + 1]
    occurring = np.unique([firsts, seconds])
    ids_M = occurring[np.argsort(-frequencies[occurring], kind="stable")]
    if len(ids_M) < 2:
        return add_unplaced(NO_ROWS, ids_M, frequencies)
    rank_V = np.zeros(len(frequencies), dtype=np.int64)
    rank_V[ids_M] = np.arange(len(ids_M))
    follow = _count_pairs(rank_V[firsts], rank_V[seconds], len(ids_M))
    precede = _count_pairs(rank_V[seconds], rank_V[firsts], len(ids_M))
    window = WINDOW if len(ids_M) > FULL_UP_TO else len(ids_M)
    classes = _empty_classes(min(window + 1, len(ids_M)), len(begins))
    merges = np.asarray(_all_merges(classes, follow, precede, frequencies[ids_M], ids_M, window))
    return add_unplaced(_whole_tree(merges, window, ids_M, frequencies), ids_M, frequencies)


def _count_pairs(rows: Ints, columns: Ints, num_ranks: int) -> Rows:
    """The different pairs (row, column) in compressed rows: starts (M+1,), columns (B,) and counts
    (B,).
    """
    pairs, counts = np.unique(rows * num_ranks + columns, return_counts=True)
    starts = np.searchsorted(pairs, np.arange(num_ranks + 1) * num_ranks)
    return starts, pairs % num_ranks, counts


def _whole_tree(merges: Ints, window: int, ids_M: Ints, frequencies: NDArray[np.float64]) -> Ints:
    """Merges of ranks as rows over unit ids: Huffman trees within the classes of the window, then
    their merges.

    The last row is the root of the units that occur; a value below V is a unit, V+n is row n.
    """
    num_units, num_seen = len(frequencies), len(ids_M)
    num_within = max(
        0, num_seen - window
    )  # merges made until every unit had joined; they only define the classes
    class_of = np.arange(num_seen + num_within)
    for row in reversed(range(num_within)):
        class_of[merges[row]] = class_of[num_seen + row]
    new_node = np.arange(num_seen + len(merges)) - num_seen + num_units
    rows, next_node = [], num_units
    by_class = np.argsort(class_of[:num_seen], kind="stable")
    nodes, starts = np.unique(class_of[by_class], return_index=True)
    for node, members in zip(nodes, np.split(ids_M[by_class], starts[1:]), strict=True):
        units = np.sort(members)
        subtree = huffman_subtree(units, frequencies[units], next_node)
        new_node[node] = subtree.root
        rows.append(subtree.rows)
        next_node += len(subtree.rows)
    return np.concatenate([*rows, new_node[merges[num_within:]]])


# ---- the merges: O(C²) each for C classes, less if classes have few neighbours


class _Classes(NamedTuple):
    """The classes in the window, one slot per class.

    First axis of three arrays: 0 what follows, 1 what precedes.
    """

    counts: Ints
    """(2, C, C): n(a, b), and its transpose, so that both are read in memory order."""
    rest: Ints
    """(2, C): bigrams from each class to the units that have not joined, and from these to it."""
    sums: Ints
    """(2, C): l and r."""
    losses: Ints
    """(C, C): the loss of the merge of a < b, in steps."""
    lowest: Ints
    """(C,): the lowest unit id in each class."""
    node: Ints
    """(C,): a rank, or M + the number of the merge."""
    head: Ints
    """(C,): the rank of a unit of each class."""
    weight: NDArray[np.float64]
    """(C,): the frequency."""
    terms: Terms
    """h(0), h(1), … in steps, and the number of steps per nat."""


def _empty_classes(num_slots: int, num_bigrams: int) -> _Classes:
    square, line = (num_slots, num_slots), (num_slots,)
    shapes = ((2, *square), (2, *line), (2, *line), square, line, line, line)
    counts, rest, sums, losses, lowest, node, head = (
        np.zeros(shape, dtype=np.int64) for shape in shapes
    )
    return _Classes(
        counts, rest, sums, losses, lowest, node, head, np.zeros(num_slots), _terms(num_bigrams)
    )


@njit
def _all_merges(
    classes: _Classes,
    follow: Rows,
    precede: Rows,
    weights_M: NDArray[np.float64],
    ids_M: Ints,
    window: int,
) -> Ints:
    """All merges in order: (M-1, 2), a value below M is a rank, M+n is row n; the lighter class
    first.

    Args:
        follow, precede: starts (M+1,), ranks (B,) and counts (B,) of the bigrams that begin (end)
            with each rank.
        window: the largest number of classes while units join.
    """
    num_units = len(ids_M)
    above = np.arange(num_units)  # union-find: from a unit to the head of its class
    slot_of = np.full(num_units, -1, dtype=np.int64)  # of heads
    pairs = np.zeros((num_units - 1, 2), dtype=np.int64)
    m = merged = np.int64(
        0
    )  # a plain 0, or a plain 1 below, would compile its callees a second time for that constant
    for unit in range(num_units):
        slot_of[unit], classes.head[m] = m, unit
        classes.lowest[m], classes.node[m], classes.weight[m] = ids_M[unit], unit, weights_M[unit]
        for way in range(2):
            _count(classes, follow if way == 0 else precede, unit, m, above, slot_of, way)
        _join(classes, m)
        m += 1
        while m > window or (unit == num_units - 1 and m > 1):
            i, j = _best_pair(classes.losses, classes.lowest, m)
            j_first = (classes.weight[j], classes.lowest[j]) < (
                classes.weight[i],
                classes.lowest[i],
            )
            pairs[merged, 0], pairs[merged, 1] = (
                classes.node[j if j_first else i],
                classes.node[i if j_first else j],
            )
            _merge(classes, i, j, m)
            above[classes.head[j]] = classes.head[i]
            classes.node[i] = num_units + merged
            m -= 1
            merged += 1
            if j < m:
                _move(classes, m, j)
                slot_of[classes.head[j]] = j
    return pairs


def _terms(total: int) -> Terms:
    """The table for a text of so many bigrams, with the finest steps for which 2·h(total) fits into
    61 bits.
    """
    scale = 2.0 ** (60 - math.ceil(math.log2(2 * total * math.log(total + 1) + 2)))
    logarithms = np.zeros(min(TABLE, total + 1), dtype=np.int64)
    for number in range(2, len(logarithms)):
        if logarithms[number] == 0:  # a prime
            power = number
            while power < len(logarithms):
                logarithms[power::power] += round(math.log(number) * scale)
                power *= number
    return np.arange(len(logarithms)) * logarithms, scale


@njit
def _term(terms: Terms, n: int) -> int:
    table, scale = terms
    return int(table[n]) if n < len(table) else int(n * math.log(n) * scale + 0.5)


@njit
def _apart(terms: Terms, x: int, y: int) -> int:
    """h(x) + h(y) - h(x + y): two separate cells against one cell with both; 0 if either is empty,
    else < 0.
    """
    if x == 0 or y == 0:
        return 0
    apart: int = _term(terms, x) + _term(terms, y) - _term(terms, x + y)
    return apart


@njit
def _count(
    classes: _Classes, rows: Rows, unit: int, m: int, above: Ints, slot_of: Ints, way: int
) -> None:
    """Set row m of `counts` (and column m of its transpose) and `rest` for a unit that joins."""
    starts, others, counts = rows
    row = classes.counts[way, m]
    row[: m + 1] = 0
    total = known = 0
    for k in range(starts[unit], starts[unit + 1]):
        total += counts[k]
        other = others[k]
        if other <= unit:
            while above[other] != other:
                above[other] = above[above[other]]
                other = above[other]
            row[slot_of[other]] += counts[k]
            known += counts[k]
    classes.counts[1 - way, : m + 1, m] = row[: m + 1]
    classes.sums[way, m] = total
    classes.rest[way, m] = total - known


@njit
def _join(classes: _Classes, m: int) -> None:
    """Update all losses for a unit that joins in slot m. Its counts are set already."""
    losses = classes.losses
    for way in range(2):
        into_m, rest = (
            classes.counts[1 - way, m],
            classes.rest[way],
        )  # bigrams that were in `rest` until now
        rest[:m] -= into_m[:m]
        _exchange(losses, classes.terms, rest, into_m, m, m, m, np.int64(-1))
    for a in range(m):
        losses[a, m] = _own_terms(classes, a, m)
    for way in range(2):
        counts = classes.counts[way]
        for c in range(m):
            if counts[m, c] != 0:
                for a in range(m):
                    if a != c:
                        losses[a, m] += _apart(classes.terms, counts[a, c], counts[m, c])


@njit
def _merge(classes: _Classes, i: int, j: int, m: int) -> None:
    """Merge class j into i and update all losses."""
    terms, losses = classes.terms, classes.losses
    for way in range(2):
        _exchange(
            losses, terms, classes.counts[way, i], classes.counts[way, j], m, i, j, np.int64(1)
        )
    change = np.zeros(m, np.int64)  # of the losses of i and each other class
    for way in range(2):
        counts = classes.counts[way]
        for b in range(m):
            change[b] -= _apart(terms, counts[i, j], counts[b, j])
        for c in range(m):
            if counts[j, c] != 0 and c != i and c != j:
                for b in range(m):
                    if b != c and counts[b, c] != 0:
                        change[b] += _apart(terms, counts[i, c] + counts[j, c], counts[b, c])
                        change[b] -= _apart(terms, counts[i, c], counts[b, c])
    for b in range(m):
        change[b] -= _own_terms(classes, i, b)
    for way in range(2):
        counts = classes.counts[way]
        counts[i, :m] += counts[j, :m]
        counts[:m, i] += counts[:m, j]
        classes.rest[way, i] += classes.rest[way, j]
        classes.sums[way, i] += classes.sums[way, j]
    for b in range(m):
        if b != i and b != j:
            losses[min(b, i), max(b, i)] += change[b] + _own_terms(classes, i, b)
    classes.weight[i] += classes.weight[j]
    classes.lowest[i] = min(classes.lowest[i], classes.lowest[j])


@njit
def _move(classes: _Classes, last: int, slot: int) -> None:
    for way in range(2):
        counts = classes.counts[way]
        counts[slot, : last + 1] = counts[last, : last + 1]
        counts[: last + 1, slot] = counts[: last + 1, last]
        classes.rest[way, slot] = classes.rest[way, last]
        classes.sums[way, slot] = classes.sums[way, last]
    for ids in (classes.lowest, classes.node, classes.head):
        ids[slot] = ids[last]
    classes.weight[slot] = classes.weight[last]
    for a in range(last):
        if a != slot:
            classes.losses[min(a, slot), max(a, slot)] = classes.losses[a, last]


@njit
def _exchange(
    losses: Ints, terms: Terms, x: Ints, y: Ints, m: int, i: int, j: int, sign: int
) -> None:
    """Add sign × (contribution of a column x + y, minus those of x and y) to the loss of every pair
    without i and j.

    A pair changes only if y is not zero for one of its two classes. So y should be the column with
    more zeros, as that of the class that joined later usually is.
    """
    x, y = x.copy(), y.copy()
    x[i] = x[j] = y[i] = y[j] = 0  # an empty cell changes no pair
    hx, hy, change = np.empty(m, np.int64), np.empty(m, np.int64), np.empty(m, np.int64)
    for a in range(m):
        hx[a], hy[a] = _term(terms, x[a]), _term(terms, y[a])
        change[a] = _term(terms, x[a] + y[a]) - hx[a] - hy[a]
    for a in range(m):
        if y[a] == 0:
            continue
        for b in range(m):
            if b == a or (y[b] != 0 and b < a) or (x[b] == 0 and y[b] == 0):
                continue
            moved = change[a] + change[b] - _term(terms, x[a] + y[a] + x[b] + y[b])
            moved += _term(terms, x[a] + x[b])
            moved += _term(terms, y[a] + y[b]) if y[b] != 0 else hy[a]
            losses[min(a, b), max(a, b)] += sign * moved


@njit
def _own_terms(classes: _Classes, i: int, j: int) -> int:
    """The part of the loss of a merge of i and j that comes from their own sums and cells."""
    terms, block = classes.terms, 0
    loss: int = 0
    for way in range(2):
        loss -= _apart(terms, classes.sums[way, i], classes.sums[way, j])
        loss += _apart(terms, classes.rest[way, i], classes.rest[way, j])
        for k in (i, j):
            cell = classes.counts[0, i if way == 0 else j, k]
            block += cell
            loss += _term(terms, cell)
    loss -= _term(terms, block)
    return loss


@njit
def _best_pair(losses: Ints, lowest: Ints, m: int) -> tuple[int, int]:
    """The pair i < j of least loss; ties: the pair with the lowest unit id, then with the lowest
    other id.
    """
    best = np.iinfo(np.int64).max
    best_i = best_j = 0
    for a in range(m - 1):
        least = best
        for b in range(a + 1, m):
            least = min(least, losses[a, b])
        if least > best:
            continue
        for b in range(a + 1, m):
            if losses[a, b] != least:
                continue
            ids = min(lowest[a], lowest[b]), max(lowest[a], lowest[b])
            best_ids = min(lowest[best_i], lowest[best_j]), max(lowest[best_i], lowest[best_j])
            if least < best or ids < best_ids:
                best, best_i, best_j = least, a, b
    return best_i, best_j
