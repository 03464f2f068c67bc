# SPDX-License-Identifier: Apache-2.0
"""The environment of all commands: one thread, and nothing of the user that changes output."""

import os

_SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "COLUMNS": "100",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "HF_HUB_OFFLINE": "1",
}


ORIGINAL = dict(os.environ)
"""The environment before `prepare_environment`, for the test suite."""


def prepare_environment() -> None:
    """Change the environment of this process and of those that it starts."""
    os.environ.update(_SETTINGS)
