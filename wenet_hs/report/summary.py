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
    """The error rates in % of each experiment and mode as a plain-text table; empty without scores.

    The table has the rate of each language, the macro average with its 95 % interval, and the
    real-time factor. If the speeds cannot be compared, the reason stands below the table instead of
    the real-time factor. Then come the systems with several seeds, and what single trainings cannot
    show.
    """
    if not data.scored_modes:
        return ""
    fault = speed_fault(data.experiments)
    lines = [f"{metric_names(data.experiments)} in %{data.note}"]
    rows = _list_rows(data, has_speeds=not fault)
    lines += format_columns(rows, num_left=2)  # mode and experiment are texts, the others numbers
    if fault:
        lines.append(fault)
    lines += _summarize_seeds(data)
    lines += _warn_of_single_trainings(data)
    return "\n".join(lines)


def _list_rows(data: ReportData, *, has_speeds: bool) -> list[list[str]]:
    """The header, then a row per mode and experiment that is scored in it.

    With one language there is no macro average. `has_speeds`: the last column has the real-time
    factor.
    """
    langs = _find_languages(data.experiments)
    header = ["mode", "experiment", *langs]
    if len(langs) > 1:
        header.append("macro")
    header.append("95% interval")
    if has_speeds:
        header.append("RTF")
    rows = [header]
    for mode in data.scored_modes:
        for experiment in data.experiments:
            if mode in experiment.scores:
                row = [mode, experiment.name, *_format_rates(experiment, mode, langs)]
                if has_speeds:
                    row.append(_format_speed(experiment, mode))
                rows.append(row)
    return rows


def _find_languages(experiments: Sequence[ExperimentResults]) -> list[str]:
    """The languages of all scorings, in alphabetical order."""
    langs = set[str]()
    for experiment in experiments:
        for report in experiment.scores.values():
            langs |= report.languages.keys()
    return sorted(langs)


def _format_rates(experiment: ExperimentResults, mode: str, langs: Sequence[str]) -> list[str]:
    """The rate of each language, the macro average, and its interval.

    A language that is not scored is n/a. With one language there is no macro average. An interval
    that is not known is empty.
    """
    report = experiment.scores[mode]
    cells = list[str]()
    for lang in langs:
        score = report.languages.get(lang)
        cells.append(percent(None if score is None else score.rate))
    if len(langs) > 1:
        cells.append(percent(report.macro.rate))
    interval = report.macro.interval
    cells.append("" if interval is None else format_interval(interval))
    return cells


def _format_speed(experiment: ExperimentResults, mode: str) -> str:
    """The real-time factor; empty if it is not recorded."""
    speed = experiment.speeds.get(mode)
    if speed is None or speed.rtf is None:
        return ""
    return f"{speed.rtf:.3f}"


def _summarize_seeds(data: ReportData) -> Iterator[str]:
    """The lines about systems with several seeds; none without such systems.

    They are a table of their rates, one of their differences from the first system, each after an
    empty line, messages about systems that cannot be compared, and a note.
    """
    tables = seed_tables(data.systems)
    for records in (tables.rates, tables.differences):
        if records:
            header, rows = header_and_rows(records)
            yield ""
            yield from format_columns([header, *rows], num_left=2)  # mode and system are texts
    yield from data.seed_faults
    if data.systems:
        num_tests = count_tests(data.systems)
        yield f"differences in points. p, Holm: corrected for {num_tests}. {FIXED_LANGUAGES}"


def _warn_of_single_trainings(data: ReportData) -> Iterator[str]:
    """The sentence of the verdict on what one training per system cannot show.

    It is left out if there is one system only, if each system has several seeds, and if nothing is
    scored.
    """
    if data.mode is None:
        return
    groups = group_seeds(data.experiments, data.mode)
    if len(groups) > 1 and names_without_other_seeds(groups):
        metric = data.shown[0].report.rules.metric
        sentence = describe_single_trainings(metric, data.mode)
        yield f"{sentence.statement} {sentence.numbers}"
