# SPDX-License-Identifier: Apache-2.0
"""Intervals of error rates by resampling utterances (Bisani & Ney 2004).   Dimension key: U utterances, R resamples."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wenet_hs.score.align import ErrorCounts

SEED = 20230
CONFIDENCE = 0.95


class Interval(NamedTuple):
    """Bounds of an error rate, fractions."""

    low: float
    high: float


def bootstrap_interval(
    counts: Sequence[ErrorCounts], *, seed: int = SEED, num_resamples: int = 1000, confidence: float = CONFIDENCE
) -> Interval | None:
    """Interval of the pooled rate of these utterances; None for fewer than two, of which nothing can be learnt."""
    if len(counts) < 2:
        return None
    return percentile_interval(rates(resample(counts, seed=seed, num_resamples=num_resamples)), confidence)


def resample(counts: Sequence[ErrorCounts], *, seed: int, num_resamples: int, stream: str = "") -> NDArray[np.int64]:
    """Errors and reference units, (R, 2), of as many utterances drawn with replacement, R times.

    `stream` (a language) makes draws of its own, so that a language's interval does not hang on which others there are.
    """
    facts_U2 = np.array([(count.errors, count.num_units) for count in counts], dtype=np.int64).reshape(-1, 2)
    generator = np.random.default_rng([seed, *stream.encode()])
    sums_R2 = np.zeros((num_resamples, 2), dtype=np.int64)
    for row in range(num_resamples if len(facts_U2) else 0):
        # How often each utterance is drawn: its product with the facts is the sum over the drawn ones.
        drawn_U = generator.integers(len(facts_U2), size=len(facts_U2), dtype=np.int32)
        sums_R2[row] = np.bincount(drawn_U, minlength=len(facts_U2)) @ facts_U2
    return sums_R2


def rates(sums_R2: NDArray[np.int64]) -> NDArray[np.float64]:
    """The error rate of each resample, (R,); NaN where no reference unit was drawn."""
    errors_R, units_R = sums_R2[:, 0], sums_R2[:, 1]
    return np.where(units_R > 0, errors_R / np.maximum(units_R, 1), np.nan)


def percentile_interval(rates_R: NDArray[np.float64], confidence: float = CONFIDENCE) -> Interval | None:
    """The middle `confidence` of the rates that are known; None where none is."""
    known = rates_R[~np.isnan(rates_R)]
    if not len(known):
        return None
    tail = (1 - confidence) / 2
    low, high = np.quantile(known, (tail, 1 - tail))
    return Interval(float(low), float(high))


def intervals(
    counts: Mapping[str, Sequence[ErrorCounts]], *, seed: int = SEED, num_resamples: int = 1000
) -> tuple[dict[str, Interval | None], Interval | None, Interval | None]:
    """Intervals for each language, of the macro average (mean of the languages' rates) and of the micro average.

    Every language keeps its number of utterances in every resample (the test set is stratified by design).
    """
    sums = {
        lang: resample(of_lang, seed=seed, num_resamples=num_resamples, stream=lang) for lang, of_lang in counts.items()
    }
    each = {
        lang: percentile_interval(rates(sums[lang])) if len(of_lang) > 1 else None for lang, of_lang in counts.items()
    }
    scored = [lang for lang, of_lang in counts.items() if any(count.num_units for count in of_lang)]
    if not any(each[lang] for lang in scored):
        return each, None, None
    macro = np.mean([rates(sums[lang]) for lang in scored], axis=0)
    return each, percentile_interval(macro), percentile_interval(rates(np.sum(list(sums.values()), axis=0)))
