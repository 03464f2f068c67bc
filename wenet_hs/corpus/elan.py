# SPDX-License-Identifier: Apache-2.0
"""Recordings that were annotated with ELAN: .eaf files, one utterance per annotation of a tier.

Example: wenet-hs prepare elan --corpus fieldwork --tier "utterance@*" --lang mdw --out data
         wenet-hs prepare elan --corpus fieldwork --tier_type phonetic --unit phone --lang mdw --out data

The audio is the file's linked media, also where the link is of another computer, or the file of the same name with a
suffix of audio. The speaker is the participant of the tier. Annotations without times of their own have those of the
annotation that they belong to; several of one (words of an utterance) become one utterance.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pympi import Eaf

from wenet_hs.corpus import entries
from wenet_hs.corpus.entries import Entry
from wenet_hs.corpus.output import Rejected
from wenet_hs.data.annotations import read_eaf
from wenet_hs.errors import DataError, list_names, one_line


@dataclass(frozen=True, kw_only=True)
class Tier:
    """A tier of one file, with the annotations that have text or times."""

    name: str
    kind: str = ""
    """Linguistic type."""
    participant: str = ""
    is_dependent: bool = False
    spans: Sequence[tuple[float | None, float | None, str]] = ()
    """Begin and end in seconds, and text; None where the annotation has no time."""


@dataclass(frozen=True, kw_only=True)
class AnnotationFile:
    """What an annotation file contains, whatever its form."""

    path: Path
    media: tuple[str, ...]
    """Paths as they are written in the file, sound before video; then the file's own name."""
    tiers: Sequence[Tier]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `prepare elan`."""
    entries.add_arguments(parser, "an .eaf file, or a folder that is searched for them with its subfolders")
    add_tier_arguments(parser)
    type_help = "linguistic types of the tiers with the transcripts, with * for any characters"
    parser.add_argument("--tier_type", nargs="+", action="extend", default=[], metavar="TYPE", help=type_help)
    parser.add_argument(
        "--participant", nargs="+", action="extend", default=[], metavar="NAME", help="only tiers of these participants"
    )


def add_tier_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that name tiers."""
    tier_help = "tiers with the transcripts, with * for any characters (default: the only tier that can be meant)"
    parser.add_argument("--tier", nargs="+", action="extend", default=[], metavar="NAME", help=tier_help)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Write the lists of ELAN files. Returns the content of `stats.json`."""
    files = [read_elan(path) for path in find_files(args.corpus, ".eaf", "ELAN")]

    def is_chosen(tier: Tier) -> bool:
        return (
            matches_any(tier.name, args.tier)
            and matches_any(tier.kind, args.tier_type)
            and matches_any(tier.participant, args.participant)
        )

    flags = [*args.tier, *args.tier_type, *args.participant]
    rows = tier_entries(files, is_chosen if flags else None, flags, lambda tier: tier.participant or None)
    return entries.prepare_entries(args, "elan", rows, {"tiers": flags})


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name fits one of the patterns with `*`, or there is none."""
    return not patterns or any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def find_files(corpus: Path, suffix: str, program: str) -> list[Path]:
    """The annotation files of a folder and its subfolders, or the file itself."""
    found = (
        [corpus]
        if corpus.is_file()
        else sorted(path for path in corpus.rglob("*") if path.suffix.lower() == suffix.lower())
    )
    if not found or found[0].suffix.lower() != suffix.lower():
        raise DataError(f"{corpus}: no {suffix} file of {program}; --corpus is such a file, or a folder with them")
    return found


def tier_entries(
    files: Sequence[AnnotationFile],
    is_chosen: Callable[[Tier], bool] | None,
    flags: Sequence[str],
    speaker_of: Callable[[Tier], str | None],
) -> Iterator[Entry | Rejected]:
    """The annotations of the chosen tiers.

    Args:
        is_chosen: None: the only independent tier name with annotations, over all files.
        flags: what the user gave to choose, for the message.
    Raises DataError, with the tiers that exist, if no tier is chosen or it is not clear which one is meant.
    """
    if is_chosen is None:
        names = {tier.name for file in files for tier in file.tiers if tier.spans and not tier.is_dependent}
        if len(names) != 1:
            raise DataError(f"{len(names)} tiers can be meant; name one or several with --tier: {_describe(files)}")
        is_chosen = lambda tier: tier.name in names  # noqa: E731
    if not any(is_chosen(tier) and tier.spans for file in files for tier in file.tiers):
        given = " ".join(flags)
        raise DataError(f"no file has annotations in a tier that {given!r} names; there are: {_describe(files)}")
    for file in files:
        for tier in filter(is_chosen, file.tiers):
            for start, end, txt in tier.spans:
                where = (
                    f"{file.path.name}: {tier.name}, {start:.3f} s"
                    if start is not None
                    else f"{file.path.name}: {tier.name}"
                )
                if start is None or end is None:
                    yield Rejected(where, str(file.path), f"no time: {txt[:40]!r}", "")
                    continue
                speaker = speaker_of(tier)
                yield Entry(
                    where=where,
                    audio=file.media,
                    folder=file.path.parent,
                    txt=txt,
                    speaker=speaker,
                    start=start,
                    end=end,
                )


def _describe(files: Iterable[AnnotationFile]) -> str:
    """The tiers of all files: name, type, participant, number of annotations and files."""
    counts: dict[tuple[str, str, str], list[int]] = {}
    for file in files:
        for tier in file.tiers:
            count = counts.setdefault((tier.name, tier.kind, tier.participant), [0, 0])
            count[0] += len(tier.spans)
            count[1] += 1
    shown = [
        f"{name!r} ({', '.join(filter(None, (kind, who, f'{annotations} annotations in {num_files} files')))})"
        for (name, kind, who), (annotations, num_files) in sorted(counts.items(), key=lambda one: -one[1][0])
    ]
    return list_names(shown, "; ", most=12) or "no tier"


# ---- .eaf


def read_elan(path: Path) -> AnnotationFile:
    """The tiers of an ELAN file. Raises DataError if it cannot be read."""
    read_eaf(path)
    try:
        eaf = Eaf(str(path), suppress_version_warning=True)
        media = sorted(eaf.media_descriptors, key=lambda one: str(one.get("MIME_TYPE")).startswith("video"))
        sounds = [one for one in media if not str(one.get("MIME_TYPE")).startswith("video")] or media
        origins = {int(one.get("TIME_ORIGIN") or 0) for one in sounds} or {0}
        if len(origins) > 1:
            raise ValueError("its sound files have different offsets, TIME_ORIGIN")
        tiers = [_read_tier(eaf, name, min(origins)) for name in eaf.tiers]
    except Exception as error:  # pympi raises Exception, and whatever a wrong file leads to
        found = f"{type(error).__name__} {one_line(error)}"
        raise DataError(f"{path}: damaged ({found}); open it in ELAN and save it again") from error
    written = [one.get(name, "") for one in media for name in ("RELATIVE_MEDIA_URL", "MEDIA_URL")]
    return AnnotationFile(path=path, media=(*filter(None, written), path.stem), tiers=tiers)


def _read_tier(eaf: Eaf, name: str, origin_ms: int) -> Tier:
    aligned, references, attributes, _ = eaf.tiers[name]
    spans = [(*_times(eaf, one[:2], origin_ms), one[2]) for one in aligned.values()]
    of_parent: dict[str, list[str]] = {}
    for identity, (_, txt, _, _) in references.items():
        of_parent.setdefault(_aligned_ancestor(eaf, identity), []).append(txt)
    for parent, texts in of_parent.items():
        times = eaf.tiers[eaf.annotations[parent]][0][parent][:2]
        spans.append((*_times(eaf, times, origin_ms), " ".join(filter(None, texts))))
    return Tier(
        name=name,
        kind=attributes.get("LINGUISTIC_TYPE_REF", ""),
        participant=attributes.get("PARTICIPANT", ""),
        is_dependent=bool(attributes.get("PARENT_REF")),
        spans=sorted(spans, key=lambda one: (one[0] is None, one[0] or 0.0)),
    )


def _aligned_ancestor(eaf: Eaf, identity: str) -> str:
    """The annotation with times that an annotation belongs to, also over several tiers."""
    references: Mapping[str, tuple[str, ...]] = eaf.tiers[eaf.annotations[identity]][1]
    while identity in references:
        identity = references[identity][0]
        references = eaf.tiers[eaf.annotations[identity]][1]
    return identity


def _times(eaf: Eaf, slots: Sequence[str], origin_ms: int) -> tuple[float | None, float | None]:
    """Seconds in the media file; ELAN's own times begin `TIME_ORIGIN` later."""
    begin, end = (eaf.timeslots[slot] for slot in slots)
    return (None if begin is None else (begin + origin_ms) / 1000, None if end is None else (end + origin_ms) / 1000)
