# SPDX-License-Identifier: Apache-2.0
"""The paired bootstrap: differences by hand, what it is sure of, and what it refuses."""

import json
from collections.abc import Mapping

import numpy as np
import pytest

from wenet_hs.errors import DataError
from wenet_hs.score import Report, Rules, score
from wenet_hs.score.compare import MACRO, MICRO, MIN_SPEAKERS, compare, comparison_json, format_comparison

RULES = Rules(metric="cer")
REF = {f"{lang}{i}": "abcd" for lang in ("es", "ky") for i in range(20)}
LANGS = {key: key[:2] for key in REF}


def scored(hypothesis: Mapping[str, str], *, rules: Rules = RULES, name: str = "") -> Report:
    return score(REF, hypothesis, rules=rules, langs=LANGS, name=name, num_resamples=0)


def wrong_every(step: int) -> dict[str, str]:
    """One of four units wrong in every `step`-th utterance."""
    return {key: "abcx" if i % step == 0 else "abcd" for i, key in enumerate(REF)}


def test_differences_are_b_minus_a_for_each_language_and_both_averages() -> None:
    better = {key: text if key.startswith("es") else "abcd" for key, text in wrong_every(2).items()}
    found = compare(scored(wrong_every(2)), scored(better), num_resamples=200).differences
    assert list(found) == ["es", "ky", MACRO, MICRO]
    assert (found["es"].rate_a, found["es"].rate_b, found["es"].difference) == (0.125, 0.125, 0.0)
    assert (found["ky"].rate_a, found["ky"].rate_b, found["ky"].difference) == (0.125, 0.0, -0.125)
    assert found[MACRO].difference == found[MICRO].difference == -0.0625


def test_the_same_system_twice_differs_by_nothing() -> None:
    report = scored(wrong_every(3))
    for found in compare(report, report, num_resamples=100).differences.values():
        assert found.by_utterance.interval == (0.0, 0.0)
        assert found.by_utterance.p == 1.0


def test_a_clear_difference_has_a_small_p_and_a_chance_one_has_not() -> None:
    clear = compare(scored(wrong_every(1)), scored(wrong_every(4)), num_resamples=999).differences[MICRO]
    assert clear.by_utterance.p == pytest.approx(2 / 1000)  # the least that 999 resamples can show
    assert clear.by_utterance.interval is not None and clear.by_utterance.interval.high < 0
    one_more = wrong_every(4) | {"es1": "abcx"}
    chance = compare(scored(wrong_every(4)), scored(one_more), num_resamples=999).differences[MICRO]
    assert chance.by_utterance.p is not None and chance.by_utterance.p > 0.3


def test_swapping_the_systems_turns_the_sign() -> None:
    a, b = scored(wrong_every(2)), scored(wrong_every(5))
    there, back = (compare(*pair, num_resamples=300).differences["es"] for pair in ((a, b), (b, a)))
    assert there.difference == -back.difference
    assert there.by_utterance.p == back.by_utterance.p
    assert there.by_utterance.interval is not None and back.by_utterance.interval is not None
    assert there.by_utterance.interval.low == pytest.approx(-back.by_utterance.interval.high)


@pytest.mark.parametrize(("num_better", "least"), [(1, 1.0), (2, 0.5), (5, 1 / 16)])
def test_few_that_differ_prove_little(num_better: int, least: float) -> None:
    """Where n utterances changed, and all for the better, a sign test can show no p below 2^(1 - n)."""
    better = {key: "abcd" if i < num_better else "abcx" for i, key in enumerate(REF)}
    found = compare(scored(wrong_every(1)), scored(better), num_resamples=999).differences
    assert found[MICRO].by_utterance.p is not None and found[MICRO].by_utterance.p >= least
    speakers = {key: key[:2] + str(i % MIN_SPEAKERS) for i, key in enumerate(REF)}
    all_better = compare(scored(wrong_every(1)), scored(REF), speakers=speakers, num_resamples=999).differences
    assert all_better["es"].by_speaker is not None and all_better["es"].by_speaker.p == 1 / 16  # five speakers
    assert all_better["es"].by_utterance.p == pytest.approx(2 / 1000)


def test_every_utterance_needs_a_speaker() -> None:
    report = scored(REF)
    with pytest.raises(DataError, match=r"the speakers: 39 utterances without one \(es1, es10, .* more\); compare"):
        compare(report, report, speakers={"es0": "x"})


def test_pairing_is_used() -> None:
    """Both systems fail on the same utterances, B on one more in ten: paired, the noise of the test set cancels."""
    generator = np.random.default_rng(0)
    hard = {key for key in REF if generator.random() < 0.5}
    worse = {key for i, key in enumerate(REF) if i % 4 == 0}
    a = {key: "xxxx" if key in hard else "abcd" for key in REF}
    b = {key: a[key] if key not in worse else ("xxxxx" if key in hard else "abcx") for key in REF}
    found = compare(scored(a), scored(b), num_resamples=999).differences[MICRO].by_utterance
    assert found.interval is not None and found.interval.low > 0
    assert found.interval.high - found.interval.low < 0.1


def test_utterances_of_one_speaker_are_drawn_together() -> None:
    speakers = {key: key[:2] + str(max(0, i % 8 - 3)) for i, key in enumerate(REF)}  # five, the first has half of it
    a = wrong_every(1)
    b = {key: "abcd" if speakers[key].endswith("0") else text for key, text in a.items()}  # all of it by one speaker
    found = compare(scored(a), scored(b), speakers=speakers, num_resamples=999)
    assert found.num_speakers == 10
    es = found.differences["es"]
    assert es.by_speaker is not None and es.by_speaker.p is not None and es.by_utterance.p is not None
    assert es.by_utterance.p < 0.01 < 0.1 < es.by_speaker.p


def test_few_speakers_have_no_interval() -> None:
    """Neither has a language of few, nor an average of few in all; the averages count the speakers of all languages."""
    a, b = scored(wrong_every(1)), scored(wrong_every(3))

    def compared(in_es: int, in_ky: int) -> tuple[list[str], str]:
        number_of = {"es": in_es, "ky": in_ky}
        speakers = {key: key[:2] + str(i % number_of[key[:2]]) for i, key in enumerate(REF)}
        found = compare(a, b, speakers=speakers, num_resamples=50)
        of_speakers = {name: difference.by_speaker for name, difference in found.differences.items()}
        assert all(of is not None and (of.interval is None) == (of.p is None) for of in of_speakers.values())
        assert json.loads(comparison_json(found))["few_speakers"] == list(found.few_speakers)
        known = [name for name, of in of_speakers.items() if of is not None and of.interval is not None]
        return known, format_comparison(found).splitlines()[-1]

    few = "fewer than 5 speakers, so no interval by speaker"
    assert compared(5, 4) == (["es", MACRO, MICRO], f"{few}, and the averages' are too narrow: ky")
    assert compared(3, 2) == ([MACRO, MICRO], f"{few}, and the averages' are too narrow: es, ky")
    assert compared(2, 2) == ([], f"{few}: es, ky")
    assert compared(5, 6)[0] == ["es", "ky", MACRO, MICRO] and "fewer" not in compared(5, 6)[1]


def test_one_cluster_tells_nothing() -> None:
    speakers = {key: key[:2] for key in REF}
    found = compare(scored(wrong_every(1)), scored(wrong_every(2)), speakers=speakers, num_resamples=50)
    for difference in found.differences.values():
        assert difference.by_speaker is not None and difference.by_speaker.p is None
        assert difference.by_speaker.interval is None
    assert "n/a" in format_comparison(found)


def test_a_language_without_reference_units_has_no_line() -> None:
    reference = {"es1": "ab", "es2": "cd", "xx1": ""}
    langs = {key: key[:2] for key in reference}
    reports = [
        score(reference, hypothesis, rules=RULES, langs=langs, num_resamples=0)
        for hypothesis in ({"es1": "ab", "es2": "cx", "xx1": "a"}, {"es1": "ab", "es2": "cd", "xx1": ""})
    ]
    assert list(compare(*reports, num_resamples=20).differences) == ["es", MACRO, MICRO]


def test_other_utterances_are_refused() -> None:
    partial = {key: "abcd" for key in list(REF)[:-3]}
    with pytest.raises(
        DataError, match=r"B: no hypothesis for 3 utterances that the other decoded \(ky17, ky18, ky19\)"
    ):
        compare(scored(wrong_every(2)), scored(partial))
    both = compare(scored(partial), scored(partial), num_resamples=10)  # neither decoded them: deletions for both
    assert both.differences["ky"].rate_a == pytest.approx(12 / 80)


def test_other_rules_and_an_empty_reference_are_refused() -> None:
    with pytest.raises(DataError, match="not of the same reference and rules"):
        compare(scored(wrong_every(2)), scored(wrong_every(2), rules=Rules(metric="cer", spaces="count")))
    other = score({**REF, "es0": "xyz"}, REF, rules=RULES, langs=LANGS, num_resamples=0)
    with pytest.raises(DataError, match="not of the same reference and rules"):
        compare(scored(REF), other)
    empty = score({"a": ""}, {"a": "x"}, rules=RULES, num_resamples=0)
    with pytest.raises(DataError, match="the reference: no units in it"):
        compare(empty, empty)
    with pytest.raises(ValueError, match="num_resamples is 0"):
        compare(scored(wrong_every(2)), scored(wrong_every(2)), num_resamples=0)


def test_table_and_json_say_the_same() -> None:
    speakers = {key: key for key in REF}
    found = compare(scored(wrong_every(1), name="soft"), scored(wrong_every(2), name="tree"), speakers=speakers)
    text = format_comparison(found)
    assert text.startswith("A: soft\nB: tree\nCER|unit:grapheme|")
    assert "|boot:10000|seed:" in text
    assert text.endswith("paired bootstrap of 40 utterances, and of 40 speakers; below 0, B is better\n")
    record = json.loads(comparison_json(found))
    row = next(line.split() for line in text.splitlines() if line.startswith("es"))
    es = record["differences"]["es"]
    assert row[1:4] == [f"{100 * es['rate_a']:.2f}", f"{100 * es['rate_b']:.2f}", f"{100 * es['difference']:+.2f}"]
    assert record["format"] == "wenet_hs.compare/1"
