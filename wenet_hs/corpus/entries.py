# SPDX-License-Identifier: Apache-2.0
"""Annotations of a user's own recordings in one form (`Entry`), and utterances made of them.

A reader (ELAN, Praat, tables, folders, Kaldi) gives one `Entry` per annotation. `make_utterances`
reads their transcripts (`transcripts.py`), finds their audio files and channels, and names the
utterances. Entries that cannot be used are rejected with a reason. So the same content gives the
same utterances, whatever the form.
"""

import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from unicodedata import normalize as normalize_unicode

from wenet_hs.base.options import option
from wenet_hs.corpus.audio_check import AudioOptions
from wenet_hs.corpus.channels import UnusableChannel, resolve_channels
from wenet_hs.corpus.edits import join_names
from wenet_hs.corpus.languages import UNDETERMINED, resolve_languages
from wenet_hs.corpus.letters import DIGITS, TAG
from wenet_hs.corpus.output import Rejected, name_recordings
from wenet_hs.corpus.own_sets import MAX_LOSS, SplitBy
from wenet_hs.corpus.pauses import (
    ALIGNER_LABELS,
    AUTO,
    PauseLabels,
    TimedLabel,
    find_pause_labels,
    may_be_pause,
)
from wenet_hs.corpus.transcripts import TranscriptReader, UnusableText, report_left_out
from wenet_hs.data.media import MediaFinder
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import DataError, list_names

logger = logging.getLogger(__name__)

_SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "valid", "validation", "val", "development"), "dev"),
    **dict.fromkeys(("test", "eval", "evaluation", "testing"), "test"),
}
"""Usual names of sets → the name in the output."""
_FIRST_WORD = re.compile(r"([a-z]+)(?:[-_.\d].*)?")
"""A word that ends before a digit, `.`, `-` or `_`, or that is all: `test1` but not `testament`."""
_NOTES = (
    (
        "notes in brackets",
        TAG,
        "what is in them is trained as speech; remove from the transcripts what is not spoken",
    ),
    ("digits", DIGITS, "write numbers as they are spoken; digits that mark tones are right"),
)
"""Name, pattern and advice for each thing in a transcript that is perhaps not spoken as written."""
_NO_SET = ("", "unassigned", "none", "null", "nan", "n/a", "-")
"""Values of a set that say that there is none, as in Common Voice's spontaneous speech."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One annotation: a transcript, and where its audio is."""

    where: str
    """File and line, or file, tier and time: for messages and rejected.tsv."""
    audio: tuple[str, ...]
    """Paths of the audio as they are written in the file; the first one that exists is used.

    They may be without suffix, or paths of Windows.
    """
    folder: Path
    """Where relative paths begin."""
    txt: str
    key: str | None = None
    """The name that the form gives it; None: it is made of the recording's name and the times."""
    lang: str | None = None
    speaker: str | None = None
    start: float | None = None
    """Seconds from the beginning of the recording; None: it begins there."""
    end: float | None = None
    """Seconds from the beginning of the recording; None: it lasts until the end."""
    channel: int | str | None = None
    """The channel that has the speech: a number from 0, or as it is written; None: the mean of all."""
    split: str | None = None
    """The set it was given to, by any usual name."""

    @property
    def is_part(self) -> bool:
        """Whether it is a part of a recording, because it has a start or an end."""
        return self.start is not None or self.end is not None

    def reject(self, reason: str, *, is_fault: bool = True) -> Rejected:
        """This entry as rejected, with the reason why it is in none of the lists."""
        return Rejected(
            key=self.key or self.where,
            path=self.audio[0] if self.audio else "",
            reason=reason,
            lang=self.lang or "",
            is_fault=is_fault,
            start=self.start,
            end=self.end,
            text=self.txt,
        )


def find_split(name: str) -> str | None:
    """The set of a name such as `test`, `test1`, `train-clean-100` or `dev_other`, or None."""
    match = _FIRST_WORD.fullmatch(name.strip().lower())
    return _SPLIT_NAMES.get(match[1]) if match else None


@dataclass(frozen=True, kw_only=True)
class RecordingOptions(AudioOptions):
    """Options of all forms of own recordings."""

    audio_dir: Path | None = option(
        None,
        "folder with the audio, searched with its subfolders (default: --corpus, or the folder of the table)",
    )
    lang: str = option(
        UNDETERMINED,
        "language where the data name none, by its code (tr, abz) or name; it decides how text is normalised",
        flags=("--lang", "--language"),
    )
    unit: Literal["char", "phone"] = option(
        "char",
        "what a transcript contains: text, or phones with spaces between them (default: char)",
    )
    pauses: str = option(
        AUTO,
        f"labels of letters that are pauses, in place of the usual ones ({' '.join(ALIGNER_LABELS)} …), which are "
        "pauses between words or phones, and where the data often use them between utterances (auto, the default); "
        "labels of signs or in brackets, such as # or <p:>, always are",
        metavar='"LABEL …"',
    )
    no_normalize: bool = option(
        False, "keep upper case and punctuation; text becomes NFC with single spaces"
    )
    letter_apostrophe: bool = option(
        False,
        "apostrophes are letters, as for ejectives and the glottal stop: ' ’ ‘ and ` become ʼ (U+02BC), which is "
        "kept at the beginning and end of words too; remove quotation marks of this form first",
    )
    split_by: SplitBy = option(
        "auto",
        "how sets are made where the data give none: whole speakers, whole sentences, single utterances (none); auto: "
        # A second % sign, because argparse formats the help.
        f"no common sentence and few common speakers, unless that costs more than {MAX_LOSS:.0%}% of the data "
        "(default); off: one list of all utterances, OUT/train/data.list",
    )
    ignore_sets: bool = option(
        False,
        "make sets although the data give them, by a column or by folders such as train and test",
    )
    dev_share: float = option(0.1, "share of the utterances for the dev set")
    test_share: float = option(0.1, "share of the utterances for the test set")
    drop_overlaps: bool = option(
        False,
        "leave out annotations that overlap others of the recording; they are in overlapping.tsv anyway",
    )

    def __post_init__(self) -> None:
        """Make the path of the audio absolute. Raises ValueError for a share out of range."""
        super().__post_init__()
        if self.audio_dir is not None:
            object.__setattr__(self, "audio_dir", self.audio_dir.absolute())
        for name, share in (("dev_share", self.dev_share), ("test_share", self.test_share)):
            if not 0.0 < share < 0.5:
                raise ValueError(
                    f"{name} {share:g}: must be above 0 and below 0.5; the default is 0.1"
                )

    def make_finder(self) -> MediaFinder:
        """A finder of audio below --audio_dir, or below --corpus if that is a folder.

        If --corpus is a file, a table, the finder searches the folder of each entry.
        """
        if self.audio_dir is not None:
            return MediaFinder(self.audio_dir)
        return MediaFinder(self.corpus if self.corpus.is_dir() else None)


# ---- utterances


@dataclass(frozen=True)
class NamedUtterances:
    """The utterances of some entries, and the entries that cannot be used."""

    utterances: list[Utterance]
    """Without durations: their audio is not yet opened."""
    set_of_key: dict[str, str]
    """Key of an utterance → train, dev or test, where the data give it."""
    rejected: list[Rejected]


@dataclass(frozen=True)
class _LocatedEntry:
    """An entry that can be used, with its audio file and its text for training."""

    entry: Entry
    path: Path
    txt: str


def make_utterances(
    options: RecordingOptions, entries: Sequence[Entry | Rejected]
) -> NamedUtterances:
    """The utterances of entries, with audio file, text and a unique key.

    Entries that cannot be used are rejected, and so is an entry whose key an earlier one has. Logs
    what is left out of the texts, notes in them, and names of speakers that are joined. Raises
    DataError when --audio_dir is no folder, or a language of the data is unknown.
    """
    located_entries, rejected = _locate_entries(options, entries)
    _report_notes([located.entry for located in located_entries])
    speaker_names = join_names(located.entry.speaker for located in located_entries)
    utterances = list[Utterance]()
    set_of_key = dict[str, str]()
    first_place_of_key = dict[str, str]()
    for key, located in zip(_make_keys(located_entries), located_entries, strict=True):
        entry = located.entry
        if key in first_place_of_key:
            rejected.append(_reject_repeated(located, key, first_place_of_key[key]))
            continue
        first_place_of_key[key] = entry.where
        if entry.split is not None:
            split = find_split(entry.split)
            assert split is not None  # `_locate_entries` rejected entries with another set
            set_of_key[key] = split
        speaker = entry.speaker
        if speaker:
            speaker = speaker_names[speaker]  # one spelling per person
        assert not isinstance(entry.channel, str)  # `_locate_entries` made numbers of names
        utterances.append(
            Utterance(
                key=key,
                wav=str(located.path),
                txt=located.txt,
                lang=entry.lang or "",
                speaker=speaker,
                start=entry.start,
                end=entry.end,
                channel=entry.channel,
            )
        )
    return NamedUtterances(utterances, set_of_key, rejected)


def _reject_repeated(located: _LocatedEntry, key: str, first_where: str) -> Rejected:
    """The entry as rejected because an earlier one, at `first_where`, has its key.

    In rejected.tsv it is named by its own place, because the key is that of the earlier entry.
    """
    reason = f"repeated: {first_where} has the name {key} too; rename or remove one"
    rejected = located.entry.reject(reason)
    return replace(rejected, key=located.entry.where, path=str(located.path))


# ---- audio and text


def _locate_entries(
    options: RecordingOptions, entries: Sequence[Entry | Rejected]
) -> tuple[list[_LocatedEntry], list[Rejected]]:
    """The entries that can be used, with their audio files, and all others as rejected.

    A usable entry has the code of its language, its channel as a number, and its text without
    pauses and Korean marks. It has a set if the data give it one and --ignore_sets is not given.

    An entry is rejected for the first of these reasons: its text, its times or set, its audio.
    Annotations of pauses are rejected too, but this is no fault. Logs what was left out of texts.

    Raises DataError when --audio_dir is no folder, or a language of the data is unknown.
    """
    if options.audio_dir is not None and not options.audio_dir.is_dir():
        raise DataError(
            f"--audio_dir {options.audio_dir}",
            "no such folder",
            "give the folder of the recordings",
        )
    finder = options.make_finder()
    reader = TranscriptReader(
        has_phones=options.unit == "phone",
        should_normalize=not options.no_normalize,
        has_letter_apostrophe=options.letter_apostrophe,
        pause_labels=_find_pauses(
            options, [entry for entry in entries if isinstance(entry, Entry)]
        ),
    )
    located_entries = list[_LocatedEntry]()
    rejected = list[Rejected]()
    for written_entry, lang in zip(entries, _find_languages(options, entries), strict=True):
        if isinstance(written_entry, Rejected):
            rejected.append(replace(written_entry, lang=lang))
            continue
        transcript = reader.read(written_entry.txt, lang, is_part=written_entry.is_part)
        has_set = _has_set(written_entry) and not options.ignore_sets
        split = written_entry.split if has_set else None
        entry = replace(written_entry, lang=lang, split=split, txt=transcript.spoken)
        if isinstance(transcript, UnusableText):
            rejected.append(entry.reject(transcript.reason, is_fault=transcript.is_fault))
            continue
        fault = _find_fault(entry)
        if fault is not None:
            rejected.append(entry.reject(fault))
            continue
        path_or_reason = finder.find(entry.audio, entry.folder)
        if isinstance(path_or_reason, Path):
            located = _LocatedEntry(entry, path=path_or_reason, txt=transcript.normalized)
            located_entries.append(located)
        else:
            rejected.append(entry.reject(path_or_reason))
    report_left_out(reader.left_out)
    usable, doubtful = _resolve_audio(located_entries, finder)
    return usable, rejected + doubtful


def _find_pauses(options: RecordingOptions, entries: Sequence[Entry]) -> PauseLabels:
    """The labels of pauses in these data, by --pauses or by how the data use them.

    Logs the labels that may be pauses and are kept as text.
    """
    timed_labels = list[TimedLabel]()
    # The times show how the data use a label that may be a pause. Most data have no such label.
    if any(may_be_pause(entry.txt) for entry in entries):
        timed_labels = [_make_timed_label(entry) for entry in entries]
    labels, kept_as_text = find_pause_labels(timed_labels, options.pauses, options.unit)
    if kept_as_text:
        _report_possible_pauses(labels, kept_as_text)
    return labels


def _make_timed_label(entry: Entry) -> TimedLabel:
    """The text and times of an entry; its recording is the first path as it is written."""
    recording = entry.audio[0] if entry.audio else ""
    return TimedLabel(recording=recording, start=entry.start, end=entry.end, text=entry.txt)


def _report_possible_pauses(labels: PauseLabels, kept_as_text: Counter[str]) -> None:
    """Log labels that stay in the lists as text, and the flag that leaves them out.

    The flag replaces all labels, so it names those that are left out anyway too.
    """
    counts = list_names([f"{text!r} ({num})" for text, num in kept_as_text.most_common()])
    all_labels = " ".join([*sorted(labels.letters), *kept_as_text])
    hint = f'--pauses "{all_labels}" leaves them out'
    logger.info("transcripts that may be labels of pauses are kept as text: %s; %s", counts, hint)


def _find_languages(options: RecordingOptions, entries: Sequence[Entry | Rejected]) -> list[str]:
    """The code of the language of each entry; --lang where the data name none."""
    written_langs = list[tuple[str | None, str]]()
    for entry in entries:
        where = entry.where if isinstance(entry, Entry) else entry.key
        written_langs.append((entry.lang, where))
    return resolve_languages(written_langs, options.lang)


def _has_set(entry: Entry) -> bool:
    """Whether the data give the entry a set; `unassigned` and similar values say that it has none."""
    return entry.split is not None and entry.split.strip().lower() not in _NO_SET


def _find_fault(entry: Entry) -> str | None:
    """Why an entry cannot be used because of its times or its set; None: it can be."""
    if not _has_possible_times(entry):
        start = entry.start or 0.0
        end = math.inf if entry.end is None else entry.end  # printed as inf: without an end
        rule = "the start must be before the end, and not below 0"
        return f"times: from {start:g} to {end:g} s; {rule}"
    if entry.split is not None and not find_split(entry.split):
        return f"unknown set: {entry.split!r} is not train, dev or test"
    return None


def _has_possible_times(entry: Entry) -> bool:
    """Whether the start is before the end and not below 0, and no written time is infinite or NaN.

    Without a start a recording is used from its beginning, without an end to its end.
    """
    start = entry.start or 0.0
    if entry.end is None:
        return 0.0 <= start < math.inf  # False for NaN
    return 0.0 <= start < entry.end < math.inf


def _resolve_audio(
    located_entries: Sequence[_LocatedEntry], finder: MediaFinder
) -> tuple[list[_LocatedEntry], list[Rejected]]:
    """The entries with their channels as numbers, and the entries whose audio cannot be used.

    Audio cannot be used if it is doubtful that it is the right file, because paths with different
    folders lead to it, or if the channel cannot be resolved. `finder` must have found the files of
    all entries before, because it compares their paths.
    """
    channels = resolve_channels(
        [(located.entry.channel, located.path) for located in located_entries]
    )
    usable = list[_LocatedEntry]()
    rejected = list[Rejected]()
    for located, channel in zip(located_entries, channels, strict=True):
        doubt = finder.describe_doubt(located.entry.audio, located.path)
        if doubt is not None:
            rejected.append(located.entry.reject(doubt))
        elif isinstance(channel, UnusableChannel):
            rejected.append(located.entry.reject(channel.reason))
        else:
            usable.append(replace(located, entry=replace(located.entry, channel=channel)))
    return usable, rejected


# ---- names


def _make_keys(located_entries: Sequence[_LocatedEntry]) -> list[str]:
    """The name of each utterance, which does not depend on the form of the data.

    It is the key that the data give. Otherwise it is made of the name of the recording, the channel
    and the times. If several speakers would get the same name so, it also has the speaker's name.
    Names of recordings are unique: those of files with one name have the folders too.
    """
    recording_names = name_recordings({located.path for located in located_entries})
    base_keys = [
        located.entry.key or recording_names[located.path] + _describe_part(located.entry)
        for located in located_entries
    ]
    speakers_of_key = defaultdict[str, set[str | None]](set)
    for base_key, located in zip(base_keys, located_entries, strict=True):
        speakers_of_key[base_key].add(located.entry.speaker)
    keys = list[str]()
    for base_key, located in zip(base_keys, located_entries, strict=True):
        key = base_key
        speaker = located.entry.speaker
        has_several_speakers = len(speakers_of_key[base_key]) > 1
        is_made_here = not located.entry.key  # keys of the data get no speaker
        if has_several_speakers and is_made_here and speaker:
            key += f"-{speaker}"
        key = normalize_unicode("NFC", key)  # macOS writes names in NFD
        keys.append("_".join(key.split()))
    return keys


def _describe_part(entry: Entry) -> str:
    """The channel and the times in milliseconds: `-ch1-0001500-0002750`; empty for a whole file.

    A part without an end is `-0001500-end`, one without a start begins at 0.
    """
    channel = "" if entry.channel is None else f"-ch{entry.channel}"
    if not entry.is_part:
        return channel
    start = _format_ms(entry.start or 0.0)
    end = "end" if entry.end is None else _format_ms(entry.end)
    return f"{channel}-{start}-{end}"


def _format_ms(seconds: float) -> str:
    """Whole milliseconds with at least seven digits, so that names sort by time up to 2.7 hours."""
    return f"{round(seconds * 1000):07d}"


# ---- notes


def _report_notes(entries: Sequence[Entry]) -> None:
    """Log how many transcripts have notes in brackets or digits, and the first one of each.

    The user has to see them now: normalisation removes the brackets and keeps what is in them.
    """
    for what, pattern, advice in _NOTES:
        entries_with_note = [entry for entry in entries if pattern.search(entry.txt)]
        if entries_with_note:
            first = entries_with_note[0]
            first_note = pattern.search(first.txt).group()
            message = "%d transcripts have %s, such as %r in %s; %s"
            logger.info(message, len(entries_with_note), what, first_note, first.where, advice)
