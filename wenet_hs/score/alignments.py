# SPDX-License-Identifier: Apache-2.0
"""Aligned transcripts as text, and the most frequent confusions."""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, TextIO

from rich.cells import cell_len

from wenet_hs.score.edit_distance import Operation, align
from wenet_hs.score.error_rate import (
    UNDEFINED,
    Report,
    ScoredUtterance,
    count_of,
    percent,
    worst_first,
)
from wenet_hs.score.rules import Rules, word_lengths
from wenet_hs.text.units import script_of, show_two, show_unit

GAP = "*"  # printed opposite a deleted or an inserted unit
_MIN_WIDTH = 20
_num_columns = lru_cache(maxsize=2**14)(cell_len)  # that a terminal uses for a text


# ---- alignments

# Yellow, red and cyan: most eyes can distinguish them.
_COLOURS = {"S": "\033[33m", "D": "\033[31m", "I": "\033[36m"}
_BOLD = "\033[1m"
_RESET = "\033[0m"
_REF_LABEL = "ref: "
_HYP_LABEL = "hyp: "
_MARK_LABEL = "     "  # as long as the other two, so that the columns are below each other


class _AlignedUnits(NamedTuple):
    """The cells of one operation, of equal width; all are empty between two words."""

    ref: str
    hyp: str
    mark: str
    """S, D or I, and spaces; only spaces for a correct unit."""


def wants_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal that supports colours, and NO_COLOR is not set."""
    if os.environ.get("NO_COLOR"):
        return False
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def format_alignments(
    report: Report, *, width: int = sys.maxsize, colour: bool = False, all_shown: bool = True
) -> str:
    """The utterances of a report as aligned texts, those with the highest error rate first.

    Each has a line with its error rate, one of the reference, one of the hypothesis, and, if there
    are errors, one with S, D and I below them.

    Args:
        width: columns of the display; longer alignments are folded. Below 20, it is 20.
        colour: mark errors also by colour.
        all_shown: show also the utterances without an error. If False, the last line has the number
            of these, if there are any.
    """
    keys = worst_first([report])
    if not all_shown:
        keys = [key for key in keys if report.utterances[key].counts.errors]
    blocks = []
    for key in keys:
        utterance = report.utterances[key]
        # The heading is never folded here: a terminal folds it so that the key can be copied.
        heading = _format_heading(report, key, utterance)
        lines = [f"{_BOLD}{heading}{_RESET}" if colour else heading]
        columns = _make_columns(utterance, report.rules)
        for part in _fold_columns(columns, max(width, _MIN_WIDTH)):
            lines += _format_columns(part, colour)
        blocks.append("\n".join(lines) + "\n")
    num_hidden = len(report.utterances) - len(keys)
    if num_hidden:
        blocks.append(f"{count_of(num_hidden, 'utterance')} without an error not shown\n")
    return "\n".join(blocks)


def _format_heading(report: Report, key: str, utterance: ScoredUtterance) -> str:
    """Key, language, error rate and counts of one utterance."""
    counts = utterance.counts
    metric = report.rules.metric.upper()
    rate = UNDEFINED if counts.rate is None else f"{percent(counts.rate)} %"
    errors = f"S={counts.substitutions} D={counts.deletions} I={counts.insertions}"
    note = "  (no hypothesis)" if utterance.hyp is None else ""
    return f"{key}  {utterance.lang}  {metric} {rate}  N={counts.num_units} {errors}{note}"


def _make_columns(utterance: ScoredUtterance, rules: Rules) -> Iterator[_AlignedUnits]:
    """The column of each operation of the alignment.

    If letters are units and spaces are not, an empty column stands between words of the reference.
    """
    word_ends = set[int]()  # a word of the reference ends after these numbers of its units
    if rules.metric == "cer" and rules.spaces == "ignore":
        word_ends.update(accumulate(word_lengths(utterance.ref, rules, utterance.lang)))
    num_units = 0
    for operation in align(*utterance.split(rules)):
        if operation.ref is not None:
            if num_units in word_ends:
                yield _AlignedUnits("", "", "")
            num_units += 1
        shown_ref, shown_hyp = _show_units(operation, GAP)
        mark = "" if operation.kind == "C" else operation.kind
        width = max(map(_num_columns, (shown_ref, shown_hyp, mark)))
        yield _AlignedUnits(
            ref=_pad(shown_ref, width), hyp=_pad(shown_hyp, width), mark=_pad(mark, width)
        )


def _pad(cell: str, width: int) -> str:
    """The text with spaces after it, so that a terminal uses `width` columns for it."""
    return cell + " " * (width - _num_columns(cell))


def _fold_columns(columns: Iterable[_AlignedUnits], width: int) -> list[list[_AlignedUnits]]:
    """The columns, divided into parts that fit into a display of this width.

    A part needs the width of the label, and that of its columns with a space after each. A column
    that is wider than the display is a part of its own. Without columns there is one empty part.
    """
    parts: list[list[_AlignedUnits]] = [[]]
    used = len(_REF_LABEL)
    for column in columns:
        needed = _num_columns(column.ref) + 1
        if parts[-1] and used + needed > width:
            parts.append([])
            used = len(_REF_LABEL)
        parts[-1].append(column)
        used += needed
    return parts


def _format_columns(columns: Sequence[_AlignedUnits], colour: bool) -> Iterator[str]:
    """The lines of the reference, of the hypothesis and, if there are errors, of the marks."""
    marks = [column.mark.strip() for column in columns]
    yield _format_row(_REF_LABEL, [column.ref for column in columns], marks, colour)
    yield _format_row(_HYP_LABEL, [column.hyp for column in columns], marks, colour)
    if any(marks):
        yield _format_row(_MARK_LABEL, [column.mark for column in columns], marks, colour)


def _format_row(label: str, cells: Sequence[str], marks: Sequence[str], colour: bool) -> str:
    """A label and cells; with `colour`, a cell whose mark is not empty has the colour of the mark."""
    shown = list[str]()
    for cell, mark in zip(cells, marks, strict=True):
        shown.append(f"{_COLOURS[mark]}{cell}{_RESET}" if colour and mark else cell)
    return (label + " ".join(shown)).rstrip()


# ---- confusions


@dataclass(frozen=True, slots=True)
class Confusion:
    """One pair of units and its frequency."""

    ref: str | None
    """None: an insertion."""
    hyp: str | None
    """None: a deletion."""
    count: int
    share: float
    """Fraction of all errors."""
    of_unit: float | None
    """Fraction of the occurrences of `ref` in the reference; None for an insertion."""


UnitPair = tuple[str | None, str | None]
"""A unit of the reference and one of the hypothesis; None for none."""


@dataclass(frozen=True, slots=True)
class Confusions:
    """The most frequent confusions of each kind, by falling count, then by units."""

    num_errors: int
    substitutions: tuple[Confusion, ...]
    deletions: tuple[Confusion, ...]
    insertions: tuple[Confusion, ...]


@dataclass(frozen=True, slots=True)
class ConfusionReport:
    """Confusions of all utterances and of each language."""

    most: int
    """The requested number per kind."""
    overall: Confusions
    languages: dict[str, Confusions]


def count_confusions(
    utterances: Iterable[ScoredUtterance], rules: Rules, most: int
) -> ConfusionReport:
    """The most frequent confusions of each kind, over all utterances and per language.

    The counts are from the same alignments that `score --align` shows. `most`: no more than this
    number per kind.
    """
    errors_by_lang: dict[str, Counter[UnitPair]] = {}
    units_by_lang: dict[str, Counter[str]] = {}
    for utterance in utterances:
        errors = errors_by_lang.setdefault(utterance.lang, Counter())
        units = units_by_lang.setdefault(utterance.lang, Counter())
        ref, hyp = utterance.split(rules)
        units.update(ref)
        if utterance.counts.errors:
            errors.update(_list_errors(ref, hyp))
    all_errors = sum(errors_by_lang.values(), Counter[UnitPair]())
    all_units = sum(units_by_lang.values(), Counter[str]())
    languages = {
        lang: _rank_confusions(errors_by_lang[lang], units_by_lang[lang], most)
        for lang in sorted(errors_by_lang)
    }
    return ConfusionReport(
        most=most,
        overall=_rank_confusions(all_errors, all_units, most),
        languages=languages,
    )


def _list_errors(ref: Sequence[str], hyp: Sequence[str]) -> list[UnitPair]:
    """The units of each substitution, deletion and insertion of an alignment."""
    operations = align(ref, hyp)
    return [(each.ref, each.hyp) for each in operations if each.ref != each.hyp]


def _rank_confusions(errors: Counter[UnitPair], units: Counter[str], most: int) -> Confusions:
    """The most frequent errors of each kind, by falling count, then by units.

    Args:
        errors: the number of each error.
        units: the number of each unit in the reference.
        most: no more than this number of errors per kind.
    """

    def order(pair: UnitPair) -> tuple[int, str, str]:
        ref, hyp = pair
        return (-errors[pair], ref or "", hyp or "")  # negative: high counts come first

    num_errors = errors.total()
    by_kind: dict[str, list[Confusion]] = {"S": [], "D": [], "I": []}
    for ref, hyp in sorted(errors, key=order):
        confusions_of_kind = by_kind[Operation(ref, hyp).kind]
        if len(confusions_of_kind) >= most:
            continue
        count = errors[ref, hyp]
        confusion = Confusion(
            ref=ref,
            hyp=hyp,
            count=count,
            share=count / num_errors,
            of_unit=None if ref is None else count / units[ref],
        )
        confusions_of_kind.append(confusion)
    return Confusions(
        num_errors=num_errors,
        substitutions=tuple(by_kind["S"]),
        deletions=tuple(by_kind["D"]),
        insertions=tuple(by_kind["I"]),
    )


@dataclass(frozen=True, slots=True)
class UnitRecall:
    """How often a unit of the reference was recognised."""

    unit: str
    count: int
    """Its occurrences in the reference."""
    num_right: int

    @property
    def recall(self) -> float:
        """Fraction of its occurrences that were recognised."""
        return self.num_right / self.count


def list_recalls(confusions: Confusions) -> list[UnitRecall]:
    """The units of the reference with an error, by rising recall.

    Units with the same recall are ordered by falling count, then by name. `confusions` must have
    all confusions, not only the most frequent ones.
    """
    num_wrong = Counter[str]()
    counts = dict[str, int]()
    for confusion in (*confusions.substitutions, *confusions.deletions):
        if confusion.ref is not None and confusion.of_unit:
            num_wrong[confusion.ref] += confusion.count
            # `of_unit` is this count divided by that of the unit in the reference.
            counts[confusion.ref] = round(confusion.count / confusion.of_unit)
    recalls = []
    for unit, num_errors in num_wrong.items():
        count = counts[unit]
        recalls.append(UnitRecall(unit=unit, count=count, num_right=count - num_errors))
    return sorted(recalls, key=lambda recall: (recall.recall, -recall.count, recall.unit))


def find_examples(
    utterances: Mapping[str, ScoredUtterance], rules: Rules, pairs: Iterable[Confusion]
) -> dict[UnitPair, str]:
    """The key of an example of each confusion: an utterance in which it occurs.

    It is the utterance with the fewest errors, and of several such the one with the first key. A
    confusion that is in no utterance is left out.
    """
    missing = {(pair.ref, pair.hyp) for pair in pairs}
    examples = dict[UnitPair, str]()
    few_errors_first = sorted(utterances, key=lambda key: (utterances[key].counts.errors, key))
    for key in few_errors_first:
        utterance = utterances[key]
        if not missing or not utterance.counts.errors:
            continue  # all have an example, or this utterance can be none
        ref, hyp = utterance.split(rules)
        new_pairs = missing.intersection(_list_errors(ref, hyp))
        examples |= dict.fromkeys(new_pairs, key)
        missing -= new_pairs
    return examples


def show_pair(pair: Confusion, *, gap: str, name_scripts: bool) -> list[str]:
    """Both units as `show_unit` shows them, `gap` for a missing one.

    With `name_scripts`, the scripts are added if two scripts are confused, whose units may be
    displayed alike: `a (Latin)`, `а (Cyrillic)`.
    """
    units = _show_units(pair, gap)
    if not name_scripts or pair.ref is None or pair.hyp is None:
        return units
    scripts = [script_of(pair.ref), script_of(pair.hyp)]
    are_two_known = all(scripts) and scripts[0] != scripts[1]
    if not are_two_known:
        return units
    return [f"{unit} ({script})" for unit, script in zip(units, scripts, strict=True)]


def _show_units(pair: Confusion | Operation, gap: str) -> list[str]:
    """The unit of the reference and of the hypothesis, `gap` for a missing one.

    Two units that differ only in what is not visible are shown so that they can be told apart.
    """
    if pair.ref is not None and pair.hyp is not None:
        return [*show_two(pair.ref, pair.hyp)]
    return [gap if unit is None else show_unit(unit) for unit in (pair.ref, pair.hyp)]
