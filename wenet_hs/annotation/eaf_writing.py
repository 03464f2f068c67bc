# SPDX-License-Identifier: Apache-2.0
"""Writing of ELAN files: new tiers in a file, or in a copy of the user's file.

What the user's file contained stays as it was. pympi makes the new tiers, which are then added to
the document.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

from pympi.Elan import Eaf, to_adocument

from wenet_hs.annotation.eaf import (
    NOT_XML,
    AlignedAnnotation,
    is_video_link,
    link_paths,
    read_aligned,
    read_eaf,
    read_media,
    read_participants,
    read_time_origin,
)
from wenet_hs.annotation.tiers import (
    CONFIDENCE,
    DEFAULT_TIER,
    LOW_CONFIDENCE,
    WORDS,
    Tier,
    TranscribedRecording,
    TranscribedSegment,
    make_tiers,
)
from wenet_hs.data.media import fold_name, local_paths
from wenet_hs.text.normalize import normalize_spelling
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import list_names

logger = logging.getLogger(__name__)

_ASSOCIATION = "Symbolic_Association"
_CONSTRAINTS = {
    DEFAULT_TIER: None,
    WORDS: "Included_In",
    CONFIDENCE: _ASSOCIATION,
    LOW_CONFIDENCE: "Included_In",
}
"""ELAN's constraint of each linguistic type.

Time_Subdivision would be wrong for words: it allows no pause between two of them. Words of low
confidence are children of the text: pympi cannot read an association with a tier that has a parent
itself.
"""
_EAF_TAGS = (
    "LICENSE",
    "HEADER",
    "TIME_ORDER",
    "TIER",
    "LINGUISTIC_TYPE",
    "LOCALE",
    "LANGUAGE",
    "CONSTRAINT",
    "CONTROLLED_VOCABULARY",
    "LEXICON_REF",
    "REF_LINK_SET",
    "EXTERNAL_REF",
)
_EAF_ORDER = {tag: number for number, tag in enumerate(_EAF_TAGS)}
"""The order of the elements of a document, as ELAN's schema requires it."""
_LAST_ANNOTATION = "lastUsedAnnotationId"  # a property of the header


def write_eaf(
    path: Path,
    recording: TranscribedRecording,
    tier: str,
    low_confidence: float,
    *,
    source: Path | None = None,
    into_tier: str | None = None,
) -> int:
    """Write the tiers of a recording as an ELAN file.

    The file links to the recording. The participant of the new tiers is that of `into_tier`, or the
    only one of the file. A warning states what is left out: speech before ELAN's time 0, and
    characters that XML cannot contain.

    Args:
        tier: the name of the tier of the text.
        low_confidence: words below it are in a tier of their own.
        source: an ELAN file, whose content is kept.
        into_tier: a tier of `source` with one annotation for each segment of the recording. Those
            without text get the text of their segment. None: no tier of `source` is changed.

    Returns the number of annotations of `into_tier` that got a text. Raises DataError if `source`
    cannot be read.
    """
    origin_ms = 0
    num_filled = 0
    if source is None:
        document = to_adocument(_empty_eaf(), pretty=False)
    else:
        document = read_eaf(source)
        origin_ms = read_media(source, document).origin_ms
        if into_tier is not None:
            aligned = read_aligned(source, document, into_tier)
            num_filled = _fill_texts(aligned, recording.segments)

    _warn_of_early_speech(path, recording, origin_ms)
    new, last_annotation = _new_document(
        make_tiers(recording, tier, low_confidence),
        participant=_find_participant(document, into_tier),
        above=_max_identifier(document) + 1,  # never 0, for which pympi searches a number itself
        origin_ms=origin_ms,
    )
    _add_tiers(document, new)

    header = _child(document, "HEADER")
    old_folder = (source or path).parent
    _link_media(header, recording.media, path.parent, old_folder, origin_ms)
    _set_property(header, _LAST_ANNOTATION, str(last_annotation))
    _remove_not_xml(path, document)
    ElementTree.indent(document, " " * 4)
    data = ElementTree.tostring(document, "UTF-8", xml_declaration=True)
    # Those who read XML make a newline of \r, unless it is written as a reference.
    write_atomic(path, data.replace(b"\r", b"&#13;") + b"\n")
    return num_filled


def _fill_texts(
    annotations: Sequence[AlignedAnnotation], segments: Sequence[TranscribedSegment]
) -> int:
    """Write the texts of the segments into annotations without text.

    There is one annotation per segment. Returns the number of those that got a text.
    """
    num_filled = 0
    for annotation, segment in zip(annotations, segments, strict=True):
        has_text = bool((annotation.value.text or "").strip())
        if segment.text and not has_text:
            annotation.value.text = segment.text
            num_filled += 1
    return num_filled


def _find_participant(document: ElementTree.Element, into_tier: str | None) -> str:
    """The participant of `into_tier`; if that is None, the only participant of the document.

    Empty if there is none, or if the document has several.
    """
    by_tier = {
        normalize_spelling(name): participant
        for name, participant in read_participants(document).items()
    }
    if into_tier is not None:
        return by_tier[normalize_spelling(into_tier)]
    participants = set(by_tier.values()) - {""}
    return participants.pop() if len(participants) == 1 else ""


def _warn_of_early_speech(path: Path, recording: TranscribedRecording, origin_ms: int) -> None:
    """State how many segments and words end before ELAN's time 0, which cannot be written."""
    origin_s = origin_ms / 1000
    num_segments = sum(segment.end <= origin_s for segment in recording.segments)
    num_words = sum(word.end <= origin_s for word in recording.words)
    if num_segments or num_words:
        logger.warning(
            "%s: %d segments and %d words before ELAN's time 0 (%d ms of the recording) are left out",
            path,
            num_segments,
            num_words,
            origin_ms,
        )


def _max_identifier(document: ElementTree.Element) -> int:
    """The largest number in the identifiers of slots and annotations (`ts12`, `a7`), or 0."""
    largest = 0
    for element in document.iter():
        identifier = element.get("TIME_SLOT_ID") or element.get("ANNOTATION_ID") or ""
        digits = re.sub(r"\D", "", identifier)
        largest = max(largest, int(digits or 0))
    return largest


def _new_document(
    tiers: Sequence[Tier], *, participant: str, above: int, origin_ms: int
) -> tuple[ElementTree.Element, int]:
    """A document with the tiers, their types and constraints, and the number of its last annotation.

    Annotations that end before ELAN's time 0 are left out.

    Args:
        tiers: in seconds of the recording, each after the tier that it depends on.
        participant: of the tiers without one; empty: they have none.
        above: identifiers of slots and annotations have larger numbers than this one.
        origin_ms: the time of the recording at which ELAN's times begin.
    """
    eaf = _empty_eaf()
    eaf.maxts = above  # pympi counts up from these two numbers
    eaf.maxaid = above
    for tier in tiers:
        constraint = _CONSTRAINTS[tier.kind]
        has_times = constraint != _ASSOCIATION
        eaf.add_linguistic_type(tier.kind, constraint, timealignable=has_times)
        speaker = tier.participant or participant or None
        eaf.add_tier(tier.name, tier.kind, parent=tier.parent or None, part=speaker)
        parent_by_begin = {} if has_times else _annotations_by_begin(eaf, tier.parent)
        for span in tier.timed_spans:
            begin_ms = max(0, round(1000 * span.begin) - origin_ms)
            end_ms = max(0, round(1000 * span.end) - origin_ms)
            if end_ms == 0:
                continue
            if has_times:
                eaf.add_annotation(tier.name, begin_ms, end_ms, span.text)
            else:
                # What pympi's `add_ref_annotation` stores: parent, text, the annotation before it,
                # and a reference to a drawing. It is not called, because it searches all
                # annotations for each new one.
                parent = parent_by_begin[begin_ms]
                identity = eaf.generate_annotation_id()
                _, reference_annotations, *_ = eaf.tiers[tier.name]
                reference_annotations[identity] = (parent, span.text, None, None)
    return to_adocument(eaf, pretty=False), eaf.maxaid


def _annotations_by_begin(eaf: Eaf, tier: str) -> dict[int, str]:
    """The ANNOTATION_ID of each annotation of a tier with times, by its begin in ms."""
    aligned_annotations, *_ = eaf.tiers[tier]
    return {
        eaf.timeslots[begin_slot]: identity
        for identity, (begin_slot, *_) in aligned_annotations.items()
    }


def _empty_eaf() -> Eaf:
    """A document of pympi without tiers, types and links."""
    eaf = Eaf(author="wenet_hs")
    eaf.tiers.clear()
    eaf.linguistic_types.clear()
    eaf.properties.clear()
    eaf.header = {"MEDIA_FILE": "", "TIME_UNITS": "milliseconds"}
    # pympi's own date is wrong where the time zone has half hours, as in India.
    now = datetime.now().astimezone()
    eaf.adocument["DATE"] = now.isoformat(timespec="seconds")
    return eaf


def _add_tiers(document: ElementTree.Element, new: ElementTree.Element) -> None:
    """Move tiers, linguistic types, constraints and time slots of a new document into another one.

    Types and constraints that the other one has already are left out. Its elements are then sorted
    as ELAN's schema requires it.
    """
    known_names = {_name_of_type(element) for element in document}
    document.extend(new.findall("TIER"))
    for element in (*new.findall("LINGUISTIC_TYPE"), *new.findall("CONSTRAINT")):
        if _name_of_type(element) not in known_names:
            document.append(element)
    after_all_tags = len(_EAF_ORDER)  # the place of a tag that is not in the schema
    document[:] = sorted(document, key=lambda element: _EAF_ORDER.get(element.tag, after_all_tags))
    _add_time_slots(_child(document, "TIME_ORDER"), _child(new, "TIME_ORDER"))


def _name_of_type(element: ElementTree.Element) -> str | None:
    """The name of a linguistic type or of a constraint; None for another element."""
    return element.get("LINGUISTIC_TYPE_ID") or element.get("STEREOTYPE")


def _add_time_slots(slots: ElementTree.Element, new: ElementTree.Element) -> None:
    """Add slots to a document in the order of time, because ELAN reads them in order.

    A slot without a time stays after the slot before it.
    """
    sorting_times = dict[ElementTree.Element, int]()
    latest_time = 0  # of the last slot with a time; 0: there was none yet
    for slot in (*slots, *new):
        value = slot.get("TIME_VALUE")
        if value:
            latest_time = int(value)
        sorting_times[slot] = latest_time
    slots[:] = sorted(sorting_times, key=sorting_times.__getitem__)


def _child(element: ElementTree.Element, tag: str) -> ElementTree.Element:
    """The first child with a tag that each document has."""
    child = element.find(tag)
    assert child is not None  # `read_eaf` has checked it
    return child


def _set_property(header: ElementTree.Element, name: str, value: str) -> None:
    """Set a property of a header, which is added if there is none of this name."""
    for element in header.findall("PROPERTY"):
        if element.get("NAME") == name:
            element.text = value
            return
    ElementTree.SubElement(header, "PROPERTY", NAME=name).text = value


# ---- links


def _link_media(
    header: ElementTree.Element, media: Path, folder: Path, old_folder: Path, origin_ms: int
) -> None:
    """Set the links of a header to the recording, and to other files that exist.

    Absolute and relative paths are set. If no link is to the recording, it replaces a link to audio
    that does not exist, or gets a new one. Links to other files that do not exist stay as they are.

    Args:
        header: HEADER of the document, which is changed.
        media: the recording.
        folder: where the document will be; relative paths begin there.
        old_folder: where it was.
        origin_ms: TIME_ORIGIN of the recording.
    """
    media_links = header.findall("MEDIA_DESCRIPTOR")
    file_of_link = dict[ElementTree.Element, Path]()
    for link in (*media_links, *header.findall("LINKED_FILE_DESCRIPTOR")):
        file = _find_linked_file(link, media, old_folder)
        if file is not None:
            file_of_link[link] = file
    if media not in file_of_link.values():
        broken_links = [link for link in media_links if link not in file_of_link]
        link = _choose_link(header, broken_links, origin_ms)
        link.set("MIME_TYPE", "audio/x-wav" if media.suffix.lower() == ".wav" else "audio/*")
        if origin_ms:
            link.set("TIME_ORIGIN", str(origin_ms))
        file_of_link[link] = media
    for link, file in file_of_link.items():
        _set_paths(link, file, folder)


def _find_linked_file(link: ElementTree.Element, media: Path, folder: Path) -> Path | None:
    """The file of a link: `media` if one of the link's paths has its file name.

    Otherwise the first path for which there is a file: one of the same name in `folder`, or one at
    the path itself, which begins at `folder` if it is relative. None if there is no file.
    """
    paths = list[Path]()
    for written in link_paths(link):
        paths += local_paths(written)
    if any(fold_name(path.name) == fold_name(media.name) for path in paths):
        return media
    for path in paths:
        for file in (folder / path.name, folder / path):
            if file.is_file():
                return file
    return None


def _choose_link(
    header: ElementTree.Element, broken_links: Iterable[ElementTree.Element], origin_ms: int
) -> ElementTree.Element:
    """The first broken link to audio with this TIME_ORIGIN, or a new link at the top of a header."""
    for link in broken_links:
        if read_time_origin(link) == origin_ms and not is_video_link(link):
            return link
    new_link = ElementTree.Element("MEDIA_DESCRIPTOR")
    header.insert(0, new_link)
    return new_link


def _set_paths(link: ElementTree.Element, file: Path, folder: Path) -> None:
    """Set the absolute and the relative path of a link; the relative one begins at `folder`."""
    kind = "MEDIA" if link.tag == "MEDIA_DESCRIPTOR" else "LINK"
    absolute = file.resolve().as_posix().lstrip("/")
    relative = Path(os.path.relpath(file, folder)).as_posix()
    if not relative.startswith("../"):
        relative = f"./{relative}"  # as ELAN writes it
    link.set(f"{kind}_URL", f"file:///{absolute}")
    link.set(f"RELATIVE_{kind}_URL", relative)


# ---- characters that XML cannot contain


def _remove_not_xml(path: Path, document: ElementTree.Element) -> None:
    """Remove from all texts and attributes what XML cannot contain, and warn of the number.

    In paths these characters are escaped as `%1B` instead, so that the file is found.
    """
    removed = Counter[str]()
    for element in document.iter():
        for name, value in element.items():
            is_path = name.endswith("_URL")
            if is_path:
                element.set(name, NOT_XML.sub(_escape_in_url, value))
            else:
                removed.update(NOT_XML.findall(value))
                element.set(name, NOT_XML.sub("", value))
        if element.text:
            removed.update(NOT_XML.findall(element.text))
            element.text = NOT_XML.sub("", element.text)
    if removed:
        counts = [f"U+{ord(character):04X} ({num})" for character, num in removed.most_common()]
        logger.warning(
            "%s: control characters, which ELAN cannot read, are left out of its texts: %s",
            path,
            list_names(counts),
        )


def _escape_in_url(match: re.Match[str]) -> str:
    """The bytes of a character of a file name as `%1B`.

    A byte that is not UTF-8 is a surrogate in Python.
    """
    return quote(os.fsencode(match.group()))
