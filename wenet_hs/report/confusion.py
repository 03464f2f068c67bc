# SPDX-License-Identifier: Apache-2.0
"""Which units are taken for which: a map of the most frequent ones, and a table a language can be picked from."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from html import escape

from wenet_hs.report.markup import missing, options, plain_table, section, table
from wenet_hs.report.material import Material
from wenet_hs.score import Report
from wenet_hs.score.confusions import (
    Confusion,
    ConfusionReport,
    Confusions,
    count_confusions,
    script_of,
    show_pair,
    show_unit,
)
from wenet_hs.score.error_rate import percent

MOST = 15  # of each kind in the table
MAP_SIZE = 16  # rows and columns of the map
_ALL_PAIRS = 1_000_000
ALL = ""  # no language has this name
_KINDS = (("substituted", "substitutions"), ("deleted", "deletions"), ("inserted", "insertions"))
_NONE = "—"
_OTHERS = ""  # no unit is empty


def confusion_section(material: Material) -> str:
    """Each experiment folded under its name, the first one open."""
    shown = material.shown
    if not shown:
        return section("confusions", "Confusions", missing("No confusions: no experiment has a score.json."))
    blocks = [_experiment(experiment.name, place, report, material) for place, experiment, report in shown]
    blocks[0] = blocks[0].replace("<details>", "<details open>", 1)
    return section("confusions", "Confusions between units", *blocks)


def _experiment(name: str, place: int, report: Report, material: Material) -> str:
    found = count_confusions(report.utterances.values(), report.rules, _ALL_PAIRS)
    heading = f"{name}, {material.mode}: {found.overall.num_errors:,} errors"
    if not found.overall.num_errors:
        return f"<details><summary>{escape(heading)}{material.said}</summary></details>"
    table_name = f"confusions-{place}"
    name_scripts = report.rules.metric != "per"  # phones are one alphabet, whatever Unicode calls its letters
    parts = (
        _map(found.overall, material.said, name_scripts=name_scripts),
        _filter(table_name, found),
        _table(table_name, found, material.said, name_scripts=name_scripts),
    )
    body = "\n".join(part for part in parts if part)
    return f"<details><summary>{escape(heading)}{material.said}</summary>\n{body}</details>"


def _filter(name: str, found: ConfusionReport) -> str:
    if len(found.languages) < 2:
        return ""
    choices = [(ALL, "all languages"), *((lang, lang) for lang in found.languages)]
    return (
        f'<p class="controls js"><label>Language <select data-filter="{name}" data-field="lang">{options(choices)}'
        "</select></label></p>"
    )


def _table(name: str, found: ConfusionReport, said: str, *, name_scripts: bool) -> str:
    languages: Mapping[str, Confusions] = found.languages if len(found.languages) > 1 else {}
    rows, attributes = [], []
    for lang, confusions in {ALL: found.overall, **languages}.items():
        for row in _rows(confusions, name_scripts):
            rows.append([lang or "all", *row])
            attributes.append(f' data-lang="{escape(lang)}"' + ("" if lang == ALL else " hidden"))
    names = ["language", "kind", "reference", "recognised", "count", "of errors, %", "of the unit, %"]
    caption = (
        f"The most frequent errors of each kind{said}, at most {MOST}. "
        "Of the unit: the share of its occurrences in the reference."
    )
    return plain_table(names, rows, caption=caption, name=name, attributes=attributes)


def _rows(confusions: Confusions, name_scripts: bool) -> Iterator[list[str]]:
    for kind, field in _KINDS:
        pairs: Sequence[Confusion] = getattr(confusions, field)
        for pair in pairs[:MOST]:
            units = show_pair(pair, gap=_NONE, name_scripts=name_scripts)
            of_unit = "" if pair.of_unit is None else percent(pair.of_unit)
            yield [kind, *units, f"{pair.count:,}", percent(pair.share), of_unit]


def _map(found: Confusions, said: str, *, name_scripts: bool) -> str:
    """The same units as rows (reference) and columns (recognised), the darker the more often; "" without substitutions.

    All other units are one row and one column, so that every sum is whole.
    """
    if not found.substitutions:
        return ""
    pairs = [(pair.ref, pair.hyp, pair.count) for of_kind in _kinds(found) for pair in of_kind]
    units = _most((unit, count) for ref, hyp, count in pairs for unit in (ref, hyp) if unit is not None)
    counts = Counter[tuple[str | None, str | None]]()
    for ref, hyp, count in pairs:
        counts[_place(ref, units), _place(hyp, units)] += count
    named = name_scripts and len({script_of(unit) for unit in units} - {""}) > 1
    columns = [*units, *(end for end in (_OTHERS, None) if any(hyp == end for _, hyp in counts))]
    rows = [*units, *(end for end in (_OTHERS, None) if any(ref == end for ref, _ in counts))]
    top = max((count for pair, count in counts.items() if _OTHERS not in pair), default=1)
    body = (
        f'<tr><th scope="row">{_label(ref, "inserted", named=named)}</th>'
        + "".join(_shade(counts[ref, hyp], None if _OTHERS in (ref, hyp) else top) for hyp in columns)
        + "</tr>"
        for ref in rows
    )
    names = "".join(f'<th scope="col">{_label(hyp, "left out", named=named)}</th>' for hyp in columns)
    header = f'<tr><th scope="col">unit</th>{names}</tr>'
    return f'<div class="map">{table([header], body, caption=_map_caption(len(units), said, _OTHERS in columns))}</div>'


def _map_caption(num_units: int, said: str, with_others: bool) -> str:
    text = f"How often a reference unit (row) was recognised as another (column){said}. "
    if not with_others:
        return text + f"All {num_units} units that an error has."
    return text + (
        f"The {num_units} units of the most errors, as reference and as recognised together; all rarer ones are summed "
        "under others, uncoloured."
    )


def _kinds(found: Confusions) -> tuple[Sequence[Confusion], ...]:
    return found.substitutions, found.deletions, found.insertions


def _place(unit: str | None, units: Collection[str]) -> str | None:
    """The row or column of a unit; None, nothing at all, has its own."""
    return unit if unit is None or unit in units else _OTHERS


def _label(unit: str | None, nothing: str, *, named: bool) -> str:
    """HTML of a unit, or of `nothing`; `named` adds its script, for letters of two may look alike."""
    if unit is None or unit == _OTHERS:
        return nothing if unit is None else "others"
    script = script_of(unit) if named else ""
    return escape(show_unit(unit)) + (f' <span class="script">{escape(script)}</span>' if script else "")


def _most(counts: Iterable[tuple[str, int]]) -> list[str]:
    total = Counter[str]()
    for unit, count in counts:
        total[unit] += count
    return sorted(total, key=lambda unit: (-total[unit], unit))[:MAP_SIZE]


def _shade(count: int, top: int | None) -> str:
    """A cell, darker with the root of its count, so that rare ones can be seen; without `top` it has no colour."""
    style = f' style="--w:{(count / top) ** 0.5:.2f}"' if top and count else ""
    return f"<td{style}>{count:,}</td>" if count else "<td></td>"
