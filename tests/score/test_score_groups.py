# SPDX-License-Identifier: Apache-2.0
"""Tables by speaker and by length: by hand, and what their intervals draw."""

import pytest

from wenet_hs.errors import DataError
from wenet_hs.score import ErrorCounts, Report, Rules, score
from wenet_hs.score.groups import by_length, by_speaker, length_bin

REF = {"a1": "abcd", "a2": "abcd", "b1": "abcdefgh", "b2": "", "c1": "ab"}
HYP = {"a1": "abcx", "a2": "abcd", "b1": "abxxefgh", "b2": "z", "c1": "ab"}
SPEAKERS = {"a1": "ann", "a2": "ann", "b1": "bob", "b2": "bob", "c1": "cas"}


def scored(num_resamples: int = 0) -> Report:
    return score(REF, HYP, rules=Rules(metric="cer"), langs={key: key[0] for key in REF}, num_resamples=num_resamples)


def test_speakers_by_hand() -> None:
    grouping = by_speaker(scored(), SPEAKERS).by["speaker"]
    assert {name: found.counts for name, found in grouping.groups.items()} == {
        "ann": ErrorCounts(8, 1),
        "bob": ErrorCounts(8, 2, 0, 1),
        "cas": ErrorCounts(2),
    }
    assert grouping.macro.rate == pytest.approx((1 / 8 + 3 / 8 + 0) / 3)
    assert (grouping.macro.num_languages, grouping.micro) == (3, scored().micro)


def test_lengths_by_hand_and_in_order() -> None:
    grouping = by_length(scored()).by["length"]
    assert [(name, found.utterances, found.rate) for name, found in grouping.groups.items()] == [
        ("0", 1, None), ("1-5", 3, 0.1), ("6-10", 1, 0.25),
    ]  # fmt: skip
    assert grouping.macro.rate == pytest.approx((0.1 + 0.25) / 2)


@pytest.mark.parametrize(
    ("num_units", "name"),
    [(0, "0"), (1, "1-5"), (5, "1-5"), (6, "6-10"), (10, "6-10"), (11, "11-20"), (40, "21-40"), (700, "641-1280")],
)
def test_bins_double(num_units: int, name: str) -> None:
    assert length_bin(num_units) == name


def test_averages_over_speakers_draw_speakers() -> None:
    """Each is alike in all sentences and unlike the others, so that only drawing people shows the spread."""
    reference = {f"{speaker}{i}": "abcd" for speaker in "pqrs" for i in range(50)}
    hypothesis = {key: "abcd" if key[0] in "pq" else "abxx" for key in reference}
    report = score(reference, hypothesis, rules=Rules(metric="cer"))
    grouping = by_speaker(report, {key: key[0] for key in reference}).by["speaker"]
    assert grouping.groups["p"].interval == (0.0, 0.0) and grouping.groups["s"].interval == (0.5, 0.5)
    for average in (grouping.macro, grouping.micro):
        assert average.interval == (0.0, 0.5)
    assert report.micro.interval is not None and report.micro.interval.low > 0.2


def test_one_speaker_has_no_interval_of_averages() -> None:
    grouping = by_speaker(scored(100), dict.fromkeys(REF, "ann")).by["speaker"]
    assert (grouping.macro.interval, grouping.micro.interval) == (None, None)
    assert grouping.groups["ann"].interval is not None


def test_an_utterance_without_speaker_is_refused() -> None:
    with pytest.raises(DataError, match=r"the speakers: 1 reference utterance without one \(c1\); take a data.list"):
        by_speaker(scored(), {key: "ann" for key in REF if key != "c1"})


def test_a_table_for_each_that_is_asked() -> None:
    report = by_length(by_speaker(scored(), SPEAKERS))
    text = report.format()
    heads = [line.split()[0] for line in text.splitlines() if " utts " in line]
    assert heads == ["language", "speaker", "graphemes"]
    assert [line.split()[0] for line in report.format(["length"]).splitlines() if " utts " in line] == ["graphemes"]
    assert text.count("macro average") == text.count("micro average") == 3
