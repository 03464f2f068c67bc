# SPDX-License-Identifier: Apache-2.0
"""What counts as one unit, by hand for every case that WeNet's scorers get wrong, and Unicode's two spellings."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wenet_hs.score.units import Rules, split_units

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


@given(SENTENCES)
def test_both_spellings_of_unicode_give_the_same_units(text: str) -> None:
    for metric in ("cer", "wer", "per"):
        composed = split_units(unicodedata.normalize("NFC", text), metric)
        assert composed == split_units(unicodedata.normalize("NFD", text), metric)


@given(SENTENCES)
def test_nothing_of_a_text_is_lost(text: str) -> None:
    composed = unicodedata.normalize("NFC", text)
    assert "".join(split_units(text, "cer", spaces="count")) == " ".join(composed.split())
    assert " ".join(split_units(text, "wer")) == " ".join(composed.split())


@pytest.mark.parametrize(
    ("rules", "langs", "signature"),
    [
        (Rules(metric="cer"), ["tt", "ba"], "CER|unit:grapheme|spaces:ignored|norm:nfc|lang:ba,tt|v:"),
        (Rules(metric="cer", spaces="count"), [], "CER|unit:grapheme|spaces:counted|norm:nfc|lang:unspecified|v:"),
        (Rules(metric="wer", normalization="nfc+lower"), ["ca"], "WER|unit:word|norm:nfc+lower|lang:ca|v:"),
        (Rules(metric="per"), ["bin"], "PER|unit:phone|norm:nfc|lang:bin|v:"),
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
        ({"metric": "per", "normalization": "nfc+lower"}, "phones may differ in case alone"),
    ],
)
def test_unknown_rules_are_refused(choice: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rules(**choice)
