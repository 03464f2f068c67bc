# SPDX-License-Identifier: Apache-2.0
"""The columns of a reference that is aligned with a hypothesis."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, zip_longest
from typing import NamedTuple

from wenet_hs.score.edit_distance import Operation, align
from wenet_hs.score.error_rate import ScoredUtterance
from wenet_hs.score.rules import Rules, word_lengths

_EMPTY = "·"
"""Shown opposite a deleted or an inserted unit."""


class Column(NamedTuple):
    """Units of the reference above those of the hypothesis."""

    kind: str
    """C, S, D or I: correct, substituted, deleted or inserted."""
    ref: str
    hyp: str
    has_gap: bool
    """Whether a word ends here."""


def align_columns(utterance: ScoredUtterance, rules: Rules) -> Iterator[Column]:
    """The alignment of an utterance as columns, from left to right.

    With the metric `cer`, neighbouring letters of one kind are one column, which ends at the end of
    a word at the latest. With other metrics, each word or phone is a column.
    """
    is_of_letters = rules.metric == "cer"
    word_ends = _find_word_ends(utterance, rules)
    num_ref_units = 0
    column = list[Operation]()
    operations = align(*utterance.split(rules))
    for operation, following in zip_longest(operations, operations[1:]):
        # `following` is None for the last operation.
        column.append(operation)
        if operation.ref is not None:
            num_ref_units += 1
        # A unit inserted after the last letter of a word belongs to that word.
        is_insertion_next = following is not None and following.ref is None
        ends_word = num_ref_units in word_ends and not is_insertion_next
        is_last_of_kind = following is None or following.kind != operation.kind
        if not is_of_letters or ends_word or is_last_of_kind:
            yield _join_operations(column, has_gap=ends_word or not is_of_letters)
            column = []


def _find_word_ends(utterance: ScoredUtterance, rules: Rules) -> set[int]:
    """The numbers of reference units after which a word ends.

    Empty if spaces are counted, because then they are units of their own.
    """
    if rules.spaces != "ignore":
        return set()
    return set(accumulate(word_lengths(utterance.ref, rules, utterance.lang)))


def _join_operations(operations: Sequence[Operation], *, has_gap: bool) -> Column:
    """The column of operations of one kind. A side without units, which has None, gets a dot."""
    ref = "".join(operation.ref or "" for operation in operations)
    hyp = "".join(operation.hyp or "" for operation in operations)
    return Column(operations[0].kind, _make_visible(ref), _make_visible(hyp), has_gap)


def _make_visible(text: str) -> str:
    """The text with a sign for each space; a dot for no text."""
    return text.replace(" ", "␣") or _EMPTY
