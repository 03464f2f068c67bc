# SPDX-License-Identifier: Apache-2.0
"""Extensions: heads, frontends, corpora and decoding modes of other installed packages.

A package declares them as entry points:

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
    """A name that an installed package declares, with the package and its version."""

    kind: ExtensionKind
    name: str
    package: str
    """As `pip install` takes it."""
    version: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name} of the package {self.package} {self.version}"


# ---- names


def known_names(kind: ExtensionKind, own_names: Collection[str]) -> list[str]:
    """The names that a user may give: `own_names`, which wenet_hs has, and those of packages.

    The names that installed packages declare for this kind of object follow in alphabetical order.
    A name of ours is listed once, even if a package declares it too. Names whose text
    `find_extension` refuses are left out. No package is imported.
    """
    extensions = [_read_extension(kind, entry) for entry in installed_entries(kind)]
    usable_names = {extension.name for extension in extensions if not _name_fault(extension)}
    return [*own_names, *sorted(usable_names.difference(own_names))]


def is_known_name(kind: ExtensionKind, own_names: Collection[str], name: str) -> bool:
    """Whether a name is in `own_names`, which wenet_hs has, or is declared by an installed package.

    No package is imported. If wenet_hs has the name, a warning is logged for each package that
    declares it too, once per process.
    Raises ConfigError, as `find_extension` does, for a name of packages that cannot be used.
    """
    if name in own_names:
        warn_about_clash(kind, name)
        return True
    if not _find_entries(kind, name):
        return False
    find_extension(kind, name)  # raises if it cannot be used
    return True


def has_extension_name(kind: ExtensionKind, arguments: Iterable[str]) -> bool:
    """Whether an installed package declares an argument of a command as a name of this kind."""
    declared = {entry.name for entry in installed_entries(kind)}
    return not declared.isdisjoint(arguments)


@cache  # one warning per name and process
def warn_about_clash(kind: ExtensionKind, name: str) -> None:
    """Log a warning for each package that declares `name`, which wenet_hs has itself."""
    for entry in _find_entries(kind, name):
        extension = _escape(_read_extension(kind, entry))
        message = "%s: not used; wenet_hs has a %s of this name"
        logger.warning(message, extension, kind)


# ---- packages


def find_extensions(
    kind: ExtensionKind, own_names: Collection[str], names: Iterable[str]
) -> list[Extension]:
    """The extensions of those names that are not in `own_names`, which wenet_hs has.

    Each is listed once, in the order of the names. No package is imported. Raises ConfigError as
    `find_extension` does.
    """
    distinct_names = dict.fromkeys(names)
    return [find_extension(kind, name) for name in distinct_names if name not in own_names]


def find_extension(kind: ExtensionKind, name: str) -> Extension:
    """The extension that an installed package declares under a name. Nothing is imported.

    Raises ConfigError if no package declares the name, or more than one does. It also raises
    ConfigError if the name is reserved, or if the name, the package or its version is not a
    PLAIN_TEXT.
    """
    extension = _read_extension(kind, _find_entry(kind, name))
    fault = _name_fault(extension)
    if fault is not None:
        raise _wrong_extension(_escape(extension), fault)
    return extension


def _read_extension(kind: ExtensionKind, entry: EntryPoint) -> Extension:
    """The name, package and version of an entry point."""
    distribution = _distribution(entry)
    return Extension(
        kind=kind, name=entry.name, package=distribution.name, version=distribution.version
    )


def _name_fault(extension: Extension) -> str | None:
    """What is wrong with the name, package or version of an extension, for a message.

    None if it can be used.
    """
    if extension.name in RESERVED_NAMES.get(extension.kind, ()):
        return "the name is reserved"
    texts = {"name": extension.name, "package": extension.package, "version": extension.version}
    for part, text in texts.items():
        if not re.fullmatch(PLAIN_TEXT, text):
            rule = "letters, digits and . _ + ! -, at most 100, the first a letter or digit"
            return f"the {part} must be of {rule}"
    return None


def _escape(extension: Extension) -> Extension:
    r"""The extension with escapes such as `\x07` for characters that may act on a terminal."""
    return Extension(
        kind=extension.kind,
        name=_escape_text(extension.name),
        package=_escape_text(extension.package),
        version=_escape_text(extension.version),
    )


def _escape_text(text: str) -> str:
    """The text with escapes for all characters that are not printable ASCII."""
    return text.encode("unicode_escape").decode("ascii")


def package_versions(extensions: Iterable[Extension]) -> dict[str, str]:
    """The version of each package that declares one of the extensions."""
    return {extension.package: extension.version for extension in extensions}


def is_installed(extension: Extension) -> bool:
    """Whether the package of an extension is installed and declares its name.

    Its version may be another one. Nothing is imported.
    """
    entries = _find_entries(extension.kind, extension.name)
    installed_packages = {_normalize_package(_distribution(entry).name) for entry in entries}
    return _normalize_package(extension.package) in installed_packages


def _normalize_package(package: str) -> str:
    """The name of a package as indexes compare it: `my_package` and `My-Package` are the same."""
    return re.sub("[-_.]+", "-", package).lower()


# ---- calls


@cache
def load_extension(kind: ExtensionKind, name: str) -> Any:
    """The object that an installed package declares for a name. Imports the package.

    Raises ConfigError as `find_extension` does, or if the package cannot be imported.
    """
    find_extension(kind, name)  # raises if the name cannot be used
    with calling_extension(kind, name, "cannot be imported"):
        return _find_entry(kind, name).load()


@contextmanager
def calling_extension(kind: ExtensionKind, name: str, failure: str) -> Iterator[None]:
    """Run a block that calls a package; an exception of the package becomes a ConfigError.

    Its message is one line. It names the extension and contains `failure`, such as
    `cannot be imported`, and the exception. The SystemExit of `sys.exit` becomes a ConfigError too.
    A WenetHsError passes unchanged: a package may raise it about the user's input.
    KeyboardInterrupt passes unchanged too.
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


def wrong_object(kind: ExtensionKind, name: str, fault: str) -> ConfigError:
    """The error for a package whose object, or what it returned, is not what this kind needs."""
    return _wrong_extension(find_extension(kind, name), fault)


def _wrong_extension(extension: Extension, fault: str) -> ConfigError:
    """The error for an extension that cannot be used; `fault` says why."""
    return ConfigError(str(extension), fault, f"install another version of {extension.package}")


# ---- entry points


@cache  # reading them takes 5 ms
def installed_entries(kind: ExtensionKind) -> EntryPoints:
    """The entry points of a kind that all installed packages declare."""
    return entry_points(group=GROUPS[kind])


def _find_entry(kind: ExtensionKind, name: str) -> EntryPoint:
    """The entry point of a name.

    Raises ConfigError if no installed package declares it, or if more than one does.
    """
    entries = _find_entries(kind, name)
    where = f"{kind} {name}"
    if not entries:
        raise ConfigError(where, "no installed package declares it", "install its package")
    if len(entries) > 1:
        packages = sorted(_distribution(entry).name for entry in entries)
        found = f"several packages declare it: {list_names(packages)}"
        raise ConfigError(where, found, "keep one of them")
    return entries[0]


def _find_entries(kind: ExtensionKind, name: str) -> list[EntryPoint]:
    """The entry points of a kind with this name, one per package that declares it."""
    return [*installed_entries(kind).select(name=name)]


def _distribution(entry: EntryPoint) -> Distribution:
    """The package of an entry point that `entry_points` has found."""
    assert entry.dist is not None
    return entry.dist
