# SPDX-License-Identifier: Apache-2.0
"""The options with which a folder was made: written, read and compared."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wenet_hs.bin import keep_options
from wenet_hs.bin.main import run_command
from wenet_hs.recipes.folder_options import (
    FORMAT,
    FolderOptions,
    absolute_values,
    has_options,
    portable_values,
    read_folder_options,
    write_folder_options,
)
from wenet_hs.tree.errors import DataError

NAMES = st.from_regex(r"[a-z][a-z_]{0,9}", fullmatch=True)


@given(st.dictionaries(NAMES, st.text(st.characters(codec="utf-8"))))
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory,
    values: dict[str, str],
) -> None:
    folder = tmp_path_factory.mktemp("folder")
    write_folder_options(folder, FolderOptions("own", values))
    assert read_folder_options(folder) == FolderOptions("own", values)


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    assert not has_options(tmp_path) and read_folder_options(tmp_path) is None
    write_folder_options(tmp_path, FolderOptions("mini", {"langs": "it"}))
    assert has_options(tmp_path)
    assert json.loads((tmp_path / "options.json").read_text("utf-8")) == {
        "format": FORMAT,
        "recipe": "mini",
        "options": {"langs": "it"},
    }


def test_recordings_stay_and_other_paths_move_with_the_recipe(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe_dir = tmp_path / "examples/own/s0"
    recipe_dir.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    values = {"elan": "field/../fieldwork", "base": "", "data": "D", "lang": "mdw/x", "kaldi": ""}
    portable = portable_values(values, recipe_dir)
    assert portable == {
        "elan": f"{tmp_path}/fieldwork",
        "base": "",
        "data": "../../../D",
        "lang": "mdw/x",
        "kaldi": "",
    }
    moved = Path("/elsewhere/examples/own/s0")
    assert absolute_values(portable, moved) == portable | {"data": "/elsewhere/D"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON (Expecting property name"),
        ("[]", f"has the format None, not {FORMAT!r}"),
        ('{"format": "wenet_hs.options/9"}', "has the format 'wenet_hs.options/9', not 'wenet"),
        ('{"format": "wenet_hs.options/1"}', "has no options with text as values"),
        (
            '{"format": "wenet_hs.options/1", "options": {"hours": 1}}',
            "has no options with text as values",
        ),
    ],
)
def test_a_damaged_file_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text(text)
    with pytest.raises(DataError) as caught:
        read_folder_options(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/options.json: {message}")
    assert "\n" not in str(caught.value)


def test_a_newer_file_asks_for_a_newer_version(tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text('{"format": "wenet_hs.options/9"}')
    with pytest.raises(DataError, match="; install a newer version of wenet_hs$"):
        read_folder_options(tmp_path)


def test_a_path_that_is_not_utf8_is_kept(tmp_path: Path) -> None:
    options = FolderOptions("own", {"corpus": "/data/caf\udce9"})
    write_folder_options(tmp_path, options)
    assert read_folder_options(tmp_path) == options


def test_the_command_writes_the_chosen_options(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe_dir = tmp_path / "examples/mini/s0"
    line = ["--folder", str(tmp_path / "data"), "--recipe_dir", str(recipe_dir)]
    values = ["--values", "langs=es it", "hours=1", "unit=char", "override=a=b"]
    assert run_command(keep_options, [*line, "--options", "hours", "langs", *values]) == 0
    options = read_folder_options(tmp_path / "data")
    assert options == FolderOptions("mini", {"hours": "1", "langs": "es it"})
    assert run_command(keep_options, [*line, "--options", "size", *values]) == 2
    assert run_command(keep_options, [*line, "--values", "hours"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "--values: size: has no value; add size=VALUE",
        "--values hours: has no `=`; write NAME=VALUE",
    ]


def test_the_command_starts_without_torch() -> None:
    code = "import sys, wenet_hs.bin.keep_options; print([*sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'wenet_hs.recipes.folder_options'" in done.stdout
    assert "'torch'" not in done.stdout and "'numpy'" not in done.stdout
