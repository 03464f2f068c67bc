# SPDX-License-Identifier: Apache-2.0
"""Numba functions that several kernels use: float32 exp and log1p, the number of threads, the k
best of a row.

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

To start the others would take as long.
"""

_LARGEST = np.float32(87.0)  # exp(-87) is still a normal number
_INVERSE_LN2 = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)  # few bits, so that n · _LN2_HIGH is exact
_LN2_LOW = np.float32(-2.12194440e-4)
_ROUNDER = np.float32(
    12582912.0
)  # 1.5 · 2^23: adding it leaves the nearest integer in the low bits
_ONE = np.float32(1.0)
_E2, _E3, _E4, _E5, _E6 = (
    np.float32(value) for value in (0.49999992, 0.1666642, 0.041668226, 0.008374822, 0.0013836838)
)
_L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8, _L9 = (
    np.float32(value)
    for value in (
        *(-0.4999990242, 0.3332996240, -0.2495413352, 0.1967593855, -0.1530559052),
        *(0.1060365142, -0.0569595001, 0.0198514442, -0.0032440211),
    )
)


def use_torch_threads() -> None:
    """Set Numba's number of threads to torch's, at most those that Numba was started with.

    Call it before a parallel kernel. `torch.set_num_threads` and OMP_NUM_THREADS then apply to
    both.
    """
    num_threads = torch.get_num_threads()
    numba.set_num_threads(min(num_threads, numba.config.NUMBA_NUM_THREADS))
    # Numba's first call starts its threads. This resets the OpenMP setting, which is torch's
    # setting too.
    if torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)


def on_arrays(
    compute: Callable[[NDArray[np.float32]], NDArray[np.float32]],
) -> Callable[[Tensor], Tensor]:
    """A function of arrays as one of tensors on the CPU, with torch's number of threads."""

    def run(values: Tensor) -> Tensor:
        use_torch_threads()
        return torch.from_numpy(compute(values.numpy()))

    return run


# Not with SUMS: reordering would cancel the addition and subtraction of _ROUNDER.
@njit(fastmath={"contract"})
def exp_minus(size):  # type: ignore[no-untyped-def]
    """exp(-size) of a float32 ≥ 0; above 87 it is exp(-87)."""
    x = -_LARGEST if size > _LARGEST else -size
    shifted = x * _INVERSE_LN2 + _ROUNDER
    n = shifted - _ROUNDER
    x = (x - n * _LN2_HIGH) - n * _LN2_LOW
    fit = _E5 + x * _E6
    fit = _E4 + x * fit
    fit = _E3 + x * fit
    fit = _E2 + x * fit
    fit = _ONE + x * (_ONE + x * fit)
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
    """The k greatest values of each row, descending (N, K), and their ids (N, K) int64; of equal
    values the lower id.

    Returns None if there is a NaN. `scores_NV` is float32, contiguous and without gradient.
    """
    values_NK, ids_NK = (
        np.empty((len(scores_NV), k), np.float32),
        np.empty((len(scores_NV), k), np.int64),
    )
    is_parallel = scores_NV.numel() > SERIAL_MAX_VALUES
    if is_parallel:
        use_torch_threads()
    with_nan = (_best_parallel if is_parallel else _best_serial)(
        scores_NV.numpy(), values_NK, ids_NK
    )
    return None if with_nan else (torch.from_numpy(values_NK), torch.from_numpy(ids_NK))


@njit
def _best_of_row(scores_V, values_K, ids_K):  # type: ignore[no-untyped-def]
    """Returns 1 if there is a NaN."""
    k, found = len(values_K), 0
    for unit in range(len(scores_V)):
        score = scores_V[unit]
        if found == k and score <= values_K[k - 1]:
            continue
        if score != score:
            return 1
        index = min(found, k - 1)
        while index > 0 and score > values_K[index - 1]:
            values_K[index] = values_K[index - 1]
            ids_K[index] = ids_K[index - 1]
            index -= 1
        values_K[index] = score
        ids_K[index] = unit
        found = min(found + 1, k)
    return 0


@njit
def _best_serial(scores_NV, values_NK, ids_NK):  # type: ignore[no-untyped-def]
    with_nan = 0
    for row in range(len(scores_NV)):
        with_nan += _best_of_row(scores_NV[row], values_NK[row], ids_NK[row])
    return with_nan


@njit(parallel=True)
def _best_parallel(scores_NV, values_NK, ids_NK):  # type: ignore[no-untyped-def]
    with_nan = 0
    for row in prange(len(scores_NV)):
        with_nan += _best_of_row(scores_NV[row], values_NK[row], ids_NK[row])
    return with_nan
