# SPDX-License-Identifier: Apache-2.0
"""Two systems over paired seeds: t test, interval and its coverage, power, Holm's correction, error
messages.
"""

import json
from collections.abc import Sequence

import numpy as np
import pytest
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


def test_few_seeds_and_equal_differences_have_no_p() -> None:
    four = compared((5, 6, 8, 10), (4, 7, 5, 6))
    assert (four.p, four.detectable, four.interval) == (None, None, None) and four.deviation
    one = compared((5,), (4,))
    assert (one.p, one.deviation, one.interval) == (None, None, None) and one.mean == pytest.approx(
        -1 / 40
    )
    equal = compared((5, 6, 8, 9, 7), (5, 6, 8, 9, 7))
    assert (equal.p, equal.deviation, equal.interval, equal.detectable) == (
        1.0,
        0.0,
        (0.0, 0.0),
        None,
    )
    shifted = compared((5, 6, 8, 9, 7), (6, 7, 9, 10, 8))
    assert (shifted.p, shifted.deviation, shifted.detectable) == (None, 0.0, None), (
        "no spread: no t test"
    )
    single = {seed: {"es": np.array([(int(seed), 2, 4)])} for seed in SEEDS}
    found = compare_seeds(single).differences
    assert found["es"].interval is found[MACRO].interval is None, "one utterance"


def test_the_detectable_difference_has_a_power_of_80_percent() -> None:
    draws = np.random.default_rng(0).normal(detectable_difference(1.0, 5), 1.0, (20_000, 5))
    power = (stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05).mean()
    assert power == pytest.approx(0.8, abs=0.01)
    assert (
        detectable_difference(2.0, 5)
        == 2 * detectable_difference(1.0, 5)
        > 4 * detectable_difference(1.0, 20)
    )


@pytest.mark.parametrize(("over_seeds", "over_utterances"), [(0.1, 0.0), (0.1, 0.1), (0.0, 0.15)])
def test_the_interval_covers_the_true_difference(over_seeds: float, over_utterances: float) -> None:
    """With a spread over seeds, a bootstrap of 5 seeds covers 85 %."""
    rng = np.random.default_rng(0)
    num_draws, covered = 100, 0
    for _ in range(num_draws):
        shift_SC = rng.normal(0, over_seeds, (5, 1)) + rng.normal(0, over_utterances, (1, 40))
        rates = np.clip((np.full((5, 40), 0.5), 0.5 + shift_SC), 0, 1)
        errors = np.stack((*rng.binomial(100, rates), np.full((5, 40), 100)), axis=2)
        of_seeds = {seed: {"es": of_seed} for seed, of_seed in zip(SEEDS, errors, strict=True)}
        interval = compare_seeds(of_seeds, num_resamples=200).differences[MACRO].interval
        covered += interval is not None and interval.low <= 0 <= interval.high
    assert 0.91 <= covered / num_draws <= 0.99


def test_a_mean_over_seeds_by_hand() -> None:
    """Two languages of two equal utterances, so that the bootstrap over utterances has no width."""
    errors = {
        seed: {"es": np.array([(number, 4)] * 2), "ky": np.array([(2, 8)] * 2)}
        for seed, number in (("1", 0), ("2", 2), ("3", 4))
    }
    found = mean_over_seeds(errors, num_resamples=50)
    assert found.num_seeds == 3
    assert found.mean == pytest.approx((0.5 + 0.25) / 2), "the mean of the languages"
    rates = (0.125, 0.375, 0.625)
    assert found.interval == pytest.approx(
        stats.t.interval(0.95, 2, np.mean(rates), stats.sem(rates))
    )


def test_a_mean_of_one_seed_has_the_interval_over_utterances() -> None:
    errors = {"es": np.array([(0, 4), (4, 4)])}
    found = mean_over_seeds({"1": errors}, num_resamples=2000)
    assert (found.num_seeds, found.mean, found.interval) == (1, 0.5, (0.0, 1.0))
    assert mean_over_seeds({"1": {"es": errors["es"][:1]}}).interval is None, "one utterance"


def test_a_mean_difference_is_that_of_its_errors() -> None:
    gaps = {seed: {"es": np.array([(-1, 4), (-1, 4)])} for seed in SEEDS}
    found = mean_over_seeds(gaps, num_resamples=50)
    assert (found.mean, found.interval) == (-0.25, (-0.25, -0.25))


def test_holm_by_hand() -> None:
    assert holm([0.01, None, 0.04, 0.03, 0.005]) == pytest.approx([0.03, None, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0] and holm([None]) == [None] and holm([0.04]) == [0.04]


def test_scores_that_do_not_fit_are_refused() -> None:
    one, zeros = scored(1), np.zeros((2, 3), np.int64)
    for compare, message in (
        (
            lambda: compare_reports({"1": (one, one), "2": (one, scored(1, lacking=["ky4"]))}),
            "B .*ky4.*same utter",
        ),
        (
            lambda: compare_reports(
                {"1": (one, one), "2": (scored(1, rules=Rules(metric="wer")), one)}
            ),
            "or rules",
        ),
        (
            lambda: compare_seeds({"1": {"es": zeros + 1}, "2": {"es": zeros[1:] + 1}}),
            "^seeds 1 and 2: other languages, utterances or reference units; test all seeds on the same list",
        ),
        (
            lambda: mean_over_seeds({"1": {"es": zeros + 1}, "2": {"es": zeros[1:] + 1}}),
            "^seeds 1 and 2: other languages, utterances or reference units",
        ),
        (
            lambda: mean_over_seeds({"1": {"es": zeros[:, :2]}}),
            "^the reference of es: contains no units; leave this",
        ),
        (lambda: compare_seeds({"1": {"es": zeros}}), "the reference: contains no units"),
    ):
        with pytest.raises(DataError, match=message):
            compare()
    with pytest.raises(ValueError, match="^errors: must be of one or more seeds$"):
        compare_seeds({})
