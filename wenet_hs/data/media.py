# SPDX-License-Identifier: Apache-2.0
"""Audio files of annotations: found by paths that may be of another computer."""

import logging
import math
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from wenet_hs.data.containers import ADD_HEADER, RAW_SAMPLES, RAW_SUFFIXES
from wenet_hs.tree.errors import list_names

logger = logging.getLogger(__name__)

AUDIO_SUFFIXES = (
    *(
        ".wav",
        ".wave",
        ".flac",
        ".mp3",
        ".mp2",
        ".ogg",
        ".oga",
        ".opus",
        ".aiff",
        ".aif",
        ".aifc",
        ".au",
        ".snd",
    ),
    *(".w64", ".rf64", ".caf", ".sph", ".nist"),
)
"""Suffixes of audio that libsndfile reads, the preferred ones first."""
MEDIA_SUFFIXES = (
    *(
        ".m4a",
        ".aac",
        ".wma",
        ".amr",
        ".mp4",
        ".m4v",
        ".mov",
        ".3gp",
        ".mkv",
        ".mka",
        ".webm",
        ".avi",
        ".wmv",
        ".mts",
    ),
    *(
        ".m2ts",
        ".ts",
        ".mpg",
        ".mpeg",
        ".flv",
        ".asf",
        ".m4b",
        ".3g2",
        ".spx",
        ".wv",
        ".ape",
        ".ac3",
        ".eac3",
    ),
    *(".tta", ".tak", ".mpc"),
)
"""Suffixes of audio and video that need PyAV.

A file of the same name that libsndfile reads is preferred.
"""
ALL_SUFFIXES = (*AUDIO_SUFFIXES, *MEDIA_SUFFIXES)
_MAX_PARTS = 6  # of a path that are compared
_URL = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+://")


def walk_files(root: Path) -> Iterator[tuple[Path, Path, list[str]]]:
    """Each folder below `root`, its real path, and the names of its files, in order.

    Links to folders are followed, each folder once. Hidden files and folders are left out: backups,
    and macOS's attributes of x.wav in `._x.wav`. A folder that cannot be read and a name that is
    not UTF-8 are stated and left out.
    """

    def state(error: OSError) -> None:
        if not isinstance(
            error, FileNotFoundError | NotADirectoryError
        ):  # the caller says it of `root`
            logger.warning(
                "%s: cannot be read (%s); its files are not used", error.filename, error.strerror
            )

    def is_used(name: str) -> bool:
        try:
            name.encode()
        except UnicodeEncodeError:
            logger.warning(
                "%s: the name is not UTF-8; rename it, or it is not used", ascii(f"{folder}/{name}")
            )
            return False
        return not name.startswith(".")

    visited = set[str]()
    for folder, folders, files in os.walk(root, followlinks=True, onerror=state):
        real = os.path.realpath(folder)
        if real in visited:  # a link to a folder above
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(
            filter(is_used, folders), key=lambda name: (Path(folder, name).is_symlink(), name)
        )
        yield Path(folder), Path(real), sorted(filter(is_used, files))


def find_files(root: Path) -> Iterator[Path]:
    """The files of `walk_files`."""
    return (folder / name for folder, _, names in walk_files(root) for name in names)


class MediaFinder:
    """Finds audio files by paths that may be of another computer."""

    def __init__(self, audio_dir: Path | None) -> None:
        """`audio_dir`: the folder to search; None: the folder of each entry."""
        self._audio_dir = audio_dir
        self._files: dict[Path, dict[tuple[str, ...], list[Path]]] = {}
        self._links: dict[Path, dict[tuple[str, ...], float]] = {}
        """File that was found → folders as they are written → how many of them it has; inf: it is
        at this very path.
        """

    def find(self, audio: Sequence[str], folder: Path) -> Path | str:
        """The file, or why there is none.

        Args:
            audio: paths as they are written, the first that is found counts; also of Windows, or
                without suffix.
            folder: where relative paths begin.
        """
        names = _local_names(audio)
        if not names:
            return "no audio is named"
        folder = folder.resolve()
        roots = [folder] if self._audio_dir is None else [folder, self._audio_dir]
        ambiguous, unclear_stems = "", set[str]()
        for suffixes in (AUDIO_SUFFIXES, MEDIA_SUFFIXES):
            for written in audio:  # a backslash may be a part of a name on the disk
                if "\\" in written and (found := _exact(Path(written), roots, suffixes)):
                    return self._link(found, names, math.inf)
            for name in names:
                if _stem(name) in unclear_stems and name.suffix.lower() not in suffixes:
                    continue  # a video of this name may be of any of the recordings; one that is named is taken
                same = [
                    one for one in names if one.name == name.name
                ]  # several links to one file: search none first
                if found := next(
                    filter(None, (_exact(one, roots, suffixes) for one in same)), None
                ):
                    return self._link(found, names, math.inf)
                index = self._index(roots[-1])
                for candidate in _with_suffixes(
                    Path(name.name), suffixes
                ):  # the exact name before other suffixes
                    alike, num_common = _most_alike(index, candidate.name, name)
                    if beside := [
                        path for path in alike if path.parent == folder
                    ]:  # ELAN's rule too
                        alike, num_common = beside, math.inf
                    if len({path.parent for path in alike}) == 1:  # names that differ in case
                        alike = [
                            path for path in alike if _nfc(path.name) == _nfc(candidate.name)
                        ] or alike
                    if len(alike) == 1:
                        return self._link(alike[0], names, num_common)
                    if alike:
                        unclear_stems.add(_stem(name))
                        ambiguous = f"{list_names(sorted(map(str, alike)), most=2)}; name the folder in the path"
                        break
        if ambiguous:
            return f"ambiguous: {ambiguous}"
        if url := next(filter(_URL.match, audio), None):
            return f"URL: {url}; download the file, and give its path"
        if raw := _find_raw(names, roots):
            return f"unreadable: {raw}: {RAW_SAMPLES}; {ADD_HEADER}"
        stems = {
            name.stem for name in names if name.suffix
        }  # an annotation file of the same name adds nothing
        wanted = dict.fromkeys(
            name.name if name.suffix else f"{name.name}.wav (.flac, .mp3 …)"
            for name in names
            if name.suffix or name.name not in stems
        )
        return f"missing: no {list_names([*wanted])} in {roots[-1]} and its subfolders"

    def _link(self, found: Path, names: Sequence[Path], num_common: float) -> Path:
        several = sorted({name.name for name in names if name.suffix.lower() in AUDIO_SUFFIXES})
        if len(several) > 1:  # of two microphones, or of two sessions
            logger.warning(
                "links to %d recordings, %s: %s is used", len(several), list_names(several), found
            )
        links, folders = self._links.setdefault(found, {}), _folders_of(names)
        links[folders] = max(num_common, links.get(folders, 0))
        return found

    def doubt(self, audio: Sequence[str], found: Path) -> str | None:
        """Why a file that `find` gave may be another recording; to be called when all paths of the
        data were found.

        Recorders give files of every session the same names. So of paths with different folders
        that lead to one file, only the one with the most folders in common with it is believed, and
        none if there are several.
        """
        links, own = self._links[found], _folders_of(_local_names(audio))
        for other, num_common in links.items():
            length = min(len(own), len(other))
            if (
                links[own] <= num_common
                and links[own] < math.inf
                and own[-length:] != other[-length:]
                and length
            ):
                is_in = f"another path leads to it too, in the folder {other[-1]!r}"
                remedy = (
                    "name the right folder in the path, or put the audio beside the annotations"
                )
                return f"ambiguous: only {found} has this name, and {is_in}; {remedy}"
        return None

    def _index(self, root: Path) -> dict[tuple[str, ...], list[Path]]:
        """The files below a folder by name, by folder and name and so on; case and Unicode form do
        not count.

        A path has the real folder, so that one recording has one path; a link to a file keeps its
        own name.
        """
        if root not in self._files:
            of_name = self._files.setdefault(root, {})
            for _, folder, files in walk_files(root):
                for file in files:
                    if file.lower().endswith(ALL_SUFFIXES):
                        path = folder / file
                        parts = [*map(fold_name, path.parts)]
                        for first in range(max(0, len(parts) - _MAX_PARTS), len(parts)):
                            of_name.setdefault(tuple(parts[first:]), []).append(path)
        return self._files[root]


def choose_audio(paths: Sequence[Path]) -> list[Path]:
    """The files that are audio, and those that need PyAV if no audio of the same name is beside
    them.
    """
    of_audio = {path.with_suffix("") for path in paths if path.suffix.lower() in AUDIO_SUFFIXES}
    found = [path for path in paths if path.suffix.lower() in ALL_SUFFIXES]
    return [
        path
        for path in found
        if path.suffix.lower() in AUDIO_SUFFIXES or path.with_suffix("") not in of_audio
    ]


def _exact(name: Path, roots: Sequence[Path], suffixes: Sequence[str]) -> Path | None:
    """The file at a path below a folder: with one of `suffixes`, or else with the one of the name,
    if it is known.
    """
    candidates = [
        *_with_suffixes(name, suffixes),
        *([name] if name.suffix.lower() in ALL_SUFFIXES else []),
    ]
    paths = (root / candidate for candidate in candidates for root in roots)
    found = next(filter(os.path.isfile, paths), None)  # False for a name that no disk can hold
    return found and real_path(found)


def _find_raw(names: Sequence[Path], roots: Sequence[Path]) -> Path | None:
    """The file of raw samples at one of these paths below one of the folders."""
    paths = (root / name for name in names for root in roots if name.suffix.lower() in RAW_SUFFIXES)
    return next(filter(os.path.isfile, paths), None)


def real_path(path: Path) -> Path:
    """The absolute path without links to folders and `..`; a link to a file keeps its own name."""
    return path.parent.resolve() / path.name


def _most_alike(
    index: Mapping[tuple[str, ...], list[Path]], name: str, written: Path
) -> tuple[list[Path], float]:
    """The files of this name with the most folders above them in common with the written path, and
    that number.
    """
    key: tuple[str, ...] = (fold_name(name),)
    found = list[Path]()
    for part in (*reversed(_folders(written)), ""):
        if key not in index:
            break
        found, key = index[key], (part, *key)
    return found, len(key) - 2


def _folders(path: Path) -> tuple[str, ...]:
    return tuple(map(fold_name, path.parts[:-1]))


def _folders_of(names: Sequence[Path]) -> tuple[str, ...]:
    """The folders of the first path that names some."""
    return next(filter(None, map(_folders, names)), ())


def _local_names(audio: Sequence[str]) -> list[Path]:
    return [name for written in audio if written for name in local_paths(written)]


def _nfc(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def fold_name(name: str) -> str:
    """The name without case and Unicode form.

    Not `casefold`: Maße.wav and Masse.wav are two files.
    """
    return _nfc(name).lower()


def _stem(name: Path) -> str:
    return fold_name(name.stem if name.suffix.lower() in ALL_SUFFIXES else name.name)


def local_paths(written: str) -> list[Path]:
    """A path as it is written in a file: `file:///D:/x/a.wav`, `D:\\x\\a.wav`, `./a.wav`,
    `a%20b.wav`.
    """
    path = re.sub(r"^file:/*(?=[A-Za-z]:|/)", "", written.strip())
    path = re.sub(r"^[A-Za-z]:", "", path.replace("\\", "/"))
    return [Path(one) for one in dict.fromkeys((path, unquote(path))) if Path(one).name]


def _with_suffixes(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """The path, if it has one of the suffixes, and the same name with each of them, in place of its
    own or after it.
    """
    is_one = path.suffix.lower() in suffixes
    own = [path] if is_one else [path.with_name(path.name + suffix) for suffix in suffixes]
    is_media = path.suffix.lower() in ALL_SUFFIXES  # else the suffix is a part of the name
    others = [path.with_suffix(suffix) for suffix in suffixes] if is_media else []
    return [*own, *(other for other in others if other != path)]
