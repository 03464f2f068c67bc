# SPDX-License-Identifier: Apache-2.0
"""Intervals of words or phones, as of a forced aligner: joined to utterances between pauses (--join_intervals)."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from wenet_hs.annotation.tiers import Span

logger = logging.getLogger(__name__)

PAUSES = ("", "sil", "<sil>", "sp", "<eps>", "<p:>", "h#")
"""Labels of silence, in any case."""
PAUSES_OF_PHONES = (*PAUSES, "pau")
"""With phones; it is a word of Hawaiian and Portuguese."""
UNKNOWN = ("spn", "<unk>")
"""Labels of speech that the aligner does not know: an utterance ends there."""


def join_tiers(tiers: Iterable[Sequence[Span]], pause_s: float | None, unit: str) -> list[Sequence[Span]]:
    """The annotations of each tier, joined between pauses of this length. None: as they are; words are stated."""
    before, pauses = list(tiers), PAUSES_OF_PHONES if unit == "phone" else PAUSES
    if pause_s is None:
        if num_words := sum(len(spans) for spans in before if _are_words(spans)):
            hint = "--join_intervals 0.5 makes utterances between pauses of 0.5 s"
            logger.info("%d intervals touch and have one word each, as words or phones do; %s", num_words, hint)
        return before
    after: list[Sequence[Span]] = [_join(spans, pause_s, pauses) for spans in before]
    sizes = [sum(map(len, of_all)) for of_all in (before, after)]
    counts = Counter(label for spans in before for *_, text in spans if (label := _label(text)) in (*pauses, *UNKNOWN))
    named = ", ".join(f"{label or 'no label'} ({num})" for label, num in counts.most_common())
    logger.info("%d intervals became %d utterances; pauses and unknown words: %s", *sizes, named or "no labels")
    return after


def _join(spans: Sequence[Span], pause_s: float, pauses: Sequence[str]) -> list[Span]:
    joined, is_open = list[Span](), False
    for begin, end, text in spans:
        if _label(text) in pauses:  # its length is between the words
            continue
        before = joined[-1] if is_open else (None, None, "")
        if begin is None or end is None or _label(text) in UNKNOWN:
            joined += [(begin, end, text)] if _label(text) not in UNKNOWN else []
            is_open = False
        elif before[1] is not None and begin - before[1] < pause_s - 1e-6:
            joined[-1] = (before[0], max(before[1], end), f"{before[2]} {text}")
        else:
            joined.append((begin, end, text))
            is_open = True
    return joined


def _label(text: str) -> str:
    return text.strip().lower()


def _are_words(spans: Sequence[Span]) -> bool:
    """Whether most annotations are short, have one word and touch the next one."""
    timed = [(begin, end, text) for begin, end, text in spans if begin is not None and end is not None]
    num_touching = sum(abs(second[0] - first[1]) < 0.005 for first, second in pairwise(timed))
    num_words = sum(len(text.split()) == 1 and end - begin < 1.0 for begin, end, text in timed)
    return len(timed) >= 10 and num_touching > 0.5 * len(timed) and num_words > 0.9 * len(timed)
