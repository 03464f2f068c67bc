# SPDX-License-Identifier: Apache-2.0
"""Corrected texts and borders of a transcribed recording, and files of it for other programs.

NAME.json is what `wenet-hs transcribe --record` wrote, and never changes. NAME.corrections.json
beside it is written at every correction. It maps the number of a segment (from 0) to its text, or
to an object with those of text, start, end and confirmed that a person gave. Two more keys are
`speaker`, the name of the speaker if one was given, and `segments`, a hash of the segments of
NAME.json, to which the numbers belong.
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

from wenet_hs.annotation.eaf import read_elan
from wenet_hs.annotation.eaf_writing import write_eaf
from wenet_hs.annotation.recordings import TSV_HEADER, Record, read_record, tsv_lines, write_srt
from wenet_hs.annotation.textgrid import read_textgrid, require_shift, write_textgrid
from wenet_hs.annotation.tiers import (
    DEFAULT_LOW_CONFIDENCE,
    DEFAULT_TIER,
    AnnotationFile,
    TimedSpan,
    TimedText,
    TranscribedRecording,
    TranscribedSegment,
    make_tiers,
)
from wenet_hs.base.files import one_field
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

FormatName = Literal["eaf", "TextGrid", "srt", "tsv", "txt"]
CORRECTIONS = ".corrections.json"
_SPEAKER = "speaker"  # two keys of the file of corrections
_SEGMENTS = "segments"
_MAX_TEXT = 10_000  # characters
_MAX_NAME = 100
_MIN_SEGMENT_S = 0.01
_MIN_WORD_S = 0.001
_MIN_SHARED_S = 0.1
"""Segments of two transcripts that overlap by more are of the same speech."""
_SAME_TIME_S = 0.00051
"""Two times are equal if they differ by less.

That is half of a millisecond, because times are rounded to whole ones, and a rest for floating
point.
"""
_FILE_MUTEX = threading.Lock()  # held from the reading of a file of corrections to its writing


@dataclass(frozen=True)
class Correction:
    """What a person stated about a segment."""

    text: str | None = None
    """None: the text is as it was transcribed. The same holds for both borders."""
    start: float | None = None
    """Seconds from the beginning of the recording."""
    end: float | None = None
    is_confirmed: bool = False
    """The person has confirmed the text."""

    @property
    def is_reviewed(self) -> bool:
        """Whether a person has corrected or confirmed the text."""
        return self.is_confirmed or self.text is not None

    def apply(self, segment: TranscribedSegment) -> TranscribedSegment:
        """The segment with the corrected text and borders.

        A reviewed segment has no confidence, and its words have confidence 1. Words keep their
        times, cut at the borders. There are no words if the reviewed text has another number of
        them, or if one of them is shorter than 1 ms within the borders.
        """
        start = segment.start if self.start is None else self.start
        end = segment.end if self.end is None else self.end
        text = segment.text if self.text is None else self.text
        confidence = segment.confidence
        words = segment.words
        if self.is_reviewed:
            confidence = None
            words = _replace_texts(words, text.split())
        words = _cut_words(words, start, end)
        return replace(segment, start=start, end=end, text=text, words=words, confidence=confidence)


def _replace_texts(words: Sequence[TimedText], texts: Sequence[str]) -> tuple[TimedText, ...]:
    """The words with new texts and confidence 1, which a person gave; none if the numbers differ."""
    if len(words) != len(texts):
        return ()
    pairs = zip(words, texts, strict=True)
    return tuple(replace(word, text=text, confidence=1.0) for word, text in pairs)


def _cut_words(words: Sequence[TimedText], start: float, end: float) -> tuple[TimedText, ...]:
    """The words cut at `start` and `end`; none if one of them is then shorter than 1 ms."""
    cut = list[TimedText]()
    for word in words:
        word_start = max(word.start, start)
        word_end = min(word.end, end)
        if word_end - word_start < _MIN_WORD_S:
            return ()
        cut.append(replace(word, start=word_start, end=word_end))
    return tuple(cut)


@dataclass(frozen=True)
class CorrectedRecording:
    """A transcribed recording with its corrections."""

    path: Path
    """NAME.json."""
    record: Record
    corrections: dict[int, Correction]
    """By the number of the segment, from 0."""
    speaker: str = ""
    """The speaker of the segments that name nobody; empty if it is not known."""

    @property
    def name(self) -> str:
        """NAME."""
        return self.path.stem

    @property
    def segments_hash(self) -> str:
        """A hash of the segments as they were transcribed."""
        segments = self.record.recording.segments
        return _hash([(segment.start, segment.end, segment.text) for segment in segments])

    def segment_hash(self, number: int) -> str:
        """A hash of a segment and its correction, which changes with them."""
        segment = self.record.recording.segments[number]
        correction = self.corrections.get(number)
        return _hash([segment.start, segment.end, segment.text, correction])

    def apply(self) -> TranscribedRecording:
        """The recording with the corrected texts and borders, and with the speaker.

        Corrections of segments that the recording does not have are left out.
        """
        segments = list[TranscribedSegment]()
        for number, segment in enumerate(self.record.recording.segments):
            correction = self.corrections.get(number)
            if correction is not None:
                segment = correction.apply(segment)
            if self.speaker and not segment.speaker:
                segment = replace(segment, speaker=self.speaker)
            segments.append(segment)
        return replace(self.record.recording, segments=tuple(segments))

    def training_segments(self) -> list[TranscribedSegment]:
        """The corrected segments with a text that a person has corrected or confirmed."""
        segments = list[TranscribedSegment]()
        for number, segment in enumerate(self.apply().segments):
            correction = self.corrections.get(number)
            if segment.text and correction is not None and correction.is_reviewed:
                segments.append(segment)
        return segments

    def training_rows(self) -> list[dict[str, str]]:
        """A row for `corpus.edits.write_added` of each of the `training_segments`.

        It has `audio`, `text`, `start` and `end` (seconds, three decimals), and `speaker` if the
        speaker is known.
        """
        rows = []
        for segment in self.training_segments():
            row = {
                "audio": str(self.record.recording.media),
                "text": segment.text,
                "start": f"{segment.start:.3f}",
                "end": f"{segment.end:.3f}",
            }
            if segment.speaker:
                row["speaker"] = segment.speaker
            rows.append(row)
        return rows

    @property
    def needs_speaker(self) -> bool:
        """Whether the speaker of one of the `training_segments` is not known."""
        return not all(segment.speaker for segment in self.training_segments())


# ---- reading


def read_corrected(path: Path, record: Record | None = None) -> CorrectedRecording:
    """The recording of NAME.json with its corrections.

    Args:
        path: NAME.json.
        record: the content of NAME.json, if it is known; None: it is read.

    Raises DataError if a file is damaged, or if the corrections are of other segments.
    """
    stored = _read_corrections(path)
    if record is None:
        record = read_record(path)
    corrected = CorrectedRecording(path, record, stored.corrections, stored.speaker)
    is_of_segments = stored.segments_hash in ("", corrected.segments_hash)  # empty: not known
    if not is_of_segments:
        found = f"made for other segments than those of {path.name}"
        raise DataError(_corrections_path(path), found, "restore these, or move it away")
    return corrected


def count_reviewed(path: Path) -> int:
    """The number of segments of NAME.json whose text a person has corrected or confirmed.

    Raises DataError if the file of corrections is damaged.
    """
    corrections = _read_corrections(path).corrections.values()
    return sum(correction.is_reviewed for correction in corrections)


def refuse_double(recordings: Sequence[CorrectedRecording]) -> None:
    """Raise DataError if the same speech would be used for training twice.

    That is the case if segments of two transcripts of one recording, which a person has corrected
    or confirmed, overlap by more than 0.1 s.
    """
    for first, second in combinations(recordings, 2):
        media = first.record.recording.media
        if second.record.recording.media != media:
            continue
        pairs = product(_training_spans(first), _training_spans(second))
        for (first_start, first_end), (second_start, second_end) in pairs:
            shared_start = max(first_start, second_start)
            shared_end = min(first_end, second_end)
            if shared_end - shared_start > _MIN_SHARED_S:
                found = f"corrected in {first.name} and in {second.name}, at {shared_start:.1f} s"
                raise DataError(media, found, "take back the correction in one of them")


def _training_spans(recording: CorrectedRecording) -> list[tuple[float, float]]:
    """Start and end in seconds of each of the `training_rows`, rounded as they are written."""
    return [(float(row["start"]), float(row["end"])) for row in recording.training_rows()]


@dataclass(frozen=True)
class _StoredCorrections:
    """The content of NAME.corrections.json."""

    corrections: dict[int, Correction]
    """By the number of the segment, from 0."""
    speaker: str
    """Empty: nobody was named."""
    segments_hash: str
    """Of the segments that were corrected; empty: it is not known."""


def _read_corrections(path: Path) -> _StoredCorrections:
    """The corrections of NAME.json; there are none if their file does not exist.

    Raises DataError if the file has another content.
    """
    file = _corrections_path(path)
    try:
        content = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        speaker = str(content.pop(_SPEAKER, ""))
        segments_hash = str(content.pop(_SEGMENTS, ""))
        # All other keys are numbers of segments.
        corrections = {int(key): _read_correction(value) for key, value in content.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise DataError(file, "not a file of corrections", "restore it, or move it away") from error
    return _StoredCorrections(corrections, speaker, segments_hash)


def _read_correction(value: Any) -> Correction:
    """A correction as it is stored: a text, or an object.

    Raises ValueError, AttributeError or TypeError for another value.
    """
    if isinstance(value, str):
        return Correction(value)
    return Correction(
        text=str(value["text"]) if "text" in value else None,
        start=_finite(value["start"]) if "start" in value else None,
        end=_finite(value["end"]) if "end" in value else None,
        is_confirmed=value.get("confirmed") is True,
    )


def _finite(value: Any) -> float:
    """The number. Raises ValueError for NaN and inf, ValueError or TypeError for no number."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("times are not finite")
    return number


def _corrections_path(path: Path) -> Path:
    """NAME.corrections.json of NAME.json."""
    return path.with_name(f"{path.stem}{CORRECTIONS}")


def _hash(values: Sequence[object]) -> str:
    """16 hexadecimal digits of the SHA-256 of what Python prints for the values."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


# ---- writing


def save_speaker(path: Path, speaker: str) -> None:
    """Write the name of the speaker of NAME.json into its file of corrections.

    White space in it becomes single spaces. Raises DataError for a name that is too long, or a
    file that is damaged.
    """
    speaker = " ".join(one_field(speaker).split())
    if len(speaker) > _MAX_NAME:
        found = f"longer than {_MAX_NAME} characters"
        raise DataError(f"speaker {speaker[:40]!r}", found, "shorten the name")
    with _FILE_MUTEX:
        _write(replace(read_corrected(path), speaker=speaker))


def save_correction(
    path: Path, number: int, correction: Correction, *, seen: str | None = None
) -> str:
    """Write the correction of a segment of NAME.json into its file of corrections.

    A text or a border that is as it was transcribed is not stored. If nothing else is left, the
    segment has no correction.

    Args:
        path: NAME.json.
        number: the segment, from 0.
        seen: the `segment_hash` of what the person has changed; None: it is not known.

    Returns the new `segment_hash`. Raises DataError for a number without a segment, a text that is
    too long, a segment that is not as it was seen, wrong borders (see `_check_borders`), or a file
    that is damaged.
    """
    text = None if correction.text is None else " ".join(correction.text.split())
    text_length = 0 if text is None else len(text)
    with _FILE_MUTEX:
        recording = read_corrected(path)
        segments = recording.record.recording.segments
        is_segment = 0 <= number < len(segments)
        if not is_segment or text_length > _MAX_TEXT:
            limits = f"{path.stem} has {len(segments)} segments of at most {_MAX_TEXT:,} characters"
            raise DataError(f"segment {number + 1}", limits, "load the page again")
        is_as_seen = seen is None or seen == recording.segment_hash(number)
        if not is_as_seen:
            found = "changed in another tab since"
            raise DataError(f"segment {number + 1}", found, "load the page again")

        transcribed = segments[number]
        stored = replace(
            correction,
            text=None if text == transcribed.text else text,
            start=_changed_time(correction.start, transcribed.start),
            end=_changed_time(correction.end, transcribed.end),
        )
        _check_borders(recording, number, stored)

        corrections = {**recording.corrections, number: stored}
        is_empty = stored == Correction()
        if is_empty:
            del corrections[number]
        recording = replace(recording, corrections=corrections)
        _write(recording)
        return recording.segment_hash(number)


def _changed_time(time: float | None, transcribed: float) -> float | None:
    """A border in whole milliseconds; None if it is as it was transcribed."""
    if time is None or abs(time - transcribed) < _SAME_TIME_S:
        return None
    return round(time, 3)


def _check_borders(recording: CorrectedRecording, number: int, correction: Correction) -> None:
    """Check the borders of the segment `number` after a new correction, if it changes them.

    Raises DataError if the segment is too short, is not within the recording, or crosses one of the
    same speaker before or after it.
    """
    duration_s = recording.record.recording.duration_s
    segments = recording.apply().segments
    old = segments[number]
    new = correction.apply(recording.record.recording.segments[number])
    if (new.start, new.end) == (old.start, old.end):
        return
    where = f"segment {number + 1}: {new.start:.3f} to {new.end:.3f} s"
    is_long_enough = new.end - new.start >= _MIN_SEGMENT_S  # a time that is NaN is not, either
    if not is_long_enough:
        found = f"shorter than {_MIN_SEGMENT_S:g} s"
        raise DataError(where, found, "the end must be after the begin")
    if new.start < 0 or new.end > duration_s:
        found = f"outside of the recording of {duration_s:.3f} s"
        raise DataError(where, found, "choose times within it")
    for other_number, other in enumerate(segments):
        if other_number == number or other.speaker != old.speaker:
            continue
        is_before = other_number < number
        is_crossed = new.start < other.end if is_before else new.end > other.start
        if is_crossed:
            found = f"crosses segment {other_number + 1}, {other.start:.3f} to {other.end:.3f} s"
            raise DataError(where, found, "move its border first")


def _write(recording: CorrectedRecording) -> None:
    """Write NAME.corrections.json: the hash, the speaker, and the corrections by their numbers."""
    content: dict[str, object] = {_SEGMENTS: recording.segments_hash}
    if recording.speaker:
        content[_SPEAKER] = recording.speaker
    for number, correction in sorted(recording.corrections.items()):
        content[str(number)] = _to_json(correction)
    text = json.dumps(content, ensure_ascii=False, indent=1)
    write_atomic(_corrections_path(recording.path), text)


def _to_json(correction: Correction) -> str | dict[str, object]:
    """A correction as it is stored: what a person gave; the text only, if it is nothing else."""
    values: dict[str, object] = {}
    if correction.text is not None:
        values["text"] = correction.text
    if correction.start is not None:
        values["start"] = correction.start
    if correction.end is not None:
        values["end"] = correction.end
    if correction.is_confirmed:
        values["confirmed"] = True
    if correction.text is not None and len(values) == 1:
        return correction.text
    return values


# ---- the annotation file that was given


def read_given(source: Path) -> AnnotationFile:
    """The tiers of the .eaf or .TextGrid that was given instead of its recording.

    Raises DataError if it cannot be read.
    """
    return read_elan(source) if source.suffix.lower() == ".eaf" else read_textgrid(source)


def annotations_beside(
    given: AnnotationFile, duration_s: float, segments: Sequence[TranscribedSegment]
) -> list[list[tuple[str, str]]]:
    """What the tiers of a given file have at the time of each segment, such as a translation.

    Args:
        given: an ELAN file or a TextGrid of the recording.
        duration_s: seconds of the recording.

    Returns one list per segment: name and text of each tier that has a text at this time. Several
    annotations of a tier are joined by a space.

    Raises DataError if `given` is a TextGrid whose times do not fit the recording.
    """
    _, end_of_grid = given.extent
    is_textgrid = bool(end_of_grid)  # an ELAN file has no extent
    shift_s = require_shift(given, duration_s) if is_textgrid else 0.0
    spans_by_tier = [(tier.name, tier.timed_spans) for tier in given.tiers]
    texts_by_segment = []
    for segment in segments:
        start = segment.start - shift_s  # in times of the given file
        end = segment.end - shift_s
        texts = []
        for name, spans in spans_by_tier:
            text = " ".join(span.text for span in spans if _is_beside(span, start, end))
            if text:
                texts.append((name, text))
        texts_by_segment.append(texts)
    return texts_by_segment


def _is_beside(span: TimedSpan, start: float, end: float) -> bool:
    """Whether an annotation has a text, and a time in common with the seconds from start to end."""
    span_end = max(span.end, span.begin + 1e-6)  # a point is at the time where it begins
    return bool(span.text.strip()) and span.begin < end and start < span_end


# ---- other programs


def export_corrected(corrected: CorrectedRecording, form: str) -> bytes:
    """The content of the file NAME.FORM for a corrected recording.

    FORM is one of `FormatName`. If the recording was given as an .eaf or a .TextGrid, and `form` is
    the same, the content has all tiers of the given file, and new ones. Segments without a text are
    not in an srt and a txt.

    Raises DataError for another form, or if the given file cannot be read.
    """
    if form not in get_args(FormatName):
        where = f"format {one_field(form)[:20]!r}"
        raise DataError(where, f"must be one of {', '.join(get_args(FormatName))}")
    recording = corrected.apply()
    if form == "tsv":
        return (TSV_HEADER + tsv_lines(recording)).encode()
    if form == "txt":
        texts = [segment.text for segment in recording.segments if segment.text]
        return "".join(f"{text}\n" for text in texts).encode()
    given_file = corrected.record.source
    is_given_in_form = given_file.suffix.lower() == f".{form.lower()}"
    source = given_file if is_given_in_form else None  # whose tiers are kept
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{corrected.name}.{form}"
        if form == "eaf":
            write_eaf(path, recording, DEFAULT_TIER, DEFAULT_LOW_CONFIDENCE, source=source)
        elif form == "TextGrid":
            tiers = make_tiers(recording, DEFAULT_TIER, DEFAULT_LOW_CONFIDENCE)
            write_textgrid(path, tiers, recording.duration_s, source)
        else:
            write_srt(path, recording)
        return path.read_bytes()
