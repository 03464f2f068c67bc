# SPDX-License-Identifier: Apache-2.0
"""Scored utterances → a line for each group of them (languages, speakers, lengths), macro and micro average."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from wenet_hs.score.bootstrap import Interval, Intervals, facts_of, stratified_intervals
from wenet_hs.score.edit_distance import ErrorCounts


@dataclass(slots=True)  # not frozen, as ErrorCounts
class ScoredUtterance:
    """One utterance: its transcripts as given, and its errors. Nobody changes one."""

    lang: str
    ref: str
    hyp: str | None
    """None: no hypothesis, so that every reference unit is a deletion."""
    counts: ErrorCounts
    feature_distance: float | None = None
    """Edit distance by phonological features, in units; None where not asked for (`wenet_hs.score.features`)."""


@dataclass(frozen=True, slots=True)
class FeatureRate:
    """The phone feature error rate: feature distance over reference units, a fraction; None where there are none."""

    rate: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class LanguageScore:
    """The error rate of one language (or other group), or of all utterances taken together (micro average)."""

    utterances: int
    counts: ErrorCounts
    interval: Interval | None
    features: FeatureRate | None = None

    @property
    def rate(self) -> float | None:
        """Errors over reference units, a fraction; None without a reference unit."""
        return self.counts.rate


@dataclass(frozen=True, slots=True)
class MacroScore:
    """The mean of the languages' (or other groups') rates, a fraction; None where none has a rate."""

    rate: float | None
    num_languages: int
    """How many have one."""
    interval: Interval | None
    features: FeatureRate | None = None


@dataclass(frozen=True, slots=True)
class Grouping:
    """The same utterances told apart in one way."""

    groups: dict[str, LanguageScore]
    macro: MacroScore
    micro: LanguageScore


def summarize(
    utterances: Mapping[str, ScoredUtterance],
    group_of: Mapping[str, str],
    num_resamples: int,
    *,
    order: Callable[[str], Any] = str,
    intervals: Callable[..., Intervals] = stratified_intervals,
) -> Grouping:
    """A line for each group, and the averages.

    Args:
        group_of: the group of each key.
        num_resamples: of the bootstrap; 0 for no intervals.
        order: what groups are sorted by.
        intervals: `stratified_intervals`, or `clustered_intervals` where groups are drawn whole.
    """
    members: dict[str, list[ScoredUtterance]] = {}
    for key, utterance in sorted(utterances.items()):  # the order of a file changes no interval
        members.setdefault(group_of[key], []).append(utterance)
    members = {group: members[group] for group in sorted(members, key=order)}
    draw = partial(intervals, num_resamples=num_resamples)
    found = draw({group: facts_of([utterance.counts for utterance in of]) for group, of in members.items()})
    features, macro_feature, micro_feature = _feature_rates(members, draw)
    groups = {
        group: LanguageScore(len(of), total(of), found.each[group], features.get(group))
        for group, of in members.items()
    }
    rates = [score.rate for score in groups.values() if score.rate is not None]
    counts = sum((score.counts for score in groups.values()), ErrorCounts())
    macro = MacroScore(_mean(rates), len(rates), found.macro, macro_feature)
    return Grouping(groups, macro, LanguageScore(len(utterances), counts, found.micro, micro_feature))


def total(utterances: Sequence[ScoredUtterance]) -> ErrorCounts:
    """The counts of all of them together."""
    counts = [utterance.counts for utterance in utterances]
    return ErrorCounts(
        sum(count.num_units for count in counts),
        sum(count.substitutions for count in counts),
        sum(count.deletions for count in counts),
        sum(count.insertions for count in counts),
    )


def _feature_rates(
    members: Mapping[str, Sequence[ScoredUtterance]], draw: Callable[..., Intervals]
) -> tuple[dict[str, FeatureRate], FeatureRate | None, FeatureRate | None]:
    """Of each group, macro and micro; nothing where the distances were not asked for."""
    facts = {
        group: np.array([(u.feature_distance, u.counts.num_units) for u in of], dtype=np.float64)
        for group, of in members.items()
        if all(utterance.feature_distance is not None for utterance in of)
    }
    if not facts:
        return {}, None, None
    found = draw(facts)
    sums = {group: facts_C2.sum(axis=0) for group, facts_C2 in facts.items()}
    rates = {group: float(of_group[0] / of_group[1]) if of_group[1] else None for group, of_group in sums.items()}
    distance, num_units = np.sum(list(sums.values()), axis=0)
    return (
        {group: FeatureRate(rate, found.each[group]) for group, rate in rates.items()},
        FeatureRate(_mean([rate for rate in rates.values() if rate is not None]), found.macro),
        FeatureRate(float(distance / num_units) if num_units else None, found.micro),
    )


def _mean(rates: Sequence[float]) -> float | None:
    return sum(rates) / len(rates) if rates else None
