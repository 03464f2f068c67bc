# SPDX-License-Identifier: Apache-2.0
"""Utterances by falling error rate, reference above hypothesis, unit by unit."""

from collections.abc import Iterator
from html import escape
from itertools import accumulate

from wenet_hs.score import ErrorCounts, Operation, Report, Rules, ScoredUtterance
from wenet_hs.score.table import align_texts, percent, worst_first
from wenet_hs.score.units import word_lengths

MOST = 50
EMPTY = "·"  # stands opposite a deleted or an inserted unit


def worst_utterances(report: Report, most: int = MOST) -> str:
    """The HTML of the worst utterances that have an error at all."""
    wrong = [(key, utterance) for key, utterance in worst_first(report) if utterance.counts.errors]
    return "\n".join(_utterance(key, utterance, report.rules) for key, utterance in wrong[:most])


def _utterance(key: str, utterance: ScoredUtterance, rules: Rules) -> str:
    rate = f"{rules.metric.upper()} {percent(utterance.counts.rate)} %"
    missing = " · no hypothesis" if utterance.hyp is None else ""
    facts = f"{escape(key)} · {escape(utterance.lang)} · {rate} · {letters(utterance.counts)}{missing}"
    return (
        f'<div class="utterance"><div class="quiet">{facts}</div>'
        f'<div class="aligned" dir="ltr">{aligned(utterance, rules)}</div></div>'
    )


def letters(counts: ErrorCounts) -> str:
    """The counts under their usual letters."""
    return f"N {counts.num_units:,} S {counts.substitutions:,} D {counts.deletions:,} I {counts.insertions:,}"


def aligned(utterance: ScoredUtterance, rules: Rules) -> str:
    """A column a run of equal operations; letters leave a gap where the reference has a space."""
    columns = []
    for group, gap in _groups(utterance, rules):
        kind = group[0].kind
        ref = "".join(operation.ref or "" for operation in group) or EMPTY
        hyp = "".join(operation.hyp or "" for operation in group) or EMPTY
        classes = "u" + ("" if kind == "C" else f" {kind}") + (" gap" if gap else "")
        columns.append(f'<span class="{classes}"><span>{_show(ref)}</span><span>{_show(hyp)}</span></span>')
    return "<wbr>".join(columns)


def _groups(utterance: ScoredUtterance, rules: Rules) -> Iterator[tuple[list[Operation], bool]]:
    """Runs of one kind inside a word, and whether a word ends there. Words and phones are runs of their own."""
    operations = align_texts(utterance, rules).operations
    ends = _word_ends(utterance, rules)
    num_units, group = 0, list[Operation]()
    for index, operation in enumerate(operations):
        group.append(operation)
        num_units += operation.ref is not None
        following = operations[index + 1] if index + 1 < len(operations) else None
        # A unit inserted behind the last letter of a word belongs to that word.
        at_end = num_units in ends and not (following and following.ref is None)
        if rules.metric != "cer" or at_end or following is None or following.kind != operation.kind:
            yield group, rules.metric != "cer" or at_end
            group = []


def _word_ends(utterance: ScoredUtterance, rules: Rules) -> set[int]:
    """How many units stand before each space of the reference, where spaces themselves are not units."""
    if rules.spaces == "count":
        return set()
    return set(accumulate(word_lengths(utterance.ref, rules, utterance.lang)))


def _show(text: str) -> str:
    return escape(text.replace(" ", "␣"))
