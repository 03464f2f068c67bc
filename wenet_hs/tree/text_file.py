# SPDX-License-Identifier: Apache-2.0
"""Reads the text files of trees: UTF-8, with one line per fault."""

from pathlib import Path

from wenet_hs.tree.errors import DataError

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""The first bytes of the small file that Git LFS writes in place of a large one."""


def read_utf8(path: Path | str) -> str:
    """The text of a UTF-8 file, without a byte order mark.

    Raises DataError if the file cannot be read, is a pointer of Git LFS, or is not UTF-8; the last
    error names the line and the byte.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from error
    if content.startswith(_LFS_POINTER):
        raise DataError(
            path, "a Git LFS pointer, not the file itself; run `git lfs pull` in its folder"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        fault = f"not UTF-8 at byte {error.start}"
        raise DataError(f"{path}:{line}", fault, "convert the file to UTF-8") from error
