# SPDX-License-Identifier: Apache-2.0
"""Letters of another script in a word, characters that are typed for each other, and notes in
transcripts.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Literal

import regex  # type: ignore[import-untyped]

from wenet_hs.text.units import NO_SPACES, script_of, show_unit
from wenet_hs.tree.errors import list_names

Unit = Literal["char", "phone"]
TAG = regex.compile(r"\[[^\[\]]*\]|<[^<>]*>|\([^()]*\)|\{[^{}]*\}")
DIGITS = regex.compile(r"\p{Nd}+")

_LOOK_ALIKE = (
    "aаα eе oоο pрρ cсϲ xхχ yуγ iі jјϳ sѕ hһ kкκ vѵν ʋυ ɛєε əә æӕ ɣγ ɩι ɑα ŋη ɸφ ßβ ɜз "
    "AАΑ BВΒ CСϹ EЕΕ HНΗ IІΙ JЈ KКΚ MМΜ NΝ OОΟ PРΡ SЅ TТΤ XХΧ YУΥ ZΖ"
)
"""Groups of letters of Latin, Cyrillic and Greek."""
_VARIANTS = ("əǝ", "gɡ", "ː:", "ʼ'’", "ʻ'‘", "يی", "كک")
_TOGETHER = rf"{NO_SPACES}\p{{Hang}}"  # foreign words are parts of the same word
_WORD = regex.compile(
    rf"(?V1)[{_TOGETHER}][{_TOGETHER}\p{{Lm}}\p{{M}}]*|[[\p{{L}}\p{{M}}]--[{_TOGETHER}]]+"
)
_LETTER = regex.compile(r"(?V1)[\p{L}--[\p{Lm}\p{Script=Common}]]")
_EAST_ASIAN = {"Cjk", "Hiragana", "Katakana", "Hangul", "Bopomofo"}  # written together in one word
_SKIPPED = {
    "char": TAG,
    "phone": regex.compile(rf"{TAG.pattern}|[βθχ]"),
}  # letters of the IPA, not of Greek
_MAIN_SHARE, _SCRIPT_SHARE = 0.8, 0.01
_USUAL_SHARE, _USUAL_COUNT = 0.05, 3
"""Share and number of the transcripts from which on a letter belongs to the language."""


def name_unit(unit: str) -> str:
    """A unit with its code points."""
    points = " ".join(f"U+{ord(character):04X}" for character in unit)
    return points if (shown := show_unit(unit)) == points else f"{shown} {points}"


def check_letters(texts: Mapping[str, str], unit: Unit) -> tuple[dict[str, list[str]], str]:
    """Letters of another script in a word, and rarer variants of a character, in the transcripts of
    one language.

    Returns: key → what is wrong; and a remark on all: several scripts, letters too frequent to be
        wrong. It may be "".
    """
    texts = {key: _SKIPPED[unit].sub(" ", text) for key, text in texts.items()}
    counts = Counter(character for text in texts.values() for character in text)
    scripts = Counter(script for character in counts.elements() if (script := _script(character)))
    shares = {script: count / scripts.total() for script, count in scripts.most_common()}
    main = next((script for script, share in shares.items() if share >= _MAIN_SHARE), "")
    found = {key: dict(_wrong_letters(text, main, counts)) for key, text in texts.items()}
    num_texts = Counter(letter for of_text in found.values() for letter in of_text)
    usual = {
        one: num
        for one, num in num_texts.items()
        if num >= max(_USUAL_COUNT, _USUAL_SHARE * len(texts))
    }
    remarks = [
        f"{share:.0%} {script}" for script, share in shares.items() if share >= _SCRIPT_SHARE
    ]
    remarks = [f"letters of several scripts: {', '.join(remarks[:5])}"] if len(remarks) > 1 else []
    if usual:
        of_usual = [f"{name_unit(one)} in {num / len(texts):.0%}" for one, num in usual.items()]
        remarks.append(
            f"{list_names(of_usual)} of the transcripts, which is right if the language is written so"
        )
    wrong = {
        key: [details for one, details in of_text.items() if one not in usual]
        for key, of_text in found.items()
    }
    return {key: of_text for key, of_text in wrong.items() if of_text}, "; ".join(remarks)


def _wrong_letters(text: str, main: str, counts: Counter[str]) -> Iterator[tuple[str, str]]:
    """Each wrong letter, without its marks, and what is wrong with it."""
    for word in _WORD.findall(text):
        yield from _check_word(word, main)
    for group in _VARIANTS:
        usual = max(group, key=lambda character: counts[character])
        for one in set(group) & set(text) - {usual}:
            yield (
                one,
                f"{name_unit(one)} {counts[one]} times, {name_unit(usual)} {counts[usual]} times",
            )


@lru_cache(maxsize=2**16)
def _check_word(word: str, main: str) -> list[tuple[str, str]]:
    """Letters that are not of the main script, if any, or else not of the script of most letters of
    the word.

    A whole word in another script is wrong only if it could be written in look-alikes.
    """
    scripts = Counter(script for letter in word if (script := _script(letter)))
    right = main or max(scripts, key=lambda script: scripts[script], default="")
    wrong = {
        letter: _look_alike(letter, right) for letter in word if _script(letter) not in ("", right)
    }
    if len(scripts) == 1 and not all(wrong.values()):
        return []
    return [
        (
            _base(one),
            f"{word}: {name_unit(one)} is {_script(one)}"
            + (f", {right} has {name_unit(other)}" if other else ""),
        )
        for one, other in wrong.items()
    ]


@lru_cache(maxsize=2**14)
def _script(character: str) -> str:
    """The script of a letter; empty for other characters and for modifier letters, which belong to
    any script.
    """
    script = script_of(character) if _LETTER.match(character) else ""
    return "East Asian" if script in _EAST_ASIAN else script


def _base(character: str) -> str:
    return unicodedata.normalize("NFD", character)[0]


def _look_alike(character: str, script: str) -> str:
    """A letter of the script that looks like the character without its marks; empty if there is
    none.
    """
    groups = (group for group in _LOOK_ALIKE.split() if _base(character) in group)
    return next((other for group in groups for other in group if _script(other) == script), "")
