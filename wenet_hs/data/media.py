# SPDX-License-Identifier: Apache-2.0
"""Search for audio and video files: below a folder, and by paths that annotations contain.

The paths in annotations are often of another computer. `MediaFinder` finds such a file by its name
and by the folders that its path has in common with the written one.
"""

import logging
import math
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from wenet_hs.data.containers import ADD_HEADER, RAW_SAMPLES, RAW_SUFFIXES
from wenet_hs.tree.errors import list_names

logger = logging.getLogger(__name__)

AUDIO_SUFFIXES = (
    ".wav", ".wave", ".flac", ".mp3", ".mp2", ".ogg", ".oga", ".opus", ".aiff", ".aif", ".aifc",
    ".au", ".snd", ".w64", ".rf64", ".caf", ".sph", ".nist",
)  # fmt: skip
"""Suffixes of audio that libsndfile reads, the preferred ones first."""
MEDIA_SUFFIXES = (
    ".m4a", ".aac", ".wma", ".amr", ".mp4", ".m4v", ".mov", ".3gp", ".mkv", ".mka", ".webm",
    ".avi", ".wmv", ".mts", ".m2ts", ".ts", ".mpg", ".mpeg", ".flv", ".asf", ".m4b", ".3g2",
    ".spx", ".wv", ".ape", ".ac3", ".eac3", ".tta", ".tak", ".mpc",
)  # fmt: skip
"""Suffixes of audio and video that need PyAV.

A file of the same name that libsndfile reads is preferred.
"""
ALL_SUFFIXES = (*AUDIO_SUFFIXES, *MEDIA_SUFFIXES)
_MAX_PARTS = 6
"""Parts of a path that are compared: the name of the file and up to five folders above it."""
_AT_WRITTEN_PATH = math.inf
"""Instead of a number of common folders: the file is at the written path itself."""
_URL = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+://")

_Folders = tuple[str, ...]
"""The folders of a path, from the root on, each by `fold_name`."""
_FileIndex = dict[tuple[str, ...], list[Path]]
"""The last parts of a path, each by `fold_name` → the files whose paths end so."""


def walk_files(root: Path) -> Iterator[tuple[Path, Path, list[str]]]:
    """Each folder below `root`, its real path, and the names of its files, in order.

    Links to folders are followed, each folder once. Hidden files and folders are left out: backups,
    and macOS's attributes of x.wav in `._x.wav`. A folder that cannot be read and a name that is
    not UTF-8 are left out with a warning.
    """
    visited = set[str]()
    for folder, subfolders, files in os.walk(root, followlinks=True, onerror=_warn_about_folder):
        real_folder = os.path.realpath(folder)
        if real_folder in visited:  # a link to a folder above, or to one that was visited already
            subfolders.clear()
            continue
        visited.add(real_folder)
        used_subfolders = [name for name in subfolders if _is_used_name(folder, name)]
        # Links come last: a folder is visited under its own name if that is below `root` too.
        used_subfolders.sort(key=lambda name: (Path(folder, name).is_symlink(), name))
        subfolders[:] = used_subfolders  # os.walk goes on with these
        used_files = [name for name in files if _is_used_name(folder, name)]
        yield Path(folder), Path(real_folder), sorted(used_files)


def _warn_about_folder(error: OSError) -> None:
    """Warn that a folder cannot be read.

    No warning if it does not exist or is no folder: that is `root`, and the caller reports it.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return
    message = "%s: cannot be read (%s); its files are not used"
    logger.warning(message, error.filename, error.strerror)


def _is_used_name(folder: str, name: str) -> bool:
    """Whether a file or folder has a name that is used: not hidden, and UTF-8.

    Warns about a name that is not UTF-8.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        message = "%s: the name is not UTF-8; rename it, or it is not used"
        logger.warning(message, ascii(f"{folder}/{name}"))
        return False
    return not name.startswith(".")


def find_files(root: Path) -> Iterator[Path]:
    """The files of `walk_files`."""
    for folder, _, names in walk_files(root):
        for name in names:
            yield folder / name


def choose_audio(paths: Sequence[Path]) -> list[Path]:
    """The audio and video files among some files, each recording once.

    A file that needs PyAV is left out if a file beside it has the same name and a suffix that
    libsndfile reads: of a.wav and a.mp4, a.wav is kept.
    """
    audio_without_suffix = {
        path.with_suffix("") for path in paths if path.suffix.lower() in AUDIO_SUFFIXES
    }
    chosen = []
    for path in paths:
        is_audio = path.suffix.lower() in AUDIO_SUFFIXES
        needs_pyav = path.suffix.lower() in MEDIA_SUFFIXES
        has_audio_beside = path.with_suffix("") in audio_without_suffix
        if is_audio or (needs_pyav and not has_audio_beside):
            chosen.append(path)
    return chosen


@dataclass(frozen=True, kw_only=True)
class _Match:
    """A file that was found for a written path."""

    file: Path
    num_common: float
    """Folders directly above the file that the written path has too; or _AT_WRITTEN_PATH."""


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What one call of `MediaFinder.find` searches, and which names were ambiguous so far."""

    written: Sequence[str]
    """The paths as the annotations contain them."""
    paths: list[Path]
    """The same as paths of this computer; see `local_paths`."""
    folder: Path
    """Where relative paths begin: the real folder of the annotations."""
    searched_folder: Path
    """The folder that is searched with all its subfolders."""
    ambiguous_files: list[Path] = field(default_factory=list)
    """The files of the last name that several files have; empty: no name is ambiguous."""
    ambiguous_stems: set[str] = field(default_factory=set)
    """All such names without suffix, by `_folded_stem`."""

    @property
    def roots(self) -> list[Path]:
        """The folders below which a written path may exist as it is, the first one preferred."""
        return list(dict.fromkeys((self.folder, self.searched_folder)))

    def excludes(self, path: Path, suffixes: Sequence[str]) -> bool:
        """Whether files with these suffixes are not searched for a path, as its name is ambiguous.

        If there are two a.wav, the video a.mp4 may be of either, so it is not used for the path
        a.wav. A path that names the video itself is still searched.
        """
        return _folded_stem(path) in self.ambiguous_stems and path.suffix.lower() not in suffixes


class MediaFinder:
    """Finds audio files by paths that may be of another computer."""

    def __init__(self, audio_dir: Path | None) -> None:
        """`audio_dir`: the folder to search; None: the folder of each entry."""
        self._audio_dir = audio_dir
        self._indexes: dict[Path, _FileIndex] = {}
        """A folder that was searched → its files."""
        self._links: dict[Path, dict[_Folders, float]] = {}
        """A file that was found → the folders of each path that led to it → `_Match.num_common`."""

    def find(self, audio: Sequence[str], folder: Path) -> Path | str:
        """The audio file of an entry of annotations, or the reason why there is none, as text.

        The file is remembered for `describe_doubt`. Paths to several recordings give a warning.

        Args:
            audio: the paths of one recording as they are written, also of Windows, or without
                suffix. The first one that leads to a file counts.
            folder: where relative paths begin.
        """
        folder = folder.resolve()
        request = _Request(
            written=audio,
            paths=_local_paths_of_all(audio),
            folder=folder,
            searched_folder=folder if self._audio_dir is None else self._audio_dir,
        )
        if not request.paths:
            return "no audio is named"
        match = self._find_match(request)
        if match is None:
            return _reason_not_found(request)
        _warn_about_several_recordings(request.paths, match.file)
        self._record_link(_first_folders(request.paths), match)
        return match.file

    def _find_match(self, request: _Request) -> _Match | None:
        """The file by the first of three rules that finds one; None: no rule does.

        1. A written path with backslashes is the name of a file of this computer.
        2. A written path exists here.
        3. A file of the same name is in the searched folder.

        Suffixes that libsndfile reads are tried with all rules before those that need PyAV.
        """
        for suffixes in (AUDIO_SUFFIXES, MEDIA_SUFFIXES):
            match = _find_with_backslashes(request, suffixes)
            if match is not None:
                return match
            for path in request.paths:
                if request.excludes(path, suffixes):
                    continue
                match = _find_at_path(request, path, suffixes)
                match = match or self._find_by_name(request, path, suffixes)
                if match is not None:
                    return match
        return None

    def _find_by_name(
        self, request: _Request, path: Path, suffixes: Sequence[str]
    ) -> _Match | None:
        """Rule 3: exactly one file of the name of `path` fits it best.

        `D:\\day1\\a.wav` leads to `x/day1/a.wav`, also if there is `x/day2/a.wav`: that path has
        fewer folders in common with the written one. Names with other suffixes are tried in the
        order of `_with_suffixes`, as long as no file has the name.

        If several files fit equally well, the name is recorded as ambiguous in the request.
        """
        index = self._index_of(request.searched_folder)
        for candidate in _with_suffixes(Path(path.name), suffixes):
            files, num_common = _find_most_alike(index, candidate.name, path)
            beside_annotations = [file for file in files if file.parent == request.folder]
            if beside_annotations:  # these are preferred, as in ELAN, and believed without doubt
                files = beside_annotations
                num_common = _AT_WRITTEN_PATH
            if _are_in_one_folder(files):  # their names differ only in case or Unicode form
                same_case = [file for file in files if _nfc(file.name) == _nfc(candidate.name)]
                files = same_case or files
            if len(files) == 1:
                return _Match(file=files[0], num_common=num_common)
            if files:
                request.ambiguous_stems.add(_folded_stem(path))
                request.ambiguous_files[:] = files
                return None
        return None

    def _index_of(self, folder: Path) -> _FileIndex:
        """The files below a folder, which is searched once."""
        if folder not in self._indexes:
            self._indexes[folder] = _index_files(folder)
        return self._indexes[folder]

    def _record_link(self, folders: _Folders, match: _Match) -> None:
        """Record for `describe_doubt` that a path with these folders led to a file."""
        links = self._links.setdefault(match.file, {})
        links[folders] = max(match.num_common, links.get(folders, 0))

    def describe_doubt(self, audio: Sequence[str], file: Path) -> str | None:
        """Why a file that `find` returned for `audio` may be another recording; None: no doubt.

        To be called when all paths of the data were searched. Recorders give files of every session
        the same names, so paths with different folders may lead to one file. Then only the path
        with the most folders in common with the file is believed, and none if there are several. A
        path at which the file itself is, or which names no folder, is always believed.
        """
        links = self._links[file]
        folders = _first_folders(_local_paths_of_all(audio))
        num_common = links[folders]
        if num_common == _AT_WRITTEN_PATH:
            return None
        for other_folders, other_num_common in links.items():
            is_as_likely = other_num_common >= num_common
            if is_as_likely and _have_other_ends(folders, other_folders):
                other = f"another path leads to it too, in the folder {other_folders[-1]!r}"
                remedy = (
                    "name the right folder in the path, or put the audio beside the annotations"
                )
                return f"ambiguous: only {file} has this name, and {other}; {remedy}"
        return None


# ---- Rules that find a file


def _find_with_backslashes(request: _Request, suffixes: Sequence[str]) -> _Match | None:
    """Rule 1: a file of this computer has backslashes in its name, as one of the written paths.

    The file `a\\b.wav` below one of the roots is found by the written path `a\\b.wav` or `a\\b`.
    Other rules read it as the file b.wav in the folder a.
    """
    for written in request.written:
        if "\\" not in written:
            continue
        file = _find_below(request.roots, Path(written), suffixes)
        if file is not None:
            return _Match(file=file, num_common=_AT_WRITTEN_PATH)
    return None


def _find_at_path(request: _Request, path: Path, suffixes: Sequence[str]) -> _Match | None:
    """Rule 2: a file is at `path`, or at another of the written paths with the same name.

    Several links to one file differ in their folders, `D:/day1/a.wav` and `day1/a.wav`. All of them
    are tried here, before rule 3 searches for the name.
    """
    for written_path in request.paths:
        if written_path.name == path.name:
            file = _find_below(request.roots, written_path, suffixes)
            if file is not None:
                return _Match(file=file, num_common=_AT_WRITTEN_PATH)
    return None


def _find_below(roots: Sequence[Path], path: Path, suffixes: Sequence[str]) -> Path | None:
    """The first file that exists at a path below one of the roots; None: there is none.

    The suffixes are tried first, as in `_with_suffixes`; then the path as it is, if its own suffix
    is a known one. So a.mp4 gives a.wav if that exists, and otherwise a.mp4.
    """
    candidates = _with_suffixes(path, suffixes)
    if path.suffix.lower() in ALL_SUFFIXES:
        candidates.append(path)
    for candidate in candidates:
        for root in roots:
            file = root / candidate
            if _is_file(file):
                return real_path(file)
    return None


def _with_suffixes(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """The paths at which the file of a written path may be, the most likely one first.

    With the suffixes .wav and .flac: a.flac gives a.flac, a.wav. A name with another known suffix,
    a.mp4, gives a.mp4.wav, a.mp4.flac, a.wav, a.flac. In every other name the suffix is a part of
    the name: day.1 gives day.1.wav, day.1.flac.
    """
    suffix = path.suffix.lower()
    if suffix in suffixes:
        replaced = [path.with_suffix(other) for other in suffixes]
        return [path, *(candidate for candidate in replaced if candidate != path)]
    appended = [path.with_name(path.name + other) for other in suffixes]
    if suffix not in ALL_SUFFIXES:
        return appended
    return [*appended, *(path.with_suffix(other) for other in suffixes)]


def _index_files(root: Path) -> _FileIndex:
    """The audio and video files below a folder by the ends of their paths, of up to six parts.

    `/data/Kiz/A.WAV` is under ("a.wav",), ("kiz", "a.wav"), ("data", "kiz", "a.wav") and so on.
    Each file has the path of its real folder, so that one recording has one path. A link to a file
    keeps its own name.
    """
    index: _FileIndex = {}
    for _, real_folder, names in walk_files(root):
        for name in names:
            if not name.lower().endswith(ALL_SUFFIXES):
                continue
            file = real_folder / name
            parts = tuple(map(fold_name, file.parts))
            for first in range(max(0, len(parts) - _MAX_PARTS), len(parts)):
                index.setdefault(parts[first:], []).append(file)
    return index


def _find_most_alike(index: _FileIndex, name: str, written: Path) -> tuple[list[Path], float]:
    """The files called `name` whose paths are most like the written one.

    That is, with the most folders directly above the file that the written path has too. The name
    and the folders are compared by `fold_name`.

    Returns: the files, of which there are none if no file has the name; and how many folders each
        of them has in common with the written path.
    """
    end: tuple[str, ...] = (fold_name(name),)
    files = index.get(end, [])
    num_common = 0
    for folder in reversed(_folders(written)):
        end = (folder, *end)
        if end not in index:
            break
        files = index[end]
        num_common += 1
    return files, num_common


def _are_in_one_folder(files: Sequence[Path]) -> bool:
    """Whether all files are in the same folder; False if there are none."""
    return len({file.parent for file in files}) == 1


# ---- Reasons why no file was found


def _reason_not_found(request: _Request) -> str:
    """The reason why no rule found a file, by the first of four that holds."""
    return (
        _describe_ambiguous(request)
        or _describe_url(request)
        or _describe_raw(request)
        or _describe_missing(request)
    )


def _describe_ambiguous(request: _Request) -> str | None:
    """The reason if several files have a name: `ambiguous: x/a.wav, y/a.wav; name the folder …`."""
    if not request.ambiguous_files:
        return None
    files = list_names(sorted(map(str, request.ambiguous_files)), most=2)
    return f"ambiguous: {files}; name the folder in the path"


def _describe_url(request: _Request) -> str | None:
    """The reason if a written path is a URL such as `https://example.org/a.wav`."""
    url = next(filter(_URL.match, request.written), None)
    return None if url is None else f"URL: {url}; download the file, and give its path"


def _describe_raw(request: _Request) -> str | None:
    """The reason if a file of raw samples is at a written path, such as a.pcm."""
    for path in request.paths:
        for root in request.roots:
            file = root / path
            if path.suffix.lower() in RAW_SUFFIXES and _is_file(file):
                return f"unreadable: {file}: {RAW_SAMPLES}; {ADD_HEADER}"
    return None


def _describe_missing(request: _Request) -> str:
    """The reason that always holds: no file has one of the names, which are listed.

    The name of the annotation file without suffix is often among the paths. It is not listed if a
    path with the same name has a suffix: of `a.wav` and `a` only `a.wav`.
    """
    stems = {path.stem for path in request.paths if path.suffix}
    names = []
    for path in request.paths:
        if path.suffix:
            names.append(path.name)
        elif path.name not in stems:
            names.append(f"{path.name}.wav (.flac, .mp3 …)")
    distinct_names = list(dict.fromkeys(names))
    where = f"in {request.searched_folder} and its subfolders"
    return f"missing: no {list_names(distinct_names)} {where}"


# ---- Several paths of one entry


def _warn_about_several_recordings(paths: Sequence[Path], used: Path) -> None:
    """Warn if the paths of an entry name several recordings: two microphones, or two sessions."""
    names = sorted({path.name for path in paths if path.suffix.lower() in AUDIO_SUFFIXES})
    if len(names) > 1:
        message = "links to %d recordings, %s: %s is used"
        logger.warning(message, len(names), list_names(names), used)


def _have_other_ends(folders: _Folders, other_folders: _Folders) -> bool:
    """Whether the last folders of two paths differ, as far as both paths have folders.

    ("kiz", "day1") and ("day1",) do not differ, nor does a path without folders from any other.
    """
    length = min(len(folders), len(other_folders))
    return length > 0 and folders[-length:] != other_folders[-length:]


def _first_folders(paths: Sequence[Path]) -> _Folders:
    """The folders of the first path that has some; none if all are only names."""
    for path in paths:
        folders = _folders(path)
        if folders:
            return folders
    return ()


def _folders(path: Path) -> _Folders:
    """The folders of a path, from the root on, each by `fold_name`."""
    return tuple(map(fold_name, path.parts[:-1]))


def _local_paths_of_all(audio: Sequence[str]) -> list[Path]:
    """The paths of `local_paths` of all that are written, in order; empty ones are left out."""
    paths = list[Path]()
    for written in audio:
        if written:
            paths += local_paths(written)
    return paths


# ---- Names and paths


def _is_file(path: Path) -> bool:
    """Whether a file exists; False for a name that no disk can have (`Path.is_file` raises)."""
    return os.path.isfile(path)  # noqa: PTH113


def local_paths(written: str) -> list[Path]:
    """A path as an annotation contains it, as paths of this computer: up to two.

    `D:\\x\\a.wav` and `file:///D:/x/a.wav` give /x/a.wav. `a%20b.wav` gives two: as it is, and
    decoded as in a URL, `a b.wav`. A path without a name, such as `/`, gives none.
    """
    # file: is removed with all slashes but the one with which the path begins.
    without_scheme = re.sub(r"^file:/*(?=[A-Za-z]:|/)", "", written.strip())
    with_slashes = without_scheme.replace("\\", "/")
    without_drive = re.sub(r"^[A-Za-z]:", "", with_slashes)
    spellings = dict.fromkeys((without_drive, unquote(without_drive)))
    return [Path(spelling) for spelling in spellings if Path(spelling).name]


def real_path(path: Path) -> Path:
    """The absolute path without links to folders and `..`; a link to a file keeps its own name."""
    return path.parent.resolve() / path.name


def fold_name(name: str) -> str:
    """The name without case and Unicode form.

    Not `casefold`: Maße.wav and Masse.wav are two files.
    """
    return _nfc(name).lower()


def _folded_stem(path: Path) -> str:
    """The name of a file by `fold_name`, without its suffix if that is one of audio or video."""
    is_media = path.suffix.lower() in ALL_SUFFIXES
    return fold_name(path.stem if is_media else path.name)


def _nfc(name: str) -> str:
    """The name in Unicode form NFC: `a` with a combining accent becomes one character."""
    return unicodedata.normalize("NFC", name)
