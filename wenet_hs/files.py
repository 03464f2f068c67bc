# SPDX-License-Identifier: Apache-2.0
"""Files that are either the old one or the complete new one, whatever happens while they are written."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from wenet_hs.errors import DataError


def fsync_path(path: Path) -> None:
    """Make the content of a file, or the renames inside a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def open_atomic(path: Path | str) -> Iterator[IO[bytes]]:
    """A binary file to write that becomes `path` when the block ends well, and leaves no trace when it does not.

    An OSError of this file names `path`, whatever went wrong with the temporary one (a full disk has no name at all).
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
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
    """Write a whole file at once; text is UTF-8."""
    with open_atomic(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def file_sha256(path: Path | str) -> str:
    """The SHA-256 of a file's content, as `sha256sum` prints it."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def one_field(text: str) -> str:
    """The text on one line and without tabs: control characters and line ends are shown as escapes."""
    return "".join(c if c.isprintable() or c == " " else c.encode("unicode_escape").decode("ascii") for c in text)


def read_lines(path: Path | str) -> list[str]:
    """The lines of a UTF-8 file, split at "\\n" alone (U+2028 and its kin are text), without a BOM or trailing CR.

    Raises DataError naming the file (and line) when it is missing or not UTF-8.
    """
    path = Path(path)
    try:
        content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        place = error.start - (content.rfind(b"\n", 0, error.start) + 1)
        raise DataError(f"{path}:{number}: not UTF-8 at byte {place}; convert the file to UTF-8") from error
    if b"\r" in content:
        lines = [line.removesuffix("\r") for line in lines]
    if lines and not lines[-1]:
        lines.pop()
    return lines
