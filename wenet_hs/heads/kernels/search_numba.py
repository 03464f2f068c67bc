# SPDX-License-Identifier: Apache-2.0
"""Numba kernels of the best-first search for the k best leaves, on a CPU.

The cost of a leaf is -log of its probability, which is the sum of the costs of the turns on its
path. So no leaf below a node costs less than the node. Best-first search opens the cheapest open
node, until that node costs more than the k-th best leaf found. A binary heap gives the cheapest.

Nodes and leaves are int64 keys. The upper 32 bits of a key are the bits of the float32 cost, and
the lower 32 bits are the number of the node in the tree: below I an inner node, otherwise I plus a
unit id. Costs are ≥ 0. So the order of the keys is the order of the costs, then of the numbers.

One thread computes a row, always in the same order: the number of threads changes no bit. Import
this module inside the function that runs a kernel, because it imports numba.

Dimension key: N rows, D width, I inner nodes, V = I+1 units, K best leaves, G rows given up, H size
of the heap.
"""

import numpy as np
import torch
from torch import Tensor

from wenet_hs.heads.kernels.numba_common import SUMS, exp_minus, log1p_unit, use_torch_threads
from wenet_hs.heads.kernels.search_result import OpenLimits, SearchResult
from wenet_hs.tree.compiled import njit, prange

SERIAL_MAX_ROWS = 3
"""Up to this many rows are searched by the calling thread.

To start the other threads takes 4 µs, and a row 2 to 7 µs.
"""
NO_KEY = np.int64(2**63 - 1)
"""Above every key: no node or leaf."""
NUMBER = np.int64(2**32 - 1)
"""The bits of a key that contain the number."""
HALF = np.int64(32)
"""How far a key is shifted to the right to give the bits of its cost."""

_PARTS = 32  # of the rows, shared by the threads; each part has its own heap
_ZERO = np.float32(0.0)
_NO_BIAS = np.empty(0, np.float32)


def search(
    hidden_ND: Tensor,
    weight_ID: Tensor,
    bias_I: Tensor | None,
    children_I2: Tensor,
    *,
    k: int,
    limits: OpenLimits,
) -> SearchResult:
    """The k best leaves of each row by best-first search.

    A row is given up if it exceeds the limits, if it meets a NaN, or if most rows before it were
    given up.

    Args:
        hidden_ND, weight_ID, bias_I: float32 on the CPU, contiguous, without gradient.
        children_I2: int32 on the CPU, contiguous; V ≥ 2.
    """
    num_rows = len(hidden_ND)
    # NumPy allocates three times as fast as torch, and a search of one row at V = 150 takes 2 µs.
    values_NK = np.empty((num_rows, k), np.float32)
    ids_NK = np.empty((num_rows, k), np.int64)
    opened_N = np.empty(num_rows, np.int32)
    bias = _NO_BIAS if bias_I is None else bias_I.numpy()
    nodes = (weight_ID.numpy(), bias, children_I2.numpy())
    results = (values_NK, ids_NK, opened_N)
    max_opened, max_before_leaf = limits
    if num_rows > SERIAL_MAX_ROWS:
        use_torch_threads()
        kernel = _search_binary_parts
    else:
        kernel = _search_binary_rows
    num_given_up = kernel(hidden_ND.numpy(), nodes, results, (max_opened, max_before_leaf))
    given_up = None
    if num_given_up:
        given_up = torch.from_numpy(np.flatnonzero(opened_N < 0))  # negative: given up
    return SearchResult(torch.from_numpy(values_NK), torch.from_numpy(ids_NK), given_up)


def scan(scores_NI: Tensor, children_I2: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
    """The k best leaves of each row, from the scores of all nodes; None if a score is a NaN.

    Tensors as in `search`.
    Returns: log-probabilities (N, K) and unit ids (N, K) int64.
    """
    values_NK = np.empty((len(scores_NI), k), np.float32)
    ids_NK = np.empty((len(scores_NI), k), np.int64)
    use_torch_threads()
    num_nans = _scan_parts(scores_NI.numpy(), children_I2.numpy(), values_NK, ids_NK)
    if num_nans:
        return None
    return torch.from_numpy(values_NK), torch.from_numpy(ids_NK)


@njit(inline="always")
def make_key(cost, number):  # type: ignore[no-untyped-def]
    """The int64 key of a node: the bits of its cost as float32, then its number."""
    return (np.int64(np.float32(cost).view(np.int32)) << HALF) | np.int64(number)


@njit(inline="always")
def cost_of(key):  # type: ignore[no-untyped-def]
    """The float32 cost in a key."""
    return np.int32(key >> HALF).view(np.float32)


@njit
def push(heap_H, size, key):  # type: ignore[no-untyped-def]
    """Add a key to a binary heap of `size` keys, whose first key is the smallest."""
    index = size
    while index > 0:
        parent = (index - 1) >> 1
        if heap_H[parent] <= key:
            break
        heap_H[index] = heap_H[parent]
        index = parent
    heap_H[index] = key


@njit
def replace_first(heap_H, size, key):  # type: ignore[no-untyped-def]
    """Replace the first key of a heap of `size` keys by another one, which sinks to its place."""
    index = 0
    child = 1
    while child < size:
        if child + 1 < size and heap_H[child + 1] < heap_H[child]:
            child += 1
        if heap_H[child] >= key:
            break
        heap_H[index] = heap_H[child]
        index = child
        child = 2 * child + 1
    heap_H[index] = key


@njit
def keep_best(best_K, key):  # type: ignore[no-untyped-def]
    """Insert the key of a leaf into the sorted k best if it is one of them; the last is dropped."""
    index = len(best_K) - 1
    if key >= best_K[index]:
        return
    while index > 0 and best_K[index - 1] > key:
        best_K[index] = best_K[index - 1]
        index -= 1
    best_K[index] = key


@njit(fastmath=SUMS)
def dot_product(hidden_D, vector_D):  # type: ignore[no-untyped-def]
    """The dot product of two float32 vectors of one length."""
    total = np.float32(0.0)
    for d in range(len(hidden_D)):
        total += hidden_D[d] * vector_D[d]
    return total


@njit
def _search_binary_row(hidden_D, nodes, best_K, heap_H, max_before_leaf):  # type: ignore[no-untyped-def]
    """Fill `best_K` with the sorted keys of the k best leaves.

    A key contains a cost and the number of a node; from `num_inner` on it is the number of a leaf.
    Returns how many nodes were opened. The number is negative if the row was given up: after a NaN,
    after `max_before_leaf` nodes without a leaf, or after as many nodes as `heap_H` is long.
    """
    weight_ID, bias_I, children_I2 = nodes
    num_inner = len(children_I2)
    last = len(best_K) - 1
    best_K[:] = NO_KEY
    here = np.int64(0)  # the key of the node to open: the root, number 0, at cost 0
    size = 0
    # An opened node adds at most one key to the heap, so the heap is large enough.
    for opened in range(1, len(heap_H) + 1):
        node = here & NUMBER
        z = dot_product(hidden_D, weight_ID[node])
        if len(bias_I) > 0:
            z += bias_I[node]
        is_nan = z != z
        if is_nan or (opened > max_before_leaf and best_K[0] == NO_KEY):
            return -opened
        # -log σ(z) = log1p(exp(-|z|)) + max(-z, 0), and -log σ(-z) has max(z, 0).
        shared_cost = cost_of(here) + log1p_unit(exp_minus(abs(z)))
        left = make_key(shared_cost + max(-z, _ZERO), children_I2[node, 0])
        right = make_key(shared_cost + max(z, _ZERO), children_I2[node, 1])
        # The better child is often the cheapest open node. It is opened next without the heap.
        here = NO_KEY
        for key in (min(left, right), max(left, right)):
            if key & NUMBER >= num_inner:
                keep_best(best_K, key)
            elif here == NO_KEY:
                here = key
            elif key >> HALF <= best_K[last] >> HALF:
                push(heap_H, size, key)
                size += 1
        # If the heap has a cheaper node, the two change places.
        if size > 0 and heap_H[0] < here:
            top = heap_H[0]
            if here == NO_KEY:
                size -= 1
                here = heap_H[size]
            replace_first(heap_H, size, here)
            here = top
        # A node of the same cost as the last leaf is opened: an equal leaf may have a lower id.
        if here == NO_KEY or here >> HALF > best_K[last] >> HALF:
            return opened
    return -len(heap_H)


@njit
def _search_binary_rows(hidden_ND, nodes, results, limits):  # type: ignore[no-untyped-def]
    """Search one row after the other and fill the results; returns how many rows were given up.

    The results are log-probabilities (N, K), unit ids (N, K), and how many nodes were opened (N,),
    negative for a row given up. The limits are how many nodes a row may open in all, and before its
    first leaf.
    """
    values_NK, ids_NK, opened_N = results
    max_opened, max_before_leaf = limits
    heap_H = np.empty(max_opened, dtype=np.int64)
    num_given_up = 0
    for row in range(len(hidden_ND)):
        # After most rows have been given up, the next ones are not tried.
        if num_given_up >= 2 and 2 * num_given_up > row:
            opened_N[row] = -1  # given up
        else:
            keys_K = ids_NK[row]  # keys first, then ids in the same memory
            opened_N[row] = _search_binary_row(
                hidden_ND[row], nodes, keys_K, heap_H, max_before_leaf
            )
            decode_keys(keys_K, values_NK[row], len(nodes[2]))
        num_given_up += opened_N[row] < 0
    return num_given_up


@njit(parallel=True)
def _search_binary_parts(hidden_ND, nodes, results, limits):  # type: ignore[no-untyped-def]
    """`_search_binary_rows` on parts of the rows, shared by the threads."""
    values_NK, ids_NK, opened_N = results
    num_rows = len(hidden_ND)
    num_given_up = 0
    parts = min(num_rows, _PARTS)
    for part in prange(parts):
        start = num_rows * part // parts
        end = num_rows * (part + 1) // parts
        part_results = values_NK[start:end], ids_NK[start:end], opened_N[start:end]
        num_given_up += _search_binary_rows(hidden_ND[start:end], nodes, part_results, limits)
    return num_given_up


@njit(parallel=True)
def _scan_parts(scores_NI, children_I2, values_NK, ids_NK):  # type: ignore[no-untyped-def]
    """Fill the k best leaves of each row from the scores of all nodes; returns the number of NaNs.

    A child comes after its parent, so one pass in the order of the nodes gives the costs of all.
    """
    num_rows = len(scores_NI)
    num_inner = len(children_I2)
    num_nans = 0
    parts = min(num_rows, _PARTS)
    for part in prange(parts):
        turns_I = np.empty(num_inner, np.float32)  # log1p(exp(-|z|)), a part of both turns' costs
        costs = np.empty(2 * num_inner + 1, np.float32)  # of all nodes, inner ones first
        for row in range(num_rows * part // parts, num_rows * (part + 1) // parts):
            z_I = scores_NI[row]
            best_K = ids_NK[row]  # keys first, then ids in the same memory
            for i in range(num_inner):  # a loop of its own, which the compiler vectorises
                turns_I[i] = log1p_unit(exp_minus(abs(z_I[i])))
                num_nans += z_I[i] != z_I[i]
            costs[0] = _ZERO
            for i in range(num_inner):
                # -log σ(z) = log1p(exp(-|z|)) + max(-z, 0), and -log σ(-z) has max(z, 0).
                shared_cost = costs[i] + turns_I[i]
                costs[children_I2[i, 0]] = shared_cost + max(-z_I[i], _ZERO)
                costs[children_I2[i, 1]] = shared_cost + max(z_I[i], _ZERO)
            best_K[:] = NO_KEY
            for leaf in range(num_inner, 2 * num_inner + 1):
                keep_best(best_K, make_key(costs[leaf], leaf))
            decode_keys(best_K, values_NK[row], num_inner)
    return num_nans


@njit
def decode_keys(keys_K, values_K, num_inner):  # type: ignore[no-untyped-def]
    """Turn sorted keys of leaves into log-probabilities, and in place into unit ids.

    The log-probability is minus the cost in the key. The number in it is num_inner + unit id.
    """
    for index in range(len(keys_K)):
        values_K[index] = _ZERO - cost_of(keys_K[index])  # the negated cost 0 would be -0.0
        keys_K[index] = (keys_K[index] & NUMBER) - num_inner
