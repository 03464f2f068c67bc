# SPDX-License-Identifier: Apache-2.0
"""Known forms of text files with annotations or transcripts: their rules, and what to do with them.

`FORMS` is the only table of them. Every command asks it: a reader of text before it parses a file,
a reader of audio after a file could not be read. So all give a file the same name and advice.

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
"""Of a file that are read to recognise it."""
_MAX_CHARACTERS = 1 << 16
"""Of a text that the rules see: they recognise a form by its beginning."""


@dataclass(frozen=True)
class Beginning:
    """The beginning of a file, as the rules see it."""

    path: Path
    text: str
    """Without white space before it; each line ends with \\n."""

    @property
    def suffix(self) -> str:
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


@dataclass(frozen=True)
class Form:
    """A form of file."""

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
    """The known form of a file, by its beginning; None: it is none of them.

    path: its suffix and name help to recognise it.
    content: the text, or the first bytes. Their encoding need not be known, because the signs of
        all forms are ASCII.
    """
    if isinstance(content, bytes):
        content = _decode_leniently(content)
    text = content.removeprefix("\ufeff")
    if len(text) > _MAX_CHARACTERS:
        whole_lines = text[:_MAX_CHARACTERS].rpartition("\n")[0]
        text = whole_lines or text[:_MAX_CHARACTERS]
    beginning = Beginning(path, "\n".join(text.splitlines()).lstrip())
    return next((form for form in FORMS if form.is_form(beginning)), None)


def check_form(path: Path, content: str | bytes, reader: str) -> Form | None:
    """The known form of a file that this command reads; None: it is none of the known forms.

    reader: the command, as in `Form.readers`.
    Raises DataError if the file has a form that other commands read, or none.
    """
    form = find_form(path, content)
    if form is not None and reader not in form.readers:
        raise DataError(path, form.name, form.remedy)
    return form


def find_form_of_file(path: Path) -> Form | None:
    """The known form of a file on the disk; None: it is none of them, or cannot be read."""
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
    """The text in UTF-16, where a byte order mark or the zero bytes of ASCII show it, or in UTF-8.

    Bytes that are wrong in it become U+FFFD.
    """
    head = content[:_MAX_BYTES]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return head.decode("utf-16", "replace")
    even, odd = head[:200:2], head[1:200:2]
    if odd and odd.count(0) > len(odd) / 2:
        return head.decode("utf-16-le", "replace")
    if even and even.count(0) > len(even) / 2:
        return head.decode("utf-16-be", "replace")
    return head.decode("utf-8-sig", "replace")


# ---- rules


_PROLOG = r"(?:\s++|(?><\?.*?\?>)|(?><!--.*?-->)|(?><!DOCTYPE[^<>\[]*(?:\[.*?\]\s*)?>))*+"
"""What may stand before the root of XML. Each item is atomic: it ends at its first end, so the time
is linear in their number."""
_ROOT = re.compile(rf"(?s){_PROLOG}<([A-Za-z][^<>]*)")
_NUMBER = r"\d*\.?\d+"
_RTTM = re.compile(rf"SPEAKER\s+\S+\s+\d+\s+{_NUMBER}\s")
_AUDIO_FILE = r"\S+\.(?:wav|flac|sph|mp3|ogg|opus|m4a)"
_PROGRAM = r"\S*\b(?:sph2pipe|sox|ffmpeg|flac|wav-copy|cat|gunzip|zcat|opusdec|mpg123|lame)\s"
_ARCHIVE = r"\S+\.ark:\d+(?:\[.*\])?"
_WAV_SCP = re.compile(rf"\S+\s+(?:{_AUDIO_FILE}|{_ARCHIVE}|{_PROGRAM}.*\|)")
_SEGMENTS = re.compile(rf"\S+\s+\S+\s+{_NUMBER}\s+{_NUMBER}(?:\s+\d+)?")
_MARKER = re.compile(r"\\[A-Za-z_]\w*(?:\s|$)")
_SALT_LINE = re.compile(r"[+\-=:;]\s?|[A-Z]\s")
_HTK_LABEL = re.compile(r"\d+\s+\d+\s+\S.*")
_SEGMENT_ROW = re.compile(rf".*,{_NUMBER},{_NUMBER}")
_ESPS_LABEL = re.compile(rf"{_NUMBER}\s+-?\d+(?:\s.*)?")
CLOCK = r"(?:\d+:)?\d{1,2}:\d{2}(?:[.,]\d{1,3})?"
"""mm:ss or h:mm:ss, with parts of a second or without."""
SBV_TIMES = re.compile(r"(?m)^[ \t]*(\d+:\d{2}:\d{2}\.\d{1,3}),(\d+:\d{2}:\d{2}\.\d{1,3})[ \t]*$")
"""The line of times of a caption in SBV, as YouTube writes it."""
AUDACITY_LABEL = re.compile(r"(-?\d+(?:[.,]\d+)?)\t(-?\d+(?:[.,]\d+)?)(?:\t(.*))?")
"""Begin, end and text. Audacity writes the frequencies of a label into a line after a backslash."""
SEGMENT_LIST = re.compile(r'"(?:\w*segments|transcription|utterances|monologues)"\s*:\s*\[\s*\{')
"""In JSON: the name of a list of segments, and its first one."""
SEGMENT_COLUMNS = {
    "start": ("start", "starttime", "begin", "begintime", "from", "onset", "tmin", "xmin"),
    "end": ("end", "endtime", "stop", "stoptime", "to", "offset", "tmax", "xmax"),
    "text": ("text", "transcript", "transcription", "sentence", "utterance", "words", "annotation"),
    "speaker": ("speaker", "spk", "speakerid", "speakername", "participant"),
}
"""Columns of a table of the segments of one recording: content → its usual names, without signs.

Speakers may be missing."""
_UNIT_OF_NAME = re.compile(
    r"(?i)(?<=[^\W\d_])[\W_]+(?:in[\W_]+)?(m?s(?:ecs?)?|(?:milli)?seconds?)\W*$"
)
"""At the end of a name of a column: `start_ms`, `Start (s)`, `Begin Time - msec`."""


def find_segment_column(name: str) -> str | None:
    """What a column of a table of segments has, by its name in any case; None: none of these."""
    plain_name = re.sub(r"[\W_]+", "", _UNIT_OF_NAME.sub("", name)).lower()
    contents = (content for content, names in SEGMENT_COLUMNS.items() if plain_name in names)
    return next(contents, None)


def find_unit_of_name(name: str) -> str | None:
    """`ms` or `s`, if the name of a column of times ends with a unit of them."""
    unit = _UNIT_OF_NAME.search(name)
    if unit is None:
        return None
    return "ms" if unit[1].lower().startswith("m") else "s"


def read_segment_header(line: str) -> list[str] | None:
    """The contents of the columns, if a line names those of a table of segments and no others."""
    contents = [find_segment_column(name) for name in re.split(r"[\t,;]", line)]
    known = [content for content in contents if content is not None]
    has_columns = {"start", "end", "text"} <= {*known}
    has_each_once = len({*known}) == len(contents)
    return known if has_columns and has_each_once else None


def begins(pattern: str) -> FormRule:
    """A rule: the text begins with a pattern."""
    compiled = re.compile(pattern)
    return lambda beginning: compiled.match(beginning.text) is not None


def has_root(*names: str, mark: str = "") -> FormRule:
    """A rule: XML with a root element of one of these names, and with `mark` in its beginning."""
    tag = re.compile(rf"(?:\w+:)?(?:{'|'.join(names)})(?![\w.:-])")
    return lambda beginning: tag.match(beginning.root) is not None and mark in beginning.text


def is_praat(object_class: str) -> FormRule:
    """A rule: a text file of Praat, long or short, with an object of a class of this pattern."""
    return begins(rf'.{{0,20}}"ooTextFile(?: short)?"\s+(?:Object class\s*=\s*)?"{object_class}\b')


def is_toolbox(beginning: Beginning) -> bool:
    r"""Whether the first line and half of all begin with a `\marker`: long lines are wrapped."""
    has_marker = [_MARKER.match(line) is not None for line in beginning.lines]
    return bool(has_marker) and has_marker[0] and sum(has_marker) >= len(has_marker) / 2


def is_salt(beginning: Beginning) -> bool:
    """Whether the first line has speakers after `$`, and most others a sign or an initial."""
    first, *others = beginning.lines or [""]
    num_coded = sum(_SALT_LINE.match(line) is not None for line in others)
    return re.match(r"\$\s*[^\W\d]", first) is not None and num_coded > len(others) / 2


def is_esps(beginning: Beginning) -> bool:
    """Whether the line `#` ends a header, and the next one begins with a time and a colour."""
    if "#" not in beginning.lines[:-1]:
        return False
    first_label = beginning.lines[beginning.lines.index("#") + 1]
    return _ESPS_LABEL.fullmatch(first_label) is not None


def is_htk(beginning: Beginning) -> bool:
    """Whether each line of a .lab or .rec has two whole numbers, and a label."""
    has_labels = bool(beginning.lines) and all(map(_HTK_LABEL.fullmatch, beginning.lines))
    return has_labels and beginning.suffix in (".lab", ".rec")


def is_ctm(beginning: Beginning) -> bool:
    """Whether most lines are `file channel begin duration word`."""
    return CTM.is_form_of(beginning.path, beginning.nist_lines, have_keys=False)


def is_stm(beginning: Beginning) -> bool:
    """Whether most lines are `file channel speaker begin end text`."""
    return STM.is_form_of(beginning.path, beginning.nist_lines, have_keys=False)


def is_rttm(beginning: Beginning) -> bool:
    """Whether the first line is `SPEAKER file channel begin …`."""
    return bool(beginning.nist_lines) and _RTTM.match(beginning.nist_lines[0] + " ") is not None


def is_wav_scp(beginning: Beginning) -> bool:
    """Whether each line has a key and the audio, which is a file or a command."""
    return bool(beginning.lines) and all(map(_WAV_SCP.fullmatch, beginning.lines))


def is_kaldi_segments(beginning: Beginning) -> bool:
    """Whether each line of a file `segments` has two names and two times."""
    has_segments = bool(beginning.lines) and all(map(_SEGMENTS.fullmatch, beginning.lines))
    return has_segments and beginning.path.name == "segments"


def is_json_of_segments(beginning: Beginning) -> bool:
    """Whether JSON has a list of objects whose name says that they are segments."""
    return is_json(beginning) and SEGMENT_LIST.search(beginning.text) is not None


def is_audacity(beginning: Beginning) -> bool:
    """Whether each line has a label of Audacity or its frequencies, and times have decimals."""
    lines = [line.strip(" ") for line in beginning.text.split("\n") if line.strip()]
    labels = [AUDACITY_LABEL.fullmatch(line) for line in lines if not line.startswith("\\\t")]
    has_decimals = any(label is not None and re.search(r"\d[.,]\d", label[1]) for label in labels)
    return has_decimals and None not in labels


def is_segment_table(beginning: Beginning) -> bool:
    """Whether the first line names SEGMENT_COLUMNS, or each line of a .csv is `text,begin,end`."""
    if not beginning.lines:
        return False
    if read_segment_header(beginning.lines[0]) is not None:
        return True
    return beginning.suffix == ".csv" and all(map(_SEGMENT_ROW.fullmatch, beginning.lines))


is_json = begins(r'[\[{]\s*["{]')
is_srt = begins(rf"(?:\d+[ \t]*\n)?[ \t]*{CLOCK} *--> *{CLOCK}")


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
_XML = r"(?s)<(?:[?!]|[A-Za-z][^<>]*>.*</[A-Za-z])"  # a transcript may begin with <laugh>

SBV = Form("SBV subtitles", begins(SBV_TIMES.pattern), f"{_BESIDE} --text_suffix .sbv`", (_FOLDER,))
SEGMENT_TABLE = Form(
    "a table of the segments of one recording",
    is_segment_table,
    f"{_BESIDE} --text_suffix .tsv` (or .csv)",
    (_FOLDER,),
)
JSON_OF_SEGMENTS = Form(
    "JSON with a list of segments per recording, as of Whisper, GigaSpeech or WenetSpeech",
    is_json_of_segments,
    f"write one object per segment, with path, text, start and end, and {_TABLE}",
    ("prepare table",),
)
JSON = Form("JSON", is_json, TO_TABLE, ("prepare table",), is_annotation=False)

FORMS: Sequence[Form] = (
    # Programs of linguists
    Form(
        "a transcript of CLAN (CHAT)",
        begins(r"@(?:UTF8|Begin|Font|PID|Window)|\*[A-Z][A-Z0-9]{2}:\t"),
        _TO_ELAN,
    ),
    Form(
        "a file of ELAN",
        has_root("ANNOTATION_DOCUMENT"),
        f"{_ELAN}, for which its name ends in .eaf",
        ("prepare elan",),
    ),
    Form(
        "a TextGrid of Praat",
        is_praat("TextGrid"),
        f"{_PRAAT}, for which its name ends in .TextGrid",
        ("prepare praat",),
    ),
    Form(
        "a Collection of Praat",
        is_praat("Collection"),
        f"open it in Praat, save each TextGrid as text file, and {_PRAAT}",
    ),
    Form(
        "a chronological TextGrid of Praat",
        begins('"Praat chronological TextGrid'),
        f"save it as text file in Praat, and {_PRAAT}",
    ),
    Form(
        "an object of Praat that is no TextGrid",
        is_praat(r"\w+"),
        f"save the TextGrid as text file in Praat, and {_PRAAT}",
    ),
    Form(
        "a binary file of Praat",
        begins("ooBinaryFile"),
        f"save it as text file in Praat, and {_PRAAT}",
    ),
    Form(
        "a transcript of EXMARaLDA",
        has_root("basic-transcription", "segmented-transcription"),
        f"export it as an ELAN file there, and {_ELAN}",
    ),
    Form(
        "a transcript of FOLKER",
        has_root("folker-transcription"),
        f"export it as an ELAN file in EXMARaLDA, and {_ELAN}",
    ),
    Form("a file of Transcriber", has_root("Trans"), _TO_ELAN),
    Form("a text of FLEx", has_root("document", mark="<interlinear-text"), _TO_ELAN),
    Form("a file of Toolbox", is_toolbox, _TO_ELAN),
    Form("a session of Phon", has_root("session", mark="phon.ling.mun.ca"), TO_TABLE),
    Form("a transcript of CLAN in XML (TalkBank)", has_root("CHAT", mark="talkbank"), TO_TABLE),
    Form("a text of Pangloss", has_root("TEXT", "WORDLIST", "ARCHIVE", mark="<FORM"), TO_TABLE),
    Form("a file of SPPAS", has_root("Document", mark="<Tier"), _TO_SPPAS),
    Form("a file of Annotation Pro", has_root("AnnotationSystemDataSet"), _TO_SPPAS),
    Form("a file of Anvil", has_root("annotation", mark="<specification"), _TO_SPPAS),
    Form("a file of NXT", has_root("root", mark="nite.sourceforge.net"), TO_TABLE),
    Form("a text of TEI", has_root("TEI", "teiCorpus"), TO_TABLE),
    Form("a transcript of SALT", is_salt, TO_TABLE),
    # Subtitles and lists of segments
    Form("SubStation subtitles", begins(r"\[(?:Script Info|V4\+? Styles)\]"), TO_SRT),
    Form("SubViewer subtitles", begins(r"(?i)\[(?:INFORMATION|SUBTITLE|BEGIN)\]"), TO_SRT),
    Form("MicroDVD subtitles, whose times are frames", begins(r"\{\d+\}\{\d*\}"), TO_SRT),
    Form("MPL2 subtitles", begins(r"\[\d+\]\[\d*\]"), TO_SRT),
    Form("TTML subtitles", has_root("tt", mark="ttml"), TO_SRT),
    Form("SAMI subtitles", has_root("SAMI"), TO_SRT),
    Form("captions of YouTube in XML", has_root("timedtext"), TO_SRT),
    Form("captions of YouTube in XML", has_root("transcript", mark="<text start="), TO_SRT),
    Form("WebVTT subtitles", begins(r"WEBVTT\b"), f"{_BESIDE} --text_suffix .vtt`", (_FOLDER,)),
    Form("SRT subtitles", is_srt, f"{_BESIDE} --text_suffix .srt`", (_FOLDER,)),
    SBV,
    Form("labels of Audacity", is_audacity, f"{_BESIDE}`", (_FOLDER,)),
    SEGMENT_TABLE,
    # Programs of speech researchers
    Form("an RTTM of NIST, which has no text", is_rttm, "give the transcripts"),
    Form("a CTM of NIST", is_ctm, TO_TABLE),
    Form("an STM of NIST", is_stm, TO_TABLE),
    Form("a Master Label File of HTK", begins("#!MLF!#"), TO_TABLE),
    Form("labels of HTK, whose times are units of 100 ns", is_htk, TO_TABLE),
    Form("labels of ESPS (xwaves, WaveSurfer)", is_esps, TO_TABLE),
    Form(
        "a list of audio files, such as wav.scp of Kaldi",
        is_wav_scp,
        _KALDI,
    ),
    Form("a file `segments` of Kaldi", is_kaldi_segments, _KALDI),
    JSON_OF_SEGMENTS,
    JSON,
    # Documents
    Form(
        "XML or HTML",
        begins(_XML),
        "save it as plain text, or as SRT or WebVTT if it has times",
        is_annotation=False,
    ),
    Form("RTF", begins(r"\{\\rtf"), "save it as plain text", is_annotation=False),
)
"""The first form that fits counts."""
