# SPDX-License-Identifier: Apache-2.0
"""The section of the report about confusions between units: a map and tables."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from wenet_hs.report.page_table import NONE
from wenet_hs.results.report_data import ReportData
from wenet_hs.score.alignments import Confusions, count_confusions, show_pair
from wenet_hs.score.error_rate import percent
from wenet_hs.score.tables import TableRecord
from wenet_hs.text.units import script_of, show_unit

MAX_CONFUSIONS = 15  # of each kind in the table
MAP_SIZE = 16  # rows and columns of the map
_OTHERS = ""  # no unit is empty


def confusions_section(data: ReportData) -> dict[str, Any]:
    """A map of the most confused units and a table per language, for each experiment."""
    systems = []
    for index, experiment, report in data.shown:
        found = count_confusions(report.utterances.values(), report.rules, 1_000_000)
        has_scripts = report.rules.metric != "per"  # all phones are one alphabet
        langs = found.languages if len(found.languages) > 1 else {}
        records = [
            ({"language": lang} if langs else {}) | record
            for lang, confusions in {"all": found.overall, **langs}.items()
            for record in _confusion_records(confusions, has_scripts)
        ]
        systems.append(
            {
                "name": experiment.name,
                "table_id": f"confusions-{index}",
                "num_errors": found.overall.num_errors,
                "map": _confusion_map(found.overall, has_scripts)
                if found.overall.substitutions
                else None,
                "langs": list(langs),
                "table": records,
            }
        )
    return {"systems": systems, "max_confusions": MAX_CONFUSIONS}


def _confusion_records(found: Confusions, name_scripts: bool) -> Iterator[TableRecord]:
    kinds = {
        "substituted": found.substitutions,
        "deleted": found.deletions,
        "inserted": found.insertions,
    }
    for kind, pairs in kinds.items():
        for pair in pairs[:MAX_CONFUSIONS]:
            ref, hyp = show_pair(pair, gap=NONE, name_scripts=name_scripts)
            of_unit = "" if pair.of_unit is None else percent(pair.of_unit)
            record = {"kind": kind, "reference": ref, "recognised": hyp, "count": f"{pair.count:,}"}
            yield record | {"of errors, %": percent(pair.share), "of the unit, %": of_unit}


def _confusion_map(found: Confusions, has_scripts: bool) -> dict[str, Any]:
    """Counts of the most confused units, as rows (reference) and columns (recognised).

    All rarer units are one row and one column, so that all errors are in the map. A cell's weight
    is the root of its share of the largest count, so that small counts stay visible.
    """
    pairs = (*found.substitutions, *found.deletions, *found.insertions)
    totals = Counter[str]()
    for pair in pairs:
        totals.update({unit: pair.count for unit in (pair.ref, pair.hyp) if unit is not None})
    units = sorted(totals, key=lambda unit: (-totals[unit], unit))[:MAP_SIZE]
    counts = Counter[tuple[str | None, str | None]]()
    for pair in pairs:
        ref, hyp = (
            unit if unit is None or unit in units else _OTHERS for unit in (pair.ref, pair.hyp)
        )
        counts[ref, hyp] += pair.count
    rows = [*units, *(end for end in (_OTHERS, None) if any(ref == end for ref, _ in counts))]
    columns = [*units, *(end for end in (_OTHERS, None) if any(hyp == end for _, hyp in counts))]
    top = max((count for cell, count in counts.items() if _OTHERS not in cell), default=1)
    name_scripts = has_scripts and len({*map(script_of, units)} - {""}) > 1
    labels = {unit: (show_unit(unit), script_of(unit) if name_scripts else "") for unit in units}
    labels[_OTHERS] = "others", ""

    def cell(ref: str | None, hyp: str | None) -> tuple[int, float]:
        count = counts[ref, hyp]
        return count, 0.0 if _OTHERS in (ref, hyp) else (count / top) ** 0.5

    return {
        "columns": [("left out", "") if hyp is None else labels[hyp] for hyp in columns],
        "rows": [
            (("inserted", "") if ref is None else labels[ref], [cell(ref, hyp) for hyp in columns])
            for ref in rows
        ],
        "num_units": len(units),
        "has_others": _OTHERS in columns,
    }
