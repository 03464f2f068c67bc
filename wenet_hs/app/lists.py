# SPDX-License-Identifier: Apache-2.0
"""Lists of a project: utterances, findings of the check, rejected annotations, excluded keys.

The large files are read once per change of the file.
"""

import json
import math
import threading
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from wenet_hs.app.places import find_entry
from wenet_hs.app.projects import Project
from wenet_hs.base.files import read_cached, read_lines
from wenet_hs.corpus.edits import EXCLUDED
from wenet_hs.corpus.output import SPLITS, Rejected, read_rejected
from wenet_hs.data.media import ALL_SUFFIXES
from wenet_hs.manifest.data_list import Utterance, read_data_list
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

Value = TypeVar("Value")
_LAST_FORM = "recordings.json"
_PREPARE_AGAIN = "prepare the recordings again"
_MAX_PAGE_DIGITS = 8
"""Python refuses to read a number with thousands of digits, so longer ones are not read."""
_EXCLUDED_MUTEX = threading.Lock()
"""Held from the reading of the excluded keys to their writing."""


@dataclass(frozen=True, kw_only=True)
class ListPage(Generic[Value]):
    """One page of a list."""

    items: Sequence[Value]
    number: int
    """From 1."""
    num_pages: int
    total: int
    """The number of items on all pages."""


def select_page(items: Sequence[Value], number: str, size: int = 20) -> ListPage[Value]:
    """One page of a list of items.

    Args:
        number: the number of the page, from 1, as a request sent it. A number after the last page
            gives the last page. A text that is not a number of up to eight digits gives the first
            page.
        size: items per page.
    """
    num_pages = max(1, math.ceil(len(items) / size))  # an empty list has one empty page
    is_number = number.isdecimal() and len(number) <= _MAX_PAGE_DIGITS
    wanted_number = int(number) if is_number else 1
    page_number = min(max(wanted_number, 1), num_pages)
    start = (page_number - 1) * size
    return ListPage(
        items=items[start : start + size],
        number=page_number,
        num_pages=num_pages,
        total=len(items),
    )


# ---- utterances


def read_clips(project: Project) -> Mapping[str, Utterance]:
    """The utterances of the training, dev and test lists by key. A list may be missing."""
    paths = [_data_list(project, name) for name in SPLITS]
    utterances = [read_cached(_read_by_key, path) for path in paths if path.is_file()]
    return ChainMap(*utterances)  # without a copy of the large dicts


def read_set(project: Project, name: str) -> Sequence[Utterance]:
    """The utterances of the list of this set, such as `dev`; none if there is no such list."""
    path = _data_list(project, name)
    if not path.is_file():
        return []
    return list(read_cached(_read_by_key, path).values())


def _data_list(project: Project, name: str) -> Path:
    return project / "data" / name / "data.list"


def _read_by_key(path: Path) -> dict[str, Utterance]:
    return {utterance.key: utterance for utterance in read_data_list(path)}


def find_clip(project: Project, key: str) -> Utterance:
    """The utterance of this key. Raises DataError if the lists have none."""
    return find_entry(read_clips(project), key, "utterance", "not in the lists of this project")


def read_recordings(project: Project) -> list[str]:
    """The audio files of the training list, sorted by path; none if there is no such list."""
    return read_cached(_read_audio_files, _data_list(project, "train"), [])


def _read_audio_files(path: Path) -> list[str]:
    return sorted({utterance.wav for utterance in read_data_list(path)})


# ---- rejected annotations, findings and statistics


def read_rejected_annotations(project: Project) -> list[Rejected]:
    """The annotations that `prepare` did not use; none if there is no list of them."""
    return read_cached(read_rejected, project / "data/rejected.tsv", [])


def find_rejected(project: Project, key: str) -> Utterance:
    """The audio of an annotation that `prepare` did not use, as an utterance without a text.

    Raises DataError if no such annotation has this key and an audio file that exists.
    """
    playable = dict[str, Rejected]()
    for rejected in read_rejected_annotations(project):
        if rejected.key == key and has_audio(rejected):
            playable[key] = rejected
    annotation = find_entry(playable, key, "annotation", "has no audio in the list")
    return Utterance(
        key=key, wav=annotation.path, txt="", start=annotation.start, end=annotation.end
    )


def has_audio(annotation: Rejected) -> bool:
    """Whether its path is an audio file that exists."""
    return annotation.path.lower().endswith(ALL_SUFFIXES) and Path(annotation.path).is_file()


class ListedFinding(NamedTuple):
    """A line of data/check.tsv: something that the check found in an utterance."""

    set_name: str
    key: str
    details: str


def read_findings(project: Project) -> Mapping[str, Sequence[ListedFinding]]:
    """Kind of finding → the findings of the check; empty if there was no check.

    Raises DataError for a line of data/check.tsv with fewer than four columns.
    """
    return read_cached(_read_by_kind, project / "data/check.tsv", {})


def _read_by_kind(path: Path) -> dict[str, list[ListedFinding]]:
    """Kind → findings of a table with a header and the columns set, key, kind and details.

    Raises DataError for a line with fewer columns.
    """
    findings = dict[str, list[ListedFinding]]()
    for line in read_lines(path)[1:]:
        try:
            set_name, key, kind, details = line.split("\t", 3)
        except ValueError as error:
            fault = "has a line without set, key, kind and details"
            raise DataError(path, fault, _PREPARE_AGAIN) from error
        findings.setdefault(kind, []).append(ListedFinding(set_name, key, details))
    return findings


def read_project_stats(project: Project) -> dict[str, Any]:
    """The content of data/stats.json; empty if the file is missing: no lists are complete then.

    Raises DataError if it is damaged.
    """
    return read_cached(_read_stats, project / "data/stats.json", {})


def _read_stats(path: Path) -> dict[str, Any]:
    """The content of a stats.json. Raises DataError if the numbers for all lists are not there."""
    try:
        stats: dict[str, Any] = json.loads(path.read_text("utf-8"))
        _check_totals(stats["total"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(path, "not the numbers of lists", _PREPARE_AGAIN) from error
    return stats


def _check_totals(total: dict[str, Any]) -> None:
    """Check that `hours` and `utterances` have a number per set, such as 0.5 for `train`.

    Raises ValueError, KeyError, TypeError or AttributeError for other content.
    """
    for values in (total["hours"], total["utterances"]):
        for value in values.values():
            float(value)  # only for its errors


# ---- what a user chose


def read_last_form(project: Project) -> dict[str, list[str]]:
    """The fields of the form from which this page made the lists last: name → values.

    Fields without values are left out. Empty if this page has made no lists. Raises DataError if
    the file is damaged.
    """
    path = project / ".app" / _LAST_FORM
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text("utf-8"))
        fields = dict[str, list[str]]()
        for name, values in content.items():
            if values:
                fields[name] = [str(value) for value in values]
        return fields
    except (ValueError, AttributeError, TypeError) as error:
        raise DataError(path, "not the fields of a form", "remove the file") from error


def write_last_form(project: Project, fields: Mapping[str, Sequence[str]]) -> None:
    """Keep the fields of the form that makes the lists, for `read_last_form`.

    Raises DataError if the folder .app is a link that leads out of the project.
    """
    path = project.writable_path(".app") / _LAST_FORM
    write_atomic(path, json.dumps(fields, ensure_ascii=False))


def read_excluded(project: Project) -> list[str]:
    """The keys of utterances that `prepare` leaves out at its next run; none without the file."""
    path = project / "data" / EXCLUDED
    if not path.is_file():
        return []
    keys = [line.strip() for line in read_lines(path)]
    return [key for key in keys if key]


def set_excluded(project: Project, key: str, *, is_excluded: bool) -> None:
    """Add the key of an utterance to those that `prepare` leaves out, or remove it from them.

    Raises DataError for a key to add that the data lists do not have, or if the folder of the lists
    is a link that leads out of the project.
    """
    if is_excluded:
        find_clip(project, key)  # raises DataError for an unknown key
    with _EXCLUDED_MUTEX:
        keys = [other for other in read_excluded(project) if other != key]
        if is_excluded:
            keys.append(key)
        lines = [f"{line}\n" for line in keys]
        write_atomic(project.writable_path("data") / EXCLUDED, "".join(lines))
