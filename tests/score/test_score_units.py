# SPDX-License-Identifier: Apache-2.0
"""What counts as one unit, by hand for every case that WeNet's scorers get wrong, and Unicode's two spellings."""

import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from wenet_hs.score import ErrorCounts, count_errors, score
from wenet_hs.score.units import Rules, split_by, split_units
from wenet_hs.text.tokenizer import UNKNOWN_SHOWN

SCRIPTS = "aéßşğ'-привётбаҡкыргызўзбектәҥабвабхазаіїعربيةभारतमलयാളംქართ日本語ə̃tʃʰ "
SENTENCES = st.text(st.sampled_from(SCRIPTS), max_size=30)


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("été", ["é", "t", "é"]),
        ("Straße", ["S", "t", "r", "a", "ß", "e"]),
        ("Қазақ тілі", list("Қазақтілі")),
        ("ə̃", ["ə̃"]),
        ("n̥g͡b", ["n̥", "g͡", "b"]),
        ("日本", ["日", "本"]),
        ("a <unk>b", ["a", "<unk>", "b"]),
        ("a<b", ["a", "<", "b"]),
        ("", []),
        (" \t\u00a0 ", []),
    ],
)
def test_graphemes(text: str, units: list[str]) -> None:
    assert split_units(text, "cer") == units


def test_spaces_are_ignored_or_counted_once_between_words() -> None:
    assert split_units("  ab \t c\u3000", "cer") == ["a", "b", "c"]
    assert split_units("  ab \t c\u3000", "cer", spaces="count") == ["a", "b", " ", "c"]


def test_a_mark_after_a_space_does_not_move_to_the_letter_before() -> None:
    assert split_units("a \u0303b", "cer") == ["a", "\u0303", "b"]


def test_phones_and_words_stay_whole() -> None:
    assert split_units("tʃ ə̃  pʰ a", "per") == ["tʃ", "ə̃", "pʰ", "a"]
    assert split_units("groß und  klein", "wer") == ["groß", "und", "klein"]


def test_case_is_kept_unless_asked() -> None:
    assert split_units("Ab", "cer") == ["A", "b"]
    assert split_units("ÀB ß", "cer", normalization="nfc+lower") == ["à", "b", "ß"]
    assert split_units("groß", "cer", normalization="nfc+lower") != split_units(
        "gross", "cer", normalization="nfc+lower"
    )


@pytest.mark.parametrize(
    ("text", "lang", "cleaned"),
    [
        ("«L’eau», dit-il.", "fr", "L'eau dit il"),
        ("Об’єкт — 5!", "uk", "Обʼєкт 5"),
        ("Oʻzbek tili, G'arb: ma'no", "uz", "Oʻzbek tili Gʻarb maʼno"),
        ("COL·LEGI (col•legi)", "ca", "COL·LEGI col·legi"),
        ("It's 'so', isn't it?", None, "It's so isn't it"),
        ("ne<unk>, l'<unk>!", "fr", "ne<unk> l'<unk>"),
        ("?! …", "de", ""),
        ("नमस्ते, दुनिया।", "hi", "नमस्ते दुनिया"),
    ],
)
def test_punctuation_goes_but_for_what_stands_inside_words(text: str, lang: str | None, cleaned: str) -> None:
    assert split_units(text, "wer", punctuation="remove", lang=lang) == cleaned.split()
    assert split_units(text, "wer", lang=lang) == text.split()


def test_an_unknown_unit_stays_one_unit_without_punctuation() -> None:
    assert split_units("a, <unk>!", "cer", punctuation="remove") == ["a", "<unk>"]
    assert split_units("\U00020000<unk>.", "cer", punctuation="remove") == ["\U00020000", "<unk>"]


@pytest.mark.parametrize("unknown", ["<unk>", UNKNOWN_SHOWN])
def test_an_unknown_unit_is_one_error_with_and_without_punctuation(unknown: str) -> None:
    """`recognize` writes `<unk>` as a character that Unicode calls punctuation."""
    for punctuation in ("keep", "remove"):
        words, letters = (Rules(metric=metric, punctuation=punctuation) for metric in ("wer", "cer"))
        for rules, ref, hyp, counts in (
            (words, "hello", f"hello {unknown}", ErrorCounts(1, insertions=1)),
            (words, "hello", f"h{unknown}llo", ErrorCounts(1, substitutions=1)),
            (letters, "hello", f"h{unknown}llo", ErrorCounts(5, substitutions=1)),
            (letters, "hello", f"hello{unknown} <unk>{UNKNOWN_SHOWN}", ErrorCounts(5, insertions=3)),
        ):
            assert count_errors(split_by(ref, rules), split_by(hyp, rules)) == counts
            report = score({"k": ref}, {"k": hyp}, rules=rules, num_resamples=0)
            assert report.micro.counts == counts, "the quick way through a whole scoring says the same"
    assert split_units(f"\U00020000{unknown}, l'{unknown}!", "wer", punctuation="remove", lang="fr") == [
        f"\U00020000{unknown}",
        f"l'{unknown}",
    ]


@given(SENTENCES)
def test_both_spellings_of_unicode_give_the_same_units(text: str) -> None:
    for metric in ("cer", "wer", "per"):
        composed = split_units(unicodedata.normalize("NFC", text), metric)
        assert composed == split_units(unicodedata.normalize("NFD", text), metric)


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=20) | SENTENCES)
def test_a_letter_is_a_grapheme_cluster_of_unicode(text: str) -> None:
    """The quick ways say what the slow one says."""
    words = unicodedata.normalize("NFC", text).replace("<", "").split()
    assert split_units(" ".join(words), "cer") == [unit for word in words for unit in regex.findall(r"\X", word)]


@given(SENTENCES)
def test_nothing_of_a_text_is_lost(text: str) -> None:
    composed = unicodedata.normalize("NFC", text)
    assert "".join(split_units(text, "cer", spaces="count")) == " ".join(composed.split())
    assert " ".join(split_units(text, "wer")) == " ".join(composed.split())


@pytest.mark.parametrize(
    ("rules", "langs", "signature"),
    [
        (
            Rules(metric="cer"),
            ["tt", "ba"],
            "CER|unit:grapheme|spaces:ignored|case:kept|punct:kept|norm:nfc|lang:ba,tt|v:",
        ),
        (
            Rules(metric="cer", spaces="count"),
            [],
            "CER|unit:grapheme|spaces:counted|case:kept|punct:kept|norm:nfc|lang:unspecified|v:",
        ),
        (
            Rules(metric="wer", normalization="nfc+lower"),
            ["ca"],
            "WER|unit:word|case:lower|punct:kept|norm:nfc|lang:ca|v:",
        ),
        (
            Rules(metric="wer", punctuation="remove"),
            ["ca"],
            "WER|unit:word|case:kept|punct:removed|norm:nfc|lang:ca|v:",
        ),
        (Rules(metric="per"), ["bin"], "PER|unit:phone|case:kept|punct:kept|norm:nfc|lang:bin|v:"),
    ],
)
def test_signature_names_every_choice(rules: Rules, langs: list[str], signature: str) -> None:
    head, _, version = rules.signature(langs).rpartition("v:")
    assert head + "v:" == signature
    assert version[0].isdigit()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"metric": "ter"}, "expected one of cer, wer, per, got 'ter'"),
        ({"metric": "cer", "spaces": "no"}, "expected one of ignore, count, got 'no'"),
        ({"metric": "cer", "normalization": "nfkc"}, r"expected one of nfc, nfc\+lower, got 'nfkc'"),
        ({"metric": "wer", "punctuation": "drop"}, "expected one of keep, remove, got 'drop'"),
        ({"metric": "per", "normalization": "nfc+lower"}, "phones may differ in case alone"),
        ({"metric": "per", "punctuation": "remove"}, "phones may be written with punctuation"),
    ],
)
def test_unknown_rules_are_refused(choice: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rules(**choice)
