# SPDX-License-Identifier: Apache-2.0
"""Tables of a study over seeds in Markdown. No number of it is typed by hand.

The details of each table are in a file beside its folder.
"""

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from wenet_hs.results.pairing import check_pair
from wenet_hs.results.results_file import BANDS, DEV_LOSS, Results
from wenet_hs.results.speech import describe_speech
from wenet_hs.results.study import ChartSpec, StudyTable, compare_study, read_table
from wenet_hs.score.compare import MACRO, MICRO
from wenet_hs.score.error_rate import UNDEFINED, percent
from wenet_hs.score.seeds import FIXED_LANGUAGES, SystemSeeds, count_tests
from wenet_hs.score.tables import Record, format_points, header_and_rows, markdown_table, seed_difference_cells
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import list_names

CHART = "chart.svg"
_OF_OUTPUT_LAYER = ("head", "loss", "sampling_conf")
_KINDS = (
    "Kinds of errors, mean over the same seeds. S, D and I are in % of the reference units. The columns from `unseen` "
    "on are bands of units by their number in the training list (`unseen`: not in it; the simulated words of a first "
    "part do not count). They count substitutions and deletions only, in % of the reference units of the band."
)
_CHART = "Macro average in the first mode in %: mean and standard deviation over the seeds"


def format_table(table: StudyTable, *, details: str = "") -> str:
    """The short form of a table: its text, the rates, and the comparisons in the first mode.

    `details`: Markdown at its end that names the file of `format_details`.
    """
    rows = compare_study(table)
    shown = [row for row in rows if row.mode == table.spec.modes[0]]
    parts = [_heading(table), table.spec.text.strip(), _format_texts(table), _format_rates(table)]
    parts += [format_comparisons(table, shown, count=count_tests(rows))] if shown else []
    return "\n\n".join(part for part in [*parts, details] if part) + "\n"


def format_details(table: StudyTable) -> str:
    """All comparisons, the languages, the kinds of errors and the trainings."""
    rows = compare_study(table)
    parts = [_heading(table), _format_plausible_rates(table)]
    parts += [format_comparisons(table, rows, count=count_tests(rows))] if rows else []
    if table.common_seeds and table.spec.modes:
        parts += [f"By language, {table.spec.modes[0]}, mean over the same seeds:", _format_languages(table)]
        parts += [_KINDS, _format_errors(table)]
    decoding = table.trainings[0].decoding
    options = [f"{key} {list_names([*of]) if isinstance(of, dict) else of}" for key, of in decoding.items()]
    parts += [f"Decoding: {', '.join(options)}." if options else "", "Trainings:", _format_trainings(table)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(table: StudyTable) -> str:
    are_pretrained = [one.is_pretrained_on_simulated for one in table.trainings]
    return f"## {table.spec.title}{describe_speech(any(one.is_simulated for one in table.trainings), are_pretrained)}"


def _format_records(records: Iterable[Record]) -> str:
    return markdown_table(*header_and_rows([*records]))


def _mean_records(
    table: StudyTable, results: Mapping[str, Iterable[Results]], columns: Sequence[str], *, only_plausible: bool = False
) -> dict[str, Record]:
    """The row of each system: the means of these columns over its results."""
    records = {}
    for system, of_system in results.items():
        numbers = [one.numbers(only_plausible=only_plausible) for one in of_system]
        means = {name: _format_mean([one[name] for one in numbers if name in one], name) for name in columns}
        records[system] = {"system": table.spec.systems[system], **means}
    return records


def _format_mean(values: Sequence[float], name: str = "") -> str:
    """Mean and standard deviation over the seeds."""
    numbers = [fmean(values), stdev(values)] if len(values) > 1 else values
    return " ± ".join(f"{number:.{3 if name == DEV_LOSS else 2}f}" for number in numbers) or UNDEFINED


def _format_texts(table: StudyTable) -> str:
    """What the texts of language models contain; empty without them."""
    if not table.texts:
        return ""
    names = [name for name in table.texts[0] if name != "text"]
    records = [{"": name} | {text["text"]: f"{text[name]:,}" for text in table.texts} for name in names]
    shares = {"": "share of <unk>"}
    for text in table.texts:
        shares[text["text"]] = f"{100 * text['<unk>'] / text['units with line ends']:.1f} %"
    return _format_records([*records, shares])


def _format_rates(table: StudyTable) -> str:
    """The macro average in each mode over the common seeds; of language models the perplexities over all seeds."""
    if not table.spec.modes:
        return _format_perplexities(table)
    if not table.common_seeds:
        each = [f"{table.spec.systems[name]}: {' '.join(map(str, of))}" for name, of in table.results.items() if of]
        return f"No seed is common to all systems, so there are no means over seeds ({'; '.join(each)})."
    seeds = " ".join(map(str, table.common_seeds))
    caption = f"Mean ± standard deviation over seeds {seeds}; dev loss: of the decoder after the last step, smoothed:"
    records = _mean_records(table, table.common, [*table.columns, DEV_LOSS])
    return f"{caption}\n\n{_format_records(records.values())}"


def _format_plausible_rates(table: StudyTable) -> str:
    """The rates without the clips of implausible duration, if there are any."""
    found = [one for of_system in table.common.values() for one in of_system]
    numbers = sorted({sum(map(len, (one.implausible or {}).values())) for one in found} - {0})
    if not numbers:
        return ""
    known = {name: [] if any(one.implausible is None for one in of) else of for name, of in table.common.items()}
    records = _mean_records(table, known, table.columns, only_plausible=True)
    caption = f"Rates without the {' or '.join(map(str, numbers))} clips of implausible duration:"
    return f"{caption}\n\n{_format_records(records.values())}"


def _format_perplexities(table: StudyTable) -> str:
    results = {system: of.values() for system, of in table.results.items() if of}
    records = _mean_records(table, results, table.columns)
    for system, record in records.items():
        record |= {"seeds": " ".join(map(str, table.results[system]))}
        if table.spec.paper:
            valid, test = [f"{value:.2f}" for value in table.spec.paper.get(system, ())] or [UNDEFINED] * 2
            record |= {"paper: valid": valid, "paper: test": test}
    settings = sorted({name for one in table.trainings for name in one.settings})
    values = {name: {str(one.settings.get(name)) for one in table.trainings} for name in settings}
    differing = [name for name, of in values.items() if len(of) > 1 and not name.startswith(_OF_OUTPUT_LAYER)]
    note = f" Not equal in all trainings: {', '.join(differing)}." if differing else ""
    return f"{_format_records(records.values())}\n\nMean ± standard deviation over the seeds.{note}"


def format_comparisons(table: StudyTable, rows: Sequence[SystemSeeds], *, count: str) -> str:
    """One row per comparison, with the rates over the paired seeds; p is also corrected for `count`."""
    labels = table.spec.systems
    names = "seeds", "B − A", "95 % interval", "p", f"p (Holm, {count})", "detectable"
    has_implausible = any(one.implausible for one in table.trainings)
    records, unchecked = list[Record](), dict[str, None]()
    for row in rows:
        pairs = [tuple(table.results[name][int(seed)] for name in (row.baseline, row.name)) for seed in row.rates]
        for a, b in pairs:
            unchecked |= dict.fromkeys(check_pair(a.training, b.training))
        assert row.difference is not None  # as `compare_study` returns it
        record = {"mode": row.mode, "A": labels[row.baseline], "B": labels[row.name]}
        record |= {"A %": percent(fmean(row.difference.rates_a)), "B %": percent(fmean(row.difference.rates_b))}
        record |= dict(zip(names, seed_difference_cells(row.difference, row.adjusted_p), strict=True))
        if has_implausible:
            rates = [[one.rates(row.mode, only_plausible=True)[MACRO] for one in pair] for pair in pairs]
            record["B − A, plausible"] = format_points(fmean(b - a for a, b in rates))
        records.append(record)
    known = [name for name in records[0] if any(record[name] != UNDEFINED for record in records)]
    shown = _format_records({name: record[name] for name in known} for record in records)
    note = f"Not recorded by each training, so not checked: {', '.join(unchecked)}."
    return f"{shown}\n\n{note}" if unchecked else shown


def _format_languages(table: StudyTable) -> str:
    first = table.spec.modes[0]
    means = {
        label: {lang: fmean(one.rates(mode)[lang] for one in found) for lang in found[0].rates(mode)}
        for mode, label, found in table.rows
        if mode == first
    }
    langs = dict.fromkeys(lang for of in means.values() for lang in of if lang not in (MACRO, MICRO))
    return _format_records(
        {"system": label, **{lang: percent(of[lang]) if lang in of else "" for lang in (*langs, MACRO, MICRO)}}
        for label, of in means.items()
    )


def _format_errors(table: StudyTable) -> str:
    """Substitutions, deletions, insertions, PFER, and the error rate of the units of each frequency band."""
    records = []
    for mode, label, results in table.rows:
        found = [one.modes[mode] for one in results]
        units = {lang: sum(of) for lang, of in results[0].units.items()}
        kinds = np.mean([np.sum([*one.kinds.values()], axis=0) for one in found], axis=0) / sum(units.values())
        record = {"mode": mode, "system": label, **dict(zip("SDI", map(percent, kinds), strict=True))}
        pfer = [
            fmean(of / units[lang] for lang, of in one.feature_errors.items()) for one in found if one.feature_errors
        ]
        record["PFER, macro"] = percent(fmean(pfer)) if pfer else UNDEFINED
        for band, _ in BANDS:
            total = np.sum([one.bands.get(band, (0, 0, 0, 0)) for one in found], axis=0)
            name = band if band == "unseen" else f"{band} ×"
            record[name] = percent(total[1:3].sum() / total[0]) if total[0] else UNDEFINED
        records.append(record)
    return _format_records(records)


def _format_trainings(table: StudyTable) -> str:
    """The cost and the machine of the trainings of each system."""
    records = []
    for system, of_system in table.results.items():
        if found := [*of_system.values()]:
            on_plateau = [str(one.seed) for one in found if one.is_on_plateau]
            is_known = any(one.is_on_plateau is not None for one in found)
            steps = (" + ".join(f"{part.steps:,}" for part in one.parts) for one in found)
            hours = (" + ".join(str(part.train_hours or UNDEFINED) for part in one.parts) for one in found)
            parts = [first for one in found if (first := one.first)], found
            record = {"system": table.spec.systems[system], "seeds": " ".join(map(str, of_system))}
            record |= {"steps": _each(steps), "hours of audio": _each(hours)}
            record["minutes"] = " + ".join(f"{fmean(one.train_seconds for one in of) / 60:.1f}" for of in parts if of)
            record["on the plateau"] = " ".join(on_plateau) or ("none" if is_known else UNDEFINED)
            record["processor"] = _each("; ".join(one.run.processors) or UNDEFINED for one in found)
            record["commit"] = _each(one.run.last_start.commit or UNDEFINED for one in found)
            records.append(record)
    return _format_records(records)


def _each(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def write_markdown(
    path: Path,
    folders: Sequence[Path],
    *,
    command: str,
    intro: str = "",
    more: str = "",
    published: Path | None = None,
) -> str:
    """Write the Markdown file of several tables. Details go to FOLDER.md, charts into FOLDER.

    Args:
        command: what creates the file.
        intro, more: Markdown before and after all tables.
        published: folder with the folders of published tables, with which those of the same name are compared.

    Returns the comparison with the published tables.
    """
    comment = f"<!-- Generated by `{command}`: do not edit. -->\n"
    tables = [read_table(folder, published) for folder in folders]
    parts = [comment]
    if intro:
        parts.append(f"{intro.strip()}\n")
    if any(table.spec.modes for table in tables):
        parts.append(_explain_comparisons(tables))
    compared = []
    for table in tables:
        folder = table.folder.resolve()
        details = folder.parent / f"{folder.name}.md"
        write_atomic(details, f"{comment}\n{format_details(table)}")
        link = f"[Details: all modes, languages, kinds of errors, trainings]({_link(details, path)})"
        parts.append(format_table(table, details=link))
        if table.spec.chart is not None and table.common_seeds:
            parts.append(_write_chart(table, table.spec.chart, page=path))
        of_published = published and published / folder.name
        if of_published and of_published.is_dir():
            compared.append(compare_with_published(table, read_table(of_published)))
    parts += compared
    if more:
        parts.append(f"{more.strip()}\n")
    write_atomic(path, "\n".join(parts))
    return "\n".join(compared)


def _explain_comparisons(tables: Iterable[StudyTable]) -> str:
    """How to read the tables of comparisons: a line for each column that one of them has."""
    rows = [row for table in tables for row in compare_study(table)]
    has_tests = any(row.difference is not None and row.difference.p is not None for row in rows)
    has_implausible = any(training.implausible for table in tables for training in table.trainings)
    lines = [
        "A % and B % are macro averages: the mean of the languages, then of all seeds that both systems have. The "
        "tables of rates have the seeds that all systems have.",
        "B − A is the difference in points. Below 0, B is better.",
    ]
    if has_tests:
        lines += [
            "The 95 % interval is over seeds and utterances. p is of a paired t test over the seeds, for these "
            "utterances.",
            "p (Holm) is corrected for all comparisons of the table with five seeds or more. Fewer seeds have no p.",
            "`detectable` is the true difference that these seeds would have shown with a probability of 80 %, in one "
            "comparison on these utterances.",
        ]
    if has_implausible:
        lines.append("`B − A, plausible` is without the clips of implausible duration.")
    lines.append(FIXED_LANGUAGES)
    items = "".join(f"- {line}\n" for line in lines)
    return f"**How to read the comparisons**\n\n{items}"


def _write_chart(table: StudyTable, spec: ChartSpec, *, page: Path) -> str:
    """Write the chart into the folder of the table; the Markdown that shows it on `page`."""
    chart = table.folder / CHART
    write_atomic(chart, _draw_chart(table, spec))
    return f"![{table.spec.title}]({_link(chart, page)})\n\n*{_CHART}*\n"


def _link(target: Path, page: Path) -> str:
    return Path(os.path.relpath(target, page.resolve().parent)).as_posix()


def compare_with_published(table: StudyTable, published: StudyTable) -> str:
    """The rates of a table beside those of the published one, over all seeds of each; no test, as machines differ."""
    records = []
    for (system, label), name in product(table.spec.systems.items(), table.columns):
        both = ([one.numbers() for one in of.results.get(system, {}).values()] for of in (table, published))
        ours, theirs = ([one[name] for one in of if name in one] for of in both)
        if ours and theirs:
            record = {"mode": name, "system": label, "these results": _format_mean(ours)}
            record |= {"published": _format_mean(theirs), "difference": f"{fmean(ours) - fmean(theirs):+.2f}"}
            records.append(record | {"seeds": f"{len(ours)} and {len(theirs)}"})
    title = f"## Compared with the published results: {table.spec.title}"
    return f"{title}\n\n{_format_records(records)}\n" if records else ""


def _draw_chart(table: StudyTable, spec: ChartSpec) -> bytes:
    """Mean and standard deviation over the seeds of each point, as an SVG file; points without results are left out."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # takes half a second to import
    from matplotlib.ticker import AutoLocator

    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes, mode, shown = figure.subplots(), table.columns[0], list[float]()
    for number, (label, systems) in enumerate(spec.lines.items()):
        found = {x: [one.numbers() for one in table.common.get(name, ())] for x, name in sorted(systems.items())}
        rates = {x: [one[mode] for one in of if mode in one] for x, of in found.items()}
        rates = {x: of for x, of in rates.items() if of}
        shifted = [x * 0.98**number for x in rates]  # so that intervals of several lines are beside each other
        means = [fmean(of) for of in rates.values()]
        deviations = [stdev(of) if len(of) > 1 else 0 for of in rates.values()]
        axes.errorbar(shifted, means, deviations, label=label, marker="o", markersize=4, capsize=2)
        shown += means
    values = sorted({x for systems in spec.lines.values() for x in systems})
    x_scale, y_scale = ("log" if min(of, default=0) > 0 else "linear" for of in (values, shown))
    axes.set(xscale=x_scale, yscale=y_scale, xlabel=f"{spec.x}, {x_scale} scale", ylabel=f"%, {y_scale} scale")
    axes.set_xticks(values, [f"{x:g}" for x in values])
    axes.yaxis.set_major_locator(AutoLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    file = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": table.spec.title}):  # equal bytes for equal results
        metadata = {"Title": f"{table.spec.title}: {_CHART}", "Date": None, "Creator": None}
        figure.savefig(file, format="svg", metadata=metadata)
    return file.getvalue()
