# SPDX-License-Identifier: Apache-2.0
"""Atomic writes, compressed files under any name, and JSON files."""

import bz2
from pathlib import Path

import pytest

from wenet_hs.base.files import locked, read_bytes, read_json, read_lines
from wenet_hs.tree.atomic import open_atomic
from wenet_hs.tree.errors import DataError


def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    (folder := tmp_path / "of_others").mkdir()
    (folder / ".lock").symlink_to(tmp_path / "thesis.txt")
    with (
        pytest.raises(DataError, match=r"of_others: cannot be written \(.*\); use another --x"),
        locked(folder, flag="--x", work="y", error_class=DataError),
    ):
        pass
    assert (tmp_path / "thesis.txt").read_text() == "all of it"


def test_two_writes_of_one_file_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with open_atomic(path) as first, open_atomic(path) as second:
        first.write(b"first")
        second.write(b"second, which ends earlier")
    assert path.read_bytes() == b"first"
    assert [one.name for one in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("text", ["BZh01 hello there\nBZh02 no", "BZh9 hello", "BZh", "BZh91AY"])
def test_a_text_that_begins_as_bzip2_is_text(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ref.txt"
    path.write_text(text)
    assert read_lines(path) == text.split("\n")
    assert read_bytes(path) == text.encode()


@pytest.mark.parametrize("text", ["hello there", ""])
def test_bzip2_under_another_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ref.txt"
    path.write_bytes(bz2.compress(text.encode()))
    assert read_bytes(path) == text.encode()


def test_an_incomplete_bzip2_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ref.txt"
    path.write_bytes(bz2.compress(b"hello there")[:-8])
    with pytest.raises(DataError, match=r"ref.txt: not a complete .bz2 file \(.*\); copy it again"):
        read_bytes(path)


def test_a_json_file_is_read_and_a_damaged_one_names_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes('\ufeff{"a": ["é", null]}\n'.encode())
    assert read_json(path, "write it again") == {"a": ["é", None]}
    for content in ('{"a": ', "[" * 100_000):
        path.write_text(content)
        with pytest.raises(DataError, match=r"a.json: damaged \(.*\); write it again"):
            read_json(path, "write it again")
