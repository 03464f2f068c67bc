# SPDX-License-Identifier: Apache-2.0
"""Installs the package in `extension_package`, or one that is described, into a folder, as pip
does.
"""

import importlib
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from wenet_hs.base.extensions import installed_entries, load_extension, warn_about_clash

SAMPLE = Path(__file__).parent / "extension_package"
EntryPoints = Mapping[str, Mapping[str, str]]
"""Group → name → object."""


def install_sample(folder: Path) -> Path:
    """Install the package; its entry points are found where the folder is on `sys.path`.

    Returns the folder.
    """
    project = tomllib.loads((SAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    name = "wenet_hs_sample"
    shutil.copytree(SAMPLE / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    write_metadata(folder, project["name"], project["version"], project["entry-points"])
    return folder


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """The packages in the folder are installed, and none of their modules is imported yet, nor
    afterwards.
    """
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    _forget_packages()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _forget_packages()
        names = [path.stem for path in folder.iterdir()]
        for module in [module for module in sys.modules if module.partition(".")[0] in names]:
            del sys.modules[module]


def _forget_packages() -> None:
    load_extension.cache_clear()
    installed_entries.cache_clear()
    warn_about_clash.cache_clear()


def write_metadata(folder: Path, package: str, version: str, entry_points: EntryPoints) -> None:
    """The metadata of an installed package; those in the folder are found again."""
    metadata = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n", "utf-8"
    )
    lines = list[str]()
    for group, objects in entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in objects.items()), ""]
    (metadata / "entry_points.txt").write_text("\n".join(lines), "utf-8")
    _forget_packages()
