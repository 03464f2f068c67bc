# SPDX-License-Identifier: Apache-2.0
"""Numba functions that several kernels use: float32 exp and log1p, threads, the k best of a row.

exp and log1p are polynomials, so that the compiler vectorises the loops that contain them. Calls of
the C library would prevent that. The coefficients are minimax fits with a relative error of 2e-7. A
NaN stays a NaN.

This module imports numba, which takes 0.3 s. Import it inside the function that runs a kernel.

Dimension key: N rows, V values per row, K kept values.
"""

from collections.abc import Callable

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wenet_hs.tree.compiled import njit, prange

SUMS = {"reassoc", "contract", "nsz"}
"""Fast-math flags of the kernels: sums may be reordered, NaN and infinity stay what they are."""

SERIAL_MAX_VALUES = 65_536
"""Up to this many values `best_of_rows` runs on the calling thread.

To start the other threads would take as long.
"""

_LARGEST = np.float32(87.0)  # exp(-87) is still a normal number
_INVERSE_LN2 = np.float32(1.4426950408889634)
# ln(2) as a sum. The first part has few bits, so that n · _LN2_HIGH is exact.
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
# 1.5 · 2^23: a float32 of this size has no fraction. Adding it leaves the nearest integer in the
# low bits of the sum.
_ROUNDER = np.float32(12582912.0)
_ONE = np.float32(1.0)
# Coefficients of exp(x) = 1 + x + _E2 x² + _E3 x³ + …
_E2 = np.float32(0.49999992)
_E3 = np.float32(0.1666642)
_E4 = np.float32(0.041668226)
_E5 = np.float32(0.008374822)
_E6 = np.float32(0.0013836838)
# Coefficients of log(1 + x) = x (1 + _L1 x + _L2 x² + …)
_L1 = np.float32(-0.4999990242)
_L2 = np.float32(0.3332996240)
_L3 = np.float32(-0.2495413352)
_L4 = np.float32(0.1967593855)
_L5 = np.float32(-0.1530559052)
_L6 = np.float32(0.1060365142)
_L7 = np.float32(-0.0569595001)
_L8 = np.float32(0.0198514442)
_L9 = np.float32(-0.0032440211)


def use_torch_threads() -> None:
    """Set Numba's number of threads to torch's, but at most to the number that Numba can start.

    Call it before a parallel kernel, so that `torch.set_num_threads` and OMP_NUM_THREADS apply to
    Numba too.
    """
    num_threads = torch.get_num_threads()
    numba.set_num_threads(min(num_threads, numba.config.NUMBA_NUM_THREADS))
    # Numba's first call starts its threads and changes a setting of OpenMP that torch uses too.
    if torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)


def on_arrays(
    compute: Callable[[NDArray[np.float32]], NDArray[np.float32]],
) -> Callable[[Tensor], Tensor]:
    """Make a function of float32 arrays a function of CPU tensors, with torch's number of threads.

    Array and tensor share their memory, so a change in place is seen in the tensor.
    """

    def run(values: Tensor) -> Tensor:
        use_torch_threads()
        return torch.from_numpy(compute(values.numpy()))

    return run


# Not with SUMS: reordering would cancel the addition and subtraction of _ROUNDER.
@njit(fastmath={"contract"})
def exp_minus(size):  # type: ignore[no-untyped-def]
    """exp(-size) of a float32 ≥ 0; above 87 it is exp(-87).

    It is 2^n · exp(x), with an integer n and |x| ≤ ln(2) / 2.
    """
    x = -_LARGEST if size > _LARGEST else -size
    shifted = x * _INVERSE_LN2 + _ROUNDER  # n is in the low bits
    n = shifted - _ROUNDER
    x = (x - n * _LN2_HIGH) - n * _LN2_LOW
    fit = _E5 + x * _E6
    fit = _E4 + x * fit
    fit = _E3 + x * fit
    fit = _E2 + x * fit
    fit = _ONE + x * (_ONE + x * fit)
    # The bits of the float32 2^n: its exponent is n + 127, above 23 bits of fraction.
    power = np.int32((np.float32(shifted).view(np.int32) + 127) << 23)
    return fit * np.int32(power).view(np.float32)


@njit(fastmath={"contract"})
def log1p_unit(x):  # type: ignore[no-untyped-def]
    """log(1 + x) of a float32 in [0, 1]."""
    fit = _L8 + x * _L9
    fit = _L7 + x * fit
    fit = _L6 + x * fit
    fit = _L5 + x * fit
    fit = _L4 + x * fit
    fit = _L3 + x * fit
    fit = _L2 + x * fit
    fit = _L1 + x * fit
    return x * (_ONE + x * fit)


def best_of_rows(scores_NV: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
    """The k greatest values of each row, descending; of equal values the lower id comes first.

    `scores_NV` is float32 on a CPU, contiguous and without gradient.
    Returns: values (N, K) and ids (N, K) int64; None if there is a NaN.
    """
    values_NK = np.empty((len(scores_NV), k), np.float32)
    ids_NK = np.empty((len(scores_NV), k), np.int64)
    if scores_NV.numel() > SERIAL_MAX_VALUES:
        use_torch_threads()
        num_rows_with_nan = _best_parallel(scores_NV.numpy(), values_NK, ids_NK)
    else:
        num_rows_with_nan = _best_serial(scores_NV.numpy(), values_NK, ids_NK)
    if num_rows_with_nan:
        return None
    return torch.from_numpy(values_NK), torch.from_numpy(ids_NK)


@njit
def _best_of_row(scores_V, values_K, ids_K):  # type: ignore[no-untyped-def]
    """Fill the k greatest values, descending, and their ids.

    Returns 0, or 1 if it met a NaN: the results then have no meaning.
    """
    k = len(values_K)
    num_kept = 0
    for unit in range(len(scores_V)):
        score = scores_V[unit]
        # A NaN is not ≤ anything, so it is not skipped.
        if num_kept == k and score <= values_K[k - 1]:
            continue
        is_nan = score != score
        if is_nan:
            return 1
        # Insert the score. If k values are kept already, the last one is overwritten.
        index = min(num_kept, k - 1)
        while index > 0 and score > values_K[index - 1]:
            values_K[index] = values_K[index - 1]
            ids_K[index] = ids_K[index - 1]
            index -= 1
        values_K[index] = score
        ids_K[index] = unit
        num_kept = min(num_kept + 1, k)
    return 0


@njit
def _best_serial(scores_NV, values_NK, ids_NK):  # type: ignore[no-untyped-def]
    """`_best_of_row` for all rows, on one thread; returns the number of rows with a NaN."""
    num_rows_with_nan = 0
    for row in range(len(scores_NV)):
        num_rows_with_nan += _best_of_row(scores_NV[row], values_NK[row], ids_NK[row])
    return num_rows_with_nan


@njit(parallel=True)
def _best_parallel(scores_NV, values_NK, ids_NK):  # type: ignore[no-untyped-def]
    """`_best_of_row` for all rows, on all threads; returns the number of rows with a NaN."""
    num_rows_with_nan = 0
    for row in prange(len(scores_NV)):
        num_rows_with_nan += _best_of_row(scores_NV[row], values_NK[row], ids_NK[row])
    return num_rows_with_nan
