# SPDX-License-Identifier: Apache-2.0
"""The wheel contains what the commands need.

That it works in an empty environment is checked by .ci/newest_torch.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, built in an environment of its own, and the wheel that is built from
    it.
    """
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("wenet_hs", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "build", "--outdir", folder, source, cwd=folder)
    shutil.rmtree(source)
    return folder


def files_below(folder: Path) -> set[str]:
    """The paths of files below a folder, without bytecode."""
    files = [
        path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    return {str(path.relative_to(folder)) for path in files}


@pytest.mark.slow
def test_wheel_contains_every_file_of_the_package_and_every_config(packages: Path) -> None:
    [wheel] = packages.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith("wenet_hs-")}
        configs = {f"wenet_hs/conf/{name}" for name in files_below(ROOT / "conf")}
        assert names == {f"wenet_hs/{name}" for name in files_below(ROOT / "wenet_hs")} | configs
        assert "wenet_hs/conf/own.yaml" in configs and "wenet_hs/conf/own_sizes.yaml" in configs
        for name in configs:
            assert archive.read(name) == (ROOT / "conf" / Path(name).name).read_bytes(), name


@pytest.mark.slow
def test_an_installed_package_finds_its_configs(packages: Path) -> None:
    """Unpacked outside of the checkout; its dependencies are those of this environment."""
    installed = packages / "installed"
    [wheel] = packages.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    code = f"""
import sys
sys.path.insert(0, {str(installed)!r})
from wenet_hs.recipes.conf_files import OWN, conf_file, conf_folder, shipped_name
from wenet_hs.recipes.config_choice import is_own
from wenet_hs.recipes.sizes import read_size_table
print(conf_folder(), shipped_name(conf_file(OWN)), is_own(conf_file(OWN)))
print(read_size_table().names)
"""
    lines = run(sys.executable, "-P", "-c", code, cwd=packages).splitlines()
    assert lines[0] == f"{installed}/wenet_hs/conf own.yaml True"
    assert "tiny" in lines[1]
