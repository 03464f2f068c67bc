# SPDX-License-Identifier: Apache-2.0
"""Bootstrap confidence intervals of error rates (Bisani & Ney 2004).

Dimension key: C clusters that are drawn as a whole (utterances, or speakers with all their
utterances), K sums per cluster (errors and reference units first), R resamples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

SEED = 20230  # of all draws, so that the intervals of a scoring are always the same
CONFIDENCE = 0.95
_DRAWS_PER_BLOCK = 2**14  # the memory of one block fits into the cache

Number = TypeVar("Number", np.int64, np.float64)
Rates = NDArray[np.float64]
"""One error rate per resample, (R,); NaN where a resample has no reference units."""


class Interval(NamedTuple):
    """The bounds of a confidence interval of an error rate, as fractions."""

    low: float
    high: float


class Intervals(NamedTuple):
    """Intervals of each group and of both averages; None where there is none."""

    each: dict[str, Interval | None]
    """By group."""
    macro: Interval | None
    micro: Interval | None


@dataclass(frozen=True)
class ResampledRates:
    """The error rates of all resamples."""

    each: dict[str, Rates]
    """By group."""
    macro_R: Rates
    """The mean of the groups that have reference units."""
    micro_R: Rates
    """The rate of all groups pooled."""


def draw_sums(values_CK: NDArray[Number], num_resamples: int, stream: str = "") -> NDArray[Number]:
    """Draw C clusters with replacement, `num_resamples` times, and return their sums (R, K).

    The sums are 0 if there are no clusters.

    Args:
        values_CK: K values per cluster.
        stream: selects independent draws. A language has its own, so that its interval does not
            depend on other languages.
    """
    num_clusters, num_sums = values_CK.shape
    sums_RK = np.zeros((num_resamples, num_sums), dtype=values_CK.dtype)
    if num_clusters == 0:
        return sums_RK
    seeds = [SEED, *stream.encode()]  # numpy makes one seed of all these numbers
    generator = np.random.default_rng(seeds)
    resamples_per_block = max(1, _DRAWS_PER_BLOCK // num_clusters)
    for start in range(0, num_resamples, resamples_per_block):
        rows = sums_RK[start : start + resamples_per_block]  # a view: writing to it fills sums_RK
        drawn_RC = generator.integers(num_clusters, size=(len(rows), num_clusters), dtype=np.int32)
        # One of the K values at a time, contiguous in memory, which is faster.
        for index, value_C in enumerate(np.ascontiguousarray(values_CK.T)):
            rows[:, index] = value_C.take(drawn_RC).sum(axis=1)
    return sums_RK


def rates_of_sums(sums_RK: NDArray[Number]) -> Rates:
    """The error rates (R,) of sums whose first two columns are errors and reference units."""
    errors_R = sums_RK[:, 0]
    units_R = sums_RK[:, 1]
    # np.maximum: no warning of a division by 0 where the result is NaN anyway.
    return np.where(units_R > 0, errors_R / np.maximum(units_R, 1), np.nan)


def resample_rates(values: Mapping[str, NDArray[Number]], num_resamples: int) -> ResampledRates:
    """The rates of resamples, each of which draws as many clusters of a group as the group has.

    Groups without reference units are not in the macro average. If there are no others, all its
    rates are NaN.

    Args:
        values: by group (a language, a length): errors and reference units of each cluster, (C, 2).
    """
    sums = {
        group: draw_sums(values_C2, num_resamples, group) for group, values_C2 in values.items()
    }
    rates = {group: rates_of_sums(sums_R2) for group, sums_R2 in sums.items()}
    rates_with_units = [
        rates[group] for group, values_C2 in values.items() if _has_units(values_C2)
    ]
    if rates_with_units:
        macro_R = np.mean(rates_with_units, axis=0)
    else:
        macro_R = np.full(num_resamples, np.nan)
    total_R2: NDArray[Number] = np.sum(list(sums.values()), axis=0)
    return ResampledRates(each=rates, macro_R=macro_R, micro_R=rates_of_sums(total_R2))


def _has_units(values_C2: NDArray[Number]) -> bool:
    """Whether a group of errors and reference units has reference units."""
    return bool(values_C2[:, 1].any())


def percentile_interval(rates_R: Rates) -> Interval | None:
    """The middle 95 % of the values that are not NaN; None if all are NaN."""
    known_rates = rates_R[~np.isnan(rates_R)]
    if not len(known_rates):
        return None
    tail = (1 - CONFIDENCE) / 2  # the share of the values below the interval, and of those above
    low, high = np.quantile(known_rates, (tail, 1 - tail))
    return Interval(float(low), float(high))


def stratified_intervals(values: Mapping[str, NDArray[Number]], num_resamples: int) -> Intervals:
    """Intervals of each group and of the averages from the resamples of `resample_rates`.

    A group with one cluster has no interval, because all its resamples are equal. If no group has
    an interval, the averages have none either.

    Args:
        values: by group: errors and reference units of each cluster, (C, 2).
    """
    resampled = resample_rates(values, num_resamples)
    each: dict[str, Interval | None] = {}
    for group, values_C2 in values.items():
        num_clusters = len(values_C2)
        each[group] = percentile_interval(resampled.each[group]) if num_clusters > 1 else None
    has_interval = any(interval is not None for interval in each.values())
    if not has_interval:
        return Intervals(each=each, macro=None, micro=None)
    return Intervals(
        each=each,
        macro=percentile_interval(resampled.macro_R),
        micro=percentile_interval(resampled.micro_R),
    )


def clustered_intervals(values: Mapping[str, NDArray[Number]], num_resamples: int) -> Intervals:
    """Intervals of each group as in `stratified_intervals`; those of the averages draw whole groups.

    It is for groups that are a sample too, such as speakers. Groups without reference units have no
    rate and are not drawn. If fewer than two groups are left, the averages have no interval.

    Args:
        values: by group: errors and reference units of each cluster, (C, 2).
    """
    each = stratified_intervals(values, num_resamples).each
    sums_by_group = [
        values_C2.sum(axis=0) for values_C2 in values.values() if _has_units(values_C2)
    ]
    num_groups = len(sums_by_group)
    if num_groups < 2:
        return Intervals(each=each, macro=None, micro=None)
    # From here on, each group is one cluster with three values: errors, reference units and rate.
    groups_C2 = np.array(sums_by_group, dtype=np.float64)
    rates_C = groups_C2[:, 0] / groups_C2[:, 1]
    groups_C3 = np.column_stack((groups_C2, rates_C))
    sums_R3 = draw_sums(groups_C3, num_resamples)
    macro_R = sums_R3[:, 2] / num_groups  # the mean rate of the groups that were drawn
    micro_R = rates_of_sums(sums_R3)
    return Intervals(
        each=each, macro=percentile_interval(macro_R), micro=percentile_interval(micro_R)
    )
