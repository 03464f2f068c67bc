# SPDX-License-Identifier: Apache-2.0
"""Reading of text files and JSON, a cache of read files, and locks of folders."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from wenet_hs.tree.errors import CheckpointError, ConfigError, DataError, WenetHsError, one_line

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk: no space, quota exceeded, file too large."""
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""The beginning of a file that Git LFS writes in place of a large file."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8, with which some programs begin a text file."""
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""A control character, tab, line end or half of a surrogate pair."""
_DECOMPRESS: dict[str, Callable[..., IO[bytes]]] = {
    ".gz": gzip.open,  # type: ignore[dict-item]
    ".xz": lzma.open,
    ".bz2": bz2.open,
}
"""The function that opens a compressed file, by the suffix of its compression."""
_COMPRESSED = {
    ".gz": re.compile(rb"\x1f\x8b"),
    ".xz": re.compile(rb"\xfd7zXZ\0"),
    # The size of its blocks, and the mark of the first block, or of the end if it has no content.
    ".bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
}
"""The first bytes of a compressed file, by the suffix of its compression."""
_NUM_FIRST_BYTES = 16
"""How many bytes of a file are looked at to see whether it is compressed."""
Value = TypeVar("Value")


# ---- text


def read_lines(path: Path | str) -> list[str]:
    """All lines of `iterate_lines`."""
    return list(iterate_lines(path))


def iterate_lines(path: Path | str) -> Iterator[str]:
    """The lines of a UTF-8 file, each without its line end; the file is never whole in memory.

    Only "\\n" or "\\r\\n" ends a line: U+2028 and the like are text. A byte order mark is left out.
    A file of gzip, xz or bzip2 is decompressed, also if its name does not say so.
    Raises DataError naming the file, and the line if it is known, if the file cannot be read, is
    damaged, is a pointer of Git LFS, or is not UTF-8.
    """
    path = Path(path)
    with _open_to_read(path) as file:
        for number, line in enumerate(file, start=1):
            content = line
            if number == 1:
                if line.startswith(LFS_POINTER):
                    _refuse_binary(path)  # raises: says what the file is and what to do
                content = line.removeprefix(_BYTE_ORDER_MARK)
            try:
                yield content.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                _refuse_binary(path)  # raises if the file is a known kind of binary file
                found = f"not UTF-8 at byte {error.start}"
                raise DataError(f"{path}:{number}", found, "convert the file to UTF-8") from error


def read_json(path: Path, to_do: str) -> Any:
    """The content of a JSON file.

    Raises DataError if it cannot be read or is damaged. `to_do`: what the user can do about a
    damaged file, for the message.
    """
    text = "\n".join(read_lines(path))
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(path, f"damaged ({error})", to_do) from error


def read_bytes(path: Path) -> bytes:
    """The content of a text file, decompressed if it is a file of gzip, xz or bzip2.

    Raises DataError if it cannot be read, or if `describe_binary` finds that it is not text.
    """
    with _open_to_read(path) as file:
        content = file.read()
    description = describe_binary(content)
    if description is not None:
        raise DataError(path, description)
    return content


def _refuse_binary(path: Path) -> None:
    """Raise DataError if `describe_binary` finds that a file is not text; otherwise do nothing."""
    read_bytes(path)


@contextmanager
def _open_to_read(path: Path) -> Iterator[IO[bytes]]:
    """A binary file to read; it is decompressed if its name or its content shows gzip, xz or bzip2.

    The file is opened once, because it may be a pipe.
    Raises DataError for every OSError and every error of decompression, also for those inside of
    the block.
    """
    compression = ""
    try:
        with path.open("rb") as file:
            if path.suffix in _DECOMPRESS:
                compression = path.suffix
            else:
                compression = _recognize_compression(file.peek(_NUM_FIRST_BYTES))
            if not compression:
                yield file
                return
            with _DECOMPRESS[compression](file, "rb") as decompressed:
                yield decompressed
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise _make_incomplete_error(path, compression, error) from error
    except OSError as error:
        if error.errno is None:  # of bz2: "Invalid data stream"
            raise _make_incomplete_error(path, compression, error) from error
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from error


def _recognize_compression(first_bytes: bytes) -> str:
    """The suffix of the compression that a file with these first bytes has; empty for none."""
    for suffix, signature in _COMPRESSED.items():
        if signature.match(first_bytes):
            return suffix
    return ""


def _make_incomplete_error(path: Path, compression: str, error: Exception) -> DataError:
    """The error for a compressed file that cannot be decompressed. `compression`: its suffix."""
    found = f"not a complete {compression} file ({one_line(error)})"
    return DataError(path, found, "copy it again, or compress the text again")


# ---- files that are not text


@dataclass(frozen=True)
class _BinaryKind:
    """A kind of file that users give where a text file is expected."""

    signature: bytes
    """The content at `position`."""
    description: str
    """What such a file is, and what to do."""
    position: int = 0
    """Bytes of the file before the signature."""


_BINARY_KINDS = (
    _BinaryKind(
        LFS_POINTER,
        "a Git LFS pointer, not the file itself; run `git lfs pull` in its folder",
    ),
    _BinaryKind(  # .xlsx, .ods, .docx
        b"PK\x03\x04",
        "a ZIP archive, or a file of a spreadsheet or word processor; "
        "unpack it, or save it there as CSV in UTF-8",
    ),
    _BinaryKind(  # .xls, .doc
        b"\xd0\xcf\x11\xe0",
        "a file of a spreadsheet or word processor; save it there as CSV in UTF-8",
    ),
    _BinaryKind(
        b"PAR1",
        "Parquet; in Python, `pandas.read_parquet(…).to_csv(…)` writes a table",
    ),
    _BinaryKind(
        b"ARROW1",
        "a dataset in Arrow; in Python, `datasets.load_from_disk(…).to_csv(…)` writes a table",
    ),
    _BinaryKind(
        b"ustar",
        "a tar; WeNet's shards are trained with a list of tars and --data_type shard, "
        "others unpack first",
        position=257,
    ),
    _BinaryKind(
        b"RIFF",
        "audio, not text; name the table or list",
    ),
    _BinaryKind(
        b"mmap lm http://kheafield.com/",
        "a binary language model of KenLM; decompress it and give it to --lm",
    ),
)


def describe_binary(content: bytes) -> str | None:
    """What a file with this content is, and what to do with it; None if it may be text.

    The first 512 bytes of the file are enough.
    """
    for kind in _BINARY_KINDS:
        if content.startswith(kind.signature, kind.position):
            return kind.description
    return None


def refuse_lfs_pointer(path: Path) -> None:
    """Raise CheckpointError if a file of weights is only a pointer of Git LFS to its content."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        is_pointer = file.read(len(LFS_POINTER)) == LFS_POINTER
    if is_pointer:
        to_do = "run `git lfs pull` in this folder"
        raise CheckpointError(path, "a pointer of Git LFS", to_do)


# ---- parts of commands


def check_replaceable(flag: str, path: Path | None, mark: str) -> None:
    """Raise DataError if `path` is a file that no earlier run of this command has written.

    Such a file has `mark` in its first 4,096 bytes. None, a path without a file, and an empty file
    are replaceable. `flag`: the option that gave the path, for the message.
    """
    if path is None or not path.is_file():
        return
    with path.open("rb") as file:
        beginning = file.read(4096)
    if beginning and mark.encode("utf-8") not in beginning:
        found = "exists, and is no earlier result of this command"
        raise DataError(f"{flag} {path}", found, "name another file")


def file_sha256(path: Path | str) -> str:
    """The SHA-256 of a file's content in hexadecimal digits, as `sha256sum` prints it."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def one_field(text: str) -> str:
    """The text on one line and without tabs: control characters and line ends become escapes."""
    return _CONTROL_CHARACTER.sub(_escape_match, text)


def _escape_match(match: re.Match[str]) -> str:
    r"""The matched characters as escapes of Python, such as `\n`."""
    return match.group().encode("unicode_escape").decode("ascii")


def too_many_files(where: str) -> ConfigError:
    """The error of a process that has as many open files as the system allows it."""
    to_do = "raise their limit with `ulimit -n 65536`, or lower num_workers"
    return ConfigError(where, "too many open files", to_do)


def remove_incomplete_line(path: Path) -> bytes:
    """Remove the last line of a file if it has no line end, and return the rest of the content.

    A killed run may have left such a line. The content of a missing file is empty.
    """
    content = path.read_bytes() if path.exists() else b""
    num_complete_bytes = content.rfind(b"\n") + 1  # 0 if there is no line end
    if num_complete_bytes < len(content):
        os.truncate(path, num_complete_bytes)
    return content[:num_complete_bytes]


# ---- cache


@dataclass(frozen=True)
class _CachedRead:
    """The result of a function that read one version of a file."""

    version: tuple[int, int, int]
    """Time of the last change in ns, size in bytes, and inode."""
    value: Any


_CACHE: dict[tuple[Callable[[Path], Any], Path], _CachedRead] = {}
"""What was read, by the function that read and the path; the entry that was used last is the last.
"""
_MAX_CACHED = 32
"""The greatest number of entries of the cache."""
_CACHE_MUTEX = threading.Lock()


def read_cached(read: Callable[[Path], Value], path: Path, default: Value | None = None) -> Value:
    """The result of `read(path)`, kept in a cache until the file changes.

    If the file does not exist, the default is returned. Without a default, `Path.stat` raises
    OSError; the errors of `read` are raised too.
    The cache holds the 32 results that were used last. Several threads may call this.
    """
    if default is not None and not path.is_file():
        return default
    status = path.stat()
    version = (status.st_mtime_ns, status.st_size, status.st_ino)
    key = (read, path)
    cached = _CACHE.get(key)
    if cached is None or cached.version != version:
        # Without the mutex, so that other threads do not wait for the read.
        cached = _CachedRead(version, read(path))
    with _CACHE_MUTEX:
        _CACHE.pop(key, None)  # a new entry of a dict is its last one
        _CACHE[key] = cached
        while len(_CACHE) > _MAX_CACHED:
            least_recent = next(iter(_CACHE))
            del _CACHE[least_recent]
    value: Value = cached.value
    return value


# ---- locks


@contextmanager
def locked(
    folder: Path, *, flag: str, work: str, error_class: type[WenetHsError]
) -> Iterator[None]:
    """Lock the folder for this process, so that one run at a time writes there.

    Makes the folder, and a file `.lock` in it that names this process and its computer.
    It is a record lock (`lockf`): unlike `flock`, worker processes do not inherit it. They outlive
    a kill of this process by seconds and would lock the folder for the next run.

    Args:
        flag: the option that names the folder, for the message.
        work: what is done in the folder, for the message, such as `training`.
    Raises: `error_class` if another run writes there, or the folder cannot be made or locked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock_file = _open_lock_file(folder)
    except OSError as error:
        found = f"cannot be written ({error.strerror})"
        raise error_class(folder, found, f"use another {flag}") from error
    with lock_file:
        try:
            fcntl.lockf(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            is_held = error.errno in (errno.EACCES, errno.EAGAIN)
            if not is_held:
                found = f"cannot be locked ({error.strerror})"
                raise error_class(folder, found, "use another disk") from error
            # The file is empty until the other process has written its number.
            holder = lock_file.read().strip() or "starting"
            found = f"another {work} writes here ({holder})"
            raise error_class(folder, found, f"wait for it or use another {flag}") from error
        lock_file.truncate(0)
        lock_file.write(f"process {os.getpid()} on {platform.node()}\n")
        lock_file.flush()
        yield


def _open_lock_file(folder: Path) -> IO[str]:
    """The file `.lock` of a folder, to read and write; it is made if it does not exist.

    Raises OSError if it is a symbolic link: others may write in the folder, and the target of
    their link would be overwritten.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder / ".lock", flags, 0o666)
    return os.fdopen(descriptor, "r+", encoding="utf-8")


@dataclass(frozen=True)
class _FlockLayout:
    """The members of `struct flock` on an operating system, in the order of its memory."""

    struct_format: str
    members: tuple[str, ...]


_FLOCK_LINUX = _FlockLayout("hhqqi", ("type", "whence", "start", "length", "process"))
_FLOCK_MACOS = _FlockLayout("qqihh", ("start", "length", "process", "type", "whence"))


def lock_holder(folder: Path) -> int | None:
    """The number of the process that holds the lock of `locked` on a folder, or None.

    None also if the lock cannot be read. The lock itself is not changed.
    A process must not ask about a lock that it holds: closing the file would release it.
    """
    # The question and the answer are a `struct flock`, whose members have another order on macOS.
    # The question is a write lock of the whole file: a length of 0 means to its end.
    # The answer is the lock that is in its way, or F_UNLCK if there is none.
    layout = _FLOCK_MACOS if sys.platform == "darwin" else _FLOCK_LINUX
    question = {"type": fcntl.F_WRLCK, "whence": os.SEEK_SET, "start": 0, "length": 0, "process": 0}
    packed = struct.pack(layout.struct_format, *(question[name] for name in layout.members))
    try:
        with (folder / ".lock").open("rb") as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, packed)
    except OSError:
        return None
    lock = dict(zip(layout.members, struct.unpack(layout.struct_format, answer), strict=True))
    if lock["type"] == fcntl.F_UNLCK:
        return None
    return int(lock["process"])
