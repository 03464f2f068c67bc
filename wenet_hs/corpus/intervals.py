# SPDX-License-Identifier: Apache-2.0
"""Intervals of words or phones, as of a forced aligner: joined to utterances between pauses (--join_intervals)."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from wenet_hs.annotation.tiers import Span
from wenet_hs.corpus.pauses import AUTO, PauseLabels, find_aligner_labels, is_ignored
from wenet_hs.errors import list_names
from wenet_hs.text.normalize import normalize

logger = logging.getLogger(__name__)

_ROUNDED_S = 1e-6
UNKNOWN = ("spn", "<unk>")
"""Labels of speech that the aligner does not know: an utterance ends there."""


def join_tiers(
    tiers: Iterable[Sequence[Span]], pause_s: float | None, unit: str, pauses: str = AUTO
) -> list[Sequence[Span]]:
    """The annotations of each tier, joined to utterances between pauses of at least `pause_s` seconds.

    Labels of pauses are left out, and their length counts. An utterance also ends at labels of speech that is not to be
    used, and at signs that are no text. None: the annotations as they are; a hint is logged if they seem to be words.

    `unit`, `pauses`: the values of --unit and --pauses.
    """
    before = list(tiers)
    if pause_s is None:
        if num_words := sum(len(spans) for spans in before if _are_words(spans)):
            hint = "--join_intervals 0.5 makes utterances between pauses of 0.5 s"
            logger.info("%d intervals touch and have one word each, as words or phones do; %s", num_words, hint)
        return before
    joiner = _Joiner(pause_s, find_aligner_labels(pauses, unit), unit)
    after: list[Sequence[Span]] = [joiner.join(spans) for spans in before]
    num_before = sum(map(len, before))
    num_after = sum(map(len, after))
    counts = list_names([f"{label or 'no label'} ({num})" for label, num in joiner.left_out.most_common()], most=12)
    named = counts or "no labels"
    logger.info("%d intervals became %d utterances; pauses and unknown words: %s", num_before, num_after, named)
    return after


@dataclass
class _Joiner:
    """Joins the words or phones of tiers, and counts the labels that it leaves out."""

    pause_s: float
    labels: PauseLabels
    unit: str
    left_out: Counter[str] = field(default_factory=Counter)

    def join(self, spans: Sequence[Span]) -> list[Span]:
        """The utterances of one tier. A span without times is an utterance of its own."""
        joined = list[Span]()
        is_open = False
        for begin, end, text in spans:
            if not text.strip() or self.labels.is_pause(text):  # its length is between the words
                self.left_out[text.strip().lower()] += 1
                continue
            if self._is_end(text):
                self.left_out[text.strip().lower()] += 1
                is_open = False
                continue
            if begin is None or end is None:
                joined.append((begin, end, text))
                is_open = False
                continue
            if is_open:
                first, last, words = joined[-1]
                assert last is not None  # an open utterance has times
                if begin - last < self.pause_s - _ROUNDED_S:
                    joined[-1] = (first, max(last, end), f"{words} {text}")
                    continue
            joined.append((begin, end, text))
            is_open = True
        return joined

    def _is_end(self, text: str) -> bool:
        """Whether it is a label of speech or noise that is not to be used: signs of SPPAS for laughter and noise too.

        In transcripts of phones signs are phones, such as `@` and `?` of SAMPA.
        """
        if text.strip().lower() in UNKNOWN or is_ignored(text):
            return True
        if self.unit == "phone" or any(map(str.isalnum, text)):
            return False
        return not normalize(text, None)


def _are_words(spans: Sequence[Span]) -> bool:
    """Whether most annotations are short, have one word and touch the next one."""
    timed = [(begin, end, text) for begin, end, text in spans if begin is not None and end is not None]
    num_touching = sum(abs(second[0] - first[1]) < 0.005 for first, second in pairwise(timed))
    num_words = sum(len(text.split()) == 1 and end - begin < 1.0 for begin, end, text in timed)
    return len(timed) >= 10 and num_touching > 0.5 * len(timed) and num_words > 0.9 * len(timed)
