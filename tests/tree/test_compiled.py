# SPDX-License-Identifier: Apache-2.0
"""Compiled code has a cache that works where neither the package nor the home folder can be written
to.
"""

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from numba import config
from numba.core import caching

from wenet_hs.tree import compiled
from wenet_hs.tree.compiled import SHARED_KERNELS, njit, temporary_cache_folder

ROOT = Path(__file__).parents[2]


def double(value: int) -> int:
    return 2 * value


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No folder that Numba finds can be written to.

    Returns the place of our folder in the temporary folder.
    """
    for locator in (caching.InTreeCacheLocator, caching.UserWideCacheLocator):
        monkeypatch.setattr(locator, "from_function", classmethod(lambda cls, function, file: None))
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"wenet_hs-numba-{os.getuid()}"


def test_on_a_read_only_disk_compiled_code_is_kept_in_the_temporary_folder(
    read_only: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert njit(nogil=True)(double)(21) == 42
    assert [path.suffix for path in sorted(read_only.rglob("*.nb?"))] == [".nbc", ".nbi"]
    assert read_only.stat().st_mode & 0o777 == 0o700
    assert njit(double).stats.cache_path.startswith(str(read_only))
    assert not caplog.messages


@pytest.mark.parametrize("fault", ["a file", "others can write", "a link"])
def test_without_a_safe_temporary_folder_code_is_compiled_without_a_cache(
    read_only: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = read_only.with_name("elsewhere")
    elsewhere.mkdir()
    if fault == "a file":
        read_only.write_text("")
    elif fault == "a link":
        read_only.symlink_to(elsewhere)
    else:
        read_only.mkdir()
        read_only.chmod(0o777)
    assert temporary_cache_folder() is None
    with caplog.at_level(logging.WARNING):
        assert njit(double)(21) == 42
    assert caplog.messages == [
        "double is compiled in each process: set NUMBA_CACHE_DIR to a folder to write to"
    ]
    assert not [*elsewhere.iterdir()]


def test_every_kernel_has_this_decorator() -> None:
    sources = {path: path.read_text("utf-8") for path in (ROOT / "wenet_hs").rglob("*.py")}
    kernels = [
        path for path, text in sources.items() if "from wenet_hs.tree.compiled import njit" in text
    ]
    assert len(kernels) == 8
    direct = [
        path.name
        for path, text in sources.items()
        if "numba import njit" in text or "numba.njit" in text
    ]
    assert direct == ["compiled.py"]


def test_kernels_call_those_of_shared_files_only() -> None:
    """Else code would not be compiled again after a change of the kernel that it calls."""
    package = ROOT / "wenet_hs"
    shared = {path for pattern in SHARED_KERNELS for path in package.glob(pattern)}
    using = {path for path in package.rglob("*.py") if "import njit" in path.read_text("utf-8")}
    names = {
        path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in using - shared
    }
    assert len(names) == 3
    for path in using:
        text = path.read_text("utf-8")
        assert [name for name in names.values() if f"from {name} import" in text] == []


def test_code_is_compiled_again_after_a_change_of_another_file_with_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a kernel calls may be in another file, and is compiled into it."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    hits = []
    for digest in ("a", "a", "b", "b"):
        monkeypatch.setattr(compiled, "_digest_of_kernels", lambda digest=digest: digest)
        function = njit(double)
        assert function(21) == 42
        hits.append(sum(function.stats.cache_hits.values()))
    assert hits == [0, 1, 0, 1]


def test_kernels_run_without_a_compiler() -> None:
    code = "from wenet_hs.tree.compiled import njit; print(njit(nogil=True)(lambda value: 2 * value)(21))"
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "42\n"
