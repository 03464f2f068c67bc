# SPDX-License-Identifier: Apache-2.0
"""Text normalization: NFC, lower case by language, no punctuation; all letters, marks and digits
are kept.

The Unicode category decides what is kept (L*, M*, N*), so there is no list of letters, but one of
symbols that are spoken (`_SPOKEN`). Punctuation that a language writes inside words (the apostrophe
of l'eau, об'єкт, oʻzbek, the dot of col·legi) is in `_RULES`.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import cache

import regex  # type: ignore[import-untyped]

UNKNOWN_SHOWN = "⁇"
"""The text of `<unk>` in decoded transcripts: punctuation, so no normalised reference has it and it
is an error.
"""
APOSTROPHES = "'’‘‛`´′＇"
"""Those that people type. ʼ and ʻ are letters (Lm) of some languages and are never removed."""
_GLUED = frozenset(f"{APOSTROPHES}·՛՜՞")
"""Punctuation inside words that is removed without a space (the Armenian marks are on the stressed
vowel).
"""
_SPOKEN = regex.compile(r"[\u02C2-\u02DF\u02E5-\u02FF\uA700-\uA721\uA789\uA78A\u104C-\u104F]")
"""Tone letters and other modifiers of category Sk (˥ ꜜ ˞ ꞉), and four abbreviated words of Burmese
(Po).
"""
_TYPED = f"[{APOSTROPHES}]"
_TYPED_OR_LETTER = f"[{APOSTROPHES}ʼʻ]"
_BEFORE = r"(?<=[\p{L}\p{M}])(?<![ʼʻ])"
_INSIDE = _BEFORE + r"%s(?=\p{L})(?![ʼʻ])"
_OPENING = regex.compile(rf"(?<![\p{{L}}\p{{M}}\p{{N}}]){_TYPED}(?=\p{{L}})")
_FINAL = regex.compile(rf"{_BEFORE}{_TYPED_OR_LETTER}(?![\p{{L}}\p{{M}}\p{{N}}])")

_JOINING_SCRIPTS = r"\p{Arab}\p{Syrc}\p{Deva}\p{Beng}\p{Guru}\p{Gujr}\p{Orya}\p{Taml}\p{Telu}\p{Knda}\p{Mlym}\p{Sinh}"
_EVERYWHERE = (
    # ZERO WIDTH (NON-)JOINER belongs to the spelling after a virama and between the letters of
    # these scripts; before a virama too, as in Bengali র‍্যাব.
    (
        rf"(?<=\p{{M}})[\u200C\u200D]|(?<=[{_JOINING_SCRIPTS}])[\u200C\u200D](?=[\p{{L}}\p{{M}}])",
        None,
    ),
    (r"(?<=\p{Hebr})[׳״](?=\p{Hebr})", None),  # geresh and gershayim
)


# The characters that a language keeps besides letters: patterns that match one character each, and
# its replacement (None: it is kept); the first match counts.
_LanguageRules = tuple[tuple[str, str | None], ...]
_ELISION = (_BEFORE + _TYPED_OR_LETTER, "'")
"""An apostrophe may end a word (un po').

It must then be distinguished from a closing quotation mark.
"""
_LETTER_APOSTROPHE = (_INSIDE % _TYPED_OR_LETTER, "ʼ")
_BY_TONE = r"(?<=[\p{L}\p{M}\u02C2-\u02DF\u02E5-\u02FF]|[\p{L}\p{M}]\p{N})(?<![ʼʻ])%s(?=[\p{L}\p{N}])(?![ʼʻ])"
"""Also beside the number or letter of a tone: tsa'3, ka1'a, ma˥'a."""
_DEFAULT: _LanguageRules = ((_BY_TONE % _TYPED, "'"),)
_RULES: dict[str, _LanguageRules] = {
    "ca": ((r"(?<=l)[·•∙‧⋅・](?=l)", "·"), (r"ŀ(?=ŀ*l)", "l·"), _ELISION),
    "fr": (_ELISION,),
    "it": (_ELISION,),
    "oc": ((r"(?<=[ns])·(?=h)", "·"), _ELISION),
    "uk": (_LETTER_APOSTROPHE,),
    "be": (_LETTER_APOSTROPHE,),
    # oʻ and gʻ are letters of the alphabet (U+02BB); any other apostrophe in a word is the tutuq
    # belgisi (U+02BC).
    "uz": ((f"(?<=[og]){_TYPED_OR_LETTER}", "ʻ"), _LETTER_APOSTROPHE),
}
_HEBREW: _LanguageRules = (
    # Keyboards have neither geresh nor gershayim; some people type two apostrophes, of which the
    # second is removed.
    (r"(?<=\p{Hebr})[\"“”״](?=\p{Hebr})|(?<=\p{Hebr})'(?='\p{Hebr})", "״"),
    (rf"(?<=\p{{Hebr}})[{APOSTROPHES}׳](?=\p{{Hebr}})", "׳"),
    *_DEFAULT,
)
_RULES |= dict.fromkeys(("he", "yi"), _HEBREW)
_DOTLESS_I = ("tr", "az", "crh", "gag")
"""Languages in which I is the capital of ı, and İ of i."""
_SHORT_CODES = {
    **{"heb": "he", "iw": "he", "yid": "yi", "ydd": "yi"},
    **{"aze": "az", "azj": "az", "bel": "be", "cat": "ca", "fra": "fr", "fre": "fr", "ita": "it"},
    **{"oci": "oc", "tur": "tr", "ukr": "uk", "uzb": "uz", "uzn": "uz"},
}
"""ISO 639-2 and 639-3 → 639-1, for the languages with rules."""


def normalize(text: str, lang: str | None) -> str:
    """The text for training and scoring: NFC, lower case, one space between words, no punctuation.

    Every letter, mark and number of the input is kept, in lower case. `lang` is the code of the
    corpus (`ca`, `pt-BR`). In a language without rules an apostrophe inside a word becomes `'`.
    Normalized text does not change.
    """
    return normalize_counted(text, lang)[0]


def remove_punctuation(text: str, lang: str | None) -> str:
    """The text without the characters that `normalize` removes; its case is kept, apostrophes in
    words become `'`.
    """
    return normalize_counted(text, lang, keep_case=True)[0]


def normalize_phones(text: str) -> str:
    """A phonetic transcript: NFC, one space between phones.

    Not NFKC, which makes ʰ ʷ ʲ plain letters.
    """
    return " ".join(unicodedata.normalize("NFC", text).split())


def normalize_counted(
    text: str, lang: str | None, *, keep_case: bool = False
) -> tuple[str, Counter[str]]:
    """Like `normalize`, with the frequencies of the removed characters; white space is not counted.

    With `keep_case` the text keeps its upper case; the rules match it in lower case.

    A removed character makes its neighbours adjacent. In the next pass they may combine in NFC or
    match another rule.
    """
    code = (lang or "").replace("_", "-").partition("-")[0].lower()
    code = _SHORT_CODES.get(code, code)
    rules, has_dotless_i = _RULES.get(code, _DEFAULT), code in _DOTLESS_I
    removed: Counter[str] = Counter()
    while True:
        text, newly_removed = _normalize_once(
            text, rules, keep_case=keep_case, has_dotless_i=has_dotless_i
        )
        removed += newly_removed
        if not newly_removed:
            return text, removed


def _normalize_once(
    text: str, rules: _LanguageRules, *, keep_case: bool, has_dotless_i: bool
) -> tuple[str, Counter[str]]:
    """The text after one pass, and the frequencies of the characters that the pass removed."""
    text = unicodedata.normalize("NFC", text)
    text = text if keep_case else _lower(text, has_dotless_i)
    lower = text  # the patterns are in lower case
    if (
        keep_case
    ):  # a letter whose lower case is several characters stays, so that positions do not change
        lower = "".join(
            low if len(low := character.lower()) == 1 else character for character in text
        )
    replacements: dict[int, str] = {}  # of characters for which a rule matches, by position
    for pattern, written in _patterns(rules):
        for match in pattern.finditer(lower):
            replacements.setdefault(match.start(), match.group() if written is None else written)
    if _ELISION in rules:
        for position in _closing_quotes(lower):
            replacements.pop(position, None)
    pieces = []
    removed: Counter[str] = Counter()
    for position, character in enumerate(text):
        piece, is_removed = (
            (replacements[position], False) if position in replacements else _replacement(character)
        )
        pieces.append(piece.upper() if position in replacements and character.isupper() else piece)
        if is_removed:
            removed[character] += 1
    return unicodedata.normalize("NFC", " ".join("".join(pieces).split())), removed


def _lower(text: str, has_dotless_i: bool) -> str:
    text = text.replace(
        "İ", "i"
    )  # Python converts İ to i and a combining dot: two units for one letter
    if has_dotless_i:
        text = text.replace("I", "ı").replace("i\u0307", "i")
    return unicodedata.normalize("NFC", text.lower())


@cache
def _patterns(rules: _LanguageRules) -> tuple[tuple["regex.Pattern[str]", str | None], ...]:
    return tuple((regex.compile(pattern), written) for pattern, written in (*rules, *_EVERYWHERE))


def _closing_quotes(text: str) -> Iterator[int]:
    """Positions of apostrophes at the end of a word that close a quotation."""
    marks = [(match.start(), 1) for match in _OPENING.finditer(text)]
    marks += [(match.start(), -1) for match in _FINAL.finditer(text)]
    num_open = 0
    for position, step in sorted(marks):
        if step < 0 and num_open > 0 and not text[position].isalpha():
            yield position
        num_open = max(0, num_open + step)


@cache
def _replacement(character: str) -> tuple[str, bool]:
    """The replacement of a character for which there is no rule, and whether it counts as removed."""
    if character.isspace():
        return " ", False
    category = unicodedata.category(character)
    if category[0] in "LMN" or _SPOKEN.match(character):
        return character, False
    if character in _GLUED or (category == "Cf" and character != "\u200b"):
        return "", True
    return " ", True
