# SPDX-License-Identifier: Apache-2.0
"""Tables of a study over seeds in Markdown, from results files: see `wenet_hs.report.results`.

A table is a folder of results files with a `table.yaml`, whose settings are those of `TableSpec`. No number of the
Markdown is typed by hand.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from wenet_hs.score.pairing import check_pair
from wenet_hs.score.seeds import FIXED_LANGUAGES, Errors, SystemSeeds, compare_seeds, correct_p, count_tests
from wenet_hs.score.tables import format_points, markdown_table, seed_difference_cells

SPEC, CHART = "table.yaml", "chart.svg"
_COMPARISONS = (
    "In the tables of comparisons, A % and B % are macro averages, means over all seeds that both systems have; the "
    "other tables have the seeds of all systems. B − A is their difference in points; below 0, B is better. The "
    "interval is over seeds and utterances. p is of a paired t test over the seeds; p (Holm) is corrected for all "
    "comparisons of the whole table with five seeds or more (fewer seeds have no p). `detectable` is the difference "
    "that these seeds would have shown with a probability of 80 %, `B − A, plausible` is without the clips of "
    f"implausible duration. {FIXED_LANGUAGES}\n"
)
_KINDS = (
    "Kinds of errors, mean over the same seeds. S, D and I are in % of the reference units. The columns from `unseen` "
    "on are bands of units by their number in the training list (`unseen`: not in it; the simulated words of a first "
    "part do not count). They count substitutions and deletions only, in % of the reference units of the band."
)
_CHART = "Macro average in the first mode in %: mean and standard deviation over the seeds"


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

    def of_mode(self, system: str, mode: str) -> dict[int, Results]:
        return {seed: one for seed, one in self.results.get(system, {}).items() if mode in one.modes}

    @property
    def common_seeds(self) -> list[int]:
        """The seeds that all systems with results have: means over other seeds are not comparable."""
        return sorted(set[int].intersection(*({*of} for of in self.results.values() if of)))

    def common(self, system: str, mode: str) -> list[Results]:
        """The results of the common seeds of a system in one decoding mode."""
        found = self.of_mode(system, mode)
        return [found[seed] for seed in self.common_seeds if seed in found]

    @property
    def rows(self) -> Iterator[tuple[str, str, list[Results]]]:
        """Mode, name and results of the common seeds of each system that has results."""
        for mode, (system, label) in product(self.spec.modes, self.spec.systems.items()):
            if found := self.common(system, mode):
                yield mode, label, found


def read_table(folder: Path) -> StudyTable:
    """Read a table's folder.

    Raises ConfigError for a wrong `table.yaml`, DataError for a damaged file, a system that `table.yaml` does not name,
    results of one system on different test sets, or results that were decoded with different options.
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
    if not found:
        raise DataError(f"{folder}: no results files; run a recipe with --results, or leave this table out")
    if unknown:
        raise DataError(
            f"{folder}: results of {list_names(unknown)}, which {SPEC} does not name; add them to `systems`"
        )
    results: dict[str, dict[int, Results]] = {system: {} for system in spec.systems}
    for one in sorted(found, key=lambda one: one.seed):
        results[one.system][one.seed] = one
    for of_system, mode in product(results.values(), spec.modes):
        _check_test_sets([one for one in of_system.values() if mode in one.modes], mode)
    decodings = {str(one.decoding): one.name for one in found}
    if len(decodings) > 1:
        names = " and ".join([*decodings.values()][:2])
        raise DataError(f"{folder}: {names} were decoded with different options; decode with equal ones")
    return StudyTable(folder, spec, results)


def _check_test_sets(results: Sequence[Results], mode: str) -> None:
    tests = {one.modes[mode].keys: one.name for one in results}
    if len(tests) > 1:
        names = " and ".join(tests.values())
        raise DataError(f"{mode}: {names} have different test sets; score them on one list")


# ---- comparisons


def compare_study(table: StudyTable) -> list[SystemSeeds]:
    """All comparisons of a table, the macro average of their common seeds.

    Raises DataError for trainings that are no pair, see `check_pair`.
    """
    first, *others = table.spec.systems
    pairs = table.spec.comparisons
    if pairs is None:
        pairs = [(first, other) for other in others]
    found = []
    for mode, (a, b) in product(table.spec.modes, pairs):
        of_a, of_b = table.of_mode(a, mode), table.of_mode(b, mode)
        errors = {str(seed): _pair_errors(of_a[seed], of_b[seed], mode) for seed in of_a if seed in of_b}
        if errors:
            difference = compare_seeds(errors).differences[MACRO]
            rates = dict(zip(errors, difference.rates_b, strict=True))
            found.append(SystemSeeds(mode=mode, name=b, rates=rates, baseline=a, difference=difference))
    return correct_p(found)


def _pair_errors(a: Results, b: Results, mode: str) -> Errors:
    check_pair(a.training, b.training)
    _check_test_sets([a, b], mode)
    errors = {}
    for lang, rows in sorted(a.modes[mode].utterances.items()):
        a_C4, b_C4 = np.array(rows), np.array(b.modes[mode].utterances[lang])
        if a_C4[:, 0].any():
            errors[lang] = np.column_stack((a_C4[:, 1:].sum(axis=1), b_C4[:, 1:].sum(axis=1), a_C4[:, 0]))
    return errors


# ---- Markdown


def format_table(table: StudyTable, *, is_summary: bool = False) -> str:
    """The table as Markdown: rates, comparisons, languages, kinds of errors, and the trainings.

    `is_summary`: only the rates, and the comparisons in the first two modes.
    """
    spec, rows = table.spec, compare_study(table)
    trainings = [one for of_system in table.results.values() for one in of_system.values()]
    are_pretrained = [one.is_pretrained_on_simulated for one in trainings]
    title = f"## {spec.title}{describe_speech(any(one.is_simulated for one in trainings), are_pretrained)}"
    shown = [row for row in rows if not is_summary or row.mode in spec.modes[:2]]
    comparisons = [format_comparisons(table, shown, count=count_tests(rows))] if shown else []
    if is_summary:
        return "\n\n".join([title, _format_rates(table), *comparisons]) + "\n"
    parts = [title, spec.text.strip(), _format_rates(table), *comparisons]
    if table.common_seeds:
        parts += [f"By language, {spec.modes[0]}, mean over the same seeds:", _format_languages(table)]
        parts += [_KINDS, _format_errors(table)]
    options = [
        f"{key} {list_names([*of]) if isinstance(of, dict) else of}" for key, of in trainings[0].decoding.items()
    ]
    parts += [f"Decoding: {', '.join(options) or UNDEFINED}.", "Trainings:", _format_trainings(table)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _format_rates(table: StudyTable) -> str:
    """Mean and standard deviation of the macro average in each mode, over the common seeds.

    A second table is without the clips of implausible duration, if there are any.
    """
    if not table.common_seeds:
        each = [f"{table.spec.systems[name]}: {' '.join(map(str, of))}" for name, of in table.results.items() if of]
        return f"No seed is common to all systems, so there are no means over seeds ({'; '.join(each)})."
    seeds = " ".join(map(str, table.common_seeds))
    caption = f"Mean ± standard deviation over seeds {seeds}; dev loss: of the decoder after the last step, smoothed:"
    parts = [caption, _tabulate_rates(table)]
    numbers = {sum(map(len, (one.implausible or {}).values())) for _, _, found in table.rows for one in found} - {0}
    if numbers:
        parts.append(f"Without the {' or '.join(map(str, sorted(numbers)))} clips of implausible duration:")
        parts.append(_tabulate_rates(table, only_plausible=True))
    return "\n\n".join(parts)


def _tabulate_rates(table: StudyTable, *, only_plausible: bool = False) -> str:
    rows = []
    for system, label in table.spec.systems.items():
        cells = [label]
        for mode in table.spec.modes:
            found = table.common(system, mode)
            is_known = not only_plausible or all(one.implausible is not None for one in found)
            rates = [one.rates(mode, only_plausible=only_plausible)[MACRO] for one in found if is_known]
            cells.append(_mean_and_deviation(rates))
        if not only_plausible:
            of_seeds = [table.results[system][seed] for seed in table.common_seeds if table.results[system]]
            losses = [one.curve[-1]["loss_att"] for one in of_seeds if one.curve]
            cells.append(_mean_and_deviation(losses, "{:.3f}".format))
        if table.results[system]:
            rows.append(cells)
    header = ["system", *table.spec.modes, *([] if only_plausible else ["dev loss, nats"])]
    return markdown_table(header, rows)


def _mean_and_deviation(values: Sequence[float], shown: Callable[[float], str] = percent) -> str:
    if not values:
        return UNDEFINED
    return shown(fmean(values)) + (f" ± {shown(stdev(values))}" if len(values) > 1 else "")


def format_comparisons(table: StudyTable, rows: Sequence[SystemSeeds], *, count: str) -> str:
    """One row per comparison, with the rates over the paired seeds; p is also corrected for `count`."""
    labels = table.spec.systems
    names = ["mode", "A", "B", "A %", "B %"]
    header = [*names, "seeds", "B − A", "95 % interval", "p", f"p (Holm, {count})", "detectable"]
    is_without = any(one.implausible for of_system in table.results.values() for one in of_system.values())
    header += ["B − A, plausible"] if is_without else []
    cells, unchecked = [], dict[str, None]()
    for row in rows:
        pairs = [tuple(table.results[name][int(seed)] for name in (row.baseline, row.name)) for seed in row.rates]
        if row.difference is not None:
            means = percent(fmean(row.difference.rates_a)), percent(fmean(row.difference.rates_b))
            numbers = *means, *seed_difference_cells(row.difference, row.adjusted_p)
            rates = [[one.rates(row.mode, only_plausible=True)[MACRO] for one in pair] for pair in pairs]
            without = [format_points(fmean(b - a for a, b in rates))] if is_without else []
            cells.append([row.mode, labels[row.baseline], labels[row.name], *numbers, *without])
        for a, b in pairs:
            unchecked |= dict.fromkeys(check_pair(a.training, b.training))
    notes = [f"Not recorded by each training, so not checked: {', '.join(unchecked)}."] if unchecked else []
    columns = [column for column in zip(header, *cells, strict=True) if {*column[1:]} != {UNDEFINED}]
    names, *cells = map(list, zip(*columns, strict=True))
    return "\n\n".join([markdown_table(names, cells), *notes])


def _format_languages(table: StudyTable) -> str:
    means = {
        label: {lang: fmean(one.rates(mode)[lang] for one in found) for lang in found[0].rates(mode)}
        for mode, label, found in table.rows
        if mode == table.spec.modes[0]
    }
    langs = dict.fromkeys(lang for of in means.values() for lang in of if lang not in (MACRO, MICRO))
    columns = [*langs, MACRO, MICRO]
    rows = [[label, *(percent(of[lang]) if lang in of else "" for lang in columns)] for label, of in means.items()]
    return markdown_table(["system", *columns], rows)


def _format_errors(table: StudyTable) -> str:
    """Substitutions, deletions, insertions, PFER, and the error rate of the units of each frequency band."""
    rows = []
    for mode, label, results in table.rows:
        found = [one.modes[mode] for one in results]
        sums = np.mean([sum(np.sum(of, axis=0) for of in one.utterances.values()) for one in found], axis=0)
        cells = [percent(count / sums[0]) for count in sums[1:]]
        pfer = [_feature_rate(one.utterances, one.distances) for one in found if one.distances is not None]
        cells.append(percent(fmean(pfer)) if pfer else UNDEFINED)
        for band, _ in BANDS:
            total = np.sum([one.bands.get(band, (0, 0, 0, 0)) for one in found], axis=0)
            cells.append(percent(total[1:3].sum() / total[0]) if total[0] else UNDEFINED)
        rows.append([mode, label, *cells])
    bands = [f"{name} ×" if name != "unseen" else name for name, _ in BANDS]
    return markdown_table(["mode", "system", "S", "D", "I", "PFER, macro", *bands], rows)


def _feature_rate(utterances: Mapping[str, Sequence[Sequence[int]]], distances: Mapping[str, Sequence[float]]) -> float:
    """The macro average of the phone feature error rates."""
    return fmean(sum(of) / sum(counts[0] for counts in utterances[lang]) for lang, of in distances.items())


def _format_trainings(table: StudyTable) -> str:
    header = ["system", "seeds", "steps", "hours of audio", "minutes", "on the plateau", "processor", "commit"]
    rows = []
    for system, label in table.spec.systems.items():
        found = [*table.results[system].values()]
        if found:
            on_plateau = [str(one.seed) for one in found if one.is_on_plateau]
            is_known = any(one.is_on_plateau is not None for one in found)
            texts = [label, " ".join(str(one.seed) for one in found)]
            texts += [_each(" + ".join(f"{part.steps:,}" for part in one.parts) for one in found)]
            texts += [_each(" + ".join(str(part.train_hours or UNDEFINED) for part in one.parts) for one in found)]
            parts = [first for one in found if (first := one.first)], found
            texts += [" + ".join(f"{fmean(one.train_seconds for one in of) / 60:.1f}" for of in parts if of)]
            texts += [" ".join(on_plateau) or ("none" if is_known else UNDEFINED)]
            for key in ("processor", "git"):
                texts.append(_each(one.provenance.get(key, UNDEFINED) for one in found))
            rows.append(texts)
    return markdown_table(header, rows)


def _each(values: Iterator[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def write_markdown(
    path: Path, folders: Sequence[Path], *, command: str, intro: str = "", more: str = "", is_summary: bool = False
) -> None:
    """Write the Markdown file of several tables, and the chart of a table into its folder.

    `command` creates the file, `intro` and `more` are Markdown before and after the tables, `is_summary` is that of
    `format_table`.
    """
    parts = [f"<!-- Generated by `{command}`: do not edit. -->\n"]
    parts += [intro.strip() + "\n", _COMPARISONS] if intro else [_COMPARISONS]
    for table in map(read_table, folders):
        parts.append(format_table(table, is_summary=is_summary))
        if table.spec.chart is not None and table.common_seeds:
            chart = table.folder / CHART
            write_atomic(chart, _draw_chart(table, table.spec.chart))
            parts.append(
                f"![{table.spec.title}]({Path(os.path.relpath(chart, path.parent)).as_posix()})\n\n*{_CHART}*\n"
            )
    write_atomic(path, "\n".join([*parts, more.strip() + "\n"] if more else parts))


def _draw_chart(table: StudyTable, spec: ChartSpec) -> str:
    """Mean and standard deviation over the seeds of each point, as an SVG file; points without results are left out."""
    mode, lines = table.spec.modes[0], []
    for colour, systems in enumerate(spec.lines.values()):
        found = {x: table.common(name, mode) for x, name in sorted(systems.items())}
        rates = {x: [100 * one.rates(mode)[MACRO] for one in of] for x, of in found.items() if of}
        lines.append(Line(points=[(x, fmean(of)) for x, of in rates.items()], colour=colour, shift=-3 * colour))
        for x, of in rates.items():
            ends = [(x, fmean(of) + sign * stdev(of)) for sign in (-1, 1) if len(of) > 1]
            lines.append(Line(points=ends, colour=colour, faint=True, shift=-3 * colour))
    label = f"{table.spec.title}: {_CHART}"
    chart = line_chart(lines, label=label, unit=spec.x, may_be_log=True, may_be_log_x=True)
    return standalone_svg(chart, [*spec.lines])
