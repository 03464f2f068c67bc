# SPDX-License-Identifier: Apache-2.0
"""The edit distance as in textbooks; random pairs of texts in twenty scripts, and their counts by
it and by jiwer.
"""

import math
import random
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jiwer

from wenet_hs.score import Rules, count_errors, score, split_units


def edit_distance(
    ref: Sequence[object],
    hyp: Sequence[object],
    cost: Callable[[Any, Any], float] = lambda a, b: float(a != b),
) -> float:
    """The recursion, one row at a time; `cost` is the cost of a substitution, deletions and
    insertions cost 1.
    """
    row = [float(j) for j in range(len(hyp) + 1)]
    for i, unit in enumerate(ref, start=1):
        above = row
        row = [float(i)]
        for j, other in enumerate(hyp, start=1):
            deletion = above[j] + 1
            insertion = row[j - 1] + 1
            substitution = above[j - 1] + cost(unit, other)
            row.append(min(deletion, insertion, substitution))
    return row[-1]


SCRIPTS = {
    "Latin": (0x41, 0x24F), "Greek": (0x370, 0x3FF), "Cyrillic": (0x400, 0x52F), "Armenian": (0x531, 0x587),
    "Hebrew": (0x591, 0x5EA), "Arabic": (0x610, 0x6D3), "Devanagari": (0x900, 0x97F), "Bengali": (0x980, 0x9FE),
    "Gurmukhi": (0xA01, 0xA75), "Gujarati": (0xA81, 0xAF1), "Tamil": (0xB82, 0xBD7), "Telugu": (0xC00, 0xC6F),
    "Malayalam": (0xD00, 0xD7F), "Thai": (0xE01, 0xE4E), "Georgian": (0x10A0, 0x10FF), "Hangul": (0x1100, 0x11FF),
    "Ethiopic": (0x1200, 0x135A), "Khmer": (0x1780, 0x17DD), "Kana": (0x3041, 0x30FF), "Han": (0x4E00, 0x4FFF),
}  # fmt: skip


@cache
def alphabet(script: str) -> list[str]:
    """Letters and marks of a range of Unicode."""
    first, last = SCRIPTS[script]
    characters = map(chr, range(first, last + 1))
    return [character for character in characters if unicodedata.category(character)[0] in "LM"]


def random_pair(script: str, generator: random.Random) -> tuple[str, str]:
    """A text of one to six words, and the same text with errors; the first may be in NFC or NFD."""
    letters = alphabet(script)
    words = list[str]()
    for _ in range(generator.randint(1, 6)):
        num_letters = generator.randint(1, 7)
        words.append("".join(generator.choices(letters, k=num_letters)))
    text = " ".join(words)

    error_rate = generator.choice((0, 0.1, 0.3, 0.9))
    with_errors = ""
    for letter in text:
        is_wrong = generator.random() < error_rate
        with_errors += random_error(letter, letters, generator) if is_wrong else letter

    form = generator.choice(("NFC", "NFD"))
    return unicodedata.normalize(form, text), with_errors


def random_error(letter: str, letters: Sequence[str], generator: random.Random) -> str:
    """What stands for a letter: nothing, a space, another letter, or one more letter after it."""
    substituted = generator.choice(letters)
    inserted = generator.choice(letters)
    return generator.choice(("", " ", substituted, letter + inserted))


def check_pairs(num_pairs: int) -> None:
    """jiwer counts with the same library, so it checks the units; the textbook checks the library."""
    generator = random.Random(num_pairs)
    for index in range(num_pairs):
        script = list(SCRIPTS)[index % len(SCRIPTS)]
        ref, hyp = random_pair(script, generator)
        for metric in ("cer", "wer"):
            rules = Rules(metric=metric)
            ref_units = split_units(ref, rules)
            hyp_units = split_units(hyp, rules)

            counts = count_errors(ref_units, hyp_units)
            report = score({"k": ref}, {"k": hyp}, rules=rules, num_resamples=0)
            theirs = jiwer.process_words(" ".join(ref_units), " ".join(hyp_units))

            assert counts.errors == theirs.substitutions + theirs.deletions + theirs.insertions
            assert counts.num_units == theirs.hits + theirs.substitutions + theirs.deletions
            assert counts.rate is not None
            assert math.isclose(counts.rate, theirs.wer)
            assert counts.errors == edit_distance(ref_units, hyp_units)
            assert report.micro.counts == counts
