# SPDX-License-Identifier: Apache-2.0
"""float32 exp and log1p that Numba's loops vectorise; the C library's calls, one an element, would stop that.

Their coefficients are minimax fits; both are good to 2e-7 relative, NaN stays NaN. Import this module, and with it
numba, only where a kernel is about to run.
"""

import numba
import numpy as np
import torch
from numba import njit

SUMS = {"reassoc", "contract", "nsz"}
"""What the compiler may do to a kernel's sums: another order. NaN and infinity stay what they are."""

_LARGEST = np.float32(87.0)  # exp(-87) is still a normal number
_INVERSE_LN2 = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)  # few bits, so that n · it is exact
_LN2_LOW = np.float32(-2.12194440e-4)
_ROUNDER = np.float32(12582912.0)  # 1.5 · 2^23: added to a number it leaves the nearest integer in the low bits
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


# Not with SUMS: reordered, adding and taking away _ROUNDER would cancel.
@njit(cache=True, fastmath={"contract"})
def exp_minus(size):  # type: ignore[no-untyped-def]
    """exp(-size) of a float32 ≥ 0; above 87 that of 87."""
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


@njit(cache=True, fastmath={"contract"})
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


def use_torch_threads() -> None:
    """Call before a parallel kernel: as many threads as torch has, at most those that numba was started with."""
    num_threads = torch.get_num_threads()
    numba.set_num_threads(min(num_threads, numba.config.NUMBA_NUM_THREADS))
    # Numba's first call starts its threads and with them resets the OpenMP setting that is also torch's.
    if torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)
