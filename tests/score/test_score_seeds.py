# SPDX-License-Identifier: Apache-2.0
"""Two systems over paired seeds: t test, interval and its coverage, power, Holm's correction, error messages."""

import json
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from wenet_hs.errors import DataError
from wenet_hs.score import Report, Rules, score
from wenet_hs.score.compare import MACRO, MICRO
from wenet_hs.score.seeds import (
    SeedDifference,
    SeedPairs,
    compare_seeds,
    detectable_difference,
    holm,
    pair_counts,
    pair_reports,
    seed_comparison_to_json,
)

REF = {f"{lang}{i}": "abcd" for lang in ("es", "ky") for i in range(5)}
LANGS = {key: key[:2] for key in REF}
SEEDS = ("1", "2", "3", "4", "5")
NAMES = "softmax", "hsoftmax"


def scored(num_wrong: int, *, rules: Rules | None = None, lacking: Sequence[str] = ()) -> Report:
    """One of four units wrong in the first utterances."""
    texts = {key: "abcx" if i < num_wrong else "abcd" for i, key in enumerate(REF) if key not in lacking}
    return score(REF, texts, rules=rules or Rules(metric="cer"), langs=LANGS, name=str(num_wrong), num_resamples=0)


def counts_of(report: Report) -> dict[str, NDArray[np.int64]]:
    rows = {lang: [u.counts for u in report.utterances.values() if u.lang == lang] for lang in ("es", "ky")}
    return {lang: np.array([(count.errors, count.num_units) for count in of]) for lang, of in rows.items()}


def compared(wrong_a: Sequence[int], wrong_b: Sequence[int], name: str = MACRO) -> SeedDifference:
    reports = [[scored(number) for number in numbers] for numbers in (wrong_a, wrong_b)]
    pairs = pair_reports(*reports, seeds=SEEDS[: len(wrong_a)])
    return compare_seeds(pairs, num_resamples=200).differences[name]


def test_a_comparison_by_hand() -> None:
    a, b = (5, 6, 8, 10, 7), (4, 7, 5, 6, 3)
    found = compared(a, b)
    assert found.rates_a == tuple(number / 40 for number in a), "5 utterances of 4 units per language"
    assert found.differences == pytest.approx([-1 / 40, 1 / 40, -3 / 40, -4 / 40, -4 / 40])
    assert (found.mean, found.deviation) == pytest.approx((-2.2 / 40, np.std([1, -1, 3, 4, 4], ddof=1) / 40))
    assert found.p == pytest.approx(stats.ttest_rel(b, a).pvalue)
    alone = stats.t.interval(0.95, 4, found.mean, found.deviation / 5**0.5)
    assert found.interval is not None and found.interval.low < alone[0] < alone[1] < found.interval.high
    assert compared(a, b, "es").differences == pytest.approx([-1 / 20, 0, 0, 0, -2 / 20]), "es is wrong first"
    reports = [[scored(number) for number in numbers] for numbers in (a, b)]
    counts = [[counts_of(report) for report in of] for of in reports]
    from_counts = compare_seeds(pair_counts(*counts, seeds=SEEDS, names=NAMES), num_resamples=200)
    assert from_counts.differences == compare_seeds(pair_reports(*reports, seeds=SEEDS), num_resamples=200).differences
    record = json.loads(seed_comparison_to_json(from_counts), parse_constant=pytest.fail)
    assert record["differences"][MICRO]["differences"][3] == pytest.approx(-0.1)
    assert record["signature"] == "boot:200|seed:20230"
    assert record["languages"].startswith("Languages are fixed")


def test_few_seeds_and_equal_differences_have_no_p() -> None:
    four = compared((5, 6, 8, 10), (4, 7, 5, 6))
    assert (four.p, four.detectable, four.interval) == (None, None, None) and four.deviation
    one = compared((5,), (4,))
    assert (one.p, one.deviation, one.interval) == (None, None, None) and one.mean == pytest.approx(-1 / 40)
    equal = compared((5, 6, 8, 9, 7), (5, 6, 8, 9, 7))
    assert (equal.p, equal.deviation, equal.interval, equal.detectable) == (1.0, 0.0, (0.0, 0.0), None)
    shifted = compared((5, 6, 8, 9, 7), (6, 7, 9, 10, 8))
    assert (shifted.p, shifted.deviation, shifted.detectable) == (None, 0.0, None), "no spread: no t test"
    single = [{"es": np.array([(number, 4)])} for number in (1, 2, 3, 2, 1)]
    found = compare_seeds(pair_counts(single, single[::-1], seeds=SEEDS, names=NAMES)).differences
    assert found["es"].interval is found[MACRO].interval is None, "one utterance"


def test_the_detectable_difference_has_a_power_of_80_percent() -> None:
    draws = np.random.default_rng(0).normal(detectable_difference(1.0, 5), 1.0, (20_000, 5))
    power = (stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05).mean()
    assert power == pytest.approx(0.8, abs=0.01)
    assert detectable_difference(2.0, 5) == 2 * detectable_difference(1.0, 5) > 4 * detectable_difference(1.0, 20)


@pytest.mark.parametrize(("over_seeds", "over_utterances"), [(0.1, 0.0), (0.1, 0.1), (0.0, 0.15)])
def test_the_interval_covers_the_true_difference(over_seeds: float, over_utterances: float) -> None:
    """With a spread over seeds, a bootstrap of 5 seeds covers 85 %."""
    rng = np.random.default_rng(0)
    num_draws, covered = 100, 0
    for _ in range(num_draws):
        shift_SC = rng.normal(0, over_seeds, (5, 1)) + rng.normal(0, over_utterances, (1, 40))
        rates = np.clip((np.full((5, 40), 0.5), 0.5 + shift_SC), 0, 1)
        errors = np.stack((*rng.binomial(100, rates), np.full((5, 40), 100)), axis=2)
        pairs = SeedPairs(names=NAMES, seeds=SEEDS, errors=tuple({"es": of_seed} for of_seed in errors))
        interval = compare_seeds(pairs, num_resamples=200).differences[MACRO].interval
        covered += interval is not None and interval.low <= 0 <= interval.high
    assert 0.91 <= covered / num_draws <= 0.99


def test_holm_by_hand() -> None:
    assert holm([0.01, None, 0.04, 0.03, 0.005]) == pytest.approx([0.03, None, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0] and holm([None]) == [None] and holm([0.04]) == [0.04]


def test_trainings_that_are_no_pairs_are_refused() -> None:
    whole, counts = [scored(1)] * 2, [counts_of(scored(1))] * 2
    cut = [{lang: rows[1:] for lang, rows in of.items()} for of in counts]
    for fault, message in (
        (lambda: pair_reports(whole, whole, seeds=("7", "7")), r"^1 and 1: seed 7 twice; give each seed once$"),
        (lambda: pair_reports(whole, [scored(1), scored(1, lacking=["ky4"])], seeds=("1", "2")), "B .*ky4.*same utter"),
        (lambda: pair_reports([whole[0], scored(1, rules=Rules(metric="wer"))], whole, seeds=("1", "2")), "or rules"),
        (lambda: pair_counts(counts, cut, seeds=("1", "2"), names=NAMES), "^softmax and hsoftmax, seed 1: other lang"),
        (
            lambda: pair_counts([counts[0], cut[0]], [counts[0], cut[0]], seeds=("1", "2"), names=NAMES),
            "^seeds 1 and 2: other languages, utterances or reference units; test all seeds on the same list",
        ),
        (
            lambda: SeedPairs(names=NAMES, seeds=("1",), errors=({"es": np.zeros((2, 3), np.int64)},)),
            "the reference: contains no units",
        ),
    ):
        with pytest.raises(DataError, match=message):
            fault()
    with pytest.raises(ValueError, match="^errors: must be of one or more seeds, got 0 of 1 seeds$"):
        SeedPairs(names=NAMES, seeds=("1",), errors=())
