# SPDX-License-Identifier: Apache-2.0
"""The error rates of a report as plain text."""

from collections.abc import Iterator, Sequence

from wenet_hs.report.error_rates import metric_names, seed_tables
from wenet_hs.report.speed import speed_fault
from wenet_hs.report.verdict import describe_single_trainings, names_without_other_seeds
from wenet_hs.results.experiment import ExperimentResults
from wenet_hs.results.report_data import ReportData
from wenet_hs.results.systems import group_seeds
from wenet_hs.score.error_rate import format_interval, percent
from wenet_hs.score.seeds import FIXED_LANGUAGES, count_tests
from wenet_hs.score.tables import format_columns, header_and_rows


def format_summary(data: ReportData) -> str:
    """Error rates in %, the macro average with its 95 % interval, and the real-time factor; empty
    without scores."""
    if not data.scored_modes:
        return ""
    fault = speed_fault(data.experiments)
    langs = _find_languages(data.experiments)
    header = ["mode", "experiment", *langs]
    if len(langs) > 1:
        header.append("macro")
    header.append("95% interval")
    if not fault:
        header.append("RTF")
    rows = [header]
    for mode in data.scored_modes:
        for experiment in data.experiments:
            if mode in experiment.scores:
                row = [mode, experiment.name, *_format_rates(experiment, mode, langs)]
                if not fault:
                    row.append(_format_speed(experiment, mode))
                rows.append(row)
    lines = [f"{metric_names(data.experiments)} in %{data.note}", *format_columns(rows, num_left=2)]
    if fault:
        lines.append(fault)
    return "\n".join([*lines, *_summarize_seeds(data), *_warn_of_single_trainings(data)])


def _find_languages(experiments: Sequence[ExperimentResults]) -> list[str]:
    langs = set[str]()
    for experiment in experiments:
        for report in experiment.scores.values():
            langs |= report.languages.keys()
    return sorted(langs)


def _format_rates(experiment: ExperimentResults, mode: str, langs: Sequence[str]) -> list[str]:
    """The rate of each language, the macro average if there are several languages, and its
    interval."""
    report = experiment.scores[mode]
    rates = [report.languages[lang].rate if lang in report.languages else None for lang in langs]
    if len(langs) > 1:
        rates.append(report.macro.rate)
    interval = report.macro.interval
    return [*map(percent, rates), "" if interval is None else format_interval(interval)]


def _format_speed(experiment: ExperimentResults, mode: str) -> str:
    """The real-time factor; empty if it is not recorded."""
    speed = experiment.speeds.get(mode)
    return "" if speed is None or speed.rtf is None else f"{speed.rtf:.3f}"


def _summarize_seeds(data: ReportData) -> Iterator[str]:
    """The systems with several seeds: their rates, and their differences from the first system."""
    tables = seed_tables(data.systems)
    for records in (tables.rates, tables.differences):
        if records:
            header, rows = header_and_rows(records)
            yield ""
            yield from format_columns([header, *rows], num_left=2)
    yield from data.seed_faults
    if data.systems:
        yield f"differences in points. p, Holm: corrected for {count_tests(data.systems)}. {FIXED_LANGUAGES}"


def _warn_of_single_trainings(data: ReportData) -> Iterator[str]:
    """The sentence of the verdict on what one training per system cannot show, where there are
    several systems."""
    if data.mode is None:
        return
    groups = group_seeds(data.experiments, data.mode)
    if len(groups) > 1 and names_without_other_seeds(groups):
        sentence = describe_single_trainings(data.shown[0].report.rules.metric, data.mode)
        yield f"{sentence.statement} {sentence.numbers}"
