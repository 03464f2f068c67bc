# SPDX-License-Identifier: Apache-2.0
"""Transcripts with times beside audio: Audacity's labels, SRT, WebVTT and TIMIT; other forms are refused by name.

The content decides, because all of them are found in .txt files too. Times would otherwise become text.
"""

import html
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from wenet_hs.corpus.pauses import ALIGNER_LABELS, is_pause_label
from wenet_hs.corpus.table import read_seconds
from wenet_hs.data.audio import read_duration, read_sample_rate
from wenet_hs.errors import DataError


class Label(NamedTuple):
    """A part of a recording and its text."""

    line: int
    """From 1; 0: all of the file."""
    start: float | None
    """Seconds; None: all of the recording."""
    end: float | None
    text: str
    speaker: str | None = None


_TO_ELAN = "import it into ELAN, save it, and use `wenet-hs prepare elan`"
_TO_SRT = "convert it to SRT or WebVTT"
_TO_TABLE = "make a table with the columns path, text, start and end, and use `wenet-hs prepare table`"
_XML = r"(?s)<(?:[?!]|[A-Za-z][^<>]*>.*</[A-Za-z])"  # a transcript may begin with <laugh>
_OTHER_FORMS = (
    ("a transcript of CLAN (CHAT)", r"@(?:UTF8|Begin|Font|PID|Window)", _TO_ELAN),
    ("a file of ELAN", r"(?s)<.*<?ANNOTATION_DOCUMENT", "use `wenet-hs prepare elan`"),
    ("a TextGrid of Praat", r'(?s).{0,40}"?ooText', "use `wenet-hs prepare praat`"),
    ("a transcript of EXMARaLDA", r"(?s)<.*<basic-transcription", "export it as an ELAN file there"),
    ("a file of Transcriber", r"(?s)<.*<Trans[ >]", _TO_ELAN),
    ("a text of FLEx", r"(?s)<.*<interlinear-text", _TO_ELAN),
    ("XML or HTML", _XML, "save it as plain text, or as SRT or WebVTT if it has times"),
    ("a file of Toolbox", r"\\_sh ", _TO_ELAN),
    ("SubStation subtitles", r"\[(?:Script Info|V4\+? Styles)\]", _TO_SRT),
    ("JSON", r'[\[{]\s*["{]', _TO_TABLE),
    ("RTF", r"\{\\rtf", "save it as plain text"),
    ("an RTTM of NIST, which has no text", r"(?:;;.*\n)*SPEAKER +\S+ +\d+ +\d+\.?\d* ", "give the transcripts"),
    ("a CTM of NIST", r"(?:;;.*\n)*\S+ +[0-9AB] +\d+\.\d+ +\d+\.\d+ +\S+", _TO_TABLE),
    ("an STM of NIST", r"(?:;;.*\n)*\S+ +(?:\S+ +\S+ +\d+\.\d+|[0-9AB] +\S+ +\d+) +\d+\.\d+ ", _TO_TABLE),
)
"""What a text is, how it begins, and what to do."""
_CLOCK = r"(?:\d+:)?\d{1,2}:\d{2}(?:[.,]\d{1,3})?"
_CUE = re.compile(
    rf"(?m)(?:(?:\A|(?<=\n\n)).+\n|^ *\d+ *\n)?^ *(?P<start>{_CLOCK}) *--> *(?P<end>{_CLOCK})(?:[ \t]+\w+:\S+)* *$"
)
"""An optional identifier, and the times with settings."""
_WEBVTT = re.compile(r"\s*WEBVTT(?:[ \t].*)?(?:\n|$)")
"""The first line. A file of a meeting without speech has no cues below it."""
_ARROW = re.compile(r"\d *-->")
_WORD_TIME = re.compile(rf"<{_CLOCK}>")
_VOICE = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]+)>")
_MARKUP = re.compile(r"</?[A-Za-z\d][^<>]*>|\{\\[^}]*\}")
_SECONDS = re.compile(r"(-?\d+(?:[.,]\d+)?)\t(-?\d+(?:[.,]\d+)?)(?:\t(.*))?")
_SAMPLES = re.compile(r"(\d+) (\d+) (\S.*)")
_TIMES = re.compile(rf"(?:.*\t)?[\W_]*(?:{_CLOCK}\b|\d+[.,]\d+[\s,;]|\d+\t\d+\t)")
"""How a line with times of some form, or a column of it, begins."""


def read_labels(path: Path, text: str, audio: Path) -> tuple[str, list[Label]] | None:
    """The name of the form and the parts of a transcript; None: the text has no times.

    Raises DataError for times in a form that is not read, or if the rate of the audio is needed and cannot be read.
    """
    text = "\n".join(text.splitlines())
    for form, pattern, remedy in _OTHER_FORMS:
        if re.match(pattern, text.lstrip()):
            raise DataError(path, form, remedy)
    lines = [(number, line.strip(" ")) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if lines and all(_SECONDS.fullmatch(line) or line.startswith("\\\t") for _, line in lines):
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
    with_times = [(number, line) for number, line in lines if _TIMES.match(line) or _ARROW.search(line)]
    if _ARROW.search(text) or (len(lines) > 1 and 2 * len(with_times) > len(lines)):
        number, line = with_times[0]
        raise DataError(f"{path}:{number}", f"times in an unknown form, {line[:40]!r}", f"{_TO_SRT}, or {_TO_TABLE}")
    return None


def _read_seconds_labels(lines: list[tuple[int, str]]) -> list[Label]:
    """Begin, end and text with tabs; a line that begins with a backslash has frequencies."""
    found = [(number, match.groups("")) for number, line in lines if (match := _SECONDS.fullmatch(line))]
    return [Label(number, read_seconds(begin), read_seconds(end), text) for number, (begin, end, text) in found]


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
        raise DataError(path, found, f"restore the audio, or if these are other times: {_TO_TABLE}")
    return []
