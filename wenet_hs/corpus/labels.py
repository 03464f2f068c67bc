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
    Form,
    check_form,
    find_segment_column,
    find_unit_of_name,
    read_segment_header,
)
from wenet_hs.tree.errors import DataError


class Label(NamedTuple):
    """A part of a recording and its text."""

    line: int
    """Line of the file in which it stands, from 1; 0: it is all of the file."""
    start: float | None
    """Seconds from the beginning of the recording; None: it is all of the recording."""
    end: float | None
    """Seconds from the beginning of the recording; None: it is all of the recording."""
    text: str
    speaker: str | None = None


class TimedTranscript(NamedTuple):
    """A transcript whose form has times."""

    form: str
    """For the user: `SRT`."""
    labels: Sequence[Label]


_CUE = re.compile(
    r"(?m)(?:(?:\A|(?<=\n\n)).+\n|^ *\d+ *\n)?"
    rf"^ *(?P<start>{CLOCK}) *--> *(?P<end>{CLOCK})(?:[ \t]+\w+:\S+)* *$"
)
"""The head of a cue: an optional identifier, and the times with settings."""
_WEBVTT = re.compile(r"\s*WEBVTT(?:[ \t].*)?(?:\n|$)")
"""The first line of WebVTT. If a meeting had no speech, the file has no cues below it."""
_ARROW = re.compile(r"\d *-->")
"""The arrow between the times of a cue."""
_WORD_TIME = re.compile(rf"<{CLOCK}>")
"""The time of a word inside a cue, as YouTube writes it."""
_VOICE = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]+)>")
"""The tag of a speaker: `<v Ana>`."""
_MARKUP = re.compile(r"</?[A-Za-z\d][^<>]*>|\{\\[^}]*\}")
"""Tags such as `<i>`, and those of SubStation Alpha in braces, such as `{\\an8}`."""
_SAMPLES = re.compile(r"(\d+) (\d+) (\S.*)")
"""A line of TIMIT: numbers of the first and last sample, and a word, a phone or a sentence."""
_MAX_LETTERS_PER_S = 100
"""Letters that are spoken per second at most.

If the whole numbers of a table of segments were milliseconds, and there were more letters per
second, the numbers are seconds.
"""


@dataclass(frozen=True)
class _TranscriptFile:
    """A file that may have one of the forms with times."""

    path: Path
    text: str
    """With `\\n` at the end of lines."""
    lines: Sequence[TextLine]
    """The lines that are not empty, without spaces around them."""
    form: Form | None
    """The known form of the file that `prepare folder` reads."""
    audio: Path


def read_labels(path: Path, text: str, audio: Path) -> TimedTranscript | None:
    """The parts of a transcript with their times; None: the text has no times.

    The first of `_READERS` that recognises the form reads it.
    Raises DataError for times in a form that is not read, or if the rate of the audio is needed and
        cannot be read.
    """
    text = "\n".join(text.splitlines())
    form = check_form(path, text, "prepare folder")
    numbered = enumerate(text.split("\n"), start=1)
    lines = [TextLine(number, line.strip(" ")) for number, line in numbered if line.strip()]
    file = _TranscriptFile(path, text, lines, form, audio)
    for read in _READERS:
        transcript = read(file)
        if transcript is not None:
            return transcript
    _refuse_unknown_times(file)
    return None


def _refuse_unknown_times(file: _TranscriptFile) -> None:
    """Raise DataError if a line has the arrow of subtitles, or times in any other form.

    The error names the first such line.
    """
    line = next((line for line in file.lines if _ARROW.search(line.text)), None)
    if line is None:
        line = find_unknown_times(file.lines, lambda: read_duration(file.audio))
    if line is not None:
        found = f"times in an unknown form, {line.text[:40]!r}"
        remedy = f"{TO_SRT}, or {TO_TABLE}; remove the numbers if they are no times"
        raise DataError(f"{file.path}:{line.number}", found, remedy)


# ---- Audacity


def _read_audacity(file: _TranscriptFile) -> TimedTranscript | None:
    """Rule: all lines are labels of Audacity, or frequencies of labels, which are left out.

    Example: `0.500000`, tab, `1.250000`, tab, `mo lu`; below it `\\`, tab and two frequencies.
    """
    if not file.lines or not all(map(_is_line_of_audacity, file.lines)):
        return None
    labels = list[Label]()
    for line in file.lines:
        match = AUDACITY_LABEL.fullmatch(line.text)
        if match is not None:
            begin, end, text = match.groups("")
            labels.append(Label(line.number, read_seconds(begin), read_seconds(end), text))
    return TimedTranscript("labels of Audacity", labels)


def _is_line_of_audacity(line: TextLine) -> bool:
    """Whether a line is a label, or the frequencies of one, which begin with a backslash."""
    has_frequencies = line.text.startswith("\\\t")
    return has_frequencies or AUDACITY_LABEL.fullmatch(line.text) is not None


# ---- TIMIT


@dataclass(frozen=True)
class _SampleLabel:
    """A line of TIMIT: numbers of samples, and a word or phone."""

    begin: int
    end: int
    text: str


def _read_timit(file: _TranscriptFile) -> TimedTranscript | None:
    """Rule: all lines have two numbers of samples and a label, and the last number is in the audio.

    Example: `0 3050 h#`, `3050 4559 sh`. The result is one label from the first to the last sample.
    In .wrd the pauses between words are marked.

    In a file of another suffix, the numbers may be a part of the text. There it is also necessary
    that the lines touch each other, or that the first line begins with sample 0: TIMIT has whole
    sentences in one such line.

    Raises DataError if a .phn or .wrd has other lines. Also if the last number is not in the audio,
        and the suffix or several lines that touch show that the file is TIMIT.
    """
    is_named_timit = file.path.suffix.lower() in (".phn", ".wrd")
    labels = _read_sample_labels(file.lines)
    if not labels:
        if is_named_timit:
            expected = "two numbers of samples and a label per line"
            raise DataError(file.path, f"not TIMIT: expected {expected}")
        return None
    is_series = len(labels) > 1 and _touch_each_other(labels)
    has_sign_of_timit = is_named_timit or is_series
    if not has_sign_of_timit and labels[0].begin != 0:
        return None
    rate = read_sample_rate(file.audio)
    audio_s = read_duration(file.audio)
    last_s = labels[-1].end / rate
    # After the last label, up to half of the audio may be silence. Converted audio may have become
    # 0.1 s shorter.
    is_in_audio = 0.5 * audio_s <= last_s <= audio_s + 0.1
    if not is_in_audio and has_sign_of_timit:
        found = f"ends with sample {labels[-1].end}, its audio has {audio_s * rate:.0f}"
        to_do = f"restore the audio, or if these are other times: {TO_TABLE}"
        raise DataError(file.path, found, to_do)
    if not is_in_audio:
        return None
    texts = [label.text for label in labels]
    if file.path.suffix.lower() == ".wrd":
        texts = list(map(_mark_pause, texts))
    label = Label(
        line=file.lines[0].number,
        start=labels[0].begin / rate,
        end=min(last_s, audio_s),
        text=" ".join(texts),
    )
    return TimedTranscript("labels of TIMIT", [label])


def _read_sample_labels(lines: Sequence[TextLine]) -> list[_SampleLabel]:
    """The lines as numbers of samples and labels; an empty list if any line is something else."""
    labels = list[_SampleLabel]()
    for line in lines:
        match = _SAMPLES.fullmatch(line.text)
        if match is None:
            return []
        labels.append(_SampleLabel(int(match[1]), int(match[2]), match[3]))
    return labels


def _touch_each_other(labels: Sequence[_SampleLabel]) -> bool:
    """Whether each label but the first begins with the sample with which the one before ends."""
    return all(first.end == second.begin for first, second in pairwise(labels))


def _mark_pause(text: str) -> str:
    """`<sil>` for a label of a pause between words, otherwise the text.

    `prepare` removes `<sil>` from the transcript and counts it.
    """
    is_pause = is_pause_label(text) or text.lower() in ALIGNER_LABELS
    return "<sil>" if is_pause else text


# ---- subtitles


def _read_empty_webvtt(file: _TranscriptFile) -> TimedTranscript | None:
    """Rule: the first line is that of WebVTT, and there is no cue.

    Example: a meeting without speech. The result is an empty transcript of all of the recording.
    Raises DataError if the file has other text than notes and styles: that has no times.
    """
    if not _WEBVTT.match(file.text) or "-->" in file.text:
        return None
    blocks = re.split(r"\n{2,}", file.text.strip())[1:]  # below the first line
    others = [block for block in blocks if not re.match(r"(?:NOTE|STYLE|REGION)\b", block)]
    if others:
        raise DataError(
            file.path,
            f"WebVTT whose text has no times, {others[0][:40]!r}",
            "remove the line WEBVTT if it is one transcript, or write the times of the cues",
        )
    return TimedTranscript("WebVTT", [Label(1, start=None, end=None, text="")])


def _read_subtitles(file: _TranscriptFile) -> TimedTranscript | None:
    """Rule: each arrow of the text belongs to the head of a cue of SRT or WebVTT.

    Example: `1`, below it `00:00:01,000 --> 00:00:02,500`, below it `mo lu`.
    """
    heads = list(_CUE.finditer(file.text))
    if not heads or len(heads) != len(_ARROW.findall(file.text)):
        return None
    form = "WebVTT" if file.text.lstrip().startswith("WEBVTT") else "SRT"
    return TimedTranscript(form, list(_read_cues(file.text, heads, form)))


def _read_sbv(file: _TranscriptFile) -> TimedTranscript | None:
    """Rule: the known form of the file is SBV, captions of YouTube.

    It is SRT without numbers, and with a comma for the arrow: `0:00:01.000,0:00:02.500`.
    """
    if file.form is not SBV:
        return None
    as_srt = SBV_TIMES.sub(r"\1 --> \2", file.text).replace("[br]", " ")
    return TimedTranscript("SBV", list(_read_cues(as_srt, list(_CUE.finditer(as_srt)), "SRT")))


def _read_cues(text: str, heads: Sequence[re.Match[str]], form: str) -> Iterator[Label]:
    """The cues of subtitles, one label per cue, without markup.

    YouTube's rolling captions show each line twice: as the last line of a cue, and as the first one
    of the next. Its second occurrence is left out, and so are cues without any other line.

    Args:
        heads: identifier and times of each cue, in order. Its text ends at the head of the next.
        form: `SRT`, or `WebVTT`, in which an empty line ends a cue, because notes may follow it.
    """
    is_rolling = _WORD_TIME.search(text) is not None and "align:start position:0%" in text
    line_before = ""
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=True):
        body = text[head.end() + 1 : end]  # without the end of the line of times
        if form == "WebVTT":  # what is before the first empty line, which may be the first line
            body = re.split(r"^\n|\n\n", body, maxsplit=1)[0]
        lines = [_remove_markup(line) for line in body.split("\n")]
        if is_rolling:
            lines = [line for line in lines if line and line != line_before]
            if not lines:
                continue
            line_before = lines[-1]
        yield Label(
            line=text.count("\n", 0, head.start("start")) + 1,
            start=read_seconds(head["start"]),
            end=read_seconds(head["end"]),
            text=" ".join(filter(None, lines)),
            speaker=_find_voice(body),
        )


def _remove_markup(line: str) -> str:
    """A line of a cue without tags, with characters in place of references such as `&amp;`."""
    return " ".join(html.unescape(_MARKUP.sub("", line)).split())


def _find_voice(body: str) -> str | None:
    """The speaker of a cue by its tags `<v Name>`; None: no tag, or several people."""
    voices = {" ".join(html.unescape(name).split()) for name in _VOICE.findall(body)}
    return voices.pop() if len(voices) == 1 else None


# ---- tables of segments


@dataclass(frozen=True)
class _SegmentRow:
    """A row of a table of segments, as it is written."""

    line: int
    start: str
    end: str
    text: str
    speaker: str = ""


def _read_segment_table(file: _TranscriptFile) -> TimedTranscript | None:
    """Rule: the known form of the file is a table of segments, as Whisper writes it.

    Example: `start`, tab, `end`, tab, `text`; below it `140`, tab, `940`, tab, `mo lu`.
    The unit of the times is that in the name of the column of starts. Without one, whole numbers
    are milliseconds if the texts could be spoken in that time. The form of the result names it.

    Raises DataError for a row with another number of cells, and for a cell that is no time.
    """
    if file.form is not SEGMENT_TABLE:
        return None
    content = file.text.strip("\n")
    segments = _split_segments(file.path, content)
    header = re.split(r"[\t,;]", content.partition("\n")[0])
    starts = [name for name in header if find_segment_column(name) == "start"]
    unit = find_unit_of_name(starts[0]) if starts else None
    is_in_ms = unit == "ms" or (unit is None and _are_milliseconds(segments))
    labels = list[Label]()
    for segment in segments:
        try:
            start = read_seconds(segment.start)
            end = read_seconds(segment.end)
        except ValueError as error:
            raise DataError(f"{file.path}:{segment.line}", str(error), "correct the row") from error
        if is_in_ms:
            start /= 1000
            end /= 1000
        text = segment.text.strip()
        labels.append(Label(segment.line, start, end, text, segment.speaker or None))
    name_of_unit = "ms" if is_in_ms else "s"
    return TimedTranscript(f"tables of segments with times in {name_of_unit}", labels)


def _split_segments(path: Path, text: str) -> list[_SegmentRow]:
    """The rows of a table of segments, below the names of the columns if it has names.

    The first of tab, semicolon and comma that the first line has is the delimiter. A table without
    names has the columns text, start and end, with commas between them.
    Raises DataError for a row with another number of cells.
    """
    first_line = text.partition("\n")[0]
    contents = read_segment_header(first_line)  # names of fields of `_SegmentRow`
    has_header = contents is not None
    if contents is None:
        delimiter = ","
        contents = ["text", "start", "end"]
    else:
        delimiter = next((sign for sign in "\t;," if sign in first_line), ",")
    quoting: Literal[0, 3] = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    reader = csv.reader(StringIO(text, newline=""), delimiter=delimiter, quoting=quoting)
    if has_header:
        next(reader)
    segments = list[_SegmentRow]()
    line = reader.line_num + 1  # in which the next row begins
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

    They cannot be milliseconds if the texts would then have more than `_MAX_LETTERS_PER_S` letters
    per second: nobody speaks so fast.
    """
    starts = [segment.start.strip() for segment in segments]
    ends = [segment.end.strip() for segment in segments]
    if not all(map(str.isdecimal, starts + ends)):
        return False
    num_ms = sum(int(segment.end) - int(segment.start) for segment in segments)
    num_letters = sum(len(segment.text) for segment in segments)
    # num_letters per second is at most the limit; without a division, as num_ms may be 0
    return 1000 * num_letters <= _MAX_LETTERS_PER_S * num_ms


_READERS = (
    _read_audacity,
    _read_timit,
    _read_empty_webvtt,
    _read_subtitles,
    _read_sbv,
    _read_segment_table,
)
"""Readers of one form each, which return None for another form. The first one that reads counts."""
