# SPDX-License-Identifier: Apache-2.0
"""Numba kernels of CTC on CPU: prefix beam search, and the best alignment of a label sequence.

They use one thread: the encoder takes a hundred times as long. Sums are float64. Importing this
module imports numba (0.3 s): import it only where a kernel is called.

Dimension key: B blocks of frames, T encoder frames, K best units of a frame, N beam, M nodes of the
trie, V units, L units of a prefix or labels of a sequence, C classes (0 is blank), S = 2L + 1
states of an alignment.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from wenet_hs.tree.compiled import njit

_IMPOSSIBLE = -math.inf
"""The logarithm of a sum over no alignment, and the score of a state that no path reaches."""

# np.int64 instead of literals: Numba would compile a function anew for each literal argument.
_ZERO = np.int64(0)
_MISSING = np.int64(-1)
"""No node, no index in the beam, or no position in a frame."""


# ---- prefix beam search

_ROOT = np.int64(0)
"""The node of the empty prefix. It is its own parent."""
_NO_UNIT = np.int64(-1)
"""Instead of a new unit, for a prefix that stays as it is."""
_MAX_UNIT = np.int64(2**31 - 1)
_SOURCE_SHIFT = np.int64(32)
_LOWER_HALF = np.int64(2**32 - 1)

_PARENT, _UNIT, _CHILD, _SIBLING, _INDEX = range(5)
"""Columns of the trie: parent, last unit, newest child, next older child of the same parent, index
in the beam. Each of them except the first two can be _MISSING.
"""
_BLANK, _LABEL, _TOTAL = range(3)
"""Columns of `sums`, the logs of sums over alignments of a prefix: of those that end in blank, of
those that end in the last unit of the prefix, and of both.
"""
_BEAM_SIZE, NUM_NODES, _CURRENT = range(3)
"""Columns of `PrefixState.sizes_3`."""


class PrefixState(NamedTuple):
    """A prefix search between two frames; its arrays are changed in place.

    Prefixes are nodes of a trie. A prefix that leaves the beam and comes back has the same node, so
    two ways to one prefix always meet.
    """

    trie_M5: Any
    """One row per node, with the columns _PARENT to _INDEX. The unit of the root is blank, which
    extends nothing.
    """
    nodes_2N: Any
    """The node of each prefix, best first, of two beams: the current one, and one to fill."""
    sums_2N3: Any
    """Columns _BLANK to _TOTAL of each prefix, of the same two beams."""
    sizes_3: Any
    """Number of prefixes in the beam, number of nodes, and which of the two beams is current."""


# Kernels pass each other plain tuples:
#   beam        (nodes_N, sums_N3): one of the two beams of a PrefixState
#   frame       (log_probs_K, ids_K, slots_V, blank_log_prob): the best units of a frame, best first;
#               the position of each unit among the K, _MISSING for blank and for all other units;
#               the log-probability of blank, _IMPOSSIBLE if it is not among the K
#   candidates  (scores_N, ranks_N): the best candidates for the next beam so far, by falling score,
#               then by rising rank (`_rank`)
# A class instead would be named in Numba's cache, which could not be read after a renaming.


@njit
def start_prefixes(blank: Any, beam_size: Any, capacity: Any) -> Any:
    """The fields of the PrefixState before the first frame: the empty prefix.

    The trie has room for `capacity` nodes.
    """
    trie_M5 = np.empty((capacity, 5), np.int32)
    _add_node(trie_M5, _ROOT, _ROOT, blank, _MISSING)
    trie_M5[_ROOT, _INDEX] = 0
    nodes_2N = np.zeros((2, beam_size), np.int64)
    # Before the first frame there is one alignment, with probability 1; it ends in no unit.
    sums_2N3 = np.zeros((2, beam_size, 3))
    sums_2N3[0, 0, _LABEL] = _IMPOSSIBLE
    return trie_M5, nodes_2N, sums_2N3, np.array([1, 1, 0])


@njit
def advance_prefixes(
    values_TK: Any,
    ids_TK: Any,
    blank: Any,
    slots_V: Any,
    trie_M5: Any,
    nodes_2N: Any,
    sums_2N3: Any,
    sizes_3: Any,
) -> None:
    """Extend the beam of a PrefixState by frames; its arrays are changed in place.

    Args:
        values_TK, ids_TK: log-probabilities and units of each frame, best first; contiguous.
        slots_V: work space with an entry for blank and for each unit up to the highest one of
            `ids_TK`; all _MISSING before and after.
        trie_M5, nodes_2N, sums_2N3, sizes_3: the fields of the PrefixState; the trie has room for
            `beam_size` more nodes per frame.
    """
    beam_size = nodes_2N.shape[1]
    num_best = ids_TK.shape[1]
    candidates = (np.empty(beam_size), np.empty(beam_size, np.int64))
    repeated_N = np.empty(beam_size)
    is_merged_NK = np.empty((beam_size, num_best), np.bool_)
    size, num_nodes, current = sizes_3
    for t in range(len(ids_TK)):
        other = 1 - current  # of the two beams
        beam = (nodes_2N[current], sums_2N3[current])
        next_beam = (nodes_2N[other], sums_2N3[other])
        blank_log_prob = _IMPOSSIBLE
        for slot in range(num_best):
            if ids_TK[t, slot] == blank:
                blank_log_prob = values_TK[t, slot]
            else:
                slots_V[ids_TK[t, slot]] = slot
        frame = (values_TK[t], ids_TK[t], slots_V, blank_log_prob)
        # `count` candidates for the next beam: the prefixes as they are, then one unit longer.
        count = _score_unchanged(frame, beam, size, trie_M5, candidates, repeated_N, is_merged_NK)
        count = _score_extended(frame, beam, size, trie_M5, candidates, count, is_merged_NK)
        # The nodes of this beam leave it; `_select` marks those of the next one.
        for index in range(size):
            trie_M5[nodes_2N[current, index], _INDEX] = _MISSING
        num_nodes = _select(
            beam,
            next_beam,
            candidates,
            count,
            repeated_N,
            blank_log_prob,
            trie_M5,
            num_nodes,
        )
        size = count  # every candidate is a prefix of the next beam
        current = other
        for slot in range(num_best):
            slots_V[ids_TK[t, slot]] = _MISSING
    sizes_3[_BEAM_SIZE] = size
    sizes_3[NUM_NODES] = num_nodes
    sizes_3[_CURRENT] = current


@njit
def _score_unchanged(
    frame: Any,
    beam: Any,
    size: Any,
    trie_M5: Any,
    candidates: Any,
    repeated_N: Any,
    is_merged_NK: Any,
) -> Any:
    """Score the prefixes of the beam that stay as they are, and return the number of candidates.

    A prefix stays by blank, by repeating its last unit, or by extending its parent if that is in
    the beam too. Each of the `size` prefixes becomes a candidate. Two arrays are filled.

    Args:
        frame: log-probabilities and units, best first; the position of each unit, _MISSING for
            blank and for units that are not there; the log-probability of blank.
        beam: node and sums of each prefix.
        repeated_N: gets per prefix the log of the sum over its alignments that now end in its last
            unit.
        is_merged_NK: gets True where the prefix n with the unit k is another prefix of the beam;
            `_score_extended` leaves this extension out, because it is counted here.
    """
    log_probs_K, _, slots_V, blank_log_prob = frame
    nodes_N, sums_N3 = beam
    is_merged_NK[:size] = False
    count = _ZERO
    for index in range(size):
        node = nodes_N[index]
        unit = trie_M5[node, _UNIT]
        slot = slots_V[unit]
        repeated = _IMPOSSIBLE
        if slot >= 0:
            log_prob = log_probs_K[slot]
            repeated = sums_N3[index, _LABEL] + log_prob
            parent = trie_M5[node, _PARENT]
            parent_index = trie_M5[parent, _INDEX]
            if parent_index >= 0:
                # The same unit is a new one only after a blank; without it, the old one continues.
                column = _BLANK if trie_M5[parent, _UNIT] == unit else _TOTAL
                repeated = _log_add(repeated, log_prob + sums_N3[parent_index, column])
                is_merged_NK[parent_index, slot] = True
        repeated_N[index] = repeated
        score = _log_add(sums_N3[index, _TOTAL] + blank_log_prob, repeated)
        count = _insert(candidates, count, score, index, _NO_UNIT)
    return count


@njit
def _score_extended(
    frame: Any,
    beam: Any,
    size: Any,
    trie_M5: Any,
    candidates: Any,
    count: Any,
    is_merged_NK: Any,
) -> Any:
    """Score the prefixes that are one unit longer than one of the `size` prefixes of the beam.

    Extensions that `is_merged_NK` marks are left out. `count` is the number of candidates so far.
    Returns the new number. `frame` and `beam` are those of `_score_unchanged`.
    """
    log_probs_K, ids_K, slots_V, _ = frame
    nodes_N, sums_N3 = beam
    scores_N, _ = candidates
    for index in range(size):
        last_unit = trie_M5[nodes_N[index], _UNIT]
        total = sums_N3[index, _TOTAL]
        for slot in range(len(ids_K)):
            log_prob = log_probs_K[slot]
            if count == len(scores_N) and log_prob + total < scores_N[count - 1]:
                break  # the units of the frame are sorted: no later one is better
            unit = ids_K[slot]
            is_blank = slots_V[unit] < 0
            if is_blank or is_merged_NK[index, slot]:
                continue
            # The same unit again is a new one only after a blank.
            column = _BLANK if unit == last_unit else _TOTAL
            score = log_prob + sums_N3[index, column]
            count = _insert(candidates, count, score, index, unit)
    return count


@njit
def _select(
    beam: Any,
    next_beam: Any,
    candidates: Any,
    count: Any,
    repeated_N: Any,
    blank_log_prob: Any,
    trie_M5: Any,
    num_nodes: Any,
) -> Any:
    """Fill the next beam with the `count` candidates. Returns the number of nodes of the trie.

    A prefix that has no node yet gets one. Column _INDEX is set for all prefixes of the next beam.
    Beams are the node and the sums of each prefix; `repeated_N` is from `_score_unchanged`.
    """
    nodes_N, sums_N3 = beam
    next_nodes_N, next_sums_N3 = next_beam
    scores_N, ranks_N = candidates
    for index in range(count):
        rank = ranks_N[index]
        source = _source_of(rank)
        unit = _unit_of(rank)
        node = nodes_N[source]
        if unit == _NO_UNIT:
            next_sums_N3[index, _BLANK] = sums_N3[source, _TOTAL] + blank_log_prob
            next_sums_N3[index, _LABEL] = repeated_N[source]
        else:
            parent = node
            node = np.int64(trie_M5[parent, _CHILD])
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
def _add_node(trie_M5: Any, node: Any, parent: Any, unit: Any, sibling: Any) -> None:
    """Fill the row of a new node, which has no child and is not in the beam.

    `sibling`: the child of the parent that was added before it, or _MISSING.
    """
    trie_M5[node, _PARENT] = parent
    trie_M5[node, _UNIT] = unit
    trie_M5[node, _CHILD] = _MISSING
    trie_M5[node, _SIBLING] = sibling
    trie_M5[node, _INDEX] = _MISSING


@njit
def _insert(candidates: Any, count: Any, score: Any, source: Any, unit: Any) -> Any:
    """Insert a candidate at its place among the `count` sorted ones, and return the new number.

    If all N places are taken, the last one is dropped, which may be the candidate itself. A
    candidate whose score is _IMPOSSIBLE is dropped too.

    Args:
        candidates: scores and ranks, by falling score, then by rising rank.
        source: index of the prefix in the beam from which the candidate comes.
        unit: the unit that extends this prefix, or _NO_UNIT.
    """
    scores_N, ranks_N = candidates
    if not score > _IMPOSSIBLE:  # also NaN
        return count
    rank = _rank(source, unit)
    index = count
    if count == len(scores_N):
        index -= 1
        if not _is_better(score, rank, scores_N[index], ranks_N[index]):
            return count
    while index > 0 and _is_better(score, rank, scores_N[index - 1], ranks_N[index - 1]):
        scores_N[index] = scores_N[index - 1]
        ranks_N[index] = ranks_N[index - 1]
        index -= 1
    scores_N[index] = score
    ranks_N[index] = rank
    return min(count + 1, len(scores_N))


@njit
def _is_better(score: Any, rank: Any, other_score: Any, other_rank: Any) -> Any:
    """Whether a candidate comes before another: by its higher score, or its lower rank."""
    return score > other_score or (score == other_score and rank < other_rank)


@njit
def _rank(source: Any, unit: Any) -> Any:
    """A candidate as one number, by which those of equal score are sorted; the lowest is first.

    The upper 32 bits are the index of the source in the beam: the better prefix first. The lower 32
    bits are _MAX_UNIT - unit: of one source the higher unit first, and _NO_UNIT (-1) last.
    """
    return (np.int64(source) << _SOURCE_SHIFT) | (_MAX_UNIT - np.int64(unit))


@njit
def _source_of(rank: Any) -> Any:
    """The index in the beam of a candidate's source, from its rank."""
    return rank >> _SOURCE_SHIFT


@njit
def _unit_of(rank: Any) -> Any:
    """The new unit of a candidate, or _NO_UNIT, from its rank."""
    return _MAX_UNIT - (rank & _LOWER_HALF)


@njit
def _log_add(a: Any, b: Any) -> Any:
    """log(exp a + exp b)."""
    if a < b:
        a, b = b, a
    return a if b == _IMPOSSIBLE else a + math.log1p(math.exp(b - a))


@njit
def read_prefixes(trie_M5: Any, nodes_2N: Any, sums_2N3: Any, sizes_3: Any) -> Any:
    """The prefixes of the beam of a PrefixState, best first, as three arrays.

    Returns: (N,) the log of the sum over the alignments of each; (N,) its number of units; (N, L)
        its units, with any values after its last unit.
    """
    size, _, current = sizes_3
    lengths_N = np.zeros(size, np.int32)
    longest = _ZERO
    for index in range(size):
        node = nodes_2N[current, index]
        while node > _ROOT:
            lengths_N[index] += 1
            node = trie_M5[node, _PARENT]
        longest = max(longest, np.int64(lengths_N[index]))
    units_NL = np.empty((size, longest), np.int32)
    for index in range(size):
        node = nodes_2N[current, index]
        for position in range(lengths_N[index] - 1, -1, -1):
            units_NL[index, position] = trie_M5[node, _UNIT]
            node = trie_M5[node, _PARENT]
    return sums_2N3[current, :size, _TOTAL].copy(), lengths_N, units_NL


# ---- alignment


@njit
def best_alignment(log_probs_TC: Any, classes_L: Any, block: Any) -> Any:
    """The best alignment of a label sequence to the frames of an utterance.

    A path goes through the states blank, label 0, blank, label 1, …, blank. So a state with an odd
    number is label `state // 2`, and one with an even number is blank. In each frame a path stays
    in its state, goes to the next one, or skips a blank between two different labels.

    The result is exact, with memory for the scores of only one of `block` frames: the scores before
    each block of frames are kept, and the steps within a block are computed again when the path is
    traced back. A path moves at most two states per frame. So in a block only the 2 · `block`
    states before the state at its end are needed.

    Args:
        log_probs_TC: natural logarithms, float32, contiguous.
        classes_L: int64; class 0 is blank.
        block: number of frames.
    Returns: spans (L, 2), the first frame of each label and the frame after its last; (L,) the sum
        of its log-probabilities in these frames; the log-probability of the whole alignment. If
        this is -inf or NaN, there is no alignment, and the arrays are zeros.
    """
    spans_L2 = np.zeros((len(classes_L), 2), np.int32)
    sums_L = np.zeros(len(classes_L))
    num_frames = len(log_probs_TC)
    num_states = 2 * len(classes_L) + 1
    num_blocks = (num_frames + block - 1) // block

    # Forward: the best score of each state after all frames, and before each block.
    scores_S = np.full(num_states, _IMPOSSIBLE)
    # Before the first frame a path is in blank; from there it can stay, or go to the first label.
    scores_S[0] = 0.0
    scores_before_BS = np.empty((num_blocks, num_states))
    no_steps = np.empty((0, 0), np.uint8)
    for number in range(num_blocks):
        scores_before_BS[number] = scores_S
        begin_frame = number * block
        window = (begin_frame, min(begin_frame + block, num_frames), _ZERO, num_states)
        _update_scores(log_probs_TC, classes_L, scores_S, window, no_steps, keeps_steps=False)

    # A path ends in the last blank or, if there is a label, in the last label.
    state = num_states - 1
    if state > 0 and not scores_S[state] >= scores_S[state - 1]:  # ties: the blank
        state -= 1
    total = scores_S[state]
    if not total > _IMPOSSIBLE:  # -inf or NaN
        return spans_L2, sums_L, total

    # Backward: from the last frame to the first, with the steps of one block at a time.
    for number in range(num_blocks - 1, -1, -1):
        begin_frame = number * block
        end_frame = min(begin_frame + block, num_frames)
        begin_state = max(0, state - 2 * (end_frame - begin_frame))
        window = (begin_frame, end_frame, begin_state, state + 1)
        steps_KW = np.empty((end_frame - begin_frame, state + 1 - begin_state), np.uint8)
        _update_scores(
            log_probs_TC, classes_L, scores_before_BS[number], window, steps_KW, keeps_steps=True
        )
        for t in range(end_frame - 1, begin_frame - 1, -1):
            is_label = state % 2 == 1
            if is_label:
                label = state // 2
                spans_L2[label, 1] = max(spans_L2[label, 1], t + 1)
                spans_L2[label, 0] = t
                sums_L[label] += log_probs_TC[t, classes_L[label]]
            state -= steps_KW[t - begin_frame, state - begin_state]
    return spans_L2, sums_L, total


@njit
def _update_scores(
    log_probs_TC: Any,
    classes_L: Any,
    scores_S: Any,
    window: Any,
    steps_KW: Any,
    keeps_steps: Any,
) -> None:
    """Update the scores before the first frame of a window to those after its last one.

    The score of a state is that of the best path to it. Of equally good ways to a state, staying in
    it comes first, then the step from the previous state, then the skip from the state before that.

    Args:
        scores_S: the scores of all states; changed in place.
        window: first frame, frame after the last, first state, state after the last. Scores of
            other states are not updated.
        steps_KW: gets, if `keeps_steps`, per frame and state of the window by how many states the
            best path to it moved: 0, 1 or 2.
    """
    begin_frame, end_frame, begin_state, end_state = window
    num_frames = len(log_probs_TC)
    num_states = 2 * len(classes_L) + 1
    for t in range(begin_frame, end_frame):
        # Only states from which a path can still reach one of the last two states, and which it can
        # have reached: states 0 and 1 in frame 0. It moves at most two states per frame.
        first = max(begin_state, num_states - 2 * (num_frames - t))
        end = min(end_state, 2 * t + 2)
        # In place, so from the last state down: a state reads the scores of states before it.
        for state in range(end - 1, first - 1, -1):
            label = state // 2
            is_label = state % 2 == 1
            score = scores_S[state]
            step = 0
            if state >= 1 and scores_S[state - 1] > score:
                score = scores_S[state - 1]
                step = 1
            can_skip = is_label and label >= 1 and classes_L[label] != classes_L[label - 1]
            if can_skip and scores_S[state - 2] > score:
                score = scores_S[state - 2]
                step = 2
            class_of_state = classes_L[label] if is_label else 0  # 0: blank
            scores_S[state] = score + log_probs_TC[t, class_of_state]
            if keeps_steps:
                steps_KW[t - begin_frame, state - begin_state] = step
