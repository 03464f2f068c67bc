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
from wenet_hs.score.seeds import FIXED_LANGUAGES, MIN_SEEDS, SystemSeeds, count_tests
from wenet_hs.score.tables import TableRecord, seed_difference_cells


class ModeColumn(NamedTuple):
    """A column of the table of all modes."""

    mode: str
    number: int
    """Of the experiment."""
    report: Report


def errors_section(data: ReportData, compared: ComparedTrainings) -> dict[str, Any]:
    """Rates, paired differences and the interval chart of the shown mode; seeds; the rates of all
    modes."""
    langs = sorted(data.shown[0].report.languages)  # the same in all: their references are equal
    has_averages = len(langs) > 1
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
        "chart": interval_chart(
            _dots(data, [*langs, MACRO] if has_averages else langs), label=_CHART
        ),
        "seeds": seeds.rates,
        "seed_differences": seeds.differences,
        "num_tests": count_tests(data.systems),
        "fixed_languages": FIXED_LANGUAGES,
        "min_seeds": MIN_SEEDS,
        "modes": Counter(column.mode for column in columns),
        "columns": columns,
    }


_CHART = "Error rates by language"


def _has_speaker_intervals(compared: ComparedTrainings, langs: Sequence[str]) -> bool:
    for differences in compared.differences.values():
        if any(differences[lang].has_speaker_interval for lang in langs if lang in differences):
            return True
    return False


def _dots(data: ReportData, groups: Sequence[str]) -> list[Dot]:
    """A row per language or average, and in it a dot per shown experiment."""
    dots = list[Dot]()
    for group in groups:
        for shown in data.shown:
            label = f"{shown.experiment.name}, {group}"
            dots.append(
                Dot(
                    row=group, score=score_of(shown.report, group), colour=shown.number, label=label
                )
            )
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
    """The metrics of all scorings: "CER", or "CER and WER"."""
    reports = [report for experiment in experiments for report in experiment.scores.values()]
    return " and ".join(sorted({report.rules.metric.upper() for report in reports}))


@dataclass(frozen=True)
class SeedTables:
    """The tables of systems with several seeds; empty without such systems."""

    rates: Sequence[TableRecord]
    """In %."""
    differences: Sequence[TableRecord]
    """From the first system, in points."""


def seed_tables(systems: Sequence[SystemSeeds]) -> SeedTables:
    rates = [_rates_record(system) for system in systems]
    differences = [
        _difference_record(system) for system in systems if system.difference is not None
    ]
    return SeedTables(rates, differences)


def _rates_record(system: SystemSeeds) -> TableRecord:
    rates = [*system.rates.values()]
    return {
        "mode": system.mode,
        "system": system.name,
        "seeds": str(len(rates)),
        "mean": percent(fmean(rates)),
        "standard deviation": percent(stdev(rates)),
        "seed: rate": ", ".join(f"{seed}: {percent(rate)}" for seed, rate in system.rates.items()),
    }


def _difference_record(system: SystemSeeds) -> TableRecord:
    difference = system.difference
    assert difference is not None
    names = ("pairs", "difference", "95 % interval", "p", "p, Holm", "detectable")
    cells = seed_difference_cells(difference, system.adjusted_p)
    record = {"mode": system.mode, "system": f"{system.name} − {system.baseline}"}
    record |= zip(names, cells, strict=True)
    if len(difference.differences) < MIN_SEEDS:
        record["p"] = "points only"
    return record
