# SPDX-License-Identifier: Apache-2.0
"""Scoring of a set of utterances: error rates per language, speaker or length, macro and micro
averages.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from wenet_hs.score.bootstrap import (
    Interval,
    Intervals,
    Number,
    clustered_intervals,
    stratified_intervals,
)
from wenet_hs.score.edit_distance import ErrorCounts, count_errors
from wenet_hs.score.rules import Rules, split_units
from wenet_hs.tree.errors import DataError, list_names

ALL = "all"  # the only group of a report without languages
SPEAKER, LENGTH = "speaker", "length"
UNDEFINED = "n/a"


@dataclass(slots=True)  # not frozen, like ErrorCounts
class ScoredUtterance:
    """The transcripts of one utterance as given, and its errors. Treat it as immutable."""

    lang: str
    ref: str
    hyp: str | None
    """None: no hypothesis; every reference unit is a deletion."""
    counts: ErrorCounts
    feature_distance: float | None = None
    """Edit distance by phonological features, in units; None if not requested
    (`wenet_hs.score.pfer`).
    """

    def split(self, rules: Rules) -> tuple[Sequence[str], Sequence[str]]:
        """The units of the reference and of the hypothesis; no units without a hypothesis."""
        return split_units(self.ref, rules, self.lang), split_units(
            self.hyp or "", rules, self.lang
        )


@dataclass(frozen=True, slots=True)
class Rate:
    """A fraction and its interval; None if unknown."""

    rate: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class LanguageScore:
    """The error rate of one language (or other group), or of all utterances pooled (micro average)."""

    utterances: int
    counts: ErrorCounts
    interval: Interval | None
    features: Rate | None = None
    """The phone feature error rate: feature distances divided by reference units."""

    @property
    def rate(self) -> float | None:
        """Errors divided by reference units, a fraction; None without reference units."""
        return self.counts.rate


@dataclass(frozen=True, slots=True)
class MacroScore:
    """The mean of the rates of the languages (or other groups), a fraction; None if no group has a
    rate.
    """

    rate: float | None
    num_languages: int
    """The number of groups with a rate."""
    interval: Interval | None
    features: Rate | None = None


@dataclass(frozen=True, slots=True)
class Grouping:
    """The scores of all utterances per language, speaker or length, and their averages."""

    groups: dict[str, LanguageScore]
    macro: MacroScore
    micro: LanguageScore


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of one scoring.

    `wenet_hs.score.tables` formats it, `wenet_hs.score.tables` stores it as JSON.
    """

    name: str
    """The user's name for what was scored; may be empty."""
    rules: Rules
    signature: str
    languages: dict[str, LanguageScore]
    macro: MacroScore
    micro: LanguageScore
    missing: tuple[str, ...]
    """Keys without a hypothesis, which count as deletions."""
    extra: tuple[str, ...]
    """Keys of hypotheses without a reference, which are not counted."""
    utterances: dict[str, ScoredUtterance]
    num_resamples: int
    by: dict[str, Grouping] = field(default_factory=dict)
    """The same scores grouped by "speaker" or "length", if requested; not read from a file."""


def score(
    reference: Mapping[str, str],
    hypothesis: Mapping[str, str],
    *,
    rules: Rules,
    langs: Mapping[str, str] | None = None,
    name: str = "",
    names: tuple[str, str] = ("the reference", "the hypotheses"),
    allow_extra: bool = False,
    num_resamples: int = 1000,
) -> Report:
    """Score transcripts by key. Keys themselves are never scored.

    Args:
      reference, hypothesis: transcript of each key.
      langs: language of each key; without it the report has the single group "all".
      names: what messages call the reference and the hypotheses, such as their files.
      num_resamples: of the bootstrap; 0 for no intervals.

    Raises DataError for an empty reference, a key without a language, and (unless `allow_extra`) an
    additional hypothesis. Raises ValueError for `num_resamples` below 0.
    """
    if num_resamples < 0:
        raise ValueError(f"num_resamples: must be at least 0, got {num_resamples}")
    check_keys(reference.keys(), hypothesis.keys(), names=names, allow_extra=allow_extra)
    if langs is not None:
        check_complete(langs, reference, what="language")
    lang_of = dict.fromkeys(reference, ALL) if langs is None else langs
    utterances = {}
    for key, ref in reference.items():
        lang, hyp = lang_of[key], hypothesis.get(key)
        ref_units = split_units(ref, rules, lang)
        hyp_units = ref_units if hyp == ref else split_units(hyp or "", rules, lang)
        utterances[key] = ScoredUtterance(lang, ref, hyp, count_errors(ref_units, hyp_units))
    by_language = summarize(utterances, lang_of, num_resamples)
    return Report(
        name=name,
        rules=rules,
        signature=rules.signature(by_language.groups if langs is not None else ()),
        languages=by_language.groups,
        macro=by_language.macro,
        micro=by_language.micro,
        missing=tuple(sorted(reference.keys() - hypothesis.keys())),
        extra=tuple(sorted(hypothesis.keys() - reference.keys())),
        utterances=utterances,
        num_resamples=num_resamples,
    )


def check_keys(
    reference: Set[str], hypothesis: Set[str], *, names: tuple[str, str], allow_extra: bool = False
) -> None:
    """Refuse an empty reference, hypotheses of another test set, and (unless `allow_extra`)
    additional hypotheses.
    """
    if not reference:
        raise DataError(names[0], "contains no utterances", "check that it is the reference")
    extra = sorted(hypothesis - reference)
    number = count_of(len(extra), "hypothesis", "hypotheses")
    if hypothesis and len(extra) == len(hypothesis):
        expected = list_names(sorted(reference), most=1)
        found = f"no utterance of {names[0]} ({expected}) among its {number}"
        to_do = "score it against its own reference, or write the same keys in both"
        raise DataError(names[1], f"{found} ({list_names(extra)})", to_do)
    if extra and not allow_extra:
        to_do = "remove them, or give the reference that has them (`score --allow_extra` leaves them out)"
        raise DataError(
            names[1], f"{number} without a reference in {names[0]} ({list_names(extra)})", to_do
        )


def check_complete(
    known: Collection[str], keys: Iterable[str], *, what: str, where: str = ""
) -> None:
    """Raise DataError if `known` lacks one of the keys.

    `what` is what they lack (a language, a speaker).
    """
    lacking = [key for key in keys if key not in known]
    if lacking:
        found = f"no {what} for {count_of(len(lacking), 'utterance')} of the reference ({list_names(lacking)})"
        to_do = "complete the list, or give the one that the reference was made from"
        raise DataError(where or f"the {what}s", found, to_do)


def summarize(
    utterances: Mapping[str, ScoredUtterance],
    group_of: Mapping[str, str],
    num_resamples: int,
    *,
    intervals: Callable[..., Intervals] = stratified_intervals,
) -> Grouping:
    """The score of each group and the averages.

    Args:
        group_of: the group of each key.
        num_resamples: of the bootstrap; 0 for no intervals.
        intervals: `stratified_intervals`, or `clustered_intervals` to draw whole groups.
    """
    members: dict[str, list[ScoredUtterance]] = {}
    for key, utterance in sorted(
        utterances.items()
    ):  # the order of the file must not change an interval
        members.setdefault(group_of[key], []).append(utterance)
    members = dict(sorted(members.items()))
    counts = {group: [utterance.counts for utterance in of] for group, of in members.items()}
    errors = {
        group: np.array([(count.errors, count.num_units) for count in of])
        for group, of in counts.items()
    }
    found, macro, micro = _rates(errors, intervals, num_resamples)
    features: dict[str, Rate] = {}
    macro_feature = micro_feature = None
    if all(utterance.feature_distance is not None for utterance in utterances.values()):
        distances = {
            group: np.array(
                [(u.feature_distance, u.counts.num_units) for u in of], dtype=np.float64
            )
            for group, of in members.items()
        }
        features, macro_feature, micro_feature = _rates(distances, intervals, num_resamples)
    groups = {
        group: LanguageScore(
            len(of), sum(of, ErrorCounts()), found[group].interval, features.get(group)
        )
        for group, of in counts.items()
    }
    num_rates = sum(of_group.rate is not None for of_group in found.values())
    total = sum((score.counts for score in groups.values()), ErrorCounts())
    return Grouping(
        groups,
        MacroScore(macro.rate, num_rates, macro.interval, macro_feature),
        LanguageScore(len(utterances), total, micro.interval, micro_feature),
    )


def _rates(
    values: Mapping[str, NDArray[Number]], draw: Callable[..., Intervals], num_resamples: int
) -> tuple[dict[str, Rate], Rate, Rate]:
    """The rates of each group, the macro and the micro average, from errors (or distances) and
    units (C, 2).
    """
    intervals = draw(values, num_resamples)
    sums = {group: values_C2.sum(axis=0) for group, values_C2 in values.items()}
    rates = {
        group: float(errors / units) if units else None for group, (errors, units) in sums.items()
    }
    known = [rate for rate in rates.values() if rate is not None]
    errors, units = np.sum(list(sums.values()), axis=0)
    return (
        {group: Rate(rate, intervals.each[group]) for group, rate in rates.items()},
        Rate(sum(known) / len(known) if known else None, intervals.macro),
        Rate(float(errors / units) if units else None, intervals.micro),
    )


def by_speaker(report: Report, speakers: Mapping[str, str], *, where: str = "") -> Report:
    """The report with scores per speaker in `by`.

    A speaker's interval draws the speaker's utterances. The intervals of the averages draw speakers
    with all their utterances, because the speakers are a sample too.

    Raises DataError, which names `where`, for an utterance without a speaker.
    """
    check_complete(speakers, report.utterances, what="speaker", where=where)
    grouping = summarize(
        report.utterances, speakers, report.num_resamples, intervals=clustered_intervals
    )
    return replace(report, by=report.by | {SPEAKER: grouping})


def by_length(report: Report) -> Report:
    """The report with scores per length of the reference in `by`: see `length_bin`."""
    bin_of = {
        key: length_bin(utterance.counts.num_units) for key, utterance in report.utterances.items()
    }
    found = summarize(report.utterances, bin_of, report.num_resamples)
    groups = dict(sorted(found.groups.items(), key=lambda item: int(item[0].partition("-")[0])))
    return replace(report, by=report.by | {LENGTH: replace(found, groups=groups)})


def length_bin(num_units: int) -> str:
    """The bin of a reference with `num_units` units: 0, 1-5, then bins that double: 6-10, 11-20,
    21-40, …
    """
    if num_units == 0:
        return "0"
    low, high = 1, 5
    while num_units > high:
        low, high = high + 1, 2 * high
    return f"{low}-{high}"


def worst_first(reports: Sequence[Report]) -> list[str]:
    """Keys by falling mean error rate over the reports, then by falling number of errors, then by
    name.
    """

    def order(key: str) -> tuple[float, int, str]:
        counts = [report.utterances[key].counts for report in reports]
        return (
            -sum(map(sortable_rate, counts)) / len(counts),
            -sum(count.errors for count in counts),
            key,
        )

    return sorted(reports[0].utterances, key=order)


def sortable_rate(counts: ErrorCounts) -> float:
    """The error rate; the number of errors if there are no reference units."""
    return float(counts.errors) if counts.rate is None else counts.rate


def percent(rate: float | None) -> str:
    """A fraction as a percentage with two decimals; n/a if undefined."""
    return UNDEFINED if rate is None else f"{100 * rate:.2f}"


def format_interval(interval: Interval | None) -> str:
    """An interval of fractions as percentages in brackets; n/a if there is none."""
    return UNDEFINED if interval is None else f"[{percent(interval.low)}, {percent(interval.high)}]"


def count_of(number: int, singular: str, plural: str = "") -> str:
    """A number and its noun: `1 utterance`, `1,200 utterances`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
