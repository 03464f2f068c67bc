# SPDX-License-Identifier: Apache-2.0
"""Heads, frontends, corpora and decoding modes of other installed packages, which their entry points declare.

    [project.entry-points."wenet_hs.heads"]
    cosine = "my_package.cosine:CosineHeadConf"

Names are listed without an import. A package is imported when one of its names is used.
docs/design/0024-extensions.md says why.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from typing import Any, Literal

from wenet_hs.tree.errors import ConfigError, list_names, one_line

ExtensionKind = Literal["head", "frontend", "corpus", "mode"]
GROUPS: dict[ExtensionKind, str] = {
    "head": "wenet_hs.heads",
    "frontend": "wenet_hs.frontends",
    "corpus": "wenet_hs.corpora",
    "mode": "wenet_hs.modes",
}
"""The group of the entry points of each kind."""


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A name of an installed package."""

    kind: ExtensionKind
    name: str
    package: str
    """As `pip install` takes it."""
    version: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name} of the package {self.package} {self.version}"


def known_names(kind: ExtensionKind, own: Collection[str]) -> list[str]:
    """Our own names of a kind, then those of installed packages by name, which cannot replace ours."""
    others = {entry.name for entry in entry_points(group=GROUPS[kind])}
    return [*own, *sorted(others.difference(own))]


def find_extension(kind: ExtensionKind, name: str) -> Extension:
    """The package of a name. Nothing is imported.

    Raises ConfigError if no installed package, or more than one, declares it.
    """
    distribution = _distribution(_find_entry(kind, name))
    return Extension(kind=kind, name=name, package=distribution.name, version=distribution.version)


def find_extensions(kind: ExtensionKind, own: Collection[str], names: Iterable[str]) -> list[Extension]:
    """The packages of those names that are not ours, each name once. Raises ConfigError as `find_extension`."""
    return [find_extension(kind, name) for name in dict.fromkeys(names) if name not in own]


@cache
def load_extension(kind: ExtensionKind, name: str) -> Any:
    """The object that a package declares for a name; imports the package.

    Raises ConfigError as `find_extension`, or if the package cannot be imported.
    """
    extension = find_extension(kind, name)
    try:
        return _find_entry(kind, name).load()
    except Exception as error:  # the package may raise anything
        reason = f"{type(error).__name__}: {one_line(error)}"
        to_do = f"install another version of {extension.package}, or remove it"
        raise ConfigError(str(extension), f"cannot be imported ({reason})", to_do) from error


def wrong_object(kind: ExtensionKind, name: str, found: str) -> ConfigError:
    """The error for what a package declares for a name, if it is not of this kind."""
    extension = find_extension(kind, name)
    return ConfigError(str(extension), found, f"install another version of {extension.package}")


def is_installed(extension: Extension) -> bool:
    """Whether a package of this name declares the name, in any version. Nothing is imported."""
    packages = [_distribution(entry).name for entry in _find_entries(extension.kind, extension.name)]
    return _normalized(extension.package) in map(_normalized, packages)


def _normalized(package: str) -> str:
    """The name of a package as indexes compare it: `my_package` and `My-Package` are the same."""
    return re.sub("[-_.]+", "-", package).lower()


def _find_entries(kind: ExtensionKind, name: str) -> list[EntryPoint]:
    return [*entry_points(group=GROUPS[kind], name=name)]


def _find_entry(kind: ExtensionKind, name: str) -> EntryPoint:
    entries = _find_entries(kind, name)
    if not entries:
        raise ConfigError(f"{kind} {name}", "no installed package declares it", "install its package")
    if len(entries) > 1:
        packages = list_names(sorted(_distribution(entry).name for entry in entries))
        raise ConfigError(f"{kind} {name}", f"several packages declare it: {packages}", "keep one of them")
    return entries[0]


def _distribution(entry: EntryPoint) -> Distribution:
    """The package of an entry point that `entry_points` has found."""
    assert entry.dist is not None
    return entry.dist
