# SPDX-License-Identifier: Apache-2.0
"""Aligned transcripts as text: for a file, for a terminal, and in the layout of WeNet's scorer."""

import os
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, islice, zip_longest
from typing import TextIO

from rich.cells import cell_len

from wenet_hs.score.confusions import show_unit
from wenet_hs.score.edit_distance import ErrorCounts, Operation, Run, align, align_runs
from wenet_hs.score.error_rate import UNDEFINED, Report, ScoredUtterance, count_of, percent, worst_first
from wenet_hs.score.tables import GAP
from wenet_hs.score.units import Rules, word_lengths

_width = lru_cache(maxsize=2**14)(cell_len)


def format_alignments(report: Report) -> str:
    """Every utterance with its rate and its transcripts in two aligned lines, worst first."""
    blocks = []
    for key in worst_first([report]):
        utterance = report.utterances[key]
        ref, hyp = (" ".join(cells).rstrip() for cells in _aligned_cells(align_runs(*utterance.split(report.rules))))
        blocks.append(f"{_heading(report, key, utterance)}\nref: {ref}\nhyp: {hyp}\n")
    return f"{report.signature}\n\n" + "\n".join(blocks)


def _heading(report: Report, key: str, utterance: ScoredUtterance) -> str:
    """Key, language, rate and counts of one utterance."""
    counts, name = utterance.counts, report.rules.metric.upper()
    letters = f"N={counts.num_units} S={counts.substitutions} D={counts.deletions} I={counts.insertions}"
    rate = UNDEFINED if counts.rate is None else f"{percent(counts.rate)} %"
    note = "  (no hypothesis)" if utterance.hyp is None else ""
    return f"{key}  {utterance.lang}  {name} {rate}  {letters}{note}"


def _aligned_cells(runs: Iterable[Run], *, gap: str = GAP, padding: str = " ") -> tuple[list[str], list[str]]:
    """The units of both sides, `gap` for none. Each pair is padded to equal width on a terminal."""
    refs: list[str] = []
    hyps: list[str] = []
    for ref_run, hyp_run in runs:
        if ref_run == hyp_run:
            shown = [*map(show_unit, ref_run)]
            refs += shown
            hyps += shown
            continue
        for ref_unit, hyp_unit in zip_longest(ref_run, hyp_run, fillvalue=gap):
            ref, hyp = show_unit(ref_unit), show_unit(hyp_unit)
            excess = _width(ref) - _width(hyp)
            refs.append(ref + padding * -excess)
            hyps.append(hyp + padding * excess)
    return refs, hyps


# ---- terminal

_COLOURS = {"S": "\033[33m", "D": "\033[31m", "I": "\033[36m"}  # yellow, red, cyan: most eyes can distinguish them
_BOLD, _RESET = "\033[1m", "\033[0m"
_LABELS = ("ref: ", "hyp: ", "     ")
_MIN_WIDTH = 20

_Column = tuple[str, str, str]
"""Reference, hypothesis and mark of one operation, padded to equal width."""


def wants_colour(stream: TextIO) -> bool:
    """Whether to write colours: the stream is a terminal that supports them, and NO_COLOR is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_alignments(report: Report, *, width: int, colour: bool) -> str:
    """The utterances with errors, worst first: reference, hypothesis, and a line of S, D and I below the errors.

    Args:
        width: columns of the terminal; longer alignments are folded.
        colour: mark errors also by colour.
    """
    wrong = [key for key in worst_first([report]) if report.utterances[key].counts.errors]
    width = max(width, _MIN_WIDTH)
    blocks = []
    for key in wrong:
        utterance = report.utterances[key]
        title = _fold_heading(_heading(report, key, utterance), width)
        columns = list(_columns(utterance, report.rules))
        lines = [f"{_BOLD}{line}{_RESET}" if colour else line for line in title]
        blocks.append("\n".join([*lines, *_fold_columns(columns, width, colour)]) + "\n")
    right = len(report.utterances) - len(wrong)
    if right:
        blocks.append(f"{count_of(right, 'utterance')} without an error not shown\n")
    return "\n".join(blocks)


def _fold_heading(text: str, width: int) -> list[str]:
    """Break the heading only between its parts, so that a key stays whole and can be copied."""
    first, *rest = text.split("  ")
    lines = [first]
    for part in rest:
        joined = f"{lines[-1]}  {part}"
        if cell_len(joined) > width:
            lines.append(part)
        else:
            lines[-1] = joined
    return lines


def _columns(utterance: ScoredUtterance, rules: Rules) -> Iterator[_Column]:
    """One column per operation. Between words of letters there is an empty one, unless spaces are units."""
    separate = rules.metric == "cer" and rules.spaces == "ignore"
    starts = set(accumulate(word_lengths(utterance.ref, rules, utterance.lang))) if separate else set()
    num_units = 0
    for operation in align(*utterance.split(rules)):
        if operation.ref is not None:
            if num_units in starts:
                yield "", "", ""
            num_units += 1
        yield _column(operation)


def _column(operation: Operation) -> _Column:
    ref, hyp = (GAP if unit is None else show_unit(unit) for unit in (operation.ref, operation.hyp))
    mark = "" if operation.kind == "C" else operation.kind
    width = max(cell_len(ref), cell_len(hyp), len(mark))
    return ref + " " * (width - cell_len(ref)), hyp + " " * (width - cell_len(hyp)), mark.ljust(width)


def _fold_columns(columns: Sequence[_Column], width: int, colour: bool) -> Iterator[str]:
    start, used = 0, len(_LABELS[0])
    for index, column in enumerate(columns):
        needed = cell_len(column[0]) + 1
        if index > start and used + needed > width:
            yield from _column_lines(columns[start:index], colour)
            start, used = index, len(_LABELS[0])
        used += needed
    yield from _column_lines(columns[start:], colour)


def _column_lines(columns: Sequence[_Column], colour: bool) -> Iterator[str]:
    """Reference, hypothesis and, if there are errors, marks."""
    for row, label in enumerate(_LABELS):
        cells = [_colour(column[row], column[2].strip(), colour) for column in columns]
        if row < 2 or any(column[2].strip() for column in columns):
            yield (label + " ".join(cells)).rstrip()


def _colour(cell: str, kind: str, colour: bool) -> str:
    return f"{_COLOURS[kind]}{cell}{_RESET}" if colour and kind in _COLOURS else cell


# ---- WeNet's layout

_RULE = "=" * 75
_SCRIPTS = {
    "DIGIT": "Number",
    "CJK UNIFIED IDEOGRAPH": "Mandarin",
    "CJK COMPATIBILITY IDEOGRAPH": "Mandarin",
    "LATIN CAPITAL LETTER": "English",
    "LATIN SMALL LETTER": "English",
    "HIRAGANA LETTER": "Japanese",
}
_OTHER = "Other"


@dataclass(frozen=True, kw_only=True)
class WenetLayout:
    """The output options of WeNet's compute-wer.py and compute-cer.py."""

    verbose: int = 1
    """0: only the overall line; 1: also every utterance and the clusters; 2: with the key on each line."""
    max_units: int = sys.maxsize
    """Units per line (`--maxw`)."""
    padding: str = " "
    """The character that fills the narrower of two units (`--padding-symbol`)."""
    clusters: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Units by name of their cluster (`--cluster`); each cluster has a line of its own."""


def format_wenet(report: Report, layout: WenetLayout | None = None) -> str:
    """The report in WeNet's layout: each utterance, the overall line, one line per script and cluster.

    An undefined rate is 0.00. A substitution and a deletion belong to the cluster of the reference's unit, an insertion
    to the cluster of the inserted unit.
    """
    layout = layout or WenetLayout()
    overall = f"Overall -> {_wenet_counts(report.micro.counts)}"
    if not layout.verbose:
        return f"{overall}\n\n"
    lines: list[str] = []
    units: dict[str, list[str]] = {"C": [], "S": [], "D": [], "I": []}
    for key, utterance in report.utterances.items():
        runs = list(align_runs(*utterance.split(report.rules)))
        for refs, hyps in runs:
            units["C" if refs == hyps else "I" if not refs else "S" if hyps else "D"] += refs or hyps
        lines += ["", f"utt: {key}", f"WER: {_wenet_counts(utterance.counts)}", *_wenet_pairs(key, runs, layout)]
    lines += [_RULE, "", overall, *_wenet_clusters(units, layout), "", _RULE]
    return "\n".join(lines) + "\n"


def _wenet_pairs(key: str, runs: Sequence[Run], layout: WenetLayout) -> Iterator[str]:
    """The aligned units, `max_units` per line, and an empty line after each pair of lines."""
    names = [f"{name}({key})" if layout.verbose > 1 else name for name in ("lab", "rec")]
    both = [iter(cells) for cells in _aligned_cells(runs, gap="", padding=layout.padding)]
    first = True
    while (parts := [list(islice(cells, layout.max_units)) for cells in both])[0] or first:
        yield from (f"{name}: {' '.join(part)}".rstrip() for name, part in zip(names, parts, strict=True))
        yield ""
        first = False


def _wenet_clusters(units: Mapping[str, Sequence[str]], layout: WenetLayout) -> Iterator[str]:
    """The counts of each script, and of the clusters of the layout."""
    correct, substituted, deleted, inserted = (Counter(units[kind]) for kind in "CSDI")
    counts_of = {
        unit: ErrorCounts(
            correct[unit] + substituted[unit] + deleted[unit], substituted[unit], deleted[unit], inserted[unit]
        )
        for unit in dict.fromkeys([*correct, *substituted, *deleted, *inserted])
    }
    found: dict[str, ErrorCounts] = {}
    for unit, counts in counts_of.items():
        name = script_cluster(unit)
        found[name] = found.get(name, ErrorCounts()) + counts
    for name, counts in found.items():
        yield f"{name} -> {_wenet_counts(counts)}"
    for name, members in layout.clusters.items():
        total = sum((counts_of.get(unit, ErrorCounts()) for unit in members), ErrorCounts())
        yield f"{name} -> {_wenet_counts(total)}"


@lru_cache(maxsize=2**14)
def script_cluster(unit: str) -> str:
    """WeNet's name of the script of a unit. English is any Latin; Other is mixed or any other script."""
    names = set()
    for character in unit:
        name = unicodedata.name(character, "")
        if unicodedata.category(character)[0] in "MPS":
            continue  # marks and signs belong to their letter or word
        names.add(next((cluster for start, cluster in _SCRIPTS.items() if name.startswith(start)), _OTHER))
    return names.pop() if len(names) == 1 else _OTHER


def _wenet_counts(counts: ErrorCounts) -> str:
    correct = counts.num_units - counts.substitutions - counts.deletions
    numbers = f"N={counts.num_units} C={correct} S={counts.substitutions} D={counts.deletions} I={counts.insertions}"
    return f"{100 * (counts.rate or 0.0):4.2f} % {numbers}"
