# SPDX-License-Identifier: Apache-2.0
"""Reading of ELAN files (.eaf of format 2 and 3): document, linked media, tiers.

They are read as XML, because pympi misreads some of them. `eaf_writing` writes them.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from wenet_hs.annotation.tiers import AnnotationFile, Span, Tier
from wenet_hs.base.files import read_bytes
from wenet_hs.data.media import fold_name, local_paths
from wenet_hs.manifest.file_forms import check_form
from wenet_hs.text.normalize import normalize_spelling
from wenet_hs.tree.errors import DataError, list_names, one_line

NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot contain, not even as references: ESC and other control characters,
surrogates.
"""
_REFERENCE = re.compile(r"&#(?:x(?P<hex>[0-9A-Fa-f]+)|(?P<decimal>[0-9]+));")
_TO_DO = "open it in ELAN and save it again"


# ---- the document


def read_eaf(path: Path) -> ElementTree.Element:
    """The document of an ELAN file of format 2 or 3, with HEADER and TIME_ORDER.

    All its times are whole numbers. Raises DataError if the file cannot be read or is another one.
    """
    data = read_bytes(path)
    check_form(path, data, "prepare elan")
    document = _parse_xml(path, data)
    has_parts = document.find("HEADER") is not None and document.find("TIME_ORDER") is not None
    if document.tag != "ANNOTATION_DOCUMENT" or not has_parts:
        raise DataError(path, f"not an ELAN file (<{document.tag}>)", _TO_DO)
    version = document.get("FORMAT") or document.get("VERSION") or "?"
    main_version, _, _ = version.partition(".")
    if main_version not in ("2", "3"):
        to_do = "only 2 and 3 can be read, save it as EAF 3.0 in ELAN"
        raise DataError(path, f"EAF format {version}", to_do)
    for element in document.iter():
        for name in ("TIME_VALUE", "TIME_ORIGIN"):
            time = element.get(name) or "0"
            if not re.fullmatch(r"-?\d+", time):
                raise DataError(path, f"{time!r} is no time in milliseconds", _TO_DO)
    return document


def _parse_xml(path: Path, data: bytes) -> ElementTree.Element:
    """The root of an XML document. Raises DataError, which names a character that XML forbids."""
    try:
        return ElementTree.fromstring(data)
    # LookupError and ValueError: the encoding that the file names is not known.
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        character_fault = _find_not_xml(data)
        if character_fault is not None:
            raise DataError(path, character_fault, "remove it in a text editor") from error
        raise DataError(path, f"not XML ({error})", _TO_DO) from error


def _find_not_xml(data: bytes) -> str | None:
    """The line and the code of the first character in a UTF-8 file that XML cannot contain.

    The character may be written as a reference such as `&#27;`. None if there is no such character,
    or if the file is not in UTF-8.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    for number, line in enumerate(text.split("\n"), start=1):
        # Characters that stand in the line itself, then those that are written as references.
        referenced = "".join(_decode_reference(match) for match in _REFERENCE.finditer(line))
        forbidden = NOT_XML.search(line + referenced)
        if forbidden is not None:
            code = f"U+{ord(forbidden.group()):04X}"
            return f"line {number} has {code}, a control character that XML cannot contain"
    return None


def _decode_reference(match: re.Match[str]) -> str:
    """The character of a match of `_REFERENCE`; empty if no character has its number."""
    code = int(match["hex"], 16) if match["hex"] else int(match["decimal"])
    return chr(code) if code <= sys.maxunicode else ""


# ---- linked media


@dataclass(frozen=True, kw_only=True)
class LinkedMedia:
    """The recording that an annotation file is of, as paths that may be of another computer."""

    paths: tuple[str, ...]
    """Of the recording, as they are written; the first that exists counts."""
    origin_ms: int = 0
    """TIME_ORIGIN: the time of the recording at which ELAN's times begin."""
    other_paths: tuple[str, ...] = ()
    """Of links with another TIME_ORIGIN: their times differ from those of the recording."""


def read_media(path: Path, document: ElementTree.Element) -> LinkedMedia:
    """The recording that the ELAN file at `path` links to.

    Links to sound come before those to video, and the first of all decides TIME_ORIGIN. The last
    path is the ELAN file's own name without suffix. It is left out if there are links with another
    TIME_ORIGIN, because a recording of that name may be one of these.
    """
    links = document.findall("HEADER/MEDIA_DESCRIPTOR")
    links.sort(key=is_video_link)  # False comes before True
    origin_ms = read_time_origin(links[0]) if links else 0
    paths = list[str]()
    other_paths = list[str]()
    for link in links:
        if read_time_origin(link) == origin_ms:
            paths += link_paths(link)
        else:
            other_paths += link_paths(link)
    if not other_paths:
        paths.append(path.stem)
    return LinkedMedia(paths=tuple(paths), origin_ms=origin_ms, other_paths=tuple(other_paths))


def is_video_link(link: ElementTree.Element) -> bool:
    """Whether a link to media is to a video."""
    return link.get("MIME_TYPE", "").startswith("video")


def read_time_origin(link: ElementTree.Element) -> int:
    """TIME_ORIGIN of a link to media in ms; 0 if it is not written."""
    return int(link.get("TIME_ORIGIN") or 0)


def link_paths(link: ElementTree.Element) -> list[str]:
    """The paths of a link to media or another file as they are written; the relative one is first."""
    names = ("RELATIVE_MEDIA_URL", "MEDIA_URL", "RELATIVE_LINK_URL", "LINK_URL")
    return [link.get(name, "") for name in names if link.get(name)]


def find_offset_fault(recording: Path, other_paths: Iterable[str]) -> str | None:
    """Why a recording cannot be used: the ELAN file links to it with another offset.

    Args:
        recording: it may have been found by the name of the ELAN file.
        other_paths: those of links with another offset, as in `LinkedMedia.other_paths`.

    Returns None if the file name of the recording is in none of these paths.
    """
    other_names = set[str]()
    for written in other_paths:
        other_names.update(fold_name(path.name) for path in local_paths(written))
    if fold_name(recording.name) not in other_names:
        return None
    reason = f"missing: {recording.name} is linked with another offset"
    return f"{reason}; restore the recording that is linked first"


# ---- all tiers


def read_elan(path: Path) -> AnnotationFile:
    """The tiers of an ELAN file, in seconds of the recording.

    Raises DataError if it cannot be read, or if its annotations refer to each other wrongly.
    """
    document = read_eaf(path)
    media = read_media(path, document)
    try:
        tiers = _read_tiers(document, media.origin_ms)
    except (KeyError, ValueError, OverflowError) as error:
        found = f"its annotations refer to wrong ones: {one_line(error)}"
        raise DataError(path, f"damaged ({found})", _TO_DO) from error
    return AnnotationFile(path=path, media=media.paths, tiers=tiers, other_media=media.other_paths)


def _read_tiers(document: ElementTree.Element, origin_ms: int) -> list[Tier]:
    """The tiers in the order of the file, each with its annotations in order of time.

    Annotations without times stand last. Names are normalized to NFC.

    Raises KeyError, ValueError or CycleError (a ValueError) if identifiers are wrong.
    """
    slot_seconds = _read_slot_seconds(document, origin_ms)
    elements = document.findall("TIER/ANNOTATION/*")
    annotations = {element.get("ANNOTATION_ID", ""): element for element in elements}
    if len(annotations) < len(elements):
        raise ValueError("two annotations have one ANNOTATION_ID")
    places = _find_places(annotations)
    participants = read_participants(document)
    tiers = []
    for tier in document.iterfind("TIER"):
        spans = _read_spans(tier, annotations, places, slot_seconds)
        spans.sort(key=_sorting_time)
        tiers.append(
            Tier(
                name=normalize_spelling(tier.get("TIER_ID", "")),
                kind=normalize_spelling(tier.get("LINGUISTIC_TYPE_REF", "")),
                participant=normalize_spelling(participants[tier.get("TIER_ID", "")]),
                parent=normalize_spelling(tier.get("PARENT_REF", "")),
                spans=spans,
            )
        )
    return tiers


def _sorting_time(span: Span) -> tuple[bool, float]:
    """The key that sorts annotations by their begin, those without one last."""
    begin, _, _ = span
    return (begin is None, begin or 0.0)


SlotSeconds = dict[str | None, float | None]
"""The time of each slot by TIME_SLOT_ID, in seconds of the recording; None if it has no time."""


def _read_slot_seconds(document: ElementTree.Element, origin_ms: int) -> SlotSeconds:
    """The times of all slots. A slot without a time gets the one that ELAN shows for it, if any."""
    seconds: SlotSeconds = {}
    for slot in document.iterfind("TIME_ORDER/TIME_SLOT"):
        time_ms = slot.get("TIME_VALUE")
        time_s = (int(time_ms) + origin_ms) / 1000 if time_ms else None
        seconds[slot.get("TIME_SLOT_ID")] = time_s
    # A tier comes after the one that it depends on, because its slots divide the times of that one.
    lineages = sorted(_read_lineages(document).values(), key=len)
    for lineage in lineages:
        tier = lineage[0]
        _interpolate(seconds, tier.findall("ANNOTATION/ALIGNABLE_ANNOTATION"))
    return seconds


def _interpolate(seconds: SlotSeconds, annotations: Sequence[ElementTree.Element]) -> None:
    """Give times to slots without one, in place, as ELAN shows them.

    A chain is a row of annotations of one tier, each of which begins at the slot where the one
    before it ends. If only the first and the last slot of a chain have times, the time between them
    is divided evenly.
    """
    end_slots = {
        annotation.get("TIME_SLOT_REF1"): annotation.get("TIME_SLOT_REF2")
        for annotation in annotations
    }
    timed_slots = [slot for slot in end_slots if seconds.get(slot) is not None]
    for first_slot in timed_slots:
        chain = [first_slot, end_slots[first_slot]]
        # The length is checked because a chain of a damaged file may lead back to itself.
        while _continues(chain[-1], end_slots, seconds) and len(chain) <= len(end_slots):
            chain.append(end_slots[chain[-1]])
        begin = seconds[first_slot]
        end = seconds.get(chain[-1])
        if begin is None or end is None:
            continue
        num_parts = len(chain) - 1
        for number, slot in enumerate(chain[1:-1], start=1):
            seconds[slot] = begin + (end - begin) * number / num_parts


def _continues(
    slot: str | None, end_slots: Mapping[str | None, str | None], seconds: SlotSeconds
) -> bool:
    """Whether a slot has no time, and another annotation begins at it."""
    return slot in end_slots and seconds.get(slot) is None


class _AnnotationPlace(NamedTuple):
    """Where an annotation stands below the annotation with times that it belongs to."""

    ancestor: str
    """ANNOTATION_ID of that annotation; an annotation with times is its own ancestor."""
    positions: tuple[int, ...]
    """The way down from the ancestor, one number per tier.

    A number counts, from 0, the annotations of the tier that have the same parent. The ancestor
    itself has no numbers.
    """


def _find_places(annotations: Mapping[str, ElementTree.Element]) -> dict[str, _AnnotationPlace]:
    """The place of each annotation by ANNOTATION_ID.

    ANNOTATION_REF names the parent. PREVIOUS_ANNOTATION gives the order of annotations with the
    same parent, which may differ from that of the file.

    Raises KeyError if a parent does not exist, CycleError if references form a cycle.
    """
    # Of each annotation: its parent and the annotation before it; "" where there is none.
    references = {
        identity: (element.get("ANNOTATION_REF", ""), element.get("PREVIOUS_ANNOTATION", ""))
        for identity, element in annotations.items()
    }
    places = dict[str, _AnnotationPlace]()
    # In this order, an annotation comes after those that it refers to.
    for identity in TopologicalSorter(references).static_order():
        if identity not in annotations:
            continue  # the empty reference, or an annotation that does not exist
        parent, previous = references[identity]
        if not parent:  # it has times of its own
            places[identity] = _AnnotationPlace(ancestor=identity, positions=())
            continue
        number = 0  # the first one with this parent
        if previous in places and places[previous].positions:
            number = places[previous].positions[-1] + 1
        parent_place = places[parent]
        places[identity] = _AnnotationPlace(
            ancestor=parent_place.ancestor, positions=(*parent_place.positions, number)
        )
    return places


def _read_spans(
    tier: ElementTree.Element,
    annotations: Mapping[str, ElementTree.Element],
    places: Mapping[str, _AnnotationPlace],
    slot_seconds: SlotSeconds,
) -> list[Span]:
    """The annotations of a tier, with the times of their ancestors.

    The ancestor is the annotation with times that an annotation belongs to. Annotations of the tier
    with the same ancestor, such as the words of a sentence, become one. Their texts are joined by
    spaces.
    """
    members = [element.get("ANNOTATION_ID", "") for element in tier.iterfind("ANNOTATION/*")]
    members.sort(key=places.__getitem__)
    spans = list[Span]()
    for ancestor_id, identities in groupby(members, key=lambda identity: places[identity].ancestor):
        values = [annotations[identity].findtext("ANNOTATION_VALUE") for identity in identities]
        text = " ".join(value for value in values if value)
        ancestor = annotations[ancestor_id]
        begin = slot_seconds[ancestor.get("TIME_SLOT_REF1")]
        end = slot_seconds[ancestor.get("TIME_SLOT_REF2")]
        spans.append((begin, end, text))
    return spans


def read_participants(document: ElementTree.Element) -> dict[str, str]:
    """The participant of each tier of an ELAN file, by TIER_ID; empty if there is none.

    It is the tier's own, or that of the nearest tier that it depends on.
    """
    participants = dict[str, str]()
    for name, lineage in _read_lineages(document).items():
        nearest_first = [tier.get("PARTICIPANT", "") for tier in lineage]
        participants[name] = next(filter(None, nearest_first), "")
    return participants


def _read_lineages(document: ElementTree.Element) -> dict[str, list[ElementTree.Element]]:
    """By TIER_ID: the tier, the tier that it depends on, and so on up to an independent one.

    A cycle, which only a damaged file has, ends before the tier that would be there twice.
    """
    tiers = {tier.get("TIER_ID", ""): tier for tier in document.iterfind("TIER")}
    lineages = dict[str, list[ElementTree.Element]]()
    for name, tier in tiers.items():
        lineage = [tier]
        parent = tiers.get(tier.get("PARENT_REF", ""))
        while parent is not None and parent not in lineage:
            lineage.append(parent)
            parent = tiers.get(parent.get("PARENT_REF", ""))
        lineages[name] = lineage
    return lineages


# ---- one tier with times


@dataclass(frozen=True)
class AlignedAnnotation:
    """An annotation with times of its own."""

    begin_ms: int
    """In ELAN's time, which begins at TIME_ORIGIN of the recording."""
    end_ms: int
    value: ElementTree.Element
    """ANNOTATION_VALUE, whose text is that of the annotation."""


def read_segments(path: Path, tier: str) -> list[tuple[float, float]]:
    """Begin and end of the annotations of a tier, in seconds of the recording, in order.

    Raises DataError if the file cannot be read, or for a tier that `read_aligned` refuses.
    """
    document = read_eaf(path)
    origin_ms = read_media(path, document).origin_ms
    segments = []
    for annotation in read_aligned(path, document, tier):
        begin_s = (annotation.begin_ms + origin_ms) / 1000
        end_s = (annotation.end_ms + origin_ms) / 1000
        segments.append((begin_s, end_s))
    return segments


def read_aligned(path: Path, document: ElementTree.Element, tier: str) -> list[AlignedAnnotation]:
    """The annotations of a tier in order of time.

    Raises DataError, which names `path`, if the tier does not exist, has no annotations, or has
    some without times of their own.
    """
    time_by_slot = {
        slot.get("TIME_SLOT_ID"): slot.get("TIME_VALUE")
        for slot in document.iterfind("TIME_ORDER/TIME_SLOT")
    }
    tiers = {
        normalize_spelling(element.get("TIER_ID", "")): element
        for element in document.iterfind("TIER")
    }
    name = normalize_spelling(tier)
    if name not in tiers:
        raise DataError(path, f"no tier {tier!r}", f"there are: {list_names([*tiers], most=20)}")
    aligned = []
    for element in tiers[name].iterfind("ANNOTATION/*"):
        begin_ms = time_by_slot.get(element.get("TIME_SLOT_REF1"))
        end_ms = time_by_slot.get(element.get("TIME_SLOT_REF2"))
        value = element.find("ANNOTATION_VALUE")
        # The times are texts: "0" is one, and "" is none.
        if not begin_ms or not end_ms or value is None:
            found = f"tier {tier!r} has annotations without times"
            raise DataError(path, found, "name the tier that it depends on")
        aligned.append(AlignedAnnotation(int(begin_ms), int(end_ms), value))
    if not aligned:
        found = f"tier {tier!r} has no annotations"
        raise DataError(path, found, "segment the recording in ELAN first")
    aligned.sort(key=lambda annotation: (annotation.begin_ms, annotation.end_ms))
    return aligned
