# SPDX-License-Identifier: Apache-2.0
"""`wenet_hs.tree` and `wenet_hs.heads` use each other, numpy, numba and torch only."""

import ast
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from import_guard import Visible

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tests/stand_alone.py"
ROOMS = ("tree", "heads")
LIBRARIES = {"numpy", "numba", "torch"}
GPU_MODULES = "_triton"
"""Modules with this ending use triton, which torch brings on Linux; functions load them on a GPU."""
STAND_ALONE = [path for room in ROOMS for path in sorted((ROOT / "wenet_hs" / room).rglob("*.py"))]


def run_program(folder: Path, package: Path, *checks: str) -> subprocess.CompletedProcess[str]:
    """Runs some checks, or all, in a folder with the package that is in another one."""
    environment = os.environ | {"PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM), *checks]
    return run(command, folder, environment)


def run(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def copied_package(folder: Path) -> Path:
    """The two rooms, with what `import wenet_hs` loads, in a folder."""
    package = folder / "wenet_hs"
    package.mkdir()
    for name in ("__init__.py", "version.py"):
        shutil.copy(ROOT / "wenet_hs" / name, package)
    for room in ROOMS:
        shutil.copytree(ROOT / "wenet_hs" / room, package / room)
    return package


@pytest.mark.slow
def test_the_checks_pass_without_other_packages_and_modules(tmp_path: Path) -> None:
    done = run_program(tmp_path, ROOT)
    assert done.returncode == 0, done.stderr
    assert "8 of 8 checks passed" in done.stdout


@pytest.mark.parametrize(
    ("line", "added", "missing"),
    [
        ("    path = Path(path)\n", "    import yaml\n", "yaml"),
        ("from pathlib import Path\n", "import scipy.sparse\n", "scipy"),
        ("from pathlib import Path\n", "from wenet_hs.base import files\n", "wenet_hs.base"),
    ],
    ids=["in a function", "at the top", "another room"],
)
def test_a_check_fails_for_another_import(
    line: str,
    added: str,
    missing: str,
    tmp_path: Path,
) -> None:
    package = copied_package(tmp_path)
    module = package / "tree/text_file.py"
    source = module.read_text("utf-8")
    assert source.count(line) == 1
    module.write_text(source.replace(line, line + added), "utf-8")
    done = run_program(tmp_path, tmp_path, "check_tree_files")
    assert done.returncode == 1
    assert f"No module named '{missing}'" in done.stderr
    assert done.stdout == f"{package}: 0 of 1 checks passed check_tree_files\n"


def test_a_check_passes_in_a_copy(tmp_path: Path) -> None:
    package = copied_package(tmp_path)
    done = run_program(tmp_path, tmp_path, "check_tree_files", "check_nested_lists")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{package}: 2 of 2 checks passed\n"


def test_what_a_guarded_process_may_import() -> None:
    visible = Visible(frozenset({"numpy"}), frozenset({"wenet_hs.tree"}))
    for name in ("json", "os.path", "numpy.linalg", "wenet_hs.tree", "wenet_hs.tree.errors"):
        assert visible.has(name), name
    for name in ("yaml", "numpy_other", "wenet_hs.base", "wenet_hs.tree_kinds", "wenet_hs.heads"):
        assert not visible.has(name), name


@pytest.mark.parametrize("name", ["yaml", "wenet_hs.base.files"])
def test_a_guarded_process_cannot_import_what_is_installed(name: str, tmp_path: Path) -> None:
    importlib.import_module(name)
    guard = "from stand_alone import VISIBLE, install_guard; install_guard(VISIBLE)"
    program = f"{guard}; import json, numpy, wenet_hs.tree; import {name}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = run([sys.executable, "-c", program], tmp_path, environment)
    hidden = name.removesuffix(".files")  # the first package of the name that is not found
    assert done.stderr.endswith(f"ModuleNotFoundError: No module named '{hidden}'\n")


# ---- the source, where a check might not come by


def imported_names(source: str) -> Iterator[str]:
    """The modules that a source imports, at its top and in functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def foreign_imports(source: str, *, may_use_triton: bool) -> list[str]:
    """What a source imports and a module of the two rooms must not."""
    libraries = LIBRARIES | {"triton"} if may_use_triton else LIBRARIES
    our_modules = frozenset(f"wenet_hs.{room}" for room in ROOMS)
    visible = Visible(frozenset(libraries), our_modules)
    return [name for name in imported_names(source) if name == "wenet_hs" or not visible.has(name)]


@pytest.mark.parametrize("path", STAND_ALONE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_import_in_the_source(path: Path) -> None:
    source = path.read_text("utf-8")
    assert foreign_imports(source, may_use_triton=path.stem.endswith(GPU_MODULES)) == []


def test_other_imports_in_a_source_are_found() -> None:
    source = (
        "import json\nimport numpy as np\nfrom wenet_hs.tree import Tree\n"
        "import yaml\nfrom wenet_hs import load_model\n"
        "def f():\n    import triton\n    from wenet_hs.text.units import UnitTable\n"
    )
    expected = ["yaml", "wenet_hs.load_model", "triton", "wenet_hs.text.units.UnitTable"]
    assert foreign_imports(source, may_use_triton=False) == expected
    expected.remove("triton")
    assert foreign_imports(source, may_use_triton=True) == expected
