# SPDX-License-Identifier: Apache-2.0
"""The options with which a recipe made a folder: `options.json` in it, compared field by field.

A folder with lists or experiments may be used again only with the options that made it. Names have
no dashes: the option `--tree` is `tree`. Values are those of the command line, always text; paths
are written so that they stay right:

- recordings absolute, as they stay where they are,
- a config of wenet_hs as `conf/NAME.yaml`, wherever wenet_hs is installed,
- other paths relative to the folder with options.json.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os.path import normpath, relpath
from pathlib import Path
from typing import Any

from wenet_hs.base.files import read_lines
from wenet_hs.recipes.conf_files import conf_file, shipped_name
from wenet_hs.recipes.prepare_words import has_open_quote, split_words
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import ConfigError, DataError, one_line

FILE_NAME = "options.json"
FORMAT_NAME = "wenet_hs.options"
FORMAT = f"{FORMAT_NAME}/1"
RECORDINGS = ("corpus", "elan", "praat", "kaldi", "folder")
"""Options with paths of recordings. They stay where they are if a checkout is moved."""
OTHER_PATHS = ("base", "config", "data", "ctc_tree", "encoder")
"""Options with paths of files that are moved together with the folder."""
SHIPPED = "conf/"
"""What is written before the name of a config of wenet_hs."""
HUB = "hf:"
"""The beginning of a model's name on the hub, which is no path."""


@dataclass(frozen=True)
class FolderOptions:
    """What is written in a folder."""

    recipe: str
    """Name of the recipe, such as `own`, for people. Not compared: a recipe may be renamed."""
    values: Mapping[str, str]
    """Name of an option → its value; an option that was not given has an empty value."""


def has_options(folder: Path) -> bool:
    """Whether a recipe made the folder: it has the file with the options."""
    return (folder / FILE_NAME).is_file()


def read_folder_options(folder: Path) -> FolderOptions | None:
    """The options with which a folder was made; None if the folder has none, or does not exist.

    Raises DataError for a file that is damaged or of a newer version.
    """
    if not has_options(folder):
        return None
    path = folder / FILE_NAME
    to_do = f"give another folder, or remove {folder}"
    try:
        record = json.loads("\n".join(read_lines(path)))
    except json.JSONDecodeError as error:
        raise DataError(path, f"is no JSON ({one_line(error)})", to_do) from error
    written_format = record.get("format") if isinstance(record, dict) else None
    if written_format != FORMAT:
        is_newer = str(written_format).startswith(f"{FORMAT_NAME}/")
        found = f"has the format {written_format!r}, not {FORMAT!r}"
        raise DataError(path, found, "install a newer version of wenet_hs" if is_newer else to_do)
    if not _has_texts(record):
        raise DataError(path, "has no options with text as values", to_do)
    return FolderOptions(recipe=str(record.get("recipe", "")), values=record["options"])


def _has_texts(record: Mapping[str, Any]) -> bool:
    values = record.get("options")
    return isinstance(values, dict) and all(isinstance(value, str) for value in values.values())


def write_folder_options(folder: Path, options: FolderOptions) -> None:
    """Write options.json into a folder atomically. Makes the folder if it does not exist."""
    record = {"format": FORMAT, "recipe": options.recipe, "options": dict(options.values)}
    text = json.dumps(record, indent=1, ensure_ascii=False)
    # Bytes of a path that are not UTF-8 become escapes of JSON, which are read as they were.
    write_atomic(folder / FILE_NAME, f"{text}\n".encode("utf-8", "backslashreplace"))


def portable_values(values: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The values of a command line as they are written into a folder.

    Relative paths in `values` are those of the working folder. Links are not followed.
    """
    portable = {}
    for name, value in values.items():
        portable[name] = value
        if value and name in RECORDINGS:
            portable[name] = normpath(Path.cwd() / value)
        elif value and name in OTHER_PATHS:
            portable[name] = _portable_path(name, value, folder)
    return portable


def _portable_path(name: str, value: str, folder: Path) -> str:
    if value.startswith(HUB):
        return _hub_name(value)
    if name == "config":
        shipped = shipped_name(Path(value))
        if shipped is not None:
            return f"{SHIPPED}{shipped}"
    relative = relpath(value, folder)
    is_ambiguous = name == "config" and relative.startswith(SHIPPED)
    return f"./{relative}" if is_ambiguous else relative


def _hub_name(value: str) -> str:
    """A name of the hub with two slashes, of which `Path` makes one."""
    return f"{HUB}//{value.removeprefix(HUB).lstrip('/')}"


def absolute_values(values: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The values of `portable_values` with absolute paths."""
    absolute = {}
    for name, value in values.items():
        absolute[name] = value
        if value and name in OTHER_PATHS:
            absolute[name] = _absolute_path(name, value, folder)
    return absolute


def _absolute_path(name: str, value: str, folder: Path) -> str:
    if value.startswith(HUB):
        return value
    if name == "config" and value.startswith(SHIPPED):
        return str(conf_file(value.removeprefix(SHIPPED)))
    return normpath(folder.absolute() / value)


def read_absolute_values(folder: Path) -> dict[str, str]:
    """The options with which a folder was made, with absolute paths; empty if there are none.

    Raises DataError as `read_folder_options` does.
    """
    options = read_folder_options(folder)
    return {} if options is None else absolute_values(options.values, folder)


# ---- comparing


def check_made_with(
    flag: str,
    folder: Path,
    values: Mapping[str, str],
    recipe_dir: Path | None = None,
) -> None:
    """Raise ConfigError for the first option with another value than the one that made the folder.

    Nothing is compared if the folder has no options yet.

    Args:
        flag: the option of the recipe that names the folder, such as `--exp`.
        folder: the folder.
        values: of a command line; relative paths are those of the working folder.
        recipe_dir: folder of the recipe, from which paths are shown; None: the working folder.
    """
    options = read_folder_options(folder)
    if options is None:
        return
    made_with = options.values
    now = portable_values(values, folder)
    for name in values:
        if _is_same(name, now[name], made_with):
            continue
        shown = _shown(name, now[name], folder, recipe_dir)
        before = f"another recipe, without --{name}"
        if name in made_with:
            before = f"--{name} {_shown(name, made_with[name], folder, recipe_dir)}"
        raise ConfigError(
            f"--{name} {shown}".removesuffix(" "),
            f"{folder} was made with {before}",
            f"repeat this, give another {flag}, or remove the folder",
        )


def _is_same(name: str, value: str, made_with: Mapping[str, str]) -> bool:
    """Whether an option is as before. One that the folder does not know yet may stay empty."""
    before = made_with.get(name, "")
    if name == "prepare" and not has_open_quote(before):
        return split_words(before) == split_words(value)  # quotes may differ
    return before == value


def _shown(name: str, value: str, folder: Path, recipe_dir: Path | None) -> str:
    """A value of `portable_values` as a user would give it."""
    is_path = value and name in OTHER_PATHS
    is_shipped = name == "config" and value.startswith(SHIPPED)
    if not is_path or is_shipped or value.startswith(HUB):
        return value
    return relpath(folder.absolute() / value, recipe_dir or Path())
