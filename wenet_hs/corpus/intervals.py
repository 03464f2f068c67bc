# SPDX-License-Identifier: Apache-2.0
"""Intervals of words or phones that are joined to utterances between pauses (--join_intervals).

A forced aligner writes such intervals.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from wenet_hs.annotation.tiers import Span
from wenet_hs.corpus.pauses import AUTO, PauseLabels, find_aligner_labels, is_ignored
from wenet_hs.text.normalize import normalize
from wenet_hs.tree.errors import list_names

logger = logging.getLogger(__name__)

_ROUNDED_S = 1e-6
"""A pause may be shorter than the shortest one by this, because times are rounded."""
_MIN_INTERVALS = 10
"""With fewer intervals, a tier is not tested for words or phones."""
_MAX_GAP_S = 0.005
"""Intervals touch if the gap between them is shorter than this."""
_MAX_WORD_S = 1.0
"""The interval of a word or phone is shorter than this."""
_MIN_SHARE_TOUCHING = 0.5
_MIN_SHARE_OF_WORDS = 0.9
"""In a tier of words or phones, a larger share of the intervals touches the next, or has one word."""
UNKNOWN = ("spn", "<unk>")
"""Labels of speech that the aligner does not know: an utterance ends there."""
NOISES = ("*", "@")
"""Signs of SPPAS for noise and laughter, also repeated: an utterance ends there."""


def join_tiers(
    tiers: Iterable[Sequence[Span]], pause_s: float | None, unit: str, pauses: str = AUTO
) -> list[Sequence[Span]]:
    """The annotations of each tier, joined to utterances between pauses.

    Labels of pauses are left out, and their length counts. An utterance also ends at labels of
    speech or noise that is not to be used. Intervals of punctuation belong to the utterance around
    them, unless they last as long as a pause. The counts are logged.

    Args:
        tiers: the annotations of each tier, in the order of their times.
        pause_s: seconds of the shortest pause between utterances; None: the annotations stay as
            they are, and a hint is logged if they seem to be words.
        unit: value of --unit, `char` or `phone`.
        pauses: value of --pauses, the labels of pauses.
    """
    before = list(tiers)
    if pause_s is None:
        _report_words(before)
        return before
    joiner = _Joiner(pause_s, find_aligner_labels(pauses, unit), unit)
    after: list[Sequence[Span]] = [joiner.join(spans) for spans in before]
    num_before = sum(map(len, before))
    num_after = sum(map(len, after))
    counts = [f"{label or 'no label'} ({num})" for label, num in joiner.left_out.most_common()]
    left_out = list_names(counts, most=12) or "nothing"
    logger.info("%d intervals became %d utterances; left out: %s", num_before, num_after, left_out)
    return after


def _report_words(tiers: Sequence[Sequence[Span]]) -> None:
    """Log a hint if tiers seem to have words or phones, which are too short as utterances."""
    num_words = sum(len(spans) for spans in tiers if _are_words(spans))
    if num_words:
        logger.info(
            "%d intervals touch and have one word each, as words or phones do; %s",
            num_words,
            "--join_intervals 0.5 makes utterances between pauses of 0.5 s",
        )


def _are_words(spans: Sequence[Span]) -> bool:
    """Whether most annotations with times are short, have one word and touch the next one.

    False for fewer annotations than `_MIN_INTERVALS`, of which it cannot be told.
    """
    timed = [
        (begin, end, text) for begin, end, text in spans if begin is not None and end is not None
    ]
    if len(timed) < _MIN_INTERVALS:
        return False
    num_touching = 0
    for (_, end, _), (following_begin, _, _) in pairwise(timed):
        num_touching += abs(following_begin - end) < _MAX_GAP_S
    num_words = sum(
        len(text.split()) == 1 and end - begin < _MAX_WORD_S for begin, end, text in timed
    )
    do_most_touch = num_touching > _MIN_SHARE_TOUCHING * len(timed)
    return do_most_touch and num_words > _MIN_SHARE_OF_WORDS * len(timed)


@dataclass
class _JoinedIntervals:
    """Intervals that become one utterance."""

    begin: float | None
    end: float | None
    """The latest end of the intervals. None: there is only one interval, and it has no times."""
    texts: list[str]
    """Of the intervals, in their order."""

    def append(self, end: float, text: str) -> None:
        """Add an interval that ends at `end` to intervals with times."""
        assert self.end is not None
        self.end = max(self.end, end)
        self.texts.append(text)


@dataclass
class _Joiner:
    """Joins the words or phones of tiers, and counts the labels that it leaves out."""

    pause_s: float
    labels: PauseLabels
    unit: str
    left_out: Counter[str] = field(default_factory=Counter)
    """Labels in small letters → how often they were left out; empty: an interval without label."""

    def join(self, spans: Sequence[Span]) -> list[Span]:
        """The utterances of one tier.

        Utterances of punctuation only are left out. All labels that are left out are counted.
        """
        joined = list[Span]()
        for utterance in self._divide(spans):
            if any(map(self._is_word, utterance.texts)):
                joined.append((utterance.begin, utterance.end, " ".join(utterance.texts)))
            else:
                self._count(*utterance.texts)
        return joined

    def _divide(self, spans: Sequence[Span]) -> list[_JoinedIntervals]:
        """The intervals of each utterance, without labels of pauses and noise, which are counted.

        An utterance ends before a pause that is long enough, and at labels of unknown speech or
        noise. An interval without times is an utterance of its own.
        """
        utterances = list[_JoinedIntervals]()
        is_open = False  # whether the next interval may belong to the last utterance
        for begin, end, text in spans:
            if self._is_pause(text) or self._is_silent_sign(begin, end, text):
                self._count(text)
            elif self._is_end(text):
                self._count(text)
                is_open = False
            elif begin is None or end is None:
                utterances.append(_JoinedIntervals(begin, end, [text]))
                is_open = False
            elif is_open and self._follows_without_pause(utterances[-1], begin):
                utterances[-1].append(end, text)
            else:
                utterances.append(_JoinedIntervals(begin, end, [text]))
                is_open = True
        return utterances

    def _count(self, *texts: str) -> None:
        """Count labels that are left out."""
        self.left_out.update(text.strip().lower() for text in texts)

    def _follows_without_pause(self, utterance: _JoinedIntervals, begin: float) -> bool:
        """Whether the time from the end of the utterance to `begin` is shorter than a pause."""
        assert utterance.end is not None  # an open utterance has times
        return begin - utterance.end < self.pause_s - _ROUNDED_S

    def _is_pause(self, text: str) -> bool:
        """Whether a text is a label of a pause. An empty label is one too."""
        return not text.strip() or self.labels.is_pause(text)

    def _is_silent_sign(self, begin: float | None, end: float | None, text: str) -> bool:
        """Whether an interval is punctuation, such as `...`, and lasts as long as a pause.

        Signs are not spoken, so such an interval is a pause.
        """
        if begin is None or end is None or self._is_word(text):
            return False
        return end - begin >= self.pause_s - _ROUNDED_S

    def _is_end(self, text: str) -> bool:
        """Whether a text, which is not empty, is a label of speech or noise that is not to be used.

        Such labels are `spn`, and a sign of noise, also repeated: `***`. In transcripts of phones
        the signs are phones, such as `@` of SAMPA.
        """
        label = text.strip().lower()
        if label in UNKNOWN or is_ignored(label):
            return True
        first_sign = label[0]
        has_no_other_sign = not label.strip(first_sign)
        return self.unit != "phone" and first_sign in NOISES and has_no_other_sign

    def _is_word(self, text: str) -> bool:
        """Whether a text is more than punctuation.

        In transcripts of phones signs are phones, such as `?` of SAMPA.
        """
        if self.unit == "phone" or any(map(str.isalnum, text)):
            return True
        return normalize(text, None) != ""  # it keeps marks too, such as those of vowels
