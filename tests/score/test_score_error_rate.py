# SPDX-License-Identifier: Apache-2.0
"""A whole scoring: every utterance accounted for, languages, averages, and the faults in words."""

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wenet_hs.errors import DataError
from wenet_hs.score import ErrorCounts, Rules, score
from wenet_hs.score.error_rate import check_keys

CER = Rules(metric="cer")
REF = {"a1": "été", "a2": "abcd", "b1": "Straße", "b2": "ab"}
HYP = {"a1": "ete", "a2": "abcd", "b1": "Strasse", "b2": ""}
LANGS = {"a1": "fr", "a2": "fr", "b1": "de", "b2": "de"}


def test_languages_and_averages_by_hand() -> None:
    report = score(REF, HYP, rules=CER, langs=LANGS, name="demo")
    assert {lang: value.counts for lang, value in report.languages.items()} == {
        "de": ErrorCounts(8, 1, 2, 1),
        "fr": ErrorCounts(7, 2, 0, 0),
    }
    assert report.macro.rate == pytest.approx((4 / 8 + 2 / 7) / 2)
    assert report.micro.counts == ErrorCounts(15, 3, 2, 1)
    assert report.micro.rate == pytest.approx(6 / 15)
    assert (report.micro.utterances, report.macro.num_languages, report.missing) == (4, 2, ())
    assert report.signature.startswith("CER|unit:grapheme|spaces:ignored|case:kept|punct:kept|norm:nfc|lang:de,fr|v:")
    assert report.utterances["b2"].counts == ErrorCounts(2, 0, 2)


def test_without_languages_there_is_one_line() -> None:
    report = score(REF, HYP, rules=CER)
    assert list(report.languages) == ["all"]
    assert report.languages["all"] == report.micro
    assert report.macro.rate == report.micro.rate
    assert "lang:unspecified" in report.signature


def test_a_missing_hypothesis_is_all_deletions_and_is_named() -> None:
    report = score(REF, {key: HYP[key] for key in ("a1", "b1")}, rules=CER, langs=LANGS)
    assert report.missing == ("a2", "b2")
    assert report.micro.counts == ErrorCounts(15, 3, 6, 1)
    assert report.utterances["a2"].hyp is None
    assert report.utterances["a2"].counts == ErrorCounts(4, 0, 4)


def test_nothing_recognised_is_a_rate_of_one() -> None:
    assert score(REF, {}, rules=CER).micro.rate == 1.0


def test_an_extra_hypothesis_is_refused_unless_allowed() -> None:
    with pytest.raises(
        DataError, match=r"^the hypotheses: 1 hypothesis for utterances that the reference lacks \(z9\); score it"
    ):
        score(REF, HYP | {"z9": "x"}, rules=CER)
    report = score(REF, HYP | {"z9": "x"}, rules=CER, allow_extra=True)
    assert report.extra == ("z9",)
    assert report.micro == score(REF, HYP, rules=CER).micro


def test_messages_name_the_first_few_keys() -> None:
    extra = {f"x{number}" for number in range(8)}
    with pytest.raises(DataError, match=r"^hyp.txt: 8 hypotheses .* ref.txt lacks \(x0, x1, x2, x3, x4, and 3 more\);"):
        check_keys({"a"}, extra | {"a"}, names=("ref.txt", "hyp.txt"))
    with pytest.raises(DataError, match=r"^ref.txt: no utterances in it; check that it is the reference$"):
        check_keys(set(), extra, names=("ref.txt", "hyp.txt"))


def test_a_key_without_language_is_refused() -> None:
    with pytest.raises(DataError, match=r"the languages: 2 reference utterances without one \(b1, b2\); take the"):
        score(REF, HYP, rules=CER, langs={"a1": "fr", "a2": "fr"})


def test_an_empty_reference_counts_insertions_and_has_no_rate() -> None:
    report = score({"k": "", "l": "ab"}, {"k": "xy", "l": "ab"}, rules=CER, langs={"k": "aa", "l": "bb"})
    assert report.languages["aa"].rate is None
    assert report.languages["aa"].counts == ErrorCounts(0, 0, 0, 2)
    assert report.macro.rate == 0.0 and report.macro.num_languages == 1
    assert report.micro.rate == 1.0
    nothing = score({"k": ""}, {"k": ""}, rules=CER)
    assert (nothing.micro.rate, nothing.macro.rate) == (None, None)


def test_keys_are_never_scored() -> None:
    keys = {"ключ_é": "ab", "本": "cd"}
    assert score(keys, keys, rules=CER).micro.counts == ErrorCounts(4)


def test_the_order_of_the_file_changes_nothing() -> None:
    backwards = dict(reversed(REF.items()))
    one, other = score(REF, HYP, rules=CER, langs=LANGS), score(backwards, HYP, rules=CER, langs=LANGS)
    assert (one.languages, one.macro, one.micro) == (other.languages, other.macro, other.micro)


@given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.text("aéß ж"), st.text("aéß ж")), min_size=1))
def test_spelling_of_unicode_changes_nothing(pairs: dict[str, tuple[str, str]]) -> None:
    reference = {key: unicodedata.normalize("NFD", ref) for key, (ref, _) in pairs.items()}
    hypothesis = {key: unicodedata.normalize("NFC", hyp) for key, (_, hyp) in pairs.items()}
    composed = {key: unicodedata.normalize("NFC", ref) for key, ref in reference.items()}
    mixed, alike = (score(ref, hypothesis, rules=CER, num_resamples=0) for ref in (reference, composed))
    assert mixed.micro == alike.micro
    assert score(reference, composed, rules=CER, num_resamples=0).micro.counts.errors == 0


def test_a_negative_number_of_resamples_is_a_wrong_call() -> None:
    with pytest.raises(ValueError, match="num_resamples is -1"):
        score(REF, HYP, rules=CER, num_resamples=-1)


def test_ten_thousand_utterances_take_about_a_second() -> None:
    words = ["сүҙ", "straße", "palabra", "été"]
    reference = {f"k{i}": " ".join(words[(i + j) % 4] for j in range(10)) for i in range(10_000)}
    hypothesis = {key: text.replace("a", "e", 1) for key, text in reference.items()}
    start = time.process_time()
    score(reference, hypothesis, rules=CER, langs={key: key[-1] for key in reference})
    assert time.process_time() - start < 5, "it takes 1 s on an idle core"
