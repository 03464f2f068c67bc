# SPDX-License-Identifier: Apache-2.0
"""Which units are taken for which: a map of the most frequent ones, and a table a language can be picked from."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from wenet_hs.report.markup import missing, options, plain_table, section, table
from wenet_hs.report.material import Material
from wenet_hs.score import Report
from wenet_hs.score.confusions import Confusion, ConfusionReport, Confusions, count_confusions
from wenet_hs.score.table import percent, script_of, show_pair, show_unit

MOST = 15  # of each kind in the table
MAP_SIZE = 16  # rows and columns of the map
_ALL_PAIRS = 1_000_000
ALL = ""  # no language has this name
_KINDS = (("substituted", "substitutions"), ("deleted", "deletions"), ("inserted", "insertions"))
_NONE = "—"


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
            units = show_pair(pair.ref, pair.hyp, gap=_NONE, name_scripts=name_scripts)
            of_unit = "" if pair.of_unit is None else percent(pair.of_unit)
            yield [kind, *units, f"{pair.count:,}", percent(pair.share), of_unit]


def _map(found: Confusions, said: str, *, name_scripts: bool) -> str:
    """Reference units (rows) × what stands for them (columns), the darker the more often; "" without substitutions."""
    counts = {(pair.ref or "", pair.hyp or ""): pair.count for pair in (*found.substitutions, *found.deletions)}
    refs = _most(((ref, count) for (ref, _), count in counts.items()))
    hyps = _most(((hyp, count) for (_, hyp), count in counts.items() if hyp))
    if not hyps:
        return ""
    top = max(counts.get((ref, hyp), 0) for ref in refs for hyp in (*hyps, "")) or 1
    scripts = {script_of(unit) for unit in (*refs, *hyps)} - {""}
    named = name_scripts and len(scripts) > 1
    columns = "".join(f'<th scope="col">{_label(hyp, named=named)}</th>' for hyp in hyps)
    rows = (
        f'<tr><th scope="row">{_label(ref, named=named)}</th>'
        + "".join(_shade(counts.get((ref, hyp), 0), top) for hyp in (*hyps, ""))
        + "</tr>"
        for ref in refs
    )
    caption = (
        f"How often a reference unit (row) was recognised as another (column) or left out{said}. "
        f"The {len(refs)} units of the most errors."
    )
    header = f'<tr><th scope="col">unit</th>{columns}<th scope="col">left out</th></tr>'
    return f'<div class="map">{table([header], rows, caption=caption)}</div>'


def _label(unit: str, *, named: bool) -> str:
    """HTML of a unit; `named` adds its script, for letters of two may look alike."""
    script = script_of(unit) if named else ""
    return escape(show_unit(unit)) + (f' <span class="script">{escape(script)}</span>' if script else "")


def _most(counts: Iterator[tuple[str, int]]) -> list[str]:
    total = Counter[str]()
    for unit, count in counts:
        total[unit] += count
    return sorted(total, key=lambda unit: (-total[unit], unit))[:MAP_SIZE]


def _shade(count: int, top: int) -> str:
    """A cell whose colour grows with the root of its count, so that rare ones can be seen."""
    return f'<td style="--w:{(count / top) ** 0.5:.2f}">{count:,}</td>' if count else "<td></td>"
