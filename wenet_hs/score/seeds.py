# SPDX-License-Identifier: Apache-2.0
"""Comparison of two systems over paired seeds: t test, interval, power, Holm's correction.

A pair is one training of each system with the same seed. Seeds are a sample of the trainings,
utterances a sample of the speech; the languages are fixed. No function here opens a file:

    comparison = compare_reports({"1": (report_a1, report_b1), "2": (report_a2, report_b2), ...})
    macro = comparison.differences[MACRO]
    macro.mean, macro.deviation, macro.interval, macro.p, macro.detectable
    adjusted = holm([macro.p, another.p])  # all comparisons of one table

Dimension key: S seeds, C utterances of a language, R resamples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray
from scipy import special

from wenet_hs.score import compare as paired
from wenet_hs.score.bootstrap import CONFIDENCE, SEED, Interval, stratified_intervals
from wenet_hs.score.compare import MACRO, MICRO
from wenet_hs.score.error_rate import Report, count_of
from wenet_hs.tree.errors import DataError

MIN_SEEDS = 5
"""With fewer seeds there is no p, no interval and no detectable difference.

Show the rate of each seed instead.
"""
POWER = 0.8
"""The probability with which a test finds the detectable difference."""
FIXED_LANGUAGES = (
    "Languages are fixed: the result holds for these languages, not for languages in general."
)
_EQUAL = 1e-12  # rates are quotients of integers; those that are closer than this are equal

Errors = Mapping[str, NDArray[np.int64]]
"""By language, (C, 3): errors of A, errors of B and reference units of each utterance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedDifference:
    """The error rates of two systems over S seeds; all values are fractions."""

    rates_a: tuple[float, ...]
    rates_b: tuple[float, ...]
    mean: float
    """B minus A, the mean over the seeds: below 0, B is better."""
    deviation: float | None
    """Standard deviation of the seeds' differences (divided by S - 1); None for one seed."""
    interval: Interval | None
    """95 % interval of `mean` over seeds and utterances.

    None below MIN_SEEDS, and for one utterance.
    """
    p: float | None
    """Two-sided paired t test over the seeds (S - 1 degrees of freedom).

    None below MIN_SEEDS, and if all seeds have the same difference other than 0, because a t test
    needs a spread. 1 if the difference is 0 for all seeds.
    """
    detectable: float | None
    """The true difference that gives p < 0.05 with probability POWER at this S and deviation.

    None below MIN_SEEDS, and without a deviation.
    """
    differences: tuple[float, ...]
    """B minus A of each seed."""


@dataclass(frozen=True, kw_only=True)
class SeedComparison:
    """The differences of two systems over seeds."""

    names: tuple[str, str]
    seeds: tuple[str, ...]
    signature: str
    differences: dict[str, SeedDifference]
    """By language, then MACRO and MICRO."""
    num_utterances: int
    num_resamples: int


def compare_reports(
    pairs: Mapping[str, tuple[Report, Report]],
    *,
    names: tuple[str, str] = ("", ""),
    num_resamples: int = 10_000,
) -> SeedComparison:
    """The difference of two systems over seeds, from the scorings of both for each seed.

    `compare_seeds` says how it is computed.

    Args:
        pairs: the scorings of both systems, by seed.
        names: of the systems.

    Raises DataError for other references or rules, and for a pair of which only one has a
    hypothesis for an utterance.
    """
    first, _ = next(iter(pairs.values()))
    for report_a, report_b in pairs.values():
        paired.check_references(first, report_a)
        paired.check_comparable(report_a, report_b)
    errors = {
        seed: paired.errors_by_language(report_a, report_b)
        for seed, (report_a, report_b) in pairs.items()
    }
    return compare_seeds(
        errors, names=names, signature=first.signature, num_resamples=num_resamples
    )


def compare_seeds(
    errors: Mapping[str, Errors],
    *,
    names: tuple[str, str] = ("", ""),
    signature: str = "",
    num_resamples: int = 10_000,
) -> SeedComparison:
    """The difference of two systems over seeds, by language and on average.

    The interval combines the deviations of two intervals (Zou & Donner 2008, "Construction of
    confidence limits about effect measures"): utterances are drawn with replacement (within a
    language, the same ones for both systems and all seeds), and the seeds have their t interval,
    because a bootstrap of few seeds is too narrow. So the interval contains the t interval: it
    excludes 0 only if p < 0.05. The variance of seed × utterance is in both parts, which makes it
    too wide rather than too narrow (Owen 2007, "The pigeonhole bootstrap", has it three times).
    benchmarks/seed_calibration.py measures the coverage.

    Args:
        errors: by seed, the same utterances for all seeds.
        names: of the systems.
        signature: the rules of the scoring.
        num_resamples: of the bootstrap.

    Raises DataError for seeds that were tested on different utterances, and for a reference without
    units; ValueError without seeds.
    """
    _check_same_units(errors)
    first = next(iter(errors.values()))
    rates_by_seed = [paired.rates_by_language(seed_errors) for seed_errors in errors.values()]
    over_utterances: dict[str, Interval | None] = {}
    if len(errors) >= MIN_SEEDS:
        over_utterances = _bootstrap_utterances([*errors.values()], num_resamples)
    differences = {}
    for name in rates_by_seed[0]:
        rates = [rates_of_seed[name] for rates_of_seed in rates_by_seed]
        differences[name] = _difference(rates, over_utterances.get(name))
    return SeedComparison(
        names=names,
        seeds=tuple(errors),
        # Without rules, the signature does not begin with the sign that separates its parts.
        signature=f"{signature}|boot:{num_resamples}|seed:{SEED}".lstrip("|"),
        differences=differences,
        num_utterances=sum(map(len, first.values())),
        num_resamples=num_resamples,
    )


def _check_same_units(errors: Mapping[str, Mapping[str, NDArray[np.int64]]]) -> None:
    """Check that all seeds were tested on the same utterances, by their reference units.

    `errors`: by seed and language; the last column has the reference units of each utterance.

    Raises DataError if not, ValueError without seeds.
    """
    if not errors:
        raise ValueError("errors: must be of one or more seeds")
    units = {}
    for seed, seed_errors in errors.items():
        units[seed] = {lang: rows[:, -1].tolist() for lang, rows in seed_errors.items()}
    first_seed, *other_seeds = units
    for seed in other_seeds:
        if units[seed] != units[first_seed]:
            found = "other languages, utterances or reference units"
            to_do = "test all seeds on the same list and score them with the same --ref"
            raise DataError(f"seeds {first_seed} and {seed}", found, to_do)


def _bootstrap_utterances(
    errors: Sequence[Errors], num_resamples: int
) -> dict[str, Interval | None]:
    """The interval over utterances of the mean difference, of each language, MACRO and MICRO.

    `errors`: of each seed. A resample has the same utterances for all seeds.
    """
    sums = _sum_over_seeds(errors)
    differences = {lang: paired.difference_and_units(sums_C3) for lang, sums_C3 in sums.items()}
    intervals = stratified_intervals(differences, num_resamples)
    return intervals.each | {MACRO: intervals.macro, MICRO: intervals.micro}


def _sum_over_seeds(
    errors: Sequence[Mapping[str, NDArray[np.int64]]],
) -> dict[str, NDArray[np.int64]]:
    """Errors and reference units of each utterance of a language, summed over the seeds.

    It is as if each utterance were as many times as long as there are seeds.

    `errors`: of each seed, by language: a row per utterance, the same utterances for all seeds.
    """
    sums = {}
    for lang in errors[0]:
        sums[lang] = np.sum([seed_errors[lang] for seed_errors in errors], axis=0)
    return sums


def _difference(
    rates: Sequence[tuple[float, float]], over_utterances: Interval | None
) -> SeedDifference:
    """The difference of two systems over seeds, with a t test from MIN_SEEDS seeds on.

    Args:
        rates: of A and B for each seed.
        over_utterances: the interval of the mean difference over utterances; None: the result has
            no interval.
    """
    rates_a = tuple(rate_a for rate_a, _ in rates)
    rates_b = tuple(rate_b for _, rate_b in rates)
    differences = tuple(rate_b - rate_a for rate_a, rate_b in rates)
    num_seeds = len(rates)
    mean = fmean(differences)
    # Differences that only rounding makes unequal have no deviation: a t test would divide by it.
    are_equal = max(differences) - min(differences) <= _EQUAL
    deviation = 0.0 if are_equal else stdev(differences)
    p = None
    detectable = None
    has_enough_seeds = num_seeds >= MIN_SEEDS
    if has_enough_seeds and deviation > 0:
        p = _t_test(mean, deviation, num_seeds)
        detectable = detectable_difference(deviation, num_seeds)
    elif has_enough_seeds and abs(mean) < _EQUAL:
        p = 1.0
    interval = None
    if over_utterances is not None:
        interval = _widen_by_seeds(over_utterances, mean, deviation, num_seeds)
    return SeedDifference(
        rates_a=rates_a,
        rates_b=rates_b,
        mean=mean,
        deviation=deviation if num_seeds > 1 else None,
        interval=interval,
        p=p,
        detectable=detectable,
        differences=differences,
    )


def _t_test(mean: float, deviation: float, num_seeds: int) -> float:
    """The p value of a two-sided t test of a mean of S values with this standard deviation."""
    statistic = mean / deviation * num_seeds**0.5
    return 2 * float(special.stdtr(num_seeds - 1, -abs(statistic)))


def _widen_by_seeds(
    over_utterances: Interval, mean: float, deviation: float, num_seeds: int
) -> Interval:
    """The interval of a mean over seeds and utterances, as `compare_seeds` describes it.

    On each side, the distance from the mean is the hypotenuse of two distances: that of the
    interval over utterances, and that of the t interval over seeds. One seed adds nothing. The
    interval over utterances may lie on one side of the mean; the distance on the other side is 0.

    Args:
        over_utterances: the interval of the mean over utterances.
        mean: the mean over the seeds.
        deviation: standard deviation of the seeds.
    """
    seed_distance = 0.0
    if num_seeds > 1:
        seed_distance = _t_quantile(num_seeds) * deviation / num_seeds**0.5
    distance_below = max(0.0, mean - over_utterances.low)
    distance_above = max(0.0, over_utterances.high - mean)
    return Interval(
        low=mean - hypot(distance_below, seed_distance),
        high=mean + hypot(distance_above, seed_distance),
    )


def _t_quantile(num_seeds: int) -> float:
    """The end of the interval with CONFIDENCE, for a standard error of 1."""
    return float(special.stdtrit(num_seeds - 1, (1 + CONFIDENCE) / 2))


def detectable_difference(deviation: float, num_seeds: int) -> float:
    """The mean difference that a paired t test over this number of seeds detects.

    It gives p < 0.05 and the right sign with probability POWER. The statistic of the test has a
    noncentral t distribution.

    `deviation`: standard deviation of the seeds' differences.
    """
    # At this noncentrality the statistic is above the t quantile with probability POWER.
    noncentrality = special.nctdtrinc(num_seeds - 1, 1 - POWER, _t_quantile(num_seeds))
    return float(deviation * noncentrality / num_seeds**0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedMean:
    """The macro average of one system, the mean over its seeds; all values are fractions."""

    mean: float
    interval: Interval | None
    """95 % interval of `mean` over seeds and utterances.

    With one seed over utterances only, so it does not contain the spread between seeds. None for
    languages with one utterance.
    """
    num_seeds: int


def mean_over_seeds(
    errors: Mapping[str, Mapping[str, NDArray[np.int64]]], *, num_resamples: int = 10_000
) -> SeedMean:
    """The mean error rate of a system over its seeds, with an interval as in `compare_seeds`.

    Two seeds are enough: with few of them the t quantile makes the interval wide. MIN_SEEDS is for
    tests between systems.

    Args:
        errors: by seed and language, (C, 2): errors and reference units of each utterance, the same
            utterances for all seeds. Errors may be differences of two systems; the result is then
            their mean difference.
        num_resamples: of the bootstrap.

    Raises DataError for seeds that were tested on different utterances, and for a language without
    reference units; ValueError without seeds.
    """
    _check_same_units(errors)
    first_errors = next(iter(errors.values()))  # all seeds have the same reference units
    for lang, errors_C2 in first_errors.items():
        if not errors_C2[:, 1].any():
            where = f"the reference of {lang}"
            raise DataError(where, "contains no units", "leave this language out")
    rates = [_macro_rate(seed_errors) for seed_errors in errors.values()]
    num_seeds = len(rates)
    mean = fmean(rates)
    sums = _sum_over_seeds([*errors.values()])
    over_utterances = stratified_intervals(sums, num_resamples).macro
    interval = None
    if over_utterances is not None:
        deviation = stdev(rates) if num_seeds > 1 else 0.0
        interval = _widen_by_seeds(over_utterances, mean, deviation, num_seeds)
    return SeedMean(mean=mean, interval=interval, num_seeds=num_seeds)


def _macro_rate(errors: Mapping[str, NDArray[np.int64]]) -> float:
    """The mean of the languages' rates, from errors and reference units (C, 2) of each utterance."""
    return fmean(errors_C2[:, 0].sum() / errors_C2[:, 1].sum() for errors_C2 in errors.values())


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusted p values of several comparisons (Holm 1979); None stays None and is not counted.

    The smallest of m values is multiplied by m, the next one by m - 1, and so on. None of them
    becomes smaller than the one before it, or larger than 1.
    """
    rising = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(rising):
        factor = len(rising) - rank
        largest = max(largest, min(1.0, factor * p))
        adjusted[index] = largest
    return adjusted


@dataclass(frozen=True, kw_only=True)
class SystemSeeds:
    """A system in one decoding mode."""

    mode: str
    name: str
    rates: dict[str, float]
    """The macro average of each seed."""
    baseline: str
    """The name of the system that this one is compared with: the first one of the mode."""
    difference: SeedDifference | None = None
    """This system minus the baseline; None for the baseline and without two pairs."""
    adjusted_p: float | None = None
    """Holm's correction over the comparisons of all systems and modes."""


def correct_p(systems: Sequence[SystemSeeds]) -> list[SystemSeeds]:
    """The systems with `adjusted_p`: Holm's correction of all their p values together.

    A system without a difference, or whose difference has no p, has none.
    """
    p_values = [system.difference.p if system.difference else None for system in systems]
    adjusted = holm(p_values)
    return [replace(system, adjusted_p=p) for system, p in zip(systems, adjusted, strict=True)]


def count_tests(systems: Sequence[SystemSeeds]) -> str:
    """How many p values Holm's correction has adjusted, as a text such as `12 comparisons`."""
    num_tests = sum(system.adjusted_p is not None for system in systems)
    return count_of(num_tests, "comparison")
