# SPDX-License-Identifier: Apache-2.0
"""The recording of a user's annotation file, and transcribed recordings as SRT, CTM, TSV and JSON."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wenet_hs.annotation.eaf import LinkedMedia, find_offset_fault, read_eaf, read_media
from wenet_hs.annotation.textgrid import read_textgrid, require_shift
from wenet_hs.annotation.tiers import TimedText, TranscribedRecording, TranscribedSegment
from wenet_hs.base.files import one_field, read_bytes
from wenet_hs.data.media import MediaFinder
from wenet_hs.text.units import SPACE
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

ANNOTATED = (".eaf", ".textgrid")
"""Suffixes of annotation files, which may be given instead of their recording."""


def find_media(path: Path, audio_dir: Path | None = None) -> Path:
    """The recording of an .eaf or .TextGrid, found by `MediaFinder`.

    A path with another suffix is that of a recording, and is returned as it is.

    Args:
        audio_dir: the folder to search; None: the folder of the file.

    Raises DataError if there is no recording, if the only one has another offset in the .eaf, or if
    the file cannot be read.
    """
    if not is_annotation_file(path):
        return path
    media = _read_linked_media(path)
    recording_or_fault = MediaFinder(audio_dir).find(media.paths, path.parent)
    if isinstance(recording_or_fault, str):
        raise _make_no_recording_error(path, recording_or_fault)
    recording = recording_or_fault
    offset_fault = find_offset_fault(recording, media.other_paths)
    if offset_fault is not None:
        raise _make_no_recording_error(path, offset_fault)
    return recording


def _make_no_recording_error(path: Path, reason: str) -> DataError:
    """The error for an annotation file without a recording that can be used."""
    return DataError(path, reason, "put the audio file there, or name its folder with --audio_dir")


def is_annotation_file(path: Path) -> bool:
    """Whether a path has the suffix of an ELAN file or a TextGrid."""
    return path.suffix.lower() in ANNOTATED


def _read_linked_media(path: Path) -> LinkedMedia:
    """What an .eaf links to; a TextGrid has no links, and its recording has its own name."""
    if path.suffix.lower() == ".eaf":
        return read_media(path, read_eaf(path))
    return LinkedMedia(paths=(path.stem,))


def check_tier_names(path: Path, tier: str, duration_s: float | None = None) -> None:
    """Check that new tiers can be written into a copy of an .eaf or .TextGrid.

    Args:
        tier: the name of the new tier of the text; those of its children begin with it.
        duration_s: seconds of the recording; None: not known, then it is not checked.

    Raises DataError if the file has a tier with such a name, or if it is a TextGrid whose times
    do not fit the length of the recording.
    """
    if path.suffix.lower() == ".eaf":
        names = [element.get("TIER_ID", "") for element in read_eaf(path).findall("TIER")]
    else:
        grid = read_textgrid(path)
        names = [grid_tier.name for grid_tier in grid.tiers]
        if duration_s is not None:
            require_shift(grid, duration_s)
    beginnings_of_children = (f"{tier} ", f"{tier}@")
    for name in names:
        if name == tier or name.startswith(beginnings_of_children):
            to_do = "choose another name with --tier"
            raise DataError(path, f"has a tier {name!r} already", to_do)


# ---- lists


def write_srt(path: Path, recording: TranscribedRecording) -> None:
    """Write the segments that have a text as subtitles (SubRip), numbered from 1."""
    spoken = [segment for segment in recording.segments if segment.text]
    blocks = []
    for number, segment in enumerate(spoken, start=1):
        times = f"{_srt_time(segment.start)} --> {_srt_time(segment.end)}"
        blocks.append(f"{number}\n{times}\n{segment.text}\n\n")
    write_atomic(path, "".join(blocks))


def _srt_time(seconds: float) -> str:
    """A time as `HH:MM:SS,mmm`."""
    total_s, ms = divmod(round(1000 * seconds), 1000)
    total_minutes, whole_s = divmod(total_s, 60)
    hours, minutes = divmod(total_minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{whole_s:02d},{ms:03d}"


def ctm_lines(name: str, parts: Iterable[TimedText]) -> str:
    """One line of a CTM per unit or word: `name 1 start duration text confidence`.

    The channel is always 1. White space in a name or a text becomes `▁`, because it separates the
    columns. An empty text is `▁` too.
    """
    lines = []
    shown_name = SPACE.join(name.split())
    for part in parts:
        text = SPACE.join(part.text.split()) or SPACE
        times = f"{part.start:.4f} {part.end - part.start:.4f}"
        lines.append(f"{shown_name} 1 {times} {text} {part.confidence:.4f}\n")
    return "".join(lines)


TSV_HEADER = "file\tstart\tend\ttext\tconfidence\n"


def tsv_lines(recording: TranscribedRecording) -> str:
    """A line per segment: file, start, end (seconds), text, confidence (empty if there is none)."""
    lines = []
    file = one_field(str(recording.media))
    for segment in recording.segments:
        times = f"{segment.start:.3f}\t{segment.end:.3f}"
        confidence = "" if segment.confidence is None else f"{segment.confidence:.4f}"
        lines.append(f"{file}\t{times}\t{one_field(segment.text)}\t{confidence}\n")
    return "".join(lines)


# ---- records


@dataclass(frozen=True)
class Record:
    """The content of a file of `transcribe --record`."""

    recording: TranscribedRecording
    source: Path
    """The file that was given: the recording, or an annotation file beside it."""
    model: str = ""
    """The model that transcribed it: a folder, a ZIP or an address; empty if it is not known."""

    def is_of(self, source: Path, model: str) -> bool:
        """Whether this is the transcript of the recording `source` by `model`.

        An annotation file and a recording beside it, with the same name, are the same source. A
        record without a model is of any model.
        """
        is_of_model = self.model in ("", model)  # empty: of any model
        if not is_of_model:
            return False
        recorded_path = self.source.absolute()
        asked_path = source.absolute()
        if recorded_path == asked_path:
            return True
        has_same_name = recorded_path.with_suffix("") == asked_path.with_suffix("")
        has_annotation_file = is_annotation_file(recorded_path) or is_annotation_file(asked_path)
        return has_same_name and has_annotation_file


def write_record(path: Path, record: Record) -> None:
    """Write all of a transcribed recording as JSON; paths are absolute."""
    content = asdict(record.recording)
    content["media"] = str(record.recording.media.absolute())
    content["source"] = str(record.source.absolute())
    content["model"] = record.model
    write_atomic(path, json.dumps(content, ensure_ascii=False))


def find_record(folder: Path, source: Path, model: str) -> Path:
    """The path of the record for a recording and a model: an existing one of both, or a free one.

    NAME.json, NAME-2.json, NAME-3.json … are tried in this order; `Record.is_of` says whether an
    existing file is the record of both. NAME is that of `source`; after a name that ends in
    `.corrections`, `-1` is added, because NAME.corrections.json is the file of corrections of NAME.

    Raises DataError for a file that is no record.
    """
    stem = source.stem
    if stem.endswith(".corrections"):
        stem += "-1"
    path = folder / f"{stem}.json"
    number = 1
    while path.exists() and not read_record(path).is_of(source, model):
        number += 1
        path = folder / f"{stem}-{number}.json"
    return path


def read_record(path: Path) -> Record:
    """The content of a file of `write_record`.

    Raises DataError if it cannot be read, or is another file.
    """
    try:
        content = json.loads(read_bytes(path))
        duration_s = float(content["duration_s"])
        _check_finite(duration_s)
        recording = TranscribedRecording(
            media=Path(content["media"]),
            duration_s=duration_s,
            segments=tuple(map(_read_segment, content["segments"])),
        )
        return Record(recording, Path(content["source"]), str(content.get("model", "")))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        found = "not a file of `transcribe --record`"
        raise DataError(path, found, "transcribe the recording again") from error


def _read_segment(content: dict[str, Any]) -> TranscribedSegment:
    """A segment of a record. Raises ValueError, KeyError or TypeError for other content.

    All values are checked, because the file may come from somebody else.
    """
    words = tuple(TimedText(**word) for word in content["words"])
    segment = TranscribedSegment(**{**content, "words": words})
    parts: list[TranscribedSegment | TimedText] = [segment, *words]
    for part in parts:
        if not isinstance(part.text, str):
            raise ValueError(f"text {part.text!r}")
        _check_finite(part.start, part.end)
        if part.confidence is not None:
            _check_finite(part.confidence)
    return segment


def _check_finite(*numbers: float) -> None:
    """Raise ValueError for NaN and inf, and TypeError for what is no number."""
    for number in numbers:
        if not math.isfinite(number):
            raise ValueError(f"{number} is not finite")
