# SPDX-License-Identifier: Apache-2.0
"""Readers of annotation files, with checks: ELAN (.eaf of format 2 and 3) and Praat (.TextGrid, long or short)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from wenet_hs.errors import DataError, list_names, one_line
from wenet_hs.files import read_bytes
from wenet_hs.text.normalize import normalize_phones


def read_eaf(path: Path) -> ElementTree.Element:
    """The document of an ELAN file of format 2 or 3. Raises DataError."""
    remedy = "open it in ELAN and save it again"
    try:
        document = ElementTree.fromstring(read_bytes(path))
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # the last two: an unknown encoding
        raise DataError(path, f"not XML ({error})", remedy) from error
    if document.tag != "ANNOTATION_DOCUMENT" or document.find("HEADER") is None or document.find("TIME_ORDER") is None:
        raise DataError(path, f"not an ELAN file (<{document.tag}>)", remedy)
    version = document.get("FORMAT") or document.get("VERSION") or "?"
    if version.partition(".")[0] not in ("2", "3"):
        raise DataError(path, f"EAF format {version}", "only 2 and 3 can be read, save it as EAF 3.0 in ELAN")
    times = [one.get(name) or "0" for one in document.iter() for name in ("TIME_VALUE", "TIME_ORIGIN")]
    if wrong := [time for time in times if not re.fullmatch(r"-?\d+", time)]:
        raise DataError(path, f"{wrong[0]!r} is no time in milliseconds", remedy)
    return document


def read_media(path: Path, document: ElementTree.Element) -> tuple[tuple[str, ...], int]:
    """The recording of the ELAN file at `path`, and TIME_ORIGIN: the ms of the recording at which ELAN's times begin.

    The paths are those of the links as they are written, sound before video, and the file's own name. Links with
    another TIME_ORIGIN than the first one are left out, and then the file's own name too: their times differ.
    """
    links = document.findall("HEADER/MEDIA_DESCRIPTOR")
    links.sort(key=lambda link: link.get("MIME_TYPE", "").startswith("video"))
    origins = [int(link.get("TIME_ORIGIN") or 0) for link in links] or [0]
    paths = [one for link, ms in zip(links, origins, strict=False) if ms == origins[0] for one in link_paths(link)]
    return (*paths, *([path.stem] if len({*origins}) == 1 else ())), origins[0]


def link_paths(link: ElementTree.Element) -> list[str]:
    """The paths of a link to media or another file as they are written; the relative one is first."""
    names = ("RELATIVE_MEDIA_URL", "MEDIA_URL", "RELATIVE_LINK_URL", "LINK_URL")
    return [written for name in names if (written := link.get(name))]


def read_participants(document: ElementTree.Element) -> dict[str, str]:
    """The participant of each tier of an ELAN file, by TIER_ID: its own, or that of a tier that it depends on."""
    tiers = {one.get("TIER_ID", ""): one for one in document.iterfind("TIER")}
    found = dict[str, str]()
    for name, tier in tiers.items():
        above = [tier]
        while (parent := tiers.get(above[-1].get("PARENT_REF", ""))) is not None and parent not in above:
            above.append(parent)
        found[name] = next(filter(None, (one.get("PARTICIPANT") for one in above)), "")
    return found


def read_aligned(path: Path, document: ElementTree.Element, tier: str) -> list[tuple[int, int, ElementTree.Element]]:
    """Begin and end in ms of ELAN, and the element of ANNOTATION_VALUE, of each annotation of a tier, in order.

    Raises DataError if the tier does not exist, has no annotations, or some without times of their own.
    """
    times = {one.get("TIME_SLOT_ID"): one.get("TIME_VALUE") for one in document.iterfind("TIME_ORDER/TIME_SLOT")}
    tiers = {normalize_phones(one.get("TIER_ID", "")): one for one in document.iterfind("TIER")}
    if normalize_phones(tier) not in tiers:
        raise DataError(path, f"no tier {tier!r}", f"there are: {list_names([*tiers], most=20)}")
    found = []
    for one in tiers[normalize_phones(tier)].iterfind("ANNOTATION/*"):
        begin, end = (times.get(one.get(f"TIME_SLOT_REF{number}")) for number in (1, 2))
        if not (begin and end and (value := one.find("ANNOTATION_VALUE")) is not None):
            raise DataError(path, f"tier {tier!r} has annotations without times", "name the tier that it depends on")
        found.append((int(begin), int(end), value))
    if not found:
        raise DataError(path, f"tier {tier!r} has no annotations", "segment the recording in ELAN first")
    return sorted(found, key=lambda one: one[:2])


Span = tuple[float, float, str]
"""Begin and end in seconds, and text; of a point both times are equal."""


@dataclass(frozen=True)
class GridTier:
    """A tier of a TextGrid."""

    name: str
    is_interval: bool
    spans: Sequence[Span]


@dataclass(frozen=True)
class Grid:
    """A TextGrid: its times in seconds, and its tiers in order."""

    start: float
    end: float
    tiers: Sequence[GridTier]


_MAX_DIFFERENCE_S = 0.1  # of a TextGrid and its audio
_GRID_TOKEN = re.compile(r'"((?:[^"]|"")*)"|<exists>|<absent>|(?<!\S)-?\d\S*(?!\S)|!.*')
"""By Praat's own rule: quoted strings, flags, numbers with white space around them, and comments."""


def read_textgrid(path: Path) -> Grid:
    """A TextGrid, long or short, UTF-8 or UTF-16.

    Every interval and point that the file declares is there. Raises DataError if one is missing.
    """
    remedy = "save it as text file in Praat"
    try:
        data = read_bytes(path)
        if not data.strip() or data.startswith(b"ooBinaryFile"):
            raise DataError(path, "a binary file" if data.strip() else "empty", remedy)
        return _parse_grid(data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(path, "neither UTF-8 nor UTF-16", "save it again in Praat") from error
    except StopIteration as error:
        raise DataError(path, "cut off, or not a TextGrid", f"restore the file, or {remedy}") from error
    except ValueError as error:
        raise DataError(path, f"not a TextGrid ({one_line(error)})", remedy) from error


def find_shift(start: float, end: float, duration_s: float) -> float | str:
    """Seconds to add to the times of a TextGrid, so that they count from the beginning of its audio.

    A TextGrid of a part of a recording may keep the times of the recording. The length of the audio decides whether
    that is the recording up to the end of the part, or the part. Returns: the seconds, or why neither fits.
    """
    if abs(start) < 0.001:
        return 0.0
    distances = {0.0: abs(duration_s - end), -start: abs(duration_s - (end - start))}
    shift = min(distances, key=distances.__getitem__)
    if distances[shift] <= _MAX_DIFFERENCE_S:
        return shift
    expected = f"{end:g} s (with the times of the recording) or {end - start:g} s (of this part)"
    return f"times: begins at {start:g} s and its audio has {duration_s:.3f} s; give the audio that has {expected}"


def _parse_grid(text: str) -> Grid:
    """Raises StopIteration at the end of a file that is cut off, ValueError for other content."""
    if '"TextGrid"' not in text:
        raise ValueError('no "TextGrid" in it')
    found = _GRID_TOKEN.finditer(text, text.index('"TextGrid"') + len('"TextGrid"'))
    tokens = (one[0] if one[1] is None else one[1].replace('""', '"') for one in found if one[0][0] != "!")
    start, end, flag = float(next(tokens)), float(next(tokens)), next(tokens)
    if flag not in ("<exists>", "<absent>"):
        raise ValueError(f"{flag!r} instead of <exists>")
    tiers = []
    for _ in range(int(next(tokens)) if flag == "<exists>" else 0):
        kind, name, _, _, size = (next(tokens), next(tokens), next(tokens), next(tokens), next(tokens))
        if kind not in ("IntervalTier", "TextTier"):
            raise ValueError(f"a tier of the kind {kind!r}")
        is_interval, spans = kind == "IntervalTier", []
        for number in range(1, int(size) + 1):
            try:
                begin = float(next(tokens))
                spans.append((begin, float(next(tokens)) if is_interval else begin, next(tokens)))
            except ValueError as error:
                raise ValueError(f"tier {name!r}, number {number}: {error}") from error
        tiers.append(GridTier(name, is_interval, spans))
    return Grid(start, end, tiers)


def add_textgrid_tiers(source: Path | None, tiers: Mapping[str, Sequence[Span]], end_s: float) -> str:
    """A long TextGrid with the tiers of `source` and new ones of intervals with text, in order.

    It ends with the longer one of both. Where there is no interval, one without text is added. If `source` has the
    times of a longer recording (`find_shift`), the new tiers get them too.
    """
    old = Grid(0.0, end_s, ()) if source is None else read_textgrid(source)
    shift = find_shift(old.start, old.end, end_s)
    if isinstance(shift, str):
        raise DataError(source, shift)
    start_s, end_s = 0.0 - shift, end_s - shift
    end_s = end_s if end_s - old.end > 0.001 else old.end
    new = {name: [(begin + start_s, end + start_s, text) for begin, end, text in tiers[name]] for name in tiers}
    found = [*old.tiers, *(GridTier(name, True, spans) for name, spans in new.items())]
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", f"xmin = {start_s!r}\nxmax = {end_s!r}"]
    lines += ["tiers? <exists>", f"size = {len(found)}", "item []:"]
    for number, tier in enumerate(found, start=1):
        kind, plural, label = (
            ("IntervalTier", "intervals", "text") if tier.is_interval else ("TextTier", "points", "mark")
        )
        spans = _fill(tier.spans, start_s, end_s) if tier.is_interval else tier.spans
        name = tier.name.replace('"', '""')
        lines += [f"    item [{number}]:", f'        class = "{kind}"', f'        name = "{name}"']
        lines += [f"        xmin = {start_s!r}", f"        xmax = {end_s!r}", f"        {plural}: size = {len(spans)}"]
        for position, (begin, end, text) in enumerate(spans, start=1):
            times = f"xmin = {begin!r}\n            xmax = {end!r}" if tier.is_interval else f"number = {begin!r}"
            quoted = text.replace('"', '""')
            lines += [f"        {plural} [{position}]:", f"            {times}", f'            {label} = "{quoted}"']
    return "\n".join(lines) + "\n"


def _fill(spans: Sequence[Span], start_s: float, end_s: float) -> list[Span]:
    """The intervals, and those without text between them, from `start_s` to `end_s`."""
    filled, last = list[Span](), start_s
    for begin, end, text in (*spans, (end_s, end_s, "")):
        if begin - last > 1e-5:  # not for a difference of rounding
            filled.append((last, begin, ""))
        filled.append((begin, min(end, end_s), text))
        last = max(last, end)
    return filled[:-1]
