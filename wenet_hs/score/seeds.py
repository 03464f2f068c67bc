# SPDX-License-Identifier: Apache-2.0
"""Comparison of two systems over paired seeds: t test, interval over seeds and utterances, power,
Holm's correction.

A pair is one training of each system with the same seed. Seeds are a sample of the trainings,
utterances a sample of the speech; the languages are fixed. No function here opens a file:

    found = compare_reports({"1": (report_a1, report_b1), "2": (report_a2, report_b2), ...}).differences[MACRO]
    found.mean, found.deviation, found.interval, found.p, found.detectable
    adjusted = holm([found.p, another.p])  # all comparisons of one table

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
"""With fewer seeds there is no p, no interval and no detectable difference; show the rate of each
seed.
"""
POWER = 0.8
"""The probability with which a test finds the detectable difference."""
FIXED_LANGUAGES = (
    "Languages are fixed: the result holds for these languages, not for languages in general."
)
_EQUAL = 1e-12  # differences of rates closer than this are equal: rates are quotients of integers

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
    """95 % interval of `mean` over seeds and utterances; None below MIN_SEEDS and for one
    utterance.
    """
    p: float | None
    """Two-sided paired t test over the seeds (S - 1 degrees of freedom).

    None below MIN_SEEDS, and if all seeds have the same difference other than 0, because a t test
    needs a spread. 1 if the difference is 0 for all seeds.
    """
    detectable: float | None
    """The true difference that gives p < 0.05 with probability POWER at this S and deviation; None
    without them.
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
    """`compare_seeds` of the scorings of both systems by seed.

    Raises DataError for other references or rules, or a pair with other utterances without a
        hypothesis.
    """
    first, _ = next(iter(pairs.values()))
    for report_a, report_b in pairs.values():
        paired.check_references(first, report_a)
        paired.check_comparable(report_a, report_b)
    errors = {seed: paired.errors_by_language(*pair) for seed, pair in pairs.items()}
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
    """The difference of two systems over seeds, by language and on average; `signature` has the
    rules of the scoring.

    The interval combines the deviations of two intervals (Zou & Donner 2008, "Construction of
    confidence limits about effect measures"): utterances are drawn with replacement (within a
    language, the same ones for both systems and all seeds), and the seeds have their t interval,
    because a bootstrap of few seeds is too narrow. So the interval contains the t interval: it
    excludes 0 only if p < 0.05. The variance of seed × utterance is in both parts, which makes it
    too wide rather than too narrow (Owen 2007, "The pigeonhole bootstrap", has it three times).
    benchmarks/seed_calibration.py measures the coverage.

    Raises DataError for seeds that were tested on different utterances, and for a reference without
        units.
    """
    _check_same_units(errors)
    first = next(iter(errors.values()))
    rates = [paired.rates_by_language(of_seed) for of_seed in errors.values()]
    intervals = (
        _bootstrap_utterances([*errors.values()], num_resamples) if len(errors) >= MIN_SEEDS else {}
    )
    return SeedComparison(
        names=names,
        seeds=tuple(errors),
        signature=f"{signature}|boot:{num_resamples}|seed:{SEED}".lstrip("|"),
        differences={
            name: _difference([of[name] for of in rates], intervals.get(name)) for name in rates[0]
        },
        num_utterances=sum(map(len, first.values())),
        num_resamples=num_resamples,
    )


def _check_same_units(errors: Mapping[str, Mapping[str, NDArray[np.int64]]]) -> None:
    """`errors`: by seed and language; the last column has the reference units of each utterance.

    Raises ValueError without seeds, and DataError for seeds that were tested on different
        utterances.
    """
    if not errors:
        raise ValueError("errors: must be of one or more seeds")
    units = {
        seed: {lang: of_language[:, -1].tolist() for lang, of_language in of_seed.items()}
        for seed, of_seed in errors.items()
    }
    first, *others = units
    for seed in others:
        if units[seed] != units[first]:
            to_do = "test all seeds on the same list and score them with the same --ref"
            raise DataError(
                f"seeds {first} and {seed}", "other languages, utterances or reference units", to_do
            )


def _bootstrap_utterances(
    errors: Sequence[Errors], num_resamples: int
) -> dict[str, Interval | None]:
    """The interval over utterances of each mean difference."""
    sums = {lang: np.sum([of_seed[lang] for of_seed in errors], axis=0) for lang in errors[0]}
    gaps = {
        lang: np.column_stack((sums_C3[:, 1] - sums_C3[:, 0], sums_C3[:, 2]))
        for lang, sums_C3 in sums.items()
    }
    found = stratified_intervals(gaps, num_resamples)
    return found.each | {MACRO: found.macro, MICRO: found.micro}


def _difference(
    rates: Sequence[tuple[float, float]], over_utterances: Interval | None
) -> SeedDifference:
    gaps, number = [b - a for a, b in rates], len(rates)
    mean, interval, p, detectable = fmean(gaps), None, None, None
    spread = stdev(gaps) if max(gaps) - min(gaps) > _EQUAL else 0.0
    if number >= MIN_SEEDS and spread:
        p = 2 * float(special.stdtr(number - 1, -abs(mean / spread * number**0.5)))
        detectable = detectable_difference(spread, number)
    elif number >= MIN_SEEDS and abs(mean) < _EQUAL:
        p = 1.0
    if over_utterances is not None:
        interval = _add_seeds(over_utterances, mean, spread, number)
    return SeedDifference(
        rates_a=tuple(a for a, _ in rates),
        rates_b=tuple(b for _, b in rates),
        mean=mean,
        deviation=spread if number > 1 else None,
        interval=interval,
        p=p,
        detectable=detectable,
        differences=tuple(gaps),
    )


def _add_seeds(
    over_utterances: Interval, mean: float, deviation: float, num_seeds: int
) -> Interval:
    """The interval of a mean over seeds and utterances; see `compare_seeds`. One seed adds nothing.

    `deviation`: standard deviation of the seeds.
    """
    reach = _t_quantile(num_seeds) * deviation / num_seeds**0.5 if num_seeds > 1 else 0.0
    low = max(0.0, mean - over_utterances.low)
    high = max(0.0, over_utterances.high - mean)
    return Interval(mean - hypot(low, reach), mean + hypot(high, reach))


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
    """The mean error rate of a system over its seeds, with an interval that is computed as in
    `compare_seeds`.

    Two seeds are enough: with few of them the t quantile makes it wide. MIN_SEEDS is for tests
    between systems.

    Args:
        errors: by seed and language, (C, 2): errors and reference units of each utterance, the same
            utterances for all seeds. Errors may be differences of two systems; the result is then
            their mean difference.

    Raises DataError for seeds that were tested on different utterances, and for a language without
        reference units.
    """
    _check_same_units(errors)
    for lang, errors_C2 in next(iter(errors.values())).items():
        if not errors_C2[:, 1].any():
            raise DataError(
                f"the reference of {lang}", "contains no units", "leave this language out"
            )
    rates = [_macro_rate(of_seed) for of_seed in errors.values()]
    mean = fmean(rates)
    over_utterances = stratified_intervals(_sum_over_seeds([*errors.values()]), num_resamples).macro
    if over_utterances is None:
        return SeedMean(mean=mean, interval=None, num_seeds=len(rates))
    deviation = stdev(rates) if len(rates) > 1 else 0.0
    interval = _add_seeds(over_utterances, mean, deviation, len(rates))
    return SeedMean(mean=mean, interval=interval, num_seeds=len(rates))


def _macro_rate(errors: Mapping[str, NDArray[np.int64]]) -> float:
    """The mean of the languages' rates, from errors and reference units (C, 2) of each utterance."""
    return fmean(errors_C2[:, 0].sum() / errors_C2[:, 1].sum() for errors_C2 in errors.values())


def _sum_over_seeds(
    errors: Sequence[Mapping[str, NDArray[np.int64]]],
) -> dict[str, NDArray[np.int64]]:
    """Errors and reference units (C, 2) of each utterance, as if the texts of all seeds were one
    longer text.
    """
    return {lang: np.sum([of_seed[lang] for of_seed in errors], axis=0) for lang in errors[0]}


def _t_quantile(num_seeds: int) -> float:
    """The end of the interval with CONFIDENCE, for a standard error of 1."""
    return float(special.stdtrit(num_seeds - 1, (1 + CONFIDENCE) / 2))


def detectable_difference(deviation: float, num_seeds: int) -> float:
    """The mean difference for which a paired t test gives p < 0.05 and the right sign with
    probability POWER.

    `deviation`: standard deviation of the seeds' differences. The statistic has a noncentral t
    distribution.
    """
    shift = special.nctdtrinc(num_seeds - 1, 1 - POWER, _t_quantile(num_seeds))
    return float(deviation * shift / num_seeds**0.5)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusted p values of several comparisons (Holm 1979); None stays None and is not counted."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, index) in enumerate(order):
        adjusted[index] = highest = max(highest, min(1.0, (len(order) - rank) * p))
    return adjusted


@dataclass(frozen=True, kw_only=True)
class SystemSeeds:
    """A system in one decoding mode."""

    mode: str
    name: str
    rates: dict[str, float]
    """The macro average of each seed."""
    baseline: str
    """On the page the first system of the mode."""
    difference: SeedDifference | None = None
    """This system minus the baseline; None for the baseline and without two pairs."""
    adjusted_p: float | None = None
    """Holm's correction over the comparisons of all systems and modes."""


def correct_p(systems: Sequence[SystemSeeds]) -> list[SystemSeeds]:
    """The systems with `adjusted_p`."""
    adjusted = holm([system.difference.p if system.difference else None for system in systems])
    return [replace(system, adjusted_p=p) for system, p in zip(systems, adjusted, strict=True)]


def count_tests(systems: Sequence[SystemSeeds]) -> str:
    """The number of p values that Holm's correction counts."""
    return count_of(sum(system.adjusted_p is not None for system in systems), "comparison")
