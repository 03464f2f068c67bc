# SPDX-License-Identifier: Apache-2.0
"""Marks in transcripts of AI Hub in Korea (KsponSpeech and others): spellings and noises.

In `b/ (70%)/(칠십 퍼센트) n/` two spellings of a word stand beside each other: with digits, and as
it is spoken. The letters stand for breath (b), laughter (l), noise (n), other speech (o) and a word
that was not understood (u). Rules: Bang et al. 2020, KsponSpeech.
"""

from collections import Counter
from dataclasses import dataclass, field

import regex  # type: ignore[import-untyped]

_KOREAN = ("ko", "kor")
"""Codes of the language."""
_HANGUL = regex.compile(r"\p{Hangul}")
_SPELLINGS = regex.compile(r"\(([^()]*)\) ?/ ?\((?P<spoken>[^()]*)\)")
"""`(70%)/(칠십 퍼센트)`: the written and the spoken form."""
_NOISES = regex.compile(
    r"(?:(?<!\S)|(?<=\p{Hangul}[/+*]?))(?:(?P<noise>[blnou]/)(?![/\p{N}]|\p{Latin}(?!/)))+"
)
"""`n/` at the beginning of a word, or after a Hangul letter or its sign; several may stand together.

A letter with more behind the slash is none: `b/2` and `n/a` are text.
"""


@dataclass(frozen=True)
class KoreanMarks:
    """What was replaced or removed, with its frequency."""

    spellings: Counter[str] = field(default_factory=Counter)
    """Two spellings as they were written; the second one is kept."""
    noises: Counter[str] = field(default_factory=Counter)
    """Letters for noise, which are removed."""


def read_korean_marks(text: str, lang: str, marks: KoreanMarks) -> str:
    """The text as it is spoken; counts in `marks` what is replaced or removed.

    A text of another language without Hangul is not changed: `n/` may mean something else there.

    Args:
        lang: code of the language; it may have a region (`ko-KR`), or be empty.
    """
    code = lang.partition("-")[0]
    # All marks have a slash.
    if "/" not in text or not (code in _KOREAN or _HANGUL.search(text)):
        return text
    marks.spellings.update(match.group() for match in _SPELLINGS.finditer(text))
    text = _SPELLINGS.sub(r"\g<spoken>", text)
    for match in _NOISES.finditer(text):
        marks.noises.update(match.captures("noise"))
    return " ".join(_NOISES.sub(" ", text).split())
