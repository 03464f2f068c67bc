# SPDX-License-Identifier: Apache-2.0
"""Lists of a project, read once per change of their files: utterances, findings, rejected
annotations, scores.
"""

import json
import math
import threading
from collections import ChainMap, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from wenet_hs.app.places import choose
from wenet_hs.app.projects import Project
from wenet_hs.base.files import read_cached, read_lines
from wenet_hs.corpus.edits import EXCLUDED
from wenet_hs.corpus.output import SPLITS, Rejected, read_rejected
from wenet_hs.data.media import ALL_SUFFIXES
from wenet_hs.manifest.data_list import Utterance, read_data_list
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

Value = TypeVar("Value")
CHOICE = "recordings.json"
_AGAIN = "prepare the recordings again"
_MUTEX = threading.Lock()


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


def read_set(project: Project, name: str) -> Sequence[Utterance]:
    """The utterances of a list; none if there is no such list."""
    path = project / "data" / name / "data.list"
    return [*read_cached(_by_key, path).values()] if path.is_file() else []


def read_recordings(project: Project) -> list[str]:
    """The audio files of the training list, by name."""
    return read_cached(_recordings, project / "data/train/data.list", [])


def _recordings(path: Path) -> list[str]:
    return sorted({clip.wav for clip in read_data_list(path)})


def find_clip(project: Project, key: str) -> Utterance:
    """The utterance of this key. Raises DataError if the lists have none."""
    return choose(read_clips(project), key, "utterance", "not in the lists of this project")


def _by_key(path: Path) -> dict[str, Utterance]:
    return {u.key: u for u in read_data_list(path)}


def find_rejected(project: Project, key: str) -> Utterance:
    """The audio of an annotation that is not used.

    Raises DataError if there is none of this key with its audio.
    """
    known = {
        one.key: one
        for one in read_rejected_annotations(project)
        if one.key == key and has_audio(one)
    }
    found = choose(known, key, "annotation", "has no audio in the list")
    return Utterance(key=key, wav=found.path, txt="", start=found.start, end=found.end)


def read_rejected_annotations(project: Project) -> list[Rejected]:
    """The annotations that are not used."""
    return read_cached(read_rejected, project / "data/rejected.tsv", [])


def has_audio(annotation: Rejected) -> bool:
    """Whether its path is an audio file that exists."""
    return annotation.path.lower().endswith(ALL_SUFFIXES) and Path(annotation.path).is_file()


def read_findings(project: Project) -> Mapping[str, Sequence[tuple[str, str, str]]]:
    """Kind → set, key and details of each finding of the check."""
    return read_cached(_by_kind, project / "data/check.tsv", {})


def _by_kind(path: Path) -> dict[str, list[tuple[str, str, str]]]:
    found = defaultdict[str, list[tuple[str, str, str]]](list)
    for line in read_lines(path)[1:]:
        try:
            name, key, kind, details = line.split("\t", 3)
        except ValueError as error:
            raise DataError(
                path, "has a line without set, key, kind and details", _AGAIN
            ) from error
        found[kind].append((name, key, details))
    return found


def read_project_stats(project: Project) -> dict[str, Any]:
    """The content of data/stats.json; empty if the lists are not complete."""
    return read_cached(_stats, project / "data/stats.json", {})


def _stats(path: Path) -> dict[str, Any]:
    try:
        stats: dict[str, Any] = json.loads(path.read_text("utf-8"))
        {float(hours) for hours in stats["total"]["hours"].values()} | {
            *stats["total"]["utterances"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(path, "not the numbers of lists", _AGAIN) from error
    return stats


def read_choice(project: Project) -> dict[str, list[str]]:
    """The fields of the form that made the lists last, by name; empty if that was not this page."""
    path = project / ".app" / CHOICE
    try:
        fields = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        return {str(name): [*map(str, values)] for name, values in fields.items() if values}
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
        write_atomic(project.target("data") / EXCLUDED, "".join(f"{one}\n" for one in keys))
