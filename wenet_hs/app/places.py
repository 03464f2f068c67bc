# SPDX-License-Identifier: Apache-2.0
"""Folders and file names that a page may name."""

import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
"""Invisible signs that are part of the spelling of a word: of Mongolian, and of Persian and Indian
scripts.
"""
_MAX_NAME_LENGTH = 64
_MAX_NAME_BYTES = 200
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
UPLOADED = (*ALL_SUFFIXES, *_TEXT_SUFFIXES)
"""Suffixes of the recordings and annotations that may be uploaded."""
TARGETS = {"recordings": UPLOADED, "to_transcribe": UPLOADED, "models": (".zip",)}
"""Folder of a project that files are uploaded to → their suffixes."""


class Places:
    """The folders below which files may be read: those of the projects and of the user."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = tuple(dict.fromkeys(root.resolve() for root in roots))

    def resolve(self, path: Path | str) -> Path:
        """The real path, without links.

        Raises DataError if it is in none of the folders, hidden, or relative.
        """
        try:
            real = Path(path).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # a zero byte, a loop of links
            raise DataError(
                ascii(str(path))[:200], "not a path", "choose a folder in the list"
            ) from error
        if not str(path):
            raise DataError("folder or file", "none chosen", "choose one in the list")
        if not Path(path).is_absolute():  # also an address, which a reader of audio would open
            raise DataError(
                f"path {one_field(str(path))[:200]!r}",
                "does not begin with /",
                "choose one in the list",
            )
        inside = [real.relative_to(root) for root in self.roots if real.is_relative_to(root)]
        if not any(all(not part.startswith(".") for part in below.parts) for below in inside):
            found = "outside of the folders that this page may read, or hidden"
            raise DataError(
                one_field(str(path))[:200],
                found,
                "start `wenet-hs app --dir` with a folder above it",
            )
        return real

    def list_folder(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """The folders and the files in a folder of `resolve`, by name.

        Not in them: what is hidden, a link to the outside, a name with control characters or of
        another coding.
        """
        try:
            found = sorted(os.scandir(folder), key=lambda one: one.name.lower())
        except OSError as error:
            raise DataError(
                folder, f"cannot be read ({error.strerror})", "choose another folder"
            ) from error
        shown = [one for one in found if one.name == one_field(one.name) and self._is_shown(one)]
        return [Path(one) for one in shown if one.is_dir()], [
            Path(one) for one in shown if not one.is_dir()
        ]

    def _is_shown(self, entry: "os.DirEntry[str]") -> bool:
        with suppress(DataError):
            return not entry.name.startswith(".") and (
                not entry.is_symlink() or bool(self.resolve(entry.path))
            )
        return False


def choose(
    found: Mapping[str, Value], name: str, what: str, lack: str = "not in this project"
) -> Value:
    """The entry of a name that a page sent. Raises DataError if there is none."""
    if name not in found:
        raise DataError(
            f"{what} {one_field(name)[:80]!r}",
            lack,
            "choose one in the list, or load the page again",
        )
    return found[name]


def check_name(name: str, what: str = "name") -> str:
    """The name of a project or model in NFC, without white space around it.

    A name has letters, digits and signs of all scripts, such as the tsheg between the syllables of
    Tibetan. Of the signs of ASCII it has only space `'` `-` `_` `.`. It begins with a letter or
    digit.

    Raises DataError for any other name, with what is wrong. `what`: what has the name, for this
        message.
    """
    name = unicodedata.normalize("NFC", name.strip())
    if fault := _name_fault(name):
        raise DataError(f"{what} {one_field(name)[:80]!r}", fault, "choose another one")
    return name


def _name_fault(name: str) -> str | None:
    """Why a text in NFC cannot be a name; None: it can."""
    refused = [sign for sign in name if not _is_allowed_in_names(sign)]
    if refused:
        signs = "letters, digits, spaces, ' - _ . and signs of other scripts"
        return f"has {refused[0]!r}; a name has {signs}"
    if not name[:1].isalnum():
        return "does not begin with a letter or digit"
    if name.endswith("."):
        return "ends with a full stop"
    if ".." in name:
        return "has two full stops in a row"
    if len(name) > _MAX_NAME_LENGTH or len(name.encode()) > _MAX_NAME_BYTES:
        return f"is too long, at most {_MAX_NAME_LENGTH} characters and {_MAX_NAME_BYTES} bytes"
    return None


def _is_allowed_in_names(sign: str) -> bool:
    """Letters, marks, digits, punctuation and symbols, and the joiners; of the signs of ASCII only
    a few.

    Not: control characters, signs that change the direction of the text, private and unassigned
    ones, other spaces.
    """
    if sign.isascii() and not sign.isalnum():
        return sign in _ASCII_SIGNS
    return sign in _JOINERS or unicodedata.category(sign)[0] in "LMNPS"


def check_file_name(name: str, suffixes: Sequence[str]) -> str:
    """The name of an uploaded file in NFC.

    Raises DataError if it has folders, is hidden or has another suffix.
    """
    name = unicodedata.normalize("NFC", name)
    shown = one_field(name)[:80]
    if not name or name != one_field(name) or re.search(r"[/\\]", name) or name.startswith("."):
        raise DataError(f"file {shown!r}", "not a file name", "rename it")
    if len(name.encode()) > 200:
        raise DataError(f"file {shown!r}", "its name is longer than 200 bytes", "rename it")
    if not name.lower().endswith(tuple(suffixes)):
        found = "not one of the forms that are read here"
        raise DataError(f"file {shown!r}", found, f"these are: {' '.join(suffixes)}")
    return name
