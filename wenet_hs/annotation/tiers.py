# SPDX-License-Identifier: Apache-2.0
"""Tiers of annotations, and transcribed recordings that become tiers."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wenet_hs.tree.errors import DataError

TimedSpan = tuple[float, float, str]
"""Begin and end in seconds, and text; of a point both times are equal."""
Span = TimedSpan | tuple[float | None, float | None, str]
"""None where the annotation has no time."""


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
        """The annotations with times."""
        return [
            (begin, end, text)
            for begin, end, text in self.spans
            if begin is not None and end is not None
        ]


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
WORDS, CONFIDENCE, LOW = (
    f"{DEFAULT_TIER}{end}" for end in (" words", " confidence", " low confidence")
)
"""Linguistic types of its children; the names of their tiers have the same ends."""
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
    """The segments in order with times in whole milliseconds, within the recording; words within
    their segment.

    Raises: DataError if two segments of a speaker overlap by more than 50 ms: a tier of ELAN or
        Praat cannot hold them.
    """
    placed, end_of = list[TranscribedSegment](), dict[str | None, float]()
    for segment in sorted(segments, key=lambda segment: (segment.start, segment.end)):
        previous = end_of.get(segment.speaker, 0.0)
        if previous - segment.start > _MAX_OVERLAP_S or segment.end - previous < 0.001:
            found = f"two segments of one speaker overlap at {segment.start:.3f} s, which a tier cannot hold"
            raise DataError(found, to_do="correct the times, or name the speakers")
        start, end = _whole_ms(
            segment.start, segment.end, previous, math.floor(1000 * duration_s) / 1000
        )
        words, last = list[TimedText](), start
        for number, word in enumerate(segment.words, start=1):
            most = end - 0.001 * (
                len(segment.words) - number
            )  # each word after this one needs a millisecond
            first, last = _whole_ms(word.start, word.end, last, most)
            words.append(replace(word, start=first, end=last))
        placed.append(replace(segment, start=start, end=end, words=tuple(words)))
        end_of[segment.speaker] = end
    return tuple(placed)


def _whole_ms(start: float, end: float, least: float, most: float) -> tuple[float, float]:
    """The times in whole milliseconds, in [least, most] and at least one millisecond apart."""
    first = min(max(round(start, 3), least), most - 0.001)
    return round(first, 3), round(max(min(round(end, 3), most), first + 0.001), 3)


def make_tiers(recording: TranscribedRecording, name: str, low_confidence: float) -> list[Tier]:
    """The tiers of each speaker: text, words, confidence, and the words whose confidence is below
    `low_confidence`.

    With several speakers the names end in `@SPEAKER`. A tier without annotations is left out,
    except that of the text.
    """
    speakers = list(dict.fromkeys(segment.speaker for segment in recording.segments)) or [None]
    tiers = list[Tier]()
    for speaker in speakers:
        end = f"@{speaker}" if len(speakers) > 1 and speaker is not None else ""
        of_segments = [
            _spans(one, low_confidence) for one in recording.segments if one.speaker == speaker
        ]
        for kind in (DEFAULT_TIER, WORDS, CONFIDENCE, LOW):
            spans = [span for of_kind in of_segments for span in of_kind[kind]]
            if spans or kind == DEFAULT_TIER:
                parent = "" if kind == DEFAULT_TIER else name + end
                full_name = name + kind.removeprefix(DEFAULT_TIER) + end
                tiers.append(
                    Tier(
                        name=full_name,
                        kind=kind,
                        participant=speaker or "",
                        parent=parent,
                        spans=spans,
                    )
                )
    return tiers


def spans_of(parts: Iterable[TimedText]) -> list[TimedSpan]:
    """Units or words as annotations."""
    return [(one.start, one.end, one.text) for one in parts]


def _spans(segment: TranscribedSegment, low_confidence: float) -> dict[str, list[TimedSpan]]:
    """The annotations of a segment by kind of tier."""
    confidence, times = segment.confidence, (segment.start, segment.end)
    low = [one for one in segment.words if one.confidence < low_confidence]
    return {
        DEFAULT_TIER: [(*times, segment.text)],
        WORDS: spans_of(segment.words),
        CONFIDENCE: [] if confidence is None else [(*times, f"{confidence:.2f}")],
        LOW: [(one.start, one.end, f"{one.confidence:.2f}") for one in low],
    }
