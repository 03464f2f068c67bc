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
from os.path import commonpath
from pathlib import Path
from statistics import median
from typing import Any, Literal

from wenet_hs.base.files import one_field, read_lines
from wenet_hs.base.options import NUM_CORES, REQUIRED, check_values, option
from wenet_hs.corpus.splits import count_shared
from wenet_hs.manifest.data_list import Utterance, write_data_list, write_text
from wenet_hs.text.normalize import normalize_phones
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

logger = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")
_IMPLAUSIBLE = 6.0
"""Median absolute deviations of log(seconds per unit); 0.2 % of UCLA's clips are farther from the
median.
"""
_MIN_OVERLAP_S = 0.1
"""Ends that are set by hand differ by less."""


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Options of every corpus."""

    out: Path = option(REQUIRED, "output folder")
    seed: int = option(0, "seed of every random choice")
    num_workers: int = option(
        NUM_CORES, "processes; 0: only this one (default: one per core)", is_recorded=False
    )

    def __post_init__(self) -> None:
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
    """Seconds from the beginning of the file at `path`, if it is a part of it."""
    end: float | None = None
    text: str = ""
    """Its transcript, where it is a part of a file."""

    @classmethod
    def of(cls, clip: Utterance, reason: str, is_fault: bool = True) -> "Rejected":
        return cls(
            clip.key, clip.wav, reason, clip.lang or "", is_fault, clip.start, clip.end, clip.txt
        )


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

    Raises: DataError when more clips are faulty, two utterances have the same key, or a set is
        empty.
    """
    _check_keys(splits)
    total = _count(splits, rejected, unit)
    for folder in (out, *(out / name for name in SPLITS)):
        for incomplete in folder.glob(".*.tmp"):  # of a run that was killed
            incomplete.unlink()
    write_rejected(out, rejected)
    num_faults = sum(total["rejected"].values())
    if num_faults > max_rejected * total["num_in"]:
        kinds = ", ".join(f"{kind} {count}" for kind, count in total["rejected"].items())
        found = f"{num_faults} of {total['num_in']} clips cannot be used ({kinds})"
        raise DataError(out / "rejected.tsv", found, _how_to_repair(total, max_rejected))
    for name in SPLITS:
        if name not in splits:  # remove the lists of an earlier run
            (out / name / "data.list").unlink(missing_ok=True)
            (out / name / "text").unlink(missing_ok=True)
        elif not splits[name]:
            raise DataError(
                out,
                f"no utterance is left for the {name} set",
                f"see why in {out / 'rejected.tsv'}",
            )
    for name, utterances in splits.items():
        write_data_list(out / name / "data.list", utterances)
        write_text(out / name / "text", {utterance.key: utterance.txt for utterance in utterances})
    implausible = find_implausible([u for utterances in splits.values() for u in utterances], unit)
    lines = (
        f"{u.key}\t{u.duration}\t{num}\t{(u.duration or 0.0) / num:.3f}\n"
        for u, num, _ in implausible
    )
    write_atomic(
        out / "implausible.tsv", "key\tduration\tunits\tseconds per unit\n" + "".join(lines)
    )
    if implausible:
        message = "%s: %d of %d clips have an implausible duration for their transcript; they are kept in the lists"
        logger.info(
            message, out / "implausible.tsv", len(implausible), sum(map(len, splits.values()))
        )
    by_lang = {}
    for lang, of_lang in langs.items():
        sets = {
            name: [u for u in utterances if u.lang == lang] for name, utterances in splits.items()
        }
        by_lang[lang] = {
            **of_lang,
            **_count(sets, [clip for clip in rejected if clip.lang == lang], unit),
        }
    num_in = total.pop("num_in")
    content = {
        "format": "wenet_hs.prepare/1",
        **facts,
        "num_in": num_in,
        "num_implausible": len(implausible),
    }
    content |= {"langs": by_lang, "total": total}
    write_atomic(out / "stats.json", json.dumps(content, ensure_ascii=False, indent=2) + "\n")
    return content


def _how_to_repair(total: Mapping[str, Any], max_rejected: float) -> str:
    """What to do about more faulty clips than are accepted.

    `total`: the number of faulty clips per kind, and that of all clips.
    """
    is_mostly_missing = next(iter(total["rejected"])) == "missing"
    repair = "put the audio where this file says" if is_mostly_missing else "repair the corpus"
    if sum(total["rejected"].values()) == total["num_in"]:  # nothing would be left
        return repair
    return f"{repair}, or allow it with --max_rejected (now {max_rejected:g})"


def read_rejected(path: Path) -> list[Rejected]:
    """The clips in a rejected.tsv, without language; empty if there is no file.

    Raises DataError for other lines.
    """
    found = list[Rejected]()
    for number, line in enumerate(read_lines(path)[1:] if path.is_file() else [], 2):
        key, name, reason, start, end, text, *more = [*line.split("\t"), *[""] * 5][:7]
        try:
            times = [float(time) if time else None for time in (start, end)]
        except ValueError:
            times = []
        if not times or any(more) or not reason:
            raise DataError(
                f"{path}:{number}", "not a line of `prepare`", "prepare the recordings again"
            )
        found.append(Rejected(key, name, reason, "", start=times[0], end=times[1], text=text))
    return found


def write_rejected(out: Path, rejected: Sequence[Rejected]) -> None:
    """Write rejected.tsv, faulty clips first, with begin, end and transcript if any clip has them.

    From here on the folder is not complete, so stats.json is removed.
    """
    (out / "stats.json").unlink(missing_ok=True)
    rows = sorted(rejected, key=lambda clip: not clip.is_fault)
    has_times = any(clip.end is not None for clip in rows)
    table = [["key", "path", "reason", *["start", "end", "text"][: 3 * has_times]]]
    for clip in rows:
        times = ["" if time is None else f"{time:.3f}" for time in (clip.start, clip.end)]
        words = [*map(one_field, (clip.key, clip.path, clip.reason)), *times, one_field(clip.text)]
        table.append(words[: len(table[0])])
    write_atomic(out / "rejected.tsv", "".join("\t".join(row) + "\n" for row in table))


def find_implausible(
    utterances: Sequence[Utterance], unit: Literal["char", "phone"]
) -> list[tuple[Utterance, int, float]]:
    """The utterances whose seconds per unit are far from the median, farthest first, with their
    units and the median.

    The median is that of the language, because a character is a sound or a word; that of all for
    phones. A duration is far if log(seconds per unit) differs from the median by more than
    `_IMPLAUSIBLE` times the median absolute difference, which outliers hardly change.
    """
    by_lang = defaultdict[str, list[tuple[float, Utterance, int]]](list)
    for u in utterances:
        num = len(u.txt.split() if unit == "phone" else "".join(u.txt.split()))
        if num and u.duration:
            by_lang["" if unit == "phone" else u.lang or ""].append(
                (math.log(u.duration / num), u, num)
            )
    far = list[tuple[float, Utterance, int, float]]()
    for of_lang in by_lang.values():
        center = median(value for value, _, _ in of_lang)
        distances = [(abs(value - center), u, num, math.exp(center)) for value, u, num in of_lang]
        spread = median(distance for distance, *_ in distances)
        far += [one for one in distances if one[0] > _IMPLAUSIBLE * spread > 0.0]
    return [
        (u, num, usual) for _, u, num, usual in sorted(far, key=lambda one: (-one[0], one[1].key))
    ]


def find_overlaps(
    utterances: Sequence[Utterance], *, by_speaker: bool = False
) -> Iterator[tuple[Utterance, Utterance, float, float]]:
    """The utterances that begin more than 0.1 s before an earlier one of their recording and
    channel ends.

    Returns: the earlier one that ends last, the later one, and the seconds from and to which both
        speak.
    """
    groups = defaultdict[tuple[object, ...], list[tuple[float, float, str, Utterance]]](list)
    mixed = {
        u.wav for u in utterances if u.channel is None
    }  # with all channels: any other one overlaps them
    for u in utterances:
        start = u.start or 0.0
        segment = (start, u.end or start + (u.duration or 0.0), u.key, u)
        groups[
            u.wav, None if u.wav in mixed else u.channel, u.speaker if by_speaker else None
        ].append(segment)
    for segments in groups.values():
        last, *others = sorted(segments, key=lambda one: one[:3])
        for segment in others:
            end = min(last[1], segment[1])
            if round(end - segment[0], 3) > _MIN_OVERLAP_S:
                yield last[3], segment[3], segment[0], end
            last = max(last, segment, key=lambda one: one[1])


def _check_keys(splits: Mapping[str, Sequence[Utterance]]) -> None:
    first: dict[str, Utterance] = {}
    for utterance in (utterance for utterances in splits.values() for utterance in utterances):
        same = first.setdefault(utterance.key, utterance)
        if same is not utterance:
            found = f"two clips have this name, {same.wav} and {utterance.wav}"
            raise DataError(f"utterance {utterance.key!r}", found, "rename one")


def _count(
    splits: Mapping[str, Sequence[Utterance]], rejected: Sequence[Rejected], unit: str
) -> dict[str, Any]:
    """The counts that `stats.json` has for each language and in total."""
    return {
        "num_in": sum(map(len, splits.values())) + len(rejected),
        "utterances": {name: len(utterances) for name, utterances in splits.items()},
        "hours": {name: round(hours_of(utterances), 4) for name, utterances in splits.items()},
        "speakers": {
            name: len({u.speaker for u in utterances} - {None})
            for name, utterances in splits.items()
        },
        "in_both": count_shared(splits, unit),
        "rejected": count_kinds(clip for clip in rejected if clip.is_fault),
        "left_out": count_kinds(clip for clip in rejected if not clip.is_fault),
    }


def count_kinds(rejected: Iterable[Rejected]) -> dict[str, int]:
    """Number of clips per kind of reason, the most frequent first."""
    return most_frequent(Counter(clip.reason.partition(":")[0] for clip in rejected))


def most_frequent(counts: Counter[str], limit: int | None = None) -> dict[str, int]:
    """The counts in descending order, equal ones by name."""
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:limit])


def hours_of(utterances: Iterable[Utterance]) -> float:
    """Hours of audio; every duration must be known."""
    return sum(utterance.duration or 0.0 for utterance in utterances) / 3600.0


def name_recordings(paths: set[Path]) -> dict[Path, str]:
    """The stem of each file.

    Where several have it: the path from the common folder, with suffix, with a number.
    """
    root = commonpath([path.parent for path in paths]) if paths else ""
    below = {path: path.relative_to(root) for path in sorted(paths)}
    left = {path: (Path(path.stem), one.with_suffix(""), one) for path, one in below.items()}
    names, made = dict[Path, str](), dict[Path, str]()
    for index in range(3):
        made = {
            path: "_".join(normalize_phones(" ".join(forms[index].parts)).split())
            for path, forms in left.items()
        }
        counts = Counter([*names.values(), *made.values()])
        names |= {path: name for path, name in made.items() if counts[name] == 1}
        left = {path: forms for path, forms in left.items() if path not in names}
    return names | {path: f"{made[path]}-{number}" for number, path in enumerate(left, start=1)}


def record_corpus(out: Path, corpus: str) -> None:
    """Write which corpus the lists of this folder are of, before the first list.

    Raises DataError if it has lists of another corpus, or files of the same names that `prepare`
        did not write.
    """
    if out.exists() and not out.is_dir():
        raise DataError(f"--out {out}", "not a folder", "name another one")
    record = out / ".corpus"
    found = record.read_text("utf-8") if record.is_file() else None
    names = [f"{name}/{file}" for name in SPLITS for file in ("data.list", "text")]
    if found is None:
        names += ["stats.json", "rejected.tsv", "overlapping.tsv", "implausible.tsv"]
    existing = next((out / name for name in names if (out / name).exists()), None)
    if existing and found is None:
        raise DataError(existing, "exists, and was not made by this command", "give another --out")
    if existing and found != corpus:
        raise DataError(
            out,
            f"has lists of another corpus ({found})",
            "give another --out, or remove this folder",
        )
    write_atomic(record, corpus)
