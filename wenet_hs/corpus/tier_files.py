# SPDX-License-Identifier: Apache-2.0
"""Data lists from annotation files with tiers, of ELAN or Praat: one utterance per annotation.

The files are read, their tiers are chosen, intervals of words are joined to utterances if the user
wants that, and each annotation becomes an entry with the audio of its file.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wenet_hs.annotation.eaf import find_offset_fault
from wenet_hs.annotation.textgrid import find_shift
from wenet_hs.annotation.tiers import AnnotationFile, Span, Tier
from wenet_hs.base.options import option
from wenet_hs.corpus.channels import count_channels, find_channel_name
from wenet_hs.corpus.code_tiers import report_codes
from wenet_hs.corpus.entries import Entry, RecordingOptions
from wenet_hs.corpus.intervals import NOISES, UNKNOWN, join_tiers
from wenet_hs.corpus.output import Rejected
from wenet_hs.corpus.own_recordings import prepare_entries
from wenet_hs.corpus.pauses import ALIGNER_LABELS
from wenet_hs.corpus.speakers import name_speakers
from wenet_hs.corpus.tier_choice import TierSelection, check_choice
from wenet_hs.corpus.tier_facts import count_annotations, describe_tiers
from wenet_hs.data.audio import AudioError, read_duration
from wenet_hs.data.media import ALL_SUFFIXES, MediaFinder, find_files
from wenet_hs.manifest.file_forms import refuse_annotations
from wenet_hs.tree.errors import DataError, refuse_faults

logger = logging.getLogger(__name__)

_MAX_SNIFFED = 100
"""Files of other suffixes that are read to name their form, where no file has the right suffix."""
_NAME_FOLDER = "; name its folder with --audio_dir"
"""What to do if the audio of an annotation file is not found, or may be another recording."""


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
    """What names the speaker. Each form has an option for it, with its own choices."""

    def __post_init__(self) -> None:
        """Raise ValueError for a pause that is not longer than 0 s, or NaN."""
        super().__post_init__()
        if self.join_intervals is not None and not self.join_intervals > 0:
            raise ValueError(
                f"join_intervals {self.join_intervals:g}: must be above 0, in seconds, such as 0.5"
            )


def prepare_tier_files(
    options: TierOptions,
    *,
    form: str,
    suffix: str,
    read: Callable[[Path], AnnotationFile],
    selection: TierSelection,
) -> dict[str, Any]:
    """Write the data lists of annotation files. Returns the content of `stats.json`.

    The tiers that are used and not used are logged.

    Args:
        form: name of the form, such as `elan`, for stats.json.
        suffix: of the annotation files, in any case: `.eaf`.
        read: reads one file, or raises DataError.
        selection: the tiers that the user wants.
    Raises DataError if no file can be read or too many cannot, and if it is not clear which tiers
        have the transcripts. The message names the tiers that exist.
    """
    files, unreadable = _read_files(options.corpus, suffix, read, options.max_rejected)
    check_choice(files, selection, options.corpus)
    used, unused = _divide_tiers(files, selection)
    _refuse_no_annotations(files, used, selection, options.corpus)
    logger.info("tiers used: %s", describe_tiers(used))
    logger.info("tiers not used: %s", describe_tiers(unused))
    are_words_or_phones = options.unit == "phone" or options.join_intervals is not None
    # Codes are a few texts that recur, such as `laugh` or `1`. Words and phones recur too, and would
    # be taken for codes.
    if not are_words_or_phones:
        report_codes(files, used)
    if options.speaker_from in ("participant", "none"):  # only participants can be the speakers
        _report_unnamed_participants(used)
    joined = _join_intervals(used, options)
    without_annotations = list(_reject_unused_files(files, used, options.corpus))
    entries = list(_make_entries(joined, options))
    facts = {"tiers": {"used": count_annotations(used), "not_used": count_annotations(unused)}}
    return prepare_entries(options, form, [*unreadable, *without_annotations, *entries], facts)


# ---- reading


def _read_files(
    corpus: Path, suffix: str, read: Callable[[Path], AnnotationFile], max_rejected: float
) -> tuple[list[AnnotationFile], list[Rejected]]:
    """The annotation files that can be read, and those that cannot, each with a warning.

    Raises DataError if no file can be read, or if the share that cannot be read is above
    `max_rejected`.
    """
    paths = _find_annotation_files(corpus, suffix)
    files = list[AnnotationFile]()
    faults = dict[Path, str]()
    for path in paths:
        try:
            files.append(read(path))
        except DataError as error:
            faults[path] = str(error)
    if not files:
        refuse_faults(corpus, list(faults.values()))
    for fault in faults.values():
        logger.warning("%s", fault)
    if len(faults) > max_rejected * len(paths):
        raise DataError(
            corpus,
            f"{len(faults)} of {len(paths)} {suffix} files cannot be read",
            f"repair them, or allow it with --max_rejected (now {max_rejected:g})",
        )
    unreadable = list[Rejected]()
    for path, fault in faults.items():
        reason = f"unreadable: {fault.removeprefix(f'{path}: ')}"
        unreadable.append(Rejected(path.name, str(path), reason, lang=""))
    return files, unreadable


def _find_annotation_files(corpus: Path, suffix: str) -> list[Path]:
    """The files with the suffix, in any case: the file itself, or those in a folder at any depth.

    Raises DataError if there is none. If other files there have a known form of annotations, the
    message names the first of these and its form.
    """
    all_files = [corpus] if corpus.is_file() else list(find_files(corpus))
    paths = [path for path in all_files if path.suffix.lower() == suffix.lower()]
    if paths:
        return paths
    not_media = [path for path in all_files if path.suffix.lower() not in ALL_SUFFIXES]
    refuse_annotations(*not_media[:_MAX_SNIFFED])
    found = f"no {suffix} file" if corpus.exists() else "no such file or folder"
    raise DataError(corpus, found, f"--corpus is a {suffix} file, or a folder with them")


# ---- tiers that are used


def _divide_tiers(
    files: Sequence[AnnotationFile], selection: TierSelection
) -> tuple[list[AnnotationFile], list[AnnotationFile]]:
    """The files with only their wanted tiers, and the files with only their other tiers."""
    with_wanted = list[AnnotationFile]()
    with_others = list[AnnotationFile]()
    for file in files:
        wanted = [tier for tier in file.tiers if selection.is_wanted(tier)]
        others = [tier for tier in file.tiers if not selection.is_wanted(tier)]
        with_wanted.append(replace(file, tiers=wanted))
        with_others.append(replace(file, tiers=others))
    return with_wanted, with_others


def _refuse_no_annotations(
    files: Sequence[AnnotationFile],
    used: Sequence[AnnotationFile],
    selection: TierSelection,
    corpus: Path,
) -> None:
    """Raise DataError if the tiers that are used have no annotations.

    Args:
        files: with all tiers, which the message names.
        used: the same files with only the tiers that are used.
    """
    if any(map(_has_annotations, used)):
        return
    flags = selection.list_flags()
    found = "no independent tier has annotations"
    if flags:
        found = f"no file has annotations in a tier of {flags}"
    raise DataError(corpus, found, f"there are: {describe_tiers(files)}")


def _has_annotations(file: AnnotationFile) -> bool:
    return any(tier.spans for tier in file.tiers)


def _report_unnamed_participants(used: Sequence[AnnotationFile]) -> None:
    """Log that speakers are unknown, if several used tiers with annotations name no participant."""
    unnamed_tiers = set[str]()
    for file in used:
        unnamed_tiers |= {tier.name for tier in file.tiers if tier.spans and not tier.participant}
    if len(unnamed_tiers) > 1:
        logger.info(
            "%d of the tiers used name no participant, so their speakers are unknown; %s",
            len(unnamed_tiers),
            "--speaker_from tier takes the tiers' names, if these are people",
        )


def _join_intervals(used: Sequence[AnnotationFile], options: TierOptions) -> list[AnnotationFile]:
    """The files with their intervals joined to utterances, if --join_intervals is given.

    See `join_tiers`, which also logs what it joined.
    """
    spans_of_tiers = [tier.spans for file in used for tier in file.tiers]
    joined = join_tiers(spans_of_tiers, options.join_intervals, options.unit, options.pauses)
    next_spans = iter(joined)  # one item per tier, in the order of files and tiers
    joined_files = list[AnnotationFile]()
    for file in used:
        tiers = [replace(tier, spans=next(next_spans)) for tier in file.tiers]
        joined_files.append(replace(file, tiers=tiers))
    return joined_files


def _reject_unused_files(
    files: Sequence[AnnotationFile], used: Sequence[AnnotationFile], corpus: Path
) -> Iterator[Rejected]:
    """The files without annotations in the tiers that are used, which is no fault.

    A file that has annotations in other tiers gets a warning that names these tiers.
    """
    for file, used_file in zip(files, used, strict=True):
        if _has_annotations(used_file):
            continue
        fault = "no annotation in the tiers that are used"
        if _has_annotations(file):
            logger.warning("%s: %s; it has: %s", file.path, fault, describe_tiers([file]))
        name = _name_in_corpus(file.path, corpus)
        yield Rejected(name, str(file.path), f"no tier: {fault}", lang="", is_fault=False)


def _name_in_corpus(path: Path, corpus: Path) -> str:
    """The path relative to the corpus, or the name of the file if the corpus is one file."""
    return str(path.relative_to(corpus)) if corpus.is_dir() else path.name


# ---- annotations → entries


def _make_entries(
    files: Sequence[AnnotationFile], options: TierOptions
) -> Iterator[Entry | Rejected]:
    """The annotations of all tiers, in the order of files and tiers.

    Annotations without usable audio or without times are rejected. A file without usable audio gets
    one warning.
    """
    finder = options.make_finder()
    # The audio of all files is found first: whether a recording is the right one for a file also
    # depends on the recordings that the other files name.
    found_audio = [finder.find(file.media, file.path.parent) for file in files]
    speaker_of_file = name_speakers(
        (file.path for file in files), options.corpus, options.speaker_from
    )
    for file, audio in zip(files, found_audio, strict=True):
        matched = _match_audio(file, audio, finder)
        num_annotations = sum(len(tier.spans) for tier in file.tiers)
        if matched.fault and num_annotations:
            logger.warning(
                "%s: %s; its %d annotations are left out%s",
                file.path,
                matched.fault,
                num_annotations,
                matched.advice,
            )
        name = _name_in_corpus(file.path, options.corpus)
        for tier in file.tiers:
            names_by_source = {"tier": tier.name, "participant": tier.participant}
            speaker = names_by_source.get(options.speaker_from) or speaker_of_file.get(file.path)
            for span in tier.spans:
                yield _make_entry(file, tier, span, matched, name=name, speaker=speaker)


@dataclass(frozen=True)
class _MatchedAudio:
    """The audio of an annotation file, or why it cannot be used."""

    path: Path | None
    """None: there is a fault."""
    shift_s: float = 0.0
    """Seconds to add to the times of the annotations, so that they are times of the audio."""
    fault: str | None = None
    advice: str = ""
    """What to do about the fault, to be written directly after a message; may be empty."""


def _match_audio(file: AnnotationFile, audio: Path | str, finder: MediaFinder) -> _MatchedAudio:
    """The recording of an annotation file, if its audio was found and fits.

    `audio`: what `finder` gave for the media of the file: a path, or the reason why there is none.
    The fault is the first of these:
    1. That reason.
    2. The file also links to this recording with another offset.
    3. It is doubtful which recording is meant.
    4. The TextGrid begins after 0, and the length of the audio fits neither of the two cases that
       `find_shift` accepts: the audio ends where the TextGrid ends, or it is as long as the
       TextGrid, because both are the same part of a recording.
    Without a fault, `shift_s` is 0, or in the last case minus the begin of the TextGrid.
    """
    if isinstance(audio, str):
        return _MatchedAudio(None, fault=audio, advice=_NAME_FOLDER)
    fault = find_offset_fault(audio, file.other_media) or finder.describe_doubt(file.media, audio)
    if fault is not None:
        return _MatchedAudio(None, fault=fault, advice=_NAME_FOLDER)
    begin, end = file.extent
    if not begin:  # 0: the times count from the beginning of the audio
        return _MatchedAudio(audio)
    with suppress(AudioError):  # audio that cannot be read is stated by the check of the clips
        shift = find_shift(begin, end, read_duration(audio))
        if isinstance(shift, str):  # why the length does not fit
            return _MatchedAudio(None, fault=shift)
        return _MatchedAudio(audio, shift_s=shift)
    return _MatchedAudio(audio)


def _make_entry(
    file: AnnotationFile,
    tier: Tier,
    span: Span,
    matched: _MatchedAudio,
    *,
    name: str,
    speaker: str | None,
) -> Entry | Rejected:
    """An annotation of a tier as an entry, or rejected if it has no audio or no times.

    If a rejected annotation has no text, this is no fault. `name`: of the file, for messages.
    """
    start, end, text = span
    time = "" if start is None else f", {start:.3f} s"
    where = f"{name}: {tier.name}{time}"
    if matched.path is None or start is None or end is None:
        return Rejected(
            where,
            str(file.path),
            reason=matched.fault or f"no time: {text[:40]!r}",
            lang="",
            is_fault=bool(text.strip()),
            start=start,
            end=end,
            text=text,
        )
    has_several_channels = count_channels(matched.path) > 1
    channel = find_channel_name((tier.name, tier.participant)) if has_several_channels else None
    return Entry(
        where=where,
        audio=(str(matched.path),),
        folder=file.path.parent,
        txt=text,
        speaker=speaker,
        start=start + matched.shift_s,
        end=end + matched.shift_s,
        channel=channel,
    )
