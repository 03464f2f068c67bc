# SPDX-License-Identifier: Apache-2.0
"""Folders and file names that a page may name."""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from wenet_hs.data.media import ALL_SUFFIXES
from wenet_hs.errors import DataError
from wenet_hs.files import one_field

_NAME = re.compile(r"[^\W_](?:[\w .-]{0,62}[\w-])?")
_TEXT_SUFFIXES = (".eaf", ".textgrid", ".txt", ".srt", ".vtt", ".csv", ".tsv", ".json", ".jsonl", ".phn", ".wrd")
UPLOADED = (*ALL_SUFFIXES, *_TEXT_SUFFIXES)
"""Suffixes of the recordings and annotations that may be uploaded."""


class Places:
    """The folders below which files may be read: those of the projects and of the user."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = tuple(dict.fromkeys(root.resolve() for root in roots))

    def resolve(self, path: Path | str) -> Path:
        """The real path, without links. Raises DataError if it is in none of the folders, or hidden."""
        try:
            real = Path(path).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # a zero byte, a loop of links
            raise DataError(ascii(str(path))[:200], "not a path", "choose a folder in the list") from error
        inside = [real.relative_to(root) for root in self.roots if real.is_relative_to(root)]
        if not any(all(not part.startswith(".") for part in below.parts) for below in inside):
            found = "outside of the folders that this page may read, or hidden"
            raise DataError(one_field(str(path))[:200], found, "start `wenet-hs app --dir` with a folder above it")
        return real

    def list_folder(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """The folders and the files in a folder, without hidden ones and links to the outside, by name."""
        folders, files = list[Path](), list[Path]()
        try:
            found = sorted(folder.iterdir(), key=lambda one: one.name.lower())
        except OSError as error:
            raise DataError(folder, f"cannot be read ({error.strerror})", "choose another folder") from error
        for path in found:
            try:
                self.resolve(path)
                path.name.encode()
            except (DataError, UnicodeEncodeError):
                continue
            (folders if path.is_dir() else files).append(path)
        return folders, files


def check_name(name: str, what: str = "name") -> str:
    """The name of a project or model in NFC. Raises DataError unless it is letters, digits, spaces, `-`, `_`, `.`."""
    name = unicodedata.normalize("NFC", name.strip())
    if not _NAME.fullmatch(name) or ".." in name:
        found = "not a name of letters, digits, spaces, - _ and ., at most 64"
        raise DataError(f"{what} {one_field(name)[:80]!r}", found, "choose another one")
    return name


def check_file_name(name: str, suffixes: Sequence[str]) -> str:
    """The name of an uploaded file in NFC. Raises DataError if it has folders, is hidden or has another suffix."""
    name = unicodedata.normalize("NFC", name)
    shown = one_field(name)[:80]
    if not name or name != one_field(name) or re.search(r"[/\\]", name) or name.startswith("."):
        raise DataError(f"file {shown!r}", "not a file name", "rename it")
    if len(name.encode()) > 200:
        raise DataError(f"file {shown!r}", "its name is longer than 200 bytes", "rename it")
    if not name.lower().endswith(tuple(suffixes)):
        raise DataError(
            f"file {shown!r}", "not one of the forms that are read here", f"these are: {' '.join(suffixes)}"
        )
    return name
