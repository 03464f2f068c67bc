# SPDX-License-Identifier: Apache-2.0
"""Data lists of a user's own recordings, from the annotations of any form.

A reader gives one `Entry` per annotation. `prepare_entries` finds the audio, normalises the text,
names and checks the utterances, divides them into sets and writes the lists. So the same content
gives the same lists in every form.
"""

import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os.path import normpath
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize as normalize_unicode

from wenet_hs.base.files import one_field
from wenet_hs.base.options import option, recorded_options
from wenet_hs.corpus.audio_check import AudioOptions, ClipChecker
from wenet_hs.corpus.channels import resolve_channels
from wenet_hs.corpus.edits import (
    ADDED,
    EXCLUDED,
    join_names,
    leave_out_excluded,
    leave_out_held,
    read_added,
)
from wenet_hs.corpus.korean import KoreanMarks, read_korean_marks
from wenet_hs.corpus.languages import UNDETERMINED, resolve_languages
from wenet_hs.corpus.letters import DIGITS, TAG
from wenet_hs.corpus.output import (
    SPLITS,
    Rejected,
    count_kinds,
    find_overlaps,
    name_recordings,
    record_corpus,
    write_corpus,
    write_rejected,
)
from wenet_hs.corpus.own_sets import MAX_LOSS, SplitBy, describe_common, hold_out_sets
from wenet_hs.corpus.pauses import (
    ALIGNER_LABELS,
    AUTO,
    PauseLabels,
    TimedLabel,
    find_pause_labels,
    is_ignored,
    may_be_pause,
    remove_pauses,
)
from wenet_hs.corpus.splits import plain_text
from wenet_hs.data.media import MediaFinder
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.text.normalize import APOSTROPHES, normalize_counted, normalize_phones
from wenet_hs.text.units import show_unit
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError, list_names

logger = logging.getLogger(__name__)

_SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "valid", "validation", "val", "development"), "dev"),
    **dict.fromkeys(("test", "eval", "evaluation", "testing"), "test"),
}
_OF_EQUAL_TEXTS = {
    "table": 'name the column of the transcripts: --columns "text=…"',
    **dict.fromkeys(("elan", "praat"), "name the tier of the transcripts with --tier"),
}
"""What to do if all transcripts are equal, by the form of the data."""
_NO_SET = ("", "unassigned", "none", "null", "nan", "n/a", "-")
"""Values of a set that say that there is none, as in Common Voice's spontaneous speech."""
_MAX_QUESTION_MARKS = 3
"""Of an annotation of them that is left out as a sign; more are letters that were lost."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One annotation: a transcript, and where its audio is."""

    where: str
    """File and line, or file, tier and time: for messages and rejected.tsv."""
    audio: tuple[str, ...]
    """Paths as they are written in the file, the first that is found counts; also without suffix,
    or of Windows.
    """
    folder: Path
    """Where relative paths begin."""
    txt: str
    key: str | None = None
    """The name that the form gives it; None: it is made of the recording's name and the times."""
    lang: str | None = None
    speaker: str | None = None
    start: float | None = None
    """Seconds from the beginning of the recording."""
    end: float | None = None
    channel: int | str | None = None
    """The channel that has the speech: a number from 0, or as it is written; None: the mean of all."""
    split: str | None = None
    """The set it was given to, by any usual name."""


def find_split(name: str) -> str | None:
    """The set of a name such as `test`, `test1`, `train-clean-100` or `dev_other`; None for another
    name.
    """
    found = re.match(r"([a-z]+)(?:[-_.\d].*)?$", name.strip().lower())
    return _SPLIT_NAMES.get(found[1]) if found else None


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
        super().__post_init__()
        if self.audio_dir is not None:
            object.__setattr__(self, "audio_dir", self.audio_dir.absolute())
        for name, share in (("dev_share", self.dev_share), ("test_share", self.test_share)):
            if not 0.0 < share < 0.5:
                raise ValueError(
                    f"{name} {share:g}: must be above 0 and below 0.5; the default is 0.1"
                )

    def make_finder(self) -> MediaFinder:
        """Finds audio below the folder of the audio, or else of the corpus; of a table, below its
        own folder.
        """
        return MediaFinder(self.audio_dir or (self.corpus if self.corpus.is_dir() else None))


def prepare_entries(
    options: RecordingOptions,
    form: str,
    entries: Iterable[Entry | Rejected],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the lists of the entries. Returns the content of `stats.json`; `facts` are in it.

    Raises DataError when all transcripts are equal, too few utterances are left, or `--out` has
        another corpus.
    """
    source = normpath(options.corpus)
    facts = {
        "corpus": form,
        "source": source,
        **facts,
        "options": recorded_options(options, RecordingOptions),
    }
    record_corpus(options.out, f"{form} {source}")
    entries = list(entries)
    asked = {find_split(one.split) for one in entries if isinstance(one, Entry) and one.split}
    (utterances, given, rejected), checker = (
        _make_utterances(options, entries),
        options.make_checker(),
    )
    usable, faulty = checker.check(utterances, "clips")
    added, of_added = _make_added(options, checker)
    _, excluded = leave_out_excluded([*usable, *added], options.out / EXCLUDED)
    left = {one.key for one in excluded}
    usable, added = ([u for u in us if u.key not in left] for us in (usable, added))
    usable, overlaps = _overlapping(usable, options)
    rejected += faulty + of_added + excluded + overlaps
    write_rejected(options.out, rejected)  # the reasons, also if the next steps refuse the rest
    texts = {u.txt for u in usable}
    if len(usable) > 1 and len(texts) == 1:
        found = f"all {len(usable)} transcripts are {texts.pop()!r}"
        to_do = _OF_EQUAL_TEXTS.get(form, "give the transcript of each clip")
        raise DataError(source, found, to_do)
    for name in () if options.ignore_sets else ("test", "dev"):
        if name in asked and not any(given.get(u.key) == name for u in usable):
            found = f"no utterance of the {name} set of the data can be used"
            raise DataError(
                source,
                found,
                f"see {options.out / 'rejected.tsv'}, or make sets with --ignore_sets",
            )
    splits, left_out, made, sets = _make_splits(options, usable, given, rejected)
    more, held = leave_out_held(added, splits)
    if (options.out / ADDED).is_file():
        facts |= {"num_added": len(more)}
        line = "%s: %d utterances are added to the training set; the others are in rejected.tsv"
        logger.info(line, options.out / ADDED, len(more))
        splits["train"] += more
        plain = _with_plain_texts(splits, options.unit)
        sets += (
            f"; with the {len(more)} added: {describe_common(plain)} in several sets"
            if more
            else ""
        )
    rejected += left_out + held
    facts |= {"sets": sets, "made_sets": made, "num_incomplete": checker.count_incomplete(splits)}
    langs: dict[str, dict[str, Any]] = {u.lang or "": {} for u in (*usable, *utterances, *more)}
    langs |= {clip.lang: {} for clip in rejected}
    limit = options.max_rejected
    return write_corpus(
        options.out, splits, rejected, facts, langs, max_rejected=limit, unit=options.unit
    )


def _make_added(
    options: RecordingOptions, checker: ClipChecker
) -> tuple[list[Utterance], list[Rejected]]:
    """The usable utterances of OUT/added.tsv, and the others."""
    entries = list[Entry | Rejected]()
    for number, row in read_added(options.out / ADDED):
        where, given = f"{ADDED}:{number}", {name: value for name, value in row.items() if value}
        try:
            start, end = (
                float(given[name]) if name in given else None for name in ("start", "end")
            )
        except ValueError:
            found = "times: start and end must be numbers of seconds"
            entries.append(Rejected(where, row["audio"], found, row.get("lang", "")))
            continue
        one = Entry(
            where=where,
            audio=(row["audio"],),
            folder=options.out,
            txt=row["text"],
            start=start,
            end=end,
        )
        speaker, lang, channel = (given.get(name) for name in ("speaker", "lang", "channel"))
        entries.append(replace(one, speaker=speaker, lang=lang, channel=channel))
    utterances, _, rejected = _make_utterances(options, entries)
    usable, faulty = checker.check(
        [replace(u, key=f"added-{u.key}") for u in utterances], "added clips"
    )
    return usable, rejected + faulty


# ---- entries → utterances


@dataclass(frozen=True)
class _LeftOut:
    """What the texts have that is not spoken, with its frequency."""

    pauses: Counter[str] = field(default_factory=Counter)
    """Labels of annotations that are pauses."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Labels of annotations that are marked as not to be used."""
    signs: Counter[str] = field(default_factory=Counter)
    """Annotations of signs that normalisation removes."""
    inside: Counter[str] = field(default_factory=Counter)
    """Pauses that were written inside a transcript."""
    korean: KoreanMarks = field(default_factory=KoreanMarks)
    punctuation: Counter[str] = field(default_factory=Counter)
    """Characters that normalisation removed."""

    def report(self) -> None:
        """State all of it, with the most frequent ones: a sign may be a letter of the language."""
        for what, counts in (
            ("annotations left out as pauses", self.pauses),
            ("annotations left out because they are marked as not to be used", self.ignored),
            ("annotations left out because they have only signs", self.signs),
            ("removed from the transcripts as pauses", self.inside),
            ("of two Korean spellings the second is used, as it is spoken", self.korean.spellings),
            ("removed from the transcripts as letters of noise in Korean", self.korean.noises),
        ):
            if counts:
                shown = list_names(
                    [f"{text!r:.40} ({num})" for text, num in counts.most_common()], most=8
                )
                logger.info("%s: %s", what, shown)
        _report_removed(self.punctuation)


def _find_audio(
    options: RecordingOptions, entries: Iterable[Entry | Rejected]
) -> tuple[list[tuple[Entry, Path, str]], list[Rejected]]:
    """The entries with their audio files, channels as numbers and normalised text, and those that
    cannot be used.

    Annotations of pauses are among the latter, and are no faults. What was left out of the texts is
    logged.
    """
    if options.audio_dir is not None and not options.audio_dir.is_dir():
        raise DataError(
            f"--audio_dir {options.audio_dir}",
            "no such folder",
            "give the folder of the recordings",
        )
    finder = options.make_finder()
    found = list[tuple[Entry, Path, str]]()
    rejected = list[Rejected]()
    left_out = _LeftOut()
    entries = list(entries)
    labels = _find_pauses(options, entries)
    places = [one.where if isinstance(one, Entry) else one.key for one in entries]
    langs = resolve_languages(
        [*zip((one.lang for one in entries), places, strict=True)], options.lang
    )
    for entry, lang in zip(entries, langs, strict=True):
        if isinstance(entry, Rejected):
            rejected.append(replace(entry, lang=lang))
            continue
        has_set = (
            entry.split is not None
            and entry.split.strip().lower() not in _NO_SET
            and not options.ignore_sets
        )
        entry = replace(entry, lang=lang, split=entry.split if has_set else None)
        if reason := _count_without_speech(entry.txt, labels, left_out):
            rejected.append(_rejected(entry, reason, is_fault=False))
            continue
        entry, txt = _clean_text(options, entry, left_out)
        fault = _find_fault(entry, txt)
        if fault is not None:
            rejected.append(_rejected(entry, fault.reason, fault.is_of_data))
            continue
        path = finder.find(entry.audio, entry.folder)
        if isinstance(path, Path):
            found.append((entry, path, txt))
        else:
            rejected.append(_rejected(entry, path))
    left_out.report()
    used = list[tuple[Entry, Path, str]]()
    channels = resolve_channels([(entry.channel, path) for entry, path, _ in found])
    for (entry, path, txt), channel in zip(found, channels, strict=True):
        if reason := finder.describe_doubt(entry.audio, path) or (
            channel if isinstance(channel, str) else None
        ):
            rejected.append(_rejected(entry, reason))
        else:
            used.append((replace(entry, channel=channel), path, txt))
    return used, rejected


def _find_pauses(options: RecordingOptions, entries: Sequence[Entry | Rejected]) -> PauseLabels:
    """The labels of pauses in these data.

    A line names those that may be pauses and are kept as text.
    """
    annotations = [entry for entry in entries if isinstance(entry, Entry)]
    timed = list[TimedLabel]()
    if any(may_be_pause(entry.txt) for entry in annotations):  # otherwise their times tell nothing
        timed = [
            TimedLabel(" ".join(one.audio[:1]), one.start, one.end, one.txt) for one in annotations
        ]
    labels, doubtful = find_pause_labels(timed, options.pauses, options.unit)
    if doubtful:
        counts = list_names([f"{text!r} ({num})" for text, num in doubtful.most_common()])
        hint = f'--pauses "{" ".join([*sorted(labels.letters), *doubtful])}" leaves them out'
        logger.info(
            "transcripts that may be labels of pauses are kept as text: %s; %s", counts, hint
        )
    return labels


def _count_without_speech(text: str, labels: PauseLabels, left_out: _LeftOut) -> str | None:
    """Why an annotation is no speech to train with, counted in `left_out`; None: it may be speech."""
    if labels.is_pause(text):
        left_out.pauses[text.strip()] += 1
        return f"pause: {one_field(text.strip())!r}"
    if is_ignored(text):
        left_out.ignored[text.strip()] += 1
        return f"marked as not to be used: {text.strip()!r}"
    return None


def _clean_text(options: RecordingOptions, entry: Entry, left_out: _LeftOut) -> tuple[Entry, str]:
    """The entry without pauses and Korean marks in its text, and its normalised text.

    Counts what was removed.

    Without normalisation, and between phones, these are kept: the user asked for the text as it is.
    """
    if options.unit == "char" and not options.no_normalize:
        text = read_korean_marks(entry.txt, entry.lang or "", left_out.korean)
        text, pauses = remove_pauses(text)
        left_out.inside.update(pauses)
        if text != entry.txt:
            entry = replace(entry, txt=text)
    txt, punctuation = _normalize(options, entry.txt, entry.lang or "")
    if not txt and _has_times(entry) and not _has_lost_letters(entry.txt):
        left_out.signs.update(filter(None, [entry.txt.strip()]))
    else:
        left_out.punctuation.update(punctuation)
    return entry, txt


def _has_times(entry: Entry) -> bool:
    """Whether it is a part of a recording."""
    return entry.start is not None or entry.end is not None


def _report_removed(removed: Counter[str]) -> None:
    """State what normalisation took away: it may be a letter of the language."""
    if removed:
        shown = list_names(
            [f"{show_unit(one)} ({num})" for one, num in removed.most_common()], most=8
        )
        hint = (
            "; are apostrophes letters? --letter_apostrophe keeps them"
            if removed.keys() & {*APOSTROPHES}
            else ""
        )
        logger.info("removed from the transcripts as punctuation: %s%s", shown, hint)


def _rejected(entry: Entry, reason: str, is_fault: bool = True) -> Rejected:
    path = " ".join(entry.audio[:1])
    return Rejected(
        entry.key or entry.where,
        path,
        reason,
        entry.lang or "",
        is_fault,
        entry.start,
        entry.end,
        entry.txt,
    )


def _make_utterances(
    options: RecordingOptions, entries: Iterable[Entry | Rejected]
) -> tuple[list[Utterance], dict[str, str], list[Rejected]]:
    """The utterances with audio and text, the set that each key was given to, and all others."""
    found, rejected = _find_audio(options, entries)
    _report_notes([entry for entry, _, _ in found])
    utterances, given, seen = list[Utterance](), dict[str, str](), dict[str, str]()
    speakers = join_names(entry.speaker for entry, _, _ in found)
    for key, (entry, path, txt) in zip(_make_keys(found), found, strict=True):
        lang = entry.lang or ""
        if key in seen:
            reason = f"repeated: {seen[key]} has the name {key} too; rename or remove one"
            rejected.append(
                Rejected(
                    entry.where, str(path), reason, lang, True, entry.start, entry.end, entry.txt
                )
            )
            continue
        seen[key] = entry.where
        if entry.split is not None:
            given[key] = find_split(entry.split) or ""
        selected = {name: getattr(entry, name) for name in ("start", "end", "channel")}
        speaker = entry.speaker and speakers[entry.speaker]
        utterances.append(
            Utterance(key=key, wav=str(path), txt=txt, lang=lang, speaker=speaker, **selected)
        )
    return utterances, given, rejected


def _normalize(options: RecordingOptions, text: str, lang: str) -> tuple[str, Counter[str]]:
    """The text for training, and the characters that were removed. ʼ (U+02BC) is a letter, which is
    never removed.
    """
    if options.letter_apostrophe:
        text = "".join("ʼ" if one in APOSTROPHES else one for one in text)
    if options.unit == "phone" or options.no_normalize:
        return normalize_phones(text), Counter()
    return normalize_counted(text, lang)


_NOTES = (
    (
        "notes in brackets",
        TAG,
        "what is in them is trained as speech; remove from the transcripts what is not spoken",
    ),
    ("digits", DIGITS, "write numbers as they are spoken; digits that mark tones are right"),
)


def _report_notes(entries: Sequence[Entry]) -> None:
    """State what normalisation would hide: it removes the brackets and keeps their content."""
    for what, pattern, advice in _NOTES:
        found = [
            (match.group(), entry.where)
            for entry in entries
            if (match := pattern.search(entry.txt))
        ]
        if found:
            logger.info(
                "%d transcripts have %s, such as %r in %s; %s", len(found), what, *found[0], advice
            )


@dataclass(frozen=True)
class _Fault:
    """Why an entry cannot be used."""

    reason: str
    is_of_data: bool = True
    """False: it is left out as in healthy data, such as an annotation without a transcript."""


def _find_fault(entry: Entry, txt: str) -> _Fault | None:
    """Why an entry cannot be used, apart from its audio; None: it can be.

    txt: its transcript after normalisation.
    """
    if not entry.txt.strip():
        return _Fault("empty transcript", is_of_data=False)
    if not txt:
        written = one_field(entry.txt)
        if _has_lost_letters(entry.txt):
            return _Fault(f"lost letters: {written!r}; write the text again, in UTF-8")
        # A part of a recording may have signs for what is no speech, such as laughter.
        is_sign = _has_times(entry)
        return _Fault(f"empty transcript after normalisation: {written!r}", is_of_data=not is_sign)
    start = entry.start or 0.0
    end = math.inf if entry.end is None else entry.end
    if not 0.0 <= start < end or entry.end == math.inf:  # NaN too
        rule = "the start must be before the end, and not below 0"
        return _Fault(f"times: from {start:g} to {end:g} s; {rule}")
    if entry.split is not None and not find_split(entry.split):
        return _Fault(f"unknown set: {entry.split!r} is not train, dev or test")
    return None


def _has_lost_letters(text: str) -> bool:
    """Whether a text without letters had some before it was saved in another encoding.

    Programs write U+FFFD or `?` for each letter that they cannot save. Up to three `?` may be an
    annotator's mark of words that are not understood.
    """
    has_marks_only = not text.replace("?", "").strip()
    return "\ufffd" in text or (has_marks_only and text.count("?") > _MAX_QUESTION_MARKS)


def _make_keys(found: Sequence[tuple[Entry, Path, str]]) -> list[str]:
    """Names that do not depend on the form: the recording's name, the channel, and the times in
    milliseconds.

    Recordings of one name in different folders are told apart by their folders, utterances of one
    time by the speaker.
    """
    names = name_recordings({path for _, path, _ in found})
    bases = []
    for entry, path, _ in found:
        begin, end = (
            None if value is None else f"{round(value * 1000):07d}"
            for value in (entry.start, entry.end)
        )
        times = "" if begin is None and end is None else f"-{begin or '0' * 7}-{end or 'end'}"
        channel = "" if entry.channel is None else f"-ch{entry.channel}"
        bases.append(entry.key or f"{names[path]}{channel}{times}")
    speakers = defaultdict(set)
    for base, (entry, _, _) in zip(bases, found, strict=True):
        speakers[base].add(entry.speaker)
    keys = []
    for base, (entry, _, _) in zip(bases, found, strict=True):
        speaker = (
            f"-{entry.speaker}"
            if len(speakers[base]) > 1 and not entry.key and entry.speaker
            else ""
        )
        keys.append(
            "_".join(normalize_unicode("NFC", f"{base}{speaker}").split())
        )  # macOS writes names in NFD
    return keys


# ---- checks of all utterances together


def _overlapping(
    utterances: Sequence[Utterance], options: RecordingOptions
) -> tuple[list[Utterance], list[Rejected]]:
    """Write overlapping.tsv.

    Returns the utterances to use and, with --drop_overlaps, those to leave out.
    """
    found = list(find_overlaps(utterances))
    keys = {u.key for pair in found for u in pair[:2]}
    lines = (
        f"{earlier.key}\t{later.key}\t{start:.3f}\t{end:.3f}\n"
        for earlier, later, start, end in found
    )
    write_atomic(options.out / "overlapping.tsv", "key\tother\tfrom\tto\n" + "".join(lines))
    if keys:
        done = (
            "they are left out"
            if options.drop_overlaps
            else "they are kept; --drop_overlaps leaves them out"
        )
        message = "%s: %d annotations overlap others of their recording; %s"
        logger.info(message, options.out / "overlapping.tsv", len(keys), done)
    dropped = {u.key: u for u in utterances if options.drop_overlaps and u.key in keys}
    rejected = [
        Rejected.of(u, "overlaps another annotation", is_fault=False) for u in dropped.values()
    ]
    return [u for u in utterances if u.key not in dropped], rejected


# ---- sets


def _make_splits(
    options: RecordingOptions,
    utterances: Sequence[Utterance],
    given: Mapping[str, str],
    rejected: Sequence[Rejected],
) -> tuple[dict[str, list[Utterance]], list[Rejected], list[str], str]:
    """The sets, the utterances in none, the names of the sets that were made, and how and what they
    have in common.

    Given sets are kept; test and dev are held out from train where they are absent. With
    `--split_by off` there is one list, train.
    """
    if options.split_by == "off":
        return _make_one_list(options, utterances, given)
    splits = {name: [u for u in utterances if given.get(u.key) == name] for name in SPLITS}
    without = [u for u in utterances if u.key not in given]
    if not given:
        splits["train"], without = without, []
    reason = "no set: other utterances have one; give each a set, or none"
    left_out = [Rejected.of(u, reason, is_fault=False) for u in without]
    if left_out:
        what = "utterances have no set, others have one: they are left out"
        logger.info("%d %s; --ignore_sets makes sets of all", len(left_out), what)
    absent = [name for name in ("test", "dev") if not splits[name]]
    if len(splits["train"]) < 1 + len(absent):
        found = f"{len(splits['train'])} usable utterances for {', '.join(['train', *absent])}"
        write_rejected(options.out, [*rejected, *left_out])
        kinds = ", ".join(
            f"{kind} {count}" for kind, count in count_kinds([*rejected, *left_out]).items()
        )
        if given:
            of_sets = ", ".join(f"{name} {len(us)}" for name, us in splits.items())
            found = f"the data give sets ({of_sets}); --ignore_sets makes others; {found}"
        why = (
            f"left out: {kinds}, see {options.out / 'rejected.tsv'}; repair these, or "
            if kinds
            else ""
        )
        if any(one.reason.startswith("missing") for one in rejected):
            why = f"name the folder of the audio with --audio_dir; {why}"
        raise DataError(
            normpath(options.corpus), f"{found}: too few for a recogniser", f"{why}give more data"
        )
    rule, lost = "given", list[Rejected]()
    as_written = {u.key: u for u in utterances}
    splits = _with_plain_texts(splits, options.unit)
    if absent:
        shares = {"test": options.test_share, "dev": options.dev_share}
        shares = {name: shares[name] for name in absent}
        made, lost, rule = hold_out_sets(
            splits["train"], shares, split_by=options.split_by, seed=options.seed
        )
        splits |= made
    line = f"sets ({rule}): {describe_common(splits)} in several sets; {len(lost)} utterances left out for that"
    logger.info(line)
    splits = {
        name: [as_written[key] for key in sorted(u.key for u in chosen)]
        for name, chosen in splits.items()
    }
    return splits, left_out + lost, absent, line


def _make_one_list(
    options: RecordingOptions, utterances: Sequence[Utterance], given: Mapping[str, str]
) -> tuple[dict[str, list[Utterance]], list[Rejected], list[str], str]:
    """All utterances as train, and no other set; the other values are as those of `_make_splits`.

    Raises DataError if the data give sets: utterances to test on would be trained on.
    """
    if given:
        of_sets = ", ".join(
            f"{name} {count}" for name, count in sorted(Counter(given.values()).items())
        )
        found = f"--split_by off: the data give sets ({of_sets})"
        raise DataError(
            normpath(options.corpus),
            found,
            "leave it out, or add --ignore_sets for one list of all",
        )
    line = "sets (off): one list of all utterances"
    logger.info(line)
    return {"train": sorted(utterances, key=lambda utterance: utterance.key)}, [], [], line


def _with_plain_texts(
    splits: Mapping[str, Sequence[Utterance]], unit: str
) -> dict[str, list[Utterance]]:
    return {name: [replace(u, txt=plain_text(u, unit)) for u in us] for name, us in splits.items()}
