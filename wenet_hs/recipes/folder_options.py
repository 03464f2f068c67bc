# SPDX-License-Identifier: Apache-2.0
"""The options with which a recipe made a folder: `options.json` in it, compared field by field.

A folder with lists or experiments may be used again only with the options that made it. Names have
no dashes: the option `--tree` is `tree`. Values are those of the command line, always text. Paths
are written so that they are still right when the project is moved:

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
RECORDING_OPTIONS = ("corpus", "elan", "praat", "kaldi", "folder")
"""Options with paths of recordings, which stay where they are when a project is moved."""
PATH_OPTIONS = ("base", "config", "data", "ctc_tree", "encoder")
"""Options with paths of files that are moved together with the project."""
SHIPPED = "conf/"
"""It is written before the name of a config of wenet_hs."""
HUB = "hf:"
"""The beginning of a model's name on the hub, which is no path."""


@dataclass(frozen=True)
class FolderOptions:
    """The content of options.json."""

    recipe: str
    """Name of the recipe, such as `own`, for people. It is not compared with anything."""
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
    format_name = record.get("format") if isinstance(record, dict) else None
    if format_name != FORMAT:
        raise _format_error(path, format_name, to_do)
    if not _has_options_as_text(record):
        raise DataError(path, "has no options with text as values", to_do)
    return FolderOptions(recipe=str(record.get("recipe", "")), values=record["options"])


def _format_error(path: Path, format_name: object, to_do: str) -> DataError:
    """The error for a file that does not have FORMAT.

    FORMAT is the first version, so any other version is newer: the user needs a newer wenet_hs.
    `to_do`: what the user can do about any other file.
    """
    fault = f"has the format {format_name!r}, not {FORMAT!r}"
    is_newer = str(format_name).startswith(f"{FORMAT_NAME}/")
    return DataError(path, fault, "install a newer version of wenet_hs" if is_newer else to_do)


def _has_options_as_text(record: Mapping[str, Any]) -> bool:
    """Whether the record has an object `options` in which all values are text."""
    options = record.get("options")
    return isinstance(options, dict) and all(isinstance(value, str) for value in options.values())


def write_folder_options(folder: Path, options: FolderOptions) -> None:
    """Write options.json into a folder atomically. The folder is made if it does not exist."""
    record = {"format": FORMAT, "recipe": options.recipe, "options": dict(options.values)}
    text = json.dumps(record, indent=1, ensure_ascii=False)
    # Bytes of a path that are not UTF-8 become escapes of JSON, which are read as they were.
    write_atomic(folder / FILE_NAME, f"{text}\n".encode("utf-8", "backslashreplace"))


def portable_values(values: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The values of a command line as they are written into a folder.

    Paths of recordings are made absolute, other paths relative to `folder`. All other values, and
    empty ones, stay as they are. Relative paths in `values` are those of the working folder. Links
    are not followed.
    """
    portable = dict[str, str]()
    for name, value in values.items():
        portable[name] = value
        if value and name in RECORDING_OPTIONS:
            portable[name] = normpath(Path.cwd() / value)
        elif value and name in PATH_OPTIONS:
            portable[name] = _portable_path(name, value, folder)
    return portable


def _portable_path(name: str, value: str, folder: Path) -> str:
    """The path of an option of PATH_OPTIONS as it is written into a folder.

    - A name of a model on the hub: `hf://user/name`.
    - A config of wenet_hs, or an equal copy of one: `conf/NAME.yaml`.
    - Any other path is relative to the folder. `./` is written before it if it would otherwise be
      read as a config of wenet_hs.
    """
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
    """The name of a model on the hub with two slashes after `hf:`, of which `Path` makes one."""
    return f"{HUB}//{value.removeprefix(HUB).lstrip('/')}"


def absolute_values(values: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The values that are written in a folder, with absolute paths.

    It is the inverse of `portable_values`. Paths of recordings are absolute already.
    """
    absolute = dict[str, str]()
    for name, value in values.items():
        absolute[name] = value
        if value and name in PATH_OPTIONS:
            absolute[name] = _absolute_path(name, value, folder)
    return absolute


def _absolute_path(name: str, value: str, folder: Path) -> str:
    """The absolute path of what `_portable_path` has written into a folder.

    The name of a model on the hub stays as it is. A config of wenet_hs has the path that it has in
    the wenet_hs that runs.
    """
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
        values: name of an option → its value on the command line; relative paths are those of the
            working folder.
        recipe_dir: folder of the recipe, from which paths are shown; None: the working folder.
    """
    options = read_folder_options(folder)
    if options is None:
        return
    values_before = options.values
    values_now = portable_values(values, folder)
    for name, now in values_now.items():
        before = values_before.get(name, "")  # an option that the folder does not have was empty
        if _is_same_value(name, now, before):
            continue
        option_now = f"--{name} {_value_for_user(name, now, folder, recipe_dir)}"
        if name in values_before:
            made_with = f"--{name} {_value_for_user(name, before, folder, recipe_dir)}"
        else:
            made_with = f"another recipe, without --{name}"
        raise ConfigError(
            option_now.removesuffix(" "),  # an empty value leaves a space after the name
            f"{folder} was made with {made_with}",
            f"repeat this, give another {flag}, or remove the folder",
        )


def _is_same_value(name: str, now: str, before: str) -> bool:
    """Whether the value of an option is as before; empty: the option is not given.

    The arguments in `--prepare` may be quoted in another way. Those of `now` were checked when they
    were read, but those of a file may be damaged; such a text is compared as it is.
    """
    if name == "prepare" and not has_open_quote(before):
        return split_words(before) == split_words(now)
    return before == now


def _value_for_user(name: str, value: str, folder: Path, recipe_dir: Path | None) -> str:
    """A value of `portable_values` as the user gives it on the command line.

    A path relative to `folder` becomes one relative to `recipe_dir`; None: to the working folder.
    A config of wenet_hs, a name on the hub and all other values stay as they are.
    """
    is_path = value != "" and name in PATH_OPTIONS
    is_shipped = name == "config" and value.startswith(SHIPPED)
    if not is_path or is_shipped or value.startswith(HUB):
        return value
    return relpath(folder.absolute() / value, recipe_dir or Path())
