# SPDX-License-Identifier: Apache-2.0
"""The k greatest of each row on a CPU, in one pass. Import it, and with it numba, only where the kernel is to run.

Dimension key: N rows, V values a row, K kept.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from wenet_hs.heads.kernels.numba_math import use_torch_threads

SERIAL_MAX_VALUES = 65_536
"""So many are looked at by the calling thread: waking the others would take as long."""


def best(scores_NV: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
    """scores (N, V) float32, contiguous, without gradient → values (N, K), descending, and ids (N, K) int64.

    Of equal values the lower id comes first. None where there is a NaN, which has no place in an order.
    """
    _ready()
    values_NK, ids_NK = np.empty((len(scores_NV), k), np.float32), np.empty((len(scores_NV), k), np.int64)
    parallel = scores_NV.numel() > SERIAL_MAX_VALUES
    if parallel:
        use_torch_threads()
    with_nan = (_best_parallel if parallel else _best_serial)(scores_NV.numpy(), values_NK, ids_NK)
    return None if with_nan else (torch.from_numpy(values_NK), torch.from_numpy(ids_NK))


@cache
def _ready() -> None:
    """Compile or load both kernels at the first use of one, so that a warm-up of any size covers the other too."""
    use_torch_threads()
    for kernel in (_best_serial, _best_parallel):
        kernel(np.zeros((1, 1), np.float32), np.empty((1, 1), np.float32), np.empty((1, 1), np.int64))


@njit(cache=True)
def _best_of_row(scores_V: Any, values_K: Any, ids_K: Any) -> Any:
    """1 where there is a NaN."""
    k, found = len(values_K), 0
    for unit in range(len(scores_V)):
        score = scores_V[unit]
        if found == k and score <= values_K[k - 1]:
            continue
        if score != score:
            return 1
        place = min(found, k - 1)
        while place > 0 and score > values_K[place - 1]:
            values_K[place] = values_K[place - 1]
            ids_K[place] = ids_K[place - 1]
            place -= 1
        values_K[place] = score
        ids_K[place] = unit
        found = min(found + 1, k)
    return 0


@njit(cache=True)
def _best_serial(scores_NV: Any, values_NK: Any, ids_NK: Any) -> Any:
    with_nan = 0
    for row in range(len(scores_NV)):
        with_nan += _best_of_row(scores_NV[row], values_NK[row], ids_NK[row])
    return with_nan


@njit(cache=True, parallel=True)
def _best_parallel(scores_NV: Any, values_NK: Any, ids_NK: Any) -> Any:
    with_nan = 0
    for row in prange(len(scores_NV)):
        with_nan += _best_of_row(scores_NV[row], values_NK[row], ids_NK[row])
    return with_nan
