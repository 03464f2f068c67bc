# SPDX-License-Identifier: Apache-2.0
"""NIST's forms with times: CTM (one word per line) and STM (one segment per line).

This is the only place with their patterns, and with the rule by which a file has one of them.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MatchLine = Callable[[str], re.Match[str] | None]
"""Gives the named parts of a line, or None for a line of another form."""

_SECONDS = r"(?:\d+\.?\d*|\.\d+)"
_RECORDING = r"(?P<recording>\S+)\s+(?P<channel>\d{1,2}|[A-Za-z])"
"""The columns with which both forms begin; a channel is a number or a letter."""
_CTM = re.compile(
    rf"{_RECORDING}\s+(?P<start>{_SECONDS})\s+(?P<duration>{_SECONDS})\s+(?P<text>\S+)"
    rf"(?:\s+(?:-?{_SECONDS}|NA)(?:\s+\S+){{0,2}})?"
)
"""After the word there may be its confidence, its type and its speaker."""
_STM = re.compile(
    rf"{_RECORDING}\s+(?P<speaker>\S+)\s+(?P<start>{_SECONDS})\s+(?P<end>{_SECONDS})"
    r"(?:\s+(?P<text>.*))?"
)
_COMPRESSED = (".gz", ".xz", ".bz2")
_NUM_TO_DECIDE = 200
"""How many first lines of a file are looked at to recognise its form."""


def match_ctm(line: str) -> re.Match[str] | None:
    """The parts of a line `recording channel start duration word`, by name; None for another line.

    The word is the part `text`.
    """
    return _CTM.fullmatch(line.strip())


def match_stm(line: str) -> re.Match[str] | None:
    """The parts of a line `recording channel speaker start end text`, by name.

    None for another line, and for a segment that ends before it begins. `text` may be None.
    """
    match = _STM.fullmatch(line.strip())
    if match is None or float(match["end"]) < float(match["start"]):
        return None
    return match


@dataclass(frozen=True)
class TimedForm:
    """A form of NIST whose lines have times."""

    name: str
    """As a message says it, with its article and its columns."""
    match: MatchLine
    """The parts of a line of this form; None for another line."""
    times: tuple[str, str]
    """The names of the two parts that are times."""
    no_number: str
    """The part that is rarely a number: a word or a speaker."""

    def is_form_of(self, path: Path, lines: Sequence[str], *, have_keys: bool) -> bool:
        """Whether a file has this form: most of its first lines match it, and they are not text.

        Text may have numbers at the places of the times, such as `utt1 1 3 5 two`. So one of these
        rules must hold too: `_have_clear_times`, `_is_named_so`, or, if `have_keys`,
        `_cannot_be_text`. Most lines are more than half of them.

        Args:
            path: the name of the file.
            lines: without comments and empty lines.
            have_keys: whether each line begins with a key of its own if the file is text.
        """
        first_lines = lines[:_NUM_TO_DECIDE]
        num_lines = len(first_lines)
        matches = [match for match in map(self.match, first_lines) if match is not None]
        if len(matches) <= num_lines / 2:
            return False
        if self._have_clear_times(matches, num_lines) or _is_named_so(path, matches):
            return True
        return have_keys and self._cannot_be_text(matches, num_lines)

    def _have_clear_times(self, matches: Sequence[re.Match[str]], num_lines: int) -> bool:
        """Whether times have decimals: both times of most lines, or at least one of each line.

        `num_lines` is the number of all lines, with those that do not match.
        """
        decimals_per_line = [self._count_decimals(match) for match in matches]
        if decimals_per_line.count(2) > num_lines / 2:
            return True
        return len(matches) == num_lines and 0 not in decimals_per_line

    def _count_decimals(self, match: re.Match[str]) -> int:
        """How many of the two times of a line have decimals."""
        return sum("." in match[name] for name in self.times)

    def _cannot_be_text(self, matches: Sequence[re.Match[str]], num_lines: int) -> bool:
        """Whether the lines cannot be text in which each line begins with a key of its own.

        One of two signs is enough:
        - There are at most half as many different first words as lines, so they are no keys.
        - There are two or more lines. All of them match and have the same channel, and none has a
          number where this form has a word or a speaker.

        `num_lines` is the number of all lines, with those that do not match.
        """
        if len(_recordings(matches)) <= num_lines / 2:
            return True
        has_other_lines = len(matches) < num_lines
        if has_other_lines or num_lines < 2:
            return False
        channels = {match["channel"] for match in matches}
        has_number_for_word = any(match[self.no_number].isdecimal() for match in matches)
        return len(channels) == 1 and not has_number_for_word


def _is_named_so(path: Path, matches: Sequence[re.Match[str]]) -> bool:
    """Whether a file is named as a form of NIST (.ctm, .stm), or as the only recording in it."""
    return suffix_of(path) in (".ctm", ".stm") or _recordings(matches) == {path.stem}


def _recordings(matches: Sequence[re.Match[str]]) -> set[str]:
    """The recordings of the lines: their first words."""
    return {match["recording"] for match in matches}


CTM = TimedForm(
    name="a ctm of NIST (recording channel start duration word)",
    match=match_ctm,
    times=("start", "duration"),
    no_number="text",
)
STM = TimedForm(
    name="an stm of NIST (recording channel speaker start end text)",
    match=match_stm,
    times=("start", "end"),
    no_number="speaker",
)


def suffix_of(path: Path) -> str:
    """The suffix of a file in small letters; of `x.stm.gz` it is `.stm`."""
    if path.suffix.lower() in _COMPRESSED:
        path = path.with_suffix("")
    return path.suffix.lower()
