# SPDX-License-Identifier: Apache-2.0
"""The k best leaves on a CPU: best-first search, and a pass over the scores of all nodes.

A leaf's cost is -log of its probability: the costs of the turns on its way added up, so no leaf below a node costs
less than the node. Best-first search opens the cheapest open node, which a binary heap gives, until that costs more
than the k-th best leaf found. Nodes and leaves are int64 keys: the bits of the float32 cost (≥ 0, so their order as
integers is the order of the costs) above the node's number in the tree. One comparison orders by cost, then by number.

Each row is computed by one thread in one order, whichever it is: the number of threads changes no bit. Import this
module, and with it numba, only where a kernel is about to run.

Dimension key: N rows, D width, I inner nodes, V = I+1 units, A = I+V all nodes, K best leaves, H room in the heap.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor

from wenet_hs.heads.kernels.numba_math import SUMS, exp_minus, log1p_unit, use_torch_threads

SERIAL_MAX_ROWS = 3
"""So few rows are searched by the calling thread: waking the others takes 4 µs, a row 2 to 7 µs."""

_PARTS = 32  # that the rows are cut into; a thread takes a part at a time and has scratch memory for each
_TRY_MIN_ROWS = 32  # of so many rows two go first: if both are given up, so are all
_ZERO = np.float32(0.0)
_NO_KEY = np.int64(2**63 - 1)  # above every key
_NUMBER = np.int64(2**32 - 1)  # the half of a key that holds the number
_HALF = np.int64(32)


def search(
    hidden_ND: Tensor, weight_ID: Tensor, bias_I: Tensor | None, children_I2: Tensor, *, k: int, limits: tuple[int, int]
) -> tuple[Tensor, Tensor, NDArray[np.int32], int]:
    """Best-first search. All tensors on the CPU and contiguous, without gradient, float32 and int64; V ≥ 2.

    Args:
        limits: how many nodes a row may open in all, and how many before its first leaf, without being given up.
    Returns:
        log-probabilities (N, K), unit ids (N, K) int64, how many nodes were opened (N,), and the number of rows given
        up. Of those `opened` is negative and the results mean nothing: they went beyond the limits, met a NaN, or
        followed rows of which most had been given up.
    """
    _ready()
    num_rows = len(hidden_ND)
    # Made by numpy: torch takes three times as long, and at V = 150 a row is searched in 2 µs.
    values_NK, ids_NK = np.empty((num_rows, k), np.float32), np.empty((num_rows, k), np.int64)
    opened_N = np.empty(num_rows, np.int32)
    bias = _NO_BIAS if bias_I is None else bias_I.numpy()
    if num_rows > SERIAL_MAX_ROWS:
        use_torch_threads()
    kernel = _search_parts if num_rows > SERIAL_MAX_ROWS else _search_rows
    inputs = (hidden_ND.numpy(), weight_ID.numpy(), bias, children_I2.numpy())
    given_up = kernel(*inputs, values_NK, ids_NK, opened_N, limits)
    return torch.from_numpy(values_NK), torch.from_numpy(ids_NK), opened_N, given_up


def scan(scores_NI: Tensor, children_I2: Tensor, k: int) -> tuple[Tensor, Tensor, int]:
    """The k best from the scores of all nodes; same tensors as in `search`.

    Returns:
        log-probabilities (N, K), unit ids (N, K) int64, and how many rows have a NaN, whose results mean nothing.
    """
    _ready()
    values_NK, ids_NK = np.empty((len(scores_NI), k), np.float32), np.empty((len(scores_NI), k), np.int64)
    use_torch_threads()
    with_nan = _scan_parts(scores_NI.numpy(), children_I2.numpy(), values_NK, ids_NK)
    return torch.from_numpy(values_NK), torch.from_numpy(ids_NK), with_nan


_NO_BIAS = np.empty(0, np.float32)


@cache
def _ready() -> None:
    """Compile or load all kernels at the first use of one, so that a warm-up of any size covers the others too."""
    use_torch_threads()
    zero_11, children_12 = np.zeros((1, 1), np.float32), np.array([[1, 2]], np.int64)  # one node above two leaves
    found = (np.empty((1, 1), np.float32), np.empty((1, 1), np.int64))
    for kernel in (_search_rows, _search_parts):
        kernel(zero_11, zero_11, _NO_BIAS, children_12, *found, np.empty(1, np.int32), (1, 1))
    _scan_parts(zero_11, children_12, *found)


@njit(cache=True, inline="always")
def _key(cost: Any, number: Any) -> Any:
    return (np.int64(np.float32(cost).view(np.int32)) << _HALF) | np.int64(number)


@njit(cache=True, inline="always")
def _cost(key: Any) -> Any:
    return np.int32(key >> _HALF).view(np.float32)


@njit(cache=True, inline="always")
def _softplus(size: Any) -> Any:
    return log1p_unit(exp_minus(size))


@njit(cache=True)
def _raise(heap_H: Any, size: Any, key: Any) -> None:
    """Add a key to the heap's `size` keys."""
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if heap_H[parent] <= key:
            break
        heap_H[place] = heap_H[parent]
        place = parent
    heap_H[place] = key


@njit(cache=True)
def _lower(heap_H: Any, size: Any, key: Any) -> None:
    """Put a key in the place of the heap's first one."""
    place, child = 0, 1
    while child < size:
        if child + 1 < size and heap_H[child + 1] < heap_H[child]:
            child += 1
        if heap_H[child] >= key:
            break
        heap_H[place] = heap_H[child]
        place, child = child, 2 * child + 1
    heap_H[place] = key


@njit(cache=True)
def _keep(best_K: Any, key: Any) -> None:
    """Insert a leaf into the sorted k best if it is one of them."""
    place = len(best_K) - 1
    if key >= best_K[place]:
        return
    while place > 0 and best_K[place - 1] > key:
        best_K[place] = best_K[place - 1]
        place -= 1
    best_K[place] = key


@njit(cache=True, fastmath=SUMS)
def _product(hidden_D: Any, vector_D: Any) -> Any:
    total = np.float32(0.0)
    for d in range(len(hidden_D)):
        total += hidden_D[d] * vector_D[d]
    return total


@njit(cache=True)
def _search_row(
    hidden_D: Any, weight_ID: Any, bias_I: Any, children_I2: Any, best_K: Any, heap_H: Any, patience: Any
) -> Any:
    """Fill `best_K` with sorted keys. Returns how many nodes were opened, negative if the row was given up.

    The room in the heap and `patience` are the two limits of `search`.
    """
    num_inner, last = len(children_I2), len(best_K) - 1
    best_K[:] = _NO_KEY
    here, size = np.int64(0), 0  # the root, at cost 0
    for opened in range(1, len(heap_H) + 1):  # opening a node adds one open node at most: the heap has room
        node = here & _NUMBER
        z = _product(hidden_D, weight_ID[node])
        if len(bias_I) > 0:
            z += bias_I[node]
        if z != z or (opened > patience and best_K[0] == _NO_KEY):
            return -opened
        both = _cost(here) + _softplus(abs(z))
        left = _key(both + max(-z, _ZERO), children_I2[node, 0])
        right = _key(both + max(z, _ZERO), children_I2[node, 1])
        here = _NO_KEY
        for key in (min(left, right), max(left, right)):
            if key & _NUMBER >= num_inner:
                _keep(best_K, key)
            elif here == _NO_KEY:
                here = key  # the better child is often the cheapest open node: then it never enters the heap
            elif key >> _HALF <= best_K[last] >> _HALF:  # a dearer one would never be opened
                _raise(heap_H, size, key)
                size += 1
        if size > 0 and heap_H[0] < here:
            top = heap_H[0]
            if here == _NO_KEY:
                size -= 1
                here = heap_H[size]
            _lower(heap_H, size, here)
            here = top
        if here == _NO_KEY or here >> _HALF > best_K[last] >> _HALF:
            return opened
    return -len(heap_H)


@njit(cache=True)
def _search_rows(
    hidden_ND: Any,
    weight_ID: Any,
    bias_I: Any,
    children_I2: Any,
    values_NK: Any,
    ids_NK: Any,
    opened_N: Any,
    limits: Any,
) -> Any:
    """One row after the other. Returns how many were given up."""
    heap_H = np.empty(limits[0], dtype=np.int64)
    given_up = 0
    for row in range(len(hidden_ND)):
        best_K = ids_NK[row]
        # Where most rows need more room than they have, the next ones are spared the attempt.
        if given_up >= 2 and 2 * given_up > row:
            opened_N[row] = -1
        else:
            opened_N[row] = _search_row(hidden_ND[row], weight_ID, bias_I, children_I2, best_K, heap_H, limits[1])
            _decode(best_K, values_NK[row], len(children_I2))
        given_up += opened_N[row] < 0
    return given_up


@njit(cache=True, parallel=True)
def _search_parts(
    hidden_ND: Any,
    weight_ID: Any,
    bias_I: Any,
    children_I2: Any,
    values_NK: Any,
    ids_NK: Any,
    opened_N: Any,
    limits: Any,
) -> Any:
    num_rows, tried = len(hidden_ND), 2 if len(hidden_ND) >= _TRY_MIN_ROWS else 0
    given_up = _search_rows(
        hidden_ND[:tried], weight_ID, bias_I, children_I2, values_NK[:tried], ids_NK[:tried], opened_N[:tried], limits
    )
    if tried and given_up == tried:
        opened_N[tried:] = -1
        return num_rows
    parts = min(num_rows - tried, _PARTS)
    for part in prange(parts):
        start = tried + (num_rows - tried) * part // parts
        end = tried + (num_rows - tried) * (part + 1) // parts
        values, ids, opened = values_NK[start:end], ids_NK[start:end], opened_N[start:end]
        given_up += _search_rows(hidden_ND[start:end], weight_ID, bias_I, children_I2, values, ids, opened, limits)
    return given_up


@njit(cache=True)
def _scan_row(scores_I: Any, children_I2: Any, softplus_I: Any, costs_A: Any) -> Any:
    """Fill `costs_A`; parents come before their children. Returns whether a score is a NaN."""
    nans = 0
    for node in range(len(scores_I)):  # a loop of its own, which the compiler turns into vector instructions
        z = scores_I[node]
        softplus_I[node] = _softplus(abs(z))
        nans += z != z
    costs_A[0] = _ZERO
    for node in range(len(scores_I)):
        z = scores_I[node]
        both = costs_A[node] + softplus_I[node]
        costs_A[children_I2[node, 0]] = both + max(-z, _ZERO)
        costs_A[children_I2[node, 1]] = both + max(z, _ZERO)
    return nans > 0


@njit(cache=True, parallel=True)
def _scan_parts(scores_NI: Any, children_I2: Any, values_NK: Any, ids_NK: Any) -> Any:
    """Returns how many rows have a NaN."""
    num_rows, num_inner, with_nan = len(scores_NI), len(children_I2), 0
    parts = min(num_rows, _PARTS)
    for part in prange(parts):
        softplus_I = np.empty(num_inner, dtype=np.float32)
        costs_A = np.empty(2 * num_inner + 1, dtype=np.float32)
        for row in range(num_rows * part // parts, num_rows * (part + 1) // parts):
            with_nan += _scan_row(scores_NI[row], children_I2, softplus_I, costs_A)
            best_K = ids_NK[row]
            best_K[:] = _NO_KEY
            for leaf in range(num_inner, 2 * num_inner + 1):
                _keep(best_K, _key(costs_A[leaf], leaf))
            _decode(best_K, values_NK[row], num_inner)
    return with_nan


@njit(cache=True)
def _decode(keys_K: Any, values_K: Any, num_inner: Any) -> None:
    """Turn sorted keys of leaves into log-probabilities and, in place, unit ids."""
    for place in range(len(keys_K)):
        values_K[place] = _ZERO - _cost(keys_K[place])
        keys_K[place] = (keys_K[place] & _NUMBER) - num_inner
