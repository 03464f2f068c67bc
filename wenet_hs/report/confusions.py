# SPDX-License-Identifier: Apache-2.0
"""The section of the report about confusions between units: a map and tables."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wenet_hs.report.page_table import NONE
from wenet_hs.results.report_data import ReportData, ShownExperiment
from wenet_hs.score.alignments import (
    Confusion,
    Confusions,
    UnitPair,
    count_confusions,
    show_pair,
)
from wenet_hs.score.error_rate import percent
from wenet_hs.score.tables import TableRecord
from wenet_hs.text.units import script_of, show_unit

MAX_CONFUSIONS = 15  # of each kind in the table
MAP_SIZE = 16  # units with a row and a column of their own in the map
_OTHERS = ""  # stands for all rarer units in the map; no unit is empty
_ALL_LANGUAGES = "all"  # the template shows these rows first


class UnitLabel(NamedTuple):
    """The name of a row or column of a map."""

    text: str
    script: str
    """Empty if all units have one script."""


class MapCell(NamedTuple):
    """One cell of a map."""

    num_errors: int
    weight: float
    """From 0 to 1: how strongly the cell is coloured."""


class MapRow(NamedTuple):
    """One row of a map."""

    label: UnitLabel
    cells: list[MapCell]


@dataclass(frozen=True, kw_only=True)
class ConfusionMap:
    """How often each reference unit (row) was recognised as another unit (column)."""

    columns: list[UnitLabel]
    rows: list[MapRow]
    num_units: int
    """Units with a row and a column of their own."""
    has_others: bool
    """Whether all rarer units are one more row or column."""


@dataclass(frozen=True, kw_only=True)
class SystemConfusions:
    """The confusions of one experiment."""

    name: str
    table_id: str
    """The HTML id of the table."""
    num_errors: int
    map: ConfusionMap | None
    """None without a substitution."""
    langs: list[str]
    """The languages with rows of their own in the table; empty if there is only one language."""
    table: list[TableRecord]


def confusions_section(data: ReportData) -> dict[str, Any]:
    """The variables of `confusions.html`: a map and a table for each shown experiment."""
    systems = [_find_confusions(shown) for shown in data.shown]
    return {"systems": systems, "max_confusions": MAX_CONFUSIONS}


def _find_confusions(shown: ShownExperiment) -> SystemConfusions:
    """The map and the table of one experiment.

    With several languages the table has a column of languages: rows for all of them together, then
    for each one.
    """
    report = shown.report
    # All confusions: the map adds up the rare ones.
    confusions = count_confusions(report.utterances.values(), report.rules, most=sys.maxsize)
    has_scripts = report.rules.metric != "per"  # all phones are one alphabet
    confusion_map = None
    if confusions.overall.substitutions:
        confusion_map = _make_map(confusions.overall, has_scripts)
    langs = list(confusions.languages) if len(confusions.languages) > 1 else []
    groups = {_ALL_LANGUAGES: confusions.overall}
    for lang in langs:
        groups[lang] = confusions.languages[lang]
    table = list[TableRecord]()
    for group, confusions_of_group in groups.items():
        language_cell = {"language": group} if langs else {}
        for record in _confusion_records(confusions_of_group, has_scripts):
            table.append(language_cell | record)
    return SystemConfusions(
        name=shown.experiment.name,
        table_id=f"confusions-{shown.number}",
        num_errors=confusions.overall.num_errors,
        map=confusion_map,
        langs=langs,
        table=table,
    )


# ---- the table


def _confusion_records(confusions: Confusions, name_scripts: bool) -> Iterator[TableRecord]:
    """A row for each of the MAX_CONFUSIONS most frequent errors of each kind.

    A dash stands for the reference of an insertion, and for the recognised unit of a deletion.

    `name_scripts`: the script of both units is added if they have different ones.
    """
    pairs_by_kind = {
        "substituted": confusions.substitutions,
        "deleted": confusions.deletions,
        "inserted": confusions.insertions,
    }
    for kind, pairs in pairs_by_kind.items():
        for pair in pairs[:MAX_CONFUSIONS]:
            ref, hyp = show_pair(pair, gap=NONE, name_scripts=name_scripts)
            yield {
                "kind": kind,
                "reference": ref,
                "recognised": hyp,
                "count": f"{pair.count:,}",
                "of errors, %": percent(pair.share),
                # An inserted unit is no unit of the reference.
                "of the unit, %": "" if pair.of_unit is None else percent(pair.of_unit),
            }


# ---- the map


def _make_map(confusions: Confusions, has_scripts: bool) -> ConfusionMap:
    """The counts of the most confused units, as rows (reference) and columns (recognised).

    All rarer units are one row and one column, so that all errors are in the map. The last row has
    insertions, the last column deletions. These rows and columns are left out if they are empty.

    `has_scripts`: whether the units have scripts, which are named if there are several.
    """
    pairs = [*confusions.substitutions, *confusions.deletions, *confusions.insertions]
    units = _most_confused_units(pairs)
    counts = _count_cells(pairs, units)
    refs = {ref for ref, _ in counts}
    hyps = {hyp for _, hyp in counts}
    row_units: list[str | None] = [*units]
    column_units: list[str | None] = [*units]
    # Last come all rarer units (_OTHERS), then no unit (None), which is an insertion or deletion.
    for unit in (_OTHERS, None):
        if unit in refs:
            row_units.append(unit)
        if unit in hyps:
            column_units.append(unit)
    scripts = set(map(script_of, units)) - {""}  # empty: the unit is no letter
    name_scripts = has_scripts and len(scripts) > 1
    coloured = [count for cell, count in counts.items() if _OTHERS not in cell]
    largest = max(coloured, default=1)  # without a coloured cell nothing is divided by it
    rows = list[MapRow]()
    for ref in row_units:
        cells = [_make_cell(counts, ref, hyp, largest) for hyp in column_units]
        rows.append(MapRow(_make_label(ref, "inserted", name_scripts), cells))
    return ConfusionMap(
        columns=[_make_label(hyp, "left out", name_scripts) for hyp in column_units],
        rows=rows,
        num_units=len(units),
        has_others=_OTHERS in row_units or _OTHERS in column_units,
    )


def _most_confused_units(pairs: Sequence[Confusion]) -> list[str]:
    """The MAP_SIZE units with the most errors, as reference and as recognised unit together.

    Those with equally many errors are in alphabetical order.
    """
    num_errors = Counter[str]()
    for pair in pairs:
        for unit in (pair.ref, pair.hyp):
            if unit is not None:
                num_errors[unit] += pair.count
    ordered = sorted(num_errors, key=lambda unit: (-num_errors[unit], unit))
    return ordered[:MAP_SIZE]


def _count_cells(pairs: Sequence[Confusion], units: Sequence[str]) -> Counter[UnitPair]:
    """The number of errors of each cell of the map, by reference and recognised unit.

    Units that are not in `units` are _OTHERS. None as reference is an insertion, None as recognised
    unit a deletion.
    """
    with_own_cells = {None, *units}
    counts = Counter[UnitPair]()
    for pair in pairs:
        ref = pair.ref if pair.ref in with_own_cells else _OTHERS
        hyp = pair.hyp if pair.hyp in with_own_cells else _OTHERS
        counts[ref, hyp] += pair.count
    return counts


def _make_cell(
    counts: Counter[UnitPair], ref: str | None, hyp: str | None, largest: int
) -> MapCell:
    """A cell with its number of errors, and a weight that makes small numbers visible too.

    The weight is the root of the share of `largest`, the largest number of a cell. Cells of _OTHERS
    have the weight 0: they are sums of many cells.
    """
    num_errors = counts[ref, hyp]
    if _OTHERS in (ref, hyp):
        return MapCell(num_errors, weight=0.0)
    return MapCell(num_errors, weight=(num_errors / largest) ** 0.5)


def _make_label(unit: str | None, absent: str, name_scripts: bool) -> UnitLabel:
    """The label of a row or column, with the script of its unit if `name_scripts`.

    It is `absent` for None, which is no unit, and `others` for _OTHERS, which is all rarer units.
    """
    if unit is None:
        return UnitLabel(absent, script="")
    if unit == _OTHERS:
        return UnitLabel("others", script="")
    return UnitLabel(show_unit(unit), script=script_of(unit) if name_scripts else "")
