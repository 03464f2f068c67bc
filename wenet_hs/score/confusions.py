# SPDX-License-Identifier: Apache-2.0
"""Which units are taken for which: the most frequent substitutions, deletions and insertions."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wenet_hs.score.edit_distance import align
from wenet_hs.score.summary import ScoredUtterance
from wenet_hs.score.units import Rules, units_of


@dataclass(frozen=True, slots=True)
class Confusion:
    """One kind of error and how often it happens."""

    ref: str | None
    """None: an insertion."""
    hyp: str | None
    """None: a deletion."""
    count: int
    share: float
    """Of all errors, a fraction."""
    of_unit: float | None
    """Of the times that the reference has this unit, a fraction; None for an insertion."""


@dataclass(frozen=True, slots=True)
class Confusions:
    """Each kind by falling count, then by the units; at most as many as were asked for."""

    num_errors: int
    substitutions: tuple[Confusion, ...]
    deletions: tuple[Confusion, ...]
    insertions: tuple[Confusion, ...]


@dataclass(frozen=True, slots=True)
class ConfusionReport:
    """Of all utterances and of each language."""

    most: int
    """How many of each kind were asked for."""
    overall: Confusions
    languages: dict[str, Confusions]


class _Tally:
    """What was aligned with what, and how often each unit stands in the reference."""

    def __init__(self) -> None:
        self.pairs = Counter[tuple[str | None, str | None]]()
        self.units = Counter[str]()

    def add(self, utterance: ScoredUtterance, rules: Rules) -> None:
        ref = units_of(utterance.ref, rules, utterance.lang)
        self.units.update(ref)
        if utterance.counts.errors:
            operations = align(ref, units_of(utterance.hyp or "", rules, utterance.lang)).operations
            self.pairs.update((found.ref, found.hyp) for found in operations if found.ref != found.hyp)

    def most_common(self, most: int) -> Confusions:
        num_errors = sum(self.pairs.values())
        kinds: dict[str, list[Confusion]] = {"S": [], "D": [], "I": []}
        for (ref, hyp), number in sorted(self.pairs.items(), key=_frequent_first):
            kind = kinds["I" if ref is None else "D" if hyp is None else "S"]
            if len(kind) < most:
                of_unit = None if ref is None else number / self.units[ref]
                kind.append(Confusion(ref, hyp, number, number / num_errors, of_unit))
        return Confusions(num_errors, *map(tuple, kinds.values()))


def count_confusions(utterances: Iterable[ScoredUtterance], rules: Rules, most: int) -> ConfusionReport:
    """The `most` frequent confusions of each kind, in all utterances and in each language.

    They are those of the alignments that `score --align` shows: of several shortest ones always the same.
    Raises ValueError where `most` is below 1.
    """
    if most < 1:
        raise ValueError(f"most is {most}, must be at least 1")
    tallies: dict[str, _Tally] = {}
    for utterance in utterances:
        tallies.setdefault(utterance.lang, _Tally()).add(utterance, rules)
    overall = _sum(tallies)
    languages = {lang: tally.most_common(most) for lang, tally in sorted(tallies.items())}
    return ConfusionReport(most, overall.most_common(most), languages)


def _sum(tallies: Mapping[str, _Tally]) -> _Tally:
    overall = _Tally()
    for tally in tallies.values():
        overall.pairs.update(tally.pairs)
        overall.units.update(tally.units)
    return overall


def _frequent_first(item: tuple[tuple[str | None, str | None], int]) -> tuple[int, str, str]:
    (ref, hyp), number = item
    return -number, ref or "", hyp or ""
