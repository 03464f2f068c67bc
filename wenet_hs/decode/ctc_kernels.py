# SPDX-License-Identifier: Apache-2.0
"""Numba kernels of CTC on CPU: prefix beam search, and the best alignment of a label sequence.

They use one thread: the encoder takes a hundred times as long. Sums are float64. Importing this
module imports numba (0.3 s): import it only where a kernel is called.

Prefixes are nodes of a trie. A prefix that leaves the beam and comes back has the same node, so two
ways to one prefix always meet. Candidates for the next beam are ordered by score, and for equal
scores by rank: the better prefix first, of the same prefix the higher unit first, and the unchanged
prefix last.

Dimension key: B utterances, T encoder frames, K best units of a frame, N beam, M nodes of the trie,
V units; L labels, C classes (0 is blank), S = 2L + 1 states of an alignment: blank, label, blank,
….
"""

import math
from typing import Any

import numpy as np

from wenet_hs.tree.compiled import njit

_IMPOSSIBLE = -math.inf
_PARENT, _UNIT, _CHILD, _SIBLING, _INDEX = range(5)
"""Columns of the trie: parent, last unit, newest child, next older child of the same parent, index
in the beam. Missing values are -1. The root is node 0, its own parent, and its unit is blank, which
extends nothing.
"""
_BLANK, _LABEL, _TOTAL = range(3)
"""Columns of a beam: log of the sum over the alignments that end in blank, in the prefix's last
unit, in either.
"""
# Not literals: numba would compile a function anew for each of them.
_NONE, _ZERO, _ONE = np.int64(-1), np.int64(0), np.int64(1)
_HALF = np.int64(32)
_LOW = np.int64(2**32 - 1)
_TOP = np.int64(
    2**31 - 1
)  # the lower half of a rank is this minus the unit: -1 (no unit) comes last


# ---- prefix search


@njit
def _log_add(a: Any, b: Any) -> Any:
    """log(exp a + exp b)."""
    if a < b:
        a, b = b, a
    return a if b == _IMPOSSIBLE else a + math.log1p(math.exp(b - a))


@njit
def _better(score: Any, rank: Any, other_score: Any, other_rank: Any) -> Any:
    return score > other_score or (score == other_score and rank < other_rank)


@njit
def _insert(best: Any, count: Any, score: Any, source: Any, unit: Any) -> Any:
    """Insert a candidate into the sorted best candidates, if it is one of them.

    Returns their number.
    """
    scores_N, ranks_N = best
    if not score > _IMPOSSIBLE:
        return count
    rank = (np.int64(source) << _HALF) | (_TOP - np.int64(unit))
    index = count
    if count == len(scores_N):
        index -= 1
        if not _better(score, rank, scores_N[index], ranks_N[index]):
            return count
    while index > 0 and _better(score, rank, scores_N[index - 1], ranks_N[index - 1]):
        scores_N[index], ranks_N[index] = scores_N[index - 1], ranks_N[index - 1]
        index -= 1
    scores_N[index], ranks_N[index] = score, rank
    return min(count + 1, len(scores_N))


@njit
def _add_node(trie_M5: Any, node: Any, parent: Any, unit: Any, sibling: Any) -> None:
    trie_M5[node, _PARENT], trie_M5[node, _UNIT] = parent, unit
    trie_M5[node, _CHILD], trie_M5[node, _SIBLING], trie_M5[node, _INDEX] = -1, sibling, -1


@njit
def _score_unchanged(
    frame: Any, beam: Any, size: Any, trie_M5: Any, best: Any, repeated_N: Any, taken_NK: Any
) -> Any:
    """Score the prefixes that are in the beam: by blank, by repeating the last unit, or extended
    from their parent.

    Fills `repeated_N`, the sum over the alignments that end in the last unit per prefix, and
    `taken_NK`, which units of the frame lead from one prefix of the beam to another. Returns the
    number of candidates.
    """
    log_probs_K, _, slots_V, blank_log_prob = frame
    nodes_N, sums_N3 = beam
    taken_NK[:size] = False
    count = _ZERO
    for index in range(size):
        node = nodes_N[index]
        unit = trie_M5[node, _UNIT]
        slot = slots_V[unit]
        repeated = _IMPOSSIBLE
        if slot >= 0:
            repeated = sums_N3[index, _LABEL] + log_probs_K[slot]
            parent = trie_M5[node, _PARENT]
            source = trie_M5[parent, _INDEX]
            if source >= 0:
                # The same unit is a new one only after a blank; without it, the old one continues.
                before = sums_N3[source, _BLANK if trie_M5[parent, _UNIT] == unit else _TOTAL]
                repeated = _log_add(repeated, log_probs_K[slot] + before)
                taken_NK[source, slot] = True
        repeated_N[index] = repeated
        score = _log_add(sums_N3[index, _TOTAL] + blank_log_prob, repeated)
        count = _insert(best, count, score, index, _NONE)
    return count


@njit
def _score_extended(
    frame: Any, beam: Any, size: Any, trie_M5: Any, best: Any, count: Any, taken_NK: Any
) -> Any:
    """Score the prefixes that are one unit longer than a prefix of the beam.

    Returns the number of candidates.
    """
    log_probs_K, ids_K, slots_V, _ = frame
    nodes_N, sums_N3 = beam
    scores_N, _ = best
    for index in range(size):
        last, total = trie_M5[nodes_N[index], _UNIT], sums_N3[index, _TOTAL]
        for slot in range(len(ids_K)):
            if count == len(scores_N) and log_probs_K[slot] + total < scores_N[count - 1]:
                break  # the units of the frame are sorted: no later one is better
            unit = ids_K[slot]
            if slots_V[unit] < 0 or taken_NK[index, slot]:
                continue
            score = log_probs_K[slot] + sums_N3[index, _BLANK if unit == last else _TOTAL]
            count = _insert(best, count, score, index, unit)
    return count


@njit
def _select(
    beam: Any,
    next_beam: Any,
    best: Any,
    count: Any,
    repeated_N: Any,
    blank_log_prob: Any,
    trie_M5: Any,
    num_nodes: Any,
) -> Any:
    """Fill the next beam with the best candidates. Returns the number of nodes of the trie."""
    nodes_N, sums_N3 = beam
    next_nodes_N, next_sums_N3 = next_beam
    scores_N, ranks_N = best
    for index in range(count):
        source = ranks_N[index] >> _HALF
        unit = _TOP - (ranks_N[index] & _LOW)
        node = nodes_N[source]
        if unit < 0:
            next_sums_N3[index, _BLANK] = sums_N3[source, _TOTAL] + blank_log_prob
            next_sums_N3[index, _LABEL] = repeated_N[source]
        else:
            parent, node = node, np.int64(trie_M5[node, _CHILD])
            while node >= 0 and trie_M5[node, _UNIT] != unit:
                node = np.int64(trie_M5[node, _SIBLING])
            if node < 0:
                node = num_nodes
                num_nodes += 1
                _add_node(trie_M5, node, parent, unit, np.int64(trie_M5[parent, _CHILD]))
                trie_M5[parent, _CHILD] = node
            next_sums_N3[index, _BLANK] = _IMPOSSIBLE
            next_sums_N3[index, _LABEL] = scores_N[index]
        next_sums_N3[index, _TOTAL] = scores_N[index]
        next_nodes_N[index] = node
        trie_M5[node, _INDEX] = index
    return num_nodes


@njit
def start_prefixes(blank: Any, beam_size: Any, capacity: Any) -> Any:
    """The state of a search before its first frame: trie of `capacity` nodes, beam and next beam,
    their sizes.

    The sizes are those of the beam and the trie, and which of the two beams is the current one.
    """
    trie_M5 = np.empty((capacity, 5), np.int32)
    _add_node(trie_M5, _ZERO, _ZERO, blank, _NONE)
    trie_M5[0, _INDEX] = 0
    sums_2N3 = np.zeros((2, beam_size, 3))
    sums_2N3[0, 0, _LABEL] = _IMPOSSIBLE
    return trie_M5, np.zeros((2, beam_size), np.int64), sums_2N3, np.array([1, 1, 0])


@njit
def advance_prefixes(values_TK: Any, ids_TK: Any, blank: Any, slots_V: Any, state: Any) -> None:
    """Extend the beam by frames; contiguous arrays, the values of a frame sorted, best first.

    The trie has room for `beam_size` more nodes per frame. `slots_V`, the position of each unit in
    a frame, is all -1 before and after.
    """
    trie_M5, nodes_2N, sums_2N3, sizes_3 = state
    beam_size, num_best = nodes_2N.shape[1], ids_TK.shape[1]
    best = (np.empty(beam_size), np.empty(beam_size, np.int64))
    repeated_N, taken_NK = np.empty(beam_size), np.empty((beam_size, num_best), np.bool_)
    size, num_nodes, current = sizes_3
    for t in range(len(ids_TK)):
        beam, next_beam = (
            (nodes_2N[current], sums_2N3[current]),
            (nodes_2N[1 - current], sums_2N3[1 - current]),
        )
        blank_log_prob = _IMPOSSIBLE
        for slot in range(num_best):
            if ids_TK[t, slot] == blank:
                blank_log_prob = values_TK[t, slot]
            else:
                slots_V[ids_TK[t, slot]] = slot
        frame = (values_TK[t], ids_TK[t], slots_V, blank_log_prob)
        count = _score_unchanged(frame, beam, size, trie_M5, best, repeated_N, taken_NK)
        count = _score_extended(frame, beam, size, trie_M5, best, count, taken_NK)
        for index in range(size):
            trie_M5[beam[0][index], _INDEX] = -1
        num_nodes = _select(
            beam, next_beam, best, count, repeated_N, blank_log_prob, trie_M5, num_nodes
        )
        size, current = count, 1 - current
        for slot in range(num_best):
            slots_V[ids_TK[t, slot]] = -1
    sizes_3[0], sizes_3[1], sizes_3[2] = size, num_nodes, current


@njit
def read_prefixes(state: Any) -> Any:
    """Of each prefix, best first: the log of the sum over its alignments, the number of units, the
    units (N, L).
    """
    trie_M5, nodes_2N, sums_2N3, sizes_3 = state
    size, _, current = sizes_3
    sizes_N, longest = np.zeros(size, np.int32), _ZERO
    for index in range(size):
        above = nodes_2N[current, index]
        while above > 0:
            sizes_N[index] += 1
            above = trie_M5[above, _PARENT]
        longest = max(longest, np.int64(sizes_N[index]))
    units_NL = np.empty((size, longest), np.int32)
    for index in range(size):
        node = nodes_2N[current, index]
        for position in range(sizes_N[index] - 1, -1, -1):
            units_NL[index, position] = trie_M5[node, _UNIT]
            node = trie_M5[node, _PARENT]
    return sums_2N3[current, :size, _TOTAL].copy(), sizes_N, units_NL


# ---- alignment


@njit
def _advance(
    log_probs_TC: Any,
    classes_L: Any,
    scores_S: Any,
    frames: Any,
    states: Any,
    steps_KW: Any,
    keeps_steps: Any,
) -> None:
    """Update the best score of each state from before frame `frames[0]` to after frame `frames[1] -
    1`.

    Only states from `states[0]` to `states[1] - 1` are updated. Of equally good ways to a state,
    staying in it comes first, then the step from the previous state, then the skip. `steps_KW` gets
    the way to each state, if wanted.
    """
    num_frames, num_states = len(log_probs_TC), 2 * len(classes_L) + 1
    for t in range(frames[0], frames[1]):
        # Only states that can be reached by now and can still reach the end; in place, so from the
        # last state down.
        first = max(states[0], num_states - 2 * (num_frames - t))
        last = min(states[1], 2 * t + 2)
        for state in range(last - 1, first - 1, -1):
            label = state >> 1
            score, step = scores_S[state], 0
            if state >= 1 and scores_S[state - 1] > score:
                score, step = scores_S[state - 1], 1
            is_label = state & 1 == 1
            skips = is_label and label >= 1 and classes_L[label] != classes_L[label - 1]
            if skips and scores_S[state - 2] > score:
                score, step = scores_S[state - 2], 2
            scores_S[state] = score + log_probs_TC[t, classes_L[label] if is_label else 0]
            if keeps_steps:
                steps_KW[t - frames[0], state - states[0]] = step


@njit
def best_alignment(log_probs_TC: Any, classes_L: Any, block: Any) -> Any:
    """The best alignment of a label sequence to the frames of an utterance; contiguous arrays,
    float32 and int64.

    It is exact, with the memory of T · S / block scores: the scores before each block of `block`
    frames are kept, and the steps within a block are computed again when the path is traced back. A
    path moves at most two states per frame, so of a block only 2 · block states before the one at
    its end are needed.

    Returns: spans (L, 2), first frame of each label and the frame after its last; (L,) the sum of
        its log-probabilities there; the log-probability of the whole alignment. If that is -inf
        there is no alignment.
    """
    spans_L2, sums_L = np.zeros((len(classes_L), 2), np.int32), np.zeros(len(classes_L))
    num_frames, num_states = len(log_probs_TC), 2 * len(classes_L) + 1
    scores_S = np.full(num_states, _IMPOSSIBLE)
    scores_S[0] = 0.0  # before the first frame; blank and the first label are at most one step away
    num_blocks = (num_frames + block - 1) // block
    kept_BS = np.empty((num_blocks, num_states))
    no_steps = np.empty((0, 0), np.uint8)
    for number in range(num_blocks):
        kept_BS[number] = scores_S
        frames = (number * block, min((number + 1) * block, num_frames))
        _advance(log_probs_TC, classes_L, scores_S, frames, (0, num_states), no_steps, False)
    state = num_states - 1
    if state and not scores_S[state] >= scores_S[state - 1]:
        state -= 1
    total = scores_S[state]
    if not total > _IMPOSSIBLE:
        return spans_L2, sums_L, total
    for number in range(num_blocks - 1, -1, -1):
        frames = (number * block, min((number + 1) * block, num_frames))
        states = (max(0, state - 2 * (frames[1] - frames[0])), state + 1)
        steps_KW = np.empty((frames[1] - frames[0], states[1] - states[0]), np.uint8)
        _advance(log_probs_TC, classes_L, kept_BS[number], frames, states, steps_KW, True)
        for t in range(frames[1] - 1, frames[0] - 1, -1):
            if state & 1:
                label = state >> 1
                spans_L2[label, 1] = max(spans_L2[label, 1], t + 1)
                spans_L2[label, 0] = t
                sums_L[label] += log_probs_TC[t, classes_L[label]]
            state -= steps_KW[t - frames[0], state - states[0]]
    return spans_L2, sums_L, total
