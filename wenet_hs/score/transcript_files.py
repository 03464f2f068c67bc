# SPDX-License-Identifier: Apache-2.0
"""Files of transcripts to score: `key transcript` lines, and trn, ctm and stm of NIST's sclite.

A line of a trn is `transcript (key)`, of a ctm one word with its times, of an stm one segment.
A file named .trn, .ctm or .stm has this form, or is refused. For other names the content decides,
because many tools give all forms the same name.
"""

import logging
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

from wenet_hs.base.files import read_lines
from wenet_hs.manifest.data_list import parse_text
from wenet_hs.manifest.file_forms import JSON_OF_SEGMENTS, find_form, refuse_known_forms
from wenet_hs.manifest.nist import CTM, STM, MatchLine, TimedForm, suffix_of
from wenet_hs.tree.errors import DataError

logger = logging.getLogger(__name__)

_TRN = re.compile(r"(?:(?P<text>.*)\s)?\((?P<key>[^\s()](?:[^()]*[^\s()])?)\)\s*")
_TRN_FORM = "a trn of NIST (transcript, and the key in brackets)"
_STM_LABEL = re.compile(r"<[^<>\s]*>")
_CLEAR_STM_LABEL = re.compile(r"(?i)<(?:[^<>\s]*,[^<>\s]*|o|f[\dx])>")
"""A label that no word looks like: `<o,f0,male>`, and `<o>` (overall) and `<f0>` (condition)."""
_NOT_SCORED = "ignore_time_segment_in_scoring"
"""The text of a segment of an stm that sclite does not score."""
_DECIMAL = re.compile(r"\d+[.,]\d+")
_IN_BRACES = re.compile(r"\{\s[^{}]*\s\}")
_ALTERNATIVES_OF_CTM = re.compile(r"\S+\s+\S+\s+\*\s+\*\s+<ALT(?:_BEGIN|_END)?>(?:\s.*)?")
# A command for messages: it prints a ctm with the first one of alternatives.
_KEEP_FIRST = "awk '/<ALT>/ { skip = 1 } /<ALT_END>/ { skip = 0 } !skip && !/<ALT/' FILE"
_NAMES_OF_KEYS = frozenset(
    {"key", "id", "utt", "utt_id", "uttid", "utterance", "utterance_id", "file", "filename", "path"}
)
_NAMES_OF_TEXTS = frozenset(
    ["text", "txt", "transcript", "transcription", "sentence", "ref", "reference", "hyp"],
)
_MARKS_OF_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_MAX_OVERLAP_S = 0.1
"""Ends of segments that are set by hand differ by less."""
_COMMENT = ";;"
_NUM_TO_DECIDE = 200
"""The first lines of a file, by which its form is found."""
_WRITE_TEXT = "write `key transcript` lines"


@dataclass(frozen=True)
class NumberedLine:
    """A line with content."""

    where: str
    """`FILE:NUMBER`, for messages."""
    text: str

    @property
    def first_word(self) -> str:
        """The text up to the first white space."""
        return self.text.split(maxsplit=1)[0]


@dataclass(frozen=True)
class NistSegment:
    """A word of a ctm or a segment of an stm."""

    where: str
    """`FILE:NUMBER` of its line, for messages."""
    recording: str
    channel: str
    start_s: float
    end_s: float
    text: str


def read_transcript_lines(path: Path) -> list[str]:
    """Read the lines of a file of transcripts, which must be in UTF-8.

    Raises DataError if the file cannot be read. If it has another encoding, the message has the
    command that converts it. There is no such command for a compressed file, nor for a file of
    annotations, such as a TextGrid, which has an error of its own.
    """
    try:
        return read_lines(path)
    except DataError as error:
        # `suffix_of` skips the suffix of a compression, such as .gz.
        is_compressed = suffix_of(path) != path.suffix.lower()
        has_other_encoding = isinstance(error.__cause__, UnicodeDecodeError)
        can_be_converted = has_other_encoding and not is_compressed and path.is_file()
        if not can_be_converted:
            raise
        refuse_known_forms(path)  # raises the error of a file of annotations
        with path.open("rb") as file:
            is_utf16 = file.read(2) in _MARKS_OF_UTF16
        encoding = "UTF-16" if is_utf16 else "WINDOWS-1252"
        command = f"iconv -f {encoding} -t UTF-8 {shlex.quote(str(path))} > NEW"
        to_do = f"convert it from {encoding}, or the encoding in which it was saved: {command}"
        raise DataError(error.where, error.found, to_do) from error


def read_transcripts(path: Path | str) -> dict[str, str]:
    """The transcripts of a file by key; see `parse_transcripts`."""
    path = Path(path)
    return parse_transcripts(path, read_transcript_lines(path))


def parse_transcripts(path: Path, content: Sequence[str]) -> dict[str, str]:
    """The transcripts of the lines of a file by key, whatever the form of the file.

    The key of a trn is the name in the brackets at the end of a line. The key of a ctm or stm is
    the name of the recording, whose words in the order of time are one transcript. A line of the
    log states that one of these forms was read.

    Raises DataError if a line does not have the form of the others or of the suffix (.trn, .ctm,
    .stm), if a key occurs twice, and for files of annotations, such as subtitles; also for what
    cannot be scored: names of columns, alternatives, two channels of a recording, segments that
    overlap, segments that are not to be scored.
    """
    first_lines = list(islice(_iterate_nist(path, content), _NUM_TO_DECIDE))
    for line in first_lines:
        _refuse_alternatives_of_ctm(line)
    form = _find_timed_form(path, first_lines)
    if form is CTM:
        logger.info("%s: a ctm of NIST; the words of a recording are its transcript", path)
        return _join_by_recording(_read_ctm(_iterate_nist(path, content)))
    if form is STM:
        logger.info("%s: an stm of NIST; the segments of a recording are its transcript", path)
        segments = list(_read_stm(list(_iterate_nist(path, content))))
        _refuse_overlaps(segments)
        return _join_by_recording(segments)
    if _is_trn(path, first_lines):
        logger.info("%s: a trn of NIST; the keys are the names in the last brackets", path)
        return _read_trn(_iterate_nist(path, content))
    _refuse_other_forms(path, content)
    _refuse_suffix_of_nist(path, first_lines)
    _refuse_names_of_columns(path, content)
    return parse_text(path, content)


def _iterate_nist(path: Path, content: Iterable[str]) -> Iterator[NumberedLine]:
    """The lines of a file of NIST without comments and empty lines."""
    for number, text in enumerate(content, start=1):
        if text.strip() and not text.startswith(_COMMENT):
            yield NumberedLine(f"{path}:{number}", text)


# ---- the form of a file


def _find_timed_form(path: Path, lines: Sequence[NumberedLine]) -> TimedForm | None:
    """CTM or STM, if most of the first lines of a file have this form.

    Lines may have both forms. STM is tried first for the suffix .stm, and CTM for all others.
    None if the lines have neither form, and for a .trn, whatever its lines are.
    """
    suffix = suffix_of(path)
    if suffix == ".trn":
        return None
    texts = [line.text for line in lines]
    forms = (STM, CTM) if suffix == ".stm" else (CTM, STM)
    for form in forms:
        # have_keys: if the lines were not of NIST, each would begin with a key of its own.
        if form.is_form_of(path, texts, have_keys=True):
            return form
    return None


def _refuse_other_forms(path: Path, content: Sequence[str]) -> None:
    """Raise DataError if the lines are of a known form of annotations, such as subtitles.

    Lines of JSON objects, such as those of a data list, are not refused here, unless they have
    lists of segments: `parse_text` refuses them later, and names the file to give instead.
    """
    form = find_form(path, "\n".join(content[:_NUM_TO_DECIDE]))
    if form is None:
        return
    first_line = next(filter(str.strip, content))
    are_json_lines = first_line.startswith('{"')
    if are_json_lines and form is not JSON_OF_SEGMENTS:
        return
    raise DataError(path, form.name, form.remedy)


def _refuse_names_of_columns(path: Path, content: Sequence[str]) -> None:
    """Raise DataError if the first line has the names of the columns, such as `key<TAB>text`."""
    if not content:
        return
    names = content[0].split()
    if len(names) != 2:
        return
    name_of_key, name_of_text = names
    if name_of_key.lower() in _NAMES_OF_KEYS and name_of_text.lower() in _NAMES_OF_TEXTS:
        found = f"names of columns, {name_of_key} and {name_of_text}, not a key and its transcript"
        raise DataError(f"{path}:1", found, "remove this line")


def _refuse_suffix_of_nist(path: Path, lines: Sequence[NumberedLine]) -> None:
    """Raise DataError if a file is named as one of NIST's, and its lines have another form."""
    suffix = suffix_of(path)
    # By suffix: the name of the form, and the function that matches one of its lines.
    forms: dict[str, tuple[str, MatchLine]] = {
        ".trn": (_TRN_FORM, _TRN.fullmatch),
        ".ctm": (CTM.name, CTM.match),
        ".stm": (STM.name, STM.match),
    }
    if suffix not in forms:
        return
    form, match_line = forms[suffix]
    for line in lines:
        if match_line(line.text) is None:
            found = f"{line.text[:40]!r} does not have the form of its suffix, {form}"
            to_do = "if the lines are `key transcript`, let its name end in .txt"
            raise DataError(line.where, found, f"{to_do}; otherwise correct them")


def _is_trn(path: Path, lines: Sequence[NumberedLine]) -> bool:
    """Whether a file is a trn: most of its first lines end with a key in brackets.

    In a file named .trn, each name in the last brackets is a key. In other files the lines may be
    of the form `key transcript`, because transcripts may end with a word in brackets too, such as
    `(laughs)`. So there only a name that `_is_like_key` accepts is a key, and the first words must
    not be keys.

    Raises DataError if the lines can be both forms. Also if they can be neither: all end with
    brackets, without keys in most of them, and `_refuse_repeated_first_words` refuses the rest.
    """
    names_in_brackets = list[str]()
    for line in lines:
        match = _TRN.fullmatch(line.text)
        if match is not None:
            names_in_brackets.append(match["key"])
    half = len(lines) / 2
    if suffix_of(path) == ".trn":
        return len(names_in_brackets) > half

    num_keys_in_brackets = sum(map(_is_like_key, names_in_brackets))
    if num_keys_in_brackets <= half:
        all_end_with_brackets = len(names_in_brackets) == len(lines)
        if all_end_with_brackets:
            _refuse_repeated_first_words(lines)
        return False
    if not _begin_with_keys(lines):
        return True

    # Both are like keys: the first words, and most of the names in the last brackets.
    all_have_keys_in_brackets = num_keys_in_brackets == len(lines)
    are_all_different = len(set(names_in_brackets)) == len(lines)
    if all_have_keys_in_brackets and are_all_different:
        both = f"both {lines[0].first_word!r} and {names_in_brackets[0]!r}"
        found = f"{both} can be the key, here and on all other lines"
        to_do = f"{_WRITE_TEXT} that do not end with a name in brackets"
        raise DataError(lines[0].where, found, to_do)
    return False  # the names in brackets repeat, or some lines have none, so they are no keys


def _begin_with_keys(lines: Sequence[NumberedLine]) -> bool:
    """Whether the first words are probably keys: all are like keys, and they rarely repeat.

    They rarely repeat if there are more different ones than half the number of lines.
    """
    first_words = [line.first_word for line in lines]
    rarely_repeat = len(set(first_words)) > len(lines) / 2
    return rarely_repeat and all(map(_is_like_key, first_words))


def _refuse_repeated_first_words(lines: Iterable[NumberedLine]) -> None:
    """Raise DataError if two lines begin with the same word, and this word is not like a key.

    All of these lines end with brackets. The first words are then probably words of the
    transcripts, and the keys may be in the brackets.
    """
    first_words = set[str]()
    for line in lines:
        if line.first_word in first_words and not _is_like_key(line.first_word):
            found = f"begins with {line.first_word!r} as an earlier line, and all end with brackets"
            trn = "if the brackets have the keys, as in a trn of NIST, write these first"
            raise DataError(line.where, found, f"{_WRITE_TEXT}; {trn}")
        first_words.add(line.first_word)


def _is_like_key(word: str) -> bool:
    """Whether a text is one word with a digit, a hyphen or an underscore, such as `anna_12`.

    A decimal number is not like a key: it is the length of a pause.
    """
    has_digit_or_hyphen = any(character.isdigit() or character in "-_" for character in word)
    is_one_word = len(word.split()) == 1
    is_decimal = _DECIMAL.fullmatch(word) is not None
    return has_digit_or_hyphen and is_one_word and not is_decimal


def refuse_keys_in_brackets(
    ref_path: Path,
    reference: Mapping[str, str],
    hyp_path: Path,
    hypothesis: Mapping[str, str],
) -> None:
    """Raise DataError if two files of `key transcript` lines are probably trns of NIST.

    A name in brackets at the end of a line that is not like a key, such as `(anna)`, may be a key
    or a spoken word. The names are keys if each line of the hypotheses has a different one, and the
    reference has all of them too. If all first words of the reference are like keys, they are the
    keys, and nothing is raised.

    `reference` and `hypothesis` are the files as they were read: first word → rest of the line.
    """
    if all(map(_is_like_key, reference)):
        return
    ref_names = _names_in_last_brackets(reference)
    hyp_names = _names_in_last_brackets(hypothesis)
    are_names_of_reference = bool(hyp_names) and hyp_names <= ref_names
    if not are_names_of_reference:
        return
    name = min(hyp_names)
    found = f"all lines of both files end with names in brackets, the same ones, such as ({name})"
    trn = "if these names are the keys, let the names of both files end in .trn"
    text = "if the first words are the keys, write a digit into each of them, in both files"
    raise DataError(f"{ref_path}, {hyp_path}", found, f"{trn}; {text}")


def _names_in_last_brackets(transcripts: Mapping[str, str]) -> set[str]:
    """The names in the brackets that the lines end with.

    The set is empty if a line does not end with a name in brackets, or if two end with the same.
    """
    names = set[str]()
    for key, text in transcripts.items():
        match = _TRN.fullmatch(f"{key} {text}")
        if match is None or match["key"] in names:
            return set()
        names.add(match["key"])
    return names


# ---- reading of one form


def _read_trn(lines: Iterable[NumberedLine]) -> dict[str, str]:
    """The transcripts of a trn by key.

    Raises DataError for a line without a key, a key that occurs twice, and alternatives.
    """
    transcripts: dict[str, str] = {}
    for line in lines:
        match = _TRN.fullmatch(line.text)
        if match is None:
            found = "no key in brackets at the end, which other lines of this trn have"
            raise DataError(line.where, found, "add it")
        key = match["key"]
        if key in transcripts:
            found = f"{key!r} occurs twice in this trn"
            raise DataError(line.where, found, "keep one of the two lines")
        text = (match["text"] or "").strip()
        _refuse_alternatives(line.where, text)
        transcripts[key] = text
    return transcripts


def _read_ctm(lines: Iterable[NumberedLine]) -> Iterator[NistSegment]:
    """The words of a ctm. Raises DataError for a line of another form, and for alternatives."""
    for line in lines:
        _refuse_alternatives_of_ctm(line)
        match = _match(CTM, line)
        start_s = float(match["start"])
        yield NistSegment(
            where=line.where,
            recording=match["recording"],
            channel=match["channel"],
            start_s=start_s,
            end_s=start_s + float(match["duration"]),
            text=match["text"],
        )


def _read_stm(lines: Sequence[NumberedLine]) -> Iterator[NistSegment]:
    """The segments of an stm without their labels.

    Raises DataError for a line of another form, alternatives, and a time that is not scored.
    """
    matches = [_match(STM, line) for line in lines]
    label_pattern = _find_label_pattern([match["text"] or "" for match in matches])
    for line, match in zip(lines, matches, strict=True):
        text = match["text"] or ""
        label_match = label_pattern.match(text)
        transcript = text[label_match.end() :].strip() if label_match else text
        _refuse_alternatives(line.where, transcript)
        if transcript.lower() == _NOT_SCORED:
            found = "a time that is not scored, in an stm of NIST: sclite leaves out what is said"
            to_do = "remove the line and, from the hypotheses, the words of this time"
            raise DataError(line.where, found, f"{to_do}; or {_WRITE_TEXT}")
        yield NistSegment(
            where=line.where,
            recording=match["recording"],
            channel=match["channel"],
            start_s=float(match["start"]),
            end_s=float(match["end"]),
            text=transcript,
        )


def _find_label_pattern(texts: Sequence[str]) -> re.Pattern[str]:
    """The pattern of the labels that segments may begin with.

    If all segments begin with something in angle brackets, it is the label. Otherwise only what no
    word looks like (`_CLEAR_STM_LABEL`) is a label, and `<unk>`, for example, is a word.
    """
    if all(map(_STM_LABEL.match, texts)):
        return _STM_LABEL
    return _CLEAR_STM_LABEL


def _match(form: TimedForm, line: NumberedLine) -> re.Match[str]:
    """The parts of a line: recording, channel, text and times, by name.

    Raises DataError if the line does not have the form of the others.
    """
    match = form.match(line.text)
    if match is None:
        found = f"{line.text[:40]!r} does not have the form of other lines, {form.name}"
        raise DataError(line.where, found, "correct or remove it")
    return match


def _refuse_alternatives(where: str, text: str) -> None:
    """Raise DataError if a text has alternatives such as `{ um / uh }`."""
    for match in _IN_BRACES.finditer(text):
        if "/" in match.group().split():
            found = f"alternatives of sclite, {match.group()[:40]!r}, which are not scored"
            raise DataError(where, found, "write one of them")


def _refuse_alternatives_of_ctm(line: NumberedLine) -> None:
    """Raise DataError for a line that begins, separates or ends alternatives in a ctm.

    Such a line is `RECORDING CHANNEL * * <ALT_BEGIN>`, or has <ALT> or <ALT_END> at its end.
    """
    # The first condition is only for speed: few lines have the mark.
    if "<ALT" in line.text and _ALTERNATIVES_OF_CTM.fullmatch(line.text.strip()):
        mark = line.text.split()[4]
        found = f"alternatives of sclite, {mark}, which are not scored"
        to_do = "keep one of them, without the lines <ALT_BEGIN>, <ALT> and <ALT_END>"
        raise DataError(line.where, found, f"{to_do}; the first ones by: {_KEEP_FIRST}")


def _refuse_overlaps(segments: Iterable[NistSegment]) -> None:
    """Raise DataError if two segments of a recording overlap: then their words have no order.

    Overlaps of up to 0.1 s are allowed, because people set the borders by hand.
    """
    in_order = sorted(segments, key=lambda segment: (segment.recording, segment.start_s))
    for earlier, later in pairwise(in_order):
        are_of_one_recording = earlier.recording == later.recording
        overlap_s = earlier.end_s - later.start_s
        if are_of_one_recording and overlap_s > _MAX_OVERLAP_S:
            found = f"begins before the segment of {earlier.where} ends: the words have no order"
            to_do = f"{_WRITE_TEXT}, one per segment, in both files"
            raise DataError(later.where, found, to_do)


def _join_by_recording(parts: Iterable[NistSegment]) -> dict[str, str]:
    """The transcript of each recording: the texts of its parts in the order of time.

    Raises DataError for a second channel of a recording.
    """
    parts_by_recording = defaultdict[str, list[NistSegment]](list)
    for part in parts:
        earlier_parts = parts_by_recording[part.recording]
        first = earlier_parts[0] if earlier_parts else part
        if part.channel != first.channel:
            found = f"channel {part.channel} of {part.recording}, {first.where} has another channel"
            command = """awk '{ $1 = $1 "-" $2; print }' FILE"""
            to_do = f"put the channel into the name, in both files: {command}"
            raise DataError(part.where, found, to_do)
        earlier_parts.append(part)
    transcripts: dict[str, str] = {}
    for recording, parts_of_recording in parts_by_recording.items():
        parts_of_recording.sort(key=lambda part: part.start_s)
        texts = [part.text for part in parts_of_recording if part.text]
        transcripts[recording] = " ".join(texts)
    return transcripts
