# SPDX-License-Identifier: Apache-2.0
"""Numba's decorator of the kernels, with a cache of compiled code that works on a read-only disk.

This module imports numba, which takes 0.3 s. Import it inside the function that runs a kernel.
"""

import hashlib
import logging
import os
import stat
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
    """Compile a kernel with `numba.njit` and cache the machine code on disk.

    The cache is beside the source or in the user's cache folder. If both are read-only, it is in
    the temporary folder. If that is impossible too, each process compiles again, and a warning is
    logged. The environment variable NUMBA_CACHE_DIR names another folder.

    `options` are numba's. With options only, as in `@njit(parallel=True)`, the result is a
    decorator.
    """
    if function is None:
        return lambda decorated: njit(decorated, **options)
    compiled = _compile_with_cache(function, options)
    if compiled is None:
        folder = temporary_cache_folder()
        if folder is not None:
            numba.config.CACHE_DIR = folder
            compiled = _compile_with_cache(function, options)
    if compiled is None:
        logger.warning(
            "%s is compiled in each process: set NUMBA_CACHE_DIR to a folder to write to",
            function.__name__,
        )
        compiled = numba.njit(**options)(function)
    return compiled


def _compile_with_cache(function: Callable[..., Any], options: dict[str, Any]) -> Any | None:
    """The kernel with numba's cache, or None if numba can write to none of its cache folders.

    Numba compiles again after a change of the kernel's own file. Here that also happens after a
    change of any file in `SHARED_KERNELS`, because its kernels may be compiled into this one.
    """
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError as error:
        has_no_folder = "no locator" in str(error)  # numba's message
        if not has_no_folder:
            raise
        return None
    # These three names are private in numba. Without a compiler (NUMBA_DISABLE_JIT) there is no
    # cache, and another version of numba may have other names. Then only a change of the kernel's
    # own file is noticed.
    # Numba compiles again if this stamp is not that of the cached code.
    cache_file: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if hasattr(cache_file, "_source_stamp"):
        cache_file._source_stamp = (cache_file._source_stamp, _digest_of_kernels())
    return compiled


@cache
def _digest_of_kernels() -> str:
    """A hash of the content of all files in `SHARED_KERNELS`."""
    package = Path(__file__).parents[1]
    paths: list[Path] = []
    for pattern in SHARED_KERNELS:
        paths += package.glob(pattern)
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(paths):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def temporary_cache_folder() -> str | None:
    """Create a folder for compiled code in the temporary folder, or use the one of an earlier call.

    Returns None if there is no folder there that belongs to this user and that only this user can
    write to. Numba loads the compiled code as pickles, which may contain any code.
    """
    try:
        folder = Path(tempfile.gettempdir()) / f"wenet_hs-numba-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()  # of the link itself, if another user has put a link there
    except OSError:
        return None
    is_folder_of_user = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    others_can_write = bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    return str(folder) if is_folder_of_user and not others_can_write else None
