# SPDX-License-Identifier: Apache-2.0
"""Intervals of rates, the paired bootstrap of two systems, p values, and error messages."""

import json
import math
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from wenet_hs.score import Report, Rules, score
from wenet_hs.score.bootstrap import Interval, clustered_intervals, stratified_intervals
from wenet_hs.score.compare import MACRO, MICRO, MIN_SPEAKERS, compare
from wenet_hs.score.tables import comparison_to_json, format_comparison
from wenet_hs.tree.errors import DataError

RULES = Rules(metric="cer")
REF = {f"{lang}{i}": "abcd" for lang in ("es", "ky") for i in range(20)}
LANGS = {key: key[:2] for key in REF}


def scored(hypothesis: Mapping[str, str], *, rules: Rules = RULES, name: str = "") -> Report:
    return score(REF, hypothesis, rules=rules, langs=LANGS, name=name, num_resamples=0)


def wrong_every(step: int) -> dict[str, str]:
    """One of four units wrong in every `step`-th utterance."""
    return {key: "abcx" if i % step == 0 else "abcd" for i, key in enumerate(REF)}


def test_differences_are_b_minus_a() -> None:
    better = {key: text if key.startswith("es") else "abcd" for key, text in wrong_every(2).items()}
    comparison = compare(scored(wrong_every(2)), scored(better), num_resamples=200)
    found = {
        name: (of.rate_a, of.rate_b, of.difference) for name, of in comparison.differences.items()
    }
    mean = (0.125, 0.0625, -0.0625)
    assert found == {
        "es": (0.125, 0.125, 0.0),
        "ky": (0.125, 0.0, -0.125),
        MACRO: mean,
        MICRO: mean,
    }
    record = json.loads(comparison_to_json(comparison))
    assert (
        record["format"] == "wenet_hs.compare/1"
        and record["differences"]["ky"]["difference"] == -0.125
    )
    assert "|boot:200|seed:" in record["signature"]


def test_equal_systems_have_no_difference_and_swapped_ones_the_opposite() -> None:
    a, b = scored(wrong_every(2)), scored(wrong_every(5))
    for found in compare(a, a, num_resamples=100).differences.values():
        assert (found.by_utterance.interval, found.by_utterance.p) == ((0.0, 0.0), 1.0)
    there, back = (compare(*pair, num_resamples=300).differences["es"] for pair in ((a, b), (b, a)))
    assert there.difference == -back.difference
    assert there.by_utterance.p == back.by_utterance.p
    assert back.by_utterance.interval is not None
    assert there.by_utterance.interval == pytest.approx(
        [-bound for bound in reversed(back.by_utterance.interval)]
    )


def test_p_is_at_least_that_of_a_sign_test() -> None:
    for num_better, least in ((1, 1.0), (2, 0.5), (5, 1 / 16)):
        better = {key: "abcd" if i < num_better else "abcx" for i, key in enumerate(REF)}
        found = compare(scored(wrong_every(1)), scored(better), num_resamples=999).differences
        assert found[MICRO].by_utterance.p is not None and found[MICRO].by_utterance.p >= least
    speakers = {key: key[:2] + str(i % MIN_SPEAKERS) for i, key in enumerate(REF)}
    all_better = compare(
        scored(wrong_every(1)), scored(REF), speakers=speakers, num_resamples=999
    ).differences["es"]
    assert all_better.by_speaker is not None and all_better.by_speaker.p == 1 / 16, "five speakers"
    assert all_better.by_utterance.p == pytest.approx(2 / 1000), "the smallest p of 999 resamples"
    assert (
        all_better.by_utterance.interval is not None and all_better.by_utterance.interval.high < 0
    )


def test_draws_are_paired() -> None:
    """Both systems fail on the same utterances, B on some more: the common noise cancels."""
    generator = np.random.default_rng(0)
    hard = {key for key in REF if generator.random() < 0.5}
    worse = {key for i, key in enumerate(REF) if i % 4 == 0}
    a = {key: "xxxx" if key in hard else "abcd" for key in REF}
    b = {key: a[key] if key not in worse else ("xxxxx" if key in hard else "abcx") for key in REF}
    found = compare(scored(a), scored(b), num_resamples=999).differences[MICRO].by_utterance
    assert found.interval is not None and found.interval.low > 0
    assert found.interval.high - found.interval.low < 0.1


def test_utterances_of_one_speaker_are_drawn_together() -> None:
    speakers = {
        key: key[:2] + str(max(0, i % 8 - 3)) for i, key in enumerate(REF)
    }  # five; the first has half of it
    a = wrong_every(1)
    b = {
        key: "abcd" if speakers[key].endswith("0") else text for key, text in a.items()
    }  # all of it by one speaker
    found = compare(scored(a), scored(b), speakers=speakers, num_resamples=999)
    es = found.differences["es"]
    assert found.num_speakers == 10
    assert (
        es.by_speaker is not None and es.by_speaker.p is not None and es.by_utterance.p is not None
    )
    assert es.by_utterance.p < 0.01 < 0.1 < es.by_speaker.p


@pytest.mark.parametrize(
    ("in_es", "in_ky", "known", "last_line"),
    [
        (5, 4, ["es", MACRO, MICRO], ", and the averages' are too narrow: ky"),
        (2, 2, [], ": es, ky"),
        (5, 6, ["es", "ky", MACRO, MICRO], None),
    ],
)
def test_few_speakers_have_no_interval(
    in_es: int, in_ky: int, known: list[str], last_line: str | None
) -> None:
    number_of = {"es": in_es, "ky": in_ky}
    speakers = {key: key[:2] + str(i % number_of[key[:2]]) for i, key in enumerate(REF)}
    found = compare(
        scored(wrong_every(1)), scored(wrong_every(3)), speakers=speakers, num_resamples=50
    )
    of_speakers = {name: difference.by_speaker for name, difference in found.differences.items()}
    assert all(
        of is not None and (of.interval is None) == (of.p is None) for of in of_speakers.values()
    )
    assert [
        name for name, of in of_speakers.items() if of is not None and of.interval is not None
    ] == known
    assert json.loads(comparison_to_json(found))["few_speakers"] == list(found.few_speakers)
    text = format_comparison(found)
    assert ("n/a" in text) == ("fewer" in text) == (last_line is not None)
    assert text.endswith(
        f"fewer than 5 speakers, so no interval by speaker{last_line}\n"
        if last_line
        else " better\n"
    )


def test_reports_that_cannot_be_compared_are_refused() -> None:
    partial = {key: "abcd" for key in list(REF)[:-3]}
    report, empty = (
        scored(wrong_every(2)),
        score({"a": ""}, {"a": "x"}, rules=RULES, num_resamples=0),
    )
    other = score({**REF, "es0": "xyz"}, REF, rules=RULES, langs=LANGS, num_resamples=0)
    for a, b, message in (
        (
            report,
            scored(partial),
            r"^B \(.*\): no hypothesis for 3 utterances .* \(ky17, ky18, ky19\)",
        ),
        (
            report,
            scored(wrong_every(2), rules=Rules(metric="cer", spaces="count")),
            "different references or rules",
        ),
        (report, other, "different references or rules; score both again with the same --ref"),
        (empty, empty, "the reference: contains no units"),
    ):
        with pytest.raises(DataError, match=message):
            compare(a, b)
    with pytest.raises(ValueError, match="^num_resamples: must be at least 1, got 0$"):
        compare(report, report, num_resamples=0)
    with pytest.raises(
        DataError, match=r"the speakers: no speaker for 39 utterances of the reference \(es1, es2, "
    ):
        compare(report, report, speakers={"es0": "x"})
    both = compare(
        scored(partial), scored(partial), num_resamples=10
    )  # decoded by neither: deletions for both
    assert both.differences["ky"].rate_a == pytest.approx(12 / 80)
    silent = score(
        REF | {"xx1": ""},
        REF | {"xx1": "a"},
        rules=RULES,
        langs=LANGS | {"xx1": "xx"},
        num_resamples=0,
    )
    assert list(compare(silent, silent, num_resamples=20).differences) == [
        "es",
        "ky",
        MACRO,
        MICRO,
    ], "xx has no unit"


# ---- intervals


def coins(number: int, rate: float, seed: int = 0) -> NDArray[np.int64]:
    """Errors and units of utterances of one unit, wrong with probability `rate`."""
    wrong = np.random.default_rng(seed).random(number) < rate
    return np.column_stack((wrong, np.ones(number))).astype(np.int64)


def interval(values: list[tuple[int, int]] | NDArray[np.int64]) -> Interval | None:
    return stratified_intervals({"xx": np.array(values).reshape(-1, 2)}, 1000).each["xx"]


def test_width_is_that_of_the_binomial_law() -> None:
    values = coins(2000, 0.2)
    rate, found = values[:, 0].mean(), interval(values)
    assert found is not None and found.low < rate < found.high
    assert found.high - found.low == pytest.approx(
        2 * 1.96 * math.sqrt(rate * (1 - rate) / 2000), rel=0.1
    )
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
    assert (
        each["aa"] is not None
        and each["bb"] is not None
        and macro is not None
        and micro is not None
    )
    assert each["aa"].high < micro.low < micro.high < macro.low < macro.high < each["bb"].high


def test_a_language_without_reference_units_is_not_in_the_macro_average() -> None:
    each, macro, micro = stratified_intervals(
        {"aa": coins(100, 0.2), "zz": np.array([(3, 0)] * 5)}, 1000
    )
    assert each["zz"] is None and macro == each["aa"]
    assert micro is not None and macro is not None and micro.low > macro.low
    for intervals in (stratified_intervals, clustered_intervals):  # no resamples, no interval
        assert intervals({"aa": coins(10, 0.5)}, 0) == ({"aa": None}, None, None)
