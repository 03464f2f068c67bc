# SPDX-License-Identifier: Apache-2.0
"""Atomic writes, errors that name the written file, and lines of text files."""

import errno
import os
from pathlib import Path

import pytest

from wenet_hs.errors import DataError
from wenet_hs.files import open_atomic, read_lines, write_atomic


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomic(path, b"\0")
    write_atomic(path, "é\n")
    with pytest.raises(KeyboardInterrupt), open_atomic(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"\xc3\xa9\n"
    assert list(path.parent.iterdir()) == [path]


def test_an_error_names_the_file_that_was_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        write_atomic(tmp_path, "x")
    assert (caught.value.filename, caught.value.filename2) == (str(tmp_path), None)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught_full:
        write_atomic(tmp_path / "file", "x")
    assert caught_full.value.filename == str(tmp_path / "file")


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa\r\nb\xe2\x80\xa8c\x0b\n\nd")
    assert read_lines(tmp_path / "f") == ["a", "b\u2028c\x0b", "", "d"]
    (tmp_path / "f").write_bytes(b"ok\n\xc3")
    with pytest.raises(DataError, match=r"f:2: not UTF-8 at byte 0; convert the file to UTF-8$"):
        read_lines(tmp_path / "f")
