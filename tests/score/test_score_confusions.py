# SPDX-License-Identifier: Apache-2.0
"""The most frequent confusions: counted by hand, in a fixed order, with visible units."""

import pytest

from wenet_hs.score import Rules, score
from wenet_hs.score.alignments import Confusion, ConfusionReport, count_confusions, show_unit
from wenet_hs.score.tables import format_confusions

REF = {"a1": "été", "a2": "tete", "b1": "ab", "b2": "ab", "b3": "xa"}
HYP = {"a1": "ete", "a2": "tetee", "b1": "b", "b2": "cb", "b3": "xa"}


def count(ref: dict[str, str], hyp: dict[str, str], most: int, spaces: str = "ignore") -> ConfusionReport:
    rules = Rules(metric="cer", spaces=spaces)
    report = score(ref, hyp, rules=rules, langs={key: key[0] for key in ref}, num_resamples=0)
    return count_confusions(report.utterances.values(), rules, most)


def test_by_hand() -> None:
    found = count(REF, HYP, 10)
    assert found.overall.num_errors == 5
    assert found.overall.substitutions == (Confusion("é", "e", 2, 0.4, 1.0), Confusion("a", "c", 1, 0.2, 1 / 3))
    assert found.overall.deletions == (Confusion("a", None, 1, 0.2, 1 / 3),)
    assert found.overall.insertions == (Confusion(None, "e", 1, 0.2, None),)
    assert found.languages["a"].substitutions == (Confusion("é", "e", 2, 2 / 3, 1.0),)
    assert found.languages["b"].num_errors == 2


def test_at_most_the_requested_number() -> None:
    found = count(REF, HYP, 1).overall
    assert len(found.substitutions) == 1 and found.num_errors == 5
    assert list(format_confusions(count(REF, REF, 3).overall)) == ["most frequent of 0 errors"]
    with pytest.raises(ValueError, match="most is 0, must be at least 1"):
        count(REF, HYP, 0)


@pytest.mark.parametrize(
    ("unit", "shown"),
    [(" ", "▁"), ("\u0301", "◌\u0301"), ("é", "é"), ("\u200d", "U+200D"), ("<unk>", "<unk>"), ("\u093e", "◌\u093e")],
)
def test_every_unit_is_visible(unit: str, shown: str) -> None:
    assert show_unit(unit) == shown


def test_lines_of_text() -> None:
    lines = list(format_confusions(count({"k": "a b \u0301c"}, {"k": "ab \u0300c"}, 5, spaces="count").overall))
    assert lines[0] == "most frequent of 2 errors"
    assert [line.split() for line in lines[1:]] == [
        ["error", "ref", "hyp", "count", "of", "errors", "of", "the", "unit"],
        ["S", "◌\u0301", "◌\u0300", "1", "50.00", "%", "100.00", "%"],
        ["D", "▁", "*", "1", "50.00", "%", "50.00", "%"],
    ]
    similar = count({"k": "\u0430"}, {"k": "a"}, 1).overall
    assert "S      \u0430 (Cyrillic)  a (Latin)" in list(format_confusions(similar))[2]
    assert "Latin" not in "".join(format_confusions(similar, name_scripts=False))
