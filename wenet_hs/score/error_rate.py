# SPDX-License-Identifier: Apache-2.0
"""Scoring of a set of utterances: error rates per language, speaker or length, and their averages.

The macro average is the mean of the groups' rates; the micro average is the rate of all utterances
pooled. Dimension key: C utterances.
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
SPEAKER = "speaker"
LENGTH = "length"
UNDEFINED = "n/a"  # printed for a rate or an interval that is None


@dataclass(slots=True)  # not frozen, like ErrorCounts
class ScoredUtterance:
    """The transcripts of one utterance as given, and its errors; treat it as immutable."""

    lang: str
    ref: str
    hyp: str | None
    """None: no hypothesis; every reference unit is a deletion."""
    counts: ErrorCounts
    feature_distance: float | None = None
    """Edit distance by phonological features (`wenet_hs.score.pfer`), in units.

    None if it was not requested.
    """

    def split(self, rules: Rules) -> tuple[Sequence[str], Sequence[str]]:
        """The units of the reference and of the hypothesis; no units without a hypothesis."""
        ref_units = split_units(self.ref, rules, self.lang)
        hyp_units = split_units(self.hyp or "", rules, self.lang)
        return ref_units, hyp_units


@dataclass(frozen=True, slots=True)
class Rate:
    """An error rate, a fraction."""

    rate: float | None
    """None without reference units."""
    interval: Interval | None
    """None if it cannot be estimated."""


@dataclass(frozen=True, slots=True)
class LanguageScore:
    """The error rate of one language or other group, or the micro average of all utterances."""

    utterances: int
    """Their number."""
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
    """The mean of the rates of the languages (or other groups)."""

    rate: float | None
    """A fraction; None if no group has a rate."""
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

    `wenet_hs.score.tables` formats it, `wenet_hs.score.report_file` stores it as JSON.
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

    A reference without a hypothesis counts as deleted.

    Args:
        reference: transcript of each key.
        hypothesis: transcript of each key that was decoded.
        rules: how transcripts are split into units.
        langs: language of each key; without it the report has the single group "all".
        name: what was scored, for the report.
        names: what messages call the reference and the hypotheses, such as their files.
        allow_extra: leave out hypotheses without a reference, instead of refusing them.
        num_resamples: of the bootstrap; 0 for no intervals.

    Raises DataError for a key without a language and what `check_keys` refuses, ValueError for
    `num_resamples` below 0.
    """
    if num_resamples < 0:
        raise ValueError(f"num_resamples: must be at least 0, got {num_resamples}")
    check_keys(reference.keys(), hypothesis.keys(), names=names, allow_extra=allow_extra)
    if langs is not None:
        check_complete(langs, reference, what="language")
    lang_of = dict.fromkeys(reference, ALL) if langs is None else langs
    utterances = {}
    for key, ref in reference.items():
        lang = lang_of[key]
        hyp = hypothesis.get(key)
        ref_units = split_units(ref, rules, lang)
        if hyp == ref:
            hyp_units = ref_units  # many hypotheses are right: splitting them again costs time
        else:
            hyp_units = split_units(hyp or "", rules, lang)  # no hypothesis: no units
        counts = count_errors(ref_units, hyp_units)
        utterances[key] = ScoredUtterance(lang=lang, ref=ref, hyp=hyp, counts=counts)
    by_language = summarize(utterances, lang_of, num_resamples)
    known_langs = () if langs is None else by_language.groups.keys()
    return Report(
        name=name,
        rules=rules,
        signature=rules.signature(known_langs),
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
    """Check that the keys of hypotheses can be scored against those of a reference.

    Args:
        names: what messages call the reference and the hypotheses.
        allow_extra: allow hypotheses without a reference, if others have one.

    Raises DataError if the reference is empty, if none of the hypotheses has a reference, and
    (unless `allow_extra`) if one has none.
    """
    ref_name, hyp_name = names
    if not reference:
        raise DataError(ref_name, "contains no utterances", "check that it is the reference")
    extra = sorted(hypothesis - reference)
    num_extra = count_of(len(extra), "hypothesis", "hypotheses")
    shown_extra = list_names(extra)
    if hypothesis and len(extra) == len(hypothesis):
        expected = list_names(sorted(reference), most=1)
        found = f"no utterance of {ref_name} ({expected}) among its {num_extra} ({shown_extra})"
        to_do = "score it against its own reference, or write the same keys in both"
        raise DataError(hyp_name, found, to_do)
    if extra and not allow_extra:
        found = f"{num_extra} without a reference in {ref_name} ({shown_extra})"
        leave_out = "`score --allow_extra` leaves them out"
        to_do = f"remove them, or give the reference that has them ({leave_out})"
        raise DataError(hyp_name, found, to_do)


def check_complete(
    known: Collection[str], keys: Iterable[str], *, what: str, where: str = ""
) -> None:
    """Raise DataError if `known` lacks one of the keys.

    Args:
        known: the keys with a language, or with a speaker.
        what: "language" or "speaker".
        where: what the message names as the place; empty: "the languages", "the speakers".
    """
    unknown_keys = [key for key in keys if key not in known]
    if unknown_keys:
        utterances = count_of(len(unknown_keys), "utterance")
        found = f"no {what} for {utterances} of the reference ({list_names(unknown_keys)})"
        to_do = "complete the list, or give the one that the reference was made from"
        raise DataError(where or f"the {what}s", found, to_do)


def summarize(
    utterances: Mapping[str, ScoredUtterance],
    group_of: Mapping[str, str],
    num_resamples: int,
    *,
    draw_intervals: Callable[..., Intervals] = stratified_intervals,
) -> Grouping:
    """The score of each group, in the order of their names, and the averages.

    If all utterances have a feature distance, each score has the phone feature error rate too.

    Args:
        group_of: the group of each key.
        num_resamples: of the bootstrap; 0 for no intervals.
        draw_intervals: `stratified_intervals`, or `clustered_intervals`, in which the averages draw
            whole groups.
    """
    members = _group_utterances(utterances, group_of)
    errors = {group: _error_array(group_members) for group, group_members in members.items()}
    error_rates = _compute_rates(errors, draw_intervals, num_resamples)
    feature_rates = None
    if all(utterance.feature_distance is not None for utterance in utterances.values()):
        distances = {
            group: _distance_array(group_members) for group, group_members in members.items()
        }
        feature_rates = _compute_rates(distances, draw_intervals, num_resamples)
    groups = {}
    for group, group_members in members.items():
        groups[group] = LanguageScore(
            utterances=len(group_members),
            counts=sum((utterance.counts for utterance in group_members), ErrorCounts()),
            interval=error_rates.each[group].interval,
            features=None if feature_rates is None else feature_rates.each[group],
        )
    macro = MacroScore(
        rate=error_rates.macro.rate,
        num_languages=sum(score.rate is not None for score in groups.values()),
        interval=error_rates.macro.interval,
        features=None if feature_rates is None else feature_rates.macro,
    )
    micro = LanguageScore(
        utterances=len(utterances),
        counts=sum((score.counts for score in groups.values()), ErrorCounts()),
        interval=error_rates.micro.interval,
        features=None if feature_rates is None else feature_rates.micro,
    )
    return Grouping(groups, macro, micro)


def _group_utterances(
    utterances: Mapping[str, ScoredUtterance], group_of: Mapping[str, str]
) -> dict[str, list[ScoredUtterance]]:
    """The utterances of each group, sorted by key; the groups are sorted by name.

    The bootstrap draws utterances by their position. Sorted ones give the same intervals whatever
    the order of the file.
    """
    members: dict[str, list[ScoredUtterance]] = {}
    for key, utterance in sorted(utterances.items()):
        members.setdefault(group_of[key], []).append(utterance)
    return dict(sorted(members.items()))


def _error_array(utterances: Iterable[ScoredUtterance]) -> NDArray[np.int64]:
    """Errors and reference units of each utterance, (C, 2)."""
    return np.array([(each.counts.errors, each.counts.num_units) for each in utterances])


def _distance_array(utterances: Iterable[ScoredUtterance]) -> NDArray[np.float64]:
    """Feature distance and reference units of each utterance, (C, 2)."""
    rows = [(each.feature_distance, each.counts.num_units) for each in utterances]
    return np.array(rows, dtype=np.float64)


@dataclass(frozen=True)
class _GroupRates:
    """The rates of all groups, and their averages."""

    each: dict[str, Rate]
    macro: Rate
    micro: Rate


def _compute_rates(
    values: Mapping[str, NDArray[Number]],
    draw_intervals: Callable[..., Intervals],
    num_resamples: int,
) -> _GroupRates:
    """The rates of all groups, and their averages, with intervals.

    The macro average is the mean of the groups that have reference units; None if none has.

    Args:
        values: by group: errors (or distances) and reference units of each utterance, (C, 2).
        draw_intervals: `stratified_intervals` or `clustered_intervals`.
        num_resamples: of the bootstrap; 0 for no intervals.
    """
    intervals = draw_intervals(values, num_resamples)
    sums = {group: values_C2.sum(axis=0) for group, values_C2 in values.items()}
    rates = {group: _divide_errors(errors, units) for group, (errors, units) in sums.items()}
    known_rates = [rate for rate in rates.values() if rate is not None]
    macro_rate = sum(known_rates) / len(known_rates) if known_rates else None
    all_errors, all_units = np.sum(list(sums.values()), axis=0)
    return _GroupRates(
        each={group: Rate(rate, intervals.each[group]) for group, rate in rates.items()},
        macro=Rate(macro_rate, intervals.macro),
        micro=Rate(_divide_errors(all_errors, all_units), intervals.micro),
    )


def _divide_errors(errors: Number, units: Number) -> float | None:
    """The error rate: errors (or distances) per reference unit; None without reference units."""
    return float(errors / units) if units else None


def by_speaker(report: Report, speakers: Mapping[str, str], *, where: str = "") -> Report:
    """The report with scores per speaker in `by`.

    A speaker's interval draws the speaker's utterances. The intervals of the averages draw speakers
    with all their utterances, because the speakers are a sample too.

    Args:
        speakers: the speaker of each key.
        where: what an error names, such as the file of the speakers.

    Raises DataError for an utterance without a speaker.
    """
    check_complete(speakers, report.utterances, what="speaker", where=where)
    grouping = summarize(
        report.utterances, speakers, report.num_resamples, draw_intervals=clustered_intervals
    )
    return replace(report, by=report.by | {SPEAKER: grouping})


def by_length(report: Report) -> Report:
    """The report with scores per length of the reference in `by`: the bins of `length_bin`.

    Short references are first.
    """
    bin_of = {
        key: length_bin(utterance.counts.num_units) for key, utterance in report.utterances.items()
    }
    grouping = summarize(report.utterances, bin_of, report.num_resamples)
    short_first = sorted(grouping.groups, key=_lower_bound)
    groups = {name: grouping.groups[name] for name in short_first}
    return replace(report, by=report.by | {LENGTH: replace(grouping, groups=groups)})


def length_bin(num_units: int) -> str:
    """The bin of a reference with this number of units: "0", "1-5", "6-10", "11-20", "21-40", …

    From the third on, each bin ends at twice the end of the bin before it.
    """
    if num_units == 0:
        return "0"
    low, high = 1, 5
    while num_units > high:
        low, high = high + 1, 2 * high
    return f"{low}-{high}"


def _lower_bound(name_of_bin: str) -> int:
    """The smallest number of units in a bin of `length_bin`."""
    low, _, _ = name_of_bin.partition("-")
    return int(low)


def worst_first(reports: Sequence[Report]) -> list[str]:
    """The keys of reports of the same utterances, those with the highest error rate first.

    Of several reports it is the mean of their rates. Utterances with the same rate are ordered by
    falling number of errors, then by name.
    """

    def order(key: str) -> tuple[float, int, str]:
        counts = [report.utterances[key].counts for report in reports]
        mean_rate = sum(map(sortable_rate, counts)) / len(counts)
        num_errors = sum(count.errors for count in counts)
        return (-mean_rate, -num_errors, key)  # negative: high numbers come first

    return sorted(reports[0].utterances, key=order)


def sortable_rate(counts: ErrorCounts) -> float:
    """The error rate by which utterances are sorted.

    Without reference units there is no rate: then it is the number of errors, as with one unit.
    """
    return float(counts.errors) if counts.rate is None else counts.rate


def percent(rate: float | None) -> str:
    """A fraction as a percentage with two decimals; n/a if undefined."""
    return UNDEFINED if rate is None else f"{100 * rate:.2f}"


def format_interval(interval: Interval | None) -> str:
    """An interval of fractions as percentages in brackets; n/a if there is none."""
    return UNDEFINED if interval is None else f"[{percent(interval.low)}, {percent(interval.high)}]"


def count_of(number: int, singular: str, plural: str = "") -> str:
    """A number and its noun, such as `1 utterance` or `1,200 utterances`.

    `plural`: the noun for other numbers than 1; empty: `singular` with an s.
    """
    plural = plural or f"{singular}s"
    noun = singular if number == 1 else plural
    return f"{number:,} {noun}"
