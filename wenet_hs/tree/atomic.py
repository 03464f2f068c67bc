# SPDX-License-Identifier: Apache-2.0
"""Atomic writes: a file has its old content or its new content, never a part."""

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_MAX_NAME_BYTES = 200
"""The longest file name that is used in the name of its temporary file, which has 14 bytes more.

File systems allow 255 bytes.
"""


def write_atomic(path: Path | str, content: str | bytes) -> None:
    """Replace a file atomically; text is written as UTF-8.

    The folder is created if it is missing. If writing fails, the old file stays as it was, and the
    OSError names `path`.
    """
    if isinstance(content, str):
        content = content.encode("utf-8")
    with open_atomic(path) as file:
        file.write(content)


@contextmanager
def open_atomic(path: Path | str) -> Iterator[IO[bytes]]:
    """Open a binary file that replaces `path` when the block ends without an error.

    The block writes to a temporary file in the folder of `path`, which is created if it is missing.
    The content and the new name are on the disk when the call returns. If the block or the write
    fails, the temporary file is deleted, `path` keeps its old content, and the error is raised. An
    OSError of the temporary file names `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_path(path)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # A failed write names no file, and a failed open or rename names the temporary one.
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
            error.filename2 = None  # else the message would name the target of the rename too
        raise
    fsync_path(path.parent)


def _temporary_path(path: Path) -> Path:
    """A hidden name beside `path` that no other write uses: threads may write one file at once.

    A long name is replaced by its hash.
    """
    name = path.name
    if len(os.fsencode(name)) > _MAX_NAME_BYTES:
        name = hashlib.blake2b(os.fsencode(name), digest_size=8).hexdigest()
    return path.with_name(f".{name}.{secrets.token_hex(4)}.tmp")


def fsync_path(path: Path) -> None:
    """Write the content of a file, or the renames inside a folder, from memory to the disk.

    They then survive a power cut.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
