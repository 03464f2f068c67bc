# SPDX-License-Identifier: Apache-2.0
"""User errors: fields, text, and the way from one process to another."""

import pickle
from pathlib import Path

import pytest

from wenet_hs.base.files import too_many_files
from wenet_hs.data.audio import AudioError, ClipError
from wenet_hs.tree.errors import (
    ConfigError,
    DataError,
    Stopped,
    WenetHsError,
    list_names,
    refuse_faults,
)


def test_the_line_has_the_three_fields() -> None:
    error = ConfigError(Path("a/train.yaml"), "no setting `x`", "remove it")
    assert (error.where, error.found, error.to_do) == (
        "a/train.yaml",
        "no setting `x`",
        "remove it",
    )
    assert str(error) == "a/train.yaml: no setting `x`; remove it"
    assert str(DataError("list", "empty")) == "list: empty"
    assert str(DataError("one: fault\nanother: fault")) == "one: fault\nanother: fault"
    assert too_many_files("data").to_do.startswith("raise their limit")


def test_long_lists_of_names_and_faults_are_cut() -> None:
    assert list_names(["a", "b"]) == "a, b"
    assert list_names(list("abcdef"), " ", most=2) == "a b, and 4 more"
    refuse_faults("list", [])
    with pytest.raises(DataError) as caught:
        refuse_faults("list", [f"list:{line}: wrong" for line in range(12)])
    lines = str(caught.value).splitlines()
    assert lines[0] == "list:0: wrong" and lines[9] == "list:9: wrong"
    assert lines[10:] == ["list: and 2 more faults"]


def test_errors_are_equal_in_another_process() -> None:
    errors: list[WenetHsError] = [
        DataError(Path("d"), "empty", "give data"),
        AudioError("a.wav", "cut off", "restore it"),
        ClipError("key", "a.wav", "cut off", "restore it"),
        Stopped("ckpt", "stopped by SIGTERM", "run it again", 143),
    ]
    for error in errors:
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert copy.exit_code == error.exit_code
