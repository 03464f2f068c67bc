# SPDX-License-Identifier: Apache-2.0
"""Recordings that were annotated with ELAN: .eaf files, one utterance per annotation of a tier.

Example: wenet-hs prepare elan --corpus fieldwork --tier "utterance@*" --lang mdw --out data
         wenet-hs prepare elan --corpus fieldwork --tier_type phonetic --unit phone --lang mdw --out data

The audio is the file's linked media, also where the link is of another computer, or the file of the
same name with a suffix of audio. The speaker is the participant of the tier, or of the one that it
depends on. Annotations without times of their own have those of the annotation that they belong to;
several of one (words of an utterance) become one utterance.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import combinations, pairwise
from os.path import commonprefix
from pathlib import Path
from typing import Any, Literal

from wenet_hs.annotation.eaf import find_offset_fault, read_elan
from wenet_hs.annotation.textgrid import find_shift
from wenet_hs.annotation.tiers import AnnotationFile, Tier
from wenet_hs.base.options import REQUIRED, option
from wenet_hs.corpus.channels import count_channels, find_channel_name
from wenet_hs.corpus.entries import Entry, RecordingOptions, prepare_entries
from wenet_hs.corpus.intervals import NOISES, UNKNOWN, join_tiers
from wenet_hs.corpus.output import Rejected
from wenet_hs.corpus.pauses import ALIGNER_LABELS, is_pause_label
from wenet_hs.corpus.speakers import SPEAKER_HELP, name_speakers
from wenet_hs.data.audio import AudioError, read_duration
from wenet_hs.data.media import ALL_SUFFIXES, find_files
from wenet_hs.manifest.file_forms import refuse_annotations
from wenet_hs.text.normalize import normalize_phones
from wenet_hs.tree.errors import DataError, list_names, refuse_faults

logger = logging.getLogger(__name__)


_FLAGS = {"name": "--tier", "kind": "--tier_type", "participant": "--participant"}
"""Attribute of a tier → the flag of its patterns."""
_MIN_BEGINNING = 2
"""Letters at the beginning of labels such as `story_a`."""
_MIN_CODES = 10
"""A tier with fewer annotations tells nothing about what it contains."""
_MAX_CODES = 10
"""Different texts of a tier of codes, such as `LH`, `RH`, `BH` for the hands of a signer."""
_MIN_REPETITIONS = 5
"""How often each text of a tier of codes occurs on average."""
_MAX_SNIFFED = 100
"""Files of other suffixes that are read to name their form, where no file has the right suffix."""


@dataclass(frozen=True, kw_only=True)
class TierOptions(RecordingOptions):
    """Options of what tiers contain."""

    tier: tuple[str, ...] = option(
        (),
        "tiers with the transcripts, with * for any characters (default: the only one with annotations)",
        metavar="NAME",
    )
    join_intervals: float | None = option(
        None,
        "intervals are words or phones: join those between pauses of at least S seconds; "
        f"{' '.join(ALIGNER_LABELS)}, with phones pau, labels such as # and <p:>, and no label are pauses (see "
        f"--pauses); at labels of unknown speech and noise ({' '.join([*UNKNOWN, *NOISES])}) an utterance ends too",
        metavar="S",
    )
    speaker_from: str
    """An option of each form, with its sources."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.join_intervals is not None and not self.join_intervals > 0:
            raise ValueError(
                f"join_intervals {self.join_intervals:g}: must be above 0, in seconds, such as 0.5"
            )


@dataclass(frozen=True, kw_only=True)
class ElanOptions(TierOptions):
    """Options of `prepare elan`."""

    corpus: Path = option(
        REQUIRED, "an .eaf file, or a folder that is searched for them with its subfolders"
    )
    tier_type: tuple[str, ...] = option(
        (),
        "linguistic types of the tiers with the transcripts, with * for any characters",
        metavar="TYPE",
    )
    participant: tuple[str, ...] = option((), "only tiers of these participants", metavar="NAME")
    speaker_from: Literal["participant", "tier", "file", "folder"] = option(
        "participant", SPEAKER_HELP
    )


def prepare(options: ElanOptions) -> dict[str, Any]:
    """Write the lists of ELAN files. Returns the content of `stats.json`."""
    wanted = {"name": options.tier, "kind": options.tier_type, "participant": options.participant}
    return prepare_files(options, "elan", ".eaf", read_elan, wanted)


def prepare_files(
    options: TierOptions,
    form: str,
    suffix: str,
    read: Callable[[Path], AnnotationFile],
    wanted: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Write the lists of annotation files. Returns the content of `stats.json`.

    Args:
        wanted: patterns with `*` per attribute of a tier. Without a name or type: the only
            independent tier with annotations, of each wanted participant.
    Raises DataError if no file can be read, and, with the tiers that exist, if it is not clear
        which tiers are meant.
    """
    files, unreadable = _read_files(options.corpus, suffix, read, options.max_rejected)
    unknown = [
        f"{_FLAGS[name]} '{pattern}'"
        for name, patterns in wanted.items()
        for pattern in patterns
        if not any(_fits(getattr(tier, name), [pattern]) for file in files for tier in file.tiers)
    ]
    if unknown:
        raise DataError(
            options.corpus,
            f"no file has a tier of {', '.join(unknown)}",
            f"there are: {_describe(files)}",
        )
    is_wanted = _tier_chooser(files, wanted)
    used = [replace(file, tiers=[tier for tier in file.tiers if is_wanted(tier)]) for file in files]
    others = [
        replace(file, tiers=[tier for tier in file.tiers if not is_wanted(tier)]) for file in files
    ]
    if not any(tier.spans for file in used for tier in file.tiers):
        given = " ".join(
            f"{_FLAGS[name]} {' '.join(patterns)}" for name, patterns in wanted.items() if patterns
        )
        found = (
            f"no file has annotations in a tier of {given}"
            if given
            else "no independent tier has annotations"
        )
        raise DataError(options.corpus, found, f"there are: {_describe(files)}")
    logger.info("tiers used: %s", _describe(used))
    logger.info("tiers not used: %s", _describe(others))
    if options.unit != "phone" and options.join_intervals is None:  # phones and words recur too
        _report_codes(files, used)
    without = _without_annotations(files, used, options.corpus)
    num_unnamed = len(
        {tier.name for file in used for tier in file.tiers if tier.spans and not tier.participant}
    )
    if num_unnamed > 1 and options.speaker_from in ("participant", "none"):
        hint = "--speaker_from tier takes the tiers' names, if these are people"
        logger.info(
            "%d of the tiers used name no participant, so their speakers are unknown; %s",
            num_unnamed,
            hint,
        )
    all_spans = [tier.spans for file in used for tier in file.tiers]
    spans = iter(join_tiers(all_spans, options.join_intervals, options.unit, options.pauses))
    joined = [
        replace(file, tiers=[replace(tier, spans=next(spans)) for tier in file.tiers])
        for file in used
    ]
    facts = {"tiers": {"used": _count_annotations(used), "not_used": _count_annotations(others)}}
    return prepare_entries(
        options, form, [*unreadable, *without, *_tier_entries(joined, options)], facts
    )


def _without_annotations(
    files: Sequence[AnnotationFile], used: Sequence[AnnotationFile], corpus: Path
) -> Iterator[Rejected]:
    """The files of which no annotation is used; each gets a warning if it has annotations in other
    tiers.
    """
    for file, chosen in zip(files, used, strict=True):
        if not any(tier.spans for tier in chosen.tiers):
            found = "no annotation in the tiers that are used"
            if any(tier.spans for tier in file.tiers):
                logger.warning("%s: %s; it has: %s", file.path, found, _describe([file]))
            name = str(file.path.relative_to(corpus)) if corpus.is_dir() else file.path.name
            yield Rejected(name, str(file.path), f"no tier: {found}", "", is_fault=False)


def _read_files(
    corpus: Path, suffix: str, read: Callable[[Path], AnnotationFile], max_rejected: float
) -> tuple[list[AnnotationFile], list[Rejected]]:
    """The files of a folder and its subfolders that can be read, and those that cannot.

    Raises DataError if no file can be read, or if the share that cannot be read is above
    `max_rejected`. If no file has the suffix, the line names the first one with a known form.
    """
    there = [corpus] if corpus.is_file() else [*find_files(corpus)]
    paths = [path for path in there if path.suffix.lower() == suffix.lower()]
    if not paths:
        texts = [path for path in there if path.suffix.lower() not in ALL_SUFFIXES]
        refuse_annotations(*texts[:_MAX_SNIFFED])
        found = f"no {suffix} file" if corpus.exists() else "no such file or folder"
        raise DataError(corpus, found, f"--corpus is a {suffix} file, or a folder with them")
    files, faults = list[AnnotationFile](), dict[Path, str]()
    for path in paths:
        try:
            files.append(read(path))
        except DataError as error:
            faults[path] = str(error)
    if not files:
        refuse_faults(corpus, [*faults.values()])
    for fault in faults.values():
        logger.warning("%s", fault)
    if len(faults) > max_rejected * len(paths):
        found = f"{len(faults)} of {len(paths)} {suffix} files cannot be read"
        raise DataError(
            corpus, found, f"repair them, or allow it with --max_rejected (now {max_rejected:g})"
        )
    reasons = {
        path: f"unreadable: {fault.removeprefix(f'{path}: ')}" for path, fault in faults.items()
    }
    return files, [Rejected(path.name, str(path), reason, "") for path, reason in reasons.items()]


def _tier_chooser(
    files: Sequence[AnnotationFile], wanted: Mapping[str, Sequence[str]]
) -> Callable[[Tier], bool]:
    """Whether a tier is wanted. See `prepare_files`."""
    is_by_name = wanted["name"] or wanted.get("kind")

    def is_wanted(tier: Tier) -> bool:
        is_candidate = tier.is_interval and bool(is_by_name or not tier.parent)
        return is_candidate and all(_fits(getattr(tier, name), wanted[name]) for name in wanted)

    names = defaultdict[str, set[str]](set)
    for file in files:
        chosen = {tier.name: tier for tier in file.tiers if is_wanted(tier)}
        parents = {tier.name: tier.parent for tier in file.tiers}
        if both := [
            (name, one) for name in chosen for one in _ancestors(name, parents) if one in chosen
        ]:
            found = (
                f"tier '{both[0][0]}' depends on tier '{both[0][1]}', so they have the same speech"
            )
            raise DataError(file.path, found, "name one of them with --tier")
        top = {name: [name, *_ancestors(name, parents)][-1] for name in chosen}
        for a, b in combinations(chosen.values(), 2):
            is_one = top[a.name] == top[b.name] and a.participant == b.participant
            if is_one and {one[:2] for one in a.spans} & {one[:2] for one in b.spans}:
                found = (
                    f"tiers '{a.name}' and '{b.name}' depend on one tier and have the same speech"
                )
                raise DataError(file.path, found, "name one of them with --tier")
        for tier in chosen.values():
            names[tier.participant if wanted.get("participant") else ""] |= (
                {tier.name} if tier.spans else set()
            )
    if not is_by_name and (several := [of for of in names.values() if len(of) > 1]):
        shown = list_names([f"'{name}'" for name in sorted(several[0])])
        found = f"{len(several[0])} independent tiers have annotations: {shown}"
        raise DataError(
            found, to_do=f"name one or several with --tier; there are: {_describe(files)}"
        )
    if fault := _find_identifiers(files, is_wanted):
        if not is_by_name:
            raise DataError(fault)
        logger.warning("%s", fault)
    return is_wanted


@dataclass(frozen=True)
class _TierTexts:
    """The texts of the wanted tiers, and of the tiers that depend on them."""

    names: Sequence[str]
    """Of the wanted tiers, in the order of the files."""
    by_file: Sequence[Sequence[str]]
    """The texts of the wanted tiers, empty ones too."""
    transcripts: Mapping[str, Sequence[str]]
    """The texts of each dependent tier that has letters, by its name."""


def _collect_texts(
    files: Sequence[AnnotationFile], is_wanted: Callable[[Tier], bool]
) -> _TierTexts:
    names = dict[str, None]()
    by_file = list[list[str]]()
    dependent = defaultdict[str, list[str]](list)
    for file in files:
        parents = {tier.name: tier.parent for tier in file.tiers}
        wanted_names = {tier.name for tier in file.tiers if is_wanted(tier)}
        texts_of_file = list[str]()
        for tier in file.tiers:
            texts = [text for *_, text in tier.spans]
            if tier.name in wanted_names:
                names[tier.name] = None
                texts_of_file += texts
            elif wanted_names.intersection(_ancestors(tier.name, parents)):
                dependent[tier.name] += texts
        by_file.append(texts_of_file)
    transcripts = {
        name: texts for name, texts in dependent.items() if any(map(str.isalpha, "".join(texts)))
    }
    return _TierTexts([*names], by_file, transcripts)


def _find_identifiers(
    files: Sequence[AnnotationFile], is_wanted: Callable[[Tier], bool]
) -> str | None:
    """What to state if the wanted tiers seem to have codes or titles, and tiers that depend on them
    the text.

    Toolbox and FLEx number or name the sentences in the tier with the times.
    """
    tiers = _collect_texts(files, is_wanted)
    texts = [text for of_file in tiers.by_file for text in of_file]
    dependent_transcripts = tiers.transcripts
    if not texts or not dependent_transcripts:
        return None
    have_codes = look_like_codes(texts) or look_like_labels(tiers.by_file, dependent_transcripts)
    if not have_codes and not look_like_titles(texts, dependent_transcripts, num_files=len(files)):
        return None
    shown = [
        f"'{name}' ({next(filter(str.strip, of_tier))!r:.40})"
        for name, of_tier in dependent_transcripts.items()
    ]
    names = list_names([repr(name) for name in tiers.names])
    found = f"tier {names} seems to have no transcripts but {texts[0]!r:.40}"
    remedy = f"name the tiers of the transcripts with --tier; those that depend on it: {list_names(shown, most=12)}"
    return f"{found}; {remedy}"


def _report_codes(files: Sequence[AnnotationFile], used: Sequence[AnnotationFile]) -> None:
    """Warn of used tiers that seem to have codes, and that no other tier depends on.

    `_find_identifiers` names the dependent tiers of the others.
    """
    parents = {tier.parent for file in files for tier in file.tiers}
    texts_of_tiers = defaultdict[str, list[str]](list)
    for tier in (tier for file in used for tier in file.tiers):
        if tier.name not in parents:
            texts = (text.strip() for *_, text in tier.spans)
            texts_of_tiers[tier.name] += filter(_is_no_pause, texts)
    for name, labels in texts_of_tiers.items():
        if len(labels) >= _MIN_CODES and (recur_like_codes(labels) or look_like_codes(labels)):
            counts = Counter(labels)
            shown = [f"{label!r:.40} ({num})" for label, num in counts.most_common()]
            logger.warning(
                "tier %r seems to have codes: %d annotations with %d different texts, %s; "
                "if they are not what is said, write the transcripts into a tier and name it with --tier",
                name,
                len(labels),
                len(counts),
                list_names(shown, most=4),
            )


def _is_no_pause(text: str) -> bool:
    return bool(text) and not is_pause_label(text)


def recur_like_codes(texts: Sequence[str]) -> bool:
    """Whether the texts are few different single words, each of which recurs."""
    different = {*texts}
    are_few = len(different) <= min(_MAX_CODES, len(texts) / _MIN_REPETITIONS)
    return are_few and all(len(text.split()) == 1 for text in different)


def look_like_codes(texts: Sequence[str]) -> bool:
    """Whether more than half of the texts are codes such as `12`, `text_03` or `***`."""
    num_codes = sum(map(is_code, texts))
    return num_codes > len(texts) / 2


def is_code(text: str) -> bool:
    """Whether a text has at most two words with a digit in them, or no letter at all."""
    has_digit = any(map(str.isdigit, text))
    has_letter = any(map(str.isalpha, text))
    return not has_letter or (has_digit and len(text.split()) <= 2)


def look_like_labels(
    by_file: Sequence[Sequence[str]], transcripts: Mapping[str, Sequence[str]]
) -> bool:
    """Whether most files have labels such as `story_a`, `story_b`, and a tier below has several
    words per annotation.

    Words of a language may begin alike too, as verbs with a prefix do: see `are_labels`. Files with
    one annotation tell nothing.
    """
    filled = [list(filter(str.strip, of_file)) for of_file in by_file]
    several = [of_file for of_file in filled if len(of_file) > 1]
    num_labelled = sum(map(are_labels, several))
    if num_labelled <= len(several) / 2:
        return False
    return any(map(_have_several_words, transcripts.values()))


def are_labels(texts: Sequence[str]) -> bool:
    """Whether two or more texts are different single words with a common beginning, and no words of
    a language.

    The beginning has an underscore (`story_intro`), or consecutive letters follow it (`story-a`,
    `story-b`, `story-c`).
    """
    are_single_words = all(len(text.split()) == 1 for text in texts)
    if not are_single_words or len({*texts}) < len(texts):
        return False
    beginning = commonprefix([*texts])
    if sum(map(str.isalpha, beginning)) < _MIN_BEGINNING:
        return False
    rests = [text[len(beginning) :] for text in texts]
    return "_" in beginning or _are_consecutive_letters(rests)


def _are_consecutive_letters(texts: Sequence[str]) -> bool:
    """Whether three or more texts are letters such as a, b, c.

    Letters without case, as of Chinese, are words.
    """
    are_letters = all(len(text) == 1 and text.lower() != text.upper() for text in texts)
    if len(texts) < 3 or not are_letters:
        return False
    return all(ord(following) - ord(letter) == 1 for letter, following in pairwise(texts))


def _have_several_words(texts: Sequence[str]) -> bool:
    """Whether most annotations of a tier have two or more words."""
    num_several = sum(len(text.split()) > 1 for text in texts)
    return num_several > len(texts) / 2


def look_like_titles(
    texts: Sequence[str], transcripts: Mapping[str, Sequence[str]], *, num_files: int
) -> bool:
    """Whether there is at most one text per file, and a tier below has three times as many words."""
    num_words = _count_words(texts)
    most_words = max(map(_count_words, transcripts.values()))
    return len(texts) <= num_files and most_words >= 3 * num_words


def _count_words(texts: Sequence[str]) -> int:
    return len(" ".join(texts).split())


def _fits(value: str, patterns: Sequence[str]) -> bool:
    cleaned = [
        *map(normalize_phones, patterns)
    ]  # one form of Unicode: keyboards and systems write different ones
    return (
        not cleaned or value in cleaned or any(fnmatchcase(value, pattern) for pattern in cleaned)
    )


def _ancestors(name: str, parents: Mapping[str, str]) -> list[str]:
    found = list[str]()
    while (name := parents.get(name, "")) and name not in found:
        found.append(name)
    return found


def _tier_entries(
    files: Sequence[AnnotationFile], options: TierOptions
) -> Iterator[Entry | Rejected]:
    """The annotations of all tiers. A file without audio gets one warning."""
    finder = options.make_finder()
    media = [finder.find(file.media, file.path.parent) for file in files]
    speakers = name_speakers((file.path for file in files), options.corpus, options.speaker_from)
    for file, found in zip(files, media, strict=True):
        spans = [(tier, *span) for tier in file.tiers for span in tier.spans]
        reason = found if isinstance(found, str) else find_offset_fault(found, file.other_media)
        reason = reason or finder.describe_doubt(file.media, Path(found))
        advice, shift = "; name its folder with --audio_dir" if reason else "", 0.0
        if file.extent[0] and not reason:
            with suppress(AudioError):  # the check of the clips states it
                fit = find_shift(*file.extent, read_duration(found))
                reason, shift = (fit, 0.0) if isinstance(fit, str) else (None, fit)
        if reason and spans:
            logger.warning(
                "%s: %s; its %d annotations are left out%s", file.path, reason, len(spans), advice
            )
        for tier, start, end, txt in spans:
            name = (
                file.path.relative_to(options.corpus) if options.corpus.is_dir() else file.path.name
            )
            where = f"{name}: {tier.name}" + ("" if start is None else f", {start:.3f} s")
            if reason or start is None or end is None:
                why, is_fault = reason or f"no time: {txt[:40]!r}", bool(txt.strip())
                yield Rejected(where, str(file.path), why, "", is_fault, start, end, txt)
            else:
                by_tier = {"tier": tier.name, "participant": tier.participant}.get(
                    options.speaker_from
                )
                yield Entry(
                    where=where,
                    audio=(str(found),),
                    folder=file.path.parent,
                    txt=txt,
                    speaker=by_tier or speakers.get(file.path),
                    start=start + shift,
                    end=end + shift,
                    channel=find_channel_name((tier.name, tier.participant))
                    if count_channels(found) > 1
                    else None,
                )


def _count_annotations(files: Sequence[AnnotationFile]) -> dict[str, int]:
    """The number of annotations per tier name, the most frequent first."""
    return dict(
        Counter(
            tier.name for file in files for tier in file.tiers for _ in tier.spans
        ).most_common()
    )


def _describe(files: Sequence[AnnotationFile]) -> str:
    """The tiers of all files: name, types and participants, number of annotations."""
    facts = defaultdict[str, set[str]](set)
    for tier in (tier for file in files for tier in file.tiers):
        facts[tier.name] |= {tier.kind, tier.participant} - {"", tier.name}
    shown = [
        f"'{name}' ({', '.join([*sorted(facts[name])[:3], f'{count} annotations'])})"
        for name, count in _count_annotations(files).items()
    ]
    empty = sorted({f"'{tier.name}'" for file in files for tier in file.tiers})
    return list_names(shown, "; ", most=12) or (
        f"{list_names(empty)}, without annotations" if empty else "none"
    )
