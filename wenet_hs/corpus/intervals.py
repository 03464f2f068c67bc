# SPDX-License-Identifier: Apache-2.0
"""Intervals of words or phones, as of a forced aligner: joined to utterances between pauses
(--join_intervals).
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
UNKNOWN = ("spn", "<unk>")
"""Labels of speech that the aligner does not know: an utterance ends there."""
NOISES = ("*", "@")
"""Signs of SPPAS for noise and laughter, also repeated: an utterance ends there."""


def join_tiers(
    tiers: Iterable[Sequence[Span]], pause_s: float | None, unit: str, pauses: str = AUTO
) -> list[Sequence[Span]]:
    """The annotations of each tier, joined to utterances between pauses of at least `pause_s`
    seconds.

    Labels of pauses are left out, and their length counts. An utterance also ends at labels of
    speech or noise that is not to be used. Intervals of punctuation belong to the utterance around
    them, unless they last as long as a pause. The counts are logged.

    `pause_s`: None gives the annotations as they are; a hint is logged if they seem to be words.
    `unit`, `pauses`: the values of --unit and --pauses.
    """
    before = list(tiers)
    if pause_s is None:
        if num_words := sum(len(spans) for spans in before if _are_words(spans)):
            hint = "--join_intervals 0.5 makes utterances between pauses of 0.5 s"
            logger.info(
                "%d intervals touch and have one word each, as words or phones do; %s",
                num_words,
                hint,
            )
        return before
    joiner = _Joiner(pause_s, find_aligner_labels(pauses, unit), unit)
    after: list[Sequence[Span]] = [joiner.join(spans) for spans in before]
    num_before = sum(map(len, before))
    num_after = sum(map(len, after))
    counts = [f"{label or 'no label'} ({num})" for label, num in joiner.left_out.most_common()]
    left_out = list_names(counts, most=12) or "nothing"
    logger.info("%d intervals became %d utterances; left out: %s", num_before, num_after, left_out)
    return after


@dataclass
class _JoinedIntervals:
    """Intervals that are joined."""

    begin: float | None
    end: float | None
    """The latest end of the intervals. None: it has no times, and only one interval."""
    texts: list[str]

    def append(self, end: float, text: str) -> None:
        """Add an interval to an utterance with times."""
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

    def join(self, spans: Sequence[Span]) -> list[Span]:
        """The utterances of one tier. Punctuation without a word is left out, and counted."""
        joined = list[Span]()
        for utterance in self._divide(spans):
            if any(map(self._is_word, utterance.texts)):
                joined.append((utterance.begin, utterance.end, " ".join(utterance.texts)))
            else:
                self._count(*utterance.texts)
        return joined

    def _divide(self, spans: Sequence[Span]) -> list[_JoinedIntervals]:
        """The intervals of each utterance. An interval without times is an utterance of its own."""
        utterances = list[_JoinedIntervals]()
        is_open = False
        for begin, end, text in spans:
            if self._is_pause(text) or self._is_silent_sign(begin, end, text):
                self._count(text)
            elif self._is_end(text):
                self._count(text)
                is_open = False
            elif begin is None or end is None:
                utterances.append(_JoinedIntervals(begin, end, [text]))
                is_open = False
            elif is_open and self._is_near(utterances[-1], begin):
                utterances[-1].append(end, text)
            else:
                utterances.append(_JoinedIntervals(begin, end, [text]))
                is_open = True
        return utterances

    def _count(self, *texts: str) -> None:
        self.left_out.update(text.strip().lower() for text in texts)

    def _is_near(self, utterance: _JoinedIntervals, begin: float) -> bool:
        """Whether the time from the end of the utterance to `begin` is no pause."""
        assert utterance.end is not None  # an open utterance has times
        return begin - utterance.end < self.pause_s - _ROUNDED_S

    def _is_pause(self, text: str) -> bool:
        """Whether it is a label of a pause. What has no label is one too."""
        return not text.strip() or self.labels.is_pause(text)

    def _is_silent_sign(self, begin: float | None, end: float | None, text: str) -> bool:
        """Whether it is punctuation, such as `...`, that lasts as long as a pause: signs are not
        spoken.
        """
        if begin is None or end is None or self._is_word(text):
            return False
        return end - begin >= self.pause_s - _ROUNDED_S

    def _is_end(self, text: str) -> bool:
        """Whether it is a label of speech or noise that is not to be used.

        In transcripts of phones signs are phones, such as `@` of SAMPA.
        """
        label = text.strip().lower()
        if label in UNKNOWN or is_ignored(label):
            return True
        return self.unit != "phone" and label[0] in NOISES and not label.strip(label[0])

    def _is_word(self, text: str) -> bool:
        """Whether it is more than punctuation.

        In transcripts of phones signs are phones, such as `?` of SAMPA.
        """
        return self.unit == "phone" or any(map(str.isalnum, text)) or bool(normalize(text, None))


def _are_words(spans: Sequence[Span]) -> bool:
    """Whether most annotations are short, have one word and touch the next one."""
    timed = [
        (begin, end, text) for begin, end, text in spans if begin is not None and end is not None
    ]
    num_touching = sum(abs(second[0] - first[1]) < 0.005 for first, second in pairwise(timed))
    num_words = sum(len(text.split()) == 1 and end - begin < 1.0 for begin, end, text in timed)
    return len(timed) >= 10 and num_touching > 0.5 * len(timed) and num_words > 0.9 * len(timed)
