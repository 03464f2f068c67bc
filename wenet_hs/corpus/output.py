# SPDX-License-Identifier: Apache-2.0
"""Output of `prepare`, the same for every corpus: OUT/{train,dev,test}/{data.list,text},
rejected.tsv, stats.json.

implausible.tsv names clips that are in the lists, but far too long or too short for their
transcript.

stats.json is written last: if it exists, the folder is complete. The same input gives the same
bytes, with any number of workers.
"""

import json
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from os.path import commonpath
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from wenet_hs.base.files import one_field, read_lines
from wenet_hs.base.options import NUM_CORES, REQUIRED, check_values, option
from wenet_hs.manifest.data_list import Utterance, write_data_list, write_text
from wenet_hs.text.normalize import normalize, normalize_spelling
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

logger = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")
_MAX_DEVIATIONS = 6.0
"""Median absolute deviations of log(seconds per unit) from the median, up to which a duration is
plausible. 0.2 % of UCLA's clips are farther from the median.
"""
_MIN_OVERLAP_S = 0.1
"""Overlaps up to this length are ignored: ends that are set by hand differ by less."""


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Options of every corpus."""

    out: Path = option(REQUIRED, "output folder")
    seed: int = option(0, "seed of every random choice")
    num_workers: int = option(
        NUM_CORES, "processes; 0: only this one (default: one per core)", is_recorded=False
    )

    def __post_init__(self) -> None:
        """Raises ValueError for a value of the wrong type or a negative number of processes."""
        check_values(self)
        if self.num_workers < 0:
            raise ValueError(f"num_workers {self.num_workers}: must be at least 0")


@dataclass(frozen=True, slots=True)
class Rejected:
    """A clip that is in none of the lists."""

    key: str
    path: str
    reason: str
    """`kind` or `kind: details`; clips are counted per kind."""
    lang: str
    is_fault: bool = True
    """False for a good clip that was not sampled, or that would put a speaker or sentence into two
    sets.
    """
    start: float | None = None
    """Of a part of a file: seconds from the beginning of the file at `path`."""
    end: float | None = None
    """Of a part of a file: seconds from the beginning of the file."""
    text: str = ""
    """Its transcript, if it is known."""

    @classmethod
    def of(cls, clip: Utterance, reason: str, is_fault: bool = True) -> "Rejected":
        """The utterance as a rejected clip, with its times and transcript."""
        return cls(
            key=clip.key,
            path=clip.wav,
            reason=reason,
            lang=clip.lang or "",
            is_fault=is_fault,
            start=clip.start,
            end=clip.end,
            text=clip.txt,
        )


def write_corpus(
    out: Path,
    splits: Mapping[str, Sequence[Utterance]],
    rejected: Sequence[Rejected],
    facts: Mapping[str, Any],
    langs: Mapping[str, Mapping[str, Any]],
    *,
    max_rejected: float = 1.0,
    unit: Literal["char", "phone"] = "char",
) -> dict[str, Any]:
    """Write a prepared corpus. Returns the content of `stats.json`.

    Args:
        splits: utterances of each set; a set that is not wanted is omitted.
        facts: what `stats.json` contains about the corpus besides its counts. Needed: `corpus`, its
            name. Usual: `options` (`recorded_options`), `licence` (shown in reports),
            `num_incomplete` (clips that are cut off).
        langs: by `Utterance.lang`, what `stats.json` contains about each language besides its
            counts; may be empty.
        max_rejected: accepted share of faulty clips (`Rejected.is_fault`).
        unit: what a transcript contains: characters, or phones with spaces between them.

    Raises DataError when two utterances have the same key, when more clips are faulty than are
        accepted, and when a set is empty. The last two are noticed after rejected.tsv is written.
    """
    _check_keys(splits)
    _remove_incomplete_files(out)
    write_rejected(out, rejected)
    total = _count(splits, rejected, unit)
    _refuse_many_faults(out, total, max_rejected)
    _write_lists(out, splits)
    utterances = list(chain.from_iterable(splits.values()))
    num_implausible = _write_implausible(out, utterances, unit)
    counts_of_lang = {
        lang: {**facts_of_lang, **_count_lang(lang, splits, rejected, unit)}
        for lang, facts_of_lang in langs.items()
    }
    num_in = total.pop("num_in")  # stands above the other counts in stats.json
    content = {
        "format": "wenet_hs.prepare/1",
        **facts,
        "num_in": num_in,
        "num_implausible": num_implausible,
        "langs": counts_of_lang,
        "total": total,
    }
    # Written last: if it exists, the folder is complete.
    write_atomic(out / "stats.json", json.dumps(content, ensure_ascii=False, indent=2) + "\n")
    return content


def _check_keys(splits: Mapping[str, Sequence[Utterance]]) -> None:
    """Raise DataError if two utterances have the same key, in one set or in two."""
    first_of_key: dict[str, Utterance] = {}
    for utterances in splits.values():
        for utterance in utterances:
            first = first_of_key.setdefault(utterance.key, utterance)
            if first is not utterance:
                found = f"two clips have this name, {first.wav} and {utterance.wav}"
                raise DataError(f"utterance {utterance.key!r}", found, "rename one")


def _remove_incomplete_files(out: Path) -> None:
    """Remove the temporary files of a run that was killed."""
    for folder in (out, *(out / name for name in SPLITS)):
        for incomplete in folder.glob(".*.tmp"):
            incomplete.unlink()


def _refuse_many_faults(out: Path, total: Mapping[str, Any], max_rejected: float) -> None:
    """Raise DataError if a larger share of the clips is faulty than is accepted.

    Args:
        total: the counts of all clips, as in `stats.json`.
        max_rejected: the accepted share.
    """
    num_of_kind: Mapping[str, int] = total["rejected"]
    num_faults = sum(num_of_kind.values())
    num_in = total["num_in"]
    if num_faults <= max_rejected * num_in:
        return
    kinds = ", ".join(f"{kind} {count}" for kind, count in num_of_kind.items())
    most_frequent_kind = next(iter(num_of_kind))  # they are in descending order
    remedy = "repair the corpus"
    if most_frequent_kind == "missing":
        remedy = "put the audio where this file says"
    if num_faults < num_in:  # otherwise nothing would be left
        remedy += f", or allow it with --max_rejected (now {max_rejected:g})"
    found = f"{num_faults} of {num_in} clips cannot be used ({kinds})"
    raise DataError(out / "rejected.tsv", found, remedy)


def _write_lists(out: Path, splits: Mapping[str, Sequence[Utterance]]) -> None:
    """Write the data list and the transcripts of each set; remove those of absent sets.

    The lists of absent sets may be there from an earlier run. Raises DataError if a set is empty,
    before any list is written.
    """
    for name in SPLITS:
        if name not in splits:
            (out / name / "data.list").unlink(missing_ok=True)
            (out / name / "text").unlink(missing_ok=True)
        elif not splits[name]:
            found = f"no utterance is left for the {name} set"
            raise DataError(out, found, f"see why in {out / 'rejected.tsv'}")
    for name, utterances in splits.items():
        write_data_list(out / name / "data.list", utterances)
        write_text(out / name / "text", {utterance.key: utterance.txt for utterance in utterances})


def _write_implausible(
    out: Path, utterances: Sequence[Utterance], unit: Literal["char", "phone"]
) -> int:
    """Write implausible.tsv, and log and return the number of its clips."""
    implausible = find_implausible(utterances, unit)
    lines = ["key\tduration\tunits\tseconds per unit"]
    for clip in implausible:
        duration_s = clip.utterance.duration
        lines.append(
            f"{clip.utterance.key}\t{duration_s}\t{clip.num_units}\t{clip.seconds_per_unit:.3f}"
        )
    table = out / "implausible.tsv"
    write_atomic(table, "".join(f"{line}\n" for line in lines))
    if implausible:
        message = "%s: %d of %d clips have an implausible duration for their transcript; they are kept in the lists"
        logger.info(message, table, len(implausible), len(utterances))
    return len(implausible)


def _count_lang(
    lang: str,
    splits: Mapping[str, Sequence[Utterance]],
    rejected: Sequence[Rejected],
    unit: str,
) -> dict[str, Any]:
    """The counts of one language for `stats.json`."""
    splits_of_lang = {
        name: [u for u in utterances if u.lang == lang] for name, utterances in splits.items()
    }
    return _count(splits_of_lang, [clip for clip in rejected if clip.lang == lang], unit)


def _count(
    splits: Mapping[str, Sequence[Utterance]], rejected: Sequence[Rejected], unit: str
) -> dict[str, Any]:
    """The counts that `stats.json` has for each language, and for all languages together.

    `in_both` has the speakers and sentences that two sets share, `left_out` the clips that are
    rejected without a fault.
    """
    num_speakers = {
        name: len({u.speaker for u in utterances} - {None}) for name, utterances in splits.items()
    }
    return {
        "num_in": sum(map(len, splits.values())) + len(rejected),
        "utterances": {name: len(utterances) for name, utterances in splits.items()},
        "hours": {name: round(hours_of(utterances), 4) for name, utterances in splits.items()},
        "speakers": num_speakers,
        "in_both": count_shared(splits, unit),
        "rejected": count_kinds(clip for clip in rejected if clip.is_fault),
        "left_out": count_kinds(clip for clip in rejected if not clip.is_fault),
    }


def count_shared(
    splits: Mapping[str, Sequence[Utterance]], unit: str = "char"
) -> dict[str, dict[str, int]]:
    """For each pair of sets, such as `train-test`: the number of speakers and sentences in both."""
    speakers = {
        name: {u.speaker for u in utterances} - {None} for name, utterances in splits.items()
    }
    sentences = {
        name: {plain_text(u, unit) for u in utterances} for name, utterances in splits.items()
    }
    shared = dict[str, dict[str, int]]()
    for first, second in combinations(splits, 2):
        shared[f"{first}-{second}"] = {
            "speakers": len(speakers[first] & speakers[second]),
            "sentences": len(sentences[first] & sentences[second]),
        }
    return shared


def plain_text(utterance: Utterance, unit: str) -> str:
    """The transcript by which sentences are compared: without upper case and punctuation.

    Transcripts of phones stay as they are.
    """
    return utterance.txt if unit == "phone" else normalize(utterance.txt, utterance.lang)


def count_kinds(rejected: Iterable[Rejected]) -> dict[str, int]:
    """Number of clips per kind of reason, the most frequent first."""
    return most_frequent(Counter(clip.reason.partition(":")[0] for clip in rejected))


def most_frequent(counts: Counter[str], limit: int | None = None) -> dict[str, int]:
    """The `limit` greatest counts (None: all) in descending order, equal ones by name."""
    names = sorted(counts, key=lambda name: (-counts[name], name))
    return {name: counts[name] for name in names[:limit]}


def hours_of(utterances: Iterable[Utterance]) -> float:
    """Hours of audio; every duration must be known."""
    return sum(utterance.duration or 0.0 for utterance in utterances) / 3600.0


# ---- rejected.tsv


def write_rejected(out: Path, rejected: Sequence[Rejected]) -> None:
    """Write rejected.tsv, faulty clips first; with start, end and transcript if any clip has an end.

    From here on the folder is not complete, so stats.json is removed.
    """
    (out / "stats.json").unlink(missing_ok=True)
    clips = sorted(rejected, key=lambda clip: not clip.is_fault)
    has_times = any(clip.end is not None for clip in clips)
    rows = [["key", "path", "reason"]]
    if has_times:
        rows[0] += ["start", "end", "text"]
    for clip in clips:
        row = [one_field(clip.key), one_field(clip.path), one_field(clip.reason)]
        if has_times:
            row += [_format_time(clip.start), _format_time(clip.end), one_field(clip.text)]
        rows.append(row)
    write_atomic(out / "rejected.tsv", "".join("\t".join(row) + "\n" for row in rows))


def _format_time(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f}"


def read_rejected(path: Path) -> list[Rejected]:
    """The clips in a rejected.tsv, without language; empty if there is no file.

    All count as faulty, because the file does not say which are. Raises DataError for other lines.
    """
    if not path.is_file():
        return []
    rejected = list[Rejected]()
    for number, line in enumerate(read_lines(path)[1:], start=2):
        clip = _parse_rejected(line)
        if clip is None:
            found = "not a line of `prepare`"
            raise DataError(f"{path}:{number}", found, "prepare the recordings again")
        rejected.append(clip)
    return rejected


def _parse_rejected(line: str) -> Rejected | None:
    """The clip of one line; None for a line without a reason, with wrong times or more cells.

    The cells are key, path, reason, start, end and transcript. Cells at the end may be absent.
    """
    cells = line.split("\t")
    num_absent = max(0, 6 - len(cells))
    key, path, reason, start, end, text, *others = [*cells, *[""] * num_absent]
    if not reason or any(others):
        return None
    try:
        start_s = float(start) if start else None
        end_s = float(end) if end else None
    except ValueError:
        return None
    return Rejected(key=key, path=path, reason=reason, lang="", start=start_s, end=end_s, text=text)


# ---- durations and overlaps


class ImplausibleClip(NamedTuple):
    """An utterance that is far too long or too short for its transcript."""

    utterance: Utterance
    num_units: int
    """Units of its transcript: characters without spaces, or phones."""
    usual_s: float
    """The median of seconds per unit."""

    @property
    def seconds_per_unit(self) -> float:
        return (self.utterance.duration or 0.0) / self.num_units


def find_implausible(
    utterances: Sequence[Utterance], unit: Literal["char", "phone"]
) -> list[ImplausibleClip]:
    """The utterances whose seconds per unit are far from the median, farthest first.

    Characters are compared within a language: a character is a sound in one and a word in another.
    Phones are compared in all languages together. A duration is far if log(seconds per unit)
    differs from the median by more than `_MAX_DEVIATIONS` times the median absolute difference,
    which outliers hardly change. If this difference is 0, because most utterances are at the
    median, none is far. Utterances without units or without a known duration are left out.
    """
    paces_of_group = defaultdict[str, list[_Pace]](list)
    for utterance in utterances:
        num_units = _count_units(utterance.txt, unit)
        if num_units and utterance.duration:
            group = "" if unit == "phone" else utterance.lang or ""
            log_s = math.log(utterance.duration / num_units)
            paces_of_group[group].append(_Pace(log_s, utterance, num_units))
    far = list[tuple[float, ImplausibleClip]]()
    for paces in paces_of_group.values():
        median_log_s = median(pace.log_s for pace in paces)
        distances = [abs(pace.log_s - median_log_s) for pace in paces]
        median_distance = median(distances)
        if median_distance == 0.0:  # most are at the median: a distance cannot be measured by it
            continue
        usual_s = math.exp(median_log_s)
        for distance, pace in zip(distances, paces, strict=True):
            if distance > _MAX_DEVIATIONS * median_distance:
                clip = ImplausibleClip(pace.utterance, pace.num_units, usual_s)
                far.append((distance, clip))

    def farthest_first(distance_and_clip: tuple[float, ImplausibleClip]) -> tuple[float, str]:
        distance, clip = distance_and_clip
        return -distance, clip.utterance.key

    return [clip for _, clip in sorted(far, key=farthest_first)]


def _count_units(text: str, unit: Literal["char", "phone"]) -> int:
    """The phones of a transcript, or its characters without spaces."""
    words = text.split()
    return len(words) if unit == "phone" else sum(map(len, words))


class _Pace(NamedTuple):
    """How slowly an utterance is spoken."""

    log_s: float
    """Natural logarithm of the seconds per unit."""
    utterance: Utterance
    num_units: int


class Overlap(NamedTuple):
    """Two utterances of one recording and channel that overlap."""

    earlier: Utterance
    later: Utterance
    start: float
    """Seconds from the beginning of the recording, from which on both speak."""
    end: float


def find_overlaps(
    utterances: Sequence[Utterance], *, by_speaker: bool = False
) -> Iterator[Overlap]:
    """Pairs of utterances of one recording and channel that overlap by more than 0.1 s.

    Each utterance is compared only with the one that ends last of all that begin before it. So it
    is the later one of at most one pair.

    If an utterance has all channels of its recording (`channel` is None), it may overlap utterances
    of any channel. So the channels of such a recording are not told apart. An utterance without
    `end` ends after its duration.

    Args:
        by_speaker: only utterances of the same speaker are compared.
    """
    mixed_recordings = {u.wav for u in utterances if u.channel is None}
    groups = defaultdict[tuple[object, ...], list[_TimeSpan]](list)
    for u in utterances:
        channel = None if u.wav in mixed_recordings else u.channel
        speaker = u.speaker if by_speaker else None
        start = u.start or 0.0
        end = u.end or start + (u.duration or 0.0)
        groups[u.wav, channel, speaker].append(_TimeSpan(start, end, u))
    for spans in groups.values():
        spans.sort(key=lambda span: (span.start, span.end, span.utterance.key))
        ends_last = spans[0]
        for span in spans[1:]:
            start = span.start
            end = min(ends_last.end, span.end)  # before `start` if they do not overlap
            if round(end - start, 3) > _MIN_OVERLAP_S:
                yield Overlap(ends_last.utterance, span.utterance, start=start, end=end)
            if span.end > ends_last.end:
                ends_last = span


class _TimeSpan(NamedTuple):
    """The seconds of a recording in which an utterance is."""

    start: float
    end: float
    utterance: Utterance


# ---- names


def name_recordings(paths: set[Path]) -> dict[Path, str]:
    """A unique name for each file.

    These names are tried in turn, for the files that have no unique name yet. The example is the
    file a/x.wav, and the path begins at the folder that all files have in common:
    1. The stem of the file: `x`.
    2. Its path without the suffix, if there is also b/x.wav: `a_x`.
    3. Its path with the suffix, if there is also a/x.flac: `a_x.wav`.
    4. Its path with the suffix and a number. This is for files such as a_b/x.wav and a/b/x.wav,
       whose paths become the same word: `a_b_x.wav-1` and `a_b_x.wav-2`.
    """
    root = commonpath([path.parent for path in paths]) if paths else ""
    unnamed = sorted(paths)
    name_of = dict[Path, str]()
    candidates = dict[Path, str]()
    for shorten in (
        lambda path: Path(path.stem),
        lambda path: path.relative_to(root).with_suffix(""),
        lambda path: path.relative_to(root),
    ):
        candidates = {path: _join_parts(shorten(path)) for path in unnamed}
        # Names that were given before are taken too.
        counts = Counter([*name_of.values(), *candidates.values()])
        name_of |= {path: name for path, name in candidates.items() if counts[name] == 1}
        unnamed = [path for path in unnamed if path not in name_of]
    for number, path in enumerate(unnamed, start=1):
        name_of[path] = f"{candidates[path]}-{number}"
    return name_of


def _join_parts(path: Path) -> str:
    """The folders and the name of a path as one word without spaces."""
    return "_".join(normalize_spelling(" ".join(path.parts)).split())


def record_corpus(out: Path, corpus: str) -> None:
    """Write into the output folder which corpus its lists are made of, before the first list.

    The record is the file .corpus. If it is absent, existing files were not written by `prepare`.

    Raises DataError if the folder has lists of another corpus, or files with the names of those of
        `prepare` that it did not write.
    """
    if out.exists() and not out.is_dir():
        raise DataError(f"--out {out}", "not a folder", "name another one")
    record = out / ".corpus"
    recorded = record.read_text("utf-8") if record.is_file() else None  # the corpus of a run before
    names = [f"{name}/{file}" for name in SPLITS for file in ("data.list", "text")]
    if recorded is None:
        names += ["stats.json", "rejected.tsv", "overlapping.tsv", "implausible.tsv"]
    existing = [out / name for name in names if (out / name).exists()]
    if existing and recorded is None:
        found = "exists, and was not made by this command"
        raise DataError(existing[0], found, "give another --out")
    if existing and recorded != corpus:
        found = f"has lists of another corpus ({recorded})"
        raise DataError(out, found, "give another --out, or remove this folder")
    write_atomic(record, corpus)


def split_names(text: str) -> tuple[str, ...]:
    """The names in the value of a flag such as `--langs "ca es"`."""
    return tuple(text.split())


def check_langs(langs: Sequence[str]) -> None:
    """Raise ValueError if there is no language, or one is named twice."""
    if not langs:
        raise ValueError("langs: no language named; name at least one")
    twice = sorted(lang for lang, count in Counter(langs).items() if count > 1)
    if twice:
        raise ValueError(f"langs: {' '.join(twice)} named twice; name each language once")
