# SPDX-License-Identifier: Apache-2.0
"""Settings with names of installed packages, and the list of these names in a config file.

    extensions:
      - {kind: head, name: cosine, package: wenet-hs-cosine, version: '1.2'}

The list is in each file that `dump_config` writes.
It is no setting of a config: it says what the file needs to be read.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic_core import PydanticCustomError

from wenet_hs.base.extensions import (
    PLAIN_TEXT,
    Extension,
    ExtensionKind,
    is_installed,
    is_known_name,
    known_names,
    load_extension,
    wrong_object,
)
from wenet_hs.config.section import Section
from wenet_hs.tree.errors import ConfigError

EXTENSIONS = "extensions"
"""The key of the list in a config file."""
Word = Annotated[str, Field(pattern=f"^{PLAIN_TEXT}$")]
"""A text of a file that somebody else may have written."""

_NAMING_SETTINGS: dict[tuple[str, ...], ExtensionKind] = {
    ("head",): "head",
    ("ctc_conf", "head"): "head",
    ("dataset_conf", "frontend"): "frontend",
}
"""The settings whose values may be names of packages."""


class NeededExtension(Section):
    """A name of an installed package that a config file needs, as the file lists it."""

    kind: ExtensionKind
    name: Word
    package: Word
    version: Word


class NeededExtensions(Section):
    """The list of all names of installed packages that a config file needs."""

    extensions: tuple[NeededExtension, ...] = Field(default=(), strict=False)


# ---- settings


def make_name_validator(kind: ExtensionKind, own_names: Collection[str]) -> Callable[[Any], str]:
    """A validator of pydantic for a setting whose value is our own name or one of a package.

    The validator returns the name. It raises PydanticCustomError for other values, and ConfigError
    for the name of a package that cannot be used. Nothing is imported.
    """

    def check_name(value: Any) -> str:
        if isinstance(value, str) and is_known_name(kind, own_names, value):
            return value
        names = ", ".join(known_names(kind, own_names))
        # "{names}" is not an f-string: pydantic fills it in from the dictionary.
        raise PydanticCustomError("unknown_name", "must be one of {names}", {"names": names})

    return check_name


def settings_class(
    kind: ExtensionKind, own_classes: Mapping[str, type[Section]], name: str
) -> type[Section]:
    """The class of the settings that belong to a name: one of `own_classes`, or of a package.

    The package is imported. Raises ConfigError if no package declares the name, if it cannot be
    imported, or if what it declares is no class of settings with a method `build`.
    """
    if name in own_classes:
        return own_classes[name]
    loaded = load_extension(kind, name)
    is_section_class = isinstance(loaded, type) and issubclass(loaded, Section)
    if not is_section_class or not hasattr(loaded, "build"):
        found = "is no subclass of wenet_hs.config.section.Section with a method `build`"
        raise wrong_object(kind, name, found)
    settings: type[Section] = loaded
    return settings


# ---- the list


def describe_extensions(extensions: Iterable[Extension]) -> list[dict[str, Any]]:
    """The entries of the list in a file, each extension once."""
    return [asdict(extension) for extension in dict.fromkeys(extensions)]


def check_installed(
    path: Path | str, needed: Iterable[NeededExtension], settings: Mapping[str, Any]
) -> None:
    """Raise ConfigError with a line per extension that a file needs and that is not installed.

    It is for a file whose settings are not validated yet. Nothing is imported.

    Args:
        needed: the list in the file.
        settings: of the file, with overrides. An extension whose name they do not have any more is
            not needed.
    """
    used_names = _used_names(settings)
    lines = []
    for entry in needed:
        extension = Extension(**entry.model_dump())
        is_used = (entry.kind, entry.name) in used_names
        if is_used and not is_installed(extension):
            lines.append(_absence(path, extension))
    if lines:
        raise ConfigError("\n".join(lines))


def _used_names(settings: Mapping[str, Any]) -> set[tuple[ExtensionKind, object]]:
    """The kind and name of each head and frontend in the settings of a file.

    `head: cosine` gives `("head", "cosine")`. Sections that are missing are skipped, and so are
    names that are no text, because the settings are not checked yet.
    """
    used = set[tuple[ExtensionKind, object]]()
    for location, kind in _NAMING_SETTINGS.items():
        name: object = settings  # then the section in it, and at last the name
        for key in location:
            name = name.get(key) if isinstance(name, Mapping) else None
        if isinstance(name, str):
            used.add((kind, name))
    return used


def _absence(path: Path | str, extension: Extension) -> str:
    """The line of a message about an extension whose package is not installed."""
    found = f"needs the {extension}, which is not installed"
    to_do = f"run `pip install {extension.package}` if you trust it"
    return str(ConfigError(path, found, to_do))
