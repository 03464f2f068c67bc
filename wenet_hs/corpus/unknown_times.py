# SPDX-License-Identifier: Apache-2.0
"""Times of an unknown form in a transcript, told from the numbers of a text.

A time is certain if no time of day and no number is written so: it has hours, minutes and seconds,
or parts of a second, or brackets. Other times may be numbers of the text: they count only if they
lie within the audio, and if they are no numbers of a list or of verses.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Literal

from wenet_hs.manifest.file_forms import find_segment_column

_MIN_SHARE = 1 / 3
"""Share of the lines of a transcript with times that have one."""
_MIN_SHARE_OF_NUMBERS = 0.9
"""The same if all times are plain numbers."""
_MIN_LINES = 2
_MIN_INCREASING = 0.8
"""Share of the times that are not before the time above. Several tiers may each begin at 0."""
_MIN_SHARE_OF_STEPS = 0.8
"""Share of the numbers of a list, or of verses, that follow the number above."""
_MAX_COLUMNS = 20
"""Columns of a line that are searched for a time."""
_MAX_CHARACTERS = 200
"""Of a line or a column that are searched at its beginning, and at the end of a line."""
_TOLERANCE_S = 1.0
"""By which a time within the audio may be after its end."""

_EXACT = r"(?:\d+:\d{2}(?::\d{2}){1,2}(?:[.,;]\d{1,3})?|\d+:\d{2}[.,]\d{1,3})"
"""A clock that is no time of day: h:mm:ss, h:mm:ss:ff (frames), or with parts of a second."""
_CLOCK = rf"(?:{_EXACT}|\d+:\d{{2}})"
_SPELLED = (
    r"(?:(?:\d+ ?h ?)?\d+ ?m(?:in)? ?\d+(?:[.,]\d+)? ?s(?:ecs?)?(?!\w)"
    r"|\d+ ?['’′] ?\d{1,2}(?:[.,]\d+)? ?(?:['’′]{2}|[\"”″]))"
)
"""A clock with units: 00h00m01s, 1 min 2 s, 0'05'', 0′05″."""
_DOTTED = r"(?:\d{2}\.[0-5]\d\.[0-5]\d(?![.\w]))"
"""hh.mm.ss. It may be a date, so it counts only within the audio."""
_SECONDS = r"(?:\d+\.\d+|\d+,\d{1,2}|\d+,\d+(?=[\s;]+\d+,\d+))"
"""Decimals, but not 1,200, which is a number with a comma for thousands unless another follows."""
_SHORT_NAME = r".{1,40}?"
_BETWEEN = r"(?:[^\w\n]+|\s+to\s+)"
_ITEM = r"(?:\d+[.)]\s+)?"
"""The number of an item of a list: `1) `."""
_START = r"(?:start|begin|from|onset)\w*"
_END = r"(?:end|stop|to|offset)\w*"
_EQUALS = r"[\"']?\s*[=:]\s*[\"']?"
_HAS_TIME = re.compile(
    r"\d[:.,;]\s*\d|\d ?['’′]|\d\s*[-–]\s*\d|\d ?(?:h|m(?:in)?) ?\d|\d ?s(?:ecs?)?(?!\w)|\d\s+\d|\[\d|[=:]\s*[\"']?\d"
)
"""What each pattern needs. Most lines of text have nothing of it."""


@dataclass(frozen=True)
class _Pattern:
    """How a line or one of its columns begins that has a time."""

    regex: re.Pattern[str]
    is_certain: bool = False
    """Whether no time of day and no number of a text is written so."""
    is_number: bool = False
    """Whether it is a plain number, as a text may have at the beginning of a line."""
    is_enough: Literal["no", "always", "beside text", "as first line"] = "no"
    """When a single such line shows that the transcript has times.

    beside text: if the transcript has other lines.
    as first line: if it is the first of several lines."""


def _enough(regex: str) -> _Pattern:
    return _Pattern(re.compile(regex), is_certain=True, is_enough="always")


def _beside_text(regex: str) -> _Pattern:
    return _Pattern(re.compile(regex), is_enough="beside text")


def _certain(regex: str) -> _Pattern:
    return _Pattern(re.compile(regex), is_certain=True)


def _possible(regex: str) -> _Pattern:
    return _Pattern(re.compile(regex))


def _number(regex: str) -> _Pattern:
    return _Pattern(re.compile(regex), is_number=True)


_PATTERNS = (
    _enough(rf"\W*[\[({{<]\s*(?P<time>{_EXACT})(?!\w)"),  # [00:01.20] mo
    _enough(rf"(?:{_SHORT_NAME}\W)?\[\s*(?P<time>{_CLOCK})\s*\]"),  # Ana [0:02]: mo
    _enough(rf"{_SHORT_NAME}\s\((?P<time>{_EXACT})\)\W*$"),  # Ana (00:00:02):
    _enough(rf"\W*\[\s*(?P<time>{_SECONDS}){_BETWEEN}{_SECONDS}\s*\]"),  # [0.25-3.5] mo
    _enough(rf"\W*(?P<time>{_EXACT}){_BETWEEN}{_EXACT}(?!\w)"),  # 00:00:01 - 00:00:03 mo
    _enough(rf"(?P<time>{_EXACT})[:,=](?=\D)"),  # 00:00:01:mo
    _enough(rf"(?P<time>{_EXACT})\t"),  # Ana, tab, 00:00:01, tab, mo
    _enough(rf"(?P<time>{_SECONDS})\t(?:.*\t)?{_SECONDS}(?:\t|$)"),  # two columns of seconds
    _enough(rf".*#(?P<time>{_EXACT})(?:-\d+)?#"),  # mo #00:00:02-5#, of f4transkript
    _enough(rf"(?i)\W*{_START}{_EQUALS}(?P<time>[\d.]*\d).*\W{_END}{_EQUALS}\d"),  # start=1 end=2
    _enough(r"(?P<time>\d+)(?P<sign>[,;])(?P<end>\d+)(?P=sign)(?=[^\d\s])"),  # 1500;3200;mo
    _beside_text(rf"\W*(?P<time>{_CLOCK}){_BETWEEN}{_CLOCK}\W*$"),  # 0:01 - 0:03
    _beside_text(rf"{_SHORT_NAME}\S(?: {{2,}}|\t)(?P<time>{_CLOCK}):?$"),  # Ana, two spaces, 0:02
    _beside_text(rf"{_SHORT_NAME}\s\((?P<time>{_CLOCK})\):$"),  # Ana (0:02):
    _beside_text(r"(?P<time>\d+\.\d+),\d+\.\d+,"),  # 0.25,3.5,mo
    # A time only. As an answer, a time of day may have its own line; the first line is no answer.
    _Pattern(re.compile(rf"\W*(?P<time>{_CLOCK})\W*$"), is_enough="as first line"),  # 0:02
    _certain(rf"{_ITEM}\W*(?P<time>{_EXACT})(?!\w)"),  # 00:00:01 mo
    _certain(rf"(?:{_SHORT_NAME}\W)?[({{<]\s*(?P<time>{_CLOCK})\s*[)}}>]"),  # Ana (0:02) mo
    _certain(rf"{_SHORT_NAME}\s(?P<time>{_EXACT})(?![\w:])"),  # Ana 00:00:01 mo
    _certain(r"(?P<time>\d+)\t\d+\t"),  # two columns of whole numbers
    _possible(rf"{_ITEM}\W*(?P<time>{_SPELLED})"),  # 1m02s mo
    _possible(rf"{_ITEM}\W*(?P<time>{_CLOCK})(?![\w:])"),  # 0:02 mo
    _possible(rf"{_SHORT_NAME}\s(?P<time>{_CLOCK}):?$"),  # Ana 0:02
    _possible(rf"{_ITEM}\W*(?P<time>{_DOTTED})"),  # 00.00.05 mo
    _possible(rf"(?:\S+\s+)?\W*(?P<time>{_SECONDS})[\s,;]+{_SECONDS}(?!\w)"),  # 0.25 3.5 mo
    _possible(rf"\W*(?P<time>{_SECONDS}) ?s(?:ecs?)?(?!\w)"),  # 0.5s mo
    _possible(rf".*\s(?P<time>{_SECONDS})[\s,;]+{_SECONDS}\W*$"),  # mo 0.25 3.5
    _number(rf"\W*(?P<time>{_SECONDS})(?=[\s,;\])]|$)"),  # 0.25 mo
    _number(r"\[(?P<time>\d+)\]"),  # [5] mo
    _number(r"[\[(](?P<time>\d+)\s*[-–]\s*(?P<end>\d+)[\])]"),  # (5-9) mo
    # 120 900 mo: seconds, milliseconds or samples, so the audio cannot tell.
    _Pattern(
        re.compile(r"(?P<time>\d+)[\s,;]+(?P<end>\d+)[\s,;]+(?=[^\d\s,;])"),
        is_certain=True,
        is_number=True,
    ),
)
"""In this order: the first one that matches counts."""


@dataclass(frozen=True)
class TextLine:
    """A line of a transcript that is not empty."""

    number: int
    """In the file, from 1."""
    text: str


@dataclass(frozen=True)
class TimedLine:
    """A line of a transcript with a time."""

    line: TextLine
    time: str
    """The first time of the line, as it is written."""
    end: int | None
    """Of a line with two whole numbers: the second one."""
    pattern: _Pattern

    @property
    def is_enough(self) -> bool:
        return self.pattern.is_enough != "no"

    @property
    def seconds(self) -> float:
        return _to_seconds(self.time)


def find_unknown_times(
    lines: Sequence[TextLine], read_duration: Callable[[], float]
) -> TextLine | None:
    """The first line with a time, if the transcript has times; None: it is text.

    A transcript has times if its first line names their columns, if one line is enough to show it,
    or if at least two lines, and a third of all, have times that increase.

    Args:
        lines: those of the transcript that are not empty.
        read_duration: gives the seconds of the audio. It is called only if a time is not certain.
    """
    if _has_columns_of_times([line.text for line in lines]):
        return lines[0]
    timed = list(_find_timed_lines(lines))
    if not _are_times(timed, len(lines)):
        return None
    if not all(line.pattern.is_certain for line in timed):
        end_s = read_duration() + _TOLERANCE_S
        timed = [line for line in timed if line.pattern.is_certain or line.seconds <= end_s]
    return timed[0].line if _are_times(timed, len(lines)) else None


def _has_columns_of_times(lines: Sequence[str]) -> bool:
    """Whether the first line names a column of times and another one, with numbers below it.

    Names between spaces count only if each word is one.
    """
    if len(lines) < 2:
        return False
    delimiter = next((sign for sign in "\t;," if sign in lines[0]), None)
    names = lines[0].split(delimiter)
    if delimiter is None and not all(map(find_segment_column, names)):
        return False
    contents = [find_segment_column(name) for name in names]
    if sum(content is not None for content in contents) < 2:
        return False
    times = [column for column, content in enumerate(contents) if content in ("start", "end")]
    rows = [line.split(delimiter) for line in lines[1:]]
    return bool(times) and all(_is_time_in_column(row, times[0]) for row in rows)


def _is_time_in_column(row: Sequence[str], column: int) -> bool:
    """Whether a row has this column, and it is a number or a clock."""
    return column < len(row) and re.fullmatch(r'\s*"?[\d:.,]*\d"?\s*', row[column]) is not None


def _find_timed_lines(lines: Sequence[TextLine]) -> Iterator[TimedLine]:
    """The lines with a time."""
    for index, line in enumerate(lines):
        if _HAS_TIME.search(line.text) is None:
            continue
        patterns = [pattern for pattern in _PATTERNS if _is_asked(pattern, index, len(lines))]
        timed_line = _find_time(line, patterns)
        if timed_line is not None:
            yield timed_line


def _is_asked(pattern: _Pattern, index: int, num_lines: int) -> bool:
    """Whether a pattern may match line `index` of a transcript, by its `is_enough`."""
    if pattern.is_enough == "beside text":
        return num_lines > 1
    if pattern.is_enough == "as first line":
        return num_lines > 1 and index == 0
    return True


def _find_time(line: TextLine, patterns: Sequence[_Pattern]) -> TimedLine | None:
    """The line with its time, by the first pattern that matches; None: it has no time."""
    columns = _find_columns(line.text)
    for pattern in patterns:
        # A column of text may be a time of day, so these patterns see the begin of the line only.
        parts = columns[:1] if pattern.is_enough == "beside text" else columns
        match = next(filter(None, map(pattern.regex.match, parts)), None)
        if match is not None and _are_begin_and_end(match):
            end = match.groupdict().get("end")
            return TimedLine(line, match["time"], int(end) if end else None, pattern)
    return None


def _are_begin_and_end(match: re.Match[str]) -> bool:
    """Whether the first of two whole numbers is smaller, and they do not count, as 1 2 and 3 4."""
    end = match.groupdict().get("end")
    return end is None or int(match["time"]) + 1 < int(end)


def _find_columns(line: str) -> list[str]:
    """The beginnings of the line and of what follows each of its first tabs, and its end."""
    tabs = islice(re.finditer("\t", line), _MAX_COLUMNS)
    starts = [0, *(tab.end() for tab in tabs)]
    columns = [line[start : start + _MAX_CHARACTERS] for start in starts]
    if len(line) > _MAX_CHARACTERS:
        columns.append(line[-_MAX_CHARACTERS:].partition(" ")[2])
    return columns


def _are_times(timed: Sequence[TimedLine], num_lines: int) -> bool:
    """Whether the lines with times are enough, and their times mostly increase."""
    if any(line.is_enough for line in timed):
        return True
    are_numbers = all(line.pattern.is_number for line in timed)
    min_share = _MIN_SHARE_OF_NUMBERS if are_numbers else _MIN_SHARE
    if len(timed) < max(_MIN_LINES, min_share * num_lines) or _are_list_numbers(timed):
        return False
    num_increasing = sum(_is_after(line, previous) for previous, line in pairwise(timed))
    seconds = [line.seconds for line in timed]
    is_increasing = num_increasing >= _MIN_INCREASING * (len(seconds) - 1)
    return is_increasing and max(seconds) > seconds[0]


def _is_after(line: TimedLine, previous: TimedLine) -> bool:
    """Whether a line does not begin before another one begins, or ends if it has whole numbers."""
    if previous.end is not None:
        return previous.end <= line.seconds
    return previous.seconds <= line.seconds


def _are_list_numbers(timed: Sequence[TimedLine]) -> bool:
    """Whether numbers are those of a list, such as 1.1 and 1.2, or of verses: 3:10 and 3:11.

    Times that are certain are none, and neither are two columns.
    """
    if any(line.pattern.is_certain or line.end is not None for line in timed):
        return False
    num_steps = sum(_is_next_number(line.time, above.time) for above, line in pairwise(timed))
    return num_steps >= _MIN_SHARE_OF_STEPS * (len(timed) - 1)


def _is_next_number(number: str, previous: str) -> bool:
    """Whether a number follows another one in a list: 3:11 after 3:10, and 2.1 after 1.4.

    A list does not begin with 0, as times do.
    """
    *chapter, item = map(int, re.findall(r"\d+", number))
    *previous_chapter, previous_item = map(int, re.findall(r"\d+", previous))
    if previous_chapter[:1] == [0]:
        return False
    if chapter == previous_chapter:
        return item == previous_item + 1
    is_next_chapter = (
        len(chapter) == len(previous_chapter) == 1 and chapter[0] == previous_chapter[0] + 1
    )
    return is_next_chapter and item == 1


def _to_seconds(time: str) -> float:
    """The seconds of a number, of mm:ss or of h:mm:ss, also with units (1m02s) or hh.mm.ss.

    The frames of h:mm:ss:ff are left out.
    """
    if re.fullmatch(_DOTTED, time):
        time = time.replace(".", ":")
    if re.fullmatch(_SPELLED, time):
        time = ":".join(re.findall(r"\d+(?:[.,]\d+)?", time))
    *before, last = re.sub("[,;]", ".", time).split(":")[:3]
    minutes = 0
    for value in before:
        minutes = 60 * minutes + int(value)
    return 60 * minutes + float(last)
