# SPDX-License-Identifier: Apache-2.0
"""Words for espeak-ng to speak: frequent words of a language, or made-up words from the letters that a voice reads."""

import random
import unicodedata
from collections import defaultdict
from functools import cache

import regex  # type: ignore[import-untyped]

from wenet_hs.corpus.espeak import transcribe
from wenet_hs.corpus.espeak_ipa import VOWELS, split_label
from wenet_hs.errors import DataError

NUM_WORDS = 5000
"""Of a language: the most frequent ones, or made-up ones."""
_LISTS = {"bs": "sh", "hr": "sh", "sr": "sh"}
"""Languages whose list has another name. wordfreq (Speer 2022) has lists of some 40 languages."""
_WORD = regex.compile(r"[\p{L}\p{M}\u200c\u200d'’]{2,8}|\p{Lo}")  # short ones: two thirds of UCLA's have up to 5 phones
_MIN_SYLLABLES = 20
_MOST_PHONES = 6
"""Of a letter three times; a letter that is spelled by its name has more."""


def read_words(lang: str, voice: str, *, seed: int) -> tuple[list[str], bool]:
    """Up to `NUM_WORDS` words, and whether they are made up. Raises DataError if the package wordfreq is missing."""
    try:
        import wordfreq
    except ImportError as error:
        raise DataError("wordfreq: not installed; run `pip install 'wenet_hs[phones]'`") from error
    language = lang.partition("-")[0]
    name = _LISTS.get(language, language)
    if name not in wordfreq.available_languages():
        return make_up_words(lang, voice, seed=seed), True
    return [word for word in wordfreq.top_n_list(name, 2 * NUM_WORDS) if _WORD.fullmatch(word)][:NUM_WORDS], False


def make_up_words(lang: str, voice: str, *, seed: int) -> list[str]:
    """Words of one to three syllables, some with a final consonant; none if the voice reads too few syllables."""
    syllables = find_syllables(lang, voice)
    draw, words = random.Random(f"{seed}/{lang}"), dict[str, None]()
    for _ in range(NUM_WORDS if len(syllables) >= _MIN_SYLLABLES else 0):
        parts = [draw.choice(syllables) for _ in range(draw.choice((1, 1, 2, 2, 2, 3)))]
        coda = draw.choice(syllables)[0] if draw.random() < 0.4 else ""
        words["".join(parts) + coda] = None
    return list(words)


def find_syllables(lang: str, voice: str) -> list[str]:
    """Pairs of letters, or of a letter and a vowel sign, that the voice reads as consonant and vowel; one per sound.

    They are of one script, the one with the most such pairs.
    """
    best: list[str] = []
    for letters in _scripts():
        triples = transcribe([3 * letter for letter in letters], voice=voice)
        lengths = [len(_shape(label, lang)) for label in triples]
        read = [
            one for one, length in zip(letters, lengths, strict=True) if _is_mark(one) or 0 < length <= _MOST_PHONES
        ]
        pairs = [first + second for first in read if not _is_mark(first) for second in read]
        sounds: dict[str, str] = {}
        for pair, label in zip(pairs, transcribe([2 * pair for pair in pairs], voice=voice), strict=True):
            if _shape(label, lang) == "CVCV":
                sounds.setdefault(label, pair)
        best = max(best, [*sounds.values()], key=len)
    return best


@cache
def _scripts() -> list[list[str]]:
    """The lower-case letters and the marks of each script, by the first word of their Unicode names."""
    scripts = defaultdict[str, list[str]](list)
    for character in map(chr, (*range(0x61, 0x180), *range(0x370, 0x1100))):
        if unicodedata.category(character) in ("Ll", "Lo", "Mn", "Mc"):
            scripts[unicodedata.name(character).partition(" ")[0]].append(character)
    return list(scripts.values())


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "M"


def _shape(label: str, lang: str) -> str:
    """The label as C (consonant) and V (vowel) per phone; empty if it cannot be used."""
    try:
        return "".join("V" if phone[0] in VOWELS else "C" for phone in split_label(label, lang))
    except ValueError:
        return ""
