# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of audio are: a file, a URL, or a piece of either, written `PATH#OFFSET+SIZE` (a member of a tar).

URLs go through fsspec, which is imported when the first one is met, and read by byte ranges. Nothing passes a shell.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from wenet_hs.errors import ConfigError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::|://)")
_PIECE = re.compile(r"(.+)#(\d+)\+(\d+)", re.DOTALL)


class SourceFault(Exception):
    """Why bytes cannot be had, without the name of where they are."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells a file from the same file changed since."""

    size: int
    """Bytes."""
    version: str
    """Time of the last change on disk; what the server calls a version of a URL, empty if nothing."""


def is_url(source: str) -> bool:
    """Whether fsspec reads it: `https://…`, `s3://…`, `simplecache::https://…`."""
    return _URL.match(source) is not None


def piece_of(source: str, offset: int, size: int) -> str:
    """The name of `size` bytes of a file or URL from byte `offset` on."""
    return f"{source}#{offset}+{size}"


def fetch(source: str | Path | bytes) -> str | Path | bytes:
    """The bytes of a URL or of a piece; a whole file on disk, and bytes, as they came. Raises SourceFault."""
    if not isinstance(source, str):
        return source
    piece = _PIECE.fullmatch(source)
    if piece is None:
        return _read_url(source, 0, None) if is_url(source) else source
    where, offset, size = piece[1], int(piece[2]), int(piece[3])
    content = _read_url(where, offset, size) if is_url(where) else _read_file(where, offset, size)
    if len(content) < size:
        raise SourceFault(f"cut off: {len(content)} of {size} bytes are there")
    return content


def stamp(source: str) -> Stamp:
    """The size and version of a file or URL. Raises SourceFault where there is none."""
    if is_url(source):
        info = _remote(lambda filesystem, path: filesystem.info(path), source)
        version = next((str(info[name]) for name in ("ETag", "etag", "md5Hash", "mtime") if info.get(name)), "")
        return Stamp(int(info["size"] or 0), version)
    try:
        status = Path(source).stat()
    except OSError as error:
        raise SourceFault(f"cannot be read ({error.strerror})") from error
    return Stamp(status.st_size, str(status.st_mtime_ns))


def open_source(source: str) -> IO[bytes]:
    """A file or URL to read and seek in. Raises SourceFault."""
    if is_url(source):
        opened: IO[bytes] = _remote(lambda filesystem, path: filesystem.open(path, "rb"), source)
        return opened
    try:
        return Path(source).open("rb")
    except OSError as error:
        raise SourceFault(f"cannot be read ({error.strerror})") from error


def _read_file(path: str, offset: int, size: int) -> bytes:
    try:
        with Path(path).open("rb") as file:
            file.seek(offset)
            return file.read(size)
    except OSError as error:
        raise SourceFault(f"cannot be read ({error.strerror})") from error


def _read_url(url: str, offset: int, size: int | None) -> bytes:
    end = None if size is None else offset + size
    content: bytes = _remote(lambda filesystem, path: filesystem.cat_file(path, start=offset, end=end), url)
    return content


def _remote(call: Any, url: str) -> Any:
    """call(filesystem, path in it). What a server or a plug-in of fsspec raises is of any class."""
    try:
        import fsspec
    except ImportError as error:
        raise ConfigError(f"{url}: URLs need fsspec; pip install 'wenet_hs[remote]'") from error
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
        return call(filesystem, path)
    except Exception as error:
        text = str(error) or type(error).__name__
        raise SourceFault(f"cannot be read ({' '.join(text.split())})") from error
