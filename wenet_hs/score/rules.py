# SPDX-License-Identifier: Apache-2.0
"""Splitting of transcripts into the units that are counted, and the signature that names the rules."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
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
# Characters that never join a neighbour (Unicode annex 29): all except marks, joiners, jamo and
# halves of flags.
_SEPARATE = r"[\p{GCB=Other}\p{GCB=LV}\p{GCB=LVT}]"
_all_separate = regex.compile(f"{_SEPARATE}*").fullmatch
# Separate characters of Latin, Greek, Cyrillic and Armenian that NFC never changes (Unicode annex
# 15), and the space. Most texts consist of them, so no other check is needed.
_is_plain = regex.compile(rf"[{_SEPARATE}&&\p{{NFC_QC=Y}}&&\p{{CCC=0}}&&[\S ]]", regex.V1).fullmatch
_all_plain = re.compile(
    f"[{re.escape(''.join(filter(_is_plain, map(chr, range(0x600)))))}]*"
).fullmatch
_STAND_INS = range(
    0x20000, 0x2A6E0
)  # letters that replace `<unk>` and `⁇` while punctuation is removed


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """How text is split into units. Two error rates are comparable only if their rules are equal.

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
    """nfc, or nfc+lower: additionally Unicode's default lower case, which is the same for every
    language.
    """
    punctuation: str = "keep"
    """`remove` deletes every character that is not a letter, mark or number.

    Characters that the language uses inside words stay: the apostrophe of l'eau (in one spelling),
    the dot of col·legi (`text.normalize.remove_punctuation`).
    """

    def __post_init__(self) -> None:
        for value, allowed in zip(
            astuple(self), (METRICS, SPACES, NORMALIZATIONS, PUNCTUATION), strict=True
        ):
            if value not in allowed:
                raise ValueError(f"expected one of {', '.join(allowed)}, got {value!r}")
        if self.metric == "per" and self.normalization != "nfc":
            raise ValueError(
                "two phones may differ only in case; score phones with the normalization nfc"
            )
        if self.metric == "per" and self.punctuation != "keep":
            raise ValueError("phones may contain punctuation; score phones with punctuation kept")

    def signature(self, langs: Iterable[str] = ()) -> str:
        """The rules in one line:
        `CER|unit:grapheme|spaces:ignored|case:kept|punct:kept|norm:nfc|lang:ky|v:…`.
        """
        parts = [self.metric.upper(), f"unit:{UNIT_NAMES[self.metric]}"]
        if self.metric == "cer":
            parts.append("spaces:ignored" if self.spaces == "ignore" else "spaces:counted")
        parts.append("case:kept" if self.normalization == "nfc" else "case:lower")
        parts.append("punct:kept" if self.punctuation == "keep" else "punct:removed")
        lang = ",".join(sorted(langs)) or "unspecified"
        return "|".join([*parts, "norm:nfc", f"lang:{lang}", f"v:{VERSION}"])


_DEFAULT = Rules(metric="cer")


def split_units(text: str, rules: Rules, lang: str | None = None) -> Sequence[str]:
    """The units of one transcript: a list, or a `str` in which every character is one unit.

    A grapheme cluster is Unicode's extended one (a letter with all its marks); the text `<unk>` is
    one unit. `lang` decides which punctuation inside words stays; a language without rules keeps
    apostrophes inside words.
    """
    if rules == _DEFAULT and "<" not in text and _all_plain(text):
        return text.replace(" ", "")
    if rules.metric != "cer":
        return normalize_words(text, rules, lang)
    changed = rules.normalization != "nfc" or rules.punctuation != "keep" or _SPACE in text
    words = [
        _split_word(word)
        for word in (normalize_words(text, rules, lang) if changed else text.split())
    ]
    if tuple not in map(type, words):
        return (" " if rules.spaces == "count" else "").join(words)  # type: ignore[arg-type]
    units: list[str] = []
    for word in words:
        if units and rules.spaces == "count":
            units.append(" ")
        units += word
    return units


def normalize_words(text: str, rules: Rules, lang: str | None = None) -> list[str]:
    """The words of a transcript in NFC, with case and punctuation as the rules require.

    `<space>` is a space.
    """
    if rules.metric != "per":
        text = text.replace(_SPACE, " ")
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if rules.normalization == "nfc+lower":
        text = unicodedata.normalize(
            "NFC", text.lower()
        )  # "İ".lower() is not NFC before other marks
    return (_remove_punctuation(text, lang) if rules.punctuation == "remove" else text).split()


def word_lengths(text: str, rules: Rules, lang: str | None = None) -> list[int]:
    """The number of units per word, without spaces.

    Displays of letters use it to separate words.
    """
    rules_of_word = Rules(metric=rules.metric)
    return [len(split_units(word, rules_of_word)) for word in normalize_words(text, rules, lang)]


@lru_cache(maxsize=2**15)
def _split_word(word: str) -> str | tuple[str, ...]:
    """The units of one word in NFC; a `str` if each unit is one character.

    Cached, because words repeat.
    """
    word = unicodedata.normalize("NFC", word)
    if "<" not in word and _all_separate(word):
        return word
    return tuple(_GRAPHEMES.findall(word))


def _remove_punctuation(text: str, lang: str | None) -> str:
    """Remove punctuation, but keep `<unk>` and the character that `recognize` writes for it: both
    are errors.
    """
    free = (letter for letter in map(chr, _STAND_INS) if letter not in text)
    replaced = [(unknown, next(free)) for unknown in (_UNKNOWN, UNKNOWN_SHOWN) if unknown in text]
    for unknown, letter in replaced:
        text = text.replace(unknown, letter)
    text = remove_punctuation(text, lang)
    for unknown, letter in replaced:
        text = text.replace(letter, unknown)
    return text
