# SPDX-License-Identifier: Apache-2.0
"""NIST's forms with times: CTM (one word per line) and STM (one segment per line).

This is the only place with their patterns, and with the rule by which a file has one of them.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MatchLine = Callable[[str], re.Match[str] | None]

_SECONDS = r"(?:\d+\.?\d*|\.\d+)"
_RECORDING = r"(?P<recording>\S+)\s+(?P<channel>\d{1,2}|[A-Za-z])"
_CTM = re.compile(
    rf"{_RECORDING}\s+(?P<start>{_SECONDS})\s+(?P<duration>{_SECONDS})\s+(?P<text>\S+)"
    rf"(?:\s+(?:-?{_SECONDS}|NA)(?:\s+\S+){{0,2}})?"
)
"""A word may be followed by its confidence, its type and its speaker."""
_STM = re.compile(
    rf"{_RECORDING}\s+(?P<speaker>\S+)\s+(?P<start>{_SECONDS})\s+(?P<end>{_SECONDS})"
    r"(?:\s+(?P<text>.*))?"
)
_COMPRESSED = (".gz", ".xz", ".bz2")
_NUM_TO_DECIDE = 200
"""The first lines of a file, by which its form is found."""


def match_ctm(line: str) -> re.Match[str] | None:
    """The parts of a line `recording channel start duration word`."""
    return _CTM.fullmatch(line.strip())


def match_stm(line: str) -> re.Match[str] | None:
    """The parts of a line `recording channel speaker start end text`.

    None also for a segment that ends before it begins.
    """
    match = _STM.fullmatch(line.strip())
    if match is None or float(match["end"]) < float(match["start"]):
        return None
    return match


@dataclass(frozen=True)
class TimedForm:
    """A form of NIST whose lines have times."""

    name: str
    """With its article and its columns, as a message says it."""
    match: MatchLine
    times: tuple[str, str]
    """The names of the two parts that are times."""
    no_number: str
    """The part that is rarely a number: a word or a speaker."""

    def is_form_of(self, path: Path, lines: Sequence[str], *, have_keys: bool) -> bool:
        """Whether most of the first lines of a file have this form.

        Text may have numbers at the places of times, such as `utt1 1 3 5 two`. Times with
        decimals are clear: both of most lines, or one of each line. Whole seconds count if the
        file is named as one of NIST's, or by the recording. They also count where lines of text
        would have keys, if the lines cannot be such text: several begin with the same word, or
        all look like this form.

        Args:
            path: the name of the file.
            lines: without comments and empty lines.
            have_keys: whether each line of text would begin with a key of its own.
        """
        first_lines = lines[:_NUM_TO_DECIDE]
        matches = [match for line in first_lines if (match := self.match(line))]
        half = len(first_lines) / 2
        if len(matches) <= half:
            return False
        recordings = {match["recording"] for match in matches}
        are_all_timed = len(matches) == len(first_lines)
        nums_decimals = [self._count_decimals(match) for match in matches]
        most_have_two = nums_decimals.count(2) > half
        each_has_one = are_all_timed and min(nums_decimals) > 0
        if most_have_two or each_has_one or _is_named(path, recordings):
            return True
        if not have_keys:
            return False
        has_few_recordings = len(recordings) <= half
        return has_few_recordings or (are_all_timed and self._are_unlike_text(matches))

    def _count_decimals(self, match: re.Match[str]) -> int:
        """How many of the two times of a line have decimals."""
        return sum("." in match[name] for name in self.times)

    def _are_unlike_text(self, matches: Sequence[re.Match[str]]) -> bool:
        """Whether several lines have the same channel, and none begins with numbers only."""
        channels = {match["channel"] for match in matches}
        has_numbers_only = any(match[self.no_number].isdecimal() for match in matches)
        return len(matches) > 1 and len(channels) == 1 and not has_numbers_only


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
    suffix = path.suffix.lower()
    return path.with_suffix("").suffix.lower() if suffix in _COMPRESSED else suffix


def _is_named(path: Path, recordings: set[str]) -> bool:
    """Whether a file is named as a form of NIST, or as the one recording in it."""
    return suffix_of(path) in (".ctm", ".stm") or recordings == {path.stem}
