# SPDX-License-Identifier: Apache-2.0
"""Rules for what requests name: files to read, projects, models and uploaded files."""

import os
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from wenet_hs.base.files import one_field
from wenet_hs.data.media import ALL_SUFFIXES
from wenet_hs.tree.errors import DataError

Value = TypeVar("Value")
_ASCII_SIGNS = " ._-'"
"""Signs of ASCII that are allowed in names.

The others have a meaning in a shell, a path or a pattern.
"""
_JOINERS = "\u180e\u200c\u200d\u202f"
"""Invisible signs that are part of the spelling of words.

Mongolian, Persian and Indian scripts have them.
"""
_MAX_NAME_LENGTH = 64
_MAX_NAME_BYTES = 200
_MAX_SHOWN = 80
"""Characters of a name in a message."""
_MAX_SHOWN_OF_PATH = 200
"""Characters of a path in a message."""
_TEXT_SUFFIXES = (
    ".eaf",
    ".textgrid",
    ".txt",
    ".srt",
    ".vtt",
    ".csv",
    ".tsv",
    ".json",
    ".jsonl",
    ".phn",
    ".wrd",
)
UPLOAD_SUFFIXES = (*ALL_SUFFIXES, *_TEXT_SUFFIXES)
"""Suffixes of the recordings and annotations that may be uploaded."""
UPLOAD_FOLDERS = {
    "recordings": UPLOAD_SUFFIXES,
    "to_transcribe": UPLOAD_SUFFIXES,
    "models": (".zip",),
}
"""Folder of a project to which files may be uploaded → the suffixes that they may have."""


@dataclass(frozen=True)
class FolderContent:
    """What a page may show of a folder, each list sorted by name without regard to case."""

    folders: list[Path]
    files: list[Path]


class Places:
    """The root folders, such as the home folder of the user. Only files below them may be read."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = tuple(dict.fromkeys(root.resolve() for root in roots))

    def resolve(self, path: Path | str) -> Path:
        """The real path of a file or folder that a request names, with all links followed.

        The file or folder need not exist. Raises DataError if `path` is empty, is no path or not an
        absolute one, or if the real path is outside of the root folders or hidden.
        """
        try:
            real_path = Path(path).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # a zero byte, a loop of links
            where = ascii(str(path))[:_MAX_SHOWN_OF_PATH]
            raise DataError(where, "not a path", "choose a folder in the list") from error
        if not str(path):
            raise DataError("folder or file", "none chosen", "choose one in the list")
        shown_path = one_field(str(path))[:_MAX_SHOWN_OF_PATH]
        # A relative path may be an address such as http://…, which a reader of audio would open.
        if not Path(path).is_absolute():
            where = f"path {shown_path!r}"
            raise DataError(where, "does not begin with /", "choose one in the list")
        if not self._may_be_read(real_path):
            raise DataError(
                shown_path,
                "outside of the folders that this page may read, or hidden",
                "start `wenet-hs app --dir` with a folder above it",
            )
        return real_path

    def _may_be_read(self, real_path: Path) -> bool:
        """Whether a path is one of the root folders or below one, and not hidden there.

        It is hidden if a part of it below the root folder begins with a full stop.
        """
        for root in self.roots:
            if not real_path.is_relative_to(root):
                continue
            parts = real_path.relative_to(root).parts
            if not any(part.startswith(".") for part in parts):
                return True
        return False

    def list_folder(self, folder: Path) -> FolderContent:
        """The folders and files in a folder, without those that no page may show; see `_is_shown`.

        `folder`: a path that `resolve` returned. Raises DataError if it cannot be read.
        """
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name.lower())
        except OSError as error:
            fault = f"cannot be read ({error.strerror})"
            raise DataError(folder, fault, "choose another folder") from error
        folders = list[Path]()
        files = list[Path]()
        for entry in entries:
            if not self._is_shown(entry):
                continue
            if entry.is_dir():
                folders.append(Path(entry))
            else:
                files.append(Path(entry))
        return FolderContent(folders=folders, files=files)

    def _is_shown(self, entry: "os.DirEntry[str]") -> bool:
        """Whether a page shows an entry of a folder.

        It does not show hidden entries, links to a place that may not be read, and names that no
        page can show: with control characters, or bytes that are not UTF-8.
        """
        if entry.name.startswith(".") or entry.name != one_field(entry.name):
            return False
        if not entry.is_symlink():
            return True
        try:
            self.resolve(entry.path)
        except DataError:
            return False
        return True


def find_entry(
    entries: Mapping[str, Value], name: str, kind: str, fault: str = "not in this project"
) -> Value:
    """The entry with a name that a request sent. Raises DataError if there is none.

    Args:
        entries: name → entry, for all entries that may be chosen.
        name: as it was sent.
        kind: what the entries are, for the message, such as `model`.
        fault: why there is no such entry, for the message.
    """
    if name not in entries:
        where = f"{kind} {one_field(name)[:_MAX_SHOWN]!r}"
        raise DataError(where, fault, "choose one in the list, or load the page again")
    return entries[name]


# ---- names


def check_name(name: str, kind: str = "name") -> str:
    """The name of a project or model with composed letters (NFC), without white space around it.

    A name has letters, digits and signs of all scripts, such as the tsheg between the syllables of
    Tibetan. Of the signs of ASCII it has only space `'` `-` `_` `.`. It begins with a letter or
    digit.

    Raises DataError for any other name, with what is wrong. `kind`: what has the name, for this
    message, such as `project`.
    """
    name = unicodedata.normalize("NFC", name.strip())
    fault = _find_name_fault(name)
    if fault is not None:
        raise DataError(f"{kind} {one_field(name)[:_MAX_SHOWN]!r}", fault, "choose another one")
    return name


def _find_name_fault(name: str) -> str | None:
    """Why a text in NFC cannot be a name, as a part of a message; None if it can."""
    for sign in name:
        if not _is_allowed_in_names(sign):
            allowed = "letters, digits, spaces, ' - _ . and signs of other scripts"
            return f"has {sign!r}; a name has {allowed}"
    if not name[:1].isalnum():  # also an empty name
        return "does not begin with a letter or digit"
    if name.endswith("."):
        return "ends with a full stop"
    if ".." in name:
        return "has two full stops in a row"
    if len(name) > _MAX_NAME_LENGTH or len(name.encode()) > _MAX_NAME_BYTES:
        return f"is too long, at most {_MAX_NAME_LENGTH} characters and {_MAX_NAME_BYTES} bytes"
    return None


def _is_allowed_in_names(sign: str) -> bool:
    """Whether a character may be part of a name.

    Of ASCII these are letters, digits and a few signs. Of other scripts these are letters, marks,
    digits, punctuation, symbols and the joiners. Not allowed are control characters, characters
    that change the direction of the text, private and unassigned ones, and other spaces.
    """
    if sign.isascii() and not sign.isalnum():
        return sign in _ASCII_SIGNS
    if sign in _JOINERS:
        return True
    main_category = unicodedata.category(sign)[0]
    return main_category in "LMNPS"  # letter, mark, number, punctuation, symbol


def check_file_name(name: str, suffixes: Sequence[str]) -> str:
    """The name of an uploaded file, with composed letters (Unicode NFC).

    Raises DataError if it is not a plain file name, is longer than 200 bytes, or has none of the
    suffixes. Upper and lower case of the suffix are equal.
    """
    name = unicodedata.normalize("NFC", name)
    where = f"file {one_field(name)[:_MAX_SHOWN]!r}"
    if not _is_plain_file_name(name):
        raise DataError(where, "not a file name", "rename it")
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise DataError(where, f"its name is longer than {_MAX_NAME_BYTES} bytes", "rename it")
    if not name.lower().endswith(tuple(suffixes)):
        fault = "not one of the forms that are read here"
        raise DataError(where, fault, f"these are: {' '.join(suffixes)}")
    return name


def _is_plain_file_name(name: str) -> bool:
    """Whether a text names a visible file in its folder, without control characters."""
    if not name or name.startswith("."):
        return False
    has_folder = "/" in name or "\\" in name
    has_control_characters = name != one_field(name)
    return not has_folder and not has_control_characters
