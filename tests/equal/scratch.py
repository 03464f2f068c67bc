# SPDX-License-Identifier: Apache-2.0
"""Temporary folders that survive the end of forked processes.

A `tempfile.TemporaryDirectory` is deleted when the first fork of this process ends.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, which is deleted at the end of the block. Its path has a fixed length."""
    folder = Path(tempfile.mkdtemp(prefix="equal-")).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
