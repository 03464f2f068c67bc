# SPDX-License-Identifier: Apache-2.0
"""Normalization keeps every letter of any script, in the paper's 15 languages and in all of
Unicode.
"""

import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wenet_hs.text.normalize import (
    normalize,
    normalize_counted,
    normalize_phones,
    remove_punctuation,
)

PAPER_LANGS = tuple(str.split("ca es fr it pt be cs pl ru uk ba ky tr tt uz"))
APOSTROPHE_LETTERS = "ʼʻ"

# Written for this test: input and its normalized text.
SENTENCES = {
    "ca": ("L’Anna i el col·legi: «QUÈ?», l'aigua, Ŀ i paraŀlel.", "l'anna i el col·legi què l'aigua ŀ i paral·lel"),
    "es": ("¿Dónde está el ÑANDÚ? ¡Aquí, pingüino!", "dónde está el ñandú aquí pingüino"),
    "fr": ("J’AI L'œuf d’Eugène… ‘à Noël’, dit-il : 10 €.", "j'ai l'œuf d'eugène à noël dit il 10"),
    "it": ("Perché? C'È un po’ d‘acqua, cioè l´oceano…", "perché c'è un po' d'acqua cioè l'oceano"),
    "pt": ("Não há pão-d’água; É VOCÊ, às três?", "não há pão d'água é você às três"),
    "be": ("Ў нядзелю АБ’ЯВА і сям'я…", "ў нядзелю абʼява і сямʼя"),
    "cs": ("„Příliš žluťoučký KŮŇ“ úpěl – ďábelské ódy!", "příliš žluťoučký kůň úpěl ďábelské ódy"),
    "pl": ("„ZAŻÓŁĆ gęślą jaźń” — rzekł.", "zażółć gęślą jaźń rzekł"),
    "ru": ("«Ёж» съел подъём – ЩИ, О'Нил!", "ёж съел подъём щи о'нил"),
    "uk": ("Об'єкт, ПІД’ЇЗД; ґанок – «пʼять»!", "обʼєкт підʼїзд ґанок пʼять"),
    "ba": ("Ҡыҙ Әсәһенә: «Һаумы, ғәзиз УҪАЛ!»", "ҡыҙ әсәһенә һаумы ғәзиз уҫал"),
    "ky": ("Өзүң КҮН, таң – эң жакшы.", "өзүң күн таң эң жакшы"),
    "tr": ("IŞIK İSTANBUL’da, Iğdır'ı gördü; i̇yi kâğıt!", "ışık istanbul'da ığdır'ı gördü iyi kâğıt"),
    "tt": ("Җырлый Өмет, ҢӘРСӘ? Һава…", "җырлый өмет ңәрсә һава"),
    "uz": ("OʻZBEK qo‘shig'i, ma’no: G`alaba; tog’ va san'at!", "oʻzbek qoʻshigʻi maʼno gʻalaba togʻ va sanʼat"),
}  # fmt: skip


HARD_TEXTS = st.text("aAlLoOgGñÉßŀĿİıI'’ʼʻ·•.,-«»!? јЖאב״\u0301\u200d1")
LANGS = st.sampled_from([*PAPER_LANGS, None, "oc", "de", "hy"])


def letters(text: str, lang: str | None) -> Counter[str]:
    """Letters, marks and numbers without regard to case, except apostrophe letters, which are
    unified.
    """
    text = unicodedata.normalize("NFC", text).replace("İ", "i")
    if lang == "tr":
        text = unicodedata.normalize("NFD", text.replace("I", "ı")).replace("\u0307", "")
    if lang == "ca":
        text = text.replace("Ŀ", "ŀ").replace("ŀl", "ll")
    folded = unicodedata.normalize("NFC", text.casefold())
    kept = ""
    for character in folded:
        if is_letter_mark_or_number(character) and character not in APOSTROPHE_LETTERS:
            kept += character
    return Counter(unicodedata.normalize("NFD", kept))


def is_letter_mark_or_number(character: str) -> bool:
    return unicodedata.category(character)[0] in "LMN"


@pytest.mark.parametrize("lang", PAPER_LANGS)
def test_a_sentence_of_each_language(lang: str) -> None:
    text, expected = SENTENCES[lang]
    assert normalize(text, lang) == expected
    assert normalize(unicodedata.normalize("NFD", text), lang) == expected
    assert letters(text, lang) == letters(expected, lang)


@pytest.mark.parametrize("step", [30, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lang", PAPER_LANGS)
def test_no_letter_of_real_sentences_is_lost(shared_dir: Path, lang: str, step: int) -> None:
    path = shared_dir / "data" / "cv_sentences" / f"{lang}.txt"
    sentences = path.read_text("utf-8").split("\n")[:1500]
    assert len(sentences) > 700

    for sentence in sentences[::step]:
        normalized, removed = normalize_counted(sentence, lang)
        assert letters(normalized, lang) == letters(sentence, lang), sentence
        assert normalize(normalized, lang) == normalized
        for character in removed:
            is_punctuation_symbol_or_control = unicodedata.category(character)[0] in "PSC"
            assert is_punctuation_symbol_or_control, sentence


@pytest.mark.parametrize("step", [31, pytest.param(1, marks=pytest.mark.slow)])
def test_every_letter_mark_and_number_of_unicode_is_kept(step: int) -> None:
    for code in range(0, sys.maxunicode + 1, step):
        character = chr(code)
        if not is_letter_mark_or_number(character):
            continue
        lower = unicodedata.normalize("NFC", character).lower()
        expected = unicodedata.normalize("NFC", lower)
        if character == "İ":
            expected = "i"
        assert normalize_counted(character, None) == (expected, Counter()), f"U+{code:04X}"


@pytest.mark.parametrize("lang", ["ca", "fr", "uk", "tr", "uz", "es"])
def test_a_letter_is_kept_beside_any_other(lang: str) -> None:
    latin = range(0x20, 0x180, 3)
    modifiers_and_marks = range(0x2B0, 0x330, 3)
    general_punctuation = range(0x2010, 0x2040)
    wide_punctuation = (0x300C, 0xFF07)

    for code in (*latin, *modifiers_and_marks, *general_punctuation, *wide_punctuation):
        character = chr(code)
        for text in (f"a{character}b", f"o{character}", f"{character}l", f"l{character}l"):
            assert letters(normalize(text, lang), lang) == letters(text, lang), f"{text!r}"


@settings(max_examples=50, deadline=None)
@example("א״״", "ca")
@given(text=st.text(max_size=30) | HARD_TEXTS, lang=LANGS)
def test_normalized_text_does_not_change(text: str, lang: str | None) -> None:
    composed = unicodedata.normalize("NFC", text)

    once, removed = normalize_counted(text, lang)

    assert normalize(once, lang) == once
    assert " ".join(once.split()) == once
    assert normalize(unicodedata.normalize("NFD", text), lang) == once
    assert unicodedata.is_normalized("NFC", once)
    assert removed.total() <= len(composed)


@settings(max_examples=50, deadline=None)
@example("א״״", "ca")
@given(text=st.text(max_size=30) | HARD_TEXTS, lang=LANGS)
def test_text_without_punctuation_is_the_normalized_text_except_for_its_case(
    text: str, lang: str | None
) -> None:
    composed = unicodedata.normalize("NFC", text)
    categories = {unicodedata.category(character) for character in composed}

    without_punctuation = remove_punctuation(text, lang)

    assert remove_punctuation(without_punctuation, lang) == without_punctuation
    # A mark without its letter finds another one when punctuation goes: Turkish I’ and an acute
    # become í, not ı́.
    if categories.isdisjoint({"Mn", "Cf"}):
        assert normalize(without_punctuation, lang) == normalize(text, lang)


@settings(max_examples=50, deadline=None)
@given(text=st.text("aoglLI'’ʻʼ·.- \u0301\u0307\u00ad", max_size=14), lang=LANGS)
def test_apostrophes_in_any_order_lose_no_letter(text: str, lang: str | None) -> None:
    assert letters(normalize(text, lang), lang) == letters(text, lang)


@pytest.mark.parametrize(
    ("lang", "text", "expected"),
    [
        (None, "rock 'n' roll: don’t 'quote' it", "rock n roll don't quote it"),
        ("fr", "‘l’ami’ et l' eau, cʼest", "l'ami et l' eau c'est"),
        ("fr", "étudiant·e·s", "étudiantes"),
        ("it", "'sto po' di", "sto po di"),
        ("it", "un po' di 'vino'", "un po' di vino"),
        ("en-GB", "Don’T", "don't"),
        ("UK", "з’їзд", "зʼїзд"),
        ("tr_TR", "ISI", "ısı"),
        ("tur", "KIZ", "kız"),
        ("uzn", "O'zbek", "oʻzbek"),
        ("az", "İLK IŞIQ", "ilk ışıq"),
        ("de", "STRASSE Straße ẞ", "strasse straße ß"),
        ("hy", "Ինչո՞ւ", "ինչու"),
        ("he", "צה״ל ג׳ירפה ״שלום״", "צה״ל ג׳ירפה שלום"),
        ("he", "צה\"ל ארה״ב מנכ''ל \"ג'ירפה\" don't", "צה״ל ארה״ב מנכ״ל ג׳ירפה don't"),
        ("yid", "ס'איז", "ס׳איז"),
        ("fa", "می\u200cخواهم\u200c.", "می\u200cخواهم"),
        ("ml", "അവന്\u200d", "അവന്\u200d"),
        ("hi", "हिन्दी।", "हिन्दी"),
        ("el", "ΟΔΟΣ;", "οδος"),
        ("oc", "in·habitat", "in·habitat"),
        ("ca", "ĿĿL Ŀ·L", "l·l·l l·l"),
        ("zh-CN", "你好，世界！", "你好 世界"),
        ("ru", "до\u00adро\u00adга\u200bздесь\ufeff", "дорога здесь"),
        (None, "a\u3000b\tc\u2028d\x00e", "a b c d e"),
        (None, " \u200b\ufeff?! ", ""),
        ("haw", "Hawaiʻi", "hawaiʻi"),
        ("und", "ma˥˩ tʰa˨˩˦ kꜜa; a˞", "ma˥˩ tʰa˨˩˦ kꜜa a˞"),
        ("bn", "র\u200d্যাব, কার্য।", "র\u200d্যাব কার্য"),
        ("my", "၎င်း၏ အိမ်၌။", "၎င်း၏ အိမ်၌"),
    ],
)
def test_hard_cases(lang: str | None, text: str, expected: str) -> None:
    assert normalize(text, lang) == expected


def test_removed_characters_are_counted() -> None:
    normalized, removed = normalize_counted("«Né en 1984 à 10h», dit-il !", "fr")

    assert normalized == "né en 1984 à 10h dit il"
    assert removed == Counter({"«": 1, "»": 1, ",": 1, "-": 1, "!": 1})


@pytest.mark.parametrize(
    ("lang", "text", "expected"),
    [
        ("ca", "«L’Hospitalet», PARAĿLEL", "L'Hospitalet PARAL·LEL"),
        ("uz", "O‘ZBEKISTON Respublikasi", "OʻZBEKISTON Respublikasi"),
        ("it", "Un po' di «Vino»", "Un po' di Vino"),
        ("tr", "İstanbul'da", "İstanbul'da"),
    ],
)
def test_the_case_can_be_kept(lang: str, text: str, expected: str) -> None:
    assert remove_punctuation(text, lang) == expected


def test_phones_keep_their_modifiers() -> None:
    """NFKC would make ʰ ʷ ʲ ˠ ˤ ⁿ ˡ plain letters."""
    phones = "pʰ kʷ tʲ ɫˠ sˤ dⁿ tˡ t͡ʃʰ ɡ͡b ˀa ç B s S"
    assert normalize_phones(phones) == phones
    assert normalize_phones(f"  a\u0303\u3000{phones}\n") == f"ã {phones}"


def test_an_apostrophe_beside_a_tone_is_inside_of_the_word() -> None:
    text = "tsa'3 ka1'a ka'² ma˥'a"
    assert normalize(text, "und") == text
    assert normalize("'a' the '90s 5'10 said 'yes'", "und") == "a the 90s 510 said yes"
