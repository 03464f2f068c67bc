# SPDX-License-Identifier: Apache-2.0
"""The class head's loops on a CPU in float32; scores that BLAS has made, or dot products where rows are few.

Import this module, and with it numba, only where a kernel is about to run, after `use_torch_threads`.

Dimension key: N rows, D width, I inner nodes, E edges (children of all nodes), K best, M pairs of a row and a node on
its path, in the order of the nodes, G groups of pairs of one node, S one score for each pair and child.
"""

import math

import numpy as np
from numba import njit, prange

from wenet_hs.heads.kernels.numba_math import SUMS, exp_minus

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@njit(cache=True, fastmath=SUMS)
def _greatest(scores):  # type: ignore[no-untyped-def]
    """Four at a time: a maximum that respects NaN is not vectorised."""
    a = b = c = d = scores[0]
    whole = len(scores) // 4 * 4
    for i in range(0, whole, 4):
        a, b = max(a, scores[i]), max(b, scores[i + 1])
        c, d = max(c, scores[i + 2]), max(d, scores[i + 3])
    for i in range(whole, len(scores)):
        a = max(a, scores[i])
    return max(max(a, b), max(c, d))


@njit(cache=True, fastmath=SUMS)
def _sum_exp(scores, top):  # type: ignore[no-untyped-def]
    total = _ZERO
    for i in range(len(scores)):
        total += exp_minus(top - scores[i])
    return total


@njit(cache=True, parallel=True, fastmath=SUMS)
def log_softmax(scores_NE, offsets):  # type: ignore[no-untyped-def]
    """In place: each node's scores become its children's log-probabilities given the node."""
    for row in prange(len(scores_NE)):
        for node in range(len(offsets) - 1):
            scores = scores_NE[row, offsets[node] : offsets[node + 1]]
            top = _greatest(scores)
            log_sum = np.float32(math.log(_sum_exp(scores, top)))
            for i in range(len(scores)):
                scores[i] = (scores[i] - top) - log_sum


@njit(cache=True, fastmath=SUMS)
def _decision(scores, choice, other, weight):  # type: ignore[no-untyped-def]
    """The cost of one decision, times `weight`; the scores become its derivatives.

    `other` is the smoothed target of each child but the `choice`; 0 without smoothing.
    """
    top = _greatest(scores)
    total = _sum_exp(scores, top)
    right = _ONE - other * len(scores)
    cost = np.float32(math.log(total)) - right * (scores[choice] - top)
    if other:
        rest = _ZERO
        for i in range(len(scores)):
            rest += scores[i] - top
        cost -= other * rest
    scale = _ONE / total
    for i in range(len(scores)):
        scores[i] = weight * (exp_minus(top - scores[i]) * scale - other)
    scores[choice] -= weight * right
    return weight * cost


@njit(cache=True, fastmath=SUMS)
def _smoothed(scores, leaves, choice, target, every):  # type: ignore[no-untyped-def]
    """-target·log p(choice) - every·Σ leaves·log p, in nats; the scores become its derivatives; -1: no choice here."""
    top = _greatest(scores)
    total, all_leaves, weighted = _ZERO, _ZERO, _ZERO
    for i in range(len(scores)):
        gap = top - scores[i]
        total += exp_minus(gap)
        all_leaves += leaves[i]
        weighted += leaves[i] * gap
    log_sum = np.float32(math.log(total))
    cost = every * (weighted + all_leaves * log_sum)
    scale = every * all_leaves
    if choice >= 0:
        cost += target * (log_sum + (top - scores[choice]))
        scale += target
    scale /= total
    for i in range(len(scores)):
        scores[i] = scale * exp_minus(top - scores[i]) - every * leaves[i]
    if choice >= 0:
        scores[choice] -= target
    return cost


@njit(cache=True, parallel=True, fastmath=SUMS)
def all_edges_cost(scores_NE, tree, leaves_E, targets_N, weights):  # type: ignore[no-untyped-def]
    """Costs (N,) from all scores, which become their derivatives in place.

    -target·log P(its unit) - every·Σ_v log P(v), or, where smoothing > 0, target times the cross-entropy of each
    decision on the path against 1-smoothing on the right child and the rest on the others.

    Args:
        tree: offsets (I+1,), edge_nodes (E,), node_edges (I+V,).
        weights: target, every, smoothing.
    """
    offsets, edge_nodes, node_edges = tree
    target, every, smoothing = weights
    num_inner = len(offsets) - 1
    costs = np.empty(len(scores_NE), np.float32)
    for row in prange(len(scores_NE)):
        path = np.empty(num_inner, np.int64)  # edges from the leaf up, so their nodes fall
        length = 0
        edge = node_edges[num_inner + targets_N[row]]
        while edge >= 0:
            path[length] = edge
            length += 1
            edge = node_edges[edge_nodes[edge]]
        cost = 0.0
        for node in range(num_inner):
            start, end = offsets[node], offsets[node + 1]
            choice = -1
            if length and edge_nodes[path[length - 1]] == node:
                length -= 1
                choice = path[length] - start
            scores = scores_NE[row, start:end]
            if every:
                cost += _smoothed(scores, leaves_E[start:end], choice, target, every)
            elif choice >= 0:
                cost += _decision(scores, choice, np.float32(smoothing / (end - start - 1)), target)
            else:
                scores[:] = _ZERO
        costs[row] = cost
    return costs


@njit(cache=True, parallel=True, fastmath=SUMS)
def few_rows_cost(hidden_ND, weight_ED, bias_E, nodes_G5, pairs_M3, num_slopes, smoothing):  # type: ignore[no-untyped-def]
    """For nodes with few rows: the cost of each pair (M,), its derivatives by the scores (S,) and by the row (M, D).

    Args:
        nodes_G5: first pair, one behind the last pair, first edge, number of edges, first row of the gradient.
        pairs_M3: row, right child, where the pair's derivatives start among S = num_slopes.
    """
    num_pairs, dim = len(pairs_M3), hidden_ND.shape[1]
    costs, slopes = np.empty(num_pairs, np.float32), np.empty(num_slopes, np.float32)
    grads = np.zeros((num_pairs, dim), np.float32)
    for group in prange(len(nodes_G5)):
        first, last, edge, degree, _ = nodes_G5[group]
        for child in range(degree):
            vector_D = weight_ED[edge + child]
            for pair in range(first, last):
                hidden_D = hidden_ND[pairs_M3[pair, 0]]
                score = _ZERO
                for d in range(dim):
                    score += hidden_D[d] * vector_D[d]
                slopes[pairs_M3[pair, 2] + child] = score + bias_E[edge + child]
        other = np.float32(smoothing / (degree - 1))
        for pair in range(first, last):
            _, choice, place = pairs_M3[pair]
            costs[pair] = _decision(slopes[place : place + degree], choice, other, _ONE)
        for child in range(degree):
            vector_D = weight_ED[edge + child]
            for pair in range(first, last):
                slope, grad_D = slopes[pairs_M3[pair, 2] + child], grads[pair]
                for d in range(dim):
                    grad_D[d] += slope * vector_D[d]
    return costs, slopes, grads


@njit(cache=True, parallel=True, fastmath=SUMS)
def few_rows_gradient(grad_KD, grad_E, hidden_ND, upstream_N, nodes_G5, pairs_M3, slopes):  # type: ignore[no-untyped-def]
    """Write into zeros the gradients of the nodes' vectors and biases; arguments as above."""
    dim = hidden_ND.shape[1]
    for group in prange(len(nodes_G5)):
        first, last, edge, degree, out = nodes_G5[group]
        for child in range(degree):
            grad_D = grad_KD[out + child]
            total = _ZERO
            for pair in range(first, last):
                row = pairs_M3[pair, 0]
                slope, hidden_D = upstream_N[row] * slopes[pairs_M3[pair, 2] + child], hidden_ND[row]
                total += slope
                for d in range(dim):
                    grad_D[d] += slope * hidden_D[d]
            grad_E[edge + child] = total


@njit(cache=True, fastmath=SUMS)
def _push(heap_scores, heap_nodes, size, score, node):  # type: ignore[no-untyped-def]
    at = size
    while at and heap_scores[(at - 1) // 2] < score:
        above = (at - 1) // 2
        heap_scores[at], heap_nodes[at] = heap_scores[above], heap_nodes[above]
        at = above
    heap_scores[at], heap_nodes[at] = score, node


@njit(cache=True, fastmath=SUMS)
def _pop(heap_scores, heap_nodes, size):  # type: ignore[no-untyped-def]
    """Take the first of `size` away; the last one sinks from its place."""
    score, node = heap_scores[size - 1], heap_nodes[size - 1]
    at = 0
    while 2 * at + 1 < size - 1:
        below = 2 * at + 1
        if below + 1 < size - 1 and heap_scores[below + 1] > heap_scores[below]:
            below += 1
        if heap_scores[below] <= score:
            break
        heap_scores[at], heap_nodes[at] = heap_scores[below], heap_nodes[below]
        at = below
    heap_scores[at], heap_nodes[at] = score, node


@njit(cache=True, fastmath=SUMS)
def _insert(values_K, ids_K, value, unit):  # type: ignore[no-untyped-def]
    """Into the k best so far, descending, equal ones by id; ids_K starts as V, values_K as -inf."""
    at = len(values_K)
    while at and (values_K[at - 1] < value or (values_K[at - 1] == value and ids_K[at - 1] > unit)):
        at -= 1
    for i in range(len(values_K) - 1, at, -1):
        values_K[i], ids_K[i] = values_K[i - 1], ids_K[i - 1]
    if at < len(values_K):
        values_K[at], ids_K[at] = value, unit


@njit(cache=True, parallel=True, fastmath=SUMS)
def best_leaves(hidden_ND, weight_ED, bias_E, root_NC, offsets, children, k, budget):  # type: ignore[no-untyped-def]
    """The k best units of each row (N, K) and their values, and whether that took at most `budget` edges (N,).

    A node's log-probability bounds those of its leaves, so the likeliest open node is expanded until it is less than
    the k-th leaf found; an equal one still is, since it may hold an equal leaf of a lower id. root_NC are the scores
    of the root's children. A row above its budget is left unfinished, and so is one that meets a score that is NaN.
    """
    num_rows, dim = hidden_ND.shape
    num_inner = len(offsets) - 1
    widest = np.max(offsets[1:] - offsets[:-1])
    values_NK, ids_NK = np.full((num_rows, k), -np.inf, np.float32), np.full((num_rows, k), len(children), np.int64)
    within_N = np.ones(num_rows, np.bool_)
    for row in prange(num_rows):
        values_K, ids_K, hidden_D = values_NK[row], ids_NK[row], hidden_ND[row]
        heap_scores, heap_nodes = np.empty(num_inner, np.float32), np.empty(num_inner, np.int64)
        scratch = np.empty(widest, np.float32)
        heap_scores[0], heap_nodes[0] = _ZERO, 0
        size, opened = 1, 0
        while size and heap_scores[0] >= values_K[k - 1]:
            score, node = heap_scores[0], heap_nodes[0]
            _pop(heap_scores, heap_nodes, size)
            size -= 1
            start, degree = offsets[node], offsets[node + 1] - offsets[node]
            scores = scratch[:degree]
            if node == 0:
                scores[:] = root_NC[row]
            else:
                opened += degree
                if opened > budget:
                    within_N[row] = False
                    break
                for child in range(degree):
                    vector_D = weight_ED[start + child]
                    product = _ZERO
                    for d in range(dim):
                        product += hidden_D[d] * vector_D[d]
                    scores[child] = product + bias_E[start + child]
            top = _greatest(scores)
            log_sum = np.float32(math.log(_sum_exp(scores, top)))
            if log_sum != log_sum:  # a score that is no number bounds nothing
                within_N[row] = False
                break
            for child in range(degree):
                value = score + ((scores[child] - top) - log_sum)
                below = children[start + child]
                if value < values_K[k - 1]:
                    continue
                if below >= num_inner:
                    _insert(values_K, ids_K, value, below - num_inner)
                else:
                    _push(heap_scores, heap_nodes, size, value, below)
                    size += 1
    return values_NK, ids_NK, within_N
