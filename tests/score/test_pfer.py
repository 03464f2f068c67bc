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


def cost(ref: str, hyp: str) -> float:
    return float(substitution_costs([ref, hyp])[0, 1])


def test_costs_by_hand() -> None:
    # p and b differ only in voice: weight 0.125 of 7.75 (panphon's 7.25, and 0.25 for each of two
    # tones)
    assert cost("p", "b") == cost("b", "p") == pytest.approx(0.125 / 7.75)
    assert cost("i", "u") == pytest.approx(3 * 0.25 / 7.75), "lips, back and round"
    # t and a: the opposite in syl, son, cons (1 each), cont 0.5, voi 0.125, cor, lo, back (0.25
    # each); ant and tense (0.25), distr (0.125) are undefined in one of the two: half
    assert cost("t", "a") == pytest.approx(
        (3 + 0.5 + 0.125 + 0.75 + (0.25 + 0.25 + 0.125) / 2) / 7.75
    )
    assert cost("r", "ɾ") == 0.0, "panphon's table does not tell them apart"
    assert cost("aɪ", "a") == pytest.approx(cost("a", "ɪ") / 2), "end by end"
    assert cost("aɪ", "ɪa") == pytest.approx(cost("a", "ɪ"))
    costs = substitution_costs(["<unk>", "p", "tʃ", "aɪ", "ⁿd", "ǃ", "e˥", "ə̃", "r", "aː"])
    assert (
        (costs >= 0).all()
        and (costs <= 1).all()
        and (costs == costs.T).all()
        and not costs.diagonal().any()
    )
    assert (costs[0, 1:] == 1).all()


@settings(max_examples=50, deadline=None)
@given(IDS, IDS, st.lists(st.floats(0, 1), min_size=25, max_size=25))
def test_exact(ref: list[int], hyp: list[int], values: list[float]) -> None:
    costs = np.array(values).reshape(5, 5)
    found = edit_distance(np.array(ref, dtype=int), np.array(hyp, dtype=int), costs)
    assert found == pytest.approx(textbook_distance(ref, hyp, lambda a, b: float(costs[a, b])))
    plain = edit_distance(np.array(ref, dtype=int), np.array(hyp, dtype=int), 1 - np.eye(5))
    assert plain == count_errors([*map(str, ref)], [*map(str, hyp)]).errors


def test_rates_beside_the_phone_error_rates() -> None:
    reference = {"x1": "p a t", "x2": "k a", "y1": "b i", "y2": "d"}
    hypothesis = {"x1": "b a t", "x2": "k", "y1": "b i", "y2": "<unk> d"}
    langs = {key: key[0] for key in reference}
    report = with_pfer(score(reference, hypothesis, rules=PER, langs=langs, num_resamples=50))
    near = 0.125 / 7.75
    assert [u.feature_distance for u in report.utterances.values()] == [
        pytest.approx(near),
        1.0,
        0.0,
        1.0,
    ]
    assert report.languages["x"].features is not None and report.macro.features is not None
    assert report.languages["x"].features.rate == pytest.approx((near + 1) / 5)
    assert report.macro.features.rate == pytest.approx(((near + 1) / 5 + 1 / 3) / 2)
    assert report.micro.features is not None and report.micro.features.interval is not None
    assert report.micro.counts.errors == 3 and "|features:panphon-" in report.signature
    header = next(
        line for line in format_report(report).splitlines() if line.startswith("language")
    )
    assert header.split()[-4:] == ["PFER", "%", "95%", "interval"]
    assert (
        json.loads(report_to_json(report))["languages"]["x"]["pfer"]["rate"]
        == report.languages["x"].features.rate
    )
    with pytest.raises(
        ValueError,
        match="^PFER: the metric of the report is 'cer'; score phones with metric 'per'$",
    ):
        with_pfer(score(reference, hypothesis, rules=Rules(metric="cer"), num_resamples=0))
