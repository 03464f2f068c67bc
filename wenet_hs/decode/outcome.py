# SPDX-License-Identifier: Apache-2.0
"""What came out of a data list: the batches of all ranks as one."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from wenet_hs.decode.alignment import FrameClock
from wenet_hs.decode.partial import BatchResult, NBest
from wenet_hs.decode.plan import Plan
from wenet_hs.manifest import Utterance


@dataclass(frozen=True, slots=True)
class Part:
    """What was found in a clip, or in a segment of a long one."""

    begin_s: float
    """From the beginning of the utterance."""
    nbest: NBest
    """Best first; the best one with its CTC alignment."""


@dataclass
class LanguageTime:
    """Of a language: its audio, and the seconds of work by stage. In a batch every clip costs what the longest does."""

    audio_seconds: float = 0.0
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


@dataclass
class Recognition:
    """What came out of a data list."""

    parts: dict[str, dict[str, list[Part]]]
    """Mode → key of the utterance → what it was found to say: one part, or the segments of a long clip in order."""
    clock: FrameClock
    """When the encoder frames of the alignments are."""
    seconds: dict[int, dict[str, float]] = field(default_factory=dict)
    """Rank → stage → wall seconds."""
    failed: dict[str, str] = field(default_factory=dict)
    """Key of each utterance that could not be read → why."""
    too_short: list[str] = field(default_factory=list)
    """Keys of the utterances without a single encoder frame; their hypothesis is empty."""
    audio_seconds: float = 0.0
    """Of the utterances decoded."""
    by_lang: dict[str, LanguageTime] = field(default_factory=dict)
    """The same of each language that the list knows."""


def merge(
    results: Iterable[BatchResult],
    plan: Plan,
    utterances: Sequence[Utterance],
    modes: Sequence[str],
    clock: FrameClock,
) -> Recognition:
    """All batches as one, whatever order they were done in. An utterance of which a segment failed has failed."""
    found = Recognition({mode: {} for mode in modes}, clock)
    by_row: dict[str, dict[int, list[Part]]] = {mode: defaultdict(list) for mode in modes}
    failed, too_short, long_enough = dict(plan.failed), set[int](), set[int]()
    for result in sorted(results, key=lambda result: result.number):
        batch, of_rank = plan.batches[result.number], found.seconds.setdefault(result.rank, {})
        for stage, seconds in result.seconds.items():
            of_rank[stage] = of_rank.get(stage, 0.0) + seconds
        found.audio_seconds += result.audio_seconds
        _share_by_language(found, result, [utterances[piece.row] for piece in batch], [p.duration_s for p in batch])
        failed |= {batch[place].row: reason for place, reason in result.failed.items()}
        too_short |= {batch[place].row for place in result.too_short}
        long_enough |= {piece.row for place, piece in enumerate(batch) if place not in result.too_short}
        for mode, nbest_of in result.nbest.items():
            for place, nbest in nbest_of.items():
                by_row[mode][batch[place].row].append(Part(batch[place].begin_s, nbest))
    for mode, rows in by_row.items():
        whole = sorted(row for row in rows if row not in failed)
        found.parts[mode] = {utterances[row].key: sorted(rows[row], key=lambda part: part.begin_s) for row in whole}
    found.failed = {utterances[row].key: failed[row] for row in sorted(failed)}
    found.too_short = [utterances[row].key for row in sorted(too_short - long_enough)]
    return found


def _share_by_language(
    found: Recognition, result: BatchResult, batch: Sequence[Utterance], durations: Sequence[float]
) -> None:
    """The seconds of a batch in equal parts to its clips: padding makes them of one length."""
    decoded = [place for place in range(len(batch)) if place not in result.failed]
    for place in decoded:
        lang = batch[place].lang
        if lang is not None:
            time = found.by_lang.setdefault(lang, LanguageTime())
            time.audio_seconds += durations[place]
            for stage, seconds in result.seconds.items():
                time.seconds[stage] += seconds / len(decoded)
