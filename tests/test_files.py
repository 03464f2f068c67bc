# SPDX-License-Identifier: Apache-2.0
"""Atomic writes."""

from pathlib import Path

import pytest

from wenet_hs.errors import DataError
from wenet_hs.files import locked, open_atomic


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
