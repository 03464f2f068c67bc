# SPDX-License-Identifier: Apache-2.0
"""Corrected texts of a transcribed recording, and files of it for other programs.

NAME.json is what `wenet-hs transcribe --record` wrote, and never changes. NAME.corrections.json beside it has the
corrected texts by the number of the segment, and is written at every correction.
"""

import json
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

from wenet_hs.annotation.eaf import write_eaf
from wenet_hs.annotation.recordings import TSV_HEADER, read_record, tsv_lines, write_srt
from wenet_hs.annotation.textgrid import write_textgrid
from wenet_hs.annotation.tiers import (
    DEFAULT_LOW_CONFIDENCE,
    DEFAULT_TIER,
    TranscribedRecording,
    TranscribedSegment,
    make_tiers,
)
from wenet_hs.errors import DataError
from wenet_hs.files import one_field, write_atomic

FormatName = Literal["eaf", "TextGrid", "srt", "tsv", "txt"]
CORRECTIONS = ".corrections.json"
_MAX_TEXT = 10_000
_MUTEX = threading.Lock()


@dataclass(frozen=True)
class CorrectedRecording:
    """A transcribed recording with its corrections."""

    path: Path
    """NAME.json."""
    recording: TranscribedRecording
    source: Path
    """The file that was given: the recording, or an annotation file beside it."""
    corrections: dict[int, str]

    @property
    def name(self) -> str:
        """NAME."""
        return self.path.stem

    def apply(self) -> TranscribedRecording:
        """The recording with the corrected texts. A word keeps its times if the number of words is the same."""
        segments = [
            _correct(one, self.corrections[number]) if number in self.corrections else one
            for number, one in enumerate(self.recording.segments)
        ]
        return replace(self.recording, segments=tuple(segments))


def _correct(segment: TranscribedSegment, text: str) -> TranscribedSegment:
    words = text.split()
    has_times = len(words) == len(segment.words)
    timed = [replace(old, text=new, confidence=1.0) for old, new in zip(segment.words, words, strict=has_times)]
    return replace(segment, text=text, words=tuple(timed) if has_times else (), confidence=None)


def read_corrected(path: Path) -> CorrectedRecording:
    """The recording of NAME.json with its corrections. Raises DataError if a file is damaged."""
    recording, source = read_record(path)
    return CorrectedRecording(path, recording, source, _read_corrections(path))


def _read_corrections(path: Path) -> dict[int, str]:
    path = path.with_name(f"{path.stem}{CORRECTIONS}")
    try:
        found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        return {int(number): str(text) for number, text in found.items()}
    except (ValueError, AttributeError) as error:
        raise DataError(path, "not a file of corrections", "restore it, or move it away") from error


def save_correction(path: Path, number: int, text: str) -> None:
    """Write the text of a segment of NAME.json to the disk; the text of the model removes the correction.

    Raises DataError for a number without a segment, or a text that is too long.
    """
    segments, text = read_record(path)[0].segments, " ".join(text.split())
    if not 0 <= number < len(segments) or len(text) > _MAX_TEXT:
        found = f"{path.stem} has {len(segments)} segments of at most {_MAX_TEXT:,} characters"
        raise DataError(f"segment {number}", found, "load the page again")
    with _MUTEX:
        corrections = {**_read_corrections(path), number: text}
        if text == segments[number].text:
            del corrections[number]
        content = json.dumps(corrections, ensure_ascii=False, indent=1)
        write_atomic(path.with_name(f"{path.stem}{CORRECTIONS}"), content)


def export_corrected(corrected: CorrectedRecording, form: str) -> bytes:
    """The content of NAME.FORM. An .eaf or .TextGrid that was given keeps all of its tiers."""
    if form not in get_args(FormatName):
        raise DataError(f"format {one_field(form)[:20]!r}", f"must be one of {', '.join(get_args(FormatName))}")
    recording, low = corrected.apply(), DEFAULT_LOW_CONFIDENCE
    if form == "tsv":
        return (TSV_HEADER + tsv_lines(recording)).encode()
    if form == "txt":
        return "".join(f"{segment.text}\n" for segment in recording.segments if segment.text).encode()
    source = corrected.source if corrected.source.suffix.lower() == f".{form}".lower() else None
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{corrected.name}.{form}"
        if form == "eaf":
            write_eaf(path, recording, DEFAULT_TIER, low, source=source)
        elif form == "TextGrid":
            write_textgrid(path, make_tiers(recording, DEFAULT_TIER, low), recording.duration_s, source)
        else:
            write_srt(path, recording)
        return path.read_bytes()
