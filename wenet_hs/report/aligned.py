# SPDX-License-Identifier: Apache-2.0
"""The columns of a reference that is aligned with a hypothesis."""

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from wenet_hs.score.edit_distance import Operation, align
from wenet_hs.score.error_rate import ScoredUtterance
from wenet_hs.score.rules import Rules, word_lengths

_EMPTY = "·"
"""Shown opposite a deleted or an inserted unit."""


class Column(NamedTuple):
    """Units of the reference above those of the hypothesis."""

    kind: str
    """C, S, D or I."""
    ref: str
    hyp: str
    has_gap: bool
    """Whether a word ends here."""


def align_columns(utterance: ScoredUtterance, rules: Rules) -> Iterator[Column]:
    """The alignment as columns: runs of one kind inside a word of letters; each word or phone is a
    column."""
    operations = align(*utterance.split(rules))
    lengths = word_lengths(utterance.ref, rules, utterance.lang) if rules.spaces == "ignore" else []
    word_ends = set(accumulate(lengths))
    is_of_letters = rules.metric == "cer"
    num_units = 0
    run = list[Operation]()
    for index, operation in enumerate(operations):
        run.append(operation)
        num_units += operation.ref is not None
        following = operations[index + 1] if index + 1 < len(operations) else None
        # A unit inserted after the last letter of a word belongs to that word.
        is_insertion_next = following is not None and following.ref is None
        ends_word = num_units in word_ends and not is_insertion_next
        is_last_of_kind = following is None or following.kind != operation.kind
        if not is_of_letters or ends_word or is_last_of_kind:
            ref = _shown("".join(unit.ref or "" for unit in run))
            hyp = _shown("".join(unit.hyp or "" for unit in run))
            yield Column(operation.kind, ref, hyp, has_gap=not is_of_letters or ends_word)
            run = []


def _shown(text: str) -> str:
    """The units of a column with visible spaces."""
    return text.replace(" ", "␣") or _EMPTY
