# SPDX-License-Identifier: Apache-2.0
"""Numba kernel of word2vec: stochastic gradient descent over some sentences, one word at a time.

It computes in float32, on one thread. Import it inside the function that runs the kernel, because
it imports numba.

Dimension key: N words of the sentences, S sentences, D width, V units, K output vectors (V-1 inner
nodes, or V units), C rows of the output vectors that a prediction uses (the nodes on the target's
path, or all K).
"""

import numpy as np

from wenet_hs.heads.kernels.numba_common import SUMS, exp_minus, log1p_unit
from wenet_hs.tree.compiled import njit

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_ROWS_ARE_PATH = -1
"""As a target: the rows are the path to the target in a tree, so its unit is not needed."""


@njit(fastmath=SUMS)
def train_job(words, starts, reaches, vectors_VD, weight_KD, up, rate, is_cbow):  # type: ignore[no-untyped-def]
    """Update the word vectors and the output vectors in place.

    Returns the nats of all predictions, and their number.

    Skip-gram predicts each word from the vector of every word around it. CBOW predicts it from
    their mean, and adds the gradient of the mean to each of them undivided, as word2vec and gensim
    do. A word with no other word around it is not predicted.

    Args:
        words: (N,) int32 unit ids.
        starts: (S+1,) int64: where each sentence begins, and N.
        reaches: (N,) int64: how many words before and after each word are used.
        vectors_VD, weight_KD: float32.
        up: (2V-1,) int32, `edges` of an HSoftmaxHead; empty: a softmax over all output vectors.
        rate: the learning rate, float32.
        is_cbow: CBOW; otherwise skip-gram.
    """
    is_tree = len(up) > 0
    num_outputs = len(weight_KD)
    dim = vectors_VD.shape[1]
    # Buffers. Of a softmax, `rows` are always all K.
    rows = np.arange(num_outputs)
    turns = np.empty(num_outputs, np.float32)
    scores = np.empty(num_outputs, np.float32)
    mean_D = np.empty(dim, np.float32)
    error_D = np.empty(dim, np.float32)
    nats = 0.0
    num_predictions = 0
    for sentence in range(len(starts) - 1):
        for centre in range(starts[sentence], starts[sentence + 1]):
            # The words from `first` to `end` - 1 are used, but not the one in the centre.
            first = max(starts[sentence], centre - reaches[centre])
            end = min(starts[sentence + 1], centre + reaches[centre] + 1)
            num_others = end - first - 1
            if num_others < 1:
                continue
            if is_tree:
                num_rows = _find_path(words[centre], up, rows, turns)
                target = _ROWS_ARE_PATH
            else:
                num_rows = num_outputs
                target = words[centre]
            # The parts of the buffers that the predictions of this word use.
            choices = rows[:num_rows], turns[:num_rows], scores[:num_rows]
            if is_cbow:
                for d in range(dim):
                    mean_D[d] = _ZERO
                for other in range(first, end):
                    if other != centre:
                        _add(vectors_VD[words[other]], mean_D)
                share = _ONE / np.float32(num_others)
                for d in range(dim):
                    mean_D[d] *= share
                nats += _predict(mean_D, weight_KD, choices, target, rate, error_D)
                num_predictions += 1
            for other in range(first, end):
                if other != centre:
                    vector_D = vectors_VD[words[other]]
                    if not is_cbow:
                        nats += _predict(vector_D, weight_KD, choices, target, rate, error_D)
                        num_predictions += 1
                    # Of CBOW, the error of the mean; of skip-gram, that of this vector.
                    _add(error_D, vector_D)
    return nats, num_predictions


@njit(fastmath=SUMS)
def _find_path(unit, up, rows, turns):  # type: ignore[no-untyped-def]
    """Write the inner nodes above a unit's leaf into `rows`, and how the path leaves each of them.

    They go from the leaf up to the root. In `turns`, +1 is the left child and -1 the right one.
    Returns the number of nodes.
    """
    num_inner = (len(up) - 1) // 2
    depth = 0
    edge = up[num_inner + unit]  # the nodes of the leaves come after the inner nodes
    while edge >= 0:  # the root has -1
        node = edge >> 1
        is_right = edge & 1
        rows[depth] = node
        turns[depth] = -_ONE if is_right else _ONE
        depth += 1
        edge = up[node]
    return depth


@njit(fastmath=SUMS)
def _predict(hidden_D, weight_KD, choices, target, rate, error_D):  # type: ignore[no-untyped-def]
    """Predict a unit from a vector and update the output vectors. Returns the nats.

    `error_D` becomes minus the learning rate times the gradient of `hidden_D`, from the output
    vectors before their update. The caller adds it to the word vectors.

    Args:
        choices: rows of `weight_KD`, turns, and a buffer of scores, (C,) each. A softmax has no
            turns.
        target: the unit, or `_ROWS_ARE_PATH`.
    """
    rows, turns, scores = choices
    dim = len(hidden_D)
    for c in range(len(rows)):
        vector_D = weight_KD[rows[c]]
        score = _ZERO
        for d in range(dim):
            score += hidden_D[d] * vector_D[d]
        scores[c] = score
    if target == _ROWS_ARE_PATH:
        nats = _slopes_of_path(turns, scores)
    else:
        nats = _slopes_of_softmax(target, scores)
    for d in range(dim):
        error_D[d] = _ZERO
    for c in range(len(rows)):
        vector_D = weight_KD[rows[c]]
        slope = rate * scores[c]
        for d in range(dim):
            value = vector_D[d]
            error_D[d] += slope * value
            vector_D[d] = value + slope * hidden_D[d]
    return nats


@njit(fastmath=SUMS)
def _slopes_of_path(turns, scores):  # type: ignore[no-untyped-def]
    """The cost in nats of the decisions on a path: the sum of -log σ(turn · score).

    Each score is replaced by minus the derivative of the cost by it: turn · σ(-turn · score).
    """
    nats = _ZERO
    for c in range(len(scores)):
        score = turns[c] * scores[c]
        exp_of_size = exp_minus(abs(score))  # exp(-|score|), at most 1
        # -log σ(score) = log(1 + exp(-|score|)) - min(score, 0), which cannot overflow.
        nats += log1p_unit(exp_of_size) - min(score, _ZERO)
        # σ(-score) = 1 / (1 + exp_of_size), or exp_of_size / (1 + exp_of_size) if score > 0.
        numerator = exp_of_size if score > _ZERO else _ONE
        scores[c] = turns[c] * numerator / (_ONE + exp_of_size)
    return nats


@njit(fastmath=SUMS)
def _slopes_of_softmax(target, scores):  # type: ignore[no-untyped-def]
    """The cost in nats of a unit in a softmax: -log p(target).

    Each score is replaced by minus the derivative of the cost by it: -p, and 1 - p of the target.
    """
    target_score = scores[target]
    best = scores[0]
    for c in range(len(scores)):
        best = max(best, scores[c])
    total = _ZERO
    for c in range(len(scores)):
        scores[c] = exp_minus(best - scores[c])
        total += scores[c]
    for c in range(len(scores)):
        scores[c] *= -_ONE / total
    scores[target] += _ONE
    # -log p(target) = log Σ exp(score - best) + best - target_score.
    return np.float32(np.log(total)) + best - target_score


@njit(fastmath=SUMS)
def _add(addend_D, sum_D):  # type: ignore[no-untyped-def]
    """Add a vector to `sum_D`, in place."""
    for d in range(len(addend_D)):
        sum_D[d] += addend_D[d]
