# SPDX-License-Identifier: Apache-2.0
"""Two systems over paired seeds: t test, interval and its coverage, power, Holm's correction, error
messages.
"""

import json
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from wenet_hs.score import Report, Rules, score
from wenet_hs.score.compare import MACRO, MICRO
from wenet_hs.score.seeds import (
    SeedDifference,
    compare_reports,
    compare_seeds,
    detectable_difference,
    holm,
    mean_over_seeds,
)
from wenet_hs.score.tables import comparison_to_json
from wenet_hs.tree.errors import DataError

REF = {f"{lang}{i}": "abcd" for lang in ("es", "ky") for i in range(5)}
LANGS = {key: key[:2] for key in REF}
SEEDS = ("1", "2", "3", "4", "5")
# The numbers of wrong utterances per seed.
WRONG_A = (5, 6, 8, 10, 7)
WRONG_B = (4, 7, 5, 6, 3)


def scored(num_wrong: int, *, rules: Rules | None = None, lacking: Sequence[str] = ()) -> Report:
    """One of four units wrong in the first utterances."""
    hypotheses = dict.fromkeys(REF, "abcd")
    for key in list(REF)[:num_wrong]:
        hypotheses[key] = "abcx"
    for key in lacking:
        del hypotheses[key]
    return score(
        REF,
        hypotheses,
        rules=rules or Rules(metric="cer"),
        langs=LANGS,
        name=str(num_wrong),
        num_resamples=0,
    )


def report_pairs(
    wrong_a: Sequence[int], wrong_b: Sequence[int]
) -> dict[str, tuple[Report, Report]]:
    """Seed → the reports of systems A and B with these numbers of wrong utterances."""
    pairs = dict[str, tuple[Report, Report]]()
    for seed, num_wrong_a, num_wrong_b in zip(SEEDS, wrong_a, wrong_b, strict=False):
        pairs[seed] = (scored(num_wrong_a), scored(num_wrong_b))
    return pairs


def compared(wrong_a: Sequence[int], wrong_b: Sequence[int], name: str = MACRO) -> SeedDifference:
    comparison = compare_reports(report_pairs(wrong_a, wrong_b), num_resamples=200)
    return comparison.differences[name]


def test_a_comparison_by_hand() -> None:
    difference = compared(WRONG_A, WRONG_B)

    num_units = 40  # 5 utterances of 4 units per language
    assert difference.rates_a == tuple(number / num_units for number in WRONG_A)
    assert difference.differences == pytest.approx([-1 / 40, 1 / 40, -3 / 40, -4 / 40, -4 / 40])
    assert difference.mean == pytest.approx(-2.2 / num_units)
    assert difference.deviation == pytest.approx(np.std([1, -1, 3, 4, 4], ddof=1) / num_units)
    assert difference.p == pytest.approx(stats.ttest_rel(WRONG_B, WRONG_A).pvalue)


def test_the_interval_is_wider_than_that_over_seeds_only() -> None:
    difference = compared(WRONG_A, WRONG_B)

    standard_error = difference.deviation / 5**0.5
    low, high = stats.t.interval(0.95, 4, difference.mean, standard_error)
    assert difference.interval is not None
    assert difference.interval.low < low < high < difference.interval.high


def test_the_difference_of_a_language_by_hand() -> None:
    difference = compared(WRONG_A, WRONG_B, "es")

    assert difference.differences == pytest.approx([-1 / 20, 0, 0, 0, -2 / 20]), "es is wrong first"


def test_a_comparison_is_saved_as_json() -> None:
    comparison = compare_reports(report_pairs(WRONG_A, WRONG_B), num_resamples=200)

    record = json.loads(comparison_to_json(comparison), parse_constant=pytest.fail)

    assert record["differences"][MICRO]["differences"][3] == pytest.approx(-0.1)
    assert record["signature"].endswith("|boot:200|seed:20230")
    assert record["languages"].startswith("Languages are fixed")


def test_four_seeds_have_no_p_and_no_interval() -> None:
    difference = compared((5, 6, 8, 10), (4, 7, 5, 6))

    assert difference.p is None
    assert difference.detectable is None
    assert difference.interval is None
    assert difference.deviation


def test_one_seed_has_a_mean_only() -> None:
    difference = compared((5,), (4,))

    assert difference.mean == pytest.approx(-1 / 40)
    assert difference.p is None
    assert difference.deviation is None
    assert difference.interval is None


def test_equal_systems_have_a_p_of_one() -> None:
    difference = compared((5, 6, 8, 9, 7), (5, 6, 8, 9, 7))

    assert difference.p == 1.0
    assert difference.deviation == 0.0
    assert difference.interval == (0.0, 0.0)
    assert difference.detectable is None


def test_differences_without_a_spread_have_no_t_test() -> None:
    difference = compared((5, 6, 8, 9, 7), (6, 7, 9, 10, 8))

    assert difference.p is None
    assert difference.deviation == 0.0
    assert difference.detectable is None


def test_differences_of_one_utterance_have_no_interval() -> None:
    one_utterance = {seed: {"es": np.array([(int(seed), 2, 4)])} for seed in SEEDS}

    differences = compare_seeds(one_utterance).differences

    assert differences["es"].interval is None
    assert differences[MACRO].interval is None


def test_the_detectable_difference_has_a_power_of_80_percent() -> None:
    true_difference = detectable_difference(1.0, 5)
    draws = np.random.default_rng(0).normal(true_difference, 1.0, (20_000, 5))

    p_values = stats.ttest_1samp(draws, 0.0, axis=1).pvalue

    power = (p_values < 0.05).mean()
    assert power == pytest.approx(0.8, abs=0.01)


def test_the_detectable_difference_grows_with_the_spread_and_falls_with_seeds() -> None:
    of_5_seeds = detectable_difference(1.0, 5)

    assert detectable_difference(2.0, 5) == 2 * of_5_seeds
    assert detectable_difference(1.0, 20) < of_5_seeds / 2


def draw_equal_systems(
    rng: np.random.Generator, over_seeds: float, over_utterances: float
) -> dict[str, dict[str, NDArray[np.int64]]]:
    """Seed → language → errors of A and B, and units, in 40 utterances of 100 units.

    The expected rate is 0.5 for A. For B it varies around 0.5 with these deviations.
    """
    shape_SC = (len(SEEDS), 40)
    rates_a_SC = np.full(shape_SC, 0.5)
    shift_SC = rng.normal(0, over_seeds, (len(SEEDS), 1)) + rng.normal(0, over_utterances, (1, 40))
    rates_SC = np.clip((rates_a_SC, rates_a_SC + shift_SC), 0, 1)
    errors_a_SC, errors_b_SC = rng.binomial(100, rates_SC)
    errors_of_seeds = np.stack((errors_a_SC, errors_b_SC, np.full(shape_SC, 100)), axis=2)
    return {seed: {"es": errors} for seed, errors in zip(SEEDS, errors_of_seeds, strict=True)}


@pytest.mark.parametrize(("over_seeds", "over_utterances"), [(0.1, 0.0), (0.1, 0.1), (0.0, 0.15)])
def test_the_interval_covers_the_true_difference(over_seeds: float, over_utterances: float) -> None:
    """With a spread over seeds, a bootstrap of 5 seeds covers 85 %."""
    rng = np.random.default_rng(0)
    num_draws = 100
    num_covered = 0
    for _ in range(num_draws):
        errors = draw_equal_systems(rng, over_seeds, over_utterances)
        interval = compare_seeds(errors, num_resamples=200).differences[MACRO].interval
        num_covered += interval is not None and interval.low <= 0 <= interval.high

    assert 0.91 <= num_covered / num_draws <= 0.99


def test_a_mean_over_seeds_by_hand() -> None:
    """Two languages of two equal utterances, so that the bootstrap over utterances has no width."""
    ky = np.array([(2, 8)] * 2)
    errors = {
        "1": {"es": np.array([(0, 4)] * 2), "ky": ky},
        "2": {"es": np.array([(2, 4)] * 2), "ky": ky},
        "3": {"es": np.array([(4, 4)] * 2), "ky": ky},
    }

    mean = mean_over_seeds(errors, num_resamples=50)

    assert mean.num_seeds == 3
    rate_of_es = 0.5
    rate_of_ky = 0.25
    assert mean.mean == pytest.approx((rate_of_es + rate_of_ky) / 2)
    rates_of_seeds = (0.125, 0.375, 0.625)
    interval = stats.t.interval(0.95, 2, np.mean(rates_of_seeds), stats.sem(rates_of_seeds))
    assert mean.interval == pytest.approx(interval)


def test_a_mean_of_one_seed_has_the_interval_over_utterances() -> None:
    errors = {"es": np.array([(0, 4), (4, 4)])}
    one_utterance = {"es": errors["es"][:1]}

    mean = mean_over_seeds({"1": errors}, num_resamples=2000)

    assert mean.num_seeds == 1
    assert mean.mean == 0.5
    assert mean.interval == (0.0, 1.0)
    assert mean_over_seeds({"1": one_utterance}).interval is None


def test_a_mean_difference_is_that_of_its_errors() -> None:
    gaps = {seed: {"es": np.array([(-1, 4), (-1, 4)])} for seed in SEEDS}

    mean = mean_over_seeds(gaps, num_resamples=50)

    assert mean.mean == -0.25
    assert mean.interval == (-0.25, -0.25)


def test_holm_by_hand() -> None:
    assert holm([0.01, None, 0.04, 0.03, 0.005]) == pytest.approx([0.03, None, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([None]) == [None]
    assert holm([0.04]) == [0.04]


def test_reports_of_other_utterances_are_refused() -> None:
    whole = scored(1)
    lacks_an_utterance = scored(1, lacking=["ky4"])
    pairs = {"1": (whole, whole), "2": (whole, lacks_an_utterance)}

    with pytest.raises(DataError, match="B .*ky4.*same utter"):
        compare_reports(pairs)


def test_reports_of_other_rules_are_refused() -> None:
    of_letters = scored(1)
    of_words = scored(1, rules=Rules(metric="wer"))
    pairs = {"1": (of_letters, of_letters), "2": (of_words, of_letters)}

    with pytest.raises(DataError, match="or rules"):
        compare_reports(pairs)


def test_seeds_of_other_utterances_are_refused() -> None:
    two_utterances = np.ones((2, 3), np.int64)
    errors = {"1": {"es": two_utterances}, "2": {"es": two_utterances[1:]}}
    message = "^seeds 1 and 2: other languages, utterances or reference units"

    with pytest.raises(DataError, match=f"{message}; test all seeds on the same list"):
        compare_seeds(errors)
    with pytest.raises(DataError, match=message):
        mean_over_seeds(errors)


def test_a_reference_without_units_is_refused() -> None:
    no_units = np.zeros((2, 3), np.int64)

    with pytest.raises(DataError, match="the reference: contains no units"):
        compare_seeds({"1": {"es": no_units}})
    with pytest.raises(DataError, match="^the reference of es: contains no units; leave this"):
        mean_over_seeds({"1": {"es": no_units[:, :2]}})


def test_a_comparison_of_no_seeds_is_refused() -> None:
    with pytest.raises(ValueError, match="^errors: must be of one or more seeds$"):
        compare_seeds({})
