# SPDX-License-Identifier: Apache-2.0
"""Numba kernels of CTC on CPU: prefix beam search, and the best alignment of a label sequence.

They use one thread: the encoder takes a hundred times as long. Sums are float64. Importing this module imports numba
(0.3 s): import it only where a kernel is called.

Dimension key: B utterances, T encoder frames, K best units of a frame, N beam, V units; L labels, C classes (0 is
blank), S = 2L + 1 states of an alignment: blank, label, blank, ….
"""

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_IMPOSSIBLE = -math.inf
_BLANK, _LABEL, _TOTAL = range(3)
"""Columns of the sums of a beam: log of the sum over the alignments that end in blank, in the last unit, in either."""


def prefix_search(
    values_BTK: NDArray[np.float64],
    ids_BTK: NDArray[np.int64],
    lengths_B: NDArray[np.int64],
    *,
    blank: int,
    beam_size: int,
) -> list[list[tuple[tuple[int, ...], float]]]:
    """The search of `ctc.prefix_beam_search`; contiguous arrays, the values of a frame sorted, best first.

    Returns: per utterance the units of each prefix and the log of the sum over its alignments, best first.
    """
    num_units = 1 + max(blank, int(ids_BTK.max(initial=0)))
    beams = []
    for values_TK, ids_TK, length in zip(values_BTK, ids_BTK, lengths_B.tolist(), strict=True):
        units_NT, sizes_N, scores_N = _search_one(values_TK[:length], ids_TK[:length], blank, num_units, beam_size)
        beam = zip(units_NT, sizes_N.tolist(), scores_N.tolist(), strict=True)
        beams.append([(tuple(units_T[:size].tolist()), score) for units_T, size, score in beam])
    return beams


# ---- prefix search


@njit(cache=True)
def _search_one(values_TK: Any, ids_TK: Any, blank: Any, num_units: Any, beam_size: Any) -> Any:
    """The beam search of one utterance. Returns units (N, T), numbers of units (N,) and scores (N,), best first."""
    num_frames, num_best = ids_TK.shape
    # Of each prefix its units, their number and its sums. Only the first `size` rows are in use.
    beam = (np.empty((beam_size, num_frames), np.int32), np.zeros(beam_size, np.int64), np.zeros((beam_size, 3)))
    next_beam = (np.empty((beam_size, num_frames), np.int32), np.zeros(beam_size, np.int64), np.zeros((beam_size, 3)))
    beam[2][0, _LABEL] = _IMPOSSIBLE
    best = (np.empty(beam_size + 1), np.empty(beam_size + 1, np.int64))
    repeated_N, is_known_NK = np.empty(beam_size), np.empty((beam_size, num_best), np.bool_)
    slots_V = np.full(num_units, -1)  # the position of each unit in the frame; -1 for blank
    size = 1
    for t in range(num_frames):
        blank_log_prob = _IMPOSSIBLE
        for slot in range(num_best):
            if ids_TK[t, slot] == blank:
                blank_log_prob = values_TK[t, slot]
            else:
                slots_V[ids_TK[t, slot]] = slot
        frame = (values_TK[t], ids_TK[t], slots_V, blank_log_prob)
        count = _score_unchanged(frame, beam, size, best, repeated_N, is_known_NK)
        count = _score_extended(frame, beam, size, best, count, is_known_NK)
        _select(beam, next_beam, best, count, repeated_N, blank_log_prob, num_units)
        beam, next_beam, size = next_beam, beam, count
        for slot in range(num_best):
            slots_V[ids_TK[t, slot]] = -1
    return beam[0][:size], beam[1][:size], beam[2][:size, _TOTAL]


@njit(cache=True)
def _log_add(a: Any, b: Any) -> Any:
    """log(exp a + exp b)."""
    if a < b:
        a, b = b, a
    return a if b == _IMPOSSIBLE else a + math.log1p(math.exp(b - a))


@njit(cache=True)
def _insert(best: Any, count: Any, score: Any, rank: Any) -> Any:
    """Insert a candidate into the sorted best ones. Returns their number. The last row of `best` may be overwritten.

    Of equal scores the lower rank is first. A rank is a number made of the place of the prefix in the beam and of its
    new unit: the better prefix first, of the same prefix the higher unit first, and the unchanged prefix last.
    """
    scores_N, ranks_N = best
    if not score > _IMPOSSIBLE:
        return count
    place = count
    while place > 0 and (score > scores_N[place - 1] or (score == scores_N[place - 1] and rank < ranks_N[place - 1])):
        scores_N[place], ranks_N[place] = scores_N[place - 1], ranks_N[place - 1]
        place -= 1
    scores_N[place], ranks_N[place] = score, rank
    return min(count + 1, len(scores_N) - 1)


@njit(cache=True)
def _find_parent(beam: Any, size: Any, place: Any) -> Any:
    """The place of the prefix that is one unit shorter than the one at `place`, or -1."""
    units_NT, sizes_N, _ = beam
    for parent in range(size):
        if sizes_N[parent] == sizes_N[place] - 1:
            index = sizes_N[parent] - 1
            while index >= 0 and units_NT[parent, index] == units_NT[place, index]:
                index -= 1
            if index < 0:
                return parent
    return -1


@njit(cache=True)
def _score_unchanged(frame: Any, beam: Any, size: Any, best: Any, repeated_N: Any, is_known_NK: Any) -> Any:
    """Score the prefixes that are in the beam: by blank, by repeating the last unit, or extended from their parent.

    Fills `repeated_N`, the sum over the alignments that end in the last unit per prefix, and `is_known_NK`, which units
    of the frame lead from one prefix of the beam to another. Returns the number of candidates.
    """
    log_probs_K, _, slots_V, blank_log_prob = frame
    units_NT, sizes_N, sums_N3 = beam
    is_known_NK[:size] = False
    count = 0
    for place in range(size):
        last = sizes_N[place] - 1
        slot = slots_V[units_NT[place, last]] if last >= 0 else -1
        repeated = _IMPOSSIBLE
        if slot >= 0:
            repeated = sums_N3[place, _LABEL] + log_probs_K[slot]
            parent = _find_parent(beam, size, place)
            if parent >= 0:
                # The same unit is a new one only after a blank; without it, the old one continues.
                is_repeat = last > 0 and units_NT[place, last] == units_NT[place, last - 1]
                before = sums_N3[parent, _BLANK if is_repeat else _TOTAL]
                repeated = _log_add(repeated, log_probs_K[slot] + before)
                is_known_NK[parent, slot] = True
        repeated_N[place] = repeated
        score = _log_add(sums_N3[place, _TOTAL] + blank_log_prob, repeated)
        count = _insert(best, count, score, (place + 1) * (len(slots_V) + 1) - 1)
    return count


@njit(cache=True)
def _score_extended(frame: Any, beam: Any, size: Any, best: Any, count: Any, is_known_NK: Any) -> Any:
    """Score the prefixes that are one unit longer than a prefix of the beam. Returns the number of candidates."""
    log_probs_K, ids_K, slots_V, _ = frame
    units_NT, sizes_N, sums_N3 = beam
    scores_N, _ = best
    for place in range(size):
        total = sums_N3[place, _TOTAL]
        last_unit = units_NT[place, sizes_N[place] - 1] if sizes_N[place] else -1
        for slot in range(len(ids_K)):
            if count == len(scores_N) - 1 and log_probs_K[slot] + total < scores_N[count - 1]:
                break  # the units of the frame are sorted: no later one is better
            unit = ids_K[slot]
            if slots_V[unit] >= 0 and not is_known_NK[place, slot]:
                score = log_probs_K[slot] + sums_N3[place, _BLANK if unit == last_unit else _TOTAL]
                count = _insert(best, count, score, (place + 1) * (len(slots_V) + 1) - 2 - unit)
    return count


@njit(cache=True)
def _select(
    beam: Any, next_beam: Any, best: Any, count: Any, repeated_N: Any, blank_log_prob: Any, num_units: Any
) -> None:
    """Fill the next beam with the best candidates."""
    units_NT, sizes_N, sums_N3 = beam
    next_units_NT, next_sizes_N, next_sums_N3 = next_beam
    scores_N, ranks_N = best
    for place in range(count):
        source = ranks_N[place] // (num_units + 1)
        unit = num_units - 1 - ranks_N[place] % (num_units + 1)  # -1: unchanged
        size = sizes_N[source]
        for index in range(size):
            next_units_NT[place, index] = units_NT[source, index]
        if unit < 0:
            next_sizes_N[place] = size
            next_sums_N3[place, _BLANK] = sums_N3[source, _TOTAL] + blank_log_prob
            next_sums_N3[place, _LABEL] = repeated_N[source]
        else:
            next_units_NT[place, size] = unit
            next_sizes_N[place] = size + 1
            next_sums_N3[place, _BLANK] = _IMPOSSIBLE
            next_sums_N3[place, _LABEL] = scores_N[place]
        next_sums_N3[place, _TOTAL] = scores_N[place]


# ---- alignment


@njit(cache=True)
def align(log_probs_TC: Any, classes_L: Any) -> Any:
    """The best alignment of a label sequence to the frames of an utterance; contiguous arrays, float32 and int64.

    Of equally good ways to a state, staying in it comes first, then the step from the previous state, then the skip.

    Returns: spans (L, 2), first frame of each label and the frame after its last; (L,) the sum of its log-probabilities
        there; the log-probability of the whole alignment. If that is -inf there is no alignment.
    """
    spans_L2, sums_L = np.zeros((len(classes_L), 2), np.int32), np.zeros(len(classes_L))
    num_frames, num_states = len(log_probs_TC), 2 * len(classes_L) + 1
    scores_S = np.full(num_states, _IMPOSSIBLE)
    scores_S[0] = 0.0  # before the first frame; blank and the first label are at most one step away
    steps_TS = np.empty((num_frames, num_states), np.uint8)
    for t in range(num_frames):
        # Only states that can be reached by now and can still reach the end; in place, so from the last state down.
        first, last = max(0, num_states - 2 * (num_frames - t)), min(num_states, 2 * t + 2)
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
            steps_TS[t, state] = step
    state = num_states - 1
    if state and not scores_S[state] >= scores_S[state - 1]:
        state -= 1
    total = scores_S[state]
    if not total > _IMPOSSIBLE:
        return spans_L2, sums_L, total
    for t in range(num_frames - 1, -1, -1):
        if state & 1:
            label = state >> 1
            spans_L2[label, 1] = max(spans_L2[label, 1], t + 1)
            spans_L2[label, 0] = t
            sums_L[label] += log_probs_TC[t, classes_L[label]]
        state -= steps_TS[t, state]
    return spans_L2, sums_L, total
