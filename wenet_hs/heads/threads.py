# SPDX-License-Identifier: Apache-2.0
"""Numba's kernels use torch's number of threads, so that `torch.set_num_threads` and OMP_NUM_THREADS rule both.

Import this module, and with it numba (0.3 s), only where a kernel is about to run.
"""

import numba
import torch


def use_torch_threads() -> None:
    """Call before a parallel kernel: as many threads as torch has, at most those that numba was started with."""
    num_threads = torch.get_num_threads()
    numba.set_num_threads(min(num_threads, numba.config.NUMBA_NUM_THREADS))
    # Numba's first call starts its threads and with them resets the OpenMP setting that is also torch's.
    if torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)
