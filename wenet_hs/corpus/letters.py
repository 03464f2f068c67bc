# SPDX-License-Identifier: Apache-2.0
"""Letters of another script in a word, look-alike letters, and characters that are typed for each other."""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Literal

import regex  # type: ignore[import-untyped]

from wenet_hs.score.alignments import script_of, show_unit

Unit = Literal["char", "phone"]
LOOK_ALIKE, MIXED = "look-alike letters", "mixed scripts"

_LOOK_ALIKE = (
    "aаα eе oоο pрρ cсϲ xхχ yуγ iі jјϳ sѕ hһ kкκ vѵν ʋυ ɛєε əә æӕ ɣγ ɩι ɑα ŋη ɸφ ßβ ɜз "
    "AАΑ BВΒ CСϹ EЕΕ HНΗ IІΙ JЈ KКΚ MМΜ NΝ OОΟ PРΡ SЅ TТΤ XХΧ YУΥ ZΖ"
)
"""Groups of letters of Latin, Cyrillic and Greek."""
_VARIANTS = ("əǝ", "gɡ", "ː:", "ʼ'’")
_WORD = regex.compile(r"[\p{L}\p{M}]+")
_LETTER = regex.compile(r"(?V1)[\p{L}--[\p{Lm}\p{Script=Common}]]")
_EAST_ASIAN = {"Cjk", "Hiragana", "Katakana", "Hangul", "Bopomofo"}  # written together in one word
_IPA_GREEK = "βθχ"  # letters of the IPA, not of Greek, in phones
_MAIN_SHARE = 0.95


def name_unit(unit: str) -> str:
    """A unit with its code points."""
    points = " ".join(f"U+{ord(character):04X}" for character in unit)
    return points if (shown := show_unit(unit)) == points else f"{shown} {points}"


def main_script(counts: Mapping[str, int], unit: Unit) -> str:
    """The script of at least 95 % of the letters; empty if there is none."""
    scripts = Counter[str]()
    for character, count in counts.items():
        if script := _script(character, unit):
            scripts[script] += count
    script, count = scripts.most_common(1)[0] if scripts else ("", 0)
    return script if count >= _MAIN_SHARE * scripts.total() else ""


def wrong_letters(text: str, main: str, counts: Mapping[str, int], unit: Unit) -> Iterator[tuple[str, str]]:
    """Kind and details of each word with a wrong letter, and of each rarer variant of a character.

    Args:
        main, counts: main script and characters of all transcripts of the language.
    """
    for word in _WORD.findall(text):
        yield from _check_word(word, main, unit)
    for group in _VARIANTS:
        usual = max(group, key=lambda character: counts.get(character, 0))
        for character in set(group) & set(text) - {usual}:
            times = f"{counts[character]} times, {name_unit(usual)} {counts[usual]} times"
            yield LOOK_ALIKE, f"{name_unit(character)} {times}"


@lru_cache(maxsize=2**16)
def _check_word(word: str, main: str, unit: Unit) -> tuple[tuple[str, str], ...]:
    """Letters that are not of the main script, if any, or else not of the script of most letters of the word.

    A whole word in another script is wrong only if it could be written in look-alikes.
    """
    scripts = Counter(script for character in word if (script := _script(character, unit)))
    right = main or max(scripts, key=lambda script: scripts[script], default="")
    wrong = {one: _look_alike(one, right, unit) for one in word if _script(one, unit) not in ("", right)}
    if len(scripts) == 1 and not all(wrong.values()):
        return ()
    found: dict[str, list[str]] = {}
    for one, other in wrong.items():
        remark = f", {right} has {name_unit(other)}" if other else f" among {right} letters"
        details = f"{name_unit(one)} is {_script(one, unit)}{remark}"
        found.setdefault(LOOK_ALIKE if other else MIXED, []).append(details)
    return tuple((kind, f"{word}: {', '.join(details)}") for kind, details in found.items())


@lru_cache(maxsize=2**14)
def _script(character: str, unit: Unit) -> str:
    """The script of a letter; empty for other characters and for modifier letters, which belong to any script."""
    if unit == "phone" and character in _IPA_GREEK:
        return "Latin"
    script = script_of(character) if _LETTER.match(character) else ""
    return "East Asian" if script in _EAST_ASIAN else script


def _look_alike(character: str, script: str, unit: Unit) -> str:
    """A letter of the script that looks like the character without its marks; empty if there is none."""
    base = unicodedata.normalize("NFD", character)[0]
    groups = (group for group in _LOOK_ALIKE.split() if base in group)
    return next((other for group in groups for other in group if _script(other, unit) == script), "")
