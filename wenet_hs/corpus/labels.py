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
from wenet_hs.corpus.unknown_times import TextLine, find_unknown_times
from wenet_hs.data.audio import read_duration, read_sample_rate
from wenet_hs.manifest.file_forms import (
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
from wenet_hs.tree.errors import DataError


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


class TimedTranscript(NamedTuple):
    """A transcript whose form has times."""

    form: str
    """For the user: `SRT`."""
    labels: Sequence[Label]


def read_labels(path: Path, text: str, audio: Path) -> TimedTranscript | None:
    """The parts of a transcript with their times; None: the text has no times.

    Raises DataError for times in a form that is not read, or if the rate of the audio is needed and
        cannot be read.
    """
    text = "\n".join(text.splitlines())
    form_of_file = check_form(path, text, "prepare folder")
    numbered = enumerate(text.split("\n"), start=1)
    lines = [TextLine(number, line.strip(" ")) for number, line in numbered if line.strip()]
    if lines and all(map(_is_line_of_audacity, lines)):
        return TimedTranscript("labels of Audacity", _read_seconds_labels(lines))
    of_timit = _read_timit(path, lines, audio)
    if of_timit is not None:
        return TimedTranscript("labels of TIMIT", [of_timit])
    if _WEBVTT.match(text) and "-->" not in text:
        return TimedTranscript("WebVTT", _read_empty_webvtt(path, text))
    cues = list(_CUE.finditer(text))
    if cues and len(cues) == len(_ARROW.findall(text)):
        form = "WebVTT" if text.lstrip().startswith("WEBVTT") else "SRT"
        return TimedTranscript(form, list(_read_cues(text, cues, form)))
    if form_of_file is SBV:
        return TimedTranscript("SBV", _read_sbv(text))
    if form_of_file is SEGMENT_TABLE:
        return _read_segment_table(path, text)
    _refuse_unknown_times(path, lines, audio)
    return None


def _refuse_unknown_times(path: Path, lines: Sequence[TextLine], audio: Path) -> None:
    """Raise DataError for a line with the arrow of subtitles, and for times in any other form."""
    with_arrow = next((line for line in lines if _ARROW.search(line.text)), None)
    with_times = with_arrow or find_unknown_times(lines, lambda: read_duration(audio))
    if with_times is not None:
        found = f"times in an unknown form, {with_times.text[:40]!r}"
        remedy = f"{TO_SRT}, or {TO_TABLE}; remove the numbers if they are no times"
        raise DataError(f"{path}:{with_times.number}", found, remedy)


def _is_line_of_audacity(line: TextLine) -> bool:
    """Whether a line is a label, or the frequencies of one, which begin with a backslash."""
    has_frequencies = line.text.startswith("\\\t")
    return has_frequencies or AUDACITY_LABEL.fullmatch(line.text) is not None


def _read_seconds_labels(lines: Sequence[TextLine]) -> list[Label]:
    """Begin, end and text with tabs; lines of frequencies are left out."""
    labels = []
    for line in lines:
        if match := AUDACITY_LABEL.fullmatch(line.text):
            begin, end, text = match.groups("")
            labels.append(Label(line.number, read_seconds(begin), read_seconds(end), text))
    return labels


def _read_cues(text: str, cues: Sequence[re.Match[str]], form: str) -> Iterator[Label]:
    """The cues without markup.

    In YouTube's rolling captions a line that the cue before has shown is left out.
    """
    is_rolling = _WORD_TIME.search(text) is not None and "align:start position:0%" in text
    line_before = ""
    ends = [*(cue.start() for cue in cues[1:]), len(text)]
    for cue, end in zip(cues, ends, strict=True):
        body = text[cue.end() + 1 : end]
        if form == "WebVTT":  # an empty line ends a cue: notes and styles may follow
            body = re.split(r"^\n|\n\n", body, maxsplit=1)[0]
        lines = [_to_plain(line) for line in body.split("\n")]
        if is_rolling:
            lines = [line for line in lines if line and line != line_before]
            if not lines:
                continue
            line_before = lines[-1]
        yield Label(
            line=text.count("\n", 0, cue.start("start")) + 1,
            start=read_seconds(cue["start"]),
            end=read_seconds(cue["end"]),
            text=" ".join(filter(None, lines)),
            speaker=_find_voice(body),
        )


def _to_plain(line: str) -> str:
    """A line of a cue without tags and character references."""
    return " ".join(html.unescape(_MARKUP.sub("", line)).split())


def _find_voice(body: str) -> str | None:
    """The speaker of a cue by its tags `<v Name>`; None: no tag, or several people."""
    voices = {" ".join(html.unescape(name).split()) for name in _VOICE.findall(body)}
    return voices.pop() if len(voices) == 1 else None


def _read_empty_webvtt(path: Path, text: str) -> list[Label]:
    """An empty transcript of all of the recording, of a file with notes and styles only.

    Raises DataError if it has other text: that has no times, so it is no WebVTT.
    """
    blocks = re.split(r"\n{2,}", text.strip())
    others = [block for block in blocks[1:] if not re.match(r"(?:NOTE|STYLE|REGION)\b", block)]
    if others:
        found = f"WebVTT whose text has no times, {others[0][:40]!r}"
        raise DataError(
            path,
            found,
            "remove the line WEBVTT if it is one transcript, or write the times of the cues",
        )
    return [Label(1, None, None, "")]


def _mark_pause(text: str) -> str:
    """`<sil>` for a label of a pause between words, which `prepare` then removes from the
    transcript and counts.
    """
    is_pause = is_pause_label(text) or text.lower() in ALIGNER_LABELS
    return "<sil>" if is_pause else text


@dataclass(frozen=True)
class _SampleLabel:
    """A line of TIMIT: numbers of samples, and a word or phone."""

    begin: int
    end: int
    text: str


def _read_timit(path: Path, lines: Sequence[TextLine], audio: Path) -> Label | None:
    """The transcript of TIMIT from its first to its last sample; None: the lines are something
    else.

    Pauses between words are marked. Raises DataError if the numbers are not of the samples of the
    audio.
    """
    labels = _read_sample_labels(path, lines, audio)
    if not labels:
        return None
    rate = read_sample_rate(audio)
    texts = [label.text for label in labels]
    if path.suffix.lower() == ".wrd":
        texts = list(map(_mark_pause, texts))
    end_s = min(labels[-1].end / rate, read_duration(audio))
    return Label(lines[0].number, labels[0].begin / rate, end_s, " ".join(texts))


def _read_sample_labels(path: Path, lines: Sequence[TextLine], audio: Path) -> list[_SampleLabel]:
    """Lines with two numbers of samples and a label; none: they are something else.

    Digits may be the text itself, so the numbers of a .txt must be those of the audio: TIMIT has
    all of it in one line.
    """
    is_named_timit = path.suffix.lower() in (".phn", ".wrd")
    matches = [_SAMPLES.fullmatch(line.text) for line in lines]
    labels = [_SampleLabel(int(match[1]), int(match[2]), match[3]) for match in matches if match]
    if not labels or len(labels) < len(lines):
        if is_named_timit:
            raise DataError(path, "not TIMIT: expected two numbers of samples and a label per line")
        return []
    is_series = len(labels) > 1 and all(
        first.end == second.begin for first, second in pairwise(labels)
    )
    if not is_named_timit and not is_series and labels[0].begin != 0:
        return []
    rate = read_sample_rate(audio)
    audio_s = read_duration(audio)
    last_s = labels[-1].end / rate
    if 0.5 * audio_s <= last_s <= audio_s + 0.1:
        return labels
    if is_named_timit or is_series:
        found = f"ends with sample {labels[-1].end}, its audio has {audio_s * rate:.0f}"
        raise DataError(path, found, f"restore the audio, or if these are other times: {TO_TABLE}")
    return []


# ---- SBV and tables of segments


def _read_sbv(text: str) -> list[Label]:
    """Captions of YouTube: SRT without numbers, and with a comma for the arrow."""
    as_srt = SBV_TIMES.sub(r"\1 --> \2", text).replace("[br]", " ")
    return list(_read_cues(as_srt, list(_CUE.finditer(as_srt)), "SRT"))


@dataclass(frozen=True)
class _SegmentRow:
    """A row of a table of segments, as it is written."""

    line: int
    start: str
    end: str
    text: str
    speaker: str = ""


def _read_segment_table(path: Path, content: str) -> TimedTranscript:
    """The segments of a table as Whisper writes it; the form names the unit of its times.

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
    name_of_unit = "ms" if is_in_ms else "s"
    return TimedTranscript(f"tables of segments with times in {name_of_unit}", labels)


def _split_segments(path: Path, text: str) -> list[_SegmentRow]:
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
            segments.append(_SegmentRow(line, **dict(zip(contents, cells, strict=True))))
        line = reader.line_num + 1
    return segments


def _are_milliseconds(segments: Sequence[_SegmentRow]) -> bool:
    """Whether times are whole numbers that can be milliseconds, as Whisper writes them.

    They cannot be if the texts would be spoken faster than anybody speaks.
    """
    times = [time.strip() for segment in segments for time in (segment.start, segment.end)]
    if not all(map(str.isdecimal, times)):
        return False
    num_ms = sum(int(segment.end) - int(segment.start) for segment in segments)
    num_letters = sum(len(segment.text) for segment in segments)
    return 1000 * num_letters <= _MAX_LETTERS_PER_S * num_ms
