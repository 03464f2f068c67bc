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
"""Letters of noise with a slash, such as `n/` or `b/n/`.

They stand at the beginning of a word, or after a Hangul letter, which a sign (`/`, `+`, `*`) may
follow. A digit or another letter after the slash shows that it is text: `b/2`, `n/a`.
"""


@dataclass(frozen=True)
class KoreanMarks:
    """Marks that were replaced or removed, and how often each occurred."""

    spellings: Counter[str] = field(default_factory=Counter)
    """Pairs of spellings as they were written; the second one is kept."""
    noises: Counter[str] = field(default_factory=Counter)
    """Letters for noise, which are removed."""


def read_korean_marks(text: str, lang: str, marks: KoreanMarks) -> str:
    """The text as it is spoken; counts in `marks` what is replaced or removed.

    A text is changed only if it has a slash, and its language is Korean or it has Hangul: in other
    languages `n/` may mean something else. Its words then have single spaces between them.

    Args:
        lang: code of the language; it may have a region (`ko-KR`), or be empty.
    """
    if "/" not in text:  # all marks have a slash
        return text
    is_korean = lang.partition("-")[0] in _KOREAN or _HANGUL.search(text) is not None
    if not is_korean:
        return text
    marks.spellings.update(match.group() for match in _SPELLINGS.finditer(text))
    text = _SPELLINGS.sub(r"\g<spoken>", text)
    for match in _NOISES.finditer(text):
        marks.noises.update(match.captures("noise"))
    return " ".join(_NOISES.sub(" ", text).split())
