# SPDX-License-Identifier: Apache-2.0
"""The options with which a recipe made a folder: `options.json` in it, compared field by field.

A folder with lists or experiments may be used again only with the options that made it. Names have
no dashes: the option `--tree` is `tree`. Values are those of the command line, always text; paths
are written so that they stay right: recordings absolute, the others relative to the recipe.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os.path import normpath, relpath
from pathlib import Path
from typing import Any

from wenet_hs.errors import ConfigError, DataError, one_line
from wenet_hs.files import read_lines, write_atomic

FILE_NAME = "options.json"
EARLIER_FILE_NAME = "options.txt"
"""The file of folders that versions before 2026-12 made: lines of `--name value`."""
FORMAT = "wenet_hs.options/1"
RECORDINGS = ("corpus", "elan", "praat", "kaldi", "folder")
"""Options with paths of recordings. They stay where they are if a checkout is moved."""
OTHER_PATHS = ("base", "config", "data", "ctc_tree", "encoder")
"""Options with paths of files that are moved together with a checkout."""


@dataclass(frozen=True)
class FolderOptions:
    """What is written in a folder."""

    recipe: str
    """Name of the recipe, such as `own`, for people. Not compared: a recipe may be renamed."""
    values: Mapping[str, str]
    """Name of an option → its value; an option that was not given has an empty value."""


def options_file(folder: Path) -> Path | None:
    """The file with the options of a folder, also of an earlier version; None if there is none."""
    for name in (FILE_NAME, EARLIER_FILE_NAME):
        if (folder / name).is_file():
            return folder / name
    return None


def read_folder_options(folder: Path) -> FolderOptions | None:
    """The options with which a folder was made; None if the folder has none, or does not exist.

    Raises DataError for a file that is damaged or of a newer version.
    """
    path = options_file(folder)
    if path is None:
        return None
    if path.name == EARLIER_FILE_NAME:
        return FolderOptions("", _read_earlier_values(path))
    return _read_json(path)


def _read_earlier_values(path: Path) -> dict[str, str]:
    """The values of a file with lines of `--name value`, of which the value may be empty."""
    values = {}
    for line in read_lines(path):
        name, _, value = line.partition(" ")
        values[name.removeprefix("--")] = value
    return values


def _read_json(path: Path) -> FolderOptions:
    to_do = "give another folder, or remove this one"
    try:
        record = json.loads("\n".join(read_lines(path)))
    except json.JSONDecodeError as error:
        raise DataError(path, f"is no JSON ({one_line(error)})", to_do) from error
    written_format = record.get("format") if isinstance(record, dict) else None
    if written_format != FORMAT:
        raise DataError(path, f"has the format {written_format!r}, not {FORMAT!r}", to_do)
    if not _has_options(record):
        raise DataError(path, "has no options with text as values", to_do)
    return FolderOptions(str(record.get("recipe", "")), record["options"])


def _has_options(record: Mapping[str, Any]) -> bool:
    values = record.get("options")
    return isinstance(values, dict) and all(isinstance(value, str) for value in values.values())


def write_folder_options(folder: Path, options: FolderOptions) -> None:
    """Write options.json into a folder atomically, and remove the file of an earlier version.

    Makes the folder if it does not exist.
    """
    record = {"format": FORMAT, "recipe": options.recipe, "options": dict(options.values)}
    text = json.dumps(record, indent=1, ensure_ascii=False)
    write_atomic(folder / FILE_NAME, f"{text}\n")
    (folder / EARLIER_FILE_NAME).unlink(missing_ok=True)


def portable_values(values: Mapping[str, str], recipe_dir: Path) -> dict[str, str]:
    """The values as they are written: paths of recordings absolute, others relative to the recipe.

    Relative paths in `values` are those of the working folder. Links are not followed.
    """
    portable = {}
    for name, value in values.items():
        portable[name] = value
        if value and name in RECORDINGS:
            portable[name] = normpath(Path.cwd() / value)
        elif value and name in OTHER_PATHS:
            portable[name] = relpath(value, recipe_dir)
    return portable


def absolute_values(values: Mapping[str, str], recipe_dir: Path) -> dict[str, str]:
    """The values of `portable_values` with absolute paths, for a recipe in this folder."""
    absolute = {}
    for name, value in values.items():
        absolute[name] = value
        if value and name in OTHER_PATHS:
            absolute[name] = normpath(recipe_dir / value)
    return absolute


def check_folder_options(
    flag: str,
    folder: Path,
    values: Mapping[str, str],
) -> None:
    """Raise ConfigError for the first option with another value than the one that made the folder.

    Nothing is compared if the folder has no options yet.

    Args:
        flag: the option of the recipe that names the folder, such as `--exp`.
        folder: the folder.
        values: of this run, in the form of `portable_values`.
    """
    made_with = read_folder_options(folder)
    if made_with is None:
        return
    for name, value in values.items():
        if _differs(name, value, made_with.values):
            before = f"another recipe, without --{name}"
            if name in made_with.values:
                before = f"--{name} {made_with.values[name]}"
            raise ConfigError(
                f"--{name} {value}".removesuffix(" "),
                f"{folder} was made with {before}",
                f"repeat this, give another {flag}, or remove the folder",
            )


def _differs(name: str, value: str, made_with: Mapping[str, str]) -> bool:
    """Whether an option is not as before. One that the folder does not know yet may stay empty."""
    if name in made_with:
        return made_with[name] != value
    return value != ""
