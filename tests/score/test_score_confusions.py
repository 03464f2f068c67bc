# SPDX-License-Identifier: Apache-2.0
"""The most confused pairs: counted by hand, in a fixed order, and readable whatever the unit."""

import pytest

from wenet_hs.score import Rules, score
from wenet_hs.score.confusions import Confusion, count_confusions
from wenet_hs.score.table import format_confusions, show_unit

REF = {"a1": "été", "a2": "tete", "b1": "ab", "b2": "ab", "b3": "xa"}
HYP = {"a1": "ete", "a2": "tetee", "b1": "b", "b2": "cb", "b3": "xa"}
RULES = Rules(metric="cer")
UTTERANCES = score(REF, HYP, rules=RULES, langs={key: key[0] for key in REF}, num_resamples=0).utterances


def test_by_hand() -> None:
    found = count_confusions(UTTERANCES.values(), RULES, 10)
    assert found.overall.num_errors == 5
    assert found.overall.substitutions == (Confusion("é", "e", 2, 0.4, 1.0), Confusion("a", "c", 1, 0.2, 1 / 3))
    assert found.overall.deletions == (Confusion("a", None, 1, 0.2, 1 / 3),)
    assert found.overall.insertions == (Confusion(None, "e", 1, 0.2, None),)
    assert found.languages["a"].substitutions == (Confusion("é", "e", 2, 2 / 3, 1.0),)
    assert found.languages["b"].num_errors == 2


def test_at_most_as_many_as_asked() -> None:
    found = count_confusions(UTTERANCES.values(), RULES, 1)
    assert len(found.overall.substitutions) == 1 and found.overall.num_errors == 5
    with pytest.raises(ValueError, match="most is 0, must be at least 1"):
        count_confusions(UTTERANCES.values(), RULES, 0)


def test_no_errors_no_pairs() -> None:
    report = score(REF, REF, rules=RULES, num_resamples=0)
    overall = count_confusions(report.utterances.values(), RULES, 3).overall
    assert list(format_confusions(overall)) == ["most frequent of 0 errors"]


@pytest.mark.parametrize(
    ("unit", "shown"),
    [(" ", "▁"), ("\u0301", "◌\u0301"), ("é", "é"), ("\u200d", "U+200D"), ("<unk>", "<unk>"), ("\u093e", "◌\u093e")],
)
def test_every_unit_can_be_seen(unit: str, shown: str) -> None:
    assert show_unit(unit) == shown


def test_letters_that_look_alike_are_told_apart() -> None:
    report = score({"k": "\u0430"}, {"k": "a"}, rules=RULES, num_resamples=0)
    confusions = count_confusions(report.utterances.values(), RULES, 1).overall
    assert "S      \u0430 (Cyrillic)  a (Latin)" in list(format_confusions(confusions))[2]
    assert "Latin" not in "".join(format_confusions(confusions, name_scripts=False))


def test_lines_for_people() -> None:
    rules = Rules(metric="cer", spaces="count")
    report = score({"k": "a b \u0301c"}, {"k": "ab \u0300c"}, rules=rules, num_resamples=0)
    lines = list(format_confusions(count_confusions(report.utterances.values(), rules, 5).overall))
    assert lines[0] == "most frequent of 2 errors"
    assert [line.split() for line in lines[1:]] == [
        ["error", "ref", "hyp", "count", "of", "errors", "of", "the", "unit"],
        ["S", "◌\u0301", "◌\u0300", "1", "50.00", "%", "100.00", "%"],
        ["D", "▁", "*", "1", "50.00", "%", "50.00", "%"],
    ]
