# SPDX-License-Identifier: Apache-2.0
"""Intervals: against the binomial law, repeatable, independent of other languages, absent where nothing is known."""

import math

import numpy as np
import pytest

from wenet_hs.score.bootstrap import bootstrap_interval, intervals
from wenet_hs.score.edit_distance import ErrorCounts


def coins(number: int, rate: float, seed: int = 0) -> list[ErrorCounts]:
    """Utterances of one unit each, wrong with probability `rate`."""
    return [ErrorCounts(1, int(wrong)) for wrong in np.random.default_rng(seed).random(number) < rate]


def test_width_is_that_of_the_binomial_law() -> None:
    counts = coins(2000, 0.2)
    rate = sum(counts, ErrorCounts()).rate
    interval = bootstrap_interval(counts)
    assert rate is not None and interval is not None
    assert interval.low < rate < interval.high
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * math.sqrt(rate * (1 - rate) / 2000), rel=0.1)


def test_a_seed_repeats_and_another_differs() -> None:
    counts = [ErrorCounts(units, number % 7) for number, units in enumerate(range(20, 320))]
    assert bootstrap_interval(counts, seed=1) == bootstrap_interval(counts, seed=1)
    assert bootstrap_interval(counts, seed=1) != bootstrap_interval(counts, seed=2)
    wider = bootstrap_interval(counts, confidence=0.99)
    narrower = bootstrap_interval(counts, confidence=0.5)
    assert wider is not None and narrower is not None
    assert wider.low < narrower.low < narrower.high < wider.high


def test_where_every_utterance_has_the_same_rate_the_interval_is_a_point() -> None:
    assert bootstrap_interval([ErrorCounts(4, 1)] * 50) == (0.25, 0.25)


@pytest.mark.parametrize("counts", [[], [ErrorCounts(9, 1)], [ErrorCounts(0, 0, 0, 1)] * 3])
def test_no_interval_where_nothing_can_be_learnt(counts: list[ErrorCounts]) -> None:
    assert bootstrap_interval(counts) is None


def test_resamples_without_a_reference_unit_are_left_out() -> None:
    interval = bootstrap_interval([ErrorCounts(0, 0, 0, 1), ErrorCounts(2, 1)])
    assert interval is not None
    assert interval.low == 0.5 and interval.high >= 1.0


def test_averages_lie_between_the_languages_and_a_language_does_not_hang_on_the_others() -> None:
    languages = {"aa": coins(400, 0.1), "bb": coins(100, 0.5, seed=1)}
    each, macro, micro = intervals(languages)
    alone, _, _ = intervals({"bb": languages["bb"]})
    assert each["bb"] == alone["bb"]
    assert each["aa"] is not None and each["bb"] is not None and macro is not None and micro is not None
    assert each["aa"].high < micro.low < micro.high < macro.low < macro.high < each["bb"].high


def test_a_language_without_reference_units_has_no_part_in_the_macro_average() -> None:
    languages = {"aa": coins(100, 0.2), "zz": [ErrorCounts(0, 0, 0, 3)] * 5}
    each, macro, micro = intervals(languages)
    assert each["zz"] is None
    assert macro == each["aa"]
    assert micro is not None and macro is not None and micro.low > macro.low


def test_no_resamples_no_interval() -> None:
    assert intervals({"aa": coins(10, 0.5)}, num_resamples=0) == ({"aa": None}, None, None)
