# SPDX-License-Identifier: Apache-2.0
"""Projects by the options that the recipe wrote into their folders, in both forms."""

from collections.abc import Callable
from pathlib import Path

import pytest

from wenet_hs.app.places import Places
from wenet_hs.app.projects import Project, Projects, read_recipe_options
from wenet_hs.recipes.folder_options import FolderOptions, write_folder_options
from wenet_hs.tree.atomic import write_atomic


def write_earlier_options(folder: Path, values: dict[str, str]) -> None:
    lines = [f"--{name} {value}\n" for name, value in values.items()]
    write_atomic(folder / "options.txt", "".join(lines))


def write_options(folder: Path, values: dict[str, str]) -> None:
    write_folder_options(folder, FolderOptions("own", values))


@pytest.mark.parametrize("write", [write_earlier_options, write_options])
def test_options_of_a_project(
    write: Callable[[Path, dict[str, str]], None],
    tmp_path: Path,
) -> None:
    project = Project(tmp_path / "first")
    assert not project.has_lists and read_recipe_options(project / "data") == {}
    write(project / "data", {"elan": "/some/where", "praat": "", "lang": "es"})
    assert project.has_lists
    assert read_recipe_options(project / "data") == {"elan": "/some/where", "lang": "es"}
    assert project.free_experiment() == project / "exp"
    write(project / "exp", {"size": "tiny", "encoder": ""})
    assert read_recipe_options(project / "exp") == {"size": "tiny"}
    assert project.free_experiment() == project / "exp-2"
    places = Places([tmp_path])
    assert [project.name for project in Projects(tmp_path, places).list()] == ["first"]
