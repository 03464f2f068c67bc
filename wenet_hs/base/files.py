# SPDX-License-Identifier: Apache-2.0
"""Folder locks, reading text files, and a cache of files that were read."""

import bz2
import errno
import fcntl
import gzip
import hashlib
import json
import lzma
import os
import platform
import re
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from wenet_hs.tree.errors import CheckpointError, ConfigError, DataError, WenetHsError, one_line

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk: no space, quota exceeded, file too large."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MAX_CACHED = 32
_CACHE: dict[tuple[Callable[[Path], Any], Path], tuple[tuple[int, int, int], Any]] = {}
_CACHE_MUTEX = threading.Lock()
Value = TypeVar("Value")
_DECOMPRESS: dict[str, Callable[..., IO[bytes]]] = {
    ".gz": gzip.open,  # type: ignore[dict-item]
    ".xz": lzma.open,
    ".bz2": bz2.open,
}
_COMPRESSED = {
    ".gz": re.compile(rb"\x1f\x8b"),
    ".xz": re.compile(rb"\xfd7zXZ\0"),
    # The size of its blocks, and the mark of the first block, or of the end if it has no content.
    ".bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
}
"""How a compressed file is named → its first bytes."""
_MAX_MARK = 16
"""Bytes of the beginning of a file that show whether it is compressed."""


def check_replaceable(flag: str, path: Path | None, mark: str) -> None:
    """Raise DataError if `path` is a file without the mark of an earlier result in its first 4,096
    bytes.
    """
    if path is None or not path.is_file():
        return
    with path.open("rb") as file:
        found = file.read(4096)
    if found and mark.encode("utf-8") not in found:
        raise DataError(
            f"{flag} {path}",
            "exists, and is no earlier result of this command",
            "name another file",
        )


def file_sha256(path: Path | str) -> str:
    """The SHA-256 of a file's content, as `sha256sum` prints it."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def one_field(text: str) -> str:
    """The text on one line and without tabs: control characters and line ends become escapes."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_OFFICE = "a file of a spreadsheet or word processor; save it there as CSV in UTF-8"
_ZIP = "a ZIP archive, or a file of a spreadsheet or word processor; unpack it, or save it there as CSV in UTF-8"
_BINARY = (
    (0, LFS_POINTER, "a Git LFS pointer, not the file itself; run `git lfs pull` in its folder"),
    (0, b"PK\x03\x04", _ZIP),  # .xlsx, .ods, .docx
    (0, b"\xd0\xcf\x11\xe0", _OFFICE),  # .xls, .doc
    (0, b"PAR1", "Parquet; in Python, `pandas.read_parquet(…).to_csv(…)` writes a table"),
    (
        0,
        b"ARROW1",
        "a dataset in Arrow; in Python, `datasets.load_from_disk(…).to_csv(…)` writes a table",
    ),
    (
        257,
        b"ustar",
        "a tar; WeNet's shards are trained with a list of tars and --data_type shard, others unpack first",
    ),
    (0, b"RIFF", "audio, not text; name the table or list"),
    (
        0,
        b"mmap lm http://kheafield.com/",
        "a binary language model of KenLM; decompress it and give it to --lm",
    ),
)
"""Position, content there, and what such a file is and what to do."""


def too_many_files(where: str) -> ConfigError:
    """The error of a process that has as many open files as it may have."""
    return ConfigError(
        where,
        "too many open files",
        "raise their limit with `ulimit -n 65536`, or lower num_workers",
    )


def refuse_lfs_pointer(path: Path) -> None:
    """Raise CheckpointError if a file of weights is not there yet, only its pointer of Git LFS."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise CheckpointError(
                    path, "a pointer of Git LFS", "run `git lfs pull` in this folder"
                )


def describe_binary(content: bytes) -> str | None:
    """What a file is that is not the text, and what to do; None: it may be text."""
    return next((found for start, mark, found in _BINARY if content.startswith(mark, start)), None)


def read_bytes(path: Path) -> bytes:
    """The content of a text file, decompressed if it is one of gzip, xz or bzip2.

    Raises DataError, also if it is no text.
    """
    with _open_to_read(path) as file:
        content = file.read()
    if kind := describe_binary(content):
        raise DataError(path, kind)
    return content


def _compression_of(first_bytes: bytes) -> str:
    """The suffix of a compressed file that begins so; empty if it is not compressed."""
    for name, mark in _COMPRESSED.items():
        if mark.match(first_bytes):
            return name
    return ""


@contextmanager
def _open_to_read(path: Path) -> Iterator[IO[bytes]]:
    """A file, decompressed if it is one of gzip, xz or bzip2 by its name or its content.

    Errors of the block become DataErrors. The file is opened once: it may be a pipe.
    """
    kind = path.suffix
    try:
        with path.open("rb") as file:
            if kind not in _DECOMPRESS:
                first_bytes = file.peek(_MAX_MARK)
                kind = _compression_of(first_bytes)
            if not kind:
                yield file
                return
            with _DECOMPRESS[kind](file, "rb") as content:
                yield content
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise _make_incomplete_error(path, kind, error) from error
    except OSError as error:
        if error.errno is None:  # of bz2: "Invalid data stream"
            raise _make_incomplete_error(path, kind, error) from error
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from error


def _make_incomplete_error(path: Path, kind: str, error: Exception) -> DataError:
    """The error for a compressed file that cannot be decompressed. `kind`: its suffix."""
    found = f"not a complete {kind} file ({one_line(error)})"
    return DataError(path, found, "copy it again, or compress the text again")


def read_lines(path: Path | str) -> list[str]:
    """All lines of `iterate_lines`."""
    return list(iterate_lines(path))


def iterate_lines(path: Path | str) -> Iterator[str]:
    """The lines of a UTF-8 file without a BOM or trailing CR.

    Only "\\n" ends a line; U+2028 and the like are text.

    A file of gzip, xz or bzip2 is decompressed, also under another name. The file is never in
    memory as a whole.
    Raises DataError naming the file (and line) if it is missing, damaged or not UTF-8.
    """
    path = Path(path)
    with _open_to_read(path) as file:
        for number, line in enumerate(file, start=1):
            if number == 1 and line.startswith(LFS_POINTER):
                read_bytes(path)
            content = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            try:
                yield content.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                read_bytes(path)  # says what it is
                found = f"not UTF-8 at byte {error.start}"
                raise DataError(f"{path}:{number}", found, "convert the file to UTF-8") from error


def read_json(path: Path, to_do: str) -> Any:
    """The content of a JSON file.

    Raises DataError with the advice `to_do` if it is missing or damaged.
    """
    text = "\n".join(read_lines(path))
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(path, f"damaged ({error})", to_do) from error


def read_cached(read: Callable[[Path], Value], path: Path, default: Value | None = None) -> Value:
    """The result of `read`, which is called again if the file has changed; without the file the
    default, if given.
    """
    if default is not None and not path.is_file():
        return default
    state = path.stat()
    mark = (state.st_mtime_ns, state.st_size, state.st_ino)
    known = _CACHE.get((read, path))
    if known is None or known[0] != mark:
        known = (mark, read(path))  # outside of the lock: other pages do not wait
    with _CACHE_MUTEX:
        _CACHE.pop((read, path), None)
        _CACHE[read, path] = known
        while len(_CACHE) > _MAX_CACHED:
            del _CACHE[next(iter(_CACHE))]
    value: Value = known[1]
    return value


def remove_incomplete_line(path: Path) -> bytes:
    """The content of a file without an incomplete last line of a killed run, which is removed;
    empty for no file.
    """
    content = path.read_bytes() if path.exists() else b""
    size = content.rfind(b"\n") + 1
    if size < len(content):
        os.truncate(path, size)
    return content[:size]


@contextmanager
def locked(
    folder: Path, *, flag: str, work: str, error_class: type[WenetHsError]
) -> Iterator[None]:
    """Lock the folder for this process, so that one run at a time writes there.

    It is a record lock (`lockf`): unlike `flock`, worker processes do not inherit it. They outlive
    a kill of this process by seconds and would lock the folder for the next run.

    `flag`: the option that names the folder; `work`: what is done there; both for the message.
    Raises: `error_class` if another run writes there, or the folder cannot be made or locked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # No link: the folder may be of somebody else, and the file is overwritten.
        number = os.open(
            folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
        )
        file = os.fdopen(number, "r+", encoding="utf-8")
    except OSError as error:
        raise error_class(
            folder, f"cannot be written ({error.strerror})", f"use another {flag}"
        ) from error
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise error_class(
                    folder, f"cannot be locked ({error.strerror})", "use another disk"
                ) from error
            file.seek(0)
            found = f"another {work} writes here ({file.read().strip() or 'starting'})"
            raise error_class(folder, found, f"wait for it or use another {flag}") from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        yield


def lock_holder(folder: Path) -> int | None:
    """The process that holds the lock of `locked` on a folder, or None.

    The lock itself is not touched.

    A process must not ask about a lock that it holds: closing the file would release it.
    """
    is_mac = sys.platform == "darwin"
    asked = (
        (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET) if is_mac else (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    )
    layout = (
        "qqihh" if is_mac else "hhqqi"
    )  # struct flock: start, length, process, type, whence; or type first
    try:
        with (folder / ".lock").open("rb") as file:
            found = struct.unpack(
                layout, fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(layout, *asked))
            )
    except OSError:
        return None
    kind, process = (found[3], found[2]) if is_mac else (found[0], found[4])
    return None if kind == fcntl.F_UNLCK else int(process)
