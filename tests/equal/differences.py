# SPDX-License-Identifier: Apache-2.0
"""Differences between two records: by file, and in each file by line."""

import difflib
from dataclasses import dataclass
from itertools import zip_longest

SET_SUFFIX = ".set.txt"
"""Files whose lines have no order: each line that vanished or is new is a difference of its own."""
_BEFORE_CHANGE = 30
_SHOWN = 110


@dataclass(frozen=True)
class LineChange:
    """A line of a file that differs. None: there is no such line."""

    number: int
    """Of the line now, or before where it vanished; from 1. 0: the whole file."""
    before: str | None
    now: str | None


@dataclass(frozen=True)
class FileDifference:
    """A file of a case that differs, with all its lines that differ."""

    case: str
    file: str
    changes: tuple[LineChange, ...]


def compare_case(case: str, before: dict[str, str], now: dict[str, str]) -> list[FileDifference]:
    """The files of a case that differ, by name. `before`, `now`: path → text."""
    differences = []
    for file in sorted({*before, *now}):
        if before.get(file) == now.get(file):
            continue
        if file not in now:
            changes = [LineChange(0, "the file", None)]
        elif file not in before:
            changes = [LineChange(0, None, "the file")]
        elif file.endswith(SET_SUFFIX):
            changes = _compare_sets(before[file], now[file])
        else:
            changes = _compare_lines(before[file], now[file])
        differences.append(FileDifference(case, file, tuple(changes)))
    return differences


def _compare_sets(before: str, now: str) -> list[LineChange]:
    earlier = set(before.splitlines())
    later = set(now.splitlines())
    vanished = [LineChange(0, line, None) for line in sorted(earlier - later)]
    new = [LineChange(0, None, line) for line in sorted(later - earlier)]
    return vanished + new


def _compare_lines(before: str, now: str) -> list[LineChange]:
    """The lines that differ. An inserted line does not change those after it."""
    earlier = before.split("\n")
    later = now.split("\n")
    matcher = difflib.SequenceMatcher(None, earlier, later, autojunk=False)
    changes = []
    for kind, start_before, end_before, start_now, end_now in matcher.get_opcodes():
        if kind == "equal":
            continue
        pairs = zip_longest(earlier[start_before:end_before], later[start_now:end_now])
        for offset, (line_before, line_now) in enumerate(pairs):
            start = start_before if line_now is None else start_now
            changes.append(LineChange(start + offset + 1, line_before, line_now))
    return changes


def describe_change(difference: FileDifference, change: LineChange) -> str:
    """One line: case, file, number of the line, both texts around the first place that differs."""
    where = f"{difference.case}: {difference.file}"
    if change.number:
        where = f"{where}:{change.number}"
    if change.now is None:
        return f"{where}: vanished: {_shorten(change.before or '', 0)}"
    if change.before is None:
        return f"{where}: new: {_shorten(change.now, 0)}"
    column = _first_difference(change.before, change.now)
    before = _shorten(change.before, column)
    now = _shorten(change.now, column)
    return f"{where}: column {column + 1}: before {before!r}, now {now!r}"


def _first_difference(before: str, now: str) -> int:
    """The index of the first character that differs."""
    for index, (character_before, character_now) in enumerate(zip(before, now, strict=False)):
        if character_before != character_now:
            return index
    return min(len(before), len(now))


def _shorten(text: str, column: int) -> str:
    """A part of a long line that begins a little before the column."""
    start = max(0, column - _BEFORE_CHANGE)
    end = start + _SHOWN
    first = "…" if start else ""
    last = "…" if end < len(text) else ""
    return f"{first}{text[start:end]}{last}"
