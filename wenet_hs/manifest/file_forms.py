# SPDX-License-Identifier: Apache-2.0
"""Known forms of text files with annotations or transcripts: their rules, and what to do with them.

`FORMS`, at the end, is the only table of them. Every command uses it: a reader of text before it
parses a file, a reader of audio after a file could not be read. So all give a file the same name
and advice.

A form that no command reads has no `readers`. When a command learns to read it, its row gets the
command.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from wenet_hs.manifest.nist import CTM, STM
from wenet_hs.tree.errors import DataError

_MAX_BYTES = 1 << 18
"""How much of a file is read to recognise its form."""
_MAX_CHARACTERS = 1 << 16
"""How much of a text is given to the rules, which recognise a form by its beginning."""


@dataclass(frozen=True)
class Beginning:
    """The beginning of a file, as the rules see it."""

    path: Path
    text: str
    """The first lines, divided by \\n, without white space before the first one."""

    @property
    def suffix(self) -> str:
        """The suffix of the path in small letters."""
        return self.path.suffix.lower()

    @cached_property
    def lines(self) -> list[str]:
        """The lines that are not empty, without white space around them."""
        return [line.strip() for line in self.text.split("\n") if line.strip()]

    @cached_property
    def nist_lines(self) -> list[str]:
        """`lines` without the comments of NIST's forms."""
        return [line for line in self.lines if not line.startswith(";;")]

    @cached_property
    def root(self) -> str:
        """The first start tag of XML, such as `Trans scribe="x"`; empty for other text."""
        tag = _ROOT.match(self.text)
        return tag[1] if tag else ""


FormRule = Callable[[Beginning], bool]
"""Whether a file with this beginning has a form; the docstring of a rule says what the form is."""


@dataclass(frozen=True)
class Form:
    """A form of file: a row of the table FORMS."""

    name: str
    """As a message says it, with an article if it needs one."""
    is_form: FormRule
    remedy: str
    """What a user can do with such a file."""
    readers: tuple[str, ...] = ()
    """The commands that read it, such as `prepare elan`."""
    is_annotation: bool = True
    """Whether it is made for annotations or recordings. JSON, XML and RTF may be anything."""


def find_form(path: Path, content: str | bytes) -> Form | None:
    """The first form of FORMS whose rule a file fits; None if it fits none.

    Args:
        path: its suffix and name help to recognise the form. The file is not read.
        content: the text, or the first bytes. Their encoding need not be known, because the signs
            of all forms are ASCII.
    """
    text = _decode_leniently(content) if isinstance(content, bytes) else content
    text = text.removeprefix("\ufeff")
    if len(text) > _MAX_CHARACTERS:
        text = text[:_MAX_CHARACTERS]
        whole_lines, _, _ = text.rpartition("\n")  # rules see no line that is cut
        text = whole_lines or text
    lines = "\n".join(text.splitlines())
    beginning = Beginning(path, lines.lstrip())
    return next((form for form in FORMS if form.is_form(beginning)), None)


def check_form(path: Path, content: str | bytes, reader: str) -> Form | None:
    """The known form of a file, if the command `reader` reads this form; None if it has no form.

    Args:
        path: its suffix and name help to recognise the form.
        content: the text of the file, or its first bytes.
        reader: the command, as in `Form.readers`.
    Raises DataError if the file has a known form that this command does not read.
    """
    form = find_form(path, content)
    if form is not None and reader not in form.readers:
        raise DataError(path, form.name, form.remedy)
    return form


def find_form_of_file(path: Path) -> Form | None:
    """The known form of a file on the disk; None if it has none, or cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES)
    except OSError:
        return None
    return find_form(path, content)


def refuse_known_forms(*paths: Path) -> None:
    """Raise DataError for the first of some files on the disk that has a known form."""
    for path in paths:
        form = find_form_of_file(path)
        if form is not None:
            raise DataError(path, form.name, form.remedy)


def refuse_annotations(*paths: Path) -> None:
    """Raise DataError for the first of some files on the disk that has a form of annotations.

    Other JSON, XML and RTF may be anything, such as a licence beside the recordings.
    """
    for path in paths:
        form = find_form_of_file(path)
        if form is not None and form.is_annotation:
            raise DataError(path, form.name, form.remedy)


def _decode_leniently(content: bytes) -> str:
    """The text of the first bytes of a file whose encoding is not known: UTF-16 or UTF-8.

    UTF-16 shows by its byte order mark, or because the high byte of most characters is zero, as it
    is for ASCII. Bytes that are wrong in the encoding become U+FFFD.
    """
    head = content[:_MAX_BYTES]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return head.decode("utf-16", "replace")
    first_bytes = head[:200]  # of up to 100 characters in UTF-16
    if _are_mostly_zero(first_bytes[1::2]):  # little endian has the high byte second
        return head.decode("utf-16-le", "replace")
    if _are_mostly_zero(first_bytes[::2]):
        return head.decode("utf-16-be", "replace")
    return head.decode("utf-8-sig", "replace")


def _are_mostly_zero(content: bytes) -> bool:
    """Whether more than half of the bytes are zero; False for none."""
    return content.count(0) > len(content) / 2


# ---- patterns


_NUMBER = r"\d*\.?\d+"
_PROLOG = r"(?:\s++|(?><\?.*?\?>)|(?><!--.*?-->)|(?><!DOCTYPE[^<>\[]*(?:\[.*?\]\s*)?>))*+"
"""What may stand before the root of XML. Each item is atomic: it ends at its first end, so the time
is linear in their number."""
_ROOT = re.compile(rf"(?s){_PROLOG}<([A-Za-z][^<>]*)")
"""The first start tag of XML; the group has it without its brackets."""
_RTTM = re.compile(rf"SPEAKER\s+\S+\s+\d+\s+{_NUMBER}\s")
"""`SPEAKER rec 1 0.25 0.31 …`: recording, channel, begin."""
_AUDIO_FILE = r"\S+\.(?:wav|flac|sph|mp3|ogg|opus|m4a)"
_PROGRAM = r"\S*\b(?:sph2pipe|sox|ffmpeg|flac|wav-copy|cat|gunzip|zcat|opusdec|mpg123|lame)\s"
_ARCHIVE = r"\S+\.ark:\d+(?:\[.*\])?"
_WAV_SCP = re.compile(rf"\S+\s+(?:{_AUDIO_FILE}|{_ARCHIVE}|{_PROGRAM}.*\|)")
"""`utt1 a.wav`, `utt1 raw.ark:25`, or `utt1 sox a.mp3 -t wav - |`."""
_KALDI_SEGMENT = re.compile(rf"\S+\s+\S+\s+{_NUMBER}\s+{_NUMBER}(?:\s+\d+)?")
"""`utt1 rec1 0.25 3.5`, in some files with a channel after it."""
_MARKER = re.compile(r"\\[A-Za-z_]\w*(?:\s|$)")
"""A marker of Toolbox, such as `\\tx`."""
_SALT_LINE = re.compile(r"[+\-=:;]\s?|[A-Z]\s")
"""A line of SALT after the first: a sign of its own lines, or the initial of a speaker."""
_HTK_LABEL = re.compile(r"\d+\s+\d+\s+\S.*")
"""`0 2500000 sil`: begin, end, label."""
_SEGMENT_ROW = re.compile(rf".*,{_NUMBER},{_NUMBER}")
"""`mo lu,0.25,3.5`: text, begin, end."""
_ESPS_LABEL = re.compile(rf"{_NUMBER}\s+-?\d+(?:\s.*)?")
"""`0.25 121 mo`: time, colour, label."""
CLOCK = r"(?:\d+:)?\d{1,2}:\d{2}(?:[.,]\d{1,3})?"
"""A time as mm:ss or h:mm:ss, with parts of a second or without."""
SBV_TIMES = re.compile(r"(?m)^[ \t]*(\d+:\d{2}:\d{2}\.\d{1,3}),(\d+:\d{2}:\d{2}\.\d{1,3})[ \t]*$")
"""The line of times of a caption in SBV, as YouTube writes it."""
AUDACITY_LABEL = re.compile(r"(-?\d+(?:[.,]\d+)?)\t(-?\d+(?:[.,]\d+)?)(?:\t(.*))?")
"""Begin, end and text. Audacity writes the frequencies of a label into a line after a backslash,
which this pattern does not match."""
SEGMENT_LIST = re.compile(r'"(?:\w*segments|transcription|utterances|monologues)"\s*:\s*\[\s*\{')
"""In JSON: the name of a list of segments, and its first one."""
SEGMENT_COLUMNS = {
    "start": ("start", "starttime", "begin", "begintime", "from", "onset", "tmin", "xmin"),
    "end": ("end", "endtime", "stop", "stoptime", "to", "offset", "tmax", "xmax"),
    "text": ("text", "transcript", "transcription", "sentence", "utterance", "words", "annotation"),
    "speaker": ("speaker", "spk", "speakerid", "speakername", "participant"),
}
"""Columns of a table of the segments of one recording: kind → its usual names, without signs.

Speakers may be missing."""
_UNIT_OF_NAME = re.compile(
    r"(?i)(?<=[^\W\d_])[\W_]+(?:in[\W_]+)?(m?s(?:ecs?)?|(?:milli)?seconds?)\W*$"
)
"""At the end of a name of a column: `start_ms`, `Start (s)`, `Begin Time - msec`."""


# ---- columns of segments


def find_segment_column(name: str) -> str | None:
    """The kind of a column of a table of segments by its name: start, end, text or speaker.

    The case, signs and a unit do not count: `START`, `start_ms` and `Start (s)` are all `start`.
    None for a name that SEGMENT_COLUMNS does not have.
    """
    name_without_unit = _UNIT_OF_NAME.sub("", name)
    plain_name = re.sub(r"[\W_]+", "", name_without_unit).lower()
    for kind, usual_names in SEGMENT_COLUMNS.items():
        if plain_name in usual_names:
            return kind
    return None


def find_unit_of_name(name: str) -> str | None:
    """`ms` or `s` if the name of a column of times ends with a unit, as `start_ms`; else None."""
    unit = _UNIT_OF_NAME.search(name)
    if unit is None:
        return None
    is_milliseconds = unit[1].lower().startswith("m")  # ms, msec, milliseconds
    return "ms" if is_milliseconds else "s"


def read_segment_header(line: str) -> list[str] | None:
    """The kinds of the columns that the first line of a table of segments names, in order.

    None if the line is no such header: it must name start, end and text. Each column must have a
    kind of SEGMENT_COLUMNS, and no two the same.
    """
    kinds: list[str] = []
    for name in re.split(r"[\t,;]", line):
        kind = find_segment_column(name)
        if kind is None or kind in kinds:
            return None
        kinds.append(kind)
    has_needed_columns = {"start", "end", "text"} <= {*kinds}
    return kinds if has_needed_columns else None


# ---- rules


def begins_with(pattern: str) -> FormRule:
    """The rule: the beginning of the text matches a regular expression."""
    compiled = re.compile(pattern)
    return lambda beginning: compiled.match(beginning.text) is not None


def has_root(*names: str, mark: str = "") -> FormRule:
    """The rule: XML whose root element has one of these names, and whose beginning contains `mark`.

    The name may have the prefix of a namespace, as `tt:tt`.
    """
    end_of_name = r"(?![\w.:-])"
    tag = re.compile(rf"(?:\w+:)?(?:{'|'.join(names)}){end_of_name}")
    return lambda beginning: tag.match(beginning.root) is not None and mark in beginning.text


def is_praat_object(object_class: str) -> FormRule:
    """The rule: a text file of Praat, long or short, with an object of a class.

    `object_class`: a regular expression, such as `TextGrid`.
    """
    file_type = r'.{0,20}"ooTextFile(?: short)?"'
    return begins_with(rf'{file_type}\s+(?:Object class\s*=\s*)?"{object_class}\b')


def is_toolbox(beginning: Beginning) -> bool:
    r"""A file of Toolbox: its first line and at least half of all lines begin with a `\marker`.

    The other lines are the rest of long lines.
    """
    has_marker = [_MARKER.match(line) is not None for line in beginning.lines]
    if not has_marker or not has_marker[0]:
        return False
    return sum(has_marker) >= len(has_marker) / 2


def is_salt(beginning: Beginning) -> bool:
    """A transcript of SALT: a first line of speakers after `$`; most others have a sign or initial.

    Such lines are `$ Child, Examiner`, `+ Language: English` and `C mo lu`.
    """
    if not beginning.lines:
        return False
    first_line, *other_lines = beginning.lines
    if re.match(r"\$\s*[^\W\d]", first_line) is None:
        return False
    num_coded = sum(_SALT_LINE.match(line) is not None for line in other_lines)
    return num_coded > len(other_lines) / 2


def is_esps(beginning: Beginning) -> bool:
    """Labels of ESPS: the line `#` ends a header, and the next one has a time and a colour."""
    if "#" not in beginning.lines[:-1]:  # a line must follow it
        return False
    end_of_header = beginning.lines.index("#")
    first_label = beginning.lines[end_of_header + 1]
    return _ESPS_LABEL.fullmatch(first_label) is not None


def is_htk(beginning: Beginning) -> bool:
    """Labels of HTK: a .lab or .rec in which each line has two whole numbers and a label."""
    if beginning.suffix not in (".lab", ".rec"):
        return False
    return bool(beginning.lines) and all(map(_HTK_LABEL.fullmatch, beginning.lines))


def is_ctm(beginning: Beginning) -> bool:
    """A CTM of NIST: most lines are `recording channel begin duration word`."""
    return CTM.is_form_of(beginning.path, beginning.nist_lines, have_keys=False)


def is_stm(beginning: Beginning) -> bool:
    """An STM of NIST: most lines are `recording channel speaker begin end text`."""
    return STM.is_form_of(beginning.path, beginning.nist_lines, have_keys=False)


def is_rttm(beginning: Beginning) -> bool:
    """An RTTM of NIST: the first line is `SPEAKER recording channel begin …`."""
    if not beginning.nist_lines:
        return False
    first_line = beginning.nist_lines[0] + " "  # the pattern ends with white space
    return _RTTM.match(first_line) is not None


def is_wav_scp(beginning: Beginning) -> bool:
    """A wav.scp of Kaldi: each line has a key and its audio, which is a file or a command."""
    return bool(beginning.lines) and all(map(_WAV_SCP.fullmatch, beginning.lines))


def is_kaldi_segments(beginning: Beginning) -> bool:
    """Segments of Kaldi: each line of a file named `segments` has two names and two times."""
    if beginning.path.name != "segments":
        return False
    return bool(beginning.lines) and all(map(_KALDI_SEGMENT.fullmatch, beginning.lines))


def is_json_of_segments(beginning: Beginning) -> bool:
    """JSON of segments: it has a list of objects whose name says that they are segments."""
    return is_json(beginning) and SEGMENT_LIST.search(beginning.text) is not None


def is_audacity(beginning: Beginning) -> bool:
    """Labels of Audacity: each line has begin, end and text, or frequencies; a begin has decimals.

    Without decimals, lines such as `1<tab>2<tab>mo` may be another table.
    """
    lines = [line.strip(" ") for line in beginning.text.split("\n") if line.strip()]
    has_decimals = False
    for line in lines:
        if line.startswith("\\\t"):  # the frequencies of the label before
            continue
        label = AUDACITY_LABEL.fullmatch(line)
        if label is None:
            return False
        if re.search(r"\d[.,]\d", label[1]):
            has_decimals = True
    return has_decimals


def is_segment_table(beginning: Beginning) -> bool:
    """A table of segments: its first line names SEGMENT_COLUMNS.

    Also a .csv without names of columns, in which each line is `text,begin,end`.
    """
    if not beginning.lines:
        return False
    if read_segment_header(beginning.lines[0]) is not None:
        return True
    return beginning.suffix == ".csv" and all(map(_SEGMENT_ROW.fullmatch, beginning.lines))


is_json = begins_with(r'[\[{]\s*["{]')
is_srt = begins_with(rf"(?:\d+[ \t]*\n)?[ \t]*{CLOCK} *--> *{CLOCK}")
is_xml = begins_with(r"(?s)<(?:[?!]|[A-Za-z][^<>]*>.*</[A-Za-z])")
"""A start tag needs an end tag after it: a transcript may begin with <laugh>."""


# ---- the table

_ELAN = "use `wenet-hs prepare elan`"
_PRAAT = "use `wenet-hs prepare praat`"
_TO_ELAN = f"import it into ELAN, save it, and {_ELAN}"
TO_SRT = "convert it to SRT or WebVTT"
_TABLE = "use `wenet-hs prepare table`"
TO_TABLE = f"make a table with the columns path, text, start and end, and {_TABLE}"
_TO_SPPAS = f"save it as .eaf with SPPAS, and {_ELAN}"
_KALDI = "give the folder with `text` beside it to `wenet-hs prepare kaldi`"
_FOLDER = "prepare folder"
_BESIDE = f"put it beside its recording, with the same name, and use `wenet-hs {_FOLDER}"
"""The beginning of a remedy: options of the command and the closing ` are added to it."""

SBV = Form(
    name="SBV subtitles",
    is_form=begins_with(SBV_TIMES.pattern),
    remedy=f"{_BESIDE} --text_suffix .sbv`",
    readers=(_FOLDER,),
)
SEGMENT_TABLE = Form(
    name="a table of the segments of one recording",
    is_form=is_segment_table,
    remedy=f"{_BESIDE} --text_suffix .tsv` (or .csv)",
    readers=(_FOLDER,),
)
JSON_OF_SEGMENTS = Form(
    name="JSON with a list of segments per recording, as of Whisper, GigaSpeech or WenetSpeech",
    is_form=is_json_of_segments,
    remedy=f"write one object per segment, with path, text, start and end, and {_TABLE}",
    readers=("prepare table",),
)
JSON = Form(
    name="JSON",
    is_form=is_json,
    remedy=TO_TABLE,
    readers=("prepare table",),
    is_annotation=False,
)

_FORMS_OF_LINGUISTS = (
    Form(
        name="a transcript of CLAN (CHAT)",
        is_form=begins_with(r"@(?:UTF8|Begin|Font|PID|Window)|\*[A-Z][A-Z0-9]{2}:\t"),
        remedy=_TO_ELAN,
    ),
    Form(
        name="a file of ELAN",
        is_form=has_root("ANNOTATION_DOCUMENT"),
        remedy=f"{_ELAN}, for which its name ends in .eaf",
        readers=("prepare elan",),
    ),
    Form(
        name="a TextGrid of Praat",
        is_form=is_praat_object("TextGrid"),
        remedy=f"{_PRAAT}, for which its name ends in .TextGrid",
        readers=("prepare praat",),
    ),
    Form(
        name="a Collection of Praat",
        is_form=is_praat_object("Collection"),
        remedy=f"open it in Praat, save each TextGrid as text file, and {_PRAAT}",
    ),
    Form(
        name="a chronological TextGrid of Praat",
        is_form=begins_with('"Praat chronological TextGrid'),
        remedy=f"save it as text file in Praat, and {_PRAAT}",
    ),
    Form(
        name="an object of Praat that is no TextGrid",
        is_form=is_praat_object(r"\w+"),
        remedy=f"save the TextGrid as text file in Praat, and {_PRAAT}",
    ),
    Form(
        name="a binary file of Praat",
        is_form=begins_with("ooBinaryFile"),
        remedy=f"save it as text file in Praat, and {_PRAAT}",
    ),
    Form(
        name="a transcript of EXMARaLDA",
        is_form=has_root("basic-transcription", "segmented-transcription"),
        remedy=f"export it as an ELAN file there, and {_ELAN}",
    ),
    Form(
        name="a transcript of FOLKER",
        is_form=has_root("folker-transcription"),
        remedy=f"export it as an ELAN file in EXMARaLDA, and {_ELAN}",
    ),
    Form(
        name="a file of Transcriber",
        is_form=has_root("Trans"),
        remedy=_TO_ELAN,
    ),
    Form(
        name="a text of FLEx",
        is_form=has_root("document", mark="<interlinear-text"),
        remedy=_TO_ELAN,
    ),
    Form(
        name="a file of Toolbox",
        is_form=is_toolbox,
        remedy=_TO_ELAN,
    ),
    Form(
        name="a session of Phon",
        is_form=has_root("session", mark="phon.ling.mun.ca"),
        remedy=TO_TABLE,
    ),
    Form(
        name="a transcript of CLAN in XML (TalkBank)",
        is_form=has_root("CHAT", mark="talkbank"),
        remedy=TO_TABLE,
    ),
    Form(
        name="a text of Pangloss",
        is_form=has_root("TEXT", "WORDLIST", "ARCHIVE", mark="<FORM"),
        remedy=TO_TABLE,
    ),
    Form(
        name="a file of SPPAS",
        is_form=has_root("Document", mark="<Tier"),
        remedy=_TO_SPPAS,
    ),
    Form(
        name="a file of Annotation Pro",
        is_form=has_root("AnnotationSystemDataSet"),
        remedy=_TO_SPPAS,
    ),
    Form(
        name="a file of Anvil",
        is_form=has_root("annotation", mark="<specification"),
        remedy=_TO_SPPAS,
    ),
    Form(
        name="a file of NXT",
        is_form=has_root("root", mark="nite.sourceforge.net"),
        remedy=TO_TABLE,
    ),
    Form(
        name="a text of TEI",
        is_form=has_root("TEI", "teiCorpus"),
        remedy=TO_TABLE,
    ),
    Form(
        name="a transcript of SALT",
        is_form=is_salt,
        remedy=TO_TABLE,
    ),
)
_SUBTITLES_AND_SEGMENTS = (
    Form(
        name="SubStation subtitles",
        is_form=begins_with(r"\[(?:Script Info|V4\+? Styles)\]"),
        remedy=TO_SRT,
    ),
    Form(
        name="SubViewer subtitles",
        is_form=begins_with(r"(?i)\[(?:INFORMATION|SUBTITLE|BEGIN)\]"),
        remedy=TO_SRT,
    ),
    Form(
        name="MicroDVD subtitles, whose times are frames",
        is_form=begins_with(r"\{\d+\}\{\d*\}"),
        remedy=TO_SRT,
    ),
    Form(
        name="MPL2 subtitles",
        is_form=begins_with(r"\[\d+\]\[\d*\]"),
        remedy=TO_SRT,
    ),
    Form(
        name="TTML subtitles",
        is_form=has_root("tt", mark="ttml"),
        remedy=TO_SRT,
    ),
    Form(
        name="SAMI subtitles",
        is_form=has_root("SAMI"),
        remedy=TO_SRT,
    ),
    Form(
        name="captions of YouTube in XML",
        is_form=has_root("timedtext"),
        remedy=TO_SRT,
    ),
    Form(
        name="captions of YouTube in XML",
        is_form=has_root("transcript", mark="<text start="),
        remedy=TO_SRT,
    ),
    Form(
        name="WebVTT subtitles",
        is_form=begins_with(r"WEBVTT\b"),
        remedy=f"{_BESIDE} --text_suffix .vtt`",
        readers=(_FOLDER,),
    ),
    Form(
        name="SRT subtitles",
        is_form=is_srt,
        remedy=f"{_BESIDE} --text_suffix .srt`",
        readers=(_FOLDER,),
    ),
    SBV,
    Form(
        name="labels of Audacity",
        is_form=is_audacity,
        remedy=f"{_BESIDE}`",
        readers=(_FOLDER,),
    ),
    SEGMENT_TABLE,
)
_FORMS_OF_SPEECH_RESEARCH = (
    Form(
        name="an RTTM of NIST, which has no text",
        is_form=is_rttm,
        remedy="give the transcripts",
    ),
    Form(
        name="a CTM of NIST",
        is_form=is_ctm,
        remedy=TO_TABLE,
    ),
    Form(
        name="an STM of NIST",
        is_form=is_stm,
        remedy=TO_TABLE,
    ),
    Form(
        name="a Master Label File of HTK",
        is_form=begins_with("#!MLF!#"),
        remedy=TO_TABLE,
    ),
    Form(
        name="labels of HTK, whose times are units of 100 ns",
        is_form=is_htk,
        remedy=TO_TABLE,
    ),
    Form(
        name="labels of ESPS (xwaves, WaveSurfer)",
        is_form=is_esps,
        remedy=TO_TABLE,
    ),
    Form(
        name="a list of audio files, such as wav.scp of Kaldi",
        is_form=is_wav_scp,
        remedy=_KALDI,
    ),
    Form(
        name="a file `segments` of Kaldi",
        is_form=is_kaldi_segments,
        remedy=_KALDI,
    ),
    JSON_OF_SEGMENTS,
    JSON,
)
_DOCUMENTS = (
    Form(
        name="XML or HTML",
        is_form=is_xml,
        remedy="save it as plain text, or as SRT or WebVTT if it has times",
        is_annotation=False,
    ),
    Form(
        name="RTF",
        is_form=begins_with(r"\{\\rtf"),
        remedy="save it as plain text",
        is_annotation=False,
    ),
)

FORMS: Sequence[Form] = (
    *_FORMS_OF_LINGUISTS,
    *_SUBTITLES_AND_SEGMENTS,
    *_FORMS_OF_SPEECH_RESEARCH,
    *_DOCUMENTS,
)
"""The first form that fits counts."""
