# SPDX-License-Identifier: Apache-2.0
"""Reader of n-best hypotheses: `hyps.jsonl`, which `recognize` writes for each decoding mode."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from wenet_hs.base.files import read_lines


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A hypothesis as text."""

    text: str
    score: float
    """Natural logarithm, comparable within one mode only."""
    units: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class NBestList:
    """The hypotheses of an utterance, best first."""

    key: str
    lang: str | None = None
    confidence: float | None = None
    """That of the best hypothesis; None if it has no units, or if CTC cannot align it."""
    nbest: Sequence[Alternative] = ()


_LINE = TypeAdapter(NBestList)
"""Reads a line of the file."""


def read_hypotheses(path: Path) -> Iterator[NBestList | None]:
    """The hypotheses in each line of a file.

    None for a line that does not contain them, such as an incomplete last line. Raises DataError if
    the file is missing, or is no text.
    """
    for line in read_lines(path):
        try:
            yield _LINE.validate_json(line)
        except ValidationError:
            yield None
