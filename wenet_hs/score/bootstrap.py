# SPDX-License-Identifier: Apache-2.0
"""Intervals of error rates by resampling utterances (Bisani & Ney 2004).

Dimension key: C clusters that are drawn whole (utterances, or speakers with all of theirs), K facts of a cluster that
add up (errors and reference units first), R resamples.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from wenet_hs.score.edit_distance import ErrorCounts

SEED = 20230
CONFIDENCE = 0.95
_BLOCK = 2**14  # draws at once: what they touch stays in the cache

Number = TypeVar("Number", np.int64, np.float64)


class Interval(NamedTuple):
    """Bounds of an error rate, fractions."""

    low: float
    high: float


class Intervals(NamedTuple):
    """Of each group, of the mean of the groups' rates, and of the rate of all together; None where unknown."""

    each: dict[str, Interval | None]
    macro: Interval | None
    micro: Interval | None


def bootstrap_interval(
    counts: Sequence[ErrorCounts], *, seed: int = SEED, num_resamples: int = 1000, confidence: float = CONFIDENCE
) -> Interval | None:
    """Interval of the pooled rate of these utterances; None for fewer than two, of which nothing can be learnt."""
    if len(counts) < 2:
        return None
    return percentile_interval(rates(draw_sums(facts_of(counts), num_resamples, seed)), confidence)


def facts_of(counts: Sequence[ErrorCounts]) -> NDArray[np.int64]:
    """Errors and reference units of each utterance, (C, 2)."""
    return np.array([(count.errors, count.num_units) for count in counts], dtype=np.int64).reshape(-1, 2)


def draw_sums(facts_CK: NDArray[Number], num_resamples: int, seed: int, stream: str = "") -> NDArray[Number]:
    """The sums (R, K) over as many clusters as there are, drawn with replacement, R times.

    `stream` (a language) makes draws of its own, so that a language's interval does not hang on which others there are.
    """
    num_clusters, num_facts = facts_CK.shape
    if not num_clusters:
        return np.zeros((num_resamples, num_facts), dtype=facts_CK.dtype)
    # Two facts are the parts of one complex number, looked up at once; sums of integers below 2^53 stay exact.
    padded = np.zeros((num_clusters, num_facts + num_facts % 2))
    padded[:, :num_facts] = facts_CK
    pairs_PC = np.ascontiguousarray(padded.view(np.complex128).T)
    sums_RP = np.zeros((num_resamples, len(pairs_PC)), dtype=np.complex128)
    generator = np.random.default_rng([seed, *stream.encode()])
    num_rows = max(1, _BLOCK // num_clusters)
    for start in range(0, num_resamples, num_rows):
        rows = sums_RP[start : start + num_rows]
        drawn_RC = generator.integers(num_clusters, size=(len(rows), num_clusters), dtype=np.int32)
        for place, pair_C in enumerate(pairs_PC):
            rows[:, place] = pair_C.take(drawn_RC).sum(axis=1)
    return sums_RP.view(np.float64)[:, :num_facts].astype(facts_CK.dtype)


def rates(sums_RK: NDArray[Number]) -> NDArray[np.float64]:
    """The error rate of each resample, (R,); NaN where no reference unit was drawn."""
    errors_R, units_R = sums_RK[:, 0], sums_RK[:, 1]
    return np.where(units_R > 0, errors_R / np.maximum(units_R, 1), np.nan)


def percentile_interval(rates_R: NDArray[np.float64], confidence: float = CONFIDENCE) -> Interval | None:
    """The middle `confidence` of the rates that are known; None where none is."""
    known = rates_R[~np.isnan(rates_R)]
    if not len(known):
        return None
    tail = (1 - confidence) / 2
    low, high = np.quantile(known, (tail, 1 - tail))
    return Interval(float(low), float(high))


def intervals(counts: Mapping[str, Sequence[ErrorCounts]], *, seed: int = SEED, num_resamples: int = 1000) -> Intervals:
    """Intervals for each language, of the macro average (mean of the languages' rates) and of the micro average.

    Every language keeps its number of utterances in every resample (the test set is stratified by design).
    """
    facts = {lang: facts_of(of_lang) for lang, of_lang in counts.items()}
    return stratified_intervals(facts, seed=seed, num_resamples=num_resamples)


def stratified_intervals(
    facts: Mapping[str, NDArray[Number]], *, seed: int = SEED, num_resamples: int = 1000
) -> Intervals:
    """The same of facts (C, 2) by group: errors, reference units. Every group keeps its number of clusters."""
    sums = {group: draw_sums(facts_C2, num_resamples, seed, group) for group, facts_C2 in facts.items()}
    each = {group: percentile_interval(rates(sums[group])) if len(facts[group]) > 1 else None for group in facts}
    scored = [group for group, facts_C2 in facts.items() if facts_C2[:, 1].any()]
    if not any(each[group] for group in scored):
        return Intervals(each, None, None)
    macro = np.mean([rates(sums[group]) for group in scored], axis=0)
    total_R2: NDArray[Number] = np.sum(list(sums.values()), axis=0)
    return Intervals(each, percentile_interval(macro), percentile_interval(rates(total_R2)))


def clustered_intervals(
    facts: Mapping[str, NDArray[Number]], *, seed: int = SEED, num_resamples: int = 1000
) -> Intervals:
    """The same where groups (speakers) are a sample too: for the averages whole groups are drawn, not utterances.

    A group without reference units has no rate, and no part in the averages' draws.
    """
    each = stratified_intervals(facts, seed=seed, num_resamples=num_resamples).each
    pooled = [facts_C2.sum(axis=0) for facts_C2 in facts.values() if facts_C2[:, 1].any()]
    if len(pooled) < 2:
        return Intervals(each, None, None)
    groups_C2 = np.array(pooled, dtype=np.float64)
    facts_C3 = np.column_stack((groups_C2, groups_C2[:, 0] / groups_C2[:, 1]))
    sums_R3 = draw_sums(facts_C3, num_resamples, seed)
    return Intervals(each, percentile_interval(sums_R3[:, 2] / len(pooled)), percentile_interval(rates(sums_R3)))
