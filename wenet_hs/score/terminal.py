# SPDX-License-Identifier: Apache-2.0
"""Aligned transcripts for a person at a terminal: folded to its width, errors marked below and in colour."""

import os
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TextIO

from rich.cells import cell_len

from wenet_hs.score.edit_distance import Operation
from wenet_hs.score.error_rate import Report, count_of
from wenet_hs.score.summary import ScoredUtterance
from wenet_hs.score.table import GAP, align_texts, heading, pad, show_unit, worst_first
from wenet_hs.score.units import Rules, word_lengths

_COLOURS = {"S": "\033[33m", "D": "\033[31m", "I": "\033[36m"}  # yellow, red, cyan: told apart by most eyes
_BOLD, _PLAIN = "\033[1m", "\033[0m"
_LABELS = ("ref: ", "hyp: ", "     ")
_LEAST_WIDTH = 20

Column = tuple[str, str, str]
"""Reference, hypothesis and mark of one operation, padded to one width."""


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour what is written there: a terminal that can, of a user who has not set NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_alignments(report: Report, *, width: int, colour: bool) -> str:
    """The utterances that have errors, worst first: reference, hypothesis, and S, D or I below each error.

    Args:
        width: columns of the terminal; longer lines are folded, those of an alignment three at a time.
        colour: mark errors by colour too.
    """
    wrong = [(key, utterance) for key, utterance in worst_first(report) if utterance.counts.errors]
    blocks = []
    for key, utterance in wrong:
        columns = list(_columns(utterance, report.rules))
        title = _folded_heading(heading(report, key, utterance), width)
        lines = [*(f"{_BOLD}{line}{_PLAIN}" if colour else line for line in title), *_folded(columns, width, colour)]
        blocks.append("\n".join(lines) + "\n")
    right = len(report.utterances) - len(wrong)
    if right:
        blocks.append(f"{count_of(right, 'utterance')} without an error not shown\n")
    return "\n".join(blocks)


def _folded_heading(text: str, width: int) -> list[str]:
    """Broken between its parts alone, so that a key stays whole and can be copied."""
    first, *rest = text.split("  ")
    lines = [first]
    for part in rest:
        joined = f"{lines[-1]}  {part}"
        if cell_len(joined) > max(width, _LEAST_WIDTH):
            lines.append(part)
        else:
            lines[-1] = joined
    return lines


def _columns(utterance: ScoredUtterance, rules: Rules) -> Iterator[Column]:
    """A column an operation, and an empty one before each word of letters whose spaces are not units."""
    letters_only = rules.metric == "cer" and rules.spaces == "ignore"
    starts = set(accumulate(word_lengths(utterance.ref, rules, utterance.lang))) if letters_only else set()
    num_units = 0
    for operation in align_texts(utterance, rules).operations:
        if operation.ref is not None:
            if num_units in starts:
                yield "", "", ""
            num_units += 1
        yield _column(operation)


def _column(operation: Operation) -> Column:
    cells = [GAP if unit is None else show_unit(unit) for unit in (operation.ref, operation.hyp)]
    cells.append("" if operation.kind == "C" else operation.kind)
    width = max(map(cell_len, cells))
    return pad(cells[0], width), pad(cells[1], width), pad(cells[2], width)


def _folded(columns: Sequence[Column], width: int, colour: bool) -> Iterator[str]:
    room = max(width, _LEAST_WIDTH) - len(_LABELS[0])
    start, used = 0, 0
    for index, column in enumerate(columns):
        needed = cell_len(column[0]) + 1
        if index > start and used + needed > room:
            yield from _lines(columns[start:index], colour)
            start, used = index, 0
        used += needed
    yield from _lines(columns[start:], colour)


def _lines(columns: Sequence[Column], colour: bool) -> Iterator[str]:
    """Three lines; the last one is left out where nothing is marked."""
    for place, label in enumerate(_LABELS):
        cells = [_coloured(column[place], column[2].strip(), colour) for column in columns]
        if place < 2 or any(column[2].strip() for column in columns):
            yield (label + " ".join(cells)).rstrip()


def _coloured(cell: str, kind: str, colour: bool) -> str:
    return f"{_COLOURS[kind]}{cell}{_PLAIN}" if colour and kind in _COLOURS else cell
