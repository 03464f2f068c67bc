# SPDX-License-Identifier: Apache-2.0
"""Options of folders after a move, and from another program."""

import shutil
from pathlib import Path

import pytest

from wenet_hs.recipes.conf_files import OWN, conf_file, shipped_name
from wenet_hs.recipes.folder_options import (
    FolderOptions,
    check_made_with,
    portable_values,
    read_absolute_values,
    write_folder_options,
)
from wenet_hs.tree.errors import ConfigError

ROOT = Path(__file__).parents[2]


def values_of(project: Path, **others: str) -> dict[str, str]:
    values = {"data": str(project / "data"), "config": str(conf_file(OWN)), "base": ""}
    return values | others


def write(project: Path, **others: str) -> None:
    exp = project / "exp"
    written = portable_values(values_of(project, **others), exp)
    write_folder_options(exp, FolderOptions("own", written))


def test_paths_are_written_from_the_folder_and_configs_by_their_name(tmp_path: Path) -> None:
    project = tmp_path / "project"
    mine = project / "exp/conf/own.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("head: softmax\n")
    (project / "copy").mkdir()
    shutil.copy(conf_file(OWN), project / "copy/own.yaml")
    assert portable_values(values_of(project), project / "exp") == {
        "data": "../data",
        "config": "conf/own.yaml",
        "base": "",
    }
    for config, written in (
        (mine, "./conf/own.yaml"),
        (project / "copy/own.yaml", "conf/own.yaml"),
        (project / "mine.yaml", "../mine.yaml"),
    ):
        values = portable_values({"config": str(config)}, project / "exp")
        assert values == {"config": written}
    for base in ("hf://user/name", "hf:/user/name"):
        assert portable_values({"base": base}, project / "exp") == {"base": "hf://user/name"}
    assert shipped_name(mine) is None and shipped_name(tmp_path / "none.yaml") is None


def test_what_is_written_is_read_with_absolute_paths(tmp_path: Path) -> None:
    project = tmp_path / "project"
    write(project, base="hf://user/name", encoder=str(tmp_path / "whisper"), lang="es")
    assert read_absolute_values(project / "exp") == values_of(
        project,
        base="hf://user/name",
        encoder=str(tmp_path / "whisper"),
        lang="es",
    )
    assert read_absolute_values(project / "none") == {}


def test_a_project_may_be_moved(tmp_path: Path) -> None:
    write(tmp_path / "old")
    shutil.move(tmp_path / "old", tmp_path / "a/b/new")
    project = tmp_path / "a/b/new"
    check_made_with("--exp", project / "exp", values_of(project))
    with pytest.raises(ConfigError) as caught:
        check_made_with("--exp", project / "exp", values_of(tmp_path / "old"), project)
    to_do = "repeat this, give another --exp, or remove the folder"
    made = f"{project}/exp was made with --data data; {to_do}"
    assert str(caught.value) == f"--data ../../../old/data: {made}"


def test_quotes_of_prepare_may_differ(tmp_path: Path) -> None:
    write_folder_options(tmp_path, FolderOptions("own", {"prepare": "--tier 'a b' -x"}))
    check_made_with("--data", tmp_path, {"prepare": '--tier "a b" -x'})
    with pytest.raises(
        ConfigError, match="--prepare --tier a b -x: .* with --prepare --tier 'a b'"
    ):
        check_made_with("--data", tmp_path, {"prepare": "--tier a b -x"})


def test_a_config_of_the_checkout_is_known_by_its_name() -> None:
    assert shipped_name(ROOT / "conf/own.yaml") == "own.yaml"


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"size": "auto", "lang": "b"}, ""),
        ({"lang": "b"}, ""),
        ({"size": "auto", "newer": ""}, ""),
        ({"lang": "b", "size": "small"}, "--size small: F was made with --size auto; "),
        ({"lang": "", "size": "small"}, "--lang: F was made with --lang b; "),
        ({"empty": "x"}, "--empty x: F was made with --empty ; "),
        ({"newer": "x y"}, "--newer x y: F was made with another recipe, without --newer; "),
    ],
)
def test_the_first_option_that_differs_is_refused(
    values: dict[str, str],
    line: str,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "exp"
    check_made_with("--exp", folder, values)  # a folder that does not exist
    made_with = {"size": "auto", "lang": "b", "empty": ""}
    write_folder_options(folder, FolderOptions("own", made_with))
    if not line:
        check_made_with("--exp", folder, values)
        return
    with pytest.raises(ConfigError) as caught:
        check_made_with("--exp", folder, values)
    to_do = "repeat this, give another --exp, or remove the folder"
    assert str(caught.value) == f"{line}{to_do}".replace(" F ", f" {folder} ")
