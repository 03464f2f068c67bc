# SPDX-License-Identifier: Apache-2.0
"""Tiers of annotations, and transcribed recordings that become tiers."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from wenet_hs.tree.errors import DataError


class TimedSpan(NamedTuple):
    """An annotation with times in seconds; of a point both times are equal."""

    begin: float
    end: float
    text: str


Span = TimedSpan | tuple[float | None, float | None, str]
"""Begin, end and text of an annotation; a time is None where the annotation has none."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """A tier, with the annotations that have text or times."""

    name: str
    kind: str = ""
    """Linguistic type."""
    participant: str = ""
    parent: str = ""
    """The tier that it depends on."""
    is_interval: bool = True
    """False for points of Praat."""
    spans: Sequence[Span] = ()

    @property
    def timed_spans(self) -> list[TimedSpan]:
        """The annotations that have both times."""
        timed = list[TimedSpan]()
        for begin, end, text in self.spans:
            if begin is not None and end is not None:
                timed.append(TimedSpan(begin, end, text))
        return timed


@dataclass(frozen=True, kw_only=True)
class AnnotationFile:
    """The content of an ELAN file or a TextGrid."""

    path: Path
    media: tuple[str, ...]
    """Paths as they are written in the file, sound before video; then the file's own name."""
    tiers: Sequence[Tier]
    extent: tuple[float, float] = (0.0, 0.0)
    """Begin and end of a TextGrid in seconds."""
    other_media: tuple[str, ...] = ()
    """Of ELAN: linked paths whose times differ from those of `media`."""


DEFAULT_TIER = "wenet_hs"
"""The tier of the text. The names of its children begin with it."""
DEFAULT_LOW_CONFIDENCE = 0.5
# Linguistic types of the children of the tier of the text. The names of their tiers end alike.
WORDS = f"{DEFAULT_TIER} words"
CONFIDENCE = f"{DEFAULT_TIER} confidence"
LOW_CONFIDENCE = f"{DEFAULT_TIER} low confidence"

_MILLISECOND = 0.001
_MAX_OVERLAP_S = 0.05  # of two segments in a tier: rounded times, or a margin around the speech


@dataclass(frozen=True, kw_only=True)
class TimedText:
    """A unit or a word with its begin and end."""

    text: str
    start: float
    """Seconds from the beginning of the utterance."""
    end: float
    confidence: float
    """Probability under CTC, in [0, 1]: geometric mean over the frames of a unit, and over the
    units of a word.
    """


@dataclass(frozen=True, kw_only=True)
class TranscribedSegment:
    """A segment of speech with its text.

    Times are seconds from the beginning of the recording, in whole ms.
    """

    start: float
    end: float
    text: str
    words: tuple[TimedText, ...] = ()
    """In order, within the segment.

    Of a phone model the phones. Empty if CTC cannot align the text.
    """
    confidence: float | None = None
    """In [0, 1]; None if CTC cannot align the text."""
    speaker: str | None = None


@dataclass(frozen=True, kw_only=True)
class TranscribedRecording:
    """A recording with its segments of speech, in order; segments of one speaker do not overlap."""

    media: Path
    duration_s: float
    segments: tuple[TranscribedSegment, ...]

    @property
    def words(self) -> list[TimedText]:
        """The words of all segments."""
        return [word for segment in self.segments for word in segment.words]


def place_segments(
    segments: Iterable[TranscribedSegment], duration_s: float
) -> tuple[TranscribedSegment, ...]:
    """The segments in order of time, with times that a tier of ELAN or Praat can hold.

    All times are whole milliseconds within the recording. A segment begins where the one before it
    of the same speaker ends, or later. Its words are within it, one after the other, and each lasts
    a millisecond or longer.

    Raises DataError if two segments of a speaker overlap by more than 50 ms, or if one ends within
    the one before it.
    """
    placed = list[TranscribedSegment]()
    latest_s = math.floor(1000 * duration_s) / 1000  # the last whole millisecond
    end_of_speaker = dict[str | None, float]()
    for segment in sorted(segments, key=lambda segment: (segment.start, segment.end)):
        previous_end = end_of_speaker.get(segment.speaker, 0.0)
        is_overlap = previous_end - segment.start > _MAX_OVERLAP_S
        is_within_previous = segment.end - previous_end < _MILLISECOND
        if is_overlap or is_within_previous:
            found = f"two segments of one speaker overlap at {segment.start:.3f} s, which a tier cannot hold"
            raise DataError(found, to_do="correct the times, or name the speakers")
        start, end = _to_whole_ms(
            segment.start, segment.end, earliest=previous_end, latest=latest_s
        )
        words = _place_words(segment.words, start, end)
        placed.append(replace(segment, start=start, end=end, words=words))
        end_of_speaker[segment.speaker] = end
    return tuple(placed)


def _place_words(
    words: Sequence[TimedText], segment_start: float, segment_end: float
) -> tuple[TimedText, ...]:
    """The words with times in whole milliseconds within their segment, one after the other."""
    placed = list[TimedText]()
    previous_end = segment_start
    for number, word in enumerate(words, start=1):
        num_later_words = len(words) - number
        latest = segment_end - _MILLISECOND * num_later_words  # each of them lasts one or longer
        start, end = _to_whole_ms(word.start, word.end, earliest=previous_end, latest=latest)
        placed.append(replace(word, start=start, end=end))
        previous_end = end
    return tuple(placed)


def _to_whole_ms(
    start: float, end: float, *, earliest: float, latest: float
) -> tuple[float, float]:
    """Both times in seconds, rounded to milliseconds, and moved into [earliest, latest].

    They are a millisecond or more apart: if they are closer to each other, the end moves.
    """
    latest_start = latest - _MILLISECOND
    new_start = min(max(round(start, 3), earliest), latest_start)
    earliest_end = new_start + _MILLISECOND
    new_end = max(min(round(end, 3), latest), earliest_end)
    return round(new_start, 3), round(new_end, 3)


def make_tiers(recording: TranscribedRecording, name: str, low_confidence: float) -> list[Tier]:
    """The tiers of each speaker: text, words, confidence, and words of low confidence.

    A word has low confidence if its confidence is below `low_confidence`. The tier of the text has
    the name `name`, and the others depend on it. If there are several speakers, the name of each
    tier ends in `@SPEAKER`. Tiers without annotations are left out, except that of the text.
    """
    speakers = list(dict.fromkeys(segment.speaker for segment in recording.segments))
    if not speakers:
        speakers = [None]  # without segments there is still the tier of the text
    tiers = list[Tier]()
    for speaker in speakers:
        name_end = f"@{speaker}" if len(speakers) > 1 and speaker is not None else ""
        text_tier = f"{name}{name_end}"
        segments = [segment for segment in recording.segments if segment.speaker == speaker]
        for kind, spans in _spans_by_kind(segments, low_confidence).items():
            is_text = kind == DEFAULT_TIER
            if not spans and not is_text:
                continue
            child_name = kind.removeprefix(DEFAULT_TIER)  # such as " words"; empty for the text
            tier = Tier(
                name=f"{name}{child_name}{name_end}",
                kind=kind,
                participant=speaker or "",
                parent="" if is_text else text_tier,
                spans=spans,
            )
            tiers.append(tier)
    return tiers


def _spans_by_kind(
    segments: Iterable[TranscribedSegment], low_confidence: float
) -> dict[str, list[TimedSpan]]:
    """The annotations of each tier of a speaker, by linguistic type, the tier of the text first.

    A confidence is written with two decimals. A segment without one has no such annotation.
    """
    spans: dict[str, list[TimedSpan]] = {
        DEFAULT_TIER: [],
        WORDS: [],
        CONFIDENCE: [],
        LOW_CONFIDENCE: [],
    }
    for segment in segments:
        spans[DEFAULT_TIER].append(TimedSpan(segment.start, segment.end, segment.text))
        spans[WORDS] += spans_of(segment.words)
        if segment.confidence is not None:
            shown = f"{segment.confidence:.2f}"
            spans[CONFIDENCE].append(TimedSpan(segment.start, segment.end, shown))
        for word in segment.words:
            if word.confidence < low_confidence:
                shown = f"{word.confidence:.2f}"
                spans[LOW_CONFIDENCE].append(TimedSpan(word.start, word.end, shown))
    return spans


def spans_of(parts: Iterable[TimedText]) -> list[TimedSpan]:
    """Units or words as annotations."""
    return [TimedSpan(part.start, part.end, part.text) for part in parts]
