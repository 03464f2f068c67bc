# SPDX-License-Identifier: Apache-2.0
"""ELAN files (.eaf of format 2 and 3): their tiers, and new tiers in a file or in a copy of the
user's.

What the file contained stays as it was. pympi writes; files are read as XML, because pympi misreads
some.
"""

import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from graphlib import TopologicalSorter
from itertools import groupby
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

from pympi.Elan import Eaf, to_adocument

from wenet_hs.annotation.tiers import (
    CONFIDENCE,
    DEFAULT_TIER,
    LOW,
    WORDS,
    AnnotationFile,
    Tier,
    TranscribedRecording,
    make_tiers,
)
from wenet_hs.base.files import read_bytes
from wenet_hs.data.media import fold_name, local_paths
from wenet_hs.manifest.file_forms import check_form
from wenet_hs.text.normalize import normalize_phones
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError, list_names, one_line

logger = logging.getLogger(__name__)

_CONSTRAINTS = {
    DEFAULT_TIER: None,
    WORDS: "Included_In",
    CONFIDENCE: "Symbolic_Association",
    LOW: "Included_In",
}
"""ELAN's constraints.

Time_Subdivision would be wrong for words: it allows no pause between two of them. Words of low
confidence are children of the text: pympi cannot read an association with a tier that has a parent
itself.
"""
_EAF_TAGS = (
    *(
        "LICENSE",
        "HEADER",
        "TIME_ORDER",
        "TIER",
        "LINGUISTIC_TYPE",
        "LOCALE",
        "LANGUAGE",
        "CONSTRAINT",
    ),
    *("CONTROLLED_VOCABULARY", "LEXICON_REF", "REF_LINK_SET", "EXTERNAL_REF"),
)
_EAF_ORDER = {tag: number for number, tag in enumerate(_EAF_TAGS)}
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot contain, not even as references: ESC and other control characters,
surrogates.
"""
_REFERENCE = re.compile(r"&#(?:x(?P<hex>[0-9A-Fa-f]+)|(?P<decimal>[0-9]+));")


# ---- reading


def read_eaf(path: Path) -> ElementTree.Element:
    """The document of an ELAN file of format 2 or 3. Raises DataError."""
    remedy = "open it in ELAN and save it again"
    data = read_bytes(path)
    check_form(path, data, "prepare elan")
    try:
        document = ElementTree.fromstring(data)
    except (
        ElementTree.ParseError,
        LookupError,
        ValueError,
    ) as error:  # the last two: an unknown encoding
        if fault := _find_not_xml(data):
            raise DataError(path, fault, "remove it in a text editor") from error
        raise DataError(path, f"not XML ({error})", remedy) from error
    if (
        document.tag != "ANNOTATION_DOCUMENT"
        or document.find("HEADER") is None
        or document.find("TIME_ORDER") is None
    ):
        raise DataError(path, f"not an ELAN file (<{document.tag}>)", remedy)
    version = document.get("FORMAT") or document.get("VERSION") or "?"
    if version.partition(".")[0] not in ("2", "3"):
        raise DataError(
            path, f"EAF format {version}", "only 2 and 3 can be read, save it as EAF 3.0 in ELAN"
        )
    times = [
        one.get(name) or "0" for one in document.iter() for name in ("TIME_VALUE", "TIME_ORIGIN")
    ]
    if wrong := [time for time in times if not re.fullmatch(r"-?\d+", time)]:
        raise DataError(path, f"{wrong[0]!r} is no time in milliseconds", remedy)
    return document


def _find_not_xml(data: bytes) -> str | None:
    """The first character of a file in UTF-8 that XML cannot contain, also as a reference such as
    `&#27;`.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    for number, line in enumerate(text.split("\n"), start=1):
        references = [_decode_reference(match) for match in _REFERENCE.finditer(line)]
        if characters := _NOT_XML.findall(line + "".join(references)):
            return f"line {number} has U+{ord(characters[0]):04X}, a control character that XML cannot contain"
    return None


def _decode_reference(match: re.Match[str]) -> str:
    """The character of a numeric reference, or nothing if its number is none of a character."""
    number = int(match["hex"], 16) if match["hex"] else int(match["decimal"])
    return chr(number) if number <= sys.maxunicode else ""


def read_media(path: Path, document: ElementTree.Element) -> tuple[tuple[str, ...], int]:
    """The recording of the ELAN file at `path`, and TIME_ORIGIN: the ms of the recording at which
    ELAN's times begin.

    The paths are those of the links as they are written, sound before video, and the file's own
    name. Links with another TIME_ORIGIN than the first one are left out, and then the file's own
    name too: their times differ.
    """
    links = _media_links(document)
    origin_ms = links[0][0] if links else 0
    paths = [one for ms, written in links if ms == origin_ms for one in written]
    return (*paths, *(() if read_other_media(document) else [path.stem])), origin_ms


def read_other_media(document: ElementTree.Element) -> tuple[str, ...]:
    """The paths of the links with another TIME_ORIGIN than the recording of `read_media`."""
    links = _media_links(document)
    return tuple(one for ms, written in links if ms != links[0][0] for one in written)


def _media_links(document: ElementTree.Element) -> list[tuple[int, list[str]]]:
    """TIME_ORIGIN in ms and the paths of each link to media, sound before video."""
    links = document.findall("HEADER/MEDIA_DESCRIPTOR")
    links.sort(key=lambda link: link.get("MIME_TYPE", "").startswith("video"))
    return [(int(link.get("TIME_ORIGIN") or 0), link_paths(link)) for link in links]


def find_offset_fault(found: Path, others: Iterable[str]) -> str | None:
    """The reason if the audio that was found, perhaps by its stem, is a link of `read_other_media`:
    times differ.
    """
    names = {fold_name(path.name) for written in others for path in local_paths(written)}
    if fold_name(found.name) not in names:
        return None
    return f"missing: {found.name} is linked with another offset; restore the recording that is linked first"


def link_paths(link: ElementTree.Element) -> list[str]:
    """The paths of a link to media or another file as they are written; the relative one is first."""
    names = ("RELATIVE_MEDIA_URL", "MEDIA_URL", "RELATIVE_LINK_URL", "LINK_URL")
    return [written for name in names if (written := link.get(name))]


def read_participants(document: ElementTree.Element) -> dict[str, str]:
    """The participant of each tier of an ELAN file, by TIER_ID: its own, or that of a tier that it
    depends on.
    """
    lineages = _read_lineages(document)
    return {
        name: next(filter(None, (one.get("PARTICIPANT") for one in lineages[name])), "")
        for name in lineages
    }


def _read_lineages(document: ElementTree.Element) -> dict[str, list[ElementTree.Element]]:
    """Each tier by TIER_ID: itself, the tier that it depends on, and so on up to an independent
    one.
    """
    tiers, found = {one.get("TIER_ID", ""): one for one in document.iterfind("TIER")}, {}
    for name, tier in tiers.items():
        found[name] = above = [tier]
        while (
            parent := tiers.get(above[-1].get("PARENT_REF", ""))
        ) is not None and parent not in above:
            above.append(parent)
    return found


def read_aligned(
    path: Path, document: ElementTree.Element, tier: str
) -> list[tuple[int, int, ElementTree.Element]]:
    """Begin and end in ms of ELAN, and the element of ANNOTATION_VALUE, of each annotation of a
    tier, in order.

    Raises DataError if the tier does not exist, has no annotations, or some without times of their
        own.
    """
    times = {
        one.get("TIME_SLOT_ID"): one.get("TIME_VALUE")
        for one in document.iterfind("TIME_ORDER/TIME_SLOT")
    }
    tiers = {normalize_phones(one.get("TIER_ID", "")): one for one in document.iterfind("TIER")}
    if normalize_phones(tier) not in tiers:
        raise DataError(path, f"no tier {tier!r}", f"there are: {list_names([*tiers], most=20)}")
    found = []
    for one in tiers[normalize_phones(tier)].iterfind("ANNOTATION/*"):
        begin, end = (times.get(one.get(f"TIME_SLOT_REF{number}")) for number in (1, 2))
        if not (begin and end and (value := one.find("ANNOTATION_VALUE")) is not None):
            raise DataError(
                path,
                f"tier {tier!r} has annotations without times",
                "name the tier that it depends on",
            )
        found.append((int(begin), int(end), value))
    if not found:
        raise DataError(
            path, f"tier {tier!r} has no annotations", "segment the recording in ELAN first"
        )
    return sorted(found, key=lambda one: one[:2])


def read_segments(path: Path, tier: str) -> list[tuple[float, float]]:
    """Begin and end of the annotations of a tier, in seconds of the recording. Raises DataError."""
    document = read_eaf(path)
    _, origin_ms = read_media(path, document)
    aligned = read_aligned(path, document, tier)
    return [((begin + origin_ms) / 1000, (end + origin_ms) / 1000) for begin, end, _ in aligned]


def read_elan(path: Path) -> AnnotationFile:
    """The tiers of an ELAN file. Raises DataError if it cannot be read."""
    document = read_eaf(path)
    media, origin_ms = read_media(path, document)
    try:
        tiers = _read_tiers(document, origin_ms)
        return AnnotationFile(
            path=path, media=media, tiers=tiers, other_media=read_other_media(document)
        )
    except (KeyError, ValueError, OverflowError) as error:
        found = f"its annotations refer to wrong ones: {one_line(error)}"
        raise DataError(path, f"damaged ({found})", "open it in ELAN and save it again") from error


def _read_tiers(document: ElementTree.Element, origin_ms: int) -> list[Tier]:
    """Raises KeyError, ValueError or CycleError if identifiers are wrong."""
    seconds: dict[str | None, float | None] = {
        one.get("TIME_SLOT_ID"): (int(value) + origin_ms) / 1000
        if (value := one.get("TIME_VALUE"))
        else None
        for one in document.iterfind("TIME_ORDER/TIME_SLOT")
    }
    elements = document.findall("TIER/ANNOTATION/*")
    for tier, *_ in sorted(
        _read_lineages(document).values(), key=len
    ):  # a part is divided after the whole
        _interpolate(seconds, tier.findall("ANNOTATION/ALIGNABLE_ANNOTATION"))
    annotations = {one.get("ANNOTATION_ID", ""): one for one in elements}
    if len(annotations) < len(elements):
        raise ValueError("two annotations have one ANNOTATION_ID")
    places = _find_places(annotations)
    participants = read_participants(document)
    tiers = []
    for tier in document.iterfind("TIER"):
        spans = list[tuple[float | None, float | None, str]]()
        members = [one.get("ANNOTATION_ID", "") for one in tier.iterfind("ANNOTATION/*")]
        members.sort(key=lambda identity: places[identity])
        for ancestor, same in groupby(members, key=lambda identity: places[identity][0]):
            texts = [annotations[identity].findtext("ANNOTATION_VALUE") for identity in same]
            begin, end = (
                seconds[annotations[ancestor].get(f"TIME_SLOT_REF{number}")] for number in (1, 2)
            )
            spans.append((begin, end, " ".join(filter(None, texts))))
        tiers.append(
            Tier(
                name=normalize_phones(tier.get("TIER_ID", "")),
                kind=normalize_phones(tier.get("LINGUISTIC_TYPE_REF", "")),
                participant=normalize_phones(participants[tier.get("TIER_ID", "")]),
                parent=normalize_phones(tier.get("PARENT_REF", "")),
                spans=sorted(spans, key=lambda one: (one[0] is None, one[0] or 0.0)),
            )
        )
    return tiers


def _interpolate(
    seconds: dict[str | None, float | None], elements: Sequence[ElementTree.Element]
) -> None:
    """Give slots without a time those that divide the span between two times evenly, as ELAN shows
    them.
    """
    ends = {one.get("TIME_SLOT_REF1"): one.get("TIME_SLOT_REF2") for one in elements}
    for slot in [slot for slot in ends if seconds.get(slot) is not None]:
        chain = [slot, ends[slot]]
        while chain[-1] in ends and seconds.get(chain[-1]) is None and len(chain) <= len(ends):
            chain.append(ends[chain[-1]])
        begin, end = seconds[slot], seconds.get(chain[-1])
        if len(chain) > 2 and begin is not None and end is not None:
            for number, between in enumerate(chain[1:-1], start=1):
                seconds[between] = begin + (end - begin) * number / (len(chain) - 1)


def _find_places(
    annotations: Mapping[str, ElementTree.Element],
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Per annotation the one with times that it belongs to, also over several tiers, and its
    position below it.

    PREVIOUS_ANNOTATION gives the order of annotations with the same parent, not the file.
    """
    attributes = ("ANNOTATION_REF", "PREVIOUS_ANNOTATION")
    links = {
        identity: [one.get(name, "") for name in attributes]
        for identity, one in annotations.items()
    }
    places = dict[str, tuple[str, tuple[int, ...]]]()
    for identity in filter(annotations.__contains__, TopologicalSorter(links).static_order()):
        parent, previous = links[identity]
        ancestor, above = places[parent] if parent else (identity, None)
        _, before = places.get(previous, ("", ()))
        places[identity] = (
            ancestor,
            () if above is None else (*above, before[-1] + 1 if before else 0),
        )
    return places


# ---- writing


def write_eaf(
    path: Path,
    recording: TranscribedRecording,
    tier: str,
    low_confidence: float,
    *,
    source: Path | None = None,
    into_tier: str | None = None,
) -> int:
    """Write the tiers of a recording as ELAN file.

    Returns the number of annotations that were filled.

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
                value.text, num_filled = segment.text, num_filled + 1
    participants = {
        normalize_phones(one): name for one, name in read_participants(document).items()
    }
    known = (
        {*participants.values()}
        if into_tier is None
        else {participants[normalize_phones(into_tier)]}
    )
    participant = known.pop() if len(known := known - {""}) == 1 else ""
    tiers = make_tiers(recording, tier, low_confidence)
    lost = [
        sum(one.end <= origin_ms / 1000 for one in parts)
        for parts in (recording.segments, recording.words)
    ]
    if any(lost):
        message = "%s: %d segments and %d words before ELAN's time 0 (%d ms of the recording) are left out"
        logger.warning(message, path, *lost, origin_ms)
    identifiers = [
        one.get("TIME_SLOT_ID") or one.get("ANNOTATION_ID") or "" for one in document.iter()
    ]
    first = max(int(re.sub(r"\D", "", one) or 0) for one in identifiers)
    new, last = _new_eaf(tiers, participant, 1 + first, origin_ms)
    known = {one.get("LINGUISTIC_TYPE_ID") or one.get("STEREOTYPE") for one in document}
    types = [*new.findall("LINGUISTIC_TYPE"), *new.findall("CONSTRAINT")]
    document.extend(new.findall("TIER"))
    document.extend(
        one
        for one in types
        if (one.get("LINGUISTIC_TYPE_ID") or one.get("STEREOTYPE")) not in known
    )
    document[:] = sorted(document, key=lambda one: _EAF_ORDER.get(one.tag, len(_EAF_ORDER)))
    _add_time_slots(_child(document, "TIME_ORDER"), _child(new, "TIME_ORDER"))
    header = _child(document, "HEADER")
    _link_media(header, recording.media, path.parent, (source or path).parent, origin_ms)
    used = [one for one in header.findall("PROPERTY") if one.get("NAME") == "lastUsedAnnotationId"]
    (used or [ElementTree.SubElement(header, "PROPERTY", NAME="lastUsedAnnotationId")])[
        0
    ].text = str(last)
    _remove_not_xml(path, document)
    ElementTree.indent(document, " " * 4)
    data = ElementTree.tostring(document, "UTF-8", xml_declaration=True)
    write_atomic(path, data.replace(b"\r", b"&#13;") + b"\n")  # readers make a newline of \r
    return num_filled


def _remove_not_xml(path: Path, document: ElementTree.Element) -> None:
    """Leave out of all texts and attributes what XML cannot contain; a warning states how much that
    is.

    Of paths these characters are escaped as `%1B`, so that the file is found.
    """
    removed = Counter[str]()
    for element in document.iter():
        for name, value in element.items():
            if not _NOT_XML.search(value):
                continue
            if name.endswith("_URL"):
                element.set(name, _NOT_XML.sub(_escape_in_url, value))
            else:
                removed.update(_NOT_XML.findall(value))
                element.set(name, _NOT_XML.sub("", value))
        if element.text and _NOT_XML.search(element.text):
            removed.update(_NOT_XML.findall(element.text))
            element.text = _NOT_XML.sub("", element.text)
    if removed:
        counts = list_names(
            [f"U+{ord(character):04X} ({count})" for character, count in removed.most_common()]
        )
        logger.warning(
            "%s: control characters, which ELAN cannot read, are left out of its texts: %s",
            path,
            counts,
        )


def _escape_in_url(match: re.Match[str]) -> str:
    """The bytes of a character of a file name as `%1B`; a byte that is not UTF-8 is a surrogate in
    Python.
    """
    return quote(os.fsencode(match.group()))


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
    eaf.adocument["DATE"] = (
        datetime.now().astimezone().isoformat(timespec="seconds")
    )  # pympi's is wrong in India
    return eaf


def _new_eaf(
    tiers: Sequence[Tier], participant: str, first: int, origin_ms: int
) -> tuple[ElementTree.Element, int]:
    """A document with the tiers, their types and constraints, and the number of its last
    annotation.

    `participant`: of the tiers without one.

    Identifiers are above `first`. Times begin at `origin_ms`; what ends before is left out. pympi's
    attributes are set directly where its methods search all annotations.
    """
    eaf = _empty_eaf()
    eaf.maxts = eaf.maxaid = first
    for tier in tiers:
        is_aligned = _CONSTRAINTS[tier.kind] != "Symbolic_Association"
        eaf.add_linguistic_type(tier.kind, _CONSTRAINTS[tier.kind], is_aligned)
        eaf.add_tier(
            tier.name, tier.kind, tier.parent or None, part=tier.participant or participant or None
        )
        parents = eaf.tiers[tier.parent][0] if tier.parent else {}
        parent_at = {eaf.timeslots[begin]: identity for identity, (begin, *_) in parents.items()}
        for *times, text in tier.timed_spans:
            begin, end = (max(0, round(1000 * second) - origin_ms) for second in times)
            if end and is_aligned:
                eaf.add_annotation(tier.name, begin, end, text)
            elif end:
                eaf.tiers[tier.name][1][eaf.generate_annotation_id()] = (
                    parent_at[begin],
                    text,
                    None,
                    None,
                )
    return to_adocument(eaf, pretty=False), eaf.maxaid


def _add_time_slots(slots: ElementTree.Element, new: ElementTree.Element) -> None:
    """Add slots in the order of time: ELAN reads them in order.

    One without a time stays after the one before it.
    """
    time, times = 0, dict[ElementTree.Element, int]()
    for slot in (*slots, *new):
        value = slot.get("TIME_VALUE")
        times[slot] = time = int(value) if value else time
    slots[:] = sorted(times, key=times.__getitem__)


def _link_media(
    header: ElementTree.Element, media: Path, folder: Path, old_folder: Path, origin_ms: int
) -> None:
    """Set the absolute and relative links to files that exist, as seen from `folder`, and that of
    the recording.

    If no link is that of the recording, it replaces one to audio that does not exist. A link to a
    video stays.
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
        link.set(
            f"RELATIVE_{kind}_URL", relative if relative.startswith("../") else f"./{relative}"
        )
