# SPDX-License-Identifier: Apache-2.0
"""Bootstrap confidence intervals of error rates (Bisani & Ney 2004).

Dimension key: C clusters that are drawn as a whole (utterances, or speakers with all their
utterances), K sums per cluster (errors and reference units first), R resamples.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

SEED = 20230
CONFIDENCE = 0.95
_BLOCK = 2**14  # draws per block: the memory of one block fits into the cache

Number = TypeVar("Number", np.int64, np.float64)
Rates = NDArray[np.float64]


class Interval(NamedTuple):
    """Bounds of an error rate, fractions."""

    low: float
    high: float


class Intervals(NamedTuple):
    """Intervals of each group, of the macro average and of the micro average; None where unknown."""

    each: dict[str, Interval | None]
    macro: Interval | None
    micro: Interval | None


def draw_sums(values_CK: NDArray[Number], num_resamples: int, stream: str = "") -> NDArray[Number]:
    """Draw C clusters with replacement, `num_resamples` times, and return their sums (R, K).

    `stream` (a language) selects independent draws, so that a language's interval does not depend
    on other languages.
    """
    num_clusters, num_sums = values_CK.shape
    sums_RK = np.zeros((num_resamples, num_sums), dtype=values_CK.dtype)
    generator = np.random.default_rng([SEED, *stream.encode()])
    num_rows = max(1, _BLOCK // max(1, num_clusters))
    for start in range(0, num_resamples if num_clusters else 0, num_rows):
        rows = sums_RK[start : start + num_rows]
        drawn_RC = generator.integers(num_clusters, size=(len(rows), num_clusters), dtype=np.int32)
        for index, value_C in enumerate(np.ascontiguousarray(values_CK.T)):
            rows[:, index] = value_C.take(drawn_RC).sum(axis=1)
    return sums_RK


def percentile_interval(rates_R: Rates) -> Interval | None:
    """The middle 95 % of the values that are not NaN; None if all are."""
    known = rates_R[~np.isnan(rates_R)]
    if not len(known):
        return None
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(known, (tail, 1 - tail))
    return Interval(float(low), float(high))


def resample_rates(
    values: Mapping[str, NDArray[Number]], num_resamples: int
) -> tuple[dict[str, Rates], Rates, Rates]:
    """The rates (R,) of each group, their mean and the pooled rate, from errors and reference units
    (C, 2) per group.

    Every group (a language, a length) keeps its number of clusters in each resample. A group
    without reference units is not in the mean.
    """
    sums = {
        group: draw_sums(values_C2, num_resamples, group) for group, values_C2 in values.items()
    }
    rates = {group: resampled_rates(sums_R2) for group, sums_R2 in sums.items()}
    scored = [rates[group] for group, values_C2 in values.items() if values_C2[:, 1].any()]
    total_R2: NDArray[Number] = np.sum(list(sums.values()), axis=0)
    macro_R = np.mean(scored, axis=0) if scored else np.full(num_resamples, np.nan)
    return rates, macro_R, resampled_rates(total_R2)


def stratified_intervals(values: Mapping[str, NDArray[Number]], num_resamples: int) -> Intervals:
    """Intervals of errors and reference units (C, 2) per group, and of the averages over groups
    (`resample_rates`).
    """
    rates, macro_R, micro_R = resample_rates(values, num_resamples)
    each = {
        group: percentile_interval(rates[group]) if len(values[group]) > 1 else None
        for group in values
    }
    if not any(each.values()):
        return Intervals(each, None, None)
    return Intervals(each, percentile_interval(macro_R), percentile_interval(micro_R))


def clustered_intervals(values: Mapping[str, NDArray[Number]], num_resamples: int) -> Intervals:
    """Like `stratified_intervals`, but the averages draw whole groups (speakers), because groups
    are a sample too.

    A group without reference units has no rate and is not drawn.
    """
    each = stratified_intervals(values, num_resamples).each
    pooled = [values_C2.sum(axis=0) for values_C2 in values.values() if values_C2[:, 1].any()]
    if len(pooled) < 2:
        return Intervals(each, None, None)
    groups_C2 = np.array(pooled, dtype=np.float64)
    values_C3 = np.column_stack((groups_C2, groups_C2[:, 0] / groups_C2[:, 1]))
    sums_R3 = draw_sums(values_C3, num_resamples)
    macro_R = sums_R3[:, 2] / len(pooled)
    return Intervals(
        each, percentile_interval(macro_R), percentile_interval(resampled_rates(sums_R3))
    )


def resampled_rates(sums_RK: NDArray[Number]) -> Rates:
    """The error rate of each resample, (R,); NaN where no reference unit was drawn."""
    errors_R, units_R = sums_RK[:, 0], sums_RK[:, 1]
    return np.where(units_R > 0, errors_R / np.maximum(units_R, 1), np.nan)
