# SPDX-License-Identifier: Apache-2.0
"""Transcripts of AI Hub in Korea (KsponSpeech and others): two spellings of a word, and letters for
noise.

`b/ (70%)/(칠십 퍼센트) n/` is the spelling with digits, and as it is spoken. The letters stand for
breath (b), laughter (l), noise (n), other speech (o) and a word that was not understood (u). Rules:
Bang et al. 2020, KsponSpeech.
"""

from collections import Counter
from dataclasses import dataclass, field

import regex  # type: ignore[import-untyped]

_KOREAN = ("ko", "kor")
_HANGUL = regex.compile(r"\p{Hangul}")
_SPELLINGS = regex.compile(r"\(([^()]*)\) ?/ ?\((?P<spoken>[^()]*)\)")
_NOISES = regex.compile(
    r"(?:(?<!\S)|(?<=\p{Hangul}[/+*]?))(?:(?P<noise>[blnou]/)(?![/\p{N}]|\p{Latin}(?!/)))+"
)
"""At the beginning of a word or after one; several may stand together."""


@dataclass(frozen=True)
class KoreanMarks:
    """What was replaced or removed, with its frequency."""

    spellings: Counter[str] = field(default_factory=Counter)
    """Two spellings as they were written; the second one is kept."""
    noises: Counter[str] = field(default_factory=Counter)
    """Letters for noise, which are removed."""


def read_korean_marks(text: str, lang: str, marks: KoreanMarks) -> str:
    """The text as it is spoken.

    Other languages are not changed: `n/` may mean something else there.

    A text without a language is Korean if it has Hangul. Adds what was found to `marks`.
    """
    code = lang.partition("-")[0]
    if "/" not in text or not (code in _KOREAN or _HANGUL.search(text)):
        return text
    marks.spellings.update(match.group() for match in _SPELLINGS.finditer(text))
    text = _SPELLINGS.sub(r"\g<spoken>", text)
    for match in _NOISES.finditer(text):
        marks.noises.update(match.captures("noise"))
    return " ".join(_NOISES.sub(" ", text).split())
