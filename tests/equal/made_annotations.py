# SPDX-License-Identifier: Apache-2.0
"""The same annotations as files of ELAN, Praat and Kaldi, and as tables."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from made_audio import write_noise

RECORDING_S = 30.0
RECORDINGS = ("rec1", "rec 2")
SPEAKERS = ("Ana", "Beto")
TEXTS = (
    *(
        "Mo lu, ke!",
        "Ba mo (0.7) lu",
        "¿Ke re?",
        "lu ba",
        "Mo ke 'a",
        "ta pi",
        "pi ta mo",
        "re lu ke",
    ),
    *("Ba ba", "#", "", "Mo lu, ke!", "ta ke lu", "lu pi re", "Ke ta [laughs]", "mo ba ke"),
    *("re", "Pi, pi", "ke mo ta", "<p:>", "lu re ba", "ta re", "Mo ta", "ba pi ke lu"),
    *("ke ke", "Re ba mo", "pi lu", "mo pi", "ta ba re", "lu ke", "ba ta", "re re pi"),
)
_FIRST_MS = 400
_STEP_MS = 3400
_LENGTH_MS = 1500
_BETO_LATER_MS = 1600


@dataclass(frozen=True)
class Annotation:
    """A transcript of a part of a recording."""

    recording: str
    speaker: str
    start_ms: int
    end_ms: int
    text: str

    @property
    def start_s(self) -> float:
        """Begin in seconds."""
        return self.start_ms / 1000

    @property
    def end_s(self) -> float:
        """End in seconds."""
        return self.end_ms / 1000


def make_annotations() -> list[Annotation]:
    """Two speakers in two recordings, who take turns.

    Among them are pauses, an empty text and a text that occurs twice. The last three are two that
    overlap, and one that lies after the end of its recording.
    """
    annotations = []
    texts = iter(TEXTS)
    for recording in RECORDINGS:
        for turn in range(len(TEXTS) // 4):
            for speaker in SPEAKERS:
                later = _BETO_LATER_MS if speaker == "Beto" else 0
                start_ms = _FIRST_MS + turn * _STEP_MS + later
                end_ms = start_ms + _LENGTH_MS
                annotations.append(Annotation(recording, speaker, start_ms, end_ms, next(texts)))
    annotations.append(Annotation("rec1", "Ana", 29000, 29600, "ke ba"))
    annotations.append(Annotation("rec1", "Beto", 29300, 29900, "lu lu"))
    annotations.append(Annotation("rec 2", "Ana", 40000, 41000, "mo mo"))
    return annotations


def annotations_of(
    annotations: Sequence[Annotation],
    recording: str,
    speaker: str,
) -> list[Annotation]:
    """Those of one speaker in one recording."""
    chosen = []
    for annotation in annotations:
        if (annotation.recording, annotation.speaker) == (recording, speaker):
            chosen.append(annotation)
    return chosen


def write_recordings(folder: Path, suffix: str = ".wav") -> None:
    """The audio of all recordings."""
    for recording in RECORDINGS:
        write_noise(folder / f"{recording}{suffix}", RECORDING_S)


# ---- ELAN


def write_elan(folder: Path, annotations: Sequence[Annotation]) -> None:
    """An .eaf per recording: a tier per speaker, a tier of words below it, and a tier of notes."""
    folder.mkdir(parents=True, exist_ok=True)
    for recording in RECORDINGS:
        document = _ElanDocument()
        for speaker in SPEAKERS:
            document.add_speaker(speaker, annotations_of(annotations, recording, speaker))
        document.add_notes()
        text = document.to_xml(media=f"file:///D:/Daten/{recording}.wav")
        (folder / f"{recording}.eaf").write_text(text, "utf-8")


class _ElanDocument:
    """The XML of an .eaf file, part by part."""

    def __init__(self) -> None:
        self.slots: list[str] = []
        self.tiers: list[str] = []
        self.num_annotations = 0

    def add_speaker(self, speaker: str, annotations: Sequence[Annotation]) -> None:
        """A tier `utterance@SPEAKER`, and `word@SPEAKER` with the words of each utterance."""
        utterances = []
        words = []
        for annotation in annotations:
            parent = self._next_id()
            utterances.append(self._alignable(parent, annotation))
            previous = ""
            for word in annotation.text.split():
                own = self._next_id()
                after = f' PREVIOUS_ANNOTATION="{previous}"' if previous else ""
                words.append(
                    f'<ANNOTATION><REF_ANNOTATION ANNOTATION_ID="{own}" ANNOTATION_REF="{parent}"'
                    f"{after}><ANNOTATION_VALUE>{escape(word)}</ANNOTATION_VALUE>"
                    "</REF_ANNOTATION></ANNOTATION>"
                )
                previous = own
        self._add_tier(f"utterance@{speaker}", "utterance", speaker, utterances)
        self._add_tier(f"word@{speaker}", "words", speaker, words, f"utterance@{speaker}")

    def add_notes(self) -> None:
        """A tier without a participant."""
        note = Annotation("", "", 100, 900, "wind")
        self._add_tier("notes", "note", "", [self._alignable(self._next_id(), note)])

    def to_xml(self, media: str) -> str:
        """The document, whose media link is of another computer."""
        types = []
        for name, constraint in (
            ("utterance", ""),
            ("note", ""),
            ("words", "Symbolic_Subdivision"),
        ):
            dependent = f' CONSTRAINTS="{constraint}"' if constraint else ""
            alignable = "false" if constraint else "true"
            attributes = f'LINGUISTIC_TYPE_ID="{name}" TIME_ALIGNABLE="{alignable}"{dependent}'
            types.append(f"<LINGUISTIC_TYPE {attributes}/>")
        lines = [
            '<?xml version="1.0" encoding="UTF-8"?>',
            '<ANNOTATION_DOCUMENT AUTHOR="" DATE="2020-01-01T00:00:00+00:00" VERSION="3.0">',
            '<HEADER MEDIA_FILE="" TIME_UNITS="milliseconds">',
            f'<MEDIA_DESCRIPTOR MEDIA_URL={quoteattr(media)} MIME_TYPE="audio/x-wav"/>',
            "</HEADER>",
            "<TIME_ORDER>",
            *self.slots,
            "</TIME_ORDER>",
            *self.tiers,
            *types,
            '<CONSTRAINT STEREOTYPE="Symbolic_Subdivision" DESCRIPTION="words of an utterance"/>',
            "</ANNOTATION_DOCUMENT>",
        ]
        return "\n".join(lines) + "\n"

    def _next_id(self) -> str:
        self.num_annotations += 1
        return f"a{self.num_annotations}"

    def _alignable(self, own: str, annotation: Annotation) -> str:
        references = []
        for time_ms in (annotation.start_ms, annotation.end_ms):
            slot = f"ts{len(self.slots) + 1}"
            self.slots.append(f'<TIME_SLOT TIME_SLOT_ID="{slot}" TIME_VALUE="{time_ms}"/>')
            references.append(slot)
        start, end = references
        return (
            f'<ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="{own}" TIME_SLOT_REF1="{start}" '
            f'TIME_SLOT_REF2="{end}"><ANNOTATION_VALUE>{escape(annotation.text)}</ANNOTATION_VALUE>'
            "</ALIGNABLE_ANNOTATION></ANNOTATION>"
        )

    def _add_tier(
        self,
        name: str,
        kind: str,
        participant: str,
        annotations: Sequence[str],
        parent: str = "",
    ) -> None:
        attributes = f'TIER_ID="{name}" LINGUISTIC_TYPE_REF="{kind}"'
        attributes += f' PARTICIPANT="{participant}"' if participant else ""
        attributes += f' PARENT_REF="{parent}"' if parent else ""
        self.tiers += [f"<TIER {attributes}>", *annotations, "</TIER>"]


# ---- Praat


@dataclass(frozen=True)
class Interval:
    """An interval of a TextGrid, in seconds."""

    start_s: float
    end_s: float
    text: str


def write_praat(folder: Path, annotations: Sequence[Annotation]) -> None:
    """A TextGrid per recording: the first in the long text form, the second in the short one."""
    folder.mkdir(parents=True, exist_ok=True)
    for recording in RECORDINGS:
        tiers: dict[str, list[Interval]] = {}
        for speaker in SPEAKERS:
            chosen = annotations_of(annotations, recording, speaker)
            tiers[speaker] = _intervals_of(chosen)
        is_long = recording == RECORDINGS[0]
        text = _long_textgrid(tiers) if is_long else _short_textgrid(tiers)
        (folder / f"{recording}.TextGrid").write_text(text, "utf-8")


def _intervals_of(annotations: Sequence[Annotation]) -> list[Interval]:
    """The annotations that lie in the recording, and empty intervals between them."""
    intervals = []
    end_s = 0.0
    for annotation in annotations:
        if annotation.end_s > RECORDING_S:
            continue
        intervals.append(Interval(end_s, annotation.start_s, ""))
        intervals.append(Interval(annotation.start_s, annotation.end_s, annotation.text))
        end_s = annotation.end_s
    intervals.append(Interval(end_s, RECORDING_S, ""))
    return intervals


def _short_textgrid(tiers: dict[str, list[Interval]]) -> str:
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "0", str(RECORDING_S)]
    lines += ["<exists>", str(len(tiers))]
    for name, intervals in tiers.items():
        lines += ['"IntervalTier"', f'"{name}"', "0", str(RECORDING_S), str(len(intervals))]
        for interval in intervals:
            text = interval.text.replace('"', '""')
            lines += [str(interval.start_s), str(interval.end_s), f'"{text}"']
    return "\n".join(lines) + "\n"


def _long_textgrid(tiers: dict[str, list[Interval]]) -> str:
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0"]
    lines += [f"xmax = {RECORDING_S}", "tiers? <exists>", f"size = {len(tiers)}", "item []:"]
    for number, (name, intervals) in enumerate(tiers.items(), start=1):
        lines += [f"    item [{number}]:", '        class = "IntervalTier"']
        lines += [f'        name = "{name}"', "        xmin = 0", f"        xmax = {RECORDING_S}"]
        lines.append(f"        intervals: size = {len(intervals)}")
        for index, interval in enumerate(intervals, start=1):
            text = interval.text.replace('"', '""')
            lines.append(f"        intervals [{index}]:")
            lines += [
                f"            xmin = {interval.start_s}",
                f"            xmax = {interval.end_s}",
            ]
            lines.append(f'            text = "{text}"')
    return "\n".join(lines) + "\n"


# ---- Kaldi and tables


def write_kaldi(folder: Path, annotations: Sequence[Annotation], audio: str) -> None:
    """A data folder with segments. `audio`: how wav.scp names the folder of the recordings."""
    folder.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[str]] = {"text": [], "segments": [], "utt2spk": [], "utt2lang": []}
    for annotation in annotations:
        recording = annotation.recording.replace(" ", "_")
        key = f"{annotation.speaker}-{recording}-{annotation.start_ms:06d}"
        lines["text"].append(f"{key} {annotation.text}")
        lines["segments"].append(f"{key} {recording} {annotation.start_s} {annotation.end_s}")
        lines["utt2spk"].append(f"{key} {annotation.speaker}")
        lines["utt2lang"].append(f"{key} mdw")
    lines["wav.scp"] = [f"{name.replace(' ', '_')} {audio}/{name}.wav" for name in RECORDINGS]
    for name, file_lines in lines.items():
        (folder / name).write_text("\n".join(file_lines) + "\n", "utf-8")


def rows_of(annotations: Sequence[Annotation]) -> list[dict[str, object]]:
    """The rows of a table: path, transcript, speaker, begin and end."""
    rows: list[dict[str, object]] = []
    for annotation in annotations:
        row: dict[str, object] = {
            "path": f"{annotation.recording}.wav",
            "sentence": annotation.text,
            "speaker": annotation.speaker,
            "start": annotation.start_s,
            "end": annotation.end_s,
        }
        rows.append(row)
    return rows


def write_delimited(path: Path, rows: Sequence[dict[str, object]], delimiter: str) -> None:
    """A CSV or TSV with the names of the columns; texts are in quotation marks."""
    lines = [delimiter.join(rows[0])]
    for row in rows:
        cells = []
        for value in row.values():
            is_text = isinstance(value, str)
            quoted = '"' + str(value).replace('"', '""') + '"'
            cells.append(quoted if is_text else str(value))
        lines.append(delimiter.join(cells))
    path.write_text("\n".join(lines) + "\n", "utf-8")


def write_json_lines(path: Path, rows: Sequence[dict[str, object]]) -> None:
    """One JSON object per line."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", "utf-8")
