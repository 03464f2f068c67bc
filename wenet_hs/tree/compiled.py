# SPDX-License-Identifier: Apache-2.0
"""Numba's decorator of the kernels, with a cache of compiled code that works on a read-only disk.

This module imports numba, which takes 0.3 s. Import it inside the function that runs a kernel.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba import prange

__all__ = ["njit", "prange"]

logger = logging.getLogger(__name__)

SHARED_KERNELS = ("heads/kernels/*.py", "tree/*.py")
"""The files whose kernels may be called from kernels in other files."""


def njit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`numba.njit` with a cache: beside the source, in the user's cache folder or, if both are
    read-only, in the temporary folder. If that is impossible too, each process compiles again. The
    environment variable NUMBA_CACHE_DIR names another folder. Code is compiled again after a change
    of its own file, as Numba does, and of each file in `SHARED_KERNELS`, because kernels of those
    files may be compiled into it.
    """
    if function is None:
        return lambda function: njit(function, **options)
    for use_temporary in (False, True):
        if use_temporary:
            numba.config.CACHE_DIR = temporary_cache_folder() or numba.config.CACHE_DIR
        try:
            compiled = numba.njit(cache=True, **options)(function)
            file: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
            if hasattr(file, "_source_stamp"):  # private, so another version may not have it
                file._source_stamp = (file._source_stamp, _digest_of_kernels())
            return compiled
        except RuntimeError as error:
            if "no locator" not in str(error):
                raise
    logger.warning(
        "%s is compiled in each process: set NUMBA_CACHE_DIR to a folder to write to",
        function.__name__,
    )
    return numba.njit(**options)(function)


@cache
def _digest_of_kernels() -> str:
    package = Path(__file__).parents[1]
    digest = hashlib.blake2b(digest_size=16)
    paths = [path for pattern in SHARED_KERNELS for path in package.glob(pattern)]
    for path in sorted(paths):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def temporary_cache_folder() -> str | None:
    """A folder of this user in the temporary folder; None if there cannot be one that only this
    user writes to.

    Compiled code is loaded from it as pickles, so other users must not be able to write to it.
    """
    try:
        folder = Path(tempfile.gettempdir()) / f"wenet_hs-numba-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    is_own = folder.is_dir() and not folder.is_symlink() and status.st_uid == os.getuid()
    return str(folder) if is_own and not status.st_mode & 0o022 else None
