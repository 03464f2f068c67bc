# SPDX-License-Identifier: Apache-2.0
"""Numba kernels of the best-first search for the k best leaves on a CPU.

A leaf's cost is -log of its probability, the sum of the costs of the turns on its path. So no leaf
below a node costs less than the node. Best-first search opens the cheapest open node, which a
binary heap gives, until that node costs more than the k-th best leaf found. Nodes and leaves are
int64 keys: the bits of the float32 cost above the node's number in the tree. Costs are ≥ 0, so the
order of the integers is the order of the costs, then of the numbers.

One thread computes a row, always in the same order: the number of threads changes no bit. Import
this module inside the function that runs a kernel, because it imports numba.

Dimension key: N rows, D width, I inner nodes, V = I+1 units, K best leaves, G rows given up, H size
of the heap.
"""

import numpy as np
import torch
from torch import Tensor

from wenet_hs.heads.kernels.numba_common import SUMS, exp_minus, log1p_unit, use_torch_threads
from wenet_hs.tree.compiled import njit, prange

SERIAL_MAX_ROWS = 3
"""Up to this many rows are searched by the calling thread: to start the others takes 4 µs, a row 2
to 7 µs.
"""
NO_KEY = np.int64(2**63 - 1)
"""Above every key."""
NUMBER = np.int64(2**32 - 1)
"""The half of a key that contains the number."""
HALF = np.int64(32)
"""Bits of half a key."""

_PARTS = 32  # of the rows, shared by the threads; each part has its own heap
_ZERO = np.float32(0.0)


def search(
    hidden_ND: Tensor,
    weight_ID: Tensor,
    bias_I: Tensor | None,
    children_I2: Tensor,
    *,
    k: int,
    limits: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Best-first search.

    All tensors on the CPU and contiguous, without gradient, float32 and int32; V ≥ 2.

    `limits`: how many nodes a row may open in all, and before its first leaf, before it is given
    up.
    Returns: log-probabilities (N, K), unit ids (N, K) int64, and the rows given up (G,) or None.
        Those exceeded the limits, met a NaN, or came after rows most of which had been given up.
        Their results have no meaning.
    """
    num_rows = len(hidden_ND)
    # NumPy allocates three times as fast as torch, and a search of one row at V = 150 takes 2 µs.
    found = (
        np.empty((num_rows, k), np.float32),
        np.empty((num_rows, k), np.int64),
        np.empty(num_rows, np.int32),
    )
    bias = _NO_BIAS if bias_I is None else bias_I.numpy()
    if num_rows > SERIAL_MAX_ROWS:
        use_torch_threads()
    kernel = _search_binary_parts if num_rows > SERIAL_MAX_ROWS else _search_binary_rows
    given_up = kernel(
        hidden_ND.numpy(), (weight_ID.numpy(), bias, children_I2.numpy()), found, limits
    )
    values_NK, ids_NK, opened_N = (torch.from_numpy(array) for array in found)
    return values_NK, ids_NK, (opened_N < 0).nonzero()[:, 0] if given_up else None


_NO_BIAS = np.empty(0, np.float32)


def scan(scores_NI: Tensor, children_I2: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
    """The k best of all leaves (N, K), from the scores of all nodes; tensors as in `search`.

    None if there is a NaN.
    """
    values_NK, ids_NK = (
        np.empty((len(scores_NI), k), np.float32),
        np.empty((len(scores_NI), k), np.int64),
    )
    use_torch_threads()
    with_nan = _scan_parts(scores_NI.numpy(), children_I2.numpy(), values_NK, ids_NK)
    return None if with_nan else (torch.from_numpy(values_NK), torch.from_numpy(ids_NK))


@njit(inline="always")
def make_key(cost, number):  # type: ignore[no-untyped-def]
    return (np.int64(np.float32(cost).view(np.int32)) << HALF) | np.int64(number)


@njit(inline="always")
def cost_of(key):  # type: ignore[no-untyped-def]
    return np.int32(key >> HALF).view(np.float32)


@njit
def push(heap_H, size, key):  # type: ignore[no-untyped-def]
    """Add a key to the heap's `size` keys."""
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
    """Replace the heap's first key."""
    index, child = 0, 1
    while child < size:
        if child + 1 < size and heap_H[child + 1] < heap_H[child]:
            child += 1
        if heap_H[child] >= key:
            break
        heap_H[index] = heap_H[child]
        index, child = child, 2 * child + 1
    heap_H[index] = key


@njit
def keep_best(best_K, key):  # type: ignore[no-untyped-def]
    """Insert a leaf into the sorted k best if it is one of them."""
    index = len(best_K) - 1
    if key >= best_K[index]:
        return
    while index > 0 and best_K[index - 1] > key:
        best_K[index] = best_K[index - 1]
        index -= 1
    best_K[index] = key


@njit(fastmath=SUMS)
def dot_product(hidden_D, vector_D):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    for d in range(len(hidden_D)):
        total += hidden_D[d] * vector_D[d]
    return total


@njit
def _search_binary_row(hidden_D, nodes, best_K, heap_H, max_before_leaf):  # type: ignore[no-untyped-def]
    """Fill `best_K` with sorted keys.

    Returns how many nodes were opened, negative if the row was given up.

    The size of the heap and `max_before_leaf` are the two limits of `search`.
    """
    weight_ID, bias_I, children_I2 = nodes
    num_inner, last = len(children_I2), len(best_K) - 1
    best_K[:] = NO_KEY
    here, size = np.int64(0), 0  # the root, at cost 0
    for opened in range(
        1, len(heap_H) + 1
    ):  # a node adds at most one open node: the heap is large enough
        node = here & NUMBER
        z = dot_product(hidden_D, weight_ID[node])
        if len(bias_I) > 0:
            z += bias_I[node]
        if z != z or (opened > max_before_leaf and best_K[0] == NO_KEY):
            return -opened
        both = cost_of(here) + log1p_unit(exp_minus(abs(z)))
        left = make_key(both + max(-z, _ZERO), children_I2[node, 0])
        right = make_key(both + max(z, _ZERO), children_I2[node, 1])
        here = NO_KEY
        for key in (min(left, right), max(left, right)):
            if key & NUMBER >= num_inner:
                keep_best(best_K, key)
            elif here == NO_KEY:
                here = (
                    key  # the better child is often the cheapest open node and then skips the heap
                )
            elif key >> HALF <= best_K[last] >> HALF:
                push(heap_H, size, key)
                size += 1
        if size > 0 and heap_H[0] < here:
            top = heap_H[0]
            if here == NO_KEY:
                size -= 1
                here = heap_H[size]
            replace_first(heap_H, size, here)
            here = top
        if here == NO_KEY or here >> HALF > best_K[last] >> HALF:
            return opened
    return -len(heap_H)


@njit
def _search_binary_rows(hidden_ND, nodes, found, limits):  # type: ignore[no-untyped-def]
    """One row after the other. Returns how many were given up."""
    values_NK, ids_NK, opened_N = found
    heap_H = np.empty(limits[0], dtype=np.int64)
    given_up = 0
    for row in range(len(hidden_ND)):
        # After most rows have been given up, the next ones are not tried.
        if given_up >= 2 and 2 * given_up > row:
            opened_N[row] = -1
        else:
            opened_N[row] = _search_binary_row(
                hidden_ND[row], nodes, ids_NK[row], heap_H, limits[1]
            )
            decode_keys(ids_NK[row], values_NK[row], len(nodes[2]))
        given_up += opened_N[row] < 0
    return given_up


@njit(parallel=True)
def _search_binary_parts(hidden_ND, nodes, found, limits):  # type: ignore[no-untyped-def]
    """`_search_binary_rows` on parts of the rows, shared by the threads."""
    values_NK, ids_NK, opened_N = found
    num_rows, given_up = len(hidden_ND), 0
    parts = min(num_rows, _PARTS)
    for part in prange(parts):
        start, end = num_rows * part // parts, num_rows * (part + 1) // parts
        part_found = values_NK[start:end], ids_NK[start:end], opened_N[start:end]
        given_up += _search_binary_rows(hidden_ND[start:end], nodes, part_found, limits)
    return given_up


@njit(parallel=True)
def _scan_parts(scores_NI, children_I2, values_NK, ids_NK):  # type: ignore[no-untyped-def]
    """Returns how many NaNs the scores have."""
    num_rows, num_inner, with_nan = len(scores_NI), len(children_I2), 0
    parts = min(num_rows, _PARTS)
    for part in prange(parts):
        turns_I, costs = np.empty(num_inner, np.float32), np.empty(2 * num_inner + 1, np.float32)
        for row in range(num_rows * part // parts, num_rows * (part + 1) // parts):
            z_I, best_K = scores_NI[row], ids_NK[row]
            for i in range(num_inner):  # a loop of its own, which the compiler vectorises
                turns_I[i] = log1p_unit(exp_minus(abs(z_I[i])))
                with_nan += z_I[i] != z_I[i]
            costs[0] = _ZERO
            for i in range(num_inner):
                both = costs[i] + turns_I[i]
                costs[children_I2[i, 0]] = both + max(-z_I[i], _ZERO)
                costs[children_I2[i, 1]] = both + max(z_I[i], _ZERO)
            best_K[:] = NO_KEY
            for leaf in range(num_inner, 2 * num_inner + 1):
                keep_best(best_K, make_key(costs[leaf], leaf))
            decode_keys(best_K, values_NK[row], num_inner)
    return with_nan


@njit
def decode_keys(keys_K, values_K, num_inner):  # type: ignore[no-untyped-def]
    """Turn sorted keys of leaves into log-probabilities and, in place, unit ids."""
    for index in range(len(keys_K)):
        values_K[index] = _ZERO - cost_of(keys_K[index])
        keys_K[index] = (keys_K[index] & NUMBER) - num_inner
