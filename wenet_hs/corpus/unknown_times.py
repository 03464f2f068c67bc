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
"""In a transcript with times, at least this share of the lines has a time."""
_MIN_SHARE_OF_NUMBERS = 0.9
"""This share is necessary if all times are plain numbers."""
_MIN_LINES = 2
"""In a transcript with times, at least so many lines have a time, unless one line is sufficient."""
_MIN_INCREASING = 0.8
"""At least this share of the times is not before the time above. Each of several tiers may begin
at 0.
"""
_MIN_SHARE_OF_STEPS = 0.8
"""In a list, or in verses, at least this share of the numbers follows the number above."""
_MAX_COLUMNS = 20
"""Only so many columns of a line are searched for a time."""
_MAX_CHARACTERS = 200
"""Only so many characters are searched: from the beginning of a line or column, and at the end of a
line.
"""
_TOLERANCE_S = 1.0
"""A time that is after the end of the audio by at most this counts as within the audio."""

_EXACT = r"(?:\d+:\d{2}(?::\d{2}){1,2}(?:[.,;]\d{1,3})?|\d+:\d{2}[.,]\d{1,3})"
"""A clock that is no time of day: h:mm:ss, h:mm:ss:ff (frames), or with parts of a second."""
_CLOCK = rf"(?:{_EXACT}|\d+:\d{{2}})"
"""A clock, also one that may be a time of day: 0:02."""
_SPELLED = (
    r"(?:(?:\d+ ?h ?)?\d+ ?m(?:in)? ?\d+(?:[.,]\d+)? ?s(?:ecs?)?(?!\w)"
    r"|\d+ ?['’′] ?\d{1,2}(?:[.,]\d+)? ?(?:['’′]{2}|[\"”″]))"
)
"""A clock with units: 00h00m01s, 1 min 2 s, 0'05'', 0′05″."""
_DOTTED = r"(?:\d{2}\.[0-5]\d\.[0-5]\d(?![.\w]))"
"""hh.mm.ss. It may be a date, so it counts only within the audio."""
_SECONDS = r"(?:\d+\.\d+|\d+,\d{1,2}|\d+,\d+(?=[\s;]+\d+,\d+))"
"""Seconds with decimals. 1,200 is a number with a comma for thousands, unless another one follows."""
_SHORT_NAME = r".{1,40}?"
"""The name of a speaker."""
_BETWEEN = r"(?:[^\w\n]+|\s+to\s+)"
"""Between begin and end: signs, spaces, or the word to."""
_ITEM = r"(?:\d+[.)]\s+)?"
"""The number of an item of a list: `1) `."""
_START = r"(?:start|begin|from|onset)\w*"
_END = r"(?:end|stop|to|offset)\w*"
"""Words that name the begin and the end of a segment."""
_EQUALS = r"[\"']?\s*[=:]\s*[\"']?"
"""Between a name and its value, with or without quotation marks: `start=`, `"start": "`."""
_HAS_TIME = re.compile(
    r"\d[:.,;]\s*\d|\d ?['’′]|\d\s*[-–]\s*\d|\d ?(?:h|m(?:in)?) ?\d|\d ?s(?:ecs?)?(?!\w)"
    r"|\d\s+\d|\[\d|[=:]\s*[\"']?\d"
)
"""What each line with a time contains. This is tested first, because it is fast and most lines of
text do not contain it.
"""


@dataclass(frozen=True)
class _Pattern:
    """How a line, or one of its columns, begins if it has a time."""

    regex: re.Pattern[str]
    """Its group `time` is the first time of the line. A group `end` is the second of two whole
    numbers.
    """
    is_certain: bool = False
    """Whether no time of day and no number of a text is written so."""
    is_number: bool = False
    """Whether it is a plain number, as a text may have at the beginning of a line."""
    suffices: Literal["never", "always", "beside text", "as first line"] = "never"
    """When a single such line shows that the transcript has times.

    beside text: if the transcript has other lines.
    as first line: if it is the first of several lines.
    """

    @property
    def is_only_at_beginning(self) -> bool:
        """Whether it is tried only at the beginning of a line, and not in its columns.

        The column of a text may be a time of day, and this pattern would take it for a time.
        """
        return self.suffices == "beside text"


_SUFFICIENT = (
    rf"\W*[\[({{<]\s*(?P<time>{_EXACT})(?!\w)",  # [00:01.20] mo
    rf"(?:{_SHORT_NAME}\W)?\[\s*(?P<time>{_CLOCK})\s*\]",  # Ana [0:02]: mo
    rf"{_SHORT_NAME}\s\((?P<time>{_EXACT})\)\W*$",  # Ana (00:00:02):
    rf"\W*\[\s*(?P<time>{_SECONDS}){_BETWEEN}{_SECONDS}\s*\]",  # [0.25-3.5] mo
    rf"\W*(?P<time>{_EXACT}){_BETWEEN}{_EXACT}(?!\w)",  # 00:00:01 - 00:00:03 mo
    rf"(?P<time>{_EXACT})[:,=](?=\D)",  # 00:00:01:mo
    rf"(?P<time>{_EXACT})\t",  # Ana, tab, 00:00:01, tab, mo
    rf"(?P<time>{_SECONDS})\t(?:.*\t)?{_SECONDS}(?:\t|$)",  # two columns of seconds
    rf".*#(?P<time>{_EXACT})(?:-\d+)?#",  # mo #00:00:02-5#, of f4transkript
    rf"(?i)\W*{_START}{_EQUALS}(?P<time>[\d.]*\d).*\W{_END}{_EQUALS}\d",  # start=1 end=2
    r"(?P<time>\d+)(?P<sign>[,;])(?P<end>\d+)(?P=sign)(?=[^\d\s])",  # 1500;3200;mo
)
"""Certain times in a form that no text has: one such line shows that the transcript has times."""
_SUFFICIENT_BESIDE_TEXT = (
    rf"\W*(?P<time>{_CLOCK}){_BETWEEN}{_CLOCK}\W*$",  # 0:01 - 0:03
    rf"{_SHORT_NAME}\S(?: {{2,}}|\t)(?P<time>{_CLOCK}):?$",  # Ana, two spaces, 0:02
    rf"{_SHORT_NAME}\s\((?P<time>{_CLOCK})\):$",  # Ana (0:02):
    r"(?P<time>\d+\.\d+),\d+\.\d+,",  # 0.25,3.5,mo
)
"""One such line is enough if there are others. The only line of a transcript may be said so."""
_SUFFICIENT_AS_FIRST_LINE = (rf"\W*(?P<time>{_CLOCK})\W*$",)  # 0:02
"""A line with a time only. It may be an answer, a time of day, but the first line is no answer."""
_CERTAIN = (
    rf"{_ITEM}\W*(?P<time>{_EXACT})(?!\w)",  # 00:00:01 mo
    rf"(?:{_SHORT_NAME}\W)?[({{<]\s*(?P<time>{_CLOCK})\s*[)}}>]",  # Ana (0:02) mo
    rf"{_SHORT_NAME}\s(?P<time>{_EXACT})(?![\w:])",  # Ana 00:00:01 mo
    r"(?P<time>\d+)\t\d+\t",  # two columns of whole numbers
)
"""Times that no text has, but a single one may be quoted."""
_POSSIBLE = (
    rf"{_ITEM}\W*(?P<time>{_SPELLED})",  # 1m02s mo
    rf"{_ITEM}\W*(?P<time>{_CLOCK})(?![\w:])",  # 0:02 mo
    rf"{_SHORT_NAME}\s(?P<time>{_CLOCK}):?$",  # Ana 0:02
    rf"{_ITEM}\W*(?P<time>{_DOTTED})",  # 00.00.05 mo
    rf"(?:\S+\s+)?\W*(?P<time>{_SECONDS})[\s,;]+{_SECONDS}(?!\w)",  # 0.25 3.5 mo
    rf"\W*(?P<time>{_SECONDS}) ?s(?:ecs?)?(?!\w)",  # 0.5s mo
    rf".*\s(?P<time>{_SECONDS})[\s,;]+{_SECONDS}\W*$",  # mo 0.25 3.5
)
"""Times, or numbers of a text. They count only within the audio."""
_NUMBERS = (
    rf"\W*(?P<time>{_SECONDS})(?=[\s,;\])]|$)",  # 0.25 mo
    r"\[(?P<time>\d+)\]",  # [5] mo
    r"[\[(](?P<time>\d+)\s*[-–]\s*(?P<end>\d+)[\])]",  # (5-9) mo
)
"""Plain numbers. They count only within the audio, and if most lines have one."""
_NUMBERS_OF_ANY_UNIT = (
    r"(?P<time>\d+)[\s,;]+(?P<end>\d+)[\s,;]+(?=[^\d\s,;])",  # 120 900 mo
)
"""Two whole numbers: seconds, milliseconds or samples. So they count also after the audio's end."""
_PATTERNS = (
    *(_Pattern(re.compile(regex), is_certain=True, suffices="always") for regex in _SUFFICIENT),
    *(_Pattern(re.compile(regex), suffices="beside text") for regex in _SUFFICIENT_BESIDE_TEXT),
    *(_Pattern(re.compile(regex), suffices="as first line") for regex in _SUFFICIENT_AS_FIRST_LINE),
    *(_Pattern(re.compile(regex), is_certain=True) for regex in _CERTAIN),
    *(_Pattern(re.compile(regex)) for regex in _POSSIBLE),
    *(_Pattern(re.compile(regex), is_number=True) for regex in _NUMBERS),
    *(
        _Pattern(re.compile(regex), is_certain=True, is_number=True)
        for regex in _NUMBERS_OF_ANY_UNIT
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
    """The second number if the line has two whole numbers; None: it has not."""
    pattern: _Pattern
    """The pattern by which the time was found."""

    @property
    def is_sufficient(self) -> bool:
        """Whether this line is enough to show that the transcript has times."""
        return self.pattern.suffices != "never"

    @property
    def has_begin_and_end(self) -> bool:
        """Whether the line has two whole numbers, which then are its begin and end."""
        return self.end is not None

    @property
    def seconds(self) -> float:
        """The first time of the line. Whole numbers may have another unit."""
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
    timed = list(_find_timed_lines(lines))  # also those with times after the end of the audio
    if not _are_times(timed, len(lines)):
        return None
    if all(line.pattern.is_certain for line in timed):
        return timed[0].line
    end_s = read_duration() + _TOLERANCE_S
    in_audio = [line for line in timed if line.pattern.is_certain or line.seconds <= end_s]
    return in_audio[0].line if _are_times(in_audio, len(lines)) else None


def _has_columns_of_times(lines: Sequence[str]) -> bool:
    """Whether the first line names a column of times and another one, with times in all rows below.

    Example: `start end text`, below it `0.25 3.5 mo`. Only the first of several columns of times
    must have a time in each row. Names between spaces count only if each word is the name of a
    column.
    """
    if len(lines) < 2:
        return False
    # None: spaces are the delimiter.
    delimiter = next((sign for sign in "\t;," if sign in lines[0]), None)
    names = lines[0].split(delimiter)
    contents = [find_segment_column(name) for name in names]  # None: no usual name of a column
    num_named = sum(content is not None for content in contents)
    if num_named < 2:
        return False
    if delimiter is None and num_named < len(names):
        return False
    columns_of_times = [
        column for column, content in enumerate(contents) if content in ("start", "end")
    ]
    if not columns_of_times:
        return False
    first_column_of_times = columns_of_times[0]
    rows = [line.split(delimiter) for line in lines[1:]]
    return all(_has_time_in_column(row, first_column_of_times) for row in rows)


def _has_time_in_column(row: Sequence[str], column: int) -> bool:
    """Whether a row has this column, and its cell is a number or a clock, perhaps quoted."""
    if column >= len(row):
        return False
    return re.fullmatch(r'\s*"?[\d:.,]*\d"?\s*', row[column]) is not None


def _find_timed_lines(lines: Sequence[TextLine]) -> Iterator[TimedLine]:
    """The lines with a time by one of the patterns, in order. The audio is not considered.

    Some patterns are only tried where they can show that the transcript has times: in the first
    line, or beside other lines (`_may_apply`). Elsewhere what they match may be said so, such as
    the answer `0:02`.
    """
    for index, line in enumerate(lines):
        if _HAS_TIME.search(line.text) is None:
            continue
        patterns = [pattern for pattern in _PATTERNS if _may_apply(pattern, index, len(lines))]
        timed_line = _find_time(line, patterns)
        if timed_line is not None:
            yield timed_line


def _may_apply(pattern: _Pattern, index: int, num_lines: int) -> bool:
    """Whether a pattern is used for the line at `index`, from 0, as its `suffices` states."""
    if pattern.suffices == "beside text":
        return num_lines > 1
    if pattern.suffices == "as first line":
        return num_lines > 1 and index == 0
    return True


def _find_time(line: TextLine, patterns: Sequence[_Pattern]) -> TimedLine | None:
    """The line with its time, by the first pattern that matches; None: it has no time.

    A pattern is tried at the beginning of the line and of its other parts (`_list_parts`). If it
    has two whole numbers, they must be able to be begin and end.
    """
    parts = _list_parts(line.text)
    beginning = parts[:1]
    for pattern in patterns:
        searched_parts = beginning if pattern.is_only_at_beginning else parts
        matches = map(pattern.regex.match, searched_parts)
        match = next(filter(None, matches), None)  # the first one
        if match is None:
            continue
        end_text = match.groupdict().get("end")
        end = int(end_text) if end_text else None
        # A pattern with an end has a whole number as its time.
        if end is None or _are_begin_and_end(int(match["time"]), end):
            return TimedLine(line, match["time"], end, pattern)
    return None


def _are_begin_and_end(first: int, second: int) -> bool:
    """Whether two whole numbers can be begin and end: the second is larger by at least 2.

    Otherwise they may count something, as 1 2 in a list.
    """
    return first + 1 < second


def _list_parts(line: str) -> list[str]:
    """The parts of a line at whose beginning the patterns are tried, the beginning of the line first.

    The others are what follows each of its first tabs and, if the line is long, its last words, for
    patterns of a time at the end. No part is longer than `_MAX_CHARACTERS`.
    """
    tabs = islice(re.finditer("\t", line), _MAX_COLUMNS)
    starts = [0, *(tab.end() for tab in tabs)]
    parts = [line[start : start + _MAX_CHARACTERS] for start in starts]
    if len(line) > _MAX_CHARACTERS:
        last_words = line[-_MAX_CHARACTERS:].partition(" ")[2]  # the first word may be cut
        parts.append(last_words)
    return parts


def _are_times(timed: Sequence[TimedLine], num_lines: int) -> bool:
    """Whether the lines that seem to have times show that the transcript has times.

    One line with a sufficient pattern shows it. Otherwise a sufficient share of the `num_lines` of
    the transcript must have times. These must mostly increase, and must not be the numbers of a
    list or of verses.
    """
    if any(line.is_sufficient for line in timed):
        return True
    are_numbers = all(line.pattern.is_number for line in timed)
    min_share = _MIN_SHARE_OF_NUMBERS if are_numbers else _MIN_SHARE
    if len(timed) < max(_MIN_LINES, min_share * num_lines):
        return False
    return _do_increase(timed) and not _are_list_numbers(timed)


def _do_increase(timed: Sequence[TimedLine]) -> bool:
    """Whether most times are not before the one above, and some time is after the first one."""
    num_increasing = sum(_is_after(line, previous) for previous, line in pairwise(timed))
    num_pairs = len(timed) - 1
    if num_increasing < _MIN_INCREASING * num_pairs:
        return False
    seconds = [line.seconds for line in timed]
    return max(seconds) > seconds[0]


def _is_after(line: TimedLine, previous: TimedLine) -> bool:
    """Whether a line begins when the previous one ends, or later.

    If the end of the previous line is not known, its begin counts instead.
    """
    if previous.end is not None:
        return previous.end <= line.seconds
    return previous.seconds <= line.seconds


def _are_list_numbers(timed: Sequence[TimedLine]) -> bool:
    """Whether the numbers are those of a list, such as 1.1 and 1.2, or of verses: 3:10 and 3:11.

    They are if most follow the number above, and no line has a time that cannot be such a number:
    one that no text has (`is_certain`), or two whole numbers.
    """
    if any(line.pattern.is_certain or line.has_begin_and_end for line in timed):
        return False
    num_steps = sum(_is_next_number(line.time, above.time) for above, line in pairwise(timed))
    return num_steps >= _MIN_SHARE_OF_STEPS * (len(timed) - 1)


def _is_next_number(number: str, previous: str) -> bool:
    """Whether a number follows another one in a list: 3:11 after 3:10, and 2.1 after 1.4.

    The last part of a number is the item, and the parts before it are the chapter. A number that
    begins with a chapter 0 is a time, such as 0:05.
    """
    *chapter, item = map(int, re.findall(r"\d+", number))
    *previous_chapter, previous_item = map(int, re.findall(r"\d+", previous))
    is_previous_a_time = bool(previous_chapter) and previous_chapter[0] == 0
    if is_previous_a_time:
        return False
    if chapter == previous_chapter:
        return item == previous_item + 1
    have_one_chapter = len(chapter) == len(previous_chapter) == 1
    return have_one_chapter and chapter[0] == previous_chapter[0] + 1 and item == 1


def _to_seconds(time: str) -> float:
    """The seconds of a time as one of the patterns found it.

    It is a number of seconds, mm:ss, h:mm:ss, h:mm:ss:ff (frames are left out), hh.mm.ss, or a
    clock with units, which always has minutes and seconds: 1m02s or 0h1m2s. Parts of a second may
    stand after `.`, `,` or `;`.
    """
    if re.fullmatch(_DOTTED, time):
        time = time.replace(".", ":")
    if re.fullmatch(_SPELLED, time):
        time = ":".join(re.findall(r"\d+(?:[.,]\d+)?", time))  # its numbers as a clock
    with_points = re.sub("[,;]", ".", time)
    without_frames = with_points.split(":")[:3]
    *hours_and_minutes, seconds = without_frames
    minutes = 0
    for value in hours_and_minutes:
        minutes = 60 * minutes + int(value)
    return 60 * minutes + float(seconds)
