# SPDX-License-Identifier: Apache-2.0
"""Intervals: the binomial law, repeatable, independent of other languages, absent if nothing is known."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from wenet_hs.score.bootstrap import Interval, clustered_intervals, stratified_intervals


def coins(number: int, rate: float, seed: int = 0) -> NDArray[np.int64]:
    """Errors and units of utterances of one unit, wrong with probability `rate`."""
    wrong = np.random.default_rng(seed).random(number) < rate
    return np.column_stack((wrong, np.ones(number))).astype(np.int64)


def interval(values: list[tuple[int, int]] | NDArray[np.int64]) -> Interval | None:
    return stratified_intervals({"xx": np.array(values).reshape(-1, 2)}, 1000).each["xx"]


def test_width_is_that_of_the_binomial_law() -> None:
    values = coins(2000, 0.2)
    rate = values[:, 0].mean()
    found = interval(values)
    assert found is not None and found.low < rate < found.high
    assert found.high - found.low == pytest.approx(2 * 1.96 * math.sqrt(rate * (1 - rate) / 2000), rel=0.1)
    assert found == interval(values)


def test_intervals_by_hand() -> None:
    assert interval([]) is interval([(1, 9)]) is interval([(1, 0)] * 3) is None
    assert interval([(1, 4)] * 50) == (0.25, 0.25), "every resample has the same rate"
    found = interval([(1, 0), (1, 2)])  # resamples without a reference unit are ignored
    assert found is not None and found.low == 0.5 and found.high >= 1.0


def test_averages_lie_between_the_languages_and_languages_are_independent() -> None:
    values = {"aa": coins(400, 0.1), "bb": coins(100, 0.5, seed=1)}
    each, macro, micro = stratified_intervals(values, 1000)
    assert each["bb"] == stratified_intervals({"bb": values["bb"]}, 1000).each["bb"]
    assert each["aa"] is not None and each["bb"] is not None and macro is not None and micro is not None
    assert each["aa"].high < micro.low < micro.high < macro.low < macro.high < each["bb"].high


def test_a_language_without_reference_units_is_not_in_the_macro_average() -> None:
    each, macro, micro = stratified_intervals({"aa": coins(100, 0.2), "zz": np.array([(3, 0)] * 5)}, 1000)
    assert each["zz"] is None and macro == each["aa"]
    assert micro is not None and macro is not None and micro.low > macro.low
    for intervals in (stratified_intervals, clustered_intervals):  # no resamples, no interval
        assert intervals({"aa": coins(10, 0.5)}, 0) == ({"aa": None}, None, None)
