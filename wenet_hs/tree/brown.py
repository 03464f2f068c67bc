# SPDX-License-Identifier: Apache-2.0
"""Brown clustering of the units: units with the same neighbours share a branch (Numba kernel).

Brown et al. 1992, "Class-based n-gram models of natural language": of all pairs of classes, merge
the pair that loses the least average mutual information of adjacent classes, until one class is
left. The merges are the tree.

Above `FULL_UP_TO` units a window is used (Liang 2005, "Semi-supervised learning for natural
language"). The most frequent units are the first classes. Each next unit joins as a class of its
own, and the best pair is merged. Units that have not joined yet count as one class, "the rest". At
the end the classes of the window are merged up to the root. Within a class of the window the units
form a Huffman tree; their merges would give the most frequent unit the longest code.

The loss of a merge. Let n(a, b) be the number of bigrams from class a to class b, l(a) and r(a) the
sums of a's row and column, T the sum of all, and h(n) = n·log n. T times the average mutual
information is Σ h(n(a, b)) - Σ h(l(a)) - Σ h(r(a)) + h(T). So a merge of i and j changes only the
terms of their rows and columns. Where two cells x and y become one cell x + y, the loss is
h(x) + h(y) - h(x + y); where two sums do, it is the negative of that.

The losses of all pairs a < b are kept, and each merge updates them. For a pair without i and j only
the terms in the columns and rows of i and j change. When a unit joins, its column leaves that of
the rest, which is the reverse change.

Values of h are fixed-point integers, whose sums are exact in any order. For small n, h is n times a
sum of logarithms of primes, so that ties such as h(4) = 4·h(2) are exact.

Dimension key: V units, M units that occur in bigrams, B different bigrams; C slots of classes, of
which the first ones are in use. A unit's rank 0…M-1 is its position in the order of falling
frequency, in which units join.
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
"""The most classes with more units than that; the time is proportional to its square."""
TABLE = 2**16
"""h of smaller counts is in a table; h of others is computed."""

Ints = NDArray[np.int64]


class _Bigrams(NamedTuple):
    """The different bigrams, grouped by one of their two units.

    Those of rank r have the indexes starts[r] … starts[r+1]-1.
    """

    starts: Ints
    """(M+1,)"""
    others: Ints
    """(B,) the rank of the other unit."""
    counts: Ints
    """(B,) how often the bigram occurs."""


class _Terms(NamedTuple):
    """h(n) = n·log n in steps, as whole numbers."""

    table: Ints
    """h(0), h(1), … of small n."""
    steps_per_nat: float
    """h as a whole number of steps is n·log n times this; the logarithm is the natural one."""


class _Classes(NamedTuple):
    """The classes in the window, one slot per class; the first `num_classes` slots are in use.

    The first axis of three arrays is the direction: 0 for what follows a class, 1 for what precedes
    it.
    """

    counts: Ints
    """(2, C, C): n(a, b), and its transpose, so that both are read in memory order."""
    rest: Ints
    """(2, C): bigrams from each class to the units that have not joined, and from these to it."""
    sums: Ints
    """(2, C): l and r, the sums of the rows and columns; they include the rest."""
    losses: Ints
    """(C, C): the loss of the merge of a < b, in steps; other entries have no meaning."""
    lowest_id: Ints
    """(C,): the lowest unit id in each class."""
    node: Ints
    """(C,): the class in the list of merges: a rank, or M + the number of the merge."""
    representative: Ints
    """(C,): the rank of a unit of each class, by which the class is found."""
    weight: NDArray[np.float64]
    """(C,): the frequency."""
    terms: _Terms


def brown_children(sequences: Sequence[Sequence[int]], frequencies: NDArray[np.float64]) -> Ints:
    """The left and the right child of each inner node of Brown's tree: (V-1, 2).

    Inner nodes 0…V-2 are numbered breadth first, and V-1+i is the leaf of unit i.

    The less frequent of two classes is on the left; of equal frequencies, the class with the lowest
    unit id. Of equal losses, the pair with the lowest unit id in it is merged, then the one with
    the lowest id in its other class.

    Bigrams with a unit of frequency 0 are left out. Units that are in no bigram then are placed by
    their frequency (`add_unplaced`).

    Args:
        sequences: unit ids in 0…V-1, one sequence per transcript; a bigram never spans two
            sequences.
        frequencies: (V,) finite, ≥ 0: the order in which units join the window, and the order of
            children.
    """
    firsts, seconds = _bigrams_of_occurring_units(sequences, frequencies)
    occurring = np.unique([firsts, seconds])
    by_frequency = np.argsort(-frequencies[occurring], kind="stable")
    ids_M = occurring[by_frequency]  # of each rank; rank 0 is the most frequent unit
    num_ranks = len(ids_M)
    if num_ranks < 2:
        return add_unplaced(NO_ROWS, ids_M, frequencies)
    rank_of_V = np.zeros(len(frequencies), dtype=np.int64)
    rank_of_V[ids_M] = np.arange(num_ranks)
    following = _group_bigrams(rank_of_V[firsts], rank_of_V[seconds], num_ranks)
    preceding = _group_bigrams(rank_of_V[seconds], rank_of_V[firsts], num_ranks)
    window = WINDOW if num_ranks > FULL_UP_TO else num_ranks  # without a window, no merge is early
    num_slots = min(window + 1, num_ranks)  # a unit joins before two classes are merged
    classes = _empty_classes(num_slots, num_bigrams=len(firsts))
    merges = np.asarray(
        _merge_all(classes, following, preceding, frequencies[ids_M], ids_M, window)
    )
    rows = _rows_of_merges(merges, window, ids_M, frequencies)
    return add_unplaced(rows, ids_M, frequencies)


def _bigrams_of_occurring_units(
    sequences: Sequence[Sequence[int]], frequencies: NDArray[np.float64]
) -> tuple[Ints, Ints]:
    """The first and the second unit id of each bigram, in two arrays, as often as it occurs.

    Bigrams with a unit of frequency 0 are left out.
    """
    lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
    ids = np.fromiter(chain.from_iterable(sequences), dtype=np.int64, count=int(lengths.sum()))
    ends = np.cumsum(lengths)  # where each sequence ends in `ids`
    ends_of_not_empty = ends[lengths > 0]
    begins_bigram = np.ones(len(ids), dtype=bool)
    begins_bigram[ends_of_not_empty - 1] = False  # the last unit of a sequence begins none
    starts = np.flatnonzero(begins_bigram)
    firsts = ids[starts]
    seconds = ids[starts + 1]
    has_frequencies = (frequencies[firsts] > 0) & (frequencies[seconds] > 0)
    return firsts[has_frequencies], seconds[has_frequencies]


def _group_bigrams(ranks: Ints, other_ranks: Ints, num_ranks: int) -> _Bigrams:
    """Count the different pairs (rank, other rank) and group them by their first rank."""
    # A pair of ranks as one number, by which pairs are sorted by their first rank, then the other.
    pairs = ranks * num_ranks + other_ranks
    distinct_pairs, counts = np.unique(pairs, return_counts=True)
    least_pairs = np.arange(num_ranks + 1) * num_ranks  # of each first rank
    starts = np.searchsorted(distinct_pairs, least_pairs)
    return _Bigrams(starts, others=distinct_pairs % num_ranks, counts=counts)


def _empty_classes(num_slots: int, num_bigrams: int) -> _Classes:
    """Slots for the classes of a text of so many bigrams; none is in use."""
    return _Classes(
        counts=np.zeros((2, num_slots, num_slots), dtype=np.int64),
        rest=np.zeros((2, num_slots), dtype=np.int64),
        sums=np.zeros((2, num_slots), dtype=np.int64),
        losses=np.zeros((num_slots, num_slots), dtype=np.int64),
        lowest_id=np.zeros(num_slots, dtype=np.int64),
        node=np.zeros(num_slots, dtype=np.int64),
        representative=np.zeros(num_slots, dtype=np.int64),
        weight=np.zeros(num_slots),
        terms=_make_terms(num_bigrams),
    )


def _make_terms(num_bigrams: int) -> _Terms:
    """The values of h(n) = n·log n as whole numbers of steps, for a text of so many bigrams T.

    A nat has as many steps, a power of two, as possible while 2·h(T) is at most 2^60 steps. So sums
    of a few terms fit into int64. log n is the sum of the rounded logarithms of its prime factors.
    """
    largest = 2 * num_bigrams * math.log(num_bigrams + 1) + 2  # ≥ 2·h(T), above 0 for T = 0 too
    steps_per_nat = 2.0 ** (60 - math.ceil(math.log2(largest)))
    # log 0, log 1, …; each power of a prime adds the prime's logarithm to all its multiples.
    logarithms = np.zeros(min(TABLE, num_bigrams + 1), dtype=np.int64)
    for number in range(2, len(logarithms)):
        is_prime = logarithms[number] == 0  # no smaller prime has added its logarithm
        if is_prime:
            logarithm = round(math.log(number) * steps_per_nat)
            power = number
            while power < len(logarithms):
                logarithms[power::power] += logarithm
                power *= number
    return _Terms(np.arange(len(logarithms)) * logarithms, steps_per_nat)


def _rows_of_merges(
    merges: Ints, window: int, ids_M: Ints, frequencies: NDArray[np.float64]
) -> Ints:
    """The tree of the merges as rows (M-1, 2): a value below V is a unit, V+n is row n.

    The first merges, made until every unit had joined, only define the classes of the window. They
    are replaced by a Huffman tree over the units of each class. The other merges follow, and the
    last row is the root.

    Args:
        merges: (M-1, 2), where a value below M is a rank and M+n is merge n.
        window: the largest number of classes while units joined.
        ids_M: (M,) the unit id of each rank.
        frequencies: (V,).
    """
    num_units = len(frequencies)
    num_ranks = len(ids_M)
    num_replaced = max(0, num_ranks - window)
    # The class of the window that each rank and each replaced merge belongs to, as a node of the
    # merges. A later merge contains earlier ones, so it is known first.
    class_of = np.arange(num_ranks + num_replaced)
    for merge in reversed(range(num_replaced)):
        class_of[merges[merge]] = class_of[num_ranks + merge]
    by_class = np.argsort(class_of[:num_ranks], kind="stable")
    class_nodes, starts = np.unique(class_of[by_class], return_index=True)
    ids_by_class = np.split(ids_M[by_class], starts[1:])
    # There are as many rows of Huffman trees as replaced merges, so merge n becomes row n: node M+n
    # of the merges gets the number V+n. The classes of the window get theirs in the loop.
    new_numbers = num_units + np.arange(num_ranks + len(merges)) - num_ranks
    rows = []
    next_node = num_units
    for class_node, ids in zip(class_nodes, ids_by_class, strict=True):
        units = np.sort(ids)
        subtree = huffman_subtree(units, frequencies[units], next_node)
        new_numbers[class_node] = subtree.root
        rows.append(subtree.rows)
        next_node += len(subtree.rows)
    return np.concatenate([*rows, new_numbers[merges[num_replaced:]]])


# ---- the merges: O(C²) each for C classes, less if classes have few neighbours


@njit
def _merge_all(
    classes: _Classes,
    following: _Bigrams,
    preceding: _Bigrams,
    weights_M: NDArray[np.float64],
    ids_M: Ints,
    window: int,
) -> Ints:
    """All merges in order: (M-1, 2), a value below M is a rank, M+n is merge n.

    The lighter class comes first; of equal weights the one with the lowest unit id. `classes` is
    empty before and has one class afterwards.

    Args:
        following: the bigrams that begin with each rank.
        preceding: the bigrams that end with each rank.
        weights_M: (M,) the frequency of each rank.
        ids_M: (M,) the unit id of each rank.
        window: the largest number of classes while units join, at least 1.
    """
    num_ranks = len(ids_M)
    parents = np.arange(num_ranks)  # for `_find_representative`
    slot_of = np.full(num_ranks, -1, dtype=np.int64)  # of representatives; -1 for other ranks
    merges = np.zeros((num_ranks - 1, 2), dtype=np.int64)
    # Numba would compile a called function twice if it were given a plain 0 here, or a plain 1 or
    # -1 in the calls below: once for the constant, once for other numbers.
    num_classes = np.int64(0)
    num_merges = np.int64(0)
    for rank in range(num_ranks):
        # The unit joins as a class of its own, in the next slot.
        slot_of[rank] = num_classes
        classes.representative[num_classes] = rank
        classes.lowest_id[num_classes] = ids_M[rank]
        classes.node[num_classes] = rank
        classes.weight[num_classes] = weights_M[rank]
        for direction in range(2):
            bigrams = following if direction == 0 else preceding
            _set_counts(classes, bigrams, rank, num_classes, parents, slot_of, direction)
        _update_losses_for_new_class(classes, num_classes)
        num_classes += 1
        # The best pairs are merged until the window holds; after the last unit, until one is left.
        is_last = rank == num_ranks - 1
        max_classes = 1 if is_last else window
        while num_classes > max_classes:
            i, j = _best_pair(classes.losses, classes.lowest_id, num_classes)
            key_i = (classes.weight[i], classes.lowest_id[i])
            key_j = (classes.weight[j], classes.lowest_id[j])
            left = j if key_j < key_i else i
            right = i if key_j < key_i else j
            merges[num_merges, 0] = classes.node[left]
            merges[num_merges, 1] = classes.node[right]
            _merge_into(classes, i, j, num_classes)
            parents[classes.representative[j]] = classes.representative[i]
            classes.node[i] = num_ranks + num_merges
            num_merges += 1
            num_classes -= 1
            if j < num_classes:  # the last class moves into the slot that is free now
                _move_class(classes, num_classes, j)
                slot_of[classes.representative[j]] = j
    return merges


@njit
def _set_counts(
    classes: _Classes,
    bigrams: _Bigrams,
    rank: int,
    slot: int,
    parents: Ints,
    slot_of: Ints,
    direction: int,
) -> None:
    """Count the bigrams of a unit that joins as the class in `slot`, in one direction.

    Sets the row of the slot in `counts[direction]`, its column in the transpose, its sum, and its
    bigrams with the rest, the units that have not joined.

    Args:
        bigrams: those that begin (direction 0) or end (direction 1) with each rank.
        rank: of the unit. Lower ranks have joined before.
        parents, slot_of: lead from a rank to its representative and to the slot of its class.
    """
    row = classes.counts[direction, slot]
    row[: slot + 1] = 0
    num_all = num_with_classes = 0
    for k in range(bigrams.starts[rank], bigrams.starts[rank + 1]):
        count = bigrams.counts[k]
        num_all += count
        other = bigrams.others[k]
        has_joined = other <= rank
        if has_joined:
            row[slot_of[_find_representative(parents, other)]] += count
            num_with_classes += count
    classes.counts[1 - direction, : slot + 1, slot] = row[: slot + 1]
    classes.sums[direction, slot] = num_all
    classes.rest[direction, slot] = num_all - num_with_classes


@njit
def _find_representative(parents: Ints, rank: int) -> int:
    """The representative of the class of a rank that has joined (union-find).

    `parents` leads from each rank, in one or more steps, to the representative of its class, which
    is its own parent. The path is halved for the next search.
    """
    while parents[rank] != rank:
        parents[rank] = parents[parents[rank]]
        rank = parents[rank]
    return rank


@njit
def _update_losses_for_new_class(classes: _Classes, new: int) -> None:
    """Set the losses of all pairs with the class in slot `new`, and update those of other pairs.

    `new` is the last slot in use, and its counts are set. The bigrams of other classes with it
    leave `rest`, the bigrams with units that have not joined.

    The loss of classes a and b has terms within the pair, and for each third class c the loss of
    joining n(a, c) and n(b, c), in both directions.
    """
    losses = classes.losses
    for direction in range(2):
        # For each other class: its bigrams with the new class, which were in `rest` until now. They
        # are column `new` of counts[direction], read as a row of the transpose.
        with_new = classes.counts[1 - direction, new]
        rest = classes.rest[direction]
        rest[:new] -= with_new[:new]
        # -1: one column, of the rest, becomes two.
        _join_columns(losses, classes.terms, rest, with_new, new, new, new, np.int64(-1))
    for a in range(new):
        losses[a, new] = _terms_within_pair(classes, a, new)
    for direction in range(2):
        counts = classes.counts[direction]
        for c in range(new):
            if counts[new, c] == 0:
                continue  # an empty cell loses nothing
            for a in range(new):
                if a != c:
                    losses[a, new] += _loss_of_joining(classes.terms, counts[a, c], counts[new, c])


@njit
def _merge_into(classes: _Classes, i: int, j: int, num_classes: int) -> None:
    """Merge the class in slot j into that in slot i, and update the losses of all pairs without j.

    i < j are two of the first `num_classes` slots, which are in use. The counts, weight and lowest
    id of class i become those of both.

    The loss of i with another class b has terms within the pair, and for each other class c the
    loss of joining n(i, c) and n(b, c), in both directions. After the merge n(i, c) + n(j, c)
    replaces n(i, c), and c = j is no other class any more.
    """
    terms = classes.terms
    losses = classes.losses
    for direction in range(2):
        counts = classes.counts[direction]
        _join_columns(losses, terms, counts[i], counts[j], num_classes, i, j, np.int64(1))
    change = np.zeros(num_classes, np.int64)  # of the losses of i and each other class
    for direction in range(2):
        counts = classes.counts[direction]
        for b in range(num_classes):
            change[b] -= _loss_of_joining(terms, counts[i, j], counts[b, j])
        for c in range(num_classes):
            if counts[j, c] == 0 or c in (i, j):
                continue
            for b in range(num_classes):
                if b != c and counts[b, c] != 0:
                    change[b] += _loss_of_joining(terms, counts[i, c] + counts[j, c], counts[b, c])
                    change[b] -= _loss_of_joining(terms, counts[i, c], counts[b, c])
    for b in range(num_classes):
        change[b] -= _terms_within_pair(classes, i, b)  # before the merge
    for direction in range(2):
        counts = classes.counts[direction]
        counts[i, :num_classes] += counts[j, :num_classes]
        counts[:num_classes, i] += counts[:num_classes, j]
        classes.rest[direction, i] += classes.rest[direction, j]
        classes.sums[direction, i] += classes.sums[direction, j]
    for b in range(num_classes):
        if b != i and b != j:
            losses[min(b, i), max(b, i)] += change[b] + _terms_within_pair(classes, i, b)
    classes.weight[i] += classes.weight[j]
    classes.lowest_id[i] = min(classes.lowest_id[i], classes.lowest_id[j])


@njit
def _move_class(classes: _Classes, last: int, slot: int) -> None:
    """Copy the class in the last slot in use, with its counts and losses, to a free slot."""
    for direction in range(2):
        counts = classes.counts[direction]
        counts[slot, : last + 1] = counts[last, : last + 1]
        counts[: last + 1, slot] = counts[: last + 1, last]
        classes.rest[direction, slot] = classes.rest[direction, last]
        classes.sums[direction, slot] = classes.sums[direction, last]
    for ids in (classes.lowest_id, classes.node, classes.representative):
        ids[slot] = ids[last]
    classes.weight[slot] = classes.weight[last]
    for a in range(last):
        if a != slot:
            classes.losses[min(a, slot), max(a, slot)] = classes.losses[a, last]


@njit
def _join_columns(
    losses: Ints, terms: _Terms, x: Ints, y: Ints, num_classes: int, i: int, j: int, sign: int
) -> None:
    """Update the losses of all pairs without i and j when two columns x and y become one, x + y.

    A column (C,) has one count per class: its bigrams with one class. To the loss of classes a and
    b it contributes h(x[a]) + h(x[b]) - h(x[a] + x[b]), with h(n) = n·log n. The contribution of
    (x + y), minus those of x and y, is added to the loss.

    A pair changes only if y is not zero for one of its two classes. So y should be the column with
    more zeros, as that of the class that joined later usually is.

    Args:
        losses: (C, C) of the merges of a < b; changed in place.
        num_classes: the number of slots in use.
        i, j: the slots of the two classes whose columns are joined; they may be one.
        sign: 1, or -1 for the reverse change: x + y is separated into x and y.
    """
    x = x.copy()
    y = y.copy()
    x[i] = x[j] = y[i] = y[j] = 0  # an empty cell changes no pair
    h_y = np.empty(num_classes, np.int64)
    change_of_one = np.empty(num_classes, np.int64)  # of the terms h(x[a]) and h(y[a])
    for a in range(num_classes):
        h_y[a] = _term(terms, y[a])
        change_of_one[a] = _term(terms, x[a] + y[a]) - _term(terms, x[a]) - h_y[a]
    for a in range(num_classes):
        if y[a] == 0:
            continue
        for b in range(num_classes):
            is_done = y[b] != 0 and b < a  # with a and b exchanged
            is_empty = x[b] == 0 and y[b] == 0  # then the loss of the pair stays 0
            if b == a or is_done or is_empty:
                continue
            change = change_of_one[a] + change_of_one[b]
            change -= _term(terms, x[a] + y[a] + x[b] + y[b])
            change += _term(terms, x[a] + x[b])
            change += _term(terms, y[a] + y[b]) if y[b] != 0 else h_y[a]
            losses[min(a, b), max(a, b)] += sign * change


@njit
def _terms_within_pair(classes: _Classes, i: int, j: int) -> int:
    """The part of the loss of merging classes i and j that no third class is part of.

    In both directions, the merge makes one of their two sums, and one of their two counts with the
    rest. It also makes one of the four cells that count bigrams from i or j to i or j.
    """
    terms = classes.terms
    loss: int = 0
    for direction in range(2):
        sums = classes.sums[direction]
        rest = classes.rest[direction]
        loss -= _loss_of_joining(terms, sums[i], sums[j])  # the information has -h(sum)
        loss += _loss_of_joining(terms, rest[i], rest[j])
    num_within = 0
    for row in (i, j):
        for column in (i, j):
            count = classes.counts[0, row, column]
            num_within += count
            loss += _term(terms, count)
    loss -= _term(terms, num_within)
    return loss


@njit
def _loss_of_joining(terms: _Terms, x: int, y: int) -> int:
    """h(x) + h(y) - h(x + y), in steps: what two cells lose when they become one.

    0 if either is empty, else negative, because h grows faster than its argument.
    """
    if x == 0 or y == 0:
        return 0
    loss: int = _term(terms, x) + _term(terms, y) - _term(terms, x + y)
    return loss


@njit
def _term(terms: _Terms, n: int) -> int:
    """h(n) = n·log n, rounded to whole steps."""
    if n < len(terms.table):
        return int(terms.table[n])
    return int(n * math.log(n) * terms.steps_per_nat + 0.5)


@njit
def _best_pair(losses: Ints, lowest_id: Ints, num_classes: int) -> tuple[int, int]:
    """The two slots i < j, below `num_classes`, whose merge has the least loss.

    Of equal losses, the pair with the lowest unit id in it is taken, then the one with the lowest
    id in its other class.
    """
    least = np.iinfo(np.int64).max  # above all losses
    best_i = best_j = 0
    for a in range(num_classes - 1):
        # The first loop finds the least loss, which is fast; the second its pair, and decides ties.
        least_of_row = least  # of the pairs a, b and of all pairs before
        for b in range(a + 1, num_classes):
            least_of_row = min(least_of_row, losses[a, b])
        for b in range(a + 1, num_classes):
            if losses[a, b] != least_of_row:
                continue
            ids = _sorted_pair(lowest_id[a], lowest_id[b])
            best_ids = _sorted_pair(lowest_id[best_i], lowest_id[best_j])
            if least_of_row < least or ids < best_ids:
                least = least_of_row
                best_i = a
                best_j = b
    return best_i, best_j


@njit
def _sorted_pair(x: int, y: int) -> tuple[int, int]:
    return min(x, y), max(x, y)
