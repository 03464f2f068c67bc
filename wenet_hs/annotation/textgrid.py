# SPDX-License-Identifier: Apache-2.0
"""TextGrids of Praat: their tiers, and new tiers in a file or in a copy of the user's file.

A TextGrid is a long or a short text file. praatio drops intervals without a message, so the files
are read by Praat's own rule.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from wenet_hs.annotation.tiers import AnnotationFile, Tier, TimedSpan
from wenet_hs.base.files import read_bytes
from wenet_hs.manifest.file_forms import check_form
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError, one_line

_MAX_DIFFERENCE_S = 0.1  # between the length of a TextGrid and that of its audio
_SAME_TIME_S = 0.001  # times that differ by less are equal
_MIN_GAP_S = 1e-5  # between two intervals; less is a difference of rounding
_FIRST_BYTES_OF_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_TO_DO = "save it as text file in Praat"
_GRID_TOKEN = re.compile(r'"((?:[^"]|"")*)"|<exists>|<absent>|(?<!\S)-?\d\S*(?!\S)|!.*')
"""By Praat's own rule: quoted strings, flags, numbers with white space around them, and comments.

Group 1 is the content of a quoted string, in which a quotation mark is doubled.
"""


# ---- reading


def read_textgrid(path: Path) -> AnnotationFile:
    """The tiers of a TextGrid, long or short, in UTF-8 or UTF-16.

    They have every interval and point that the file declares.

    Raises DataError if one of these is missing, and for a file that cannot be read, is empty or has
    another form.
    """
    try:
        data = read_bytes(path)
        if not data.strip():
            raise DataError(path, "empty", _TO_DO)
        check_form(path, data, "prepare praat")
        is_utf16 = data[:2] in _FIRST_BYTES_OF_UTF16
        text = data.decode("utf-16" if is_utf16 else "utf-8-sig")
        tiers, extent = _parse_grid(text)
    except UnicodeDecodeError as error:
        raise DataError(path, "neither UTF-8 nor UTF-16", "save it again in Praat") from error
    except StopIteration as error:  # the file ends before the tiers that it declares
        found = "cut off, or not a TextGrid"
        raise DataError(path, found, f"restore the file, or {_TO_DO}") from error
    except ValueError as error:
        raise DataError(path, f"not a TextGrid ({one_line(error)})", _TO_DO) from error
    return AnnotationFile(path=path, media=(path.stem,), tiers=tiers, extent=extent)


def _parse_grid(text: str) -> tuple[list[Tier], tuple[float, float]]:
    """The tiers of a TextGrid, and its begin and end in seconds.

    Raises StopIteration at the end of a file that is cut off, ValueError for other content.
    """
    object_class = '"TextGrid"'
    if object_class not in text:
        raise ValueError(f"no {object_class} in it")
    tokens = _iterate_tokens(text, text.index(object_class) + len(object_class))
    start = float(next(tokens))
    end = float(next(tokens))
    flag = next(tokens)
    if flag not in ("<exists>", "<absent>"):
        raise ValueError(f"{flag!r} instead of <exists>")
    tiers = list[Tier]()
    if flag == "<exists>":
        num_tiers = int(next(tokens))
        for _ in range(num_tiers):
            tiers.append(_parse_tier(tokens))
    return tiers, (start, end)


def _iterate_tokens(text: str, start: int) -> Iterator[str]:
    """The content of the strings, the flags and the numbers from index `start` on, in order."""
    for match in _GRID_TOKEN.finditer(text, start):
        is_comment = match[0].startswith("!")
        if is_comment:
            continue
        quoted = match[1]
        is_string = quoted is not None
        yield quoted.replace('""', '"') if is_string else match[0]


def _parse_tier(tokens: Iterator[str]) -> Tier:
    """The next tier, which is taken from `tokens`: kind, name, begin, end, size, annotations.

    Raises StopIteration if the tokens end before it ends, and ValueError for another kind of tier
    and for a time that is no number.
    """
    kind = next(tokens)
    name = next(tokens)
    next(tokens)  # begin and end of the tier, which are those of the TextGrid
    next(tokens)
    num_spans = next(tokens)
    if kind not in ("IntervalTier", "TextTier"):
        raise ValueError(f"a tier of the kind {kind!r}")
    is_interval = kind == "IntervalTier"
    spans = list[TimedSpan]()
    for number in range(1, int(num_spans) + 1):
        try:
            begin = float(next(tokens))
            end = float(next(tokens)) if is_interval else begin
        except ValueError as error:
            raise ValueError(f"tier {name!r}, number {number}: {error}") from error
        spans.append(TimedSpan(begin, end, next(tokens)))
    return Tier(
        name=name, kind="" if is_interval else "points", is_interval=is_interval, spans=spans
    )


# ---- the times of a part of a recording


def find_shift(start: float, end: float, duration_s: float) -> float | str:
    """Seconds to add to the times of a TextGrid, so that they count from the start of its audio.

    A TextGrid of a part of a recording may keep the times of the whole, so that it begins after 0.
    Its audio is then either the recording from 0 to the end of the part (nothing is added),
    or the part (its start is subtracted). The length of the audio decides.

    Args:
        start: where the TextGrid begins, in seconds.
        end: where it ends.
        duration_s: seconds of the audio.

    Returns the seconds, or as a `str` why the audio has neither length.
    """
    if abs(start) < _SAME_TIME_S:
        return 0.0
    length_s = end - start
    difference_to_whole = abs(duration_s - end)
    difference_to_part = abs(duration_s - length_s)
    if min(difference_to_whole, difference_to_part) <= _MAX_DIFFERENCE_S:
        return 0.0 if difference_to_whole <= difference_to_part else -start
    expected = f"{end:g} s (with the times of the recording) or {length_s:g} s (of this part)"
    found = f"times: begins at {start:g} s and its audio has {duration_s:.3f} s"
    return f"{found}; give the audio that has {expected}"


def require_shift(grid: AnnotationFile, duration_s: float) -> float:
    """`find_shift` of a TextGrid. Raises DataError if its times do not fit the audio."""
    start, end = grid.extent
    shift_s = find_shift(start, end, duration_s)
    if isinstance(shift_s, str):
        fault = shift_s
        raise DataError(grid.path, fault)
    return shift_s


# ---- writing


def write_textgrid(
    path: Path, tiers: Sequence[Tier], end_s: float, source: Path | None = None
) -> None:
    """Write a long TextGrid with the tiers of a TextGrid `source`, if it is given, and new tiers.

    Of the new tiers the intervals with text are written. Gaps between intervals are filled by
    intervals without text, as Praat requires it. If `source` keeps the times of a longer recording
    (see `find_shift`), the new tiers get these times too.

    Args:
        tiers: the new tiers, in seconds of the audio.
        end_s: seconds of the audio. The file ends there or where `source` ends, the later one.

    Raises DataError if `source` cannot be read, or its times do not fit the audio.
    """
    if source is None:
        old = AnnotationFile(path=path, media=(), tiers=(), extent=(0.0, end_s))
    else:
        old = read_textgrid(source)
    # Where the audio begins and ends in the times of the TextGrid.
    shift_s = require_shift(old, end_s)
    grid_start_s = 0.0 - shift_s  # not -shift_s, which may be -0.0
    grid_end_s = end_s - shift_s
    _, old_end_s = old.extent
    ends_later = grid_end_s - old_end_s > _SAME_TIME_S
    if not ends_later:
        grid_end_s = old_end_s
    written = [(tier, tier.timed_spans) for tier in old.tiers]
    for tier in tiers:
        spans = list[TimedSpan]()
        for begin, end, text in tier.timed_spans:
            if text:
                spans.append(TimedSpan(begin + grid_start_s, end + grid_start_s, text))
        written.append((tier, spans))
    lines = [
        'File type = "ooTextFile"',
        'Object class = "TextGrid"',
        "",
        f"xmin = {grid_start_s!r}",
        f"xmax = {grid_end_s!r}",
        "tiers? <exists>",
        f"size = {len(written)}",
        "item []:",
    ]
    for number, (tier, spans) in enumerate(written, start=1):
        lines.append(f"    item [{number}]:")
        if tier.is_interval:
            lines += _interval_tier_lines(tier.name, spans, grid_start_s, grid_end_s)
        else:
            lines += _point_tier_lines(tier.name, spans, grid_start_s, grid_end_s)
    write_atomic(path, "\n".join(lines) + "\n")


def _interval_tier_lines(
    name: str, spans: Sequence[TimedSpan], start_s: float, end_s: float
) -> Iterator[str]:
    """The lines of a tier of intervals, from `start_s` to `end_s` without gaps."""
    intervals = _fill_gaps(spans, start_s, end_s)
    yield '        class = "IntervalTier"'
    yield f"        name = {_quote(name)}"
    yield f"        xmin = {start_s!r}"
    yield f"        xmax = {end_s!r}"
    yield f"        intervals: size = {len(intervals)}"
    for number, (begin, end, text) in enumerate(intervals, start=1):
        yield f"        intervals [{number}]:"
        yield f"            xmin = {begin!r}"
        yield f"            xmax = {end!r}"
        yield f"            text = {_quote(text)}"


def _point_tier_lines(
    name: str, points: Sequence[TimedSpan], start_s: float, end_s: float
) -> Iterator[str]:
    """The lines of a tier of points, from `start_s` to `end_s`."""
    yield '        class = "TextTier"'
    yield f"        name = {_quote(name)}"
    yield f"        xmin = {start_s!r}"
    yield f"        xmax = {end_s!r}"
    yield f"        points: size = {len(points)}"
    for number, (time, _, text) in enumerate(points, start=1):
        yield f"        points [{number}]:"
        yield f"            number = {time!r}"
        yield f"            mark = {_quote(text)}"


def _quote(text: str) -> str:
    """A string as Praat writes it: in quotation marks, those within it doubled."""
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def _fill_gaps(spans: Sequence[TimedSpan], start_s: float, end_s: float) -> list[TimedSpan]:
    """The intervals, and intervals without text in the gaps between `start_s` and `end_s`.

    An interval that ends after `end_s` is cut there.
    """
    filled = list[TimedSpan]()
    previous_end = start_s
    for begin, end, text in spans:
        if begin - previous_end > _MIN_GAP_S:
            filled.append(TimedSpan(previous_end, begin, ""))
        filled.append(TimedSpan(begin, min(end, end_s), text))
        previous_end = max(previous_end, end)
    if end_s - previous_end > _MIN_GAP_S:
        filled.append(TimedSpan(previous_end, end_s, ""))
    return filled
