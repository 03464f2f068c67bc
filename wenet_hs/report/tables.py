# SPDX-License-Identifier: Apache-2.0
"""Tables of a study over seeds in Markdown. No number of it is typed by hand.

The details of each table are in a file beside its folder.
"""

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from wenet_hs.results.pairing import check_pair
from wenet_hs.results.results_file import BANDS, DEV_LOSS, ModeResults, Results
from wenet_hs.results.speech import describe_speech
from wenet_hs.results.study import ChartSpec, StudyTable, compare_study, read_table
from wenet_hs.score.compare import MACRO, MICRO
from wenet_hs.score.error_rate import UNDEFINED, percent
from wenet_hs.score.seeds import FIXED_LANGUAGES, SystemSeeds, count_tests
from wenet_hs.score.tables import (
    TableRecord,
    format_points,
    header_and_rows,
    markdown_table,
    seed_difference_cells,
)
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
    if shown:
        parts.append(format_comparisons(table, shown, count=count_tests(rows)))
    parts.append(details)
    return _join_parts(parts)


def format_details(table: StudyTable) -> str:
    """All comparisons, the languages, the kinds of errors and the trainings."""
    rows = compare_study(table)
    parts = [_heading(table), _format_plausible_rates(table)]
    if rows:
        parts.append(format_comparisons(table, rows, count=count_tests(rows)))
    if table.common_seeds and table.spec.modes:
        parts += [
            f"By language, {table.spec.modes[0]}, mean over the same seeds:",
            _format_languages(table),
        ]
        parts += [_KINDS, _format_errors(table)]
    parts += [_format_decoding(table), "Trainings:", _format_trainings(table)]
    return _join_parts(parts)


def _join_parts(parts: Iterable[str]) -> str:
    """The parts that are not empty as paragraphs."""
    return "\n\n".join(part for part in parts if part) + "\n"


def _format_decoding(table: StudyTable) -> str:
    """The options of decoding, which are the same in all trainings; of files their names."""
    options = list[str]()
    for name, value in table.trainings[0].decoding.items():
        text = list_names([*value]) if isinstance(value, dict) else value
        options.append(f"{name} {text}")
    return f"Decoding: {', '.join(options)}." if options else ""


def _heading(table: StudyTable) -> str:
    is_simulated = any(training.is_simulated for training in table.trainings)
    are_pretrained = [training.is_pretrained_on_simulated for training in table.trainings]
    return f"## {table.spec.title}{describe_speech(is_simulated, are_pretrained)}"


def _format_records(records: Iterable[TableRecord]) -> str:
    return markdown_table(*header_and_rows([*records]))


def _mean_records(
    table: StudyTable,
    results: Mapping[str, Iterable[Results]],
    columns: Sequence[str],
    *,
    only_plausible: bool = False,
) -> dict[str, TableRecord]:
    """The row of each system: the means of these columns over its results."""
    records = dict[str, TableRecord]()
    for system, trainings in results.items():
        numbers = [training.numbers(only_plausible=only_plausible) for training in trainings]
        records[system] = {"system": table.spec.systems[system]}
        for name in columns:
            values = [of_training[name] for of_training in numbers if name in of_training]
            records[system][name] = _format_mean(values, name)
    return records


def _format_mean(values: Sequence[float], name: str = "") -> str:
    """Mean and standard deviation over the seeds; of one seed its value.

    `name`: of the column.
    """
    if not values:
        return UNDEFINED
    digits = 3 if name == DEV_LOSS else 2
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {stdev(values):.{digits}f}"


def _format_texts(table: StudyTable) -> str:
    """What the texts of language models contain; empty without them."""
    if not table.texts:
        return ""
    names = [name for name in table.texts[0] if name != "text"]
    records = [
        {"": name} | {text["text"]: f"{text[name]:,}" for text in table.texts} for name in names
    ]
    shares = {"": "share of <unk>"}
    for text in table.texts:
        shares[text["text"]] = f"{100 * text['<unk>'] / text['units with line ends']:.1f} %"
    return _format_records([*records, shares])


def _format_rates(table: StudyTable) -> str:
    """The macro average in each mode over the common seeds; of language models the perplexities
    over all seeds."""
    if not table.spec.modes:
        return _format_perplexities(table)
    if not table.common_seeds:
        return _format_seeds_without_means(table)
    seeds = _join_seeds(table.common_seeds)
    caption = f"Mean ± standard deviation over seeds {seeds}; dev loss: of the decoder after the last step, smoothed:"
    records = _mean_records(table, table.common, [*table.columns, DEV_LOSS])
    return f"{caption}\n\n{_format_records(records.values())}"


def _join_seeds(seeds: Iterable[int]) -> str:
    return " ".join(map(str, seeds))


def _format_seeds_without_means(table: StudyTable) -> str:
    """The sentence for systems without a common seed."""
    each = list[str]()
    for system, trainings in table.results.items():
        if trainings:
            each.append(f"{table.spec.systems[system]}: {_join_seeds(trainings)}")
    return (
        f"No seed is common to all systems, so there are no means over seeds ({'; '.join(each)})."
    )


def _format_plausible_rates(table: StudyTable) -> str:
    """The rates without the clips of implausible duration; empty if there are none.

    A system has none if `prepare` named no clips for one of its trainings.
    """
    numbers = set[int]()
    known = dict[str, list[Results]]()
    for system, trainings in table.common.items():
        numbers |= {_num_implausible(training) for training in trainings}
        is_known = all(training.implausible is not None for training in trainings)
        known[system] = trainings if is_known else []
    numbers -= {0}
    if not numbers:
        return ""
    records = _mean_records(table, known, table.columns, only_plausible=True)
    caption = (
        f"Rates without the {' or '.join(map(str, sorted(numbers)))} clips of implausible duration:"
    )
    return f"{caption}\n\n{_format_records(records.values())}"


def _num_implausible(training: Results) -> int:
    return sum(map(len, (training.implausible or {}).values()))


def _format_perplexities(table: StudyTable) -> str:
    """The perplexities of language models over all seeds, and those of the paper."""
    results = {
        system: trainings.values() for system, trainings in table.results.items() if trainings
    }
    records = _mean_records(table, results, table.columns)
    for system, record in records.items():
        record["seeds"] = _join_seeds(table.results[system])
        if table.spec.paper:
            in_paper = table.spec.paper.get(system)
            record["paper: valid"] = UNDEFINED if in_paper is None else f"{in_paper[0]:.2f}"
            record["paper: test"] = UNDEFINED if in_paper is None else f"{in_paper[1]:.2f}"
    differing = _differing_settings(table.trainings)
    note = f" Not equal in all trainings: {', '.join(differing)}." if differing else ""
    return f"{_format_records(records.values())}\n\nMean ± standard deviation over the seeds.{note}"


def _differing_settings(trainings: Sequence[Results]) -> list[str]:
    """The settings that are not equal in all trainings, without those of the output layer."""
    names = sorted({name for training in trainings for name in training.settings})
    differing = list[str]()
    for name in names:
        values = {str(training.settings.get(name)) for training in trainings}
        if len(values) > 1 and not name.startswith(_OF_OUTPUT_LAYER):
            differing.append(name)
    return differing


def format_comparisons(table: StudyTable, rows: Sequence[SystemSeeds], *, count: str) -> str:
    """One row per comparison, with the rates over the paired seeds; p is also corrected for
    `count`."""
    has_implausible = any(training.implausible for training in table.trainings)
    records = list[TableRecord]()
    unchecked: dict[str, None] = {}
    for row in rows:
        pairs = _pairs_of(table, row)
        for pair in pairs:
            unchecked |= dict.fromkeys(check_pair(pair.a.training, pair.b.training))
        record = _comparison_record(table, row, count)
        if has_implausible:
            record["B − A, plausible"] = _format_plausible_difference(pairs, row.mode)
        records.append(record)
    known = [name for name in records[0] if any(record[name] != UNDEFINED for record in records)]
    shown = _format_records({name: record[name] for name in known} for record in records)
    if not unchecked:
        return shown
    return f"{shown}\n\nNot recorded by each training, so not checked: {', '.join(unchecked)}."


class _Pair(NamedTuple):
    """Two trainings with one seed."""

    a: Results
    b: Results


def _pairs_of(table: StudyTable, row: SystemSeeds) -> list[_Pair]:
    baseline = table.results[row.baseline]
    other = table.results[row.name]
    return [_Pair(baseline[int(seed)], other[int(seed)]) for seed in row.rates]


def _comparison_record(table: StudyTable, row: SystemSeeds, count: str) -> TableRecord:
    """The cells of a comparison."""
    assert row.difference is not None  # as `compare_study` returns it
    names = ("seeds", "B − A", "95 % interval", "p", f"p (Holm, {count})", "detectable")
    cells = seed_difference_cells(row.difference, row.adjusted_p)
    record = {
        "mode": row.mode,
        "A": table.spec.systems[row.baseline],
        "B": table.spec.systems[row.name],
        "A %": percent(fmean(row.difference.rates_a)),
        "B %": percent(fmean(row.difference.rates_b)),
    }
    return record | dict(zip(names, cells, strict=True))


def _format_plausible_difference(pairs: Sequence[_Pair], mode: str) -> str:
    """The mean difference of the pairs without the clips of implausible duration, in points."""
    differences = list[float]()
    for pair in pairs:
        rate_a = pair.a.rates(mode, only_plausible=True)[MACRO]
        rate_b = pair.b.rates(mode, only_plausible=True)[MACRO]
        differences.append(rate_b - rate_a)
    return format_points(fmean(differences))


def _format_languages(table: StudyTable) -> str:
    """The rate of each language in the first mode, and the averages, as means over the common
    seeds."""
    means = dict[str, dict[str, float]]()
    for row in table.rows:
        if row.mode == table.spec.modes[0]:
            rates = [training.rates(row.mode) for training in row.results]
            means[row.label] = {
                lang: fmean(of_seed[lang] for of_seed in rates) for lang in rates[0]
            }
    langs = dict.fromkeys(
        lang for rates in means.values() for lang in rates if lang not in (MACRO, MICRO)
    )
    records = list[TableRecord]()
    for label, rates_of_system in means.items():
        record = {"system": label}
        for lang in (*langs, MACRO, MICRO):
            record[lang] = percent(rates_of_system[lang]) if lang in rates_of_system else ""
        records.append(record)
    return _format_records(records)


def _format_errors(table: StudyTable) -> str:
    """Substitutions, deletions, insertions, PFER, and the error rate of the units of each frequency
    band."""
    records = list[TableRecord]()
    for row in table.rows:
        scores = [training.modes[row.mode] for training in row.results]
        num_units = {lang: sum(units) for lang, units in row.results[0].units.items()}
        record = {"mode": row.mode, "system": row.label}
        record |= zip("SDI", _shares_of_kinds(scores, sum(num_units.values())), strict=True)
        record["PFER, macro"] = _format_feature_errors(scores, num_units)
        for band, _ in BANDS:
            name = band if band == "unseen" else f"{band} ×"
            record[name] = _format_band(scores, band)
        records.append(record)
    return _format_records(records)


def _shares_of_kinds(scores: Sequence[ModeResults], num_units: int) -> list[str]:
    """Substitutions, deletions and insertions in % of the units, means over the seeds."""
    of_seeds = [np.sum([*score.kinds.values()], axis=0) for score in scores]
    return [percent(share) for share in np.mean(of_seeds, axis=0) / num_units]


def _format_feature_errors(scores: Sequence[ModeResults], num_units: Mapping[str, int]) -> str:
    """The phone feature error rate in %: the mean of the languages, then of the seeds that have
    one."""
    rates = list[float]()
    for score in scores:
        if score.feature_errors:
            rates.append(
                fmean(errors / num_units[lang] for lang, errors in score.feature_errors.items())
            )
    return percent(fmean(rates)) if rates else UNDEFINED


def _format_band(scores: Sequence[ModeResults], band: str) -> str:
    """Substitutions and deletions of the units of a band in % of these units, over all seeds."""
    num_units = 0
    num_errors = 0
    for score in scores:
        units, substitutions, deletions, _ = score.bands.get(band, (0, 0, 0, 0))
        num_units += units
        num_errors += substitutions + deletions
    return percent(num_errors / num_units) if num_units else UNDEFINED


def _format_trainings(table: StudyTable) -> str:
    """The cost and the machine of the trainings of each system."""
    records = list[TableRecord]()
    for system, seeds in table.results.items():
        trainings = [*seeds.values()]
        if trainings:
            records.append(
                {
                    "system": table.spec.systems[system],
                    "seeds": _join_seeds(seeds),
                    "steps": _each(_describe_steps(training) for training in trainings),
                    "hours of audio": _each(_describe_hours(training) for training in trainings),
                    "minutes": _mean_minutes(trainings),
                    "on the plateau": _seeds_on_plateau(trainings),
                    "processor": _each(
                        "; ".join(training.run.processors) or UNDEFINED for training in trainings
                    ),
                    "commit": _each(
                        training.run.last_start.commit or UNDEFINED for training in trainings
                    ),
                }
            )
    return _format_records(records)


def _describe_steps(training: Results) -> str:
    return " + ".join(f"{part.steps:,}" for part in training.parts)


def _describe_hours(training: Results) -> str:
    return " + ".join(str(part.train_hours or UNDEFINED) for part in training.parts)


def _mean_minutes(trainings: Sequence[Results]) -> str:
    """The mean time of the first parts, if there are any, and of the trainings themselves."""
    first_parts = [training.first for training in trainings if training.first is not None]
    means = [
        fmean(part.train_seconds for part in parts) for parts in (first_parts, trainings) if parts
    ]
    return " + ".join(f"{seconds / 60:.1f}" for seconds in means)


def _seeds_on_plateau(trainings: Sequence[Results]) -> str:
    """The seeds whose CTC never took off, or `none`; n/a if no training records it."""
    if all(training.is_on_plateau is None for training in trainings):
        return UNDEFINED
    return _join_seeds(training.seed for training in trainings if training.is_on_plateau) or "none"


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
        published: folder with the folders of published tables, with which those of the same name
            are compared.

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
        link = (
            f"[Details: all modes, languages, kinds of errors, trainings]({_link(details, path)})"
        )
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
    """The rates of a table beside those of the published one, over all seeds of each; no test, as
    machines differ.

    Empty if they have no system in common.
    """
    records = list[TableRecord]()
    for system, label in table.spec.systems.items():
        for name in table.columns:
            ours = _numbers_of(table, system, name)
            theirs = _numbers_of(published, system, name)
            if ours and theirs:
                records.append(
                    {
                        "mode": name,
                        "system": label,
                        "these results": _format_mean(ours),
                        "published": _format_mean(theirs),
                        "difference": f"{fmean(ours) - fmean(theirs):+.2f}",
                        "seeds": f"{len(ours)} and {len(theirs)}",
                    }
                )
    title = f"## Compared with the published results: {table.spec.title}"
    return f"{title}\n\n{_format_records(records)}\n" if records else ""


def _numbers_of(table: StudyTable, system: str, column: str) -> list[float]:
    """The numbers of a system in a column, of all seeds that have one."""
    all_numbers = [training.numbers() for training in table.results.get(system, {}).values()]
    return [numbers[column] for numbers in all_numbers if column in numbers]


@dataclass(frozen=True)
class _ChartPoint:
    """The rates of one system over the seeds, in %."""

    x: float
    rates: Sequence[float]

    @property
    def mean(self) -> float:
        return fmean(self.rates)

    @property
    def deviation(self) -> float:
        return stdev(self.rates) if len(self.rates) > 1 else 0.0


def _points_of_line(table: StudyTable, systems: Mapping[float, str]) -> list[_ChartPoint]:
    """The points with results, from left to right."""
    mode = table.columns[0]
    points = list[_ChartPoint]()
    for x, system in sorted(systems.items()):
        all_numbers = [training.numbers() for training in table.common.get(system, ())]
        rates = [numbers[mode] for numbers in all_numbers if mode in numbers]
        if rates:
            points.append(_ChartPoint(x, rates))
    return points


def _draw_chart(table: StudyTable, spec: ChartSpec) -> bytes:
    """Mean and standard deviation over the seeds of each point, as an SVG file; points without
    results are left out."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # takes half a second to import
    from matplotlib.ticker import AutoLocator

    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    shown_means = list[float]()
    for number, (label, systems) in enumerate(spec.lines.items()):
        points = _points_of_line(table, systems)
        shift = 0.98**number  # so that intervals of several lines are beside each other
        shifted = [point.x * shift for point in points]
        means = [point.mean for point in points]
        deviations = [point.deviation for point in points]
        axes.errorbar(shifted, means, deviations, label=label, marker="o", markersize=4, capsize=2)
        shown_means += means
    x_values = sorted({x for systems in spec.lines.values() for x in systems})
    x_scale = _scale_of(x_values)
    y_scale = _scale_of(shown_means)
    axes.set(
        xscale=x_scale,
        yscale=y_scale,
        xlabel=f"{spec.x}, {x_scale} scale",
        ylabel=f"%, {y_scale} scale",
    )
    axes.set_xticks(x_values, [f"{x:g}" for x in x_values])
    axes.yaxis.set_major_locator(AutoLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    file = io.BytesIO()
    with rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": table.spec.title}
    ):  # equal bytes for equal results
        metadata = {"Title": f"{table.spec.title}: {_CHART}", "Date": None, "Creator": None}
        figure.savefig(file, format="svg", metadata=metadata)
    return file.getvalue()


def _scale_of(values: Sequence[float]) -> str:
    """Logarithmic if all values allow it."""
    return "log" if min(values, default=0) > 0 else "linear"
