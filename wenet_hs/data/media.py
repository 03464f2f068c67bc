# SPDX-License-Identifier: Apache-2.0
"""Audio files of annotations: found by paths that may be of another computer."""

import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from wenet_hs.errors import list_names

AUDIO_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aiff", ".aif", ".au")
_UNREADABLE = (".mp4", ".mpg", ".mpeg", ".mov", ".avi", ".m4a", ".wma")
_URL = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+://")


class MediaFinder:
    """Finds audio files by paths that may be of another computer."""

    def __init__(self, audio_dir: Path | None) -> None:
        """`audio_dir`: the folder to search; None: the folder of each entry."""
        self._audio_dir = audio_dir
        self._files: dict[Path, dict[str, list[Path]]] = {}

    def find(self, audio: Sequence[str], folder: Path) -> Path | str:
        """The file, or why there is none.

        Args:
            audio: paths as they are written, the first that is found counts; also of Windows, or without suffix.
            folder: where relative paths begin.
        """
        names = [name for written in audio if written for name in local_paths(written)]
        if not names:
            return "no audio is named"
        folder = folder.resolve()
        roots = [folder] if self._audio_dir is None else [folder, self._audio_dir]
        same = [name for name in names if name.name == names[0].name]  # several links to one file: search none first
        if found := next(filter(None, (_exact(name, roots) for name in same)), None):
            return found
        ambiguous = ""
        for name in names:
            if found := _exact(name, roots):
                return found
            index = self._index(roots[-1])
            for candidate in _with_suffixes(Path(name.name)):  # the exact name before other suffixes
                alike = _most_alike(index.get(_fold(candidate.name), []), name)
                alike = [path for path in alike if path.parent == folder] or alike  # ELAN's rule too
                if len(alike) == 1:
                    return alike[0]
                if alike:
                    ambiguous = f"{list_names(sorted(map(str, alike)), most=2)}; name the folder in the path"
                    break
        if ambiguous:
            return f"ambiguous: {ambiguous}"
        if url := next(filter(_URL.match, audio), None):
            return f"URL: {url}; download the file, and give its path"
        remedy = "; extract the audio as .wav beside it" if names[0].suffix.lower() in _UNREADABLE else ""
        stems = {name.stem for name in names if name.suffix}  # an annotation file of the same name adds nothing
        wanted = dict.fromkeys(
            name.name if name.suffix else f"{name.name}.wav (.flac, .mp3 …)"
            for name in names
            if name.suffix or name.name not in stems
        )
        return f"missing: no {list_names([*wanted])} in {roots[-1]} and its subfolders{remedy}"

    def _index(self, root: Path) -> dict[str, list[Path]]:
        """The files below a folder by name, without regard to case and Unicode form; links to folders are followed.

        A path has the real folder, so that one recording has one path; a link to a file keeps its own name.
        """
        if root not in self._files:
            of_name = self._files.setdefault(root, {})
            visited = set[str]()
            for folder, folders, files in os.walk(root, followlinks=True):
                real = os.path.realpath(folder)
                if real in visited:  # a link to a folder above
                    folders.clear()
                    continue
                visited.add(real)
                for file in sorted(files):
                    if file.lower().endswith(AUDIO_SUFFIXES) and not file.startswith("._"):  # macOS's attributes
                        of_name.setdefault(_fold(file), []).append(Path(real, file))
        return self._files[root]


def _exact(name: Path, roots: Sequence[Path]) -> Path | None:
    """The file at a path below one of the folders; with the suffix of the name, or of audio."""
    paths = (root / candidate for candidate in _with_suffixes(name) for root in roots)
    found = next(filter(os.path.isfile, paths), None)  # False for a name that no disk can hold
    return found and real_path(found)


def real_path(path: Path) -> Path:
    """The absolute path without links to folders and `..`; a link to a file keeps its own name."""
    return path.parent.resolve() / path.name


def _most_alike(paths: Sequence[Path], written: Path) -> list[Path]:
    """The paths with the most folders above the file in common with the written one."""

    def num_alike(path: Path) -> int:
        pairs = zip(reversed(path.parts[:-1]), reversed(written.parts[:-1]), strict=False)
        return next((n for n, (a, b) in enumerate(pairs) if _fold(a) != _fold(b)), len(written.parts) - 1)

    most = max(map(num_alike, paths), default=0)
    return [path for path in paths if num_alike(path) == most]


def _fold(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def local_paths(written: str) -> list[Path]:
    """A path as it is written in a file: `file:///D:/x/a.wav`, `D:\\x\\a.wav`, `./a.wav`, `a%20b.wav`."""
    path = re.sub(r"^file:/*(?=[A-Za-z]:|/)", "", written.strip())
    path = re.sub(r"^[A-Za-z]:", "", path.replace("\\", "/"))
    return [Path(one) for one in dict.fromkeys((path, unquote(path))) if Path(one).name]


def _with_suffixes(path: Path) -> list[Path]:
    """The path, if it may be audio, and the same name with each suffix of audio, in place of its own or after it."""
    is_audio = path.suffix.lower() in AUDIO_SUFFIXES
    own = [path] if is_audio else [path.with_name(path.name + suffix) for suffix in AUDIO_SUFFIXES]
    is_media = is_audio or path.suffix.lower() in _UNREADABLE  # else the suffix is a part of the name
    others = [path.with_suffix(suffix) for suffix in AUDIO_SUFFIXES] if is_media else []
    return [*own, *(other for other in others if other != path)]
