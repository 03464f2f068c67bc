# SPDX-License-Identifier: Apache-2.0
"""Transcribed recordings and their files: ELAN (EAF), Praat (TextGrid), SRT, CTM (NIST) and TSV.

The first two can be copies of a file of the user, with new tiers. What the file contained stays as it was.
"""

import logging
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from pympi.Elan import Eaf, to_adocument

from wenet_hs.data.annotations import (
    add_textgrid_tiers,
    find_shift,
    link_paths,
    read_aligned,
    read_eaf,
    read_media,
    read_participants,
    read_textgrid,
)
from wenet_hs.data.media import MediaFinder, fold_name, local_paths
from wenet_hs.decode.recognition import TimedText
from wenet_hs.errors import DataError
from wenet_hs.files import one_field, write_atomic
from wenet_hs.text.normalize import normalize_phones
from wenet_hs.text.units import SPACE

logger = logging.getLogger(__name__)

DEFAULT_TIER = "wenet_hs"
"""The tier of the text. The names of its children begin with it."""
DEFAULT_LOW_CONFIDENCE = 0.5
_TEXT, _WORDS, _CONFIDENCE, _LOW = "", " words", " confidence", " low confidence"
"""Kinds of tiers: the ends of their names."""
_CONSTRAINTS = {_TEXT: None, _WORDS: "Included_In", _CONFIDENCE: "Symbolic_Association", _LOW: "Included_In"}
"""ELAN's constraints. Time_Subdivision would be wrong for words: it allows no pause between two of them. Words of low
confidence are children of the text: pympi cannot read an association with a tier that has a parent itself."""
_EAF_TAGS = (
    *("LICENSE", "HEADER", "TIME_ORDER", "TIER", "LINGUISTIC_TYPE", "LOCALE", "LANGUAGE", "CONSTRAINT"),
    *("CONTROLLED_VOCABULARY", "LEXICON_REF", "REF_LINK_SET", "EXTERNAL_REF"),
)
_EAF_ORDER = {tag: number for number, tag in enumerate(_EAF_TAGS)}
_NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_MAX_OVERLAP_S = 0.05  # of two segments in a tier: rounded times, or a margin around the speech


@dataclass(frozen=True, kw_only=True)
class TranscribedSegment:
    """A segment of speech with its text. Times are seconds from the beginning of the recording, in whole ms."""

    start: float
    end: float
    text: str
    words: tuple[TimedText, ...] = ()
    """In order, within the segment. Of a phone model the phones. Empty if CTC cannot align the text."""
    confidence: float | None = None
    """In [0, 1]; None if CTC cannot align the text."""
    speaker: str | None = None


@dataclass(frozen=True, kw_only=True)
class TranscribedRecording:
    """A recording with its segments of speech, in order; segments of one speaker do not overlap."""

    media: Path
    duration_s: float
    segments: tuple[TranscribedSegment, ...]

    @property
    def words(self) -> list[TimedText]:
        """The words of all segments."""
        return [word for segment in self.segments for word in segment.words]


def place_segments(segments: Iterable[TranscribedSegment], duration_s: float) -> tuple[TranscribedSegment, ...]:
    """The segments in order with times in whole milliseconds, within the recording; words within their segment.

    Raises: DataError if two segments of a speaker overlap by more than 50 ms: a tier of ELAN or Praat cannot hold them.
    """
    placed, end_of = list[TranscribedSegment](), dict[str | None, float]()
    for segment in sorted(segments, key=lambda segment: (segment.start, segment.end)):
        previous = end_of.get(segment.speaker, 0.0)
        if previous - segment.start > _MAX_OVERLAP_S or segment.end - previous < 0.001:
            found = f"two segments of one speaker overlap at {segment.start:.3f} s"
            raise DataError(f"{found}, which a tier cannot hold; correct the times, or name the speakers")
        start, end = _whole_ms(segment.start, segment.end, previous, math.floor(1000 * duration_s) / 1000)
        words, last = list[TimedText](), start
        for number, word in enumerate(segment.words, start=1):
            most = end - 0.001 * (len(segment.words) - number)  # each word after this one needs a millisecond
            first, last = _whole_ms(word.start, word.end, last, most)
            words.append(replace(word, start=first, end=last))
        placed.append(replace(segment, start=start, end=end, words=tuple(words)))
        end_of[segment.speaker] = end
    return tuple(placed)


def _whole_ms(start: float, end: float, least: float, most: float) -> tuple[float, float]:
    """The times in whole milliseconds, in [least, most] and at least one millisecond apart."""
    first = min(max(round(start, 3), least), most - 0.001)
    return round(first, 3), round(max(min(round(end, 3), most), first + 0.001), 3)


# ---- tiers


class _Tier(NamedTuple):
    name: str
    kind: str
    speaker: str | None
    parent: str | None
    spans: Sequence[TimedText]


def make_tiers(recording: TranscribedRecording, name: str, low_confidence: float) -> list[_Tier]:
    """The tiers of each speaker: text, words, confidence, and the words whose confidence is below `low_confidence`.

    With several speakers the names end in `@SPEAKER`. A tier without annotations is left out, except that of the text.
    """
    speakers = list(dict.fromkeys(segment.speaker for segment in recording.segments)) or [None]
    tiers = list[_Tier]()
    for speaker in speakers:
        end = f"@{speaker}" if len(speakers) > 1 and speaker is not None else ""
        of_segments = [_spans(one, low_confidence) for one in recording.segments if one.speaker == speaker]
        for kind in _CONSTRAINTS:
            spans = [span for of_kind in of_segments for span in of_kind[kind]]
            if spans or kind == _TEXT:
                tiers.append(_Tier(name + kind + end, kind, speaker, None if kind == _TEXT else name + end, spans))
    return tiers


def _spans(segment: TranscribedSegment, low_confidence: float) -> dict[str, list[TimedText]]:
    """The annotations of a segment by kind of tier."""
    confidence = segment.confidence
    whole = TimedText(text=segment.text, start=segment.start, end=segment.end, confidence=confidence or 0.0)
    return {
        _TEXT: [whole],
        _WORDS: list(segment.words),
        _CONFIDENCE: [] if confidence is None else [replace(whole, text=f"{confidence:.2f}")],
        _LOW: [replace(one, text=f"{one.confidence:.2f}") for one in segment.words if one.confidence < low_confidence],
    }


# ---- files of the user


def find_media(path: Path, audio_dir: Path | None = None) -> Path:
    """The recording of an .eaf or .TextGrid, found as `MediaFinder` does; any other path is a recording itself.

    `audio_dir`: the folder to search; None: that of the file.

    Raises: DataError if there is no recording, or the file cannot be read.
    """
    if path.suffix.lower() not in (".eaf", ".textgrid"):
        return path
    written = read_media(path, read_eaf(path))[0] if path.suffix.lower() == ".eaf" else (path.stem,)
    found = MediaFinder(audio_dir).find(written, path.parent)
    if isinstance(found, str):
        raise DataError(f"{path}: {found}; put the audio file there, or name its folder with --audio_dir")
    return found


def check_tier_names(path: Path, tier: str, duration_s: float | None = None) -> None:
    """Raise DataError if an annotation file has a tier of a new tier's name, or is a TextGrid of other audio.

    `duration_s`: the length of the recording, if it is known.
    """
    if path.suffix.lower() == ".eaf":
        names = [one.get("TIER_ID", "") for one in read_eaf(path).findall("TIER")]
    else:
        grid = read_textgrid(path)
        names = [one.name for one in grid.tiers]
        if duration_s is not None and isinstance(fault := find_shift(grid.start, grid.end, duration_s), str):
            raise DataError(f"{path}: {fault}")
    existing = [name for name in names if name == tier or name.startswith((f"{tier} ", f"{tier}@"))]
    if existing:
        raise DataError(f"{path}: has a tier {existing[0]!r} already; choose another name with --tier")


# ---- ELAN


def read_segments(path: Path, tier: str) -> list[tuple[float, float]]:
    """Begin and end of the annotations of a tier, in seconds of the recording. Raises DataError."""
    document = read_eaf(path)
    _, origin_ms = read_media(path, document)
    aligned = read_aligned(path, document, tier)
    return [((begin + origin_ms) / 1000, (end + origin_ms) / 1000) for begin, end, _ in aligned]


def write_eaf(
    path: Path,
    recording: TranscribedRecording,
    tier: str,
    low_confidence: float,
    *,
    source: Path | None = None,
    into_tier: str | None = None,
) -> int:
    """Write the tiers of a recording as ELAN file. Returns the number of annotations that were filled.

    The participant of the new tiers is that of `into_tier`, or the only one of the file.

    Args:
        source: an ELAN file, whose content is kept.
        into_tier: its tier with the segments of the recording: those without text get their text.
    """
    document, origin_ms, num_filled = to_adocument(_empty_eaf(), pretty=False), 0, 0
    if source is not None:
        document = read_eaf(source)
        _, origin_ms = read_media(source, document)
    if source is not None and into_tier is not None:
        aligned = read_aligned(source, document, into_tier)
        for (_, _, value), segment in zip(aligned, recording.segments, strict=True):
            if not (value.text or "").strip() and segment.text:
                value.text, num_filled = _NOT_XML.sub("", segment.text), num_filled + 1
    participants = {normalize_phones(one): name for one, name in read_participants(document).items()}
    known = {*participants.values()} if into_tier is None else {participants[normalize_phones(into_tier)]}
    participant = known.pop() if len(known := known - {""}) == 1 else None
    tiers = [one._replace(speaker=one.speaker or participant) for one in make_tiers(recording, tier, low_confidence)]
    lost = [sum(one.end <= origin_ms / 1000 for one in parts) for parts in (recording.segments, recording.words)]
    if any(lost):
        message = "%s: %d segments and %d words before ELAN's time 0 (%d ms of the recording) are left out"
        logger.warning(message, path, *lost, origin_ms)
    identifiers = [one.get("TIME_SLOT_ID") or one.get("ANNOTATION_ID") or "" for one in document.iter()]
    first = max(int(re.sub(r"\D", "", one) or 0) for one in identifiers)
    new, last = _new_eaf(tiers, 1 + first, origin_ms)
    known = {one.get("LINGUISTIC_TYPE_ID") or one.get("STEREOTYPE") for one in document}
    types = [*new.findall("LINGUISTIC_TYPE"), *new.findall("CONSTRAINT")]
    document.extend(new.findall("TIER"))
    document.extend(one for one in types if (one.get("LINGUISTIC_TYPE_ID") or one.get("STEREOTYPE")) not in known)
    document[:] = sorted(document, key=lambda one: _EAF_ORDER.get(one.tag, len(_EAF_ORDER)))
    _add_time_slots(_child(document, "TIME_ORDER"), _child(new, "TIME_ORDER"))
    header = _child(document, "HEADER")
    _link_media(header, recording.media, path.parent, (source or path).parent, origin_ms)
    used = [one for one in header.findall("PROPERTY") if one.get("NAME") == "lastUsedAnnotationId"]
    (used or [ElementTree.SubElement(header, "PROPERTY", NAME="lastUsedAnnotationId")])[0].text = str(last)
    ElementTree.indent(document, " " * 4)
    data = ElementTree.tostring(document, "UTF-8", xml_declaration=True)
    write_atomic(path, data.replace(b"\r", b"&#13;") + b"\n")  # readers make a newline of \r
    return num_filled


def _child(element: ElementTree.Element, tag: str) -> ElementTree.Element:
    child = element.find(tag)
    assert child is not None  # `read_eaf` has checked it
    return child


def _empty_eaf() -> Eaf:
    """A document without tiers."""
    eaf = Eaf(author="wenet_hs")
    eaf.tiers.clear()
    eaf.linguistic_types.clear()
    eaf.properties.clear()
    eaf.header = {"MEDIA_FILE": "", "TIME_UNITS": "milliseconds"}
    eaf.adocument["DATE"] = datetime.now().astimezone().isoformat(timespec="seconds")  # pympi's is wrong in India
    return eaf


def _new_eaf(tiers: Sequence[_Tier], first: int, origin_ms: int) -> tuple[ElementTree.Element, int]:
    """A document with the tiers, their types and constraints, and the number of its last annotation.

    Identifiers are above `first`. Times begin at `origin_ms`; what ends before is left out. pympi's attributes are set
    directly where its methods search all annotations.
    """
    eaf = _empty_eaf()
    eaf.maxts = eaf.maxaid = first
    for tier in tiers:
        type_name, constraint = DEFAULT_TIER + tier.kind, _CONSTRAINTS[tier.kind]
        is_aligned = constraint != "Symbolic_Association"
        eaf.add_linguistic_type(type_name, constraint, is_aligned)
        eaf.add_tier(tier.name, type_name, tier.parent, part=tier.speaker)
        parents = eaf.tiers[tier.parent][0] if tier.parent else {}
        parent_at = {eaf.timeslots[begin]: identity for identity, (begin, *_) in parents.items()}
        for span in tier.spans:
            begin, end = (max(0, round(1000 * second) - origin_ms) for second in (span.start, span.end))
            text = _NOT_XML.sub("", span.text)
            if end and is_aligned:
                eaf.add_annotation(tier.name, begin, end, text)
            elif end:
                eaf.tiers[tier.name][1][eaf.generate_annotation_id()] = (parent_at[begin], text, None, None)
    return to_adocument(eaf, pretty=False), eaf.maxaid


def _add_time_slots(slots: ElementTree.Element, new: ElementTree.Element) -> None:
    """Add slots in the order of time: ELAN reads them in order. One without a time stays after the one before it."""
    time, times = 0, dict[ElementTree.Element, int]()
    for slot in (*slots, *new):
        value = slot.get("TIME_VALUE")
        times[slot] = time = int(value) if value else time
    slots[:] = sorted(times, key=times.__getitem__)


def _link_media(header: ElementTree.Element, media: Path, folder: Path, old_folder: Path, origin_ms: int) -> None:
    """Set the absolute and relative links to files that exist, as seen from `folder`, and that of the recording.

    If no link is that of the recording, it replaces one to audio that does not exist. A link to a video stays.
    """
    found = dict[ElementTree.Element, Path]()
    for link in (*header.findall("MEDIA_DESCRIPTOR"), *header.findall("LINKED_FILE_DESCRIPTOR")):
        for local in (local for written in link_paths(link) for local in local_paths(written)):
            if fold_name(local.name) == fold_name(media.name):
                found[link] = media
            for file in filter(Path.is_file, (old_folder / local.name, old_folder / local)):
                found.setdefault(link, file)
    if media not in found.values():
        mime = "audio/x-wav" if media.suffix.lower() == ".wav" else "audio/*"
        dead = [link for link in header.findall("MEDIA_DESCRIPTOR") if link not in found]
        dead = [link for link in dead if int(link.get("TIME_ORIGIN") or 0) == origin_ms]
        dead = [link for link in dead if not link.get("MIME_TYPE", "").startswith("video")]
        link = dead[0] if dead else ElementTree.Element("MEDIA_DESCRIPTOR")
        if not dead:
            header.insert(0, link)
        link.set("MIME_TYPE", mime)
        if origin_ms:
            link.set("TIME_ORIGIN", str(origin_ms))
        found[link] = media
    for link, file in found.items():
        relative = Path(os.path.relpath(file, folder)).as_posix()
        kind = "MEDIA" if link.tag == "MEDIA_DESCRIPTOR" else "LINK"
        link.set(f"{kind}_URL", f"file:///{file.resolve().as_posix().lstrip('/')}")
        link.set(f"RELATIVE_{kind}_URL", relative if relative.startswith("../") else f"./{relative}")


# ---- TextGrid


def write_textgrid(
    path: Path, recording: TranscribedRecording, tier: str, low_confidence: float, *, source: Path | None = None
) -> None:
    """Write the tiers of a recording as TextGrid.

    `source`: a TextGrid, whose tiers are kept. If the recording is longer, an interval without text follows.
    """
    tiers = make_tiers(recording, tier, low_confidence)
    save_textgrid(path, {tier.name: tier.spans for tier in tiers}, recording.duration_s, source)


def save_textgrid(
    path: Path, tiers: Mapping[str, Sequence[TimedText]], end_s: float, source: Path | None = None
) -> None:
    """Write tiers by name as TextGrid, or add them to `source`; between two texts is an interval without text."""
    spans = {name: [(one.start, one.end, one.text) for one in of_tier if one.text] for name, of_tier in tiers.items()}
    write_atomic(path, add_textgrid_tiers(source, spans, end_s))


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
        lines.append(f"{name}\t{one.start:.3f}\t{one.end:.3f}\t{one_field(one.text)}\t{confidence}\n")
    return "".join(lines)
