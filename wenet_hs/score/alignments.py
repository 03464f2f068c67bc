# SPDX-License-Identifier: Apache-2.0
"""Aligned transcripts as text, and the most frequent confusions."""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TextIO

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
_width = lru_cache(maxsize=2**14)(cell_len)


def _heading(report: Report, key: str, utterance: ScoredUtterance) -> str:
    """Key, language, rate and counts of one utterance."""
    counts, name = utterance.counts, report.rules.metric.upper()
    letters = (
        f"N={counts.num_units} S={counts.substitutions} D={counts.deletions} I={counts.insertions}"
    )
    rate = UNDEFINED if counts.rate is None else f"{percent(counts.rate)} %"
    note = "  (no hypothesis)" if utterance.hyp is None else ""
    return f"{key}  {utterance.lang}  {name} {rate}  {letters}{note}"


# ---- alignments

_COLOURS = {
    "S": "\033[33m",
    "D": "\033[31m",
    "I": "\033[36m",
}  # yellow, red, cyan: most eyes can distinguish them
_BOLD, _RESET = "\033[1m", "\033[0m"
_LABELS = ("ref: ", "hyp: ", "     ")  # the columns begin after them


def wants_colour(stream: TextIO) -> bool:
    """Whether to write colours: the stream is a terminal that supports them, and NO_COLOR is not
    set.
    """
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def format_alignments(
    report: Report, *, width: int = sys.maxsize, colour: bool = False, all_shown: bool = True
) -> str:
    """The utterances, worst first: rate, reference, hypothesis, and a line of S, D and I below the
    errors.

    Args:
        width: columns; longer alignments are folded.
        colour: mark errors also by colour.
        all_shown: also the utterances without an error.
    """
    keys = [
        key for key in worst_first([report]) if all_shown or report.utterances[key].counts.errors
    ]
    width = max(width, 20)
    blocks = []
    for key in keys:
        utterance = report.utterances[key]
        heading = _heading(
            report, key, utterance
        )  # on one line, which a terminal folds so that it can be copied
        lines = [f"{_BOLD}{heading}{_RESET}" if colour else heading]
        lines += _fold_columns(list(_columns(utterance, report.rules)), width, colour)
        blocks.append("\n".join(lines) + "\n")
    if right := len(report.utterances) - len(keys):
        blocks.append(f"{count_of(right, 'utterance')} without an error not shown\n")
    return "\n".join(blocks)


def _columns(utterance: ScoredUtterance, rules: Rules) -> Iterator[tuple[str, str, str]]:
    """Reference, hypothesis and mark of each operation, padded to equal width.

    Between words of letters there is an empty column, unless spaces are units.
    """
    separate = rules.metric == "cer" and rules.spaces == "ignore"
    starts = (
        set(accumulate(word_lengths(utterance.ref, rules, utterance.lang))) if separate else set()
    )
    num_units = 0
    for operation in align(*utterance.split(rules)):
        if operation.ref is not None:
            if num_units in starts:
                yield "", "", ""
            num_units += 1
        cells = _show_units(operation, GAP)
        cells.append("" if operation.kind == "C" else operation.kind)
        width = max(map(_width, cells))
        ref, hyp, mark = (cell + " " * (width - _width(cell)) for cell in cells)
        yield ref, hyp, mark


def _fold_columns(
    columns: Sequence[tuple[str, str, str]], width: int, colour: bool
) -> Iterator[str]:
    """Lines of reference, hypothesis and, if there are errors, marks."""
    parts: list[list[tuple[str, str, str]]] = [[]]
    used = len(_LABELS[0])
    for column in columns:
        needed = _width(column[0]) + 1
        if parts[-1] and used + needed > width:
            parts.append([])
            used = len(_LABELS[0])
        parts[-1].append(column)
        used += needed
    for part in parts:
        kinds = [mark.strip() for _, _, mark in part]
        for label, row in zip(_LABELS, zip(*part, strict=True), strict=True):
            if label.strip() or any(kinds):
                both = zip(row, kinds, strict=True)
                cells = [
                    f"{_COLOURS[kind]}{cell}{_RESET}" if colour and kind else cell
                    for cell, kind in both
                ]
                yield (label + " ".join(cells)).rstrip()


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
    """Fraction of the unit's occurrences in the reference; None for an insertion."""


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
    """The `most` frequent confusions of each kind, over all utterances and per language.

    The counts are from the same alignments that `score --align` shows.
    """
    pairs: dict[str, Counter[tuple[str | None, str | None]]] = {}
    units: dict[str, Counter[str]] = {}
    for utterance in utterances:
        ref, hyp = utterance.split(rules)
        operations = align(ref, hyp) if utterance.counts.errors else ()
        units.setdefault(utterance.lang, Counter()).update(ref)
        wrong = ((found.ref, found.hyp) for found in operations if found.ref != found.hyp)
        pairs.setdefault(utterance.lang, Counter()).update(wrong)
    overall = _rank(sum(pairs.values(), Counter()), sum(units.values(), Counter()), most)
    return ConfusionReport(
        most, overall, {lang: _rank(pairs[lang], units[lang], most) for lang in sorted(pairs)}
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


def list_recalls(found: Confusions) -> list[UnitRecall]:
    """The units of the reference with an error, by rising recall; `found` has all confusions."""
    wrong, counts = Counter[str](), dict[str, int]()
    for pair in (*found.substitutions, *found.deletions):
        if pair.ref is not None and pair.of_unit:
            wrong[pair.ref] += pair.count
            counts[pair.ref] = round(pair.count / pair.of_unit)
    recalls = [
        UnitRecall(unit, counts[unit], counts[unit] - number) for unit, number in wrong.items()
    ]
    return sorted(recalls, key=lambda one: (one.recall, -one.count, one.unit))


def find_examples(
    utterances: Mapping[str, ScoredUtterance], rules: Rules, pairs: Iterable[Confusion]
) -> dict[tuple[str | None, str | None], str]:
    """Each pair of units → the key of the utterance with this confusion that has the fewest other
    errors.
    """
    wanted, examples = (
        {(pair.ref, pair.hyp) for pair in pairs},
        dict[tuple[str | None, str | None], str](),
    )
    for key, utterance in sorted(
        utterances.items(), key=lambda item: (item[1].counts.errors, item[0])
    ):
        if wanted and utterance.counts.errors:
            found = wanted & {(one.ref, one.hyp) for one in align(*utterance.split(rules))}
            examples |= dict.fromkeys(found, key)
            wanted -= found
    return examples


def _rank(
    pairs: Counter[tuple[str | None, str | None]], units: Counter[str], most: int
) -> Confusions:
    """The `most` frequent of the wrong pairs; `units` counts the units of the reference."""
    num_errors = pairs.total()
    kinds: dict[str, list[Confusion]] = {"S": [], "D": [], "I": []}
    for (ref, hyp), number in sorted(
        pairs.items(), key=lambda item: (-item[1], item[0][0] or "", item[0][1] or "")
    ):
        kind = kinds["I" if ref is None else "D" if hyp is None else "S"]
        if len(kind) < most:
            of_unit = None if ref is None else number / units[ref]
            kind.append(Confusion(ref, hyp, number, number / num_errors, of_unit))
    return Confusions(num_errors, *map(tuple, kinds.values()))


def show_pair(pair: Confusion, *, gap: str, name_scripts: bool) -> list[str]:
    """Both units as `show_unit`, `gap` for none, and their scripts if two scripts are confused:
    they may look alike.
    """
    units = _show_units(pair, gap)
    scripts = [script_of(unit) for unit in (pair.ref, pair.hyp) if unit is not None]
    if name_scripts and len(set(scripts)) == 2 and all(scripts):
        return [f"{unit} ({script})" for unit, script in zip(units, scripts, strict=True)]
    return units


def _show_units(pair: Confusion | Operation, gap: str) -> list[str]:
    if pair.ref is None or pair.hyp is None:
        return [gap if unit is None else show_unit(unit) for unit in (pair.ref, pair.hyp)]
    return [*show_two(pair.ref, pair.hyp)]
