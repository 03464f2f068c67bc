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
    """An entry of the list."""

    kind: ExtensionKind
    name: Word
    package: Word
    version: Word


class NeededExtensions(Section):
    """The list."""

    extensions: tuple[NeededExtension, ...] = Field(default=(), strict=False)


# ---- settings


def name_check(kind: ExtensionKind, own: Collection[str]) -> Callable[[Any], str]:
    """A validator for a setting whose value is one of our own names, or one of an installed
    package.

    It raises ConfigError for the name of a package that cannot be used.
    """

    def check(value: Any) -> str:
        is_name = isinstance(value, str) and is_known_name(kind, own, value)
        if not is_name:
            names = ", ".join(known_names(kind, own))
            raise PydanticCustomError("unknown_name", "must be one of {names}", {"names": names})
        return str(value)

    return check


def settings_class(
    kind: ExtensionKind, own: Mapping[str, type[Section]], name: str
) -> type[Section]:
    """The class of the settings that belong to a name, ours or that of an installed package.

    Raises ConfigError if no package declares the name, or if what it declares is no class of
        settings that can build.
    """
    if name in own:
        return own[name]
    loaded = load_extension(kind, name)
    is_settings_class = (
        isinstance(loaded, type) and issubclass(loaded, Section) and hasattr(loaded, "build")
    )
    if not is_settings_class:
        found = "is no subclass of wenet_hs.config.section.Section with a method `build`"
        raise wrong_object(kind, name, found)
    settings: type[Section] = loaded
    return settings


# ---- the list


def describe_extensions(extensions: Iterable[Extension]) -> list[dict[str, Any]]:
    """The list as it stands in a file, each name once."""
    return [asdict(extension) for extension in dict.fromkeys(extensions)]


def check_installed(
    path: Path | str, needed: Iterable[NeededExtension], settings: Mapping[str, Any]
) -> None:
    """Check the list of a file before its settings are read. Nothing is imported.

    `settings`: after overrides, not validated. A name that they do not have any more is not needed.
    Raises ConfigError with a line per name whose package is not installed.
    """
    used = _used_names(settings)
    extensions = [
        Extension(**entry.model_dump()) for entry in needed if (entry.kind, entry.name) in used
    ]
    lines = [_absence(path, extension) for extension in extensions if not is_installed(extension)]
    if lines:
        raise ConfigError("\n".join(lines))


def _used_names(settings: Mapping[str, Any]) -> set[tuple[ExtensionKind, object]]:
    """The kind and name of each head and frontend in the settings of a file, which may be wrong."""
    used = set[tuple[ExtensionKind, object]]()
    for location, kind in _NAMING_SETTINGS.items():
        value: object = settings
        for key in location:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, str):
            used.add((kind, value))
    return used


def _absence(path: Path | str, extension: Extension) -> str:
    """The line of a name whose package is not installed."""
    found = f"needs the {extension}, which is not installed"
    to_do = f"run `pip install {extension.package}` if you trust it"
    return str(ConfigError(path, found, to_do))
