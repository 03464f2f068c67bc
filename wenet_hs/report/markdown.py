# SPDX-License-Identifier: Apache-2.0
"""Tables of a study over seeds in Markdown, from results files: see `wenet_hs.report.results`.

A table is a folder of results files with a `table.yaml`, whose settings are those of `TableSpec`. No number of the
Markdown is typed by hand.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from wenet_hs.config.load import read_yaml
from wenet_hs.errors import ConfigError, DataError, list_names
from wenet_hs.files import write_atomic
from wenet_hs.report.collect import describe_speech
from wenet_hs.report.plots import Line, line_chart, standalone_svg
from wenet_hs.report.results import BANDS, Results, read_results
from wenet_hs.score.compare import MACRO, MICRO
from wenet_hs.score.error_rate import UNDEFINED, percent
from wenet_hs.score.pairing import Training, check_pair, training_of
from wenet_hs.score.seeds import FIXED_LANGUAGES, SeedDifference, compare_seeds, holm, pair_counts
from wenet_hs.score.tables import format_p, format_signed, markdown_table

SPEC, CHART = "table.yaml", "chart.svg"


class ChartSpec(BaseModel):
    """A chart of the macro average in the first mode."""

    model_config = ConfigDict(extra="forbid")

    x: str
    """Name of the horizontal axis."""
    lines: dict[str, dict[float, str]]
    """Name of a line → value on the horizontal axis → system."""


class TableSpec(BaseModel):
    """The settings of a table, in its `table.yaml`."""

    model_config = ConfigDict(extra="forbid")

    title: str
    text: str = ""
    """Markdown before the numbers: the command, the data, what the paper has."""
    systems: dict[str, str]
    """System → its name in the table, in the order of the rows. The first one is the baseline."""
    modes: list[str]
    """Decoding modes; the per-language rates are those of the first one."""
    comparisons: list[tuple[str, str]] | None = None
    """Pairs A, B of systems; default: the first system with each other one."""
    chart: ChartSpec | None = None
    also: list[str] = []
    """Other folders, relative to this one, whose results of these systems belong to the table too."""


@dataclass(frozen=True)
class StudyTable:
    """The results of one table."""

    folder: Path
    spec: TableSpec
    results: dict[str, dict[int, Results]]
    """By system, in the order of the rows, and seed."""

    @property
    def comparisons(self) -> list[tuple[str, str]]:
        """The pairs of systems that have results."""
        first, *others = self.spec.systems
        pairs = self.spec.comparisons
        if pairs is None:
            pairs = [(first, other) for other in others]
        return [(a, b) for a, b in pairs if self.results.get(a) and self.results.get(b)]


def read_table(folder: Path) -> StudyTable:
    """Read a table's folder.

    Raises ConfigError for a wrong `table.yaml`, DataError for a damaged file, a system that `table.yaml` does not name,
    or results of one system on different test sets.
    """
    path = folder / SPEC
    try:
        spec = TableSpec.model_validate(read_yaml(path).values)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
    found = [read_results(file) for file in sorted(folder.glob("*.json"))]
    unknown = sorted({one.system for one in found} - spec.systems.keys())
    others = (read_results(file) for other in spec.also for file in sorted((folder / other).glob("*.json")))
    found += [one for one in others if one.system in spec.systems]
    if unknown:
        raise DataError(
            f"{folder}: results of {list_names(unknown)}, which {SPEC} does not name; add them to `systems`"
        )
    results: dict[str, dict[int, Results]] = {system: {} for system in spec.systems}
    for one in sorted(found, key=lambda one: one.seed):
        results[one.system][one.seed] = one
    for of_system, mode in product(results.values(), spec.modes):
        _check_test_sets([one for one in of_system.values() if mode in one.modes], mode)
    return StudyTable(folder, spec, results)


def _check_test_sets(results: Sequence[Results], mode: str) -> None:
    tests = {one.modes[mode].keys: one.name for one in results}
    if len(tests) > 1:
        names = " and ".join(tests.values())
        raise DataError(f"{mode}: {names} have different test sets; score them on one list")


# ---- comparisons


@dataclass(frozen=True)
class Row:
    """A comparison of two systems in one mode."""

    mode: str
    pair: tuple[str, str]
    seeds: tuple[int, ...]
    difference: SeedDifference
    adjusted_p: float | None
    """Holm's correction over all rows of the table."""


def compare_systems(table: StudyTable) -> list[Row]:
    """All comparisons of a table, the macro average of their common seeds.

    Raises DataError for trainings that are no pair, see `check_pair`.
    """
    found = []
    for mode in table.spec.modes:
        for pair in table.comparisons:
            of_a, of_b = ({s: r for s, r in table.results[name].items() if mode in r.modes} for name in pair)
            seeds = tuple(sorted(of_a.keys() & of_b.keys()))
            for seed in seeds:
                check_pair(_training(of_a[seed]), _training(of_b[seed]))
                _check_test_sets([of_a[seed], of_b[seed]], mode)
            if seeds:
                counts = ([_errors(of[seed], mode) for seed in seeds] for of in (of_a, of_b))
                pairs = pair_counts(*counts, seeds=[*map(str, seeds)], names=pair)
                found.append((mode, pair, seeds, compare_seeds(pairs).differences[MACRO]))
    adjusted = holm([difference.p for *_, difference in found])
    return [Row(*row, p) for row, p in zip(found, adjusted, strict=True)]


def _training(results: Results) -> Training:
    return training_of(results.name, results.settings | {"seed": results.seed}, results.provenance)


def _errors(results: Results, mode: str) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """Errors and reference units (C, 2) of each utterance by language."""
    rows = {lang: np.array(counts) for lang, counts in results.modes[mode].utterances.items()}
    return {lang: np.column_stack((counts[:, 1:].sum(axis=1), counts[:, 0])) for lang, counts in rows.items()}


# ---- Markdown


def format_table(table: StudyTable) -> str:
    """The table as Markdown: rates, comparisons, languages, kinds of errors, and the trainings."""
    spec = table.spec
    parts = [_format_title(table), spec.text.strip(), _format_rates(table)]
    rows = compare_systems(table)
    if rows:
        parts += [_describe_comparisons(rows), format_comparisons(table, rows)]
    parts += [f"By language, {spec.modes[0]}, mean over the seeds:", _format_languages(table)]
    parts += ["Kinds of errors, in % of the reference units, mean over the seeds:", _format_errors(table)]
    parts += [_format_speed(table), "Trainings:", _format_trainings(table)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _format_title(table: StudyTable) -> str:
    found = [one for of_system in table.results.values() for one in of_system.values()]
    note = describe_speech(any(one.is_simulated for one in found), [one.is_pretrained_on_simulated for one in found])
    return f"## {table.spec.title}{note}"


def _format_rates(table: StudyTable) -> str:
    """Mean and standard deviation of the macro average in each mode."""
    header = ["system", "seeds", *table.spec.modes]
    rows = []
    for system, label in table.spec.systems.items():
        found = table.results[system].values()
        rates = [[one.rates(mode)[MACRO] for one in found if mode in one.modes] for mode in table.spec.modes]
        rows.append([label, str(len(found)), *map(_mean_and_deviation, rates)])
    return markdown_table(header, rows)


def _mean_and_deviation(rates: Sequence[float]) -> str:
    if not rates:
        return UNDEFINED
    return percent(fmean(rates)) + (f" ± {percent(stdev(rates))}" if len(rates) > 1 else "")


def _describe_comparisons(rows: Sequence[Row]) -> str:
    num_tested = sum(row.adjusted_p is not None for row in rows)
    return (
        "Differences of the macro average, B minus A, in points; below 0, B is better. The interval is over seeds and "
        f"utterances. p is of a paired t test over the seeds, p (Holm) is corrected for {num_tested} comparisons; with "
        "fewer than five seeds there is no p. The last column is the difference that these seeds would have shown with "
        f"a probability of 80 %. {FIXED_LANGUAGES}"
    )


def format_comparisons(table: StudyTable, rows: Sequence[Row]) -> str:
    """One row per comparison: A, B, seeds, difference, interval, p, corrected p, detectable difference."""
    labels = table.spec.systems
    header = ["mode", "A", "B", "seeds", "B − A", "95 % interval", "p", "p (Holm)", "detectable"]
    cells = []
    for row in rows:
        found = row.difference
        detectable = UNDEFINED if found.detectable is None else percent(found.detectable)
        numbers = [f"{100 * found.mean:+.2f}", format_signed(found.interval), format_p(found.p)]
        names = [row.mode, labels[row.pair[0]], labels[row.pair[1]], str(len(row.seeds))]
        cells.append([*names, *numbers, format_p(row.adjusted_p), detectable])
    return markdown_table(header, cells)


def _format_languages(table: StudyTable) -> str:
    mode, means = table.spec.modes[0], dict[str, dict[str, float]]()
    for system, label in table.spec.systems.items():
        rates = [one.rates(mode) for one in table.results[system].values() if mode in one.modes]
        if rates:
            means[label] = {lang: fmean(of[lang] for of in rates) for lang in rates[0]}
    langs = dict.fromkeys(lang for of in means.values() for lang in of if lang not in (MACRO, MICRO))
    columns = [*langs, MACRO, MICRO]
    rows = [[label, *(percent(of[lang]) if lang in of else "" for lang in columns)] for label, of in means.items()]
    return markdown_table(["system", *columns], rows)


def _format_errors(table: StudyTable) -> str:
    """Substitutions, deletions, insertions, PFER, and the error rate of the units of each frequency band."""
    rows = []
    for mode in table.spec.modes:
        for system, label in table.spec.systems.items():
            found = [one.modes[mode] for one in table.results[system].values() if mode in one.modes]
            if not found:
                continue
            sums = np.mean([sum(np.sum(of, axis=0) for of in one.utterances.values()) for one in found], axis=0)
            cells = [percent(count / sums[0]) for count in sums[1:]]
            pfer = [_feature_rate(one.utterances, one.distances) for one in found if one.distances is not None]
            cells.append(percent(fmean(pfer)) if pfer else UNDEFINED)
            for band, _ in BANDS:
                counts = np.array([one.bands[band] for one in found if band in one.bands])
                total = counts.sum(axis=0) if len(counts) else np.zeros(4)
                cells.append(percent(total[1:3].sum() / total[0]) if total[0] else UNDEFINED)
            rows.append([mode, label, *cells])
    bands = [f"{name} ×" if name != "unseen" else name for name, _ in BANDS]
    return markdown_table(["mode", "system", "S", "D", "I", "PFER, macro", *bands], rows)


def _feature_rate(utterances: Mapping[str, Sequence[Sequence[int]]], distances: Mapping[str, Sequence[float]]) -> float:
    """The macro average of the phone feature error rates."""
    return fmean(sum(of) / sum(counts[0] for counts in utterances[lang]) for lang, of in distances.items())


def _format_speed(table: StudyTable) -> str:
    """Real-time factors by language, with the mean number of units per test sentence; empty without rtf.json."""
    speeds: dict[tuple[str, str], dict[str, float]] = {}
    units, conditions = dict[str, float](), dict[str, None]()
    for mode, (system, label) in product(table.spec.modes, table.spec.systems.items()):
        found = [one for one in table.results[system].values() if one.rtf.get(mode)]
        for one in found:
            units |= one.decoding.get("units_per_utterance", {})
            shown = (f"{key} {value}" for key, value in one.decoding.items() if key != "units_per_utterance")
            conditions |= {", ".join(shown): None}
        if found:
            speeds[mode, label] = {lang: fmean(one.rtf[mode][lang] for one in found) for lang in found[0].rtf[mode]}
    langs = dict.fromkeys(lang for of in speeds.values() for lang in of)
    rows = []
    for (mode, label), of in speeds.items():
        first = next(
            of for (other, _), of in speeds.items() if other == mode and of.keys() == speeds[mode, label].keys()
        )
        cells = [f"{of[lang]:.4f}" if lang in of else "" for lang in langs]
        rows.append([mode, label, *cells, f"{fmean(first[lang] / of[lang] for lang in of):.2f}×"])
    columns = [f"{lang}, {units[lang]:.1f} units" if lang in units else lang for lang in langs]
    caption = (
        "Real-time factor by language (seconds of decoding per second of speech), mean over the seeds; in the header "
        "the mean number of units per test sentence. The last column is the speed relative to the first system on the "
        f"same languages, mean over the languages. Decoding: {'; '.join(conditions)}."
    )
    return f"{caption}\n\n{markdown_table(['mode', 'system', *columns, 'speed'], rows)}" if rows else ""


def _format_trainings(table: StudyTable) -> str:
    header = ["system", "seeds", "steps", "hours of audio", "minutes", "on the plateau", "processor", "commit"]
    rows = []
    for system, label in table.spec.systems.items():
        found = [*table.results[system].values()]
        if found:
            on_plateau = [str(one.seed) for one in found if one.is_on_plateau]
            minutes = fmean(one.train_seconds for one in found) / 60
            texts = [label, " ".join(str(one.seed) for one in found), _each(f"{one.steps:,}" for one in found)]
            texts += [_each(str(one.train_hours or UNDEFINED) for one in found), f"{minutes:.1f}"]
            texts += [" ".join(on_plateau) or "none"]
            rows.append([*texts, *(_each(one.provenance.get(key, UNDEFINED) for one in found) for key in _PROVENANCE)])
    return markdown_table(header, rows)


_PROVENANCE = ("processor", "git")


def _each(values: Iterator[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def write_markdown(
    path: Path, folders: Sequence[Path], *, command: str, intro: str = "", is_summary: bool = False
) -> None:
    """Write the Markdown file of several tables, and the chart of a table into its folder.

    Args:
        command: the command that creates the file.
        intro: Markdown before the tables.
        is_summary: only the comparisons of each table.
    """
    parts = [f"<!-- Generated by `{command}`: do not edit. -->\n"]
    parts += [intro.strip() + "\n"] if intro else []
    for table in map(read_table, folders):
        parts.append(_format_summary(table) if is_summary else format_table(table))
        if table.spec.chart is not None:
            chart = table.folder / CHART
            write_atomic(chart, _draw_chart(table, table.spec.chart))
            parts.append(f"![{table.spec.title}]({Path(os.path.relpath(chart, path.parent)).as_posix()})\n")
    write_atomic(path, "\n".join(parts))


def _draw_chart(table: StudyTable, spec: ChartSpec) -> str:
    """The mean over the seeds of each point, as an SVG file; points without results are left out."""
    mode, lines = table.spec.modes[0], []
    for colour, systems in enumerate(spec.lines.values()):
        found = {x: [one for one in table.results[name].values() if mode in one.modes] for x, name in systems.items()}
        points = [(x, 100 * fmean(one.rates(mode)[MACRO] for one in of)) for x, of in sorted(found.items()) if of]
        lines.append(Line(points=points, colour=colour))
    label = f"{table.spec.title}: {mode}, macro average in %"
    return standalone_svg(line_chart(lines, label=label, unit=spec.x), [*spec.lines])


def _format_summary(table: StudyTable) -> str:
    rows = compare_systems(table)
    shown = format_comparisons(table, rows) if rows else _format_rates(table)
    return f"{_format_title(table)}\n\n{shown}\n"
