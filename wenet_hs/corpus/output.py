# SPDX-License-Identifier: Apache-2.0
"""What every corpus has in common: the folder it is prepared into, and the account of what was left out.

OUT/{train,dev,test}/{data.list,text}, OUT/rejected.tsv and OUT/stats.json; the last is written last, so where it stands
the folder is complete. Nothing depends on the time or the number of workers: the same input gives the same bytes.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wenet_hs.corpus.splits import overlaps
from wenet_hs.errors import DataError
from wenet_hs.files import one_field, write_atomic
from wenet_hs.manifest import Utterance, write_data_list, write_text

FORMAT = "wenet_hs.prepare/1"
SPLITS = ("train", "dev", "test")
MEMORY_NAME = ".checked.jsonl"
"""In OUT: what is known about clips from a run that was killed (`audio_check.ClipChecker`)."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A clip that is in none of the lists."""

    key: str
    path: str
    reason: str
    """`kind` or `kind: details`; kinds are counted."""
    lang: str
    is_fault: bool = True
    """False when nothing is wrong with the clip: it was not sampled, or would leak a speaker or sentence."""

    @property
    def kind(self) -> str:
        """The reason without its details."""
        return self.reason.partition(":")[0]


def write_splits(
    out: Path, splits: Mapping[str, Sequence[Utterance]], rejected: Sequence[Rejected], stats: Mapping[str, Any]
) -> None:
    """Write a prepared corpus. `stats` becomes `stats.json`; its `num_in`, where given, must be kept + rejected.

    Raises DataError when two utterances have the same key or a set is empty (leave a set out that is not wanted).
    """
    num_kept = sum(len(utterances) for utterances in splits.values())
    num_in = stats.get("num_in", num_kept + len(rejected))
    assert num_in == num_kept + len(rejected), f"{num_in} clips, but {num_kept} kept and {len(rejected)} rejected"
    _check_keys(splits)
    (out / "stats.json").unlink(missing_ok=True)
    for folder in (out, *(out / name for name in SPLITS)):
        for half_written in folder.glob(".*.tmp"):  # by a run that was killed
            half_written.unlink()
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
    content = {"format": FORMAT, **stats}
    write_atomic(out / "stats.json", json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def write_rejected(out: Path, rejected: Iterable[Rejected]) -> None:
    """Write OUT/rejected.tsv: `key path reason`, what is faulty before what was only not needed."""
    rows = sorted(rejected, key=lambda clip: not clip.is_fault)
    lines = ("\t".join(map(one_field, (clip.key, clip.path, clip.reason))) + "\n" for clip in rows)
    write_atomic(out / "rejected.tsv", "key\tpath\treason\n" + "".join(lines))


def check_share_rejected(out: Path, rejected: Sequence[Rejected], num_in: int, limit: float) -> None:
    """Stop when more than a share `limit` of the clips is faulty, with OUT/rejected.tsv as evidence."""
    faults = [clip for clip in rejected if clip.is_fault]
    if num_in and len(faults) > limit * num_in:
        write_rejected(out, rejected)
        kinds = ", ".join(f"{kind} {count}" for kind, count in count_kinds(faults).items())
        raise DataError(
            f"{out / 'rejected.tsv'}: {len(faults)} of {num_in} clips cannot be used ({kinds}); mend the corpus, "
            f"or allow it with --max_rejected (now {limit:g})"
        )


def count_kinds(rejected: Iterable[Rejected]) -> dict[str, int]:
    """How many clips were left out for which kind of reason, the most frequent first."""
    counts = Counter(clip.kind for clip in rejected)
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def describe_splits(splits: Mapping[str, Sequence[Utterance]], rejected: Sequence[Rejected]) -> dict[str, Any]:
    """The part of `stats.json` that is the same for every corpus, of all languages or of one."""
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
