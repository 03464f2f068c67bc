# SPDX-License-Identifier: Apache-2.0
"""Wrong letters in transcripts: of another script in a word, or typed for similar characters.

`check_letters` compares all transcripts of a language. Its module also has the patterns of notes in
brackets (`TAG`) and of digits.
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
"""What transcripts contain: text, or phones with spaces between them."""
TAG = regex.compile(r"\[[^\[\]]*\]|<[^<>]*>|\([^()]*\)|\{[^{}]*\}")
"""A note in brackets of any form, with its brackets."""
DIGITS = regex.compile(r"\p{Nd}+")

_LOOK_ALIKE = (
    "aаα eе oоο pрρ cсϲ xхχ yуγ iі jјϳ sѕ hһ kкκ vѵν ʋυ ɛєε əә æӕ ɣγ ɩι ɑα ŋη ɸφ ßβ ɜз "
    "AАΑ BВΒ CСϹ EЕΕ HНΗ IІΙ JЈ KКΚ MМΜ NΝ OОΟ PРΡ SЅ TТΤ XХΧ YУΥ ZΖ"
)
"""Groups of letters of Latin, Cyrillic and Greek that look alike, with spaces between the groups."""
_VARIANTS = ("əǝ", "gɡ", "ː:", "ʼ'’", "ʻ'‘", "يی", "كک")
"""Groups of similar characters. A language has one of a group; the others are typed by mistake."""
_TOGETHER = rf"{NO_SPACES}\p{{Hang}}"
"""Scripts in which words of other scripts may follow without a space."""
_WORD = regex.compile(
    rf"(?V1)[{_TOGETHER}][{_TOGETHER}\p{{Lm}}\p{{M}}]*|[[\p{{L}}\p{{M}}]--[{_TOGETHER}]]+"
)
"""A series of letters of the scripts in `_TOGETHER`, or of letters of other scripts."""
_LETTER = regex.compile(r"(?V1)[\p{L}--[\p{Lm}\p{Script=Common}]]")
"""A letter that belongs to one script: no modifier letter, and no letter of several scripts."""
_EAST_ASIAN = {"Cjk", "Hiragana", "Katakana", "Hangul", "Bopomofo"}
"""Scripts that are written together in one word, so they count as one."""
_SKIPPED = {"char": TAG, "phone": regex.compile(rf"{TAG.pattern}|[βθχ]")}
"""Kind of transcript → what is not checked. In phones β, θ and χ are letters of the IPA, not Greek."""
_MAIN_SHARE = 0.8
"""Share of all letters from which on a script is the one of the language."""
_SCRIPT_SHARE = 0.01
"""Share of all letters from which on a script is named in the remark."""
_USUAL_SHARE = 0.05
_USUAL_COUNT = 3
"""Share and number of the transcripts from which on a letter belongs to the language."""


def name_unit(unit: str) -> str:
    """A unit with its code points; only these if it cannot be shown."""
    points = " ".join(f"U+{ord(character):04X}" for character in unit)
    shown = show_unit(unit)
    return points if shown == points else f"{shown} {points}"


def check_letters(texts: Mapping[str, str], unit: Unit) -> tuple[dict[str, list[str]], str]:
    """The wrong letters in the transcripts of one language, and a remark on all transcripts.

    Wrong are letters of another script in a word, and the rarer variants of a character. A letter
    that is in many transcripts belongs to the language, so it is not wrong.

    Args:
        texts: key of an utterance → its transcript.
    Returns: key of each utterance with wrong letters → what is wrong, one text per letter; and the
        remark, which names several scripts and letters that are too frequent to be wrong. The
        remark is "" if there are none.
    """
    # Notes in brackets are not checked, and of phones the Greek letters of the IPA neither.
    texts = {key: _SKIPPED[unit].sub(" ", text) for key, text in texts.items()}
    counts = Counter[str]()
    for text in texts.values():
        counts.update(text)
    script_shares = _measure_scripts(counts)
    main_script = max(script_shares, key=lambda script: script_shares[script], default="")
    if script_shares.get(main_script, 0.0) < _MAIN_SHARE:
        main_script = ""  # no script has most of the letters
    candidates = {
        key: dict(_find_wrong_letters(text, main_script, counts)) for key, text in texts.items()
    }
    usual = _find_usual_letters(candidates)
    wrong = dict[str, list[str]]()
    for key, fault_of_letter in candidates.items():
        faults = [fault for letter, fault in fault_of_letter.items() if letter not in usual]
        if faults:
            wrong[key] = faults
    return wrong, _describe_letters(script_shares, usual, num_texts=len(texts))


def _measure_scripts(counts: Mapping[str, int]) -> dict[str, float]:
    """The share of each script in all letters, the greatest first.

    `counts`: how often each character is in the transcripts.
    """
    num_letters = Counter[str]()
    for character, count in counts.items():
        script = _find_script(character)
        if script:
            num_letters[script] += count
    total = num_letters.total()
    return {script: count / total for script, count in num_letters.most_common()}


def _find_usual_letters(candidates: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
    """Letters in so many transcripts that they belong to the language → number of transcripts.

    `candidates`: key of each transcript → its letters that may be wrong, with what is wrong.
    """
    num_texts = Counter[str]()
    for fault_of_letter in candidates.values():
        num_texts.update(fault_of_letter.keys())
    min_texts = max(_USUAL_COUNT, _USUAL_SHARE * len(candidates))
    return {letter: num for letter, num in num_texts.items() if num >= min_texts}


def _describe_letters(
    script_shares: Mapping[str, float], usual: Mapping[str, int], *, num_texts: int
) -> str:
    """A remark on all transcripts: several scripts, and letters too frequent to be wrong.

    It is "" if there is nothing to state.

    Args:
        script_shares: script → its share in all letters.
        usual: frequent letters → number of the transcripts that have them.
        num_texts: number of all transcripts.
    """
    remarks = list[str]()
    scripts = [
        f"{share:.0%} {script}" for script, share in script_shares.items() if share >= _SCRIPT_SHARE
    ]
    if len(scripts) > 1:
        remarks.append(f"letters of several scripts: {', '.join(scripts[:5])}")
    if usual:
        letters = [f"{name_unit(letter)} in {num / num_texts:.0%}" for letter, num in usual.items()]
        hint = "which is right if the language is written so"
        remarks.append(f"{list_names(letters)} of the transcripts, {hint}")
    return "; ".join(remarks)


def _find_wrong_letters(
    text: str, main_script: str, counts: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """Each letter of a text that may be wrong, without its marks, and what is wrong with it.

    These are letters of another script, and variants of a character that are not the most frequent
    one in all transcripts.

    Args:
        main_script: of the language; "": it has none.
        counts: how often each character is in all transcripts of the language.
    """
    for word in _WORD.findall(text):
        yield from _check_word(word, main_script)
    for group in _VARIANTS:
        usual = max(group, key=lambda character: counts[character])
        rarer_variants = set(group) - {usual}
        for variant in rarer_variants & set(text):
            num_variant = f"{name_unit(variant)} {counts[variant]} times"
            yield variant, f"{num_variant}, {name_unit(usual)} {counts[usual]} times"


@lru_cache(maxsize=2**16)
def _check_word(word: str, main_script: str) -> list[tuple[str, str]]:
    """The wrong letters of a word, and what is wrong with each.

    A letter is given without its marks: `e` for `é`. Wrong are letters of another script than the
    main script of the language. Without a main script (""), the script of most letters of the word
    counts instead.

    A word whose letters are all of one other script may be a foreign word. Then nothing is wrong,
    unless each letter looks like one of the main script: so it was typed by mistake.
    """
    scripts = Counter(filter(None, map(_find_script, word)))
    right_script = main_script
    if not right_script:
        right_script = max(scripts, key=lambda script: scripts[script], default="")
    look_alike_of = {  # letter of another script → one of the right script that looks alike, or ""
        letter: _find_look_alike(letter, right_script)
        for letter in word
        if _find_script(letter) not in ("", right_script)
    }
    if not look_alike_of:  # all letters are of the right script
        return []
    is_in_one_script = len(scripts) == 1
    have_all_look_alikes = all(look_alike_of.values())
    if is_in_one_script and not have_all_look_alikes:  # a foreign word
        return []
    wrong = list[tuple[str, str]]()
    for letter, look_alike in look_alike_of.items():
        details = f"{word}: {name_unit(letter)} is {_find_script(letter)}"
        if look_alike:
            details += f", {right_script} has {name_unit(look_alike)}"
        wrong.append((_remove_marks(letter), details))
    return wrong


@lru_cache(maxsize=2**14)
def _find_script(character: str) -> str:
    """The script of a letter; empty for a character that does not belong to one script.

    Such are signs, digits, and modifier letters. The scripts of East Asia count as one.
    """
    script = script_of(character) if _LETTER.match(character) else ""
    return "East Asian" if script in _EAST_ASIAN else script


def _remove_marks(character: str) -> str:
    """The character without its marks: `e` of `é`."""
    return unicodedata.normalize("NFD", character)[0]


def _find_look_alike(character: str, script: str) -> str:
    """A letter of the script that looks like the character without its marks; empty: there is none."""
    base = _remove_marks(character)
    for group in _LOOK_ALIKE.split():
        if base not in group:
            continue
        for other in group:
            if _find_script(other) == script:
                return other
    return ""
