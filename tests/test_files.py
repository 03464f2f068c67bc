# SPDX-License-Identifier: Apache-2.0
"""Atomic writes."""

from pathlib import Path

from wenet_hs.files import open_atomic


def test_two_writes_of_one_file_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with open_atomic(path) as first, open_atomic(path) as second:
        first.write(b"first")
        second.write(b"second, which ends earlier")
    assert path.read_bytes() == b"first"
    assert [one.name for one in tmp_path.iterdir()] == ["a.txt"]
