# SPDX-License-Identifier: Apache-2.0
"""Tables of a study over seeds in Markdown, from results files: see `wenet_hs.report.results`.

A table is a folder of results files with a `table.yaml`, whose settings are those of `TableSpec`. No number of the
Markdown is typed by hand. The page begins with the first table; the details of each are in a file beside its folder.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from wenet_hs.config.yaml_file import read_yaml
from wenet_hs.errors import ConfigError, DataError, list_names
from wenet_hs.files import write_atomic
from wenet_hs.report.collect import describe_speech, sort_modes
from wenet_hs.report.plots import Line, line_chart, standalone_svg
from wenet_hs.report.results import BANDS, Results, read_json, read_results
from wenet_hs.score.compare import MACRO, MICRO
from wenet_hs.score.error_rate import UNDEFINED, percent
from wenet_hs.score.pairing import check_pair
from wenet_hs.score.seeds import FIXED_LANGUAGES, Errors, SystemSeeds, compare_seeds, correct_p, count_tests
from wenet_hs.score.tables import format_points, markdown_table, seed_difference_cells

SPEC, CHART, TEXTS = "table.yaml", "chart.svg", "texts.json"
_OF_OUTPUT_LAYER = ("head", "loss", "sampling_conf")
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
    systems: dict[str, str] = {}
    """System → its name in the table, in the order of the rows. The first one is the baseline. Default: all that have
    results, under their own names."""
    modes: list[str] = []
    """Decoding modes; the per-language rates are those of the first one. Default: all that the results have."""
    comparisons: list[tuple[str, str]] | None = None
    """Pairs A, B of systems; default: the first system with each other one."""
    chart: ChartSpec | None = None
    also: list[str] = []
    """Other folders, relative to this one, whose results of these systems belong to the table too."""
    paper: dict[str, tuple[float, float]] = {}
    """System of language models → perplexities on valid and test in the paper."""


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


def read_table(folder: Path, published: Path | None = None) -> StudyTable:
    """Read a table's folder. Without a `table.yaml` it is that of the folder of this name in `published`, if any.

    Raises ConfigError for a wrong `table.yaml`, DataError for a damaged file, a system that `table.yaml` does not name,
    results of one system on different test sets, or results that were decoded with different options.
    """
    path = folder / SPEC
    if not path.is_file() and published is not None:
        path = published / folder.resolve().name / SPEC
    try:
        values = read_yaml(path).values if path.is_file() else {"title": folder.resolve().name}
        spec = TableSpec.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
    found = [read_results(file) for file in sorted(folder.glob("*-seed*.json"))]
    names = sorted({one.system for one in found})
    spec.systems = spec.systems or {name: name for name in names}
    spec.modes = spec.modes or sort_modes({mode for one in found for mode in one.modes})
    others = (read_results(file) for other in spec.also for file in sorted((folder / other).glob("*-seed*.json")))
    found += [one for one in others if one.system in spec.systems]
    if not found:
        raise DataError(f"{folder}: no results files; run a recipe with --results, or leave this table out")
    if unknown := [name for name in names if name not in spec.systems]:
        raise DataError(
            f"{folder}: results of {list_names(unknown)}, which {path} does not name; add them to `systems`"
        )
    results: dict[str, dict[int, Results]] = {system: {} for system in spec.systems}
    for one in sorted(found, key=lambda one: one.seed):
        results[one.system][one.seed] = one
    for of_system, mode in product(results.values(), spec.modes):
        _check_test_sets([one for one in of_system.values() if mode in one.modes], mode)
    decodings = {str(one.decoding): one.name for one in found}
    if len(decodings) > 1:
        both = " and ".join([*decodings.values()][:2])
        raise DataError(f"{folder}: {both} were decoded with different options; decode with equal ones")
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
    for lang, units in sorted(a.units.items()):
        if any(units):
            errors[lang] = np.column_stack((a.modes[mode].errors[lang], b.modes[mode].errors[lang], units))
    return errors


# ---- Markdown


def format_table(table: StudyTable, *, details: str = "", has_text: bool = True) -> str:
    """The short form of a table: its text, the rates, and the comparisons in the first mode.

    `details`: Markdown at its end that names the file of `format_details`. `has_text`: with the text of `table.yaml`.
    """
    rows = compare_study(table)
    shown = [row for row in rows if row.mode == table.spec.modes[0]]
    parts = [_heading(table), table.spec.text.strip() if has_text else "", _format_texts(table), _format_rates(table)]
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
    first = next(one for of_system in table.results.values() for one in of_system.values())
    options = [f"{key} {list_names([*of]) if isinstance(of, dict) else of}" for key, of in first.decoding.items()]
    parts += [f"Decoding: {', '.join(options)}." if options else "", "Trainings:", _format_trainings(table)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(table: StudyTable) -> str:
    trainings = [one for of_system in table.results.values() for one in of_system.values()]
    are_pretrained = [one.is_pretrained_on_simulated for one in trainings]
    return f"## {table.spec.title}{describe_speech(any(one.is_simulated for one in trainings), are_pretrained)}"


def _format_texts(table: StudyTable) -> str:
    """What the texts of language models contain: the `texts.json` of `lm count`."""
    if not (table.folder / TEXTS).is_file():
        return ""
    texts = read_json(table.folder / TEXTS, "run `wenet-hs lm count` again")
    rows = [[name, *(f"{text[name]:,}" for text in texts)] for name in texts[0] if name != "text"]
    shares = [f"{100 * text['<unk>'] / text['units with line ends']:.1f} %" for text in texts]
    return markdown_table(["", *(text["text"] for text in texts)], [*rows, ["share of <unk>", *shares]])


def _format_rates(table: StudyTable) -> str:
    """Mean and standard deviation of the macro average in each mode, over the common seeds.

    Of language models: of the perplexities, over all seeds.
    """
    if not table.spec.modes:
        return _tabulate_perplexities(table)
    if not table.common_seeds:
        each = [f"{table.spec.systems[name]}: {' '.join(map(str, of))}" for name, of in table.results.items() if of]
        return f"No seed is common to all systems, so there are no means over seeds ({'; '.join(each)})."
    seeds = " ".join(map(str, table.common_seeds))
    caption = f"Mean ± standard deviation over seeds {seeds}; dev loss: of the decoder after the last step, smoothed:"
    return f"{caption}\n\n{_tabulate_rates(table)}"


def _format_plausible_rates(table: StudyTable) -> str:
    """The rates without the clips of implausible duration, if there are any."""
    numbers = {sum(map(len, (one.implausible or {}).values())) for _, _, found in table.rows for one in found} - {0}
    caption = f"Rates without the {' or '.join(map(str, sorted(numbers)))} clips of implausible duration:"
    return f"{caption}\n\n{_tabulate_rates(table, only_plausible=True)}" if numbers else ""


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
            losses = [one.dev_loss for one in of_seeds if one.dev_loss is not None]
            cells.append(_mean_and_deviation(losses, "{:.3f}".format))
        if table.results[system]:
            rows.append(cells)
    header = ["system", *table.spec.modes, *([] if only_plausible else ["dev loss, nats"])]
    return markdown_table(header, rows)


def _tabulate_perplexities(table: StudyTable) -> str:
    columns = list(dict.fromkeys(name for of in table.results.values() for one in of.values() for name in one.scores))
    papers = ["paper: valid", "paper: test"] if table.spec.paper else []
    rows = []
    for system, label in table.spec.systems.items():
        if found := [*table.results[system].values()]:
            scores = [[one.scores[name] for one in found if name in one.scores] for name in columns]
            cells = [_mean_and_deviation(of, "{:.2f}".format) for of in scores]
            paper = [f"{value:.2f}" for value in table.spec.paper.get(system, ())] or [UNDEFINED] * len(papers)
            rows.append([label, *cells, " ".join(str(one.seed) for one in found), *paper])
    trainings = [one for of in table.results.values() for one in of.values()]
    settings = sorted({name for one in trainings for name in one.settings if not name.startswith(_OF_OUTPUT_LAYER)})
    differing = [name for name in settings if len({str(one.settings.get(name)) for one in trainings}) > 1]
    note = f" Not equal in all trainings: {', '.join(differing)}." if differing else ""
    shown = markdown_table(["system", *columns, "seeds", *papers], rows)
    return f"{shown}\n\nMean ± standard deviation over the seeds.{note}"


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
        units = {lang: sum(of) for lang, of in results[0].units.items()}
        kinds = np.mean([np.sum([*one.kinds.values()], axis=0) for one in found], axis=0) / sum(units.values())
        cells = [percent(share) for share in kinds]
        pfer = [
            fmean(of / units[lang] for lang, of in one.feature_errors.items()) for one in found if one.feature_errors
        ]
        cells.append(percent(fmean(pfer)) if pfer else UNDEFINED)
        for band, _ in BANDS:
            total = np.sum([one.bands.get(band, (0, 0, 0, 0)) for one in found], axis=0)
            cells.append(percent(total[1:3].sum() / total[0]) if total[0] else UNDEFINED)
        rows.append([mode, label, *cells])
    bands = [f"{name} ×" if name != "unseen" else name for name, _ in BANDS]
    return markdown_table(["mode", "system", "S", "D", "I", "PFER, macro", *bands], rows)


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
    path: Path,
    folders: Sequence[Path],
    *,
    command: str,
    intro: str = "",
    more: str = "",
    details: bool = True,
    published: Path | None = None,
) -> str:
    """Write the Markdown file of several tables, their details, and the chart of a table into its folder.

    Args:
        command: what creates the file.
        intro, more: Markdown after the first table (without `details` before it), and after all tables.
        details: whether FOLDER.md has the details of the table in FOLDER.
        published: folder with the folders of published tables, with which those of the same name are compared.

    Returns the comparison with the published tables.
    """
    parts, compared = [f"<!-- Generated by `{command}`: do not edit. -->\n"], list[str]()
    if intro and not details:
        parts += [f"{intro.strip()}\n", _COMPARISONS]
    for number, table in enumerate(read_table(folder, published) for folder in folders):
        link = ""
        if details:
            target = table.folder.resolve().parent / f"{table.folder.resolve().name}.md"
            write_atomic(target, f"<!-- Generated by `{command}`: do not edit. -->\n\n{format_details(table)}")
            link = f"[Details: all modes, languages, kinds of errors, trainings]({_link(target, path)})"
        parts.append(format_table(table, details=link, has_text=details))
        if table.spec.chart is not None and table.common_seeds:
            chart = table.folder / CHART
            write_atomic(chart, _draw_chart(table, table.spec.chart))
            parts.append(f"![{table.spec.title}]({_link(chart, path)})\n\n*{_CHART}*\n")
        of_published = published and published / table.folder.resolve().name
        if of_published and of_published.is_dir():
            compared.append(compare_with_published(table, read_table(of_published)))
        if number == 0 and details:
            parts += [f"{intro.strip()}\n"] if intro else []
            parts += [_COMPARISONS] if table.spec.modes else []
    write_atomic(path, "\n".join([*parts, *compared, *([f"{more.strip()}\n"] if more else [])]))
    return "\n".join(compared)


def _link(target: Path, page: Path) -> str:
    return Path(os.path.relpath(target, page.resolve().parent)).as_posix()


def compare_with_published(table: StudyTable, published: StudyTable) -> str:
    """The rates of a table beside those of the published one, over all seeds of each; no test, as machines differ."""
    rows = []
    for system, label in table.spec.systems.items():
        pair = [[*of.results.get(system, {}).values()] for of in (table, published)]
        for mode in table.spec.modes or sorted({name for one in pair[0] for name in one.scores}):
            both = [_values(found, mode) for found in pair]
            if all(both):
                shown = percent if table.spec.modes else "{:.2f}".format
                seeds = " and ".join(str(len(of)) for of in both)
                difference = fmean(both[0]) - fmean(both[1])
                points = format_points(difference) if table.spec.modes else f"{difference:+.2f}"
                rows.append([mode, label, *(_mean_and_deviation(of, shown) for of in both), points, seeds])
    header = ["mode", "system", "these results", "published", "difference", "seeds"]
    return (
        f"## Compared with the published results: {table.spec.title}\n\n{markdown_table(header, rows)}\n"
        if rows
        else ""
    )


def _values(found: Sequence[Results], mode: str) -> list[float]:
    """The macro averages of a mode, or the scores of this name."""
    rates = [one.rates(mode)[MACRO] for one in found if mode in one.modes]
    return rates + [one.scores[mode] for one in found if mode in one.scores]


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
