# SPDX-License-Identifier: Apache-2.0
"""Transcribed recordings of a project, their corrections, and files of them for other programs.

PROJECT/transcribed/NAME.json is what `wenet-hs transcribe --record` wrote, and never changes.
NAME.corrections.json has the corrected texts by the number of the segment, and is written at every correction.
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
from wenet_hs.app.projects import Project
from wenet_hs.errors import DataError
from wenet_hs.files import one_field, write_atomic

FormatName = Literal["eaf", "TextGrid", "srt", "tsv", "txt"]
_CORRECTIONS = ".corrections.json"
_MAX_TEXT = 10_000
_MUTEX = threading.Lock()


@dataclass(frozen=True)
class Transcript:
    """A transcribed recording with its corrections."""

    name: str
    recording: TranscribedRecording
    source: Path
    """The file that was given: the recording, or an annotation file beside it."""
    corrections: dict[int, str]

    def corrected(self) -> TranscribedRecording:
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


def list_transcripts(project: Project) -> list[str]:
    """The names of the transcribed recordings."""
    paths = (project / "transcribed").glob("*.json")
    return sorted(path.stem for path in paths if not path.name.endswith(_CORRECTIONS))


def read_transcript(project: Project, name: str) -> Transcript:
    """The recording of this name. Raises DataError if there is none."""
    if name not in list_transcripts(project):
        raise DataError(f"recording {one_field(name)[:80]!r}", "not transcribed", "choose one in the list")
    path = project / "transcribed" / f"{name}.json"
    recording, source = read_record(path)
    return Transcript(name, recording, source, _read_corrections(path.with_name(f"{name}{_CORRECTIONS}")))


def _read_corrections(path: Path) -> dict[int, str]:
    if not path.is_file():
        return {}
    try:
        return {int(number): str(text) for number, text in json.loads(path.read_text("utf-8")).items()}
    except (ValueError, AttributeError) as error:
        raise DataError(path, "not a file of corrections", "restore it, or move it away") from error


def save_correction(project: Project, name: str, number: str, text: str) -> None:
    """Write the text of a segment to the disk; the text of the model removes the correction."""
    transcript = read_transcript(project, name)
    segments = transcript.recording.segments
    if not number.isdecimal() or len(number) > 8 or int(number) >= len(segments):
        raise DataError(f"segment {one_field(number)[:20]!r}", f"{name} has {len(segments)}", "load the page again")
    text = " ".join(text.split())
    if len(text) > _MAX_TEXT:
        raise DataError(f"segment {number}", f"more than {_MAX_TEXT:,} characters", "shorten the text")
    path = project / "transcribed" / f"{name}{_CORRECTIONS}"
    with _MUTEX:
        corrections = {**_read_corrections(path), int(number): text}
        if text == segments[int(number)].text:
            del corrections[int(number)]
        write_atomic(path, json.dumps(corrections, ensure_ascii=False, indent=1))


def export(transcript: Transcript, form: str) -> tuple[str, bytes]:
    """A file name and the content. An .eaf or .TextGrid that was given keeps all of its tiers."""
    if form not in get_args(FormatName):
        raise DataError(f"format {one_field(form)[:20]!r}", f"must be one of {', '.join(get_args(FormatName))}")
    recording, low = transcript.corrected(), DEFAULT_LOW_CONFIDENCE
    source = transcript.source if transcript.source.suffix.lower() == f".{form}".lower() else None
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{transcript.name}.{form}"
        if form == "eaf":
            write_eaf(path, recording, DEFAULT_TIER, low, source=source)
        elif form == "TextGrid":
            write_textgrid(path, make_tiers(recording, DEFAULT_TIER, low), recording.duration_s, source)
        elif form == "srt":
            write_srt(path, recording)
        elif form == "tsv":
            path.write_text(TSV_HEADER + tsv_lines(recording), "utf-8")
        else:
            path.write_text("".join(f"{segment.text}\n" for segment in recording.segments if segment.text), "utf-8")
        return path.name, path.read_bytes()
