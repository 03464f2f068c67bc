# SPDX-License-Identifier: Apache-2.0
"""Transcripts with times beside audio: Audacity's labels, SRT, WebVTT, SBV, tables and TIMIT.

Other forms are refused by name (`file_forms`), and so are times of an unknown form. The content
decides, because all forms are found in .txt files too. Times would otherwise become text.
"""

import csv
import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from wenet_hs.corpus.pauses import ALIGNER_LABELS, is_pause_label
from wenet_hs.corpus.table import read_seconds
from wenet_hs.corpus.unknown_times import find_unknown_times
from wenet_hs.data.audio import read_duration, read_sample_rate
from wenet_hs.errors import DataError
from wenet_hs.file_forms import (
    AUDACITY_LABEL,
    CLOCK,
    SBV,
    SBV_TIMES,
    SEGMENT_TABLE,
    TO_SRT,
    TO_TABLE,
    check_form,
    find_segment_column,
    find_unit_of_name,
    read_segment_header,
)


class Label(NamedTuple):
    """A part of a recording and its text."""

    line: int
    """From 1; 0: all of the file."""
    start: float | None
    """Seconds; None: all of the recording."""
    end: float | None
    text: str
    speaker: str | None = None


_CUE = re.compile(
    r"(?m)(?:(?:\A|(?<=\n\n)).+\n|^ *\d+ *\n)?"
    rf"^ *(?P<start>{CLOCK}) *--> *(?P<end>{CLOCK})(?:[ \t]+\w+:\S+)* *$"
)
"""An optional identifier, and the times with settings."""
_WEBVTT = re.compile(r"\s*WEBVTT(?:[ \t].*)?(?:\n|$)")
"""The first line. A file of a meeting without speech has no cues below it."""
_ARROW = re.compile(r"\d *-->")
_WORD_TIME = re.compile(rf"<{CLOCK}>")
_VOICE = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]+)>")
_MARKUP = re.compile(r"</?[A-Za-z\d][^<>]*>|\{\\[^}]*\}")
_SAMPLES = re.compile(r"(\d+) (\d+) (\S.*)")
_MAX_LETTERS_PER_S = 100
"""In a table of segments with whole numbers: if there are more, these are seconds and not ms."""


def read_labels(path: Path, text: str, audio: Path) -> tuple[str, list[Label]] | None:
    """The name of the form and the parts of a transcript; None: the text has no times.

    Raises DataError for times in a form that is not read, or if the rate of the audio is needed and cannot be read.
    """
    text = "\n".join(text.splitlines())
    form_of_file = check_form(path, text, "prepare folder")
    lines = [(number, line.strip(" ")) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    are_labels = (AUDACITY_LABEL.fullmatch(line) or line.startswith("\\\t") for _, line in lines)
    if lines and all(are_labels):
        return "labels of Audacity", _read_seconds_labels(lines)
    if rows := _read_samples(path, lines, audio):
        texts = [text for *_, text in rows]
        if path.suffix.lower() == ".wrd":
            texts = [*map(_mark_pause, texts)]
        return "labels of TIMIT", [Label(lines[0][0], rows[0][0], rows[-1][1], " ".join(texts))]
    if _WEBVTT.match(text) and "-->" not in text:
        return "WebVTT", _read_empty_webvtt(path, text)
    if (cues := list(_CUE.finditer(text))) and len(cues) == len(_ARROW.findall(text)):
        form = "WebVTT" if text.lstrip().startswith("WEBVTT") else "SRT"
        return form, [*_read_cues(text, cues, form)]
    if form_of_file is SBV:
        return "SBV", _read_sbv(text)
    if form_of_file is SEGMENT_TABLE:
        return _read_segment_table(path, text)
    _refuse_unknown_times(path, lines, audio)
    return None


def _refuse_unknown_times(path: Path, lines: Sequence[tuple[int, str]], audio: Path) -> None:
    """Raise DataError for a line with the arrow of subtitles, and for times in any other form."""
    with_arrow = next((line for line in lines if _ARROW.search(line[1])), None)
    with_times = with_arrow or find_unknown_times(lines, lambda: read_duration(audio))
    if with_times is not None:
        number, line = with_times
        found = f"times in an unknown form, {line[:40]!r}"
        remedy = f"{TO_SRT}, or {TO_TABLE}; remove the numbers if they are no times"
        raise DataError(f"{path}:{number}", found, remedy)


def _read_seconds_labels(lines: list[tuple[int, str]]) -> list[Label]:
    """Begin, end and text with tabs; a line that begins with a backslash has frequencies."""
    labels = []
    for number, line in lines:
        if match := AUDACITY_LABEL.fullmatch(line):
            begin, end, text = match.groups("")
            labels.append(Label(number, read_seconds(begin), read_seconds(end), text))
    return labels


def _read_cues(text: str, cues: list[re.Match[str]], form: str) -> Iterator[Label]:
    """The cues without markup. In WebVTT one ends at an empty line: notes and styles may follow."""
    is_rolling, shown = bool(_WORD_TIME.search(text)) and "align:start position:0%" in text, ""
    for cue, following in pairwise([*cues, None]):
        assert cue is not None
        body = text[cue.end() + 1 : following.start() if following else None]
        body = re.split(r"^\n|\n\n", body, maxsplit=1)[0] if form == "WebVTT" else body
        voices = {" ".join(html.unescape(name).split()) for name in _VOICE.findall(body)}
        plain = [" ".join(html.unescape(_MARKUP.sub("", one)).split()) for one in body.split("\n")]
        if is_rolling:  # YouTube's captions show the line before once more
            plain = [one for one in plain if one and one != shown]
            shown = plain[-1] if plain else shown
        line = text.count("\n", 0, cue.start("start")) + 1
        speaker = voices.pop() if len(voices) == 1 else None
        if plain or not is_rolling:
            text_of_cue = " ".join(filter(None, plain))
            yield Label(line, read_seconds(cue["start"]), read_seconds(cue["end"]), text_of_cue, speaker)


def _read_empty_webvtt(path: Path, text: str) -> list[Label]:
    """An empty transcript of all of the recording, of a file with notes and styles only.

    Raises DataError if it has other text: that has no times, so it is no WebVTT.
    """
    blocks = re.split(r"\n{2,}", text.strip())
    others = [block for block in blocks[1:] if not re.match(r"(?:NOTE|STYLE|REGION)\b", block)]
    if others:
        found = f"WebVTT whose text has no times, {others[0][:40]!r}"
        raise DataError(path, found, "remove the line WEBVTT if it is one transcript, or write the times of the cues")
    return [Label(1, None, None, "")]


def _mark_pause(text: str) -> str:
    """`<sil>` for a label of a pause between words, which `prepare` then removes from the transcript and counts."""
    is_pause = is_pause_label(text) or text.lower() in ALIGNER_LABELS
    return "<sil>" if is_pause else text


def _read_samples(path: Path, lines: list[tuple[int, str]], audio: Path) -> list[tuple[float, float, str]]:
    """Begin and end in seconds, and text, of lines with numbers of samples; none: they are something else.

    Digits may be the text itself, so the numbers of a .txt must be those of the audio: TIMIT has all of it in one line.
    """
    rows = [match.groups() for _, line in lines if (match := _SAMPLES.fullmatch(line))]
    is_timit = path.suffix.lower() in (".phn", ".wrd")
    if len(rows) < len(lines) or not rows:
        if is_timit:
            raise DataError(path, "not TIMIT: expected two numbers of samples and a label per line")
        return []
    is_series = len(rows) > 1 and all(first[1] == second[0] for first, second in pairwise(rows))
    if not (is_timit or is_series or rows[0][0] == "0"):
        return []
    rate, end_s = read_sample_rate(audio), read_duration(audio)
    last_s = int(rows[-1][1]) / rate
    if 0.5 * end_s <= last_s <= end_s + 0.1:
        return [(int(begin) / rate, min(int(end) / rate, end_s), text) for begin, end, text in rows]
    if is_timit or is_series:
        found = f"ends with sample {rows[-1][1]}, its audio has {end_s * rate:.0f}"
        raise DataError(path, found, f"restore the audio, or if these are other times: {TO_TABLE}")
    return []


# ---- SBV and tables of segments


def _read_sbv(text: str) -> list[Label]:
    """Captions of YouTube: SRT without numbers, and with a comma for the arrow."""
    as_srt = SBV_TIMES.sub(r"\1 --> \2", text).replace("[br]", " ")
    return [*_read_cues(as_srt, list(_CUE.finditer(as_srt)), "SRT")]


@dataclass(frozen=True)
class _Segment:
    """A row of a table of segments, as it is written."""

    line: int
    start: str
    end: str
    text: str
    speaker: str = ""


def _read_segment_table(path: Path, content: str) -> tuple[str, list[Label]]:
    """The form, with the unit of its times, and the segments of a table as Whisper writes it.

    Raises DataError for a row with another number of cells, and for a cell that is no time.
    """
    content = content.strip("\n")
    segments = _split_segments(path, content)
    header = re.split(r"[\t,;]", content.partition("\n")[0])
    starts = [name for name in header if find_segment_column(name) == "start"]
    unit = find_unit_of_name(starts[0]) if starts else None
    is_in_ms = unit == "ms" or (unit is None and _are_milliseconds(segments))
    labels = []
    for segment in segments:
        try:
            start = read_seconds(segment.start)
            end = read_seconds(segment.end)
        except ValueError as error:
            raise DataError(f"{path}:{segment.line}", str(error), "correct the row") from error
        if is_in_ms:
            start /= 1000
            end /= 1000
        text = segment.text.strip()
        labels.append(Label(segment.line, start, end, text, segment.speaker or None))
    return f"tables of segments with times in {'ms' if is_in_ms else 's'}", labels


def _split_segments(path: Path, text: str) -> list[_Segment]:
    """The rows below the names of the columns.

    Without names the columns are text, start and end, with commas between them.
    Raises DataError for a row with another number of cells.
    """
    first = text.partition("\n")[0]
    delimiter = next((sign for sign in "\t;," if sign in first), ",")
    contents = read_segment_header(first)
    has_names = contents is not None
    if contents is None:
        delimiter = ","
        contents = ["text", "start", "end"]
    quoting: Literal[0, 3] = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    reader = csv.reader(StringIO(text, newline=""), delimiter=delimiter, quoting=quoting)
    if has_names:
        next(reader)
    segments = []
    line = reader.line_num + 1
    for cells in reader:
        if cells and len(cells) != len(contents):
            expected = f"{len(contents)} ({', '.join(contents)})"
            found = f"wrong number of columns: {len(cells)}, expected {expected}"
            raise DataError(f"{path}:{line}", found, "correct the row")
        if cells:
            segments.append(_Segment(line, **dict(zip(contents, cells, strict=True))))
        line = reader.line_num + 1
    return segments


def _are_milliseconds(segments: Sequence[_Segment]) -> bool:
    """Whether times are whole numbers that can be milliseconds, as Whisper writes them.

    They cannot be if the texts would be spoken faster than anybody speaks.
    """
    times = [time.strip() for segment in segments for time in (segment.start, segment.end)]
    if not all(map(str.isdecimal, times)):
        return False
    num_ms = sum(int(segment.end) - int(segment.start) for segment in segments)
    num_letters = sum(len(segment.text) for segment in segments)
    return 1000 * num_letters <= _MAX_LETTERS_PER_S * num_ms
