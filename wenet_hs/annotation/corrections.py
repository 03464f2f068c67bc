# SPDX-License-Identifier: Apache-2.0
"""Corrected texts and borders of a transcribed recording, and files of it for other programs.

NAME.json is what `wenet-hs transcribe --record` wrote, and never changes. NAME.corrections.json
beside it is written at every correction: number of the segment → its text, or an object with those
of text, start, end and confirmed that a person gave. It also has the name of the `speaker`, if one
was given, and in `segments` a hash of the segments of NAME.json, to which the numbers belong.
"""

import hashlib
import json
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

from wenet_hs.annotation.eaf import read_elan, write_eaf
from wenet_hs.annotation.recordings import TSV_HEADER, Record, read_record, tsv_lines, write_srt
from wenet_hs.annotation.textgrid import find_shift, read_textgrid, write_textgrid
from wenet_hs.annotation.tiers import (
    DEFAULT_LOW_CONFIDENCE,
    DEFAULT_TIER,
    AnnotationFile,
    TranscribedRecording,
    TranscribedSegment,
    make_tiers,
)
from wenet_hs.base.files import one_field
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

FormatName = Literal["eaf", "TextGrid", "srt", "tsv", "txt"]
CORRECTIONS = ".corrections.json"
_MAX_TEXT, _MAX_NAME = 10_000, 100
_SEGMENTS = "segments"
_MIN_SEGMENT_S = 0.01
_SAME_S = 0.1
"""Segments of two transcripts that overlap by more are of the same speech."""
_ROUNDED_S = 0.00051  # of times with three decimals, and a rest for floating point
_MUTEX = threading.Lock()


@dataclass(frozen=True)
class Correction:
    """What a person stated about a segment."""

    text: str | None = None
    """None: as it was transcribed; of the borders too."""
    start: float | None = None
    end: float | None = None
    is_confirmed: bool = False
    """The text is right."""

    @property
    def is_reviewed(self) -> bool:
        """Whether a person has corrected or confirmed the text."""
        return self.is_confirmed or self.text is not None

    def apply(self, segment: TranscribedSegment) -> TranscribedSegment:
        """The corrected segment.

        Its words keep their times if their number is the same and they are within it.
        """
        start = segment.start if self.start is None else self.start
        end = segment.end if self.end is None else self.end
        text = segment.text if self.text is None else self.text
        words = segment.words
        if self.is_reviewed:
            new = text.split() if len(text.split()) == len(words) else []
            words = tuple(
                replace(old, text=one, confidence=1.0) for old, one in zip(words, new, strict=False)
            )
        words = tuple(
            replace(one, start=max(one.start, start), end=min(one.end, end)) for one in words
        )
        if any(one.end - one.start < 0.001 for one in words):
            words = ()
        confidence = None if self.is_reviewed else segment.confidence
        return replace(segment, start=start, end=end, text=text, words=words, confidence=confidence)


@dataclass(frozen=True)
class CorrectedRecording:
    """A transcribed recording with its corrections."""

    path: Path
    """NAME.json."""
    record: Record
    corrections: dict[int, Correction]
    speaker: str = ""
    """Who speaks, where the segments name nobody."""

    @property
    def name(self) -> str:
        """NAME."""
        return self.path.stem

    @property
    def segments_hash(self) -> str:
        """A hash of the segments as they were transcribed."""
        return _hash([(one.start, one.end, one.text) for one in self.record.recording.segments])

    def segment_hash(self, number: int) -> str:
        """A hash of a segment and its correction, which changes with them."""
        one = self.record.recording.segments[number]
        return _hash([one.start, one.end, one.text, self.corrections.get(number)])

    def apply(self) -> TranscribedRecording:
        """The recording with the corrected texts and borders."""
        segments = [*self.record.recording.segments]
        for number in self.corrections.keys() & {*range(len(segments))}:
            segments[number] = self.corrections[number].apply(segments[number])
        if self.speaker:
            segments = [
                one if one.speaker else replace(one, speaker=self.speaker) for one in segments
            ]
        return replace(self.record.recording, segments=tuple(segments))

    def training_rows(self) -> list[dict[str, str]]:
        """Rows for `corpus.edits.write_added`: the segments with a text that a person has corrected
        or confirmed.
        """
        media = str(self.record.recording.media)
        return [
            {"audio": media, "text": one.text, "start": f"{one.start:.3f}", "end": f"{one.end:.3f}"}
            | ({"speaker": one.speaker} if one.speaker else {})
            for number, one in enumerate(self.apply().segments)
            if one.text and self.corrections.get(number, Correction()).is_reviewed
        ]

    @property
    def needs_speaker(self) -> bool:
        """Whether the speaker of a row of `training_rows` is not known."""
        return any("speaker" not in row for row in self.training_rows())


def read_corrected(path: Path, record: Record | None = None) -> CorrectedRecording:
    """The recording of NAME.json with its corrections.

    Raises DataError if a file is damaged or of other segments.

    `record`: the content of NAME.json, if it is known.
    """
    corrections, speaker, made_for = _read_corrections(path)
    found = CorrectedRecording(path, record or read_record(path), corrections, speaker)
    if made_for not in ("", found.segments_hash):
        file = _corrections_path(path)
        raise DataError(
            file,
            f"made for other segments than those of {path.name}",
            "restore these, or move it away",
        )
    return found


def refuse_double(recordings: Sequence[CorrectedRecording]) -> None:
    """Raise DataError if rows of two transcripts of one recording are of the same speech: it would
    count twice.
    """

    def spans(of: CorrectedRecording) -> list[tuple[float, float]]:
        return [(float(row["start"]), float(row["end"])) for row in of.training_rows()]

    for one, other in combinations(recordings, 2):
        media = one.record.recording.media
        pairs = product(spans(one), spans(other)) if media == other.record.recording.media else ()
        for (begin, end), (start, stop) in pairs:
            if min(end, stop) - max(begin, start) > _SAME_S:
                found = f"corrected in {one.name} and in {other.name}, at {max(begin, start):.1f} s"
                raise DataError(media, found, "take back the correction in one of them")


def count_reviewed(path: Path) -> int:
    """The segments of NAME.json whose text a person has corrected or confirmed.

    Raises DataError.
    """
    return sum(one.is_reviewed for one in _read_corrections(path)[0].values())


def _corrections_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}{CORRECTIONS}")


def _hash(values: Sequence[object]) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def _read_corrections(path: Path) -> tuple[dict[int, Correction], str, str]:
    """The corrections of NAME.json by the number of the segment, the speaker, and the hash of the
    segments.
    """
    path = _corrections_path(path)
    try:
        found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        speaker, made_for = str(found.pop("speaker", "")), str(found.pop(_SEGMENTS, ""))
        return (
            {int(number): _read_correction(value) for number, value in found.items()},
            speaker,
            made_for,
        )
    except (ValueError, AttributeError, TypeError) as error:
        raise DataError(path, "not a file of corrections", "restore it, or move it away") from error


def _read_correction(value: Any) -> Correction:
    """Raises ValueError, AttributeError or TypeError for another value."""
    if isinstance(value, str):
        return Correction(value)
    times = {name: float(value[name]) for name in ("start", "end") if name in value}
    if not all(map(math.isfinite, times.values())):
        raise ValueError("times are not finite")
    text = str(value["text"]) if "text" in value else None
    return Correction(text, times.get("start"), times.get("end"), value.get("confirmed") is True)


def _write(found: CorrectedRecording) -> None:
    content: dict[str, Any] = {_SEGMENTS: found.segments_hash}
    content |= {"speaker": found.speaker} if found.speaker else {}
    for number, one in sorted(found.corrections.items()):
        given = {
            "text": one.text,
            "start": one.start,
            "end": one.end,
            "confirmed": one.is_confirmed or None,
        }
        values = {name: value for name, value in given.items() if value is not None}
        content[str(number)] = one.text if [*values] == ["text"] else values
    write_atomic(_corrections_path(found.path), json.dumps(content, ensure_ascii=False, indent=1))


def save_speaker(path: Path, speaker: str) -> None:
    """Write the name of the speaker of NAME.json to the disk.

    Raises DataError for one that is too long.
    """
    speaker = " ".join(one_field(speaker).split())
    if len(speaker) > _MAX_NAME:
        raise DataError(
            f"speaker {speaker[:40]!r}", f"longer than {_MAX_NAME} characters", "shorten the name"
        )
    with _MUTEX:
        _write(replace(read_corrected(path), speaker=speaker))


def save_correction(
    path: Path, number: int, correction: Correction, *, seen: str | None = None
) -> str:
    """Write the correction of a segment of NAME.json to the disk.

    What is as it was transcribed is no correction.

    Args:
        seen: the `segment_hash` of what the person has changed; None: not known.

    Returns its new `segment_hash`. Raises DataError for a number without a segment, a text that is
    too long, borders that leave the recording or are beyond those of the segments before and after
    it, or if the segment is not as it was seen.
    """
    with _MUTEX:
        found = read_corrected(path)
        segments = found.record.recording.segments
        text = None if correction.text is None else " ".join(correction.text.split())
        if not 0 <= number < len(segments) or len(text or "") > _MAX_TEXT:
            limits = f"{path.stem} has {len(segments)} segments of at most {_MAX_TEXT:,} characters"
            raise DataError(f"segment {number + 1}", limits, "load the page again")
        if seen not in (None, found.segment_hash(number)):
            raise DataError(
                f"segment {number + 1}", "changed in another tab since", "load the page again"
            )
        old = segments[number]
        start, end = (
            None if value is None or abs(value - was) < _ROUNDED_S else round(value, 3)
            for value, was in ((correction.start, old.start), (correction.end, old.end))
        )
        new = replace(correction, text=None if text == old.text else text, start=start, end=end)
        _check_borders(found, number, new)
        others = {other: one for other, one in found.corrections.items() if other != number}
        found = replace(found, corrections=others | ({} if new == Correction() else {number: new}))
        _write(found)
        return found.segment_hash(number)


def _check_borders(found: CorrectedRecording, number: int, correction: Correction) -> None:
    """Raise DataError if new borders leave the recording or cross a segment of the speaker before
    or after.
    """
    applied, end_s = found.apply().segments, found.record.recording.duration_s
    now, new = applied[number], correction.apply(found.record.recording.segments[number])
    if (new.start, new.end) == (now.start, now.end):
        return
    where = f"segment {number + 1}: {new.start:.3f} to {new.end:.3f} s"
    if not new.end - new.start >= _MIN_SEGMENT_S:
        raise DataError(
            where, f"shorter than {_MIN_SEGMENT_S:g} s", "the end must be after the begin"
        )
    if new.start < 0 or new.end > end_s:
        raise DataError(
            where, f"outside of the recording of {end_s:.3f} s", "choose times within it"
        )
    for other, one in enumerate(applied):
        is_beyond = new.start < one.end if other < number else new.end > one.start
        if other != number and one.speaker == now.speaker and is_beyond:
            found_at = f"crosses segment {other + 1}, {one.start:.3f} to {one.end:.3f} s"
            raise DataError(where, found_at, "move its border first")


# ---- the annotation file that was given


def read_given(source: Path) -> AnnotationFile:
    """The tiers of the .eaf or .TextGrid that was given instead of its recording.

    Raises DataError.
    """
    return read_elan(source) if source.suffix.lower() == ".eaf" else read_textgrid(source)


def annotations_beside(
    given: AnnotationFile, duration_s: float, segments: Sequence[TranscribedSegment]
) -> list[list[tuple[str, str]]]:
    """Of each segment: name and text of the tiers with annotations at the same time, such as a
    translation.
    """
    shift = find_shift(*given.extent, duration_s) if given.extent[1] else 0.0
    if isinstance(shift, str):
        raise DataError(given.path, shift)
    tiers = [
        (tier.name, [one for one in tier.timed_spans if one[2].strip()]) for tier in given.tiers
    ]
    beside = []
    for one in segments:
        begin, end = one.start - shift, one.end - shift
        texts = [
            (
                name,
                " ".join(
                    text
                    for first, last, text in spans
                    if first < end and begin < max(last, first + 1e-6)
                ),
            )
            for name, spans in tiers
        ]
        beside.append([(name, text) for name, text in texts if text])
    return beside


# ---- other programs


def export_corrected(corrected: CorrectedRecording, form: str) -> bytes:
    """The content of NAME.FORM. An .eaf or .TextGrid that was given keeps all of its tiers."""
    if form not in get_args(FormatName):
        raise DataError(
            f"format {one_field(form)[:20]!r}", f"must be one of {', '.join(get_args(FormatName))}"
        )
    recording, low = corrected.apply(), DEFAULT_LOW_CONFIDENCE
    if form == "tsv":
        return (TSV_HEADER + tsv_lines(recording)).encode()
    if form == "txt":
        return "".join(
            f"{segment.text}\n" for segment in recording.segments if segment.text
        ).encode()
    source = (
        corrected.record.source
        if corrected.record.source.suffix.lower() == f".{form}".lower()
        else None
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{corrected.name}.{form}"
        if form == "eaf":
            write_eaf(path, recording, DEFAULT_TIER, low, source=source)
        elif form == "TextGrid":
            write_textgrid(
                path, make_tiers(recording, DEFAULT_TIER, low), recording.duration_s, source
            )
        else:
            write_srt(path, recording)
        return path.read_bytes()
