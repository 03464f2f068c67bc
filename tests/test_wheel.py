# SPDX-License-Identifier: Apache-2.0
"""The wheel: all that the commands need is in it, and nothing of the source tree."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")


@pytest.mark.slow
def test_the_wheel_works_without_the_source_tree(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "wenet_hs", source / "wenet_hs", ignore=shutil.ignore_patterns("__pycache__"))
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    # In an environment of its own, as a user builds it: the back end is fetched, as `make setup` fetches the rest.
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(source)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "wenet_hs").rglob("*.py")} | {"wenet_hs/py.typed"}
    assert {name for name in names if not name.startswith("wenet_hs-")} == ours
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    shutil.rmtree(source)
    for argument in (["-c", "import wenet_hs; print(wenet_hs.__file__)"], ["-m", "wenet_hs.bin.main", "--help"]):
        line = [sys.executable, "-P", *argument]
        done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert str(tmp_path / "site") in done.stdout or "Example: wenet-hs recognize " in done.stdout
