# SPDX-License-Identifier: Apache-2.0
"""Numba kernel of word2vec: one pass of stochastic gradient descent over some sentences, on one
thread in float32.

Import it inside the function that runs the kernel, because it imports numba.

Dimension key: N words of the sentences, S sentences, D width, V units, K output vectors: V-1 inner
nodes, or V units, C rows of the output vectors that a prediction uses: the nodes on the target's
path, or all K.
"""

import numpy as np

from wenet_hs.heads.kernels.numba_common import SUMS, exp_minus, log1p_unit
from wenet_hs.tree.compiled import njit

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@njit(fastmath=SUMS)
def _find_path(target, up, rows, turns):  # type: ignore[no-untyped-def]
    """Write the nodes above a leaf, from the leaf up, and the turns: +1 left, -1 right.

    Returns their number.
    """
    depth, above = 0, up[(len(up) - 1) // 2 + target]
    while above >= 0:
        rows[depth], turns[depth] = above >> 1, -_ONE if above & 1 else _ONE
        depth, above = depth + 1, up[above >> 1]
    return depth


@njit(fastmath=SUMS)
def _slopes_of_path(turns, scores):  # type: ignore[no-untyped-def]
    """The cost in nats; each score becomes minus the derivative of the cost by it."""
    nats = _ZERO
    for c in range(len(scores)):
        score = turns[c] * scores[c]
        small = exp_minus(abs(score))
        nats += log1p_unit(small) - min(score, _ZERO)
        scores[c] = turns[c] * (small if score > _ZERO else _ONE) / (_ONE + small)  # ±σ(-score)
    return nats


@njit(fastmath=SUMS)
def _slopes_of_softmax(target, scores):  # type: ignore[no-untyped-def]
    """The same for the softmax of all scores."""
    best, total, own = scores[0], _ZERO, scores[target]
    for c in range(len(scores)):
        best = max(best, scores[c])
    for c in range(len(scores)):
        scores[c] = exp_minus(best - scores[c])
        total += scores[c]
    for c in range(len(scores)):
        scores[c] *= -_ONE / total
    scores[target] += _ONE
    return np.float32(np.log(total)) + best - own


@njit(fastmath=SUMS)
def _predict(hidden_D, weight_KD, choices, target, rate, error_D):  # type: ignore[no-untyped-def]
    """Predict a unit and update the output vectors. Returns the nats.

    `choices`: rows, turns and a buffer of scores, (C,) each; `target`: the unit, or -1 if the rows
    are its path. error_D becomes minus the learning rate times the gradient of the hidden vector,
    before this update.
    """
    rows, turns, scores = choices
    dim = len(hidden_D)
    for c in range(len(rows)):
        vector_D = weight_KD[rows[c]]
        score = _ZERO
        for d in range(dim):
            score += hidden_D[d] * vector_D[d]
        scores[c] = score
    nats = _slopes_of_path(turns, scores) if target < 0 else _slopes_of_softmax(target, scores)
    for d in range(dim):
        error_D[d] = _ZERO
    for c in range(len(rows)):
        vector_D, slope = weight_KD[rows[c]], rate * scores[c]
        for d in range(dim):
            value = vector_D[d]
            error_D[d] += slope * value
            vector_D[d] = value + slope * hidden_D[d]
    return nats


@njit(fastmath=SUMS)
def _add(error_D, vector_D):  # type: ignore[no-untyped-def]
    for d in range(len(error_D)):
        vector_D[d] += error_D[d]


@njit(fastmath=SUMS)
def train_job(words, starts, reaches, vectors_VD, weight_KD, up, rate, is_cbow):  # type: ignore[no-untyped-def]
    """Update the word vectors and the output vectors in place.

    Returns the nats of all predictions, and their number.

    Skip-gram predicts each word from the vector of every word around it. CBOW predicts it from
    their mean, and adds the gradient of the mean to each of them undivided, as word2vec and gensim
    do.

    Args:
        words: (N,) int32 unit ids. starts: (S+1,) int64: where each sentence begins, and the end of
            the last one.
        reaches: (N,) int64: how many words before and after each word are used.
        vectors_VD, weight_KD: float32.
        up: (2V-1,) int32, `edges` of an HSoftmaxHead; empty: a softmax over all output vectors.
        rate: the learning rate, float32.
    """
    is_tree, dim = len(up) > 0, vectors_VD.shape[1]
    rows, turns, scores = (
        np.arange(len(weight_KD)),
        np.empty(len(weight_KD), np.float32),
        np.empty(len(weight_KD), np.float32),
    )
    mean_D, error_D = np.empty(dim, np.float32), np.empty(dim, np.float32)
    nats, num_predictions = 0.0, 0
    for sentence in range(len(starts) - 1):
        for centre in range(starts[sentence], starts[sentence + 1]):
            first = max(starts[sentence], centre - reaches[centre])
            end = min(starts[sentence + 1], centre + reaches[centre] + 1)
            if end - first < 2:
                continue
            num_rows, target = (
                (_find_path(words[centre], up, rows, turns), -1)
                if is_tree
                else (len(rows), words[centre])
            )
            choices = rows[:num_rows], turns[:num_rows], scores[:num_rows]
            if is_cbow:
                for d in range(dim):
                    mean_D[d] = _ZERO
                for other in range(first, end):
                    if other != centre:
                        _add(vectors_VD[words[other]], mean_D)
                share = _ONE / np.float32(end - first - 1)
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
                    _add(error_D, vector_D)
    return nats, num_predictions
