# SPDX-License-Identifier: Apache-2.0
"""Splitting of transcripts into the units that are counted, and the signature of the rules."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import regex  # type: ignore[import-untyped]

from wenet_hs.text.normalize import UNKNOWN_SHOWN, remove_punctuation
from wenet_hs.version import VERSION

METRICS = ("cer", "wer", "per")
SPACES = ("ignore", "count")
NORMALIZATIONS = ("nfc", "nfc+lower")
PUNCTUATION = ("keep", "remove")
UNIT_NAMES = {"cer": "grapheme", "wer": "word", "per": "phone"}

# An unknown unit that a recognizer prints is one symbol. It costs one error, not five.
_UNKNOWN = "<unk>"
_SPACE = "<space>"  # the space in results of older WeNet recipes
_GRAPHEMES = regex.compile(rf"{_UNKNOWN}|\X")
# Characters that do not join each other to one grapheme cluster (Unicode annex 29): all except
# marks, joiners, jamo and halves of flags.
_SEPARATE = r"[\p{GCB=Other}\p{GCB=LV}\p{GCB=LVT}]"
_all_separate = regex.compile(f"{_SEPARATE}*").fullmatch
# Separate characters of Latin, Greek, Cyrillic and Armenian that NFC never changes (Unicode annex
# 15), and the space. Texts of only these characters, which are most, need no other check.
_is_plain = regex.compile(rf"[{_SEPARATE}&&\p{{NFC_QC=Y}}&&\p{{CCC=0}}&&[\S ]]", regex.V1).fullmatch
_PLAIN = re.escape("".join(filter(_is_plain, map(chr, range(0x600)))))
_all_plain = re.compile(f"[{_PLAIN}]*").fullmatch
# Letters that replace `<unk>` and `⁇` while punctuation is removed: rare Han characters.
_STAND_INS = range(0x20000, 0x2A6E0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """How text is split into units; two error rates are comparable only if their rules are equal.

    Raises ValueError for an unknown name, and for phones with lower case or without punctuation: in
    X-SAMPA `s` and `S` are two phones, and `?` is a phone.
    """

    metric: str
    """cer: grapheme clusters; wer: words; per: phones.

    Words and phones are separated by white space.
    """
    spaces: str = "ignore"
    """Only for cer.

    `count`: white space between two words is one unit. `ignore`: it is not a unit, as in WeNet.
    """
    normalization: str = "nfc"
    """nfc, or nfc+lower, which is also Unicode's default lower case, the same for every language."""
    punctuation: str = "keep"
    """`remove` deletes every character that is not a letter, mark or number.

    Characters that the language uses inside words stay: the apostrophe of l'eau (in one spelling),
    the dot of col·legi (`text.normalize.remove_punctuation`).
    """

    def __post_init__(self) -> None:
        """Raise ValueError for rules that do not exist or do not fit together."""
        _check_choice(self.metric, METRICS)
        _check_choice(self.spaces, SPACES)
        _check_choice(self.normalization, NORMALIZATIONS)
        _check_choice(self.punctuation, PUNCTUATION)
        if self.metric == "per" and self.normalization != "nfc":
            raise ValueError(
                "two phones may differ only in case; score phones with the normalization nfc"
            )
        if self.metric == "per" and self.punctuation != "keep":
            raise ValueError("phones may contain punctuation; score phones with punctuation kept")

    def signature(self, langs: Iterable[str] = ()) -> str:
        """The rules in one line, with the languages and the version.

        An example: `CER|unit:grapheme|spaces:ignored|case:kept|punct:kept|norm:nfc|lang:ky|v:…`.
        """
        parts = [self.metric.upper(), f"unit:{UNIT_NAMES[self.metric]}"]
        if self.metric == "cer":
            parts.append("spaces:ignored" if self.spaces == "ignore" else "spaces:counted")
        parts.append("case:kept" if self.normalization == "nfc" else "case:lower")
        parts.append("punct:kept" if self.punctuation == "keep" else "punct:removed")
        parts.append("norm:nfc")
        parts.append(f"lang:{','.join(sorted(langs)) or 'unspecified'}")
        parts.append(f"v:{VERSION}")
        return "|".join(parts)


def _check_choice(value: str, allowed: Sequence[str]) -> None:
    """Raise ValueError if a value is not allowed."""
    if value not in allowed:
        raise ValueError(f"expected one of {', '.join(allowed)}, got {value!r}")


_DEFAULT = Rules(metric="cer")


def split_units(text: str, rules: Rules, lang: str | None = None) -> Sequence[str]:
    """The units of one transcript: a list, or a `str` in which every character is one unit.

    Units are words, phones, or grapheme clusters: Unicode's extended ones, a letter with all its
    marks. The text `<unk>` is one unit. White space between words of grapheme clusters is a unit
    only with the rule `spaces: count`.

    `lang` decides which punctuation inside words stays; a language without rules keeps apostrophes
    inside words.
    """
    is_simple = rules == _DEFAULT and "<" not in text and _all_plain(text)
    if is_simple:
        # Each character is a unit in NFC. The code below gives the same result in more time.
        return text.replace(" ", "")
    if rules.metric != "cer":
        return normalize_words(text, rules, lang)
    needs_no_change = rules.normalization == "nfc" and rules.punctuation == "keep"
    if needs_no_change and _SPACE not in text:
        words = text.split()  # `_split_word` makes NFC of each, and is cached
    else:
        words = normalize_words(text, rules, lang)
    units_of_words = [_split_word(word) for word in words]
    return _join_units(units_of_words, separator=" " if rules.spaces == "count" else "")


def _join_units(words: Sequence[str | tuple[str, ...]], separator: str) -> Sequence[str]:
    """The units of all words as one sequence.

    It is a `str` if all words are a `str`, and a list otherwise.

    Args:
        words: the units of each word, as `_split_word` returns them.
        separator: a unit between two words; empty: none.
    """
    has_only_str = tuple not in map(type, words)
    if has_only_str:
        return separator.join(words)  # type: ignore[arg-type]
    units: list[str] = []
    for units_of_word in words:
        if units and separator:
            units.append(separator)
        units.extend(units_of_word)  # of a `str`: each character
    return units


@lru_cache(maxsize=2**15)
def _split_word(word: str) -> str | tuple[str, ...]:
    """The units of one word in NFC; a `str` if each unit is one character.

    The results are cached, because words repeat.
    """
    word = unicodedata.normalize("NFC", word)
    if "<" not in word and _all_separate(word):
        return word
    return tuple(_GRAPHEMES.findall(word))


def normalize_words(text: str, rules: Rules, lang: str | None = None) -> list[str]:
    """The words of a transcript in NFC, with case and punctuation as the rules require.

    `<space>` is a space, except for phones.
    """
    if rules.metric != "per":
        text = text.replace(_SPACE, " ")
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if rules.normalization == "nfc+lower":
        # "İ".lower() is not NFC before other marks.
        text = unicodedata.normalize("NFC", text.lower())
    if rules.punctuation == "remove":
        text = _remove_punctuation(text, lang)
    return text.split()


def _remove_punctuation(text: str, lang: str | None) -> str:
    """The text without punctuation, but with unknown units, because each of them is an error.

    An unknown unit is `<unk>`, or `⁇`, which `recognize` writes for it. While punctuation is
    removed, both are replaced by letters that the text does not have.
    """
    unused_letters = (letter for letter in map(chr, _STAND_INS) if letter not in text)
    letter_of_unknown: dict[str, str] = {}
    for unknown in (_UNKNOWN, UNKNOWN_SHOWN):
        if unknown in text:
            letter_of_unknown[unknown] = next(unused_letters)  # another one each time
    for unknown, letter in letter_of_unknown.items():
        text = text.replace(unknown, letter)
    text = remove_punctuation(text, lang)
    for unknown, letter in letter_of_unknown.items():
        text = text.replace(letter, unknown)
    return text


def word_lengths(text: str, rules: Rules, lang: str | None = None) -> list[int]:
    """The number of units per word, without spaces.

    Displays of letters use it to separate words.
    """
    # The words are normalized already, so they are split without normalization.
    plain_rules = Rules(metric=rules.metric)
    words = normalize_words(text, rules, lang)
    return [len(split_units(word, plain_rules)) for word in words]
