# SPDX-License-Identifier: Apache-2.0
"""Units and alignments by hand, where WeNet's scorers are wrong, with both forms of Unicode, and
against jiwer.
"""

import unicodedata

import pytest
import regex
from agreement import check_pairs, edit_distance
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.score import ErrorCounts, Rules, align, count_errors, split_units
from wenet_hs.text.normalize import UNKNOWN_SHOWN

SCRIPTS = "aéßşğ'-привётбаҡкыргызўзбектәҥабвабхазаіїعربيةभारतमलയാളംქართ日本語ə̃tʃʰ "
SENTENCES = st.text(st.sampled_from(SCRIPTS), max_size=30)
CER = Rules(metric="cer")
WER = Rules(metric="wer")
PER = Rules(metric="per")
SPACED = Rules(metric="cer", spaces="count")
CER_IN_LOWER_CASE = Rules(metric="cer", normalization="nfc+lower")
CER_WITHOUT_PUNCTUATION = Rules(metric="cer", punctuation="remove")
WER_WITHOUT_PUNCTUATION = Rules(metric="wer", punctuation="remove")


@pytest.mark.parametrize(
    ("rules", "text", "units"),
    [
        (CER, "Қазақ тілі", list("Қазақтілі")),
        (CER, "n̥g͡b", ["n̥", "g͡", "b"]),
        (CER, "a <unk>b", ["a", "<unk>", "b"]),
        (CER, "a<b", ["a", "<", "b"]),
        (CER, " \t\u00a0 ", []),
        # A mark after a space does not join the letter before it.
        (CER, "a \u0303b", ["a", "\u0303", "b"]),
        (SPACED, "  ab \t c\u3000", ["a", "b", " ", "c"]),
        (SPACED, "ə̃ b", ["ə̃", " ", "b"]),
        (CER_IN_LOWER_CASE, "ÀB ß", ["à", "b", "ß"]),
        (PER, "tʃ ə̃  pʰ a", ["tʃ", "ə̃", "pʰ", "a"]),
        (WER, "groß und  klein", ["groß", "und", "klein"]),
    ],
)
def test_units_by_hand(rules: Rules, text: str, units: list[str]) -> None:
    assert list(split_units(text, rules)) == units


@pytest.mark.parametrize(
    ("rules", "ref", "hyp", "num_units", "num_errors"),
    [
        (CER, "été", "ete", 3, 2),  # WeNet: ÉT, É
        (CER, "Straße", "Strasse", 6, 2),  # WeNet: no error, both upper-cased to SS
        (CER, "қазақ тілі", "казак тілі", 9, 2),  # WeNet: split before every letter
        (PER, "tʃ a ə̃", "t ʃ a ə̃", 3, 2),  # WeNet: tʃ is two units
        (PER, "s S", "s s", 2, 1),  # WeNet: one phone
        (CER, "bonjour écoute", "bonjur écoute", 13, 1),  # WeNet: 50 %
    ],
)
def test_errors_that_wenets_scorer_counts_differently(
    rules: Rules, ref: str, hyp: str, num_units: int, num_errors: int
) -> None:
    counts = count_errors(split_units(ref, rules), split_units(hyp, rules))

    assert counts.num_units == num_units
    assert counts.errors == num_errors


@pytest.mark.parametrize(
    ("text", "lang", "cleaned"),
    [
        ("«L’eau», dit-il.", "fr", "L'eau dit il"),
        ("It's 'so', isn't it?", None, "It's so isn't it"),
        ("ne<unk>, l'<unk>!", "fr", "ne<unk> l'<unk>"),
        ("?! …", "de", ""),
    ],
)
def test_punctuation_is_removed_except_inside_words(
    text: str, lang: str | None, cleaned: str
) -> None:
    assert split_units(text, WER_WITHOUT_PUNCTUATION, lang) == cleaned.split()
    assert split_units(text, WER, lang) == text.split()


@pytest.mark.parametrize("unknown", ["<unk>", UNKNOWN_SHOWN])
@pytest.mark.parametrize(
    ("words", "letters"),
    [
        pytest.param(WER, CER, id="with punctuation"),
        pytest.param(WER_WITHOUT_PUNCTUATION, CER_WITHOUT_PUNCTUATION, id="without punctuation"),
    ],
)
def test_an_unknown_unit_is_one_error(words: Rules, letters: Rules, unknown: str) -> None:
    cases = (
        (words, f"hello {unknown}", ErrorCounts(1, insertions=1)),
        (words, f"h{unknown}llo", ErrorCounts(1, substitutions=1)),
        (letters, f"h{unknown}llo", ErrorCounts(5, substitutions=1)),
        (letters, f"hello{unknown} <unk>{UNKNOWN_SHOWN}", ErrorCounts(5, insertions=3)),
    )
    for rules, hyp, expected in cases:
        counts = count_errors(split_units("hello", rules), split_units(hyp, rules))
        assert counts == expected, f"{rules.metric} of {hyp!r}"


@pytest.mark.parametrize("unknown", ["<unk>", UNKNOWN_SHOWN])
def test_an_unknown_unit_stays_in_its_word_when_punctuation_is_removed(unknown: str) -> None:
    text = f"\U00020000{unknown}, l'{unknown}!"

    units = split_units(text, WER_WITHOUT_PUNCTUATION, "fr")

    assert units == [f"\U00020000{unknown}", f"l'{unknown}"]


@settings(max_examples=30, deadline=None)
@given(SENTENCES)
def test_no_text_is_lost_and_both_forms_of_unicode_give_equal_units(text: str) -> None:
    composed = unicodedata.normalize("NFC", text)
    decomposed = unicodedata.normalize("NFD", text)

    for rules in (CER, WER, PER):
        assert list(split_units(composed, rules)) == list(split_units(decomposed, rules))
    assert "".join(split_units(text, SPACED)) == " ".join(composed.split())
    assert " ".join(split_units(text, WER)) == " ".join(composed.split())


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=20) | SENTENCES)
def test_a_letter_is_a_grapheme_cluster_of_unicode(text: str) -> None:
    words = unicodedata.normalize("NFC", text).replace("<", "").split()
    expected = list[str]()
    for word in words:
        expected += regex.findall(r"\X", word)

    assert list(split_units(" ".join(words), CER)) == expected


@pytest.mark.parametrize(
    ("rules", "langs", "beginning"),
    [
        (
            CER,
            ["tt", "ba"],
            "CER|unit:grapheme|spaces:ignored|case:kept|punct:kept|norm:nfc|lang:ba,tt|v:",
        ),
        (
            SPACED,
            [],
            "CER|unit:grapheme|spaces:counted|case:kept|punct:kept|norm:nfc|lang:unspecified|v:",
        ),
        (
            Rules(metric="wer", normalization="nfc+lower", punctuation="remove"),
            ["ca"],
            "WER|unit:word|case:lower|punct:removed|norm:nfc|lang:ca|v:",
        ),
        (
            PER,
            ["bin"],
            "PER|unit:phone|case:kept|punct:kept|norm:nfc|lang:bin|v:",
        ),
    ],
)
def test_a_signature_names_every_choice(rules: Rules, langs: list[str], beginning: str) -> None:
    signature = rules.signature(langs)

    assert signature.startswith(beginning)
    version = signature.removeprefix(beginning)
    assert version[0].isdigit()


@pytest.mark.parametrize("field", ["metric", "spaces", "normalization", "punctuation"])
def test_unknown_rules_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match="expected one of .*, .*, got 'other'"):
        Rules(**{"metric": "cer", field: "other"})


# ---- alignments


UNITS = st.lists(st.sampled_from(["a", "b", "ə̃", "tʃ", "ж", "本"]), max_size=12)


@pytest.mark.parametrize(
    ("ref", "hyp", "kinds", "counts"),
    [
        ("abc", "ac", "CDC", ErrorCounts(3, deletions=1)),
        ("kitten", "sitting", "SCCCSCI", ErrorCounts(6, substitutions=2, insertions=1)),
    ],
)
def test_alignments_by_hand(ref: str, hyp: str, kinds: str, counts: ErrorCounts) -> None:
    operations = align(list(ref), list(hyp))

    assert "".join(operation.kind for operation in operations) == kinds
    assert count_errors(list(ref), list(hyp)) == counts
    assert count_errors(ref, hyp) == counts, "of strings"
    assert count_errors(ref, list(hyp)) == counts, "of a string and a list"


@settings(max_examples=30, deadline=None)
@given(UNITS, UNITS)
def test_alignment_is_minimal_and_complete(ref: list[str], hyp: list[str]) -> None:
    operations = align(ref, hyp)
    counts = count_errors(ref, hyp)

    kinds = [operation.kind for operation in operations]
    assert counts == ErrorCounts(len(ref), kinds.count("S"), kinds.count("D"), kinds.count("I"))
    assert counts.errors == edit_distance(ref, hyp)
    assert counts.errors == count_errors(hyp, ref).errors
    assert [operation.ref for operation in operations if operation.ref is not None] == ref
    assert [operation.hyp for operation in operations if operation.hyp is not None] == hyp
    assert operations == align(list(ref), list(hyp)), "always the same alignment"


def test_counts_equal_those_of_jiwer_and_the_textbook() -> None:
    check_pairs(60)


def test_the_unit_space_in_a_result_is_a_space() -> None:
    """Results of older WeNet recipes have it; in phones it is a unit."""
    for rules in (WER, CER, SPACED, WER_WITHOUT_PUNCTUATION):
        assert list(split_units("ab<space>c", rules)) == list(split_units("ab c", rules)), rules
    assert split_units("a <space> b", PER) == ["a", "<space>", "b"]
