# SPDX-License-Identifier: Apache-2.0
"""A whole scoring: every utterance counted, speakers, lengths, averages, and the error messages."""

import pytest

from wenet_hs.score import ErrorCounts, Rules, score
from wenet_hs.score.error_rate import by_length, by_speaker, length_bin, worst_first
from wenet_hs.score.tables import format_report
from wenet_hs.tree.errors import DataError

CER = Rules(metric="cer")
REF = {"a1": "été", "a2": "abcd", "b1": "Straße", "b2": "ab"}
HYP = {"a1": "ete", "a2": "abcd", "b1": "Strasse", "b2": ""}
LANGS = {"a1": "fr", "a2": "fr", "b1": "de", "b2": "de"}


def test_missing_and_additional_hypotheses_are_named() -> None:
    report = score(REF, {key: HYP[key] for key in ("a1", "b1")}, rules=CER, langs=LANGS)
    assert report.missing == ("a2", "b2")
    assert report.micro.counts == ErrorCounts(15, 3, 6, 1)
    assert (report.utterances["a2"].hyp, report.utterances["a2"].counts) == (
        None,
        ErrorCounts(4, 0, 4),
    )
    assert score(REF, {}, rules=CER).micro.rate == 1.0
    more, alone = (
        score(REF, HYP | {"z9": "x"}, rules=CER, allow_extra=True),
        score(REF, HYP, rules=CER),
    )
    assert more.extra == ("z9",) and more.micro == alone.micro
    assert alone.languages == {"all": alone.micro} and alone.macro.rate == alone.micro.rate


def test_a_message_names_five_keys_and_the_number_of_the_others() -> None:
    message = r"^the hypotheses: 8 hypotheses without a reference in .* \(s, t, u, v, w, and 3 more\); remove"
    with pytest.raises(DataError, match=message):
        score(REF, HYP | dict.fromkeys("stuvwxyz", ""), rules=CER)
    with pytest.raises(ValueError, match="^num_resamples: must be at least 0, got -1$"):
        score(REF, HYP, rules=CER, num_resamples=-1)


def test_keys_and_order_change_nothing() -> None:
    assert score({"ключ_é": "ab"}, {"ключ_é": "ab"}, rules=CER).micro.counts == ErrorCounts(2), (
        "keys are not scored"
    )
    backwards = dict(reversed(REF.items()))
    one, other = (
        score(REF, HYP, rules=CER, langs=LANGS),
        score(backwards, HYP, rules=CER, langs=LANGS),
    )
    assert (one.languages, one.macro, one.micro) == (other.languages, other.macro, other.micro)


def test_worst_utterances_first_over_all_reports() -> None:
    reference = {"a": "abcd", "b": "abcd", "c": "abcd"}
    one = score(reference, {"a": "abcx", "b": "abcd"}, rules=CER)
    other = score(reference, {"a": "abcd", "b": "axxx", "c": "abcd"}, rules=CER)
    assert worst_first([one]) == ["c", "a", "b"]
    assert worst_first([one, other]) == ["c", "b", "a"], "mean rates 0.5, 0.375, 0.125"


# ---- by speaker, by length


def test_speakers_and_lengths_by_hand() -> None:
    reference = {"a1": "abcd", "a2": "abcd", "b1": "abcdefgh", "b2": "", "c1": "ab"}
    hypothesis = {"a1": "abcx", "a2": "abcd", "b1": "abxxefgh", "b2": "z", "c1": "ab"}
    speakers_of = {"a1": "ann", "a2": "ann", "b1": "bob", "b2": "bob", "c1": "cas"}
    langs = {key: key[0] for key in reference}
    report = by_length(
        by_speaker(
            score(reference, hypothesis, rules=CER, langs=langs, num_resamples=0), speakers_of
        )
    )
    speakers, lengths = report.by["speaker"], report.by["length"]
    counts = {name: found.counts for name, found in speakers.groups.items()}
    assert counts == {
        "ann": ErrorCounts(8, 1),
        "bob": ErrorCounts(8, 2, 0, 1),
        "cas": ErrorCounts(2),
    }
    assert speakers.macro.rate == pytest.approx((1 / 8 + 3 / 8 + 0) / 3)
    assert (speakers.macro.num_languages, speakers.micro) == (3, report.micro)
    assert [(name, found.utterances, found.rate) for name, found in lengths.groups.items()] == [
        ("0", 1, None), ("1-5", 3, 0.1), ("6-10", 1, 0.25),
    ]  # fmt: skip
    assert lengths.macro.rate == pytest.approx((0.1 + 0.25) / 2)
    for tables, expected in (
        ([], ["language", "speaker", "graphemes"]),
        (["length"], ["graphemes"]),
    ):
        text = format_report(report, tables)
        assert [line.split()[0] for line in text.splitlines() if " utts " in line] == expected
        assert text.count("macro average") == text.count("micro average") == len(expected)


def test_bins_double() -> None:
    bins = {
        0: "0",
        1: "1-5",
        5: "1-5",
        6: "6-10",
        10: "6-10",
        11: "11-20",
        40: "21-40",
        700: "641-1280",
    }
    assert {num_units: length_bin(num_units) for num_units in bins} == bins


def test_averages_over_speakers_draw_speakers() -> None:
    """Each speaker has the same errors in all utterances, so only drawing speakers shows the
    spread.
    """
    reference = {f"{speaker}{i}": "abcd" for speaker in "pqrs" for i in range(50)}
    hypothesis = {key: "abcd" if key[0] in "pq" else "abxx" for key in reference}
    report = score(reference, hypothesis, rules=CER)
    grouping = by_speaker(report, {key: key[0] for key in reference}).by["speaker"]
    assert grouping.groups["p"].interval == (0.0, 0.0) and grouping.groups["s"].interval == (
        0.5,
        0.5,
    )
    for average in (grouping.macro, grouping.micro):
        assert average.interval == (0.0, 0.5)
    assert report.micro.interval is not None and report.micro.interval.low > 0.2
    alone = by_speaker(report, dict.fromkeys(reference, "ann")).by["speaker"]
    assert (alone.macro.interval, alone.micro.interval) == (None, None) and alone.groups[
        "ann"
    ].interval is not None
