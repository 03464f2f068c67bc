# SPDX-License-Identifier: Apache-2.0
"""Text → the units whose errors are counted, and the line that names every choice made on the way."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version

import regex  # type: ignore[import-untyped]

from wenet_hs.text.normalize import remove_punctuation
from wenet_hs.text.tokenizer import UNKNOWN_SHOWN

METRICS = ("cer", "wer", "per")
SPACES = ("ignore", "count")
NORMALIZATIONS = ("nfc", "nfc+lower")
PUNCTUATION = ("keep", "remove")
UNIT_NAMES = {"cer": "grapheme", "wer": "word", "per": "phone"}

# An unknown unit that a recognizer prints is one symbol, so it costs one error and not five.
_UNKNOWN = "<unk>"
_GRAPHEMES = regex.compile(rf"{_UNKNOWN}|\X")
# Characters that no neighbour joins (Unicode's annex 29): all but marks, joiners, jamo and halves of flags.
_ALONE = r"[\p{GCB=Other}\p{GCB=LV}\p{GCB=LVT}]"
_are_alone = regex.compile(f"{_ALONE}*").fullmatch
# And that NFC leaves as they are, whatever their neighbours (Unicode's annex 15), of Latin, Greek, Cyrillic, Armenian;
# with the space, which is the only white space among them. Most texts are made of these, and need no other look.
_is_plain = regex.compile(rf"[{_ALONE}&&\p{{NFC_QC=Y}}&&\p{{CCC=0}}&&[\S ]]", regex.V1).fullmatch
_are_plain = re.compile(f"[{re.escape(''.join(filter(_is_plain, map(chr, range(0x600)))))}]*").fullmatch
_LETTERS = range(0x20000, 0x2A6E0)  # those that the text has not stand for `<unk>` and `⁇` while punctuation is removed


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """How text becomes units. Two error rates compare only if their rules are the same.

    Raises ValueError for a name that is not offered, and for phones that would lose their case or their signs:
    X-SAMPA's `s` and `S` are two phones, and its `?` is one.
    """

    metric: str
    """cer: grapheme clusters; wer: words; per: phones. Words and phones stand between white space and stay whole."""
    spaces: str = "ignore"
    """cer alone: `count` makes a run of white space between words a unit; `ignore`, as WeNet does, leaves it out."""
    normalization: str = "nfc"
    """nfc, or nfc+lower: then also Unicode's default lower case, which knows no language."""
    punctuation: str = "keep"
    """`remove` takes out what is no letter, mark or number, but for what the language writes inside words: the
    apostrophe of l'eau (one shape for all its spellings), the dot of col·legi (`text.normalize.remove_punctuation`)."""

    def __post_init__(self) -> None:
        for value, allowed in (
            (self.metric, METRICS),
            (self.spaces, SPACES),
            (self.normalization, NORMALIZATIONS),
            (self.punctuation, PUNCTUATION),
        ):
            if value not in allowed:
                raise ValueError(f"expected one of {', '.join(allowed)}, got {value!r}")
        if self.metric == "per" and self.normalization != "nfc":
            raise ValueError("phones may differ in case alone; score them with the normalization nfc")
        if self.metric == "per" and self.punctuation != "keep":
            raise ValueError("phones may be written with punctuation; score them with punctuation kept")

    def signature(self, langs: Iterable[str] = ()) -> str:
        """The conditions in one line: `CER|unit:grapheme|spaces:ignored|case:kept|punct:kept|norm:nfc|lang:ky|v:…`."""
        parts = [self.metric.upper(), f"unit:{UNIT_NAMES[self.metric]}"]
        if self.metric == "cer":
            parts.append("spaces:ignored" if self.spaces == "ignore" else "spaces:counted")
        parts.append("case:kept" if self.normalization == "nfc" else "case:lower")
        parts.append("punct:kept" if self.punctuation == "keep" else "punct:removed")
        return "|".join([*parts, "norm:nfc", f"lang:{','.join(sorted(langs)) or 'unspecified'}", f"v:{_version()}"])


_USUAL = Rules(metric="cer")


@lru_cache(maxsize=1)
def _version() -> str:
    return version("wenet_hs")


def split_units(
    text: str,
    metric: str,
    *,
    spaces: str = "ignore",
    normalization: str = "nfc",
    punctuation: str = "keep",
    lang: str | None = None,
) -> list[str]:
    """The units of one transcript, in order; see `Rules` for the arguments.

    A grapheme cluster is Unicode's extended one (a letter with all its marks); a literal `<unk>` is one unit. `lang`
    says what stays where punctuation is removed; a code without rules of its own keeps apostrophes inside words.
    """
    return split_by(
        text, Rules(metric=metric, spaces=spaces, normalization=normalization, punctuation=punctuation), lang
    )


def split_by(text: str, rules: Rules, lang: str | None = None) -> list[str]:
    """The units of one transcript under `rules`."""
    return list(units_of(text, rules, lang))


def units_of(text: str, rules: Rules, lang: str | None = None) -> Sequence[str]:
    """Like `split_by`, but a `str` where every character is a unit: then there is nothing to split."""
    if rules == _USUAL and "<" not in text and _are_plain(text):
        return text.replace(" ", "")
    if rules.metric != "cer":
        return _normalized(text, rules, lang).split()
    words = [_clusters(word) for word in _clean_words(text, rules, lang)]
    if tuple not in map(type, words):
        return (" " if rules.spaces == "count" else "").join(words)  # type: ignore[arg-type]
    units: list[str] = []
    for word in words:
        if units and rules.spaces == "count":
            units.append(" ")
        units += word
    return units


def clean(text: str, rules: Rules, lang: str | None = None) -> str:
    """The transcript before it is split: NFC, case and punctuation as the rules say, one space between words."""
    return " ".join(_normalized(text, rules, lang).split())


def word_lengths(text: str, rules: Rules, lang: str | None = None) -> list[int]:
    """How many units each word has, spaces left out: where a line of letters may show its words again."""
    rules_of_word = Rules(metric=rules.metric)
    return [len(units_of(word, rules_of_word)) for word in clean(text, rules, lang).split()]


def _normalized(text: str, rules: Rules, lang: str | None) -> str:
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if rules.normalization == "nfc+lower":
        text = unicodedata.normalize("NFC", text.lower())  # "İ".lower() is not NFC before other marks
    return _without_punctuation(text, lang) if rules.punctuation == "remove" else text


def _clean_words(text: str, rules: Rules, lang: str | None) -> list[str]:
    """Words that NFC may still change: it never joins what white space parts, and `_clusters` remembers what it did."""
    if rules.normalization == "nfc" and rules.punctuation == "keep":
        return text.split()
    return _normalized(text, rules, lang).split()


@lru_cache(maxsize=2**15)
def _clusters(word: str) -> str | tuple[str, ...]:
    """The units of one word, a `str` where each is one character; a language's words come again and again."""
    word = unicodedata.normalize("NFC", word)
    if "<" not in word and _are_alone(word):
        return word
    return tuple(_GRAPHEMES.findall(word))


def _without_punctuation(text: str, lang: str | None) -> str:
    """`<unk>` stays as if it were a letter, and so does what `recognize` writes for it: both are errors."""
    free = (letter for letter in map(chr, _LETTERS) if letter not in text)
    shielded = [(unknown, next(free)) for unknown in (_UNKNOWN, UNKNOWN_SHOWN) if unknown in text]
    for unknown, letter in shielded:
        text = text.replace(unknown, letter)
    text = remove_punctuation(text, lang)
    for unknown, letter in shielded:
        text = text.replace(letter, unknown)
    return text
