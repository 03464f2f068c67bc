# SPDX-License-Identifier: Apache-2.0
"""Atomic writes: a file has its old content or its new content, never a part."""

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_MAX_NAME = 200  # bytes, of 255 that a name of a temporary file may have


def fsync_path(path: Path) -> None:
    """Write the content of a file, or the renames inside a folder, to the disk: they then survive a
    power cut.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def open_atomic(path: Path | str) -> Iterator[IO[bytes]]:
    """A binary file to write that becomes `path` when the block ends without an error; otherwise it
    is deleted.

    An OSError of the temporary file names `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name
    if len(os.fsencode(name)) > _MAX_NAME:
        name = hashlib.blake2b(os.fsencode(name), digest_size=8).hexdigest()
    temporary = path.with_name(
        f".{name}.{secrets.token_hex(4)}.tmp"
    )  # of this write only: threads may write one file
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename, error.filename2 = str(path), None
        raise
    fsync_path(path.parent)


def write_atomic(path: Path | str, content: str | bytes) -> None:
    """Replace a file atomically; text is UTF-8."""
    with open_atomic(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)
