# SPDX-License-Identifier: Apache-2.0
"""Times of an unknown form in a transcript, told from the numbers of a text.

A time is certain if no time of day and no number is written so: it has hours, minutes and seconds,
or parts of a second, or brackets. Other times may be numbers of the text: they count only if they
lie within the audio.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

_MIN_SHARE = 1 / 3
"""Share of the lines of a transcript with times that have one."""
_MIN_SHARE_OF_NUMBERS = 0.9
"""The same if each time is a single number."""
_MIN_LINES = 2
_MIN_INCREASING = 0.8
"""Share of the times that are not before the time above. Several tiers may each begin at 0."""
_MAX_COLUMNS = 20
"""Columns of a line that are searched for a time."""
_TOLERANCE_S = 1.0
"""By which a time within the audio may be after its end."""

_EXACT = r"(?:\d+:\d{2}(?::\d{2}){1,2}(?:[.,;]\d{1,3})?|\d+:\d{2}[.,]\d{1,3})"
"""A clock that is no time of day: h:mm:ss, h:mm:ss:ff (frames), or with parts of a second."""
_CLOCK = rf"(?:{_EXACT}|\d+:\d{{2}})"
_SECONDS = r"(?:\d+\.\d+|\d+,\d{1,2}|\d+,\d+(?=[\s;]+\d+,\d+))"
"""Decimals, but not 1,200, which is a number with a comma for thousands unless another follows."""
_DIGIT = re.compile(r"\d")
_SHORT_NAME = r".{1,40}?"
_BETWEEN = r"(?:[^\w\n]+|\s+to\s+)"

_CERTAIN_AND_ENOUGH = (
    re.compile(rf"\W*[\[({{<]\s*(?P<time>{_EXACT})(?!\w)"),  # [00:01.20] mo
    re.compile(rf"(?:{_SHORT_NAME}\W)?\[\s*(?P<time>{_CLOCK})\s*\]"),  # Ana [0:02]: mo
    re.compile(rf"{_SHORT_NAME}\s\((?P<time>{_EXACT})\)\W*$"),  # Ana (00:00:02):
    re.compile(rf"\W*\[\s*(?P<time>{_SECONDS}){_BETWEEN}{_SECONDS}\s*\]"),  # [0.25-3.5] mo
    re.compile(rf"\W*(?P<time>{_EXACT}){_BETWEEN}{_EXACT}(?!\w)"),  # 00:00:01 - 00:00:03 mo
    re.compile(rf"(?P<time>{_EXACT})[:,=](?=\D)"),  # 00:00:01:mo
    re.compile(rf"(?P<time>{_EXACT})\t"),  # Ana, tab, 00:00:01, tab, mo
    re.compile(rf"(?P<time>{_SECONDS})\t(?:.*\t)?{_SECONDS}(?:\t|$)"),  # two columns of seconds
    re.compile(rf".*#(?P<time>{_EXACT})(?:-\d+)?#"),  # mo #00:00:02-5#, of f4transkript
)
"""How a line or a column begins that shows, even as the only one, that a transcript has times."""
_ENOUGH_BESIDE_TEXT = (
    re.compile(rf"\W*(?P<time>{_CLOCK}){_BETWEEN}{_CLOCK}\W*$"),  # 0:01 - 0:03
    re.compile(rf"{_SHORT_NAME}\S(?: {{2,}}|\t)(?P<time>{_CLOCK}):?$"),  # Ana, two spaces, 0:02
    re.compile(rf"{_SHORT_NAME}\s\((?P<time>{_CLOCK})\):$"),  # Ana (0:02):
    re.compile(r"(?P<time>\d+\.\d+),\d+\.\d+,"),  # 0.25,3.5,mo
)
"""Enough too if there is another line, and if the time is within the audio."""
_ENOUGH_AT_FIRST = (re.compile(rf"\W*(?P<time>{_CLOCK})\W*$"),)  # 0:02
"""A time only. As an answer, a time of day may have its own line; the first line is no answer."""
_CERTAIN = (
    re.compile(rf"\W*(?P<time>{_EXACT})(?!\w)"),  # 00:00:01 mo
    re.compile(rf"(?:{_SHORT_NAME}\W)?[({{<]\s*(?P<time>{_CLOCK})\s*[)}}>]"),  # Ana (0:02) mo
    re.compile(rf"{_SHORT_NAME}\s(?P<time>{_EXACT})(?![\w:])"),  # Ana 00:00:01 mo
    re.compile(r"(?P<time>\d+)\t\d+\t"),  # two columns of whole numbers
)
_POSSIBLE = (
    re.compile(rf"\W*(?P<time>{_CLOCK})(?![\w:])"),  # 0:02 mo
    re.compile(rf"{_SHORT_NAME}\s(?P<time>{_CLOCK}):?$"),  # Ana 0:02
    re.compile(rf"(?:\S+\s+)?\W*(?P<time>{_SECONDS})[\s,;]+{_SECONDS}(?!\w)"),  # 0.25 3.5 mo
)
_NUMBER = (re.compile(rf"\W*(?P<time>{_SECONDS})(?=[\s,;\])]|$)"),)  # 0.25 mo
"""How a line or a column begins that has a time; the last one may be a number as well."""


@dataclass(frozen=True)
class TimedLine:
    """A line of a transcript with a time."""

    number: int
    text: str
    seconds: float
    """The first time of the line."""
    is_certain: bool
    is_enough: bool = False
    """Whether this line shows that the transcript has times."""
    is_number: bool = False
    """Whether the time is a single number with decimals."""


def find_unknown_times(
    lines: Sequence[tuple[int, str]],
    read_duration: Callable[[], float],
) -> tuple[int, str] | None:
    """The first line with a time, if the transcript has times; None: it is text.

    A transcript has times if one line is enough to show it, or if at least two lines, and a third
    of all, have times that increase.

    Args:
        lines: those of the transcript that are not empty, with their numbers.
        read_duration: gives the seconds of the audio. It is called only if a time is not certain.
    """
    timed = []
    for index, (number, line) in enumerate(lines):
        if _DIGIT.search(line) is None:
            continue
        time = _find_enough(number, line, is_first=index == 0, is_only=len(lines) == 1)
        time = time or _find_time(number, line)
        if time is not None:
            timed.append(time)
    if not _are_times(timed, len(lines)):
        return None
    if not all(line.is_certain for line in timed):
        end_s = read_duration() + _TOLERANCE_S
        timed = [line for line in timed if line.is_certain or line.seconds <= end_s]
    return (timed[0].number, timed[0].text) if _are_times(timed, len(lines)) else None


def _are_times(timed: Sequence[TimedLine], num_lines: int) -> bool:
    """Whether the lines with times are enough, and their times mostly increase."""
    if any(line.is_enough for line in timed):
        return True
    min_share = _MIN_SHARE_OF_NUMBERS if all(line.is_number for line in timed) else _MIN_SHARE
    if len(timed) < max(_MIN_LINES, min_share * num_lines):
        return False
    seconds = [line.seconds for line in timed]
    num_increasing = sum(first <= second for first, second in pairwise(seconds))
    return num_increasing >= _MIN_INCREASING * (len(seconds) - 1) and max(seconds) > seconds[0]


def _find_enough(number: int, line: str, *, is_first: bool, is_only: bool) -> TimedLine | None:
    """The time of a line that shows, even as the only one, that the transcript has times.

    is_first, is_only: of the lines of the transcript. A time of day may be all that is spoken.
    """
    if match := _match_any(_CERTAIN_AND_ENOUGH, _ends_of_columns(line)):
        seconds = _to_seconds(match["time"])
        return TimedLine(number, line, seconds, is_certain=True, is_enough=True)
    patterns = _ENOUGH_BESIDE_TEXT + (_ENOUGH_AT_FIRST if is_first else ())
    if not is_only and (match := _match_any(patterns, [line])):
        seconds = _to_seconds(match["time"])
        return TimedLine(number, line, seconds, is_certain=False, is_enough=True)
    return None


def _find_time(number: int, line: str) -> TimedLine | None:
    """The time at the beginning of a line or of one of its columns, or after a name."""
    columns = _ends_of_columns(line)
    if match := _match_any(_CERTAIN, columns):
        return TimedLine(number, line, _to_seconds(match["time"]), is_certain=True)
    if match := _match_any(_POSSIBLE, columns):
        return TimedLine(number, line, _to_seconds(match["time"]), is_certain=False)
    if match := _match_any(_NUMBER, columns):
        seconds = _to_seconds(match["time"])
        return TimedLine(number, line, seconds, is_certain=False, is_number=True)
    return None


def _match_any(patterns: Sequence[re.Pattern[str]], texts: Sequence[str]) -> re.Match[str] | None:
    """The first match of a pattern at the beginning of a text, the texts in order."""
    matches = (pattern.match(text) for text in texts for pattern in patterns)
    return next(filter(None, matches), None)


def _ends_of_columns(line: str) -> list[str]:
    """The line, and what follows each of its first tabs."""
    tabs = islice(re.finditer("\t", line), _MAX_COLUMNS)
    return [line, *(line[tab.end() :] for tab in tabs)]


def _to_seconds(time: str) -> float:
    """The seconds of a number, of mm:ss or of h:mm:ss; the frames of h:mm:ss:ff are left out."""
    *before, last = re.sub("[,;]", ".", time).split(":")[:3]
    minutes = 0
    for value in before:
        minutes = 60 * minutes + int(value)
    return 60 * minutes + float(last)
