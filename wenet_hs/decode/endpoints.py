# SPDX-License-Identifier: Apache-2.0
"""Endpoints of a stream: when a segment ends, and which of its frames begin the next one.

A frame is that of the encoder. It is silent where blank is the best unit of CTC.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

_SEARCHED_SHARE = 0.25
"""A segment of the maximum length is searched for a pause in this last part of it."""


@dataclass(frozen=True, kw_only=True)
class EndpointRules:
    """When a segment of a stream ends: with the chunk in which a rule is met.

    Silence is where blank is the best unit of CTC. The next segment begins within it.
    """

    silence_s: float = 1.0
    """This much silence after speech."""
    max_segment_s: float = 20.0
    """A segment of this length ends, in the longest silence of its last quarter.

    math.inf: never.
    """
    no_speech_s: float = 5.0
    """A segment of only silence that is as long as this is dropped, except its end, which begins
    the next one.
    """

    def __post_init__(self) -> None:
        """Raises ValueError for a time that is not above 0."""
        for name, seconds in vars(self).items():
            if not seconds > 0:
                raise ValueError(f"{name} {seconds:g}: must be above 0 s")


@dataclass(frozen=True)
class Endpoint:
    """The end of a segment."""

    num_frames: int
    """Frames that belong to the segment. Those after them begin the next one."""
    is_dropped: bool = False
    """Whether these frames are only silence, which has no text."""


class EndpointDetector:
    """Finds the end of a segment from the best CTC unit of each of its frames."""

    def __init__(self, rules: EndpointRules, *, frame_s: float, blank: int) -> None:
        self._blank = blank
        self._min_silence = rules.silence_s / frame_s
        self._max_length = rules.max_segment_s / frame_s
        self._max_no_speech = rules.no_speech_s / frame_s

    def find(self, units: Sequence[int]) -> Endpoint | None:
        """The end of a segment whose frames have these best units; None: it goes on.

        A segment ends after a silence of `silence_s`, or when it is as long as `max_segment_s`. One
        of only silence ends after `no_speech_s`, and is dropped.

        A silence is divided. A sound may begin before the frame in which CTC writes its unit, and
        end after it, so the silence on both sides of a unit belongs to its segment. A single silent
        frame begins the next segment, so no segment ends with it alone.
        """
        num_silent = self._count_silent_end(units)
        end_in_silence = len(units) - self._count_kept(num_silent)
        is_too_long = len(units) >= self._max_length
        if num_silent == len(units):
            is_dropped = num_silent >= self._max_no_speech
            has_frames = end_in_silence > 0
            if has_frames and (is_dropped or is_too_long):
                return Endpoint(end_in_silence, is_dropped=is_dropped)
            return None
        if num_silent >= self._min_silence:
            return Endpoint(end_in_silence)
        if is_too_long:
            return Endpoint(self._find_pause(units))
        return None

    def _count_silent_end(self, units: Sequence[int]) -> int:
        """How many frames at the end are silent."""
        count = 0
        while count < len(units) and units[-1 - count] == self._blank:
            count += 1
        return count

    def _count_kept(self, num_silent: int) -> int:
        """How many frames at the end of a silence begin the next segment.

        They are half of it, rounded up. Of a silence that is longer than `silence_s`, they are half
        of `silence_s`. There is at least one (unless there is no silence), because the encoder goes
        on from it.
        """
        longest_divided = max(self._min_silence, 1)
        num_divided = int(min(num_silent, longest_divided))
        return (num_divided + 1) // 2

    def _find_pause(self, units: Sequence[int]) -> int:
        """How many frames of a segment that is too long belong to it.

        It is divided in the longest silence of its last quarter; of equally long ones in the last.
        Without a silence it is divided before the last unit, so that no unit is written twice. If
        that unit lasts for the whole quarter, the segment is divided at the end.
        """
        searched_from = len(units) - int(_SEARCHED_SHARE * len(units))
        # A run at the very beginning would leave no frame before the division.
        runs = [run for run in _runs(units) if run.begin > 0 and run.end > searched_from]
        silences = [run for run in runs if run.unit == self._blank]
        if silences:
            longest = max(silences, key=lambda run: (run.length, run.end))
            return longest.end - self._count_kept(longest.length)
        if runs and runs[-1].begin >= searched_from:
            return runs[-1].begin
        return len(units)


@dataclass(frozen=True)
class _UnitRun:
    """Consecutive frames with the same best unit."""

    unit: int
    begin: int
    end: int
    """The frame after the last one."""

    @property
    def length(self) -> int:
        return self.end - self.begin


def _runs(units: Sequence[int]) -> Iterator[_UnitRun]:
    """The runs of the frames in order, as long as possible."""
    begin = 0
    for unit, frames in groupby(units):
        end = begin + len(list(frames))
        yield _UnitRun(unit, begin, end)
        begin = end
