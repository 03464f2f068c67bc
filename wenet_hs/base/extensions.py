# SPDX-License-Identifier: Apache-2.0
"""Heads, frontends, corpora and decoding modes of other installed packages, which their entry
points declare.

    [project.entry-points."wenet_hs.heads"]
    cosine = "my_package.cosine:CosineHeadConf"

Names are listed without an import. A package is imported when one of its names is used.
docs/design/0024-extensions.md says why.
"""

import logging
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, EntryPoint, EntryPoints, entry_points
from typing import Any, Literal

from wenet_hs.tree.errors import ConfigError, WenetHsError, list_names, one_line

logger = logging.getLogger(__name__)

ExtensionKind = Literal["head", "frontend", "corpus", "mode"]
GROUPS: dict[ExtensionKind, str] = {
    "head": "wenet_hs.heads",
    "frontend": "wenet_hs.frontends",
    "corpus": "wenet_hs.corpora",
    "mode": "wenet_hs.modes",
}
"""The group of the entry points of each kind."""
PLAIN_TEXT = "[A-Za-z0-9][A-Za-z0-9._+!-]{0,99}"
"""A text that can stand in a message, in a file, and as an argument of `pip install`."""
RESERVED_NAMES: dict[ExtensionKind, Collection[str]] = {"mode": ["auto"]}
"""Names that mean something else where a name of this kind is expected."""


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


# ---- names


def known_names(kind: ExtensionKind, own: Collection[str]) -> list[str]:
    """Our own names of a kind, then those of installed packages by name, which cannot replace ours.

    Names that `find_extension` refuses because of their text are left out.
    """
    usable = {
        entry.name
        for entry in installed_entries(kind)
        if _name_fault(_describe(kind, entry)) is None
    }
    return [*own, *sorted(usable.difference(own))]


def is_known_name(kind: ExtensionKind, own: Collection[str], name: str) -> bool:
    """Whether a name is ours, or of an installed package. Nothing is imported.

    A warning names each package that declares a name of ours, once per process.
    Raises ConfigError as `find_extension` if the name of a package cannot be used.
    """
    if name in own:
        warn_about_clash(kind, name)
        return True
    if not _find_entries(kind, name):
        return False
    find_extension(kind, name)
    return True


def has_extension_name(kind: ExtensionKind, arguments: Iterable[str]) -> bool:
    """Whether an argument of a command is a name of this kind that an installed package declares."""
    declared = {entry.name for entry in installed_entries(kind)}
    return not declared.isdisjoint(arguments)


@cache
def warn_about_clash(kind: ExtensionKind, name: str) -> None:
    """Log each package that declares a name of ours."""
    for entry in _find_entries(kind, name):
        message = "%s: not used; wenet_hs has a %s of this name"
        logger.warning(message, _escaped(_describe(kind, entry)), kind)


# ---- packages


def find_extension(kind: ExtensionKind, name: str) -> Extension:
    """The package of a name. Nothing is imported.

    Raises ConfigError if no installed package, or more than one, declares it. Also if the name is
    reserved, or if the name, the package or its version is no PLAIN_TEXT.
    """
    extension = _describe(kind, _find_entry(kind, name))
    fault = _name_fault(extension)
    if fault is not None:
        raise _wrong_extension(_escaped(extension), fault)
    return extension


def _name_fault(extension: Extension) -> str | None:
    """Why the name of an extension cannot be used; None if it can."""
    if extension.name in RESERVED_NAMES.get(extension.kind, ()):
        return "the name is reserved"
    texts = {"name": extension.name, "package": extension.package, "version": extension.version}
    for what, text in texts.items():
        if not re.fullmatch(PLAIN_TEXT, text):
            rule = "letters, digits and . _ + ! -, at most 100, the first a letter or digit"
            return f"the {what} must be of {rule}"
    return None


def _escaped(extension: Extension) -> Extension:
    """The same with escapes for characters that may act on a terminal."""
    texts = {"name": extension.name, "package": extension.package, "version": extension.version}
    shown = {what: text.encode("unicode_escape").decode("ascii") for what, text in texts.items()}
    return Extension(kind=extension.kind, **shown)


def _describe(kind: ExtensionKind, entry: EntryPoint) -> Extension:
    distribution = _distribution(entry)
    return Extension(
        kind=kind, name=entry.name, package=distribution.name, version=distribution.version
    )


def find_extensions(
    kind: ExtensionKind, own: Collection[str], names: Iterable[str]
) -> list[Extension]:
    """The packages of those names that are not ours, each name once.

    Raises ConfigError as `find_extension`.
    """
    return [find_extension(kind, name) for name in dict.fromkeys(names) if name not in own]


def package_versions(extensions: Iterable[Extension]) -> dict[str, str]:
    """Package → version."""
    return {extension.package: extension.version for extension in extensions}


@cache
def load_extension(kind: ExtensionKind, name: str) -> Any:
    """The object that a package declares for a name; imports the package.

    Raises ConfigError as `find_extension`, or if the package cannot be imported.
    """
    find_extension(kind, name)
    with calling_extension(kind, name, "cannot be imported"):
        return _find_entry(kind, name).load()


@contextmanager
def calling_extension(kind: ExtensionKind, name: str, failure: str) -> Iterator[None]:
    """A call into a package: an exception of the package becomes one line that names it.

    `failure`: what the line says, such as `cannot be imported`; the exception is added to it.
    Raises ConfigError for every exception, and for `sys.exit`. An error of ours, which a package
    may raise about the user's input, stays as it is.
    """
    try:
        yield
    except WenetHsError:
        raise
    except (Exception, SystemExit) as error:
        extension = find_extension(kind, name)
        reason = f"{type(error).__name__}: {one_line(error)}"
        to_do = f"install another version of {extension.package}, or remove it"
        raise ConfigError(str(extension), f"{failure} ({reason})", to_do) from error


def wrong_object(kind: ExtensionKind, name: str, found: str) -> ConfigError:
    """The error for an object of a package that is not as this kind needs it."""
    return _wrong_extension(find_extension(kind, name), found)


def _wrong_extension(extension: Extension, found: str) -> ConfigError:
    return ConfigError(str(extension), found, f"install another version of {extension.package}")


def is_installed(extension: Extension) -> bool:
    """Whether a package of this name declares the name, in any version. Nothing is imported."""
    packages = [
        _distribution(entry).name for entry in _find_entries(extension.kind, extension.name)
    ]
    return _normalized(extension.package) in map(_normalized, packages)


def _normalized(package: str) -> str:
    """The name of a package as indexes compare it: `my_package` and `My-Package` are the same."""
    return re.sub("[-_.]+", "-", package).lower()


# ---- entry points


@cache
def installed_entries(kind: ExtensionKind) -> EntryPoints:
    """The entry points of a kind of all installed packages. Reading them takes 5 ms."""
    return entry_points(group=GROUPS[kind])


def _find_entries(kind: ExtensionKind, name: str) -> list[EntryPoint]:
    return [*installed_entries(kind).select(name=name)]


def _find_entry(kind: ExtensionKind, name: str) -> EntryPoint:
    entries = _find_entries(kind, name)
    if not entries:
        raise ConfigError(
            f"{kind} {name}", "no installed package declares it", "install its package"
        )
    if len(entries) > 1:
        packages = list_names(sorted(_distribution(entry).name for entry in entries))
        raise ConfigError(
            f"{kind} {name}", f"several packages declare it: {packages}", "keep one of them"
        )
    return entries[0]


def _distribution(entry: EntryPoint) -> Distribution:
    """The package of an entry point that `entry_points` has found."""
    assert entry.dist is not None
    return entry.dist
