# SPDX-License-Identifier: Apache-2.0
"""The section of the report about error rates: of the shown mode, over seeds, and of all modes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, NamedTuple

from wenet_hs.report.page_table import score_of
from wenet_hs.report.plots import Dot, interval_chart
from wenet_hs.results.experiment import ExperimentResults
from wenet_hs.results.report_data import ReportData
from wenet_hs.results.single_trainings import ComparedTrainings
from wenet_hs.score.compare import MACRO, MICRO, MIN_SPEAKERS
from wenet_hs.score.error_rate import Report, percent
from wenet_hs.score.seeds import (
    FIXED_LANGUAGES,
    MIN_SEEDS,
    SeedDifference,
    SystemSeeds,
    count_tests,
)
from wenet_hs.score.tables import TableRecord, seed_difference_cells

_CHART_LABEL = "Error rates by language"


class ModeColumn(NamedTuple):
    """A column of the table of all modes: one experiment in one mode."""

    mode: str
    number: int
    """Of the experiment on the page, from 0."""
    report: Report


def errors_section(data: ReportData, compared: ComparedTrainings) -> dict[str, Any]:
    """The variables of `errors.html`.

    These are the rates, paired differences and interval chart of the shown mode, the tables of
    systems with several seeds, and the rates of all modes. At least one experiment must be shown.
    """
    langs = sorted(data.shown[0].report.languages)  # the same in all: their references are equal
    has_averages = len(langs) > 1
    chart_rows = [*langs, MACRO] if has_averages else langs
    seeds = seed_tables(data.systems)
    columns = _columns_of_modes(data)
    return {
        "faults": [*compared.faults, *data.seed_faults],
        "metrics": metric_names(data.experiments),
        "langs": langs,
        "averages": (MACRO, MICRO) if has_averages else (),
        "rivals": compared.differences,
        "is_over_seeds": compared.is_over_seeds,
        "has_speakers": _has_speaker_intervals(compared, langs),
        "min_speakers": MIN_SPEAKERS,
        "chart": interval_chart(_list_dots(data, chart_rows), label=_CHART_LABEL),
        "seeds": seeds.rates,
        "seed_differences": seeds.differences,
        "num_tests": count_tests(data.systems),
        "fixed_languages": FIXED_LANGUAGES,
        "min_seeds": MIN_SEEDS,
        "modes": Counter(column.mode for column in columns),
        "columns": columns,
    }


def _has_speaker_intervals(compared: ComparedTrainings, langs: Sequence[str]) -> bool:
    """Whether a difference of one of these languages has an interval over speakers."""
    for differences in compared.differences.values():
        for lang in langs:
            if lang in differences and differences[lang].has_speaker_interval:
                return True
    return False


def _list_dots(data: ReportData, groups: Sequence[str]) -> list[Dot]:
    """A row per language or average, and in it a dot per shown experiment."""
    dots = list[Dot]()
    for group in groups:
        for shown in data.shown:
            dot = Dot(
                row=group,
                score=score_of(shown.report, group),
                colour=shown.number,
                label=f"{shown.experiment.name}, {group}",
            )
            dots.append(dot)
    return dots


def _columns_of_modes(data: ReportData) -> list[ModeColumn]:
    """A group of columns per mode, and in it a column per experiment that is scored in it."""
    columns = list[ModeColumn]()
    for mode in data.scored_modes:
        for number, experiment in enumerate(data.experiments):
            if mode in experiment.scores:
                columns.append(ModeColumn(mode, number, experiment.scores[mode]))
    return columns


def metric_names(experiments: Sequence[ExperimentResults]) -> str:
    """The metrics of all scorings, in alphabetical order: `CER`, or `CER and WER`."""
    metrics = set[str]()
    for experiment in experiments:
        metrics |= {report.rules.metric.upper() for report in experiment.scores.values()}
    return " and ".join(sorted(metrics))


@dataclass(frozen=True)
class SeedTables:
    """The tables of systems with several seeds; empty without such systems."""

    rates: Sequence[TableRecord]
    """In %."""
    differences: Sequence[TableRecord]
    """From the first system, in points."""


def seed_tables(systems: Sequence[SystemSeeds]) -> SeedTables:
    """A row of rates per system, and a row of differences per system that is compared."""
    rates = [_rates_record(system) for system in systems]
    differences = list[TableRecord]()
    for system in systems:
        if system.difference is not None:
            differences.append(_difference_record(system, system.difference))
    return SeedTables(rates, differences)


def _rates_record(system: SystemSeeds) -> TableRecord:
    """The mean rate of a system in %, and the rate of each seed; it must have two seeds or more."""
    rates = [*system.rates.values()]
    seed_rates = [f"{seed}: {percent(rate)}" for seed, rate in system.rates.items()]
    return {
        "mode": system.mode,
        "system": system.name,
        "seeds": str(len(rates)),
        "mean": percent(fmean(rates)),
        "standard deviation": percent(stdev(rates)),
        "seed: rate": ", ".join(seed_rates),
    }


def _difference_record(system: SystemSeeds, difference: SeedDifference) -> TableRecord:
    """The difference of a system from its baseline in points, with its test over seeds.

    With fewer than MIN_SEEDS pairs there is no test; the column of p says so.
    """
    # In the order of `seed_difference_cells`.
    names = ("pairs", "difference", "95 % interval", "p", "p, Holm", "detectable")
    cells = seed_difference_cells(difference, system.adjusted_p)
    record = {"mode": system.mode, "system": f"{system.name} − {system.baseline}"}
    record |= zip(names, cells, strict=True)
    if len(difference.differences) < MIN_SEEDS:
        record["p"] = "points only"
    return record
