# SPDX-License-Identifier: Apache-2.0
"""Projects by the options that the recipe wrote into their folders."""

from pathlib import Path

from recipe_projects import write_options

from wenet_hs.app.places import Places
from wenet_hs.app.projects import Project, Projects, read_recipe_options


def test_options_of_a_project(tmp_path: Path) -> None:
    project = Project(tmp_path / "first")
    assert not project.has_lists and read_recipe_options(project / "data") == {}
    write_options(project / "data", elan="/some/where", praat="", lang="es")
    assert project.has_lists
    assert read_recipe_options(project / "data") == {"elan": "/some/where", "lang": "es"}
    assert project.free_experiment() == project / "exp"
    write_options(project / "exp", size="tiny", encoder="")
    assert read_recipe_options(project / "exp") == {"size": "tiny"}
    assert project.free_experiment() == project / "exp-2"
    places = Places([tmp_path])
    assert [project.name for project in Projects(tmp_path, places).list()] == ["first"]
