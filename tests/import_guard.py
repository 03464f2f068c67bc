# SPDX-License-Identifier: Apache-2.0
"""Hides installed packages and modules of ours from a process, as if they were not installed."""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from typing import Any

OUR_PACKAGE = "wenet_hs"


@dataclass(frozen=True)
class Visible:
    """What a guarded process may import, beside the standard library."""

    packages: frozenset[str]
    """Top-level names of packages of others."""
    our_modules: frozenset[str]
    """Full names of modules of ours; those inside of them are visible too."""

    def has(self, name: str) -> bool:
        """Whether a module may be imported; `name` is its full name."""
        top = name.partition(".")[0]
        if top != OUR_PACKAGE:
            return top in self.packages or _is_standard(top)
        if name == OUR_PACKAGE:
            return True
        return any(f"{name}.".startswith(f"{ours}.") for ours in self.our_modules)


class GuardedFinder:
    """A finder of `sys.meta_path` that finds only what is visible."""

    def __init__(self, finder: Any, visible: Visible) -> None:
        self.finder = finder
        self.visible = visible

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,
        target: Any = None,
    ) -> ModuleSpec | None:
        if not self.visible.has(name):
            return None
        spec: ModuleSpec | None = self.finder.find_spec(name, path, target)
        return spec

    def __getattr__(self, name: str) -> Any:
        """The other methods of a finder, such as `find_distributions`."""
        return getattr(self.finder, name)


def install_guard(visible: Visible) -> None:
    """From now on an import of anything else raises ModuleNotFoundError.

    Modules that are loaded already stay visible.
    """
    sys.meta_path[:] = [GuardedFinder(finder, visible) for finder in sys.meta_path]


def packages_of(distributions: Iterable[str]) -> frozenset[str]:
    """The top-level packages of installed distributions, and of all that these require."""
    needed = _with_requirements(distributions)
    packages = set()
    for package, owners in packages_distributions().items():
        if any(_normalized(owner) in needed for owner in owners):
            packages.add(package)
    return frozenset(packages)


def _is_standard(top: str) -> bool:
    """Whether a top-level module is of the standard library."""
    # The settings of Python's own compilation have a name per platform, which is not in the list.
    return top in sys.stdlib_module_names or top.startswith("_sysconfigdata_")


def _with_requirements(distributions: Iterable[str]) -> set[str]:
    needed: set[str] = set()
    waiting = [_normalized(name) for name in distributions]
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        try:
            requirements = requires(name) or []
        except PackageNotFoundError:  # of another platform or Python
            continue
        needed.add(name)
        waiting += [_name_of(text) for text in requirements if "extra ==" not in text]
    return needed


def _name_of(requirement: str) -> str:
    """The distribution that a requirement such as `sympy>=1.13.3; python_version > "3.8"` names."""
    match = re.match(r"[\w.-]+", requirement)
    assert match, requirement
    return _normalized(match[0])


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
