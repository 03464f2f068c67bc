# SPDX-License-Identifier: Apache-2.0
"""Text normalization: NFC, lower case by language, no punctuation; letters, marks and digits stay.

The Unicode category decides what is kept (L*, M*, N*), so there is no list of letters. There is a
list of symbols that are spoken (`_SPOKEN_SYMBOL`). Punctuation that a language writes inside words
(the apostrophe of l'eau, об'єкт, oʻzbek, the dot of col·legi) is in `_RULES`.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import regex  # type: ignore[import-untyped]

UNKNOWN_SHOWN = "⁇"
"""The text of `<unk>` in decoded transcripts.

It is punctuation, so no normalised reference has it and it always counts as an error.
"""
APOSTROPHES = "'’‘‛`´′＇"
"""Apostrophes that people type.

ʼ and ʻ are not among them: they are letters (Lm) of some languages and are never removed.
"""
_REMOVED_WITHOUT_SPACE = frozenset(f"{APOSTROPHES}·՛՜՞")
"""Punctuation inside words that is removed without a space.

The Armenian marks (՛՜՞) are written on the stressed vowel.
"""
_SPOKEN_SYMBOL = regex.compile(
    r"[\u02C2-\u02DF\u02E5-\u02FF\uA700-\uA721\uA789\uA78A\u104C-\u104F]"
)
"""Symbols that are kept: tone letters and other modifiers of category Sk (˥ ꜜ ˞ ꞉), and four
abbreviated words of Burmese (Po).
"""

# Parts of the patterns below.
_APOSTROPHE = f"[{APOSTROPHES}]"
_APOSTROPHE_OR_LETTER = f"[{APOSTROPHES}ʼʻ]"
_AFTER_LETTER = r"(?<=[\p{L}\p{M}])(?<![ʼʻ])"
_BEFORE_LETTER = r"(?=\p{L})(?![ʼʻ])"
_AFTER_LETTER_OR_TONE = r"(?<=[\p{L}\p{M}\u02C2-\u02DF\u02E5-\u02FF]|[\p{L}\p{M}]\p{N})(?<![ʼʻ])"
_BEFORE_LETTER_OR_TONE = r"(?=[\p{L}\p{N}])(?![ʼʻ])"
_JOINING_SCRIPTS = (
    r"\p{Arab}\p{Syrc}\p{Deva}\p{Beng}\p{Guru}\p{Gujr}\p{Orya}\p{Taml}"
    r"\p{Telu}\p{Knda}\p{Mlym}\p{Sinh}"
)

_OPENING_QUOTE = regex.compile(rf"(?<![\p{{L}}\p{{M}}\p{{N}}]){_APOSTROPHE}(?=\p{{L}})")
"""An apostrophe at the start of a word."""
_END_OF_WORD = regex.compile(rf"{_AFTER_LETTER}{_APOSTROPHE_OR_LETTER}(?![\p{{L}}\p{{M}}\p{{N}}])")
"""An apostrophe or a letter apostrophe at the end of a word."""


@dataclass(frozen=True)
class _SpellingRule:
    """A character that is no letter but belongs to the spelling of words, and how it is written."""

    pattern: str
    """Matches one character of a text in lower case; what must be around it is in look-arounds."""
    replacement: str | None
    """None: the character is kept."""


_LanguageRules = tuple[_SpellingRule, ...]
"""The rules of a language. If several match a character, the first one counts."""

_ELISION = _SpellingRule(_AFTER_LETTER + _APOSTROPHE_OR_LETTER, "'")
"""An apostrophe inside a word (l'eau) or at its end (un po').

At the end of a word it may be a closing quotation mark instead, see `_closing_quotes`.
"""
_LETTER_APOSTROPHE = _SpellingRule(_AFTER_LETTER + _APOSTROPHE_OR_LETTER + _BEFORE_LETTER, "ʼ")
"""An apostrophe inside a word is the letter ʼ: об'єкт."""
_APOSTROPHE_IN_WORD = _SpellingRule(
    _AFTER_LETTER_OR_TONE + _APOSTROPHE + _BEFORE_LETTER_OR_TONE, "'"
)
"""An apostrophe inside a word, also beside the number or letter of a tone: tsa'3, ka1'a, ma˥'a."""
_DEFAULT_RULES: _LanguageRules = (_APOSTROPHE_IN_WORD,)
_HEBREW_RULES: _LanguageRules = (
    # Keyboards have neither geresh nor gershayim. Some people type two apostrophes for gershayim;
    # the second of them is removed.
    _SpellingRule(
        r"(?<=\p{Hebr})[\"“”״](?=\p{Hebr})|"
        r"(?<=\p{Hebr})'(?='\p{Hebr})",
        "״",
    ),
    _SpellingRule(rf"(?<=\p{{Hebr}})[{APOSTROPHES}׳](?=\p{{Hebr}})", "׳"),
    *_DEFAULT_RULES,
)
_RULES: dict[str, _LanguageRules] = {
    "be": (_LETTER_APOSTROPHE,),
    "ca": (_SpellingRule(r"(?<=l)[·•∙‧⋅・](?=l)", "·"), _SpellingRule(r"ŀ(?=ŀ*l)", "l·"), _ELISION),
    "fr": (_ELISION,),
    "he": _HEBREW_RULES,
    "it": (_ELISION,),
    "oc": (_SpellingRule(r"(?<=[ns])·(?=h)", "·"), _ELISION),
    "uk": (_LETTER_APOSTROPHE,),
    # oʻ and gʻ are letters of the alphabet (U+02BB). Any other apostrophe in a word is the tutuq
    # belgisi (U+02BC).
    "uz": (_SpellingRule(f"(?<=[og]){_APOSTROPHE_OR_LETTER}", "ʻ"), _LETTER_APOSTROPHE),
    "yi": _HEBREW_RULES,
}
"""ISO 639-1 → the rules of the language, if it has other ones than `_DEFAULT_RULES`."""
_RULES_OF_ALL_LANGUAGES: _LanguageRules = (
    # ZERO WIDTH (NON-)JOINER belongs to the spelling after a virama and between the letters of
    # these scripts; before a virama too, as in Bengali র‍্যাব.
    _SpellingRule(
        r"(?<=\p{M})[\u200C\u200D]|"
        rf"(?<=[{_JOINING_SCRIPTS}])[\u200C\u200D](?=[\p{{L}}\p{{M}}])",
        None,
    ),
    _SpellingRule(r"(?<=\p{Hebr})[׳״](?=\p{Hebr})", None),  # geresh and gershayim
)
"""They come after the rules of the language."""
_DOTLESS_I = ("tr", "az", "crh", "gag")
"""Languages in which I is the capital of ı, and İ of i."""
_SHORT_CODES = {
    "aze": "az",
    "azj": "az",
    "bel": "be",
    "cat": "ca",
    "fra": "fr",
    "fre": "fr",
    "heb": "he",
    "iw": "he",
    "ita": "it",
    "oci": "oc",
    "tur": "tr",
    "ukr": "uk",
    "uzb": "uz",
    "uzn": "uz",
    "ydd": "yi",
    "yid": "yi",
}
"""ISO 639-2 and 639-3 → 639-1, for the languages with rules."""


def normalize(text: str, lang: str | None) -> str:
    """The text for training and scoring: NFC, lower case, one space between words, no punctuation.

    Every letter, mark and number of the input is kept, in lower case. `lang` is the code of the
    corpus (`ca`, `pt-BR`). In a language without rules, and for None, an apostrophe inside a word
    becomes `'`. Normalized text does not change.
    """
    normalized, _ = normalize_counted(text, lang)
    return normalized


def remove_punctuation(text: str, lang: str | None) -> str:
    """The text without the characters that `normalize` removes, in its own case.

    Characters for which the language has a rule are written as by `normalize`: apostrophes in
    words become `'`.
    """
    kept_text, _ = normalize_counted(text, lang, keep_case=True)
    return kept_text


def normalize_spelling(text: str) -> str:
    """The text in NFC, with one space between words and none around them. Nothing else changes.

    It serves names and what the user writes on the command line, because some programs and macOS
    write letters with marks in another form of Unicode.
    """
    return " ".join(unicodedata.normalize("NFC", text).split())


def normalize_phones(text: str) -> str:
    """A phonetic transcript in NFC, with one space between phones.

    Not NFKC, which makes ʰ ʷ ʲ plain letters.
    """
    return normalize_spelling(text)


def normalize_counted(
    text: str, lang: str | None, *, keep_case: bool = False
) -> tuple[str, Counter[str]]:
    """Like `normalize`, with the frequencies of the removed characters; white space is not counted.

    With `keep_case` the text keeps its upper case; the rules match it in lower case.

    Passes are repeated until one removes nothing. A removed character makes its neighbours
    adjacent, so in the next pass they may combine in NFC or match another rule.
    """
    code = _short_code(lang)
    rules = _RULES.get(code, _DEFAULT_RULES)
    has_dotless_i = code in _DOTLESS_I
    removed: Counter[str] = Counter()
    while True:
        text, newly_removed = _normalize_once(
            text, rules, keep_case=keep_case, has_dotless_i=has_dotless_i
        )
        if not newly_removed:
            return text, removed
        removed += newly_removed


def _short_code(lang: str | None) -> str:
    """The language without its region, as ISO 639-1 if it has rules: `pt_BR` → `pt`, `fra` → `fr`.

    Empty for None.
    """
    language = (lang or "").replace("_", "-").partition("-")[0].lower()
    return _SHORT_CODES.get(language, language)


def _normalize_once(
    text: str, rules: _LanguageRules, *, keep_case: bool, has_dotless_i: bool
) -> tuple[str, Counter[str]]:
    """The text after one pass, and the frequencies of the characters that the pass removed.

    The case is lowered unless `keep_case` is set. Each character is written by the first rule that
    matches it, or else by its Unicode category. The rules match the text in lower case.
    """
    text = unicodedata.normalize("NFC", text)
    if keep_case:
        lower_text = _lower_each_character(text)  # of the same length, so positions are the same
    else:
        text = _lower(text, has_dotless_i=has_dotless_i)
        lower_text = text
    replacements = _apply_rules(lower_text, rules)
    pieces = []
    removed: Counter[str] = Counter()
    for position, character in enumerate(text):
        piece = replacements.get(position)
        if piece is None:
            piece = _write_by_category(character)
            is_removed = piece != character and not character.isspace()
            if is_removed:
                removed[character] += 1
        elif character.isupper():  # only if the case is kept
            piece = piece.upper()
        pieces.append(piece)
    words = "".join(pieces).split()
    return unicodedata.normalize("NFC", " ".join(words)), removed


def _lower(text: str, *, has_dotless_i: bool) -> str:
    """The text in lower case and NFC.

    İ becomes i. With `has_dotless_i`, I becomes ı, and an i with a combining dot becomes i.
    """
    # Python would convert İ to i and a combining dot: two units for one letter.
    text = text.replace("İ", "i")
    if has_dotless_i:
        text = text.replace("I", "ı").replace("i\u0307", "i")
    return unicodedata.normalize("NFC", text.lower())


def _lower_each_character(text: str) -> str:
    """The text in lower case, with each character at its position.

    So a character whose lower case is several characters (İ) keeps its upper case.
    """
    lower_characters = []
    for character in text:
        lower_character = character.lower()
        has_same_length = len(lower_character) == 1
        lower_characters.append(lower_character if has_same_length else character)
    return "".join(lower_characters)


def _apply_rules(lower_text: str, rules: _LanguageRules) -> dict[int, str]:
    """Position → how the character there is written, for the characters that a rule matches.

    The first rule that matches a character counts. `lower_text` is in lower case, as the patterns
    are. Apostrophes that close a quotation are left out.
    """
    replacements: dict[int, str] = {}
    for pattern, replacement in _compile_rules(rules):
        for match in pattern.finditer(lower_text):
            written = match.group() if replacement is None else replacement
            replacements.setdefault(match.start(), written)
    if _ELISION in rules:  # it also matches at the end of a word
        for position in _closing_quotes(lower_text):
            replacements.pop(position, None)
    return replacements


@cache
def _compile_rules(rules: _LanguageRules) -> list[tuple["regex.Pattern[str]", str | None]]:
    """Pattern and replacement of each rule: first those of a language, then those of all."""
    all_rules = (*rules, *_RULES_OF_ALL_LANGUAGES)
    return [(regex.compile(rule.pattern), rule.replacement) for rule in all_rules]


def _closing_quotes(lower_text: str) -> Iterator[int]:
    """The positions of apostrophes at the end of a word that close a quotation: 'ciao', not un po'.

    An apostrophe at the end of a word closes the last quotation that is open before it, if any.
    """
    openings = {match.start() for match in _OPENING_QUOTE.finditer(lower_text)}
    ends = {match.start() for match in _END_OF_WORD.finditer(lower_text)}
    num_open = 0
    for position in sorted(openings | ends):
        if position in openings:
            num_open += 1
        elif num_open > 0:
            num_open -= 1
            if not lower_text[position].isalpha():  # the letters ʼ and ʻ are never removed
                yield position


@cache
def _write_by_category(character: str) -> str:
    """How a character is written for which there is no rule, by its Unicode category.

    Letters, marks, numbers and spoken symbols stay. White space and punctuation between words
    become a space. Punctuation inside words and format characters become nothing.
    """
    category = unicodedata.category(character)
    if category[0] in "LMN" or _SPOKEN_SYMBOL.match(character):
        return character
    # U+200B, ZERO WIDTH SPACE, separates words.
    is_format_character = category == "Cf" and character != "\u200b"
    if character in _REMOVED_WITHOUT_SPACE or is_format_character:
        return ""
    return " "
