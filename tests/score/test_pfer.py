# SPDX-License-Identifier: Apache-2.0
"""Phone feature error rates: worked by hand, and exact against the textbook."""

import json

import numpy as np
import pytest
from agreement import edit_distance as textbook_distance
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.score import Rules, count_errors, report_to_json, score
from wenet_hs.score.pfer import edit_distance, substitution_costs, with_pfer
from wenet_hs.score.tables import format_report

pytest.importorskip("panphon", reason="needs the extra trees")

PER = Rules(metric="per")
IDS = st.lists(st.integers(0, 4), max_size=9)
SUM_OF_WEIGHTS = 7.75  # panphon's 7.25, and 0.25 for each of two tones


def cost(ref: str, hyp: str) -> float:
    costs = substitution_costs([ref, hyp])
    return float(costs[0, 1])


def test_costs_by_hand() -> None:
    # p and b differ only in voice, of weight 0.125.
    assert cost("p", "b") == pytest.approx(0.125 / SUM_OF_WEIGHTS)
    assert cost("b", "p") == cost("p", "b")
    assert cost("i", "u") == pytest.approx(3 * 0.25 / SUM_OF_WEIGHTS), "lips, back and round"
    # t and a: the opposite in syl, son, cons (1 each), cont 0.5, voi 0.125, cor, lo, back (0.25
    # each); ant and tense (0.25), distr (0.125) are undefined in one of the two: half
    opposite = 3 + 0.5 + 0.125 + 0.75
    undefined_in_one = 0.25 + 0.25 + 0.125
    assert cost("t", "a") == pytest.approx((opposite + undefined_in_one / 2) / SUM_OF_WEIGHTS)
    assert cost("r", "ɾ") == 0.0, "panphon's table does not tell them apart"
    assert cost("aɪ", "a") == pytest.approx(cost("a", "ɪ") / 2), "end by end"
    assert cost("aɪ", "ɪa") == pytest.approx(cost("a", "ɪ"))


def test_costs_are_symmetric_and_at_most_that_of_an_unknown_unit() -> None:
    phones = ["p", "tʃ", "aɪ", "ⁿd", "ǃ", "e˥", "ə̃", "r", "aː"]

    costs = substitution_costs(["<unk>", *phones])

    assert (costs >= 0).all()
    assert (costs <= 1).all()
    assert (costs == costs.T).all()
    assert not costs.diagonal().any()
    costs_of_unknown = costs[0, 1:]
    assert (costs_of_unknown == 1).all()


@settings(max_examples=50, deadline=None)
@given(IDS, IDS, st.lists(st.floats(0, 1), min_size=25, max_size=25))
def test_the_distance_is_that_of_the_textbook(
    ref: list[int], hyp: list[int], values: list[float]
) -> None:
    ref_ids = np.array(ref, dtype=int)
    hyp_ids = np.array(hyp, dtype=int)
    costs = np.array(values).reshape(5, 5)

    distance = edit_distance(ref_ids, hyp_ids, costs)

    expected = textbook_distance(ref, hyp, lambda a, b: float(costs[a, b]))
    assert distance == pytest.approx(expected)


@settings(max_examples=50, deadline=None)
@given(IDS, IDS)
def test_the_distance_with_equal_costs_is_the_number_of_errors(
    ref: list[int], hyp: list[int]
) -> None:
    ref_ids = np.array(ref, dtype=int)
    hyp_ids = np.array(hyp, dtype=int)
    equal_costs = 1 - np.eye(5)

    distance = edit_distance(ref_ids, hyp_ids, equal_costs)

    counts = count_errors([str(id_) for id_ in ref], [str(id_) for id_ in hyp])
    assert distance == counts.errors


def test_rates_beside_the_phone_error_rates() -> None:
    reference = {"x1": "p a t", "x2": "k a", "y1": "b i", "y2": "d"}
    hypothesis = {"x1": "b a t", "x2": "k", "y1": "b i", "y2": "<unk> d"}
    langs = {key: key[0] for key in reference}

    report = with_pfer(score(reference, hypothesis, rules=PER, langs=langs, num_resamples=50))

    p_to_b = 0.125 / SUM_OF_WEIGHTS
    distances = {key: result.feature_distance for key, result in report.utterances.items()}
    assert distances == {"x1": pytest.approx(p_to_b), "x2": 1.0, "y1": 0.0, "y2": 1.0}
    rate_of_x = (p_to_b + 1) / 5
    rate_of_y = 1 / 3
    assert report.languages["x"].features is not None
    assert report.languages["x"].features.rate == pytest.approx(rate_of_x)
    assert report.macro.features is not None
    assert report.macro.features.rate == pytest.approx((rate_of_x + rate_of_y) / 2)
    assert report.micro.features is not None
    assert report.micro.features.interval is not None
    assert report.micro.counts.errors == 3
    assert "|features:panphon-" in report.signature

    lines = format_report(report).splitlines()
    header = next(line for line in lines if line.startswith("language"))
    assert header.split()[-4:] == ["PFER", "%", "95%", "interval"]
    record = json.loads(report_to_json(report))
    assert record["languages"]["x"]["pfer"]["rate"] == report.languages["x"].features.rate


def test_pfer_of_letters_is_rejected() -> None:
    report = score({"x1": "pat"}, {"x1": "bat"}, rules=Rules(metric="cer"), num_resamples=0)

    with pytest.raises(
        ValueError,
        match="^PFER: the metric of the report is 'cer'; score phones with metric 'per'$",
    ):
        with_pfer(report)
