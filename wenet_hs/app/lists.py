# SPDX-License-Identifier: Apache-2.0
"""Lists of a project, read once per change of their files: utterances, findings, rejected annotations, scores."""

import json
import math
import threading
from collections import ChainMap, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from wenet_hs.app.projects import Project
from wenet_hs.corpus.edits import EXCLUDED
from wenet_hs.corpus.output import SPLITS, Rejected, read_rejected
from wenet_hs.data.media import ALL_SUFFIXES
from wenet_hs.errors import DataError
from wenet_hs.files import one_field, read_lines, write_atomic
from wenet_hs.manifest import Utterance, read_data_list

Value = TypeVar("Value")
CHOICE = ".app/recordings.json"
_MAX_CACHED = 32
_CACHE: dict[tuple[Callable[[Path], Any], Path], tuple[tuple[int, int, int], Any]] = {}
_MUTEX = threading.Lock()


def read_cached(read: Callable[[Path], Value], path: Path) -> Value:
    """The result of `read`, which is called again if the file has changed."""
    state = path.stat()
    mark = (state.st_mtime_ns, state.st_size, state.st_ino)
    known = _CACHE.get((read, path))
    if known is None or known[0] != mark:
        known = (mark, read(path))  # outside of the lock: other pages do not wait
    with _MUTEX:
        _CACHE.pop((read, path), None)
        _CACHE[read, path] = known
        while len(_CACHE) > _MAX_CACHED:
            del _CACHE[next(iter(_CACHE))]
    value: Value = known[1]
    return value


@dataclass(frozen=True)
class PageOf(Generic[Value]):
    """One page of a list."""

    items: Sequence[Value]
    number: int
    """From 1."""
    num_pages: int
    total: int


def page_of(items: Sequence[Value], number: str, size: int = 20) -> PageOf[Value]:
    """The page of this number; the nearest one if there is no such page."""
    num_pages = max(1, math.ceil(len(items) / size))
    chosen = min(max(int(number) if number.isdecimal() and len(number) < 9 else 1, 1), num_pages)
    return PageOf(items[(chosen - 1) * size : chosen * size], chosen, num_pages, len(items))


def read_clips(project: Project) -> Mapping[str, Utterance]:
    """The utterances of all lists by key."""
    paths = [project / "data" / name / "data.list" for name in SPLITS]
    return ChainMap(*(read_cached(_by_key, path) for path in paths if path.is_file()))


def read_recordings(project: Project) -> list[str]:
    """The audio files of the training list, by name."""
    path = project / "data/train/data.list"
    return read_cached(_recordings, path) if path.is_file() else []


def _recordings(path: Path) -> list[str]:
    return sorted({clip.wav for clip in read_data_list(path)})


def find_clip(project: Project, key: str) -> Utterance:
    """The utterance of this key. Raises DataError if the lists have none."""
    clips = read_clips(project)
    if key not in clips:
        raise DataError(f"utterance {key[:80]!r}", "not in the lists of this project", "prepare the recordings again")
    return clips[key]


def _by_key(path: Path) -> dict[str, Utterance]:
    return {u.key: u for u in read_data_list(path)}


def _rows(path: Path) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t")) for line in read_lines(path)[1:]]


def find_rejected(project: Project, key: str) -> Utterance:
    """The audio of an annotation that is not used. Raises DataError if there is none of this key with its audio."""
    known = read_rejected_annotations(project)
    if (found := next((one for one in known if one.key == key and has_audio(one)), None)) is None:
        raise DataError(f"annotation {one_field(key)[:80]!r}", "has no audio in the list", "load the page again")
    return Utterance(key=key, wav=found.path, txt="", start=found.start, end=found.end)


def read_rejected_annotations(project: Project) -> list[Rejected]:
    """The annotations that are not used."""
    path = project / "data/rejected.tsv"
    return read_cached(read_rejected, path) if path.is_file() else []


def has_audio(annotation: Rejected) -> bool:
    """Whether its path is an audio file that exists."""
    return annotation.path.lower().endswith(ALL_SUFFIXES) and Path(annotation.path).is_file()


def read_findings(project: Project) -> Mapping[str, Sequence[tuple[str, ...]]]:
    """Kind → set, key, kind and details of each finding of the check."""
    path = project / "data/check.tsv"
    return read_cached(_by_kind, path) if path.is_file() else {}


def _by_kind(path: Path) -> Mapping[str, Sequence[tuple[str, ...]]]:
    found = defaultdict[str, list[tuple[str, ...]]](list)
    for row in _rows(path):
        found[row[2]].append(row)
    return dict(found)


def read_stats(project: Project) -> dict[str, Any]:
    """The content of data/stats.json; empty if the lists are not complete."""
    path = project / "data/stats.json"
    try:
        stats = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise DataError(path, "not JSON", "prepare the recordings again") from error
    return stats if isinstance(stats, dict) else {}


def read_choice(project: Project) -> dict[str, list[str]]:
    """The fields of the form that made the lists last, by name; empty if that was not this page."""
    path = project / CHOICE
    try:
        fields = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        return {str(name): [*map(str, values)] for name, values in fields.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise DataError(path, "not the fields of a form", "remove the file") from error


def read_excluded(project: Project) -> list[str]:
    """The keys that `prepare` leaves out at its next run."""
    path = project / "data" / EXCLUDED
    return [key for line in (read_lines(path) if path.is_file() else []) if (key := line.strip())]


def set_excluded(project: Project, key: str, *, is_excluded: bool) -> None:
    """Add a key to the list, or remove it."""
    if is_excluded:
        find_clip(project, key)
    with _MUTEX:
        keys = [one for one in read_excluded(project) if one != key] + [key] * is_excluded
        write_atomic(project / "data" / EXCLUDED, "".join(f"{one}\n" for one in keys))
