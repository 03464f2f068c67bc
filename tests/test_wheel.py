# SPDX-License-Identifier: Apache-2.0
"""The wheel contains what the commands need, and works in an empty environment without the constraints file."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

ROOT = Path(__file__).parents[1]
FEATURES = """
from wenet_hs.data.audio import read_audio
from wenet_hs.config.dataset import DatasetConf
from wenet_hs.data.features import waveform_features
print(tuple(waveform_features(read_audio("clip.wav"), DatasetConf()).shape))
"""


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built in an environment of its own from a copy of the package."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "wenet_hs", source / "wenet_hs", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, source, cwd=folder)
    shutil.rmtree(source)
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_wheel_contains_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith("wenet_hs-")}
    files = (path for path in (ROOT / "wenet_hs").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert names == {str(path.relative_to(ROOT)) for path in files}


@pytest.mark.slow
def test_plain_installation_works_without_constraints(wheel: Path, tmp_path: Path) -> None:
    """What `pip install` resolves to by itself starts, and computes the features of a clip."""
    uv = Path(sys.executable).parent / "uv"
    run(uv, "venv", "--python", sys.executable, "venv", cwd=tmp_path)
    run(uv, "pip", "install", "--python", "venv/bin/python", wheel, cwd=tmp_path)
    assert "wenet-hs recognize " in run(tmp_path / "venv/bin/wenet-hs", "--help", cwd=tmp_path)
    soundfile.write(tmp_path / "clip.wav", 0.1 * np.sin(np.arange(16000) / 5), 16000)
    assert run(tmp_path / "venv/bin/python", "-c", FEATURES, cwd=tmp_path) == "(98, 80)\n"
