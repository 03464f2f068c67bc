# SPDX-License-Identifier: Apache-2.0
"""Output of `prepare`, the same for every corpus: OUT/{train,dev,test}/{data.list,text}, rejected.tsv, stats.json.

stats.json is written last: if it exists, the folder is complete. The same input gives the same bytes, with any number
of workers.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wenet_hs.corpus.splits import overlaps
from wenet_hs.errors import ConfigError, DataError
from wenet_hs.files import one_field, write_atomic
from wenet_hs.manifest import Utterance, write_data_list, write_text

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class Rejected:
    """A clip that is in none of the lists."""

    key: str
    path: str
    reason: str
    """`kind` or `kind: details`; clips are counted per kind."""
    lang: str
    is_fault: bool = True
    """False for a good clip that was not sampled, or that would put a speaker or sentence into two sets."""

    @property
    def kind(self) -> str:
        """The reason without its details."""
        return self.reason.partition(":")[0]


def check_langs(langs: Sequence[str]) -> None:
    """Raise ConfigError if there is no language, or one is named twice."""
    if not langs:
        raise ConfigError('--langs: no language named; name at least one, such as --langs "ca es"')
    twice = sorted(lang for lang, count in Counter(langs).items() if count > 1)
    if twice:
        raise ConfigError(f"--langs: {' '.join(twice)} named twice; name each language once")


def write_corpus(
    out: Path, splits: Mapping[str, Sequence[Utterance]], rejected: Sequence[Rejected], stats: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a prepared corpus. Returns the content of `stats.json`: `stats`, and totals over all languages.

    Raises DataError when two utterances have the same key or a set is empty (omit a set that is not wanted).
    """
    num_kept = sum(len(utterances) for utterances in splits.values())
    assert stats["num_in"] == num_kept + len(rejected), f"{num_kept} kept, {len(rejected)} rejected: {stats['num_in']}"
    _check_keys(splits)
    (out / "stats.json").unlink(missing_ok=True)
    for folder in (out, *(out / name for name in SPLITS)):
        for incomplete in folder.glob(".*.tmp"):  # of a run that was killed
            incomplete.unlink()
    write_rejected(out, rejected)
    for name, utterances in splits.items():
        if not utterances:
            raise DataError(f"{out}: no utterance is left for the {name} set; see why in {out / 'rejected.tsv'}")
    for name in set(SPLITS) - set(splits):  # of an earlier run
        (out / name / "data.list").unlink(missing_ok=True)
        (out / name / "text").unlink(missing_ok=True)
    for name, utterances in splits.items():
        write_data_list(out / name / "data.list", utterances)
        write_text(out / name / "text", {utterance.key: utterance.txt for utterance in utterances})
    content = {"format": "wenet_hs.prepare/1", **stats, "total": describe_splits(splits, rejected)}
    write_atomic(out / "stats.json", json.dumps(content, ensure_ascii=False, indent=2) + "\n")
    return content


def write_rejected(out: Path, rejected: Iterable[Rejected]) -> None:
    """Write OUT/rejected.tsv: `key path reason`, faulty clips first."""
    rows = sorted(rejected, key=lambda clip: not clip.is_fault)
    lines = ("\t".join(map(one_field, (clip.key, clip.path, clip.reason))) + "\n" for clip in rows)
    write_atomic(out / "rejected.tsv", "key\tpath\treason\n" + "".join(lines))


def check_share_rejected(out: Path, rejected: Sequence[Rejected], num_in: int, limit: float) -> None:
    """Raise DataError when more than a share `limit` of the clips is faulty; OUT/rejected.tsv lists them."""
    faults = [clip for clip in rejected if clip.is_fault]
    if num_in and len(faults) > limit * num_in:
        write_rejected(out, rejected)
        kinds = ", ".join(f"{kind} {count}" for kind, count in count_kinds(faults).items())
        raise DataError(
            f"{out / 'rejected.tsv'}: {len(faults)} of {num_in} clips cannot be used ({kinds}); repair the corpus, "
            f"or allow it with --max_rejected (now {limit:g})"
        )


def count_kinds(rejected: Iterable[Rejected]) -> dict[str, int]:
    """Number of clips per kind of reason, the most frequent first."""
    return most_frequent(Counter(clip.kind for clip in rejected))


def most_frequent(counts: Counter[str], limit: int | None = None) -> dict[str, int]:
    """The counts in descending order, equal ones by name."""
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:limit])


def describe_splits(splits: Mapping[str, Sequence[Utterance]], rejected: Sequence[Rejected]) -> dict[str, Any]:
    """The part of `stats.json` that every corpus has, per language and for all of them."""
    return {
        "utterances": {name: len(utterances) for name, utterances in splits.items()},
        "hours": {name: round(hours_of(utterances), 4) for name, utterances in splits.items()},
        "speakers": {name: len({u.speaker for u in utterances} - {None}) for name, utterances in splits.items()},
        "in_both": overlaps(splits),
        "rejected": count_kinds(clip for clip in rejected if clip.is_fault),
        "left_out": count_kinds(clip for clip in rejected if not clip.is_fault),
    }


def hours_of(utterances: Iterable[Utterance]) -> float:
    """Hours of audio; every duration must be known."""
    return sum(utterance.duration or 0.0 for utterance in utterances) / 3600.0


def _check_keys(splits: Mapping[str, Sequence[Utterance]]) -> None:
    first: dict[str, Utterance] = {}
    for utterance in (utterance for utterances in splits.values() for utterance in utterances):
        if utterance.key in first:
            raise DataError(
                f"utterance {utterance.key!r}: two clips have this name, {first[utterance.key].wav} and "
                f"{utterance.wav}; rename one"
            )
        first[utterance.key] = utterance
