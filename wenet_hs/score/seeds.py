# SPDX-License-Identifier: Apache-2.0
"""Comparison of two systems over paired seeds: t test, interval over seeds and utterances, power, Holm's correction.

A pair is one training of each system with the same seed. Seeds are a sample of the trainings, utterances a sample of
the speech; the languages are fixed. No function here opens a file:

    pairs = pair_reports(reports_a, reports_b, seeds=["1", "2", "3", "4", "5"])  # scorings, one per seed
    pairs = pair_counts(counts_a, counts_b, seeds=[...], names=("softmax", "hsoftmax"))  # errors and units per language
    found = compare_seeds(pairs).differences[MACRO]  # also by language, and MICRO
    found.mean, found.deviation, found.interval, found.p, found.detectable
    adjusted = holm([found.p, another.p])  # all comparisons of one table

Dimension key: S seeds, C utterances of a language, R resamples.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import hypot
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray
from scipy import special

from wenet_hs.errors import DataError, list_names
from wenet_hs.score import compare as paired
from wenet_hs.score.bootstrap import CONFIDENCE, SEED, Interval, draw_sums, percentile_interval
from wenet_hs.score.compare import MACRO, MICRO
from wenet_hs.score.error_rate import Report

FORMAT = "wenet_hs.compare_seeds/1"
MIN_SEEDS = 5
"""With fewer seeds there is no p, no interval and no detectable difference; show the rate of each seed."""
POWER = 0.8
"""The probability with which a test finds the detectable difference."""
FIXED_LANGUAGES = "Languages are fixed: the result holds for these languages, not for languages in general."
_EQUAL = 1e-12  # differences of rates closer than this are equal: rates are quotients of integers

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Counts = Mapping[str, Ints]
"""By language, one row per utterance: errors of A, errors of B and units (C, 3), or errors and units (C, 2)."""


@dataclass(frozen=True, kw_only=True)
class SeedPairs:
    """The error counts of two systems for each seed, on the same utterances.

    Raises DataError for a seed that occurs twice and for seeds that were tested on different utterances.
    """

    names: tuple[str, str]
    seeds: tuple[str, ...]
    errors: tuple[Counts, ...]
    """Of each seed, (C, 3) by language."""
    signature: str = ""
    """The rules of the scoring."""

    def __post_init__(self) -> None:
        if not self.seeds or len(self.seeds) != len(self.errors):
            raise ValueError(f"errors: must be of one or more seeds, got {len(self.errors)} of {len(self.seeds)} seeds")
        twice = sorted({seed for seed in self.seeds if self.seeds.count(seed) > 1})
        if twice:
            raise DataError(f"{' and '.join(self.names)}: seed {list_names(twice)} twice; give each seed once")
        units = [{lang: errors_C3[:, 2].tolist() for lang, errors_C3 in of.items()} for of in self.errors]
        for seed, of_seed in zip(self.seeds, units, strict=True):
            if of_seed != units[0]:
                what = f"seeds {self.seeds[0]} and {seed}: other languages, utterances or reference units"
                raise DataError(f"{what}; test all seeds on the same list and score them with the same --ref")
        if not any(map(any, units[0].values())):
            raise DataError("the reference: contains no units; there is nothing to compare")


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
    """95 % interval of `mean` over seeds and utterances; None below MIN_SEEDS and for one utterance."""
    p: float | None
    """Two-sided paired t test over the seeds (S - 1 degrees of freedom). None below MIN_SEEDS, and if all seeds have
    the same difference other than 0, because a t test needs a spread. 1 if the difference is 0 for all seeds."""
    detectable: float | None
    """The true difference that gives p < 0.05 with probability POWER at this S and deviation; None without them."""

    @property
    def differences(self) -> tuple[float, ...]:
        """B minus A of each seed."""
        return tuple(b - a for a, b in zip(self.rates_a, self.rates_b, strict=True))


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


def pair_reports(
    reports_a: Sequence[Report], reports_b: Sequence[Report], *, seeds: Sequence[str], names: tuple[str, str] = ("", "")
) -> SeedPairs:
    """Pair the scorings of two systems, one per seed in the same order.

    Raises DataError for other references or rules, or a pair with other utterances without a hypothesis.
    """
    pairs = list(zip(reports_a, reports_b, strict=True))
    for report_a, report_b in pairs:
        paired.check_references(reports_a[0], report_a)
        paired.check_comparable(report_a, report_b)
    errors = tuple(paired.errors_by_language(*pair) for pair in pairs)
    names = names[0] or reports_a[0].name, names[1] or reports_b[0].name
    return SeedPairs(names=names, seeds=tuple(seeds), errors=errors, signature=reports_a[0].signature)


def pair_counts(
    counts_a: Sequence[Counts], counts_b: Sequence[Counts], *, seeds: Sequence[str], names: tuple[str, str]
) -> SeedPairs:
    """Pair error counts: of each seed, by language, errors and reference units (C, 2) of the utterances in one order.

    Raises DataError if the two systems of a seed have other languages, utterances or reference units.
    """
    errors = []
    for seed, of_a, of_b in zip(seeds, counts_a, counts_b, strict=True):
        units_a, units_b = ({lang: counts_C2[:, 1].tolist() for lang, counts_C2 in of.items()} for of in (of_a, of_b))
        if units_a != units_b:
            what = f"{' and '.join(names)}, seed {seed}: other languages, utterances or reference units"
            raise DataError(f"{what}; test both on the same list and score them with the same --ref")
        scored = sorted(lang for lang, units in units_a.items() if any(units))
        errors.append({lang: np.column_stack((of_a[lang][:, 0], of_b[lang])) for lang in scored})
    return SeedPairs(names=names, seeds=tuple(seeds), errors=tuple(errors))


def compare_seeds(pairs: SeedPairs, *, num_resamples: int = 10_000) -> SeedComparison:
    """The difference of two systems over seeds, by language and on average.

    The interval combines the deviations of two intervals (Zou & Donner 2008, "Construction of confidence limits about
    effect measures"): utterances are drawn with replacement (within a language, the same ones for both systems and all
    seeds), and the seeds have their t interval, because a bootstrap of few seeds is too narrow. So the interval
    contains the t interval: it excludes 0 only if p < 0.05. The variance of seed × utterance is in both parts, which
    makes it too wide rather than too narrow (Owen 2007, "The pigeonhole bootstrap", has it three times).
    benchmarks/seed_calibration.py measures the coverage.
    """
    rates = [paired.rates_by_language(of_seed) for of_seed in pairs.errors]
    gaps = {name: np.array([of[name][1] - of[name][0] for of in rates]) for name in rates[0]}
    intervals = _intervals(pairs.errors, gaps, num_resamples) if len(pairs.seeds) >= MIN_SEEDS else {}
    return SeedComparison(
        names=pairs.names,
        seeds=pairs.seeds,
        signature=f"{pairs.signature}|boot:{num_resamples}|seed:{SEED}".lstrip("|"),
        differences={name: _difference([of[name] for of in rates], intervals.get(name)) for name in gaps},
        num_utterances=sum(map(len, pairs.errors[0].values())),
        num_resamples=num_resamples,
    )


def _difference(rates: Sequence[tuple[float, float]], interval: Interval | None) -> SeedDifference:
    gaps = [b - a for a, b in rates]
    mean, p, detectable = fmean(gaps), None, None
    spread = stdev(gaps) if max(gaps) - min(gaps) > _EQUAL else 0.0
    if len(gaps) >= MIN_SEEDS and spread:
        p, detectable = t_test(gaps), detectable_difference(spread, len(gaps))
    elif len(gaps) >= MIN_SEEDS and abs(mean) < _EQUAL:
        p = 1.0
    return SeedDifference(
        rates_a=tuple(a for a, _ in rates),
        rates_b=tuple(b for _, b in rates),
        mean=mean,
        deviation=spread if len(gaps) > 1 else None,
        interval=interval,
        p=p,
        detectable=detectable,
    )


def _intervals(errors: Sequence[Counts], gaps: Mapping[str, Floats], num_resamples: int) -> dict[str, Interval]:
    """The interval of each mean difference, see `compare_seeds`. `gaps`: differences of the seeds (S,)."""
    first = errors[0]
    sums = {lang: draw_sums(np.sum([of[lang] for of in errors], axis=0), num_resamples, lang) for lang in first}
    drawn = {lang: paired.resampled_differences(sums_R3) for lang, sums_R3 in sums.items()}
    macro_R = np.mean(list(drawn.values()), axis=0)
    drawn |= {MACRO: macro_R, MICRO: paired.resampled_differences(np.sum(list(sums.values()), axis=0))}
    few = {lang for lang, errors_C3 in first.items() if len(errors_C3) < 2}
    few |= {MACRO, MICRO} if len(few) == len(first) else set()
    over_utterances = {name: percentile_interval(drawn_R) for name, drawn_R in drawn.items() if name not in few}
    return {name: _add_seeds(found, gaps[name]) for name, found in over_utterances.items() if found is not None}


def _add_seeds(over_utterances: Interval, gaps_S: Floats) -> Interval:
    mean, freedom = float(gaps_S.mean()), len(gaps_S) - 1
    reach = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2) * gaps_S.std(ddof=1) / len(gaps_S) ** 0.5)
    low, high = max(0.0, mean - over_utterances.low), max(0.0, over_utterances.high - mean)
    return Interval(mean - hypot(low, reach), mean + hypot(high, reach))


def t_test(differences: Sequence[float]) -> float:
    """Two-sided p of a paired t test; the differences must not all be equal."""
    t = fmean(differences) / stdev(differences) * len(differences) ** 0.5
    return 2 * float(special.stdtr(len(differences) - 1, -abs(t)))


def detectable_difference(deviation: float, num_seeds: int) -> float:
    """The mean difference for which a paired t test gives p < 0.05 and the right sign with probability POWER.

    `deviation`: standard deviation of the seeds' differences. The statistic has a noncentral t distribution.
    """
    freedom = num_seeds - 1
    shift = special.nctdtrinc(freedom, 1 - POWER, special.stdtrit(freedom, (1 + CONFIDENCE) / 2))
    return float(deviation * shift / num_seeds**0.5)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusted p values of several comparisons (Holm 1979); None stays None and is not counted."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, index) in enumerate(order):
        adjusted[index] = highest = max(highest, min(1.0, (len(order) - rank) * p))
    return adjusted


def seed_comparison_to_json(comparison: SeedComparison) -> str:
    """The comparison as JSON text; rates are fractions."""
    record = {"format": FORMAT, "languages": FIXED_LANGUAGES, **asdict(comparison)}
    for name, found in comparison.differences.items():
        record["differences"][name]["differences"] = found.differences
    return json.dumps(record, ensure_ascii=False, indent=1) + "\n"
