# SPDX-License-Identifier: Apache-2.0
"""The annotation files of a user that are transcribed, and lists of transcribed recordings: SRT,
CTM (NIST), TSV.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from wenet_hs.annotation.eaf import find_offset_fault, read_eaf, read_media, read_other_media
from wenet_hs.annotation.textgrid import find_shift, read_textgrid
from wenet_hs.annotation.tiers import TimedText, TranscribedRecording, TranscribedSegment
from wenet_hs.base.files import one_field, read_bytes
from wenet_hs.data.media import MediaFinder
from wenet_hs.text.units import SPACE
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

ANNOTATED = (".eaf", ".textgrid")
"""Suffixes of annotation files, which may be given instead of their recording."""


def find_media(path: Path, audio_dir: Path | None = None) -> Path:
    """The recording of an .eaf or .TextGrid, found as `MediaFinder` does; any other path is a
    recording itself.

    `audio_dir`: the folder to search; None: that of the file.

    Raises: DataError if there is no recording, or the file cannot be read.
    """
    if path.suffix.lower() not in ANNOTATED:
        return path
    document = read_eaf(path) if path.suffix.lower() == ".eaf" else None
    written = (path.stem,) if document is None else read_media(path, document)[0]
    found = MediaFinder(audio_dir).find(written, path.parent)
    if document is not None and isinstance(found, Path):
        found = find_offset_fault(found, read_other_media(document)) or found
    if isinstance(found, str):
        raise DataError(
            path, found, "put the audio file there, or name its folder with --audio_dir"
        )
    return found


def check_tier_names(path: Path, tier: str, duration_s: float | None = None) -> None:
    """Raise DataError if an annotation file has a tier of a new tier's name, or is a TextGrid of
    other audio.

    `duration_s`: the length of the recording, if it is known.
    """
    if path.suffix.lower() == ".eaf":
        names = [one.get("TIER_ID", "") for one in read_eaf(path).findall("TIER")]
    else:
        grid = read_textgrid(path)
        names = [one.name for one in grid.tiers]
        if duration_s is not None and isinstance(
            fault := find_shift(*grid.extent, duration_s), str
        ):
            raise DataError(path, fault)
    existing = [name for name in names if name == tier or name.startswith((f"{tier} ", f"{tier}@"))]
    if existing:
        raise DataError(
            path, f"has a tier {existing[0]!r} already", "choose another name with --tier"
        )


# ---- lists


def write_srt(path: Path, recording: TranscribedRecording) -> None:
    """Write the segments that have a text as subtitles (SubRip)."""
    spoken = [segment for segment in recording.segments if segment.text]
    blocks = [
        f"{number}\n{_srt_time(one.start)} --> {_srt_time(one.end)}\n{one.text}\n\n"
        for number, one in enumerate(spoken, start=1)
    ]
    write_atomic(path, "".join(blocks))


def _srt_time(seconds: float) -> str:
    minutes, ms = divmod(round(1000 * seconds), 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{ms // 1000:02d},{ms % 1000:03d}"


def ctm_lines(name: str, parts: Iterable[TimedText]) -> str:
    """`name 1 start duration text confidence` per word; white space in a text becomes `▁`."""
    return "".join(
        f"{SPACE.join(name.split())} 1 {part.start:.4f} {part.end - part.start:.4f} "
        f"{SPACE.join(part.text.split()) or SPACE} {part.confidence:.4f}\n"
        for part in parts
    )


TSV_HEADER = "file\tstart\tend\ttext\tconfidence\n"


def tsv_lines(recording: TranscribedRecording) -> str:
    """A line per segment: file, start, end (seconds), text, confidence (empty if there is none)."""
    name, lines = one_field(str(recording.media)), []
    for one in recording.segments:
        confidence = "" if one.confidence is None else f"{one.confidence:.4f}"
        lines.append(
            f"{name}\t{one.start:.3f}\t{one.end:.3f}\t{one_field(one.text)}\t{confidence}\n"
        )
    return "".join(lines)


@dataclass(frozen=True)
class Record:
    """The content of a file of `transcribe --record`."""

    recording: TranscribedRecording
    source: Path
    """The file that was given: the recording, or an annotation file beside it."""
    model: str = ""
    """The model that transcribed it: a folder, a ZIP or an address; empty if it is not known."""

    def is_of(self, source: Path, model: str) -> bool:
        """Whether it is of this recording, or of an annotation file beside it, and of this model."""
        own, other = self.source.absolute(), source.absolute()
        is_beside = {own.suffix.lower(), other.suffix.lower()} & {*ANNOTATED}
        is_same = own == other or (bool(is_beside) and own.with_suffix("") == other.with_suffix(""))
        return is_same and self.model in ("", model)


def write_record(path: Path, record: Record) -> None:
    """Write all of a transcribed recording as JSON."""
    paths = {
        "media": str(record.recording.media.absolute()),
        "source": str(record.source.absolute()),
    }
    content = asdict(record.recording) | paths | {"model": record.model}
    write_atomic(path, json.dumps(content, ensure_ascii=False))


def find_record(folder: Path, source: Path, model: str) -> Path:
    """NAME.json of a recording that this model transcribed, or the first free of NAME.json,
    NAME-2.json, NAME-3.json ….

    A recording and an annotation file beside it, of the same name, are the same. A record without a
    model is of any.
    Raises DataError for a file that is no record.
    """
    stem = source.stem + "-1" * source.stem.endswith(
        ".corrections"
    )  # NAME.corrections.json is another file
    names = chain([stem], (f"{stem}-{number}" for number in count(2)))
    paths = (folder / f"{name}.json" for name in names)
    return next(
        path for path in paths if not path.exists() or read_record(path).is_of(source, model)
    )


def read_record(path: Path) -> Record:
    """The content of a file of `write_record`. Raises DataError if it is another file."""
    try:
        content = json.loads(read_bytes(path))
        segments = [
            TranscribedSegment(
                **{**one, "words": tuple(TimedText(**word) for word in one["words"])}
            )
            for one in content["segments"]
        ]
        parts: Iterable[Any] = chain(segments, *(one.words for one in segments))
        for part in parts:  # the file may be of somebody else
            numbers = (part.start, part.end, 1.0 if part.confidence is None else part.confidence)
            if not isinstance(part.text, str) or not all(map(math.isfinite, numbers)):
                raise ValueError(f"{part}")
        media, duration_s = Path(content["media"]), float(content["duration_s"])
        if not math.isfinite(duration_s):
            raise ValueError(f"duration_s {duration_s}")
        recording = TranscribedRecording(
            media=media, duration_s=duration_s, segments=tuple(segments)
        )
        return Record(recording, Path(content["source"]), str(content.get("model", "")))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DataError(
            path, "not a file of `transcribe --record`", "transcribe the recording again"
        ) from error
