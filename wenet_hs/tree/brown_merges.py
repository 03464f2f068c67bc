# SPDX-License-Identifier: Apache-2.0
"""The merges of Brown clustering in Numba: O(C²) a merge for C classes, less where classes have few neighbours.

With h(n) = n·log n, n(a, b) the bigrams from class a to class b, l(a) and r(a) the sums of a's row and column and T
the sum of all, T times the average mutual information is Σ h(n(a, b)) - Σ h(l(a)) - Σ h(r(a)) + h(T), so a merge
changes a few terms h. They are fixed-point integers: their sums are exact in any order. h is n times a sum of
logarithms of primes for all small n, so that ties such as h(4) = 4·h(2) are true ties, not a matter of rounding.
`losses` holds the loss of every pair a < b and is kept up to date: for a pair apart from i and j, a merge of i and j
changes what the columns (rows) i and j contribute, and a unit that leaves the class of those still to come changes it
the other way round.

Import this module, and with it numba, only where a kernel is about to run.
Dimension key: C slots of classes, of which the first m are taken; M units by rank; B bigrams.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Rows = tuple[Ints, Ints, Ints]
Terms = tuple[Ints, float]
TABLE = 2**16  # counts below it have their h looked up


class _Classes(NamedTuple):
    """The classes in the window, a slot each. First axis of three arrays: 0 what follows, 1 what precedes."""

    counts: Ints
    """(2, C, C): n(a, b), and its transpose, so that both directions are read along memory."""
    rest: Ints
    """(2, C): bigrams from each class to the units still to come, and from these to it."""
    sums: Ints
    """(2, C): l and r."""
    losses: Ints
    """(C, C): what the merge of a < b loses, in steps."""
    lowest: Ints
    """(C,): the lowest unit id in each class."""
    node: Ints
    """(C,): a rank, or M + the number of the merge."""
    weight: NDArray[np.float64]
    """(C,): the frequency."""
    head: Ints
    """(C,): the rank of a unit of each class."""
    terms: Terms
    """h(0), h(1), … in steps, and how many steps a nat is."""


def brown_merges(follow: Rows, precede: Rows, weights_M: NDArray[np.float64], ids_M: Ints, window: int) -> Ints:
    """All merges in order: (M-1, 2), a value below M is a rank, M+n is row n; the lighter class first.

    Args:
        follow, precede: starts (M+1,), ranks (B,) and counts (B,) of the bigrams that begin (end) with each rank.
        weights_M, ids_M: frequencies and unit ids.
        window: how many classes there may be while units join.
    """
    num_slots = min(window + 1, len(ids_M))
    square, line = (num_slots, num_slots), (num_slots,)
    shapes = ((2, *square), (2, *line), (2, *line), square, line, line, line)
    counts, rest, sums, losses, lowest, node, head = (np.zeros(shape, dtype=np.int64) for shape in shapes)
    classes = _Classes(
        counts, rest, sums, losses, lowest, node, np.zeros(num_slots), head, _terms(int(follow[2].sum()))
    )
    return np.asarray(_all_merges(classes, follow, precede, weights_M, ids_M, window))


@njit(cache=True)
def _all_merges(
    classes: _Classes, follow: Rows, precede: Rows, weights_M: NDArray[np.float64], ids_M: Ints, window: int
) -> Ints:
    num_units = len(ids_M)
    above = np.arange(num_units)  # union-find: from a unit to the head of its class
    slot_of = np.full(num_units, -1, dtype=np.int64)  # of heads
    pairs = np.zeros((num_units - 1, 2), dtype=np.int64)
    m = merged = np.int64(0)  # a plain 0, or a plain 1 below, would compile its callees a second time for that constant
    for unit in range(num_units):
        slot_of[unit], classes.head[m] = m, unit
        classes.lowest[m], classes.node[m], classes.weight[m] = ids_M[unit], unit, weights_M[unit]
        for way in range(2):
            _count(classes, follow if way == 0 else precede, unit, m, above, slot_of, way)
        _join(classes, m)
        m += 1
        while m > window or (unit == num_units - 1 and m > 1):
            i, j = _best_pair(classes.losses, classes.lowest, m)
            j_first = (classes.weight[j], classes.lowest[j]) < (classes.weight[i], classes.lowest[i])
            pairs[merged, 0], pairs[merged, 1] = classes.node[j if j_first else i], classes.node[i if j_first else j]
            if _num_neighbours(classes, i, m) < _num_neighbours(classes, j, m):
                i, j = j, i
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
    """The table for a text of so many bigrams; the steps are as fine as sums of 2·h(total) in 61 bits allow."""
    scale = 2.0 ** (60 - math.ceil(math.log2(2 * total * math.log(total + 1) + 2)))
    logarithms = np.zeros(min(TABLE, total + 1), dtype=np.int64)
    for number in range(2, len(logarithms)):
        if logarithms[number] == 0:  # a prime
            power = number
            while power < len(logarithms):
                logarithms[power::power] += round(math.log(number) * scale)
                power *= number
    return np.arange(len(logarithms)) * logarithms, scale


@njit(cache=True)
def _term(terms: Terms, n: int) -> int:
    table, scale = terms
    return int(table[n]) if n < len(table) else int(n * math.log(n) * scale + 0.5)


@njit(cache=True)
def _apart(terms: Terms, x: int, y: int) -> int:
    """h(x) + h(y) - h(x + y): what two cells have over one that holds both; 0 where either is empty, else < 0."""
    if x == 0 or y == 0:
        return 0
    apart: int = _term(terms, x) + _term(terms, y) - _term(terms, x + y)
    return apart


@njit(cache=True)
def _count(classes: _Classes, rows: Rows, unit: int, m: int, above: Ints, slot_of: Ints, way: int) -> None:
    """Fill row m of `counts` (and column m of its transpose) for a unit that joins; the remainder is `rest`."""
    starts, others, counts = rows
    row, transpose = classes.counts[way, m], classes.counts[1 - way]
    for c in range(m + 1):
        row[c] = 0
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
    for c in range(m + 1):
        transpose[c, m] = row[c]
    classes.sums[way, m] = total
    classes.rest[way, m] = total - known


@njit(cache=True)
def _num_neighbours(classes: _Classes, i: int, m: int) -> int:
    number = 0
    for c in range(m):
        number += (classes.counts[0, i, c] != 0) + (classes.counts[1, i, c] != 0)
    return number


@njit(cache=True)
def _join(classes: _Classes, m: int) -> None:
    """The class in slot m leaves the units still to come: renew all losses. Its counts are filled in already."""
    losses = classes.losses
    for way in range(2):
        into_m, rest = classes.counts[1 - way, m], classes.rest[way]  # bigrams that were in `rest` until now
        for a in range(m):
            rest[a] -= into_m[a]
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


@njit(cache=True)
def _merge(classes: _Classes, i: int, j: int, m: int) -> None:
    """Put class j, the emptier one, into i and renew all losses."""
    terms, losses = classes.terms, classes.losses
    for way in range(2):
        _exchange(losses, terms, classes.counts[way, i], classes.counts[way, j], m, i, j, np.int64(1))
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
        for c in range(m):
            counts[i, c] += counts[j, c]
        for c in range(m):
            counts[c, i] += counts[c, j]
        classes.rest[way, i] += classes.rest[way, j]
        classes.sums[way, i] += classes.sums[way, j]
    for b in range(m):
        if b != i and b != j:
            losses[min(b, i), max(b, i)] += change[b] + _own_terms(classes, i, b)
    classes.weight[i] += classes.weight[j]
    classes.lowest[i] = min(classes.lowest[i], classes.lowest[j])


@njit(cache=True)
def _move(classes: _Classes, last: int, slot: int) -> None:
    """Put the last class into a slot that has become free."""
    for way in range(2):
        counts = classes.counts[way]
        for c in range(last + 1):
            counts[slot, c] = counts[last, c]
        for c in range(last + 1):
            counts[c, slot] = counts[c, last]
        classes.rest[way, slot] = classes.rest[way, last]
        classes.sums[way, slot] = classes.sums[way, last]
    classes.weight[slot] = classes.weight[last]
    for ids in (classes.lowest, classes.node, classes.head):
        ids[slot] = ids[last]
    for a in range(last):
        if a != slot:
            classes.losses[min(a, slot), max(a, slot)] = classes.losses[a, last]


@njit(cache=True)
def _exchange(losses: Ints, terms: Terms, x: Ints, y: Ints, m: int, i: int, j: int, sign: int) -> None:
    """Add sign × (what a column x + y contributes minus what x and y do) to every loss that has no part in i and j.

    A pair changes only where y is not empty in one of its two classes, so y should be the emptier column.
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


@njit(cache=True)
def _own_terms(classes: _Classes, i: int, j: int) -> int:
    """What the merge of i and j loses in their own sums and cells; the other classes' cells come on top."""
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


@njit(cache=True)
def _best_pair(losses: Ints, lowest: Ints, m: int) -> tuple[int, int]:
    """The pair i < j of least loss; of equal ones the pair with the lowest unit id, then the lowest other id."""
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
