# SPDX-License-Identifier: Apache-2.0
"""Error rates of a report: rates per language, mode and seed, and paired differences."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wenet_hs.errors import DataError
from wenet_hs.report.collect import ExperimentResults, ReportData, group_seeds, sort_modes
from wenet_hs.report.plots import Dot, interval_chart, rate_dots
from wenet_hs.score.compare import MACRO, MICRO, MIN_SPEAKERS, Difference, compare
from wenet_hs.score.error_rate import LanguageScore, MacroScore, Report


@dataclass(frozen=True, kw_only=True)
class RateRow:
    """A row of a table of error rates: a language or an average."""

    name: str
    scores: list[LanguageScore | MacroScore | None]
    """One per system."""
    differences: list[Difference | None]
    """Each other system minus the first one."""

    @property
    def is_average(self) -> bool:
        """Whether the row is the macro or micro average."""
        return self.name in (MACRO, MICRO)

    @property
    def size(self) -> LanguageScore | None:
        """A score with the number of utterances and units; None for the macro average."""
        return next((score for score in self.scores if isinstance(score, LanguageScore)), None)


def errors_section(data: ReportData) -> dict[str, Any]:
    """Rates, paired differences and the interval chart of the shown mode; seeds; the rates of all modes."""
    assert data.mode is not None
    experiments, shown, mode = data.experiments, data.shown, data.mode
    keys = {key for _, _, report in shown for key in report.utterances}
    speakers = {key: clip.speaker for key, clip in data.clips.items() if key in keys and clip.speaker}
    (first, first_experiment, first_report), *others = shown
    rivals, faults = (
        {},
        [f"{found.name} has no scored {mode}." for found in experiments if found.scores and mode not in found.scores],
    )
    for index, experiment, report in others:
        try:
            compared = compare(first_report, report, speakers=speakers if len(speakers) == len(keys) else None)
            rivals[index] = compared.differences
        except DataError as error:
            faults.append(f"{first_experiment.name} (A) and {experiment.name} (B) are not compared in {mode}: {error}")
    modes = sort_modes({name for experiment in experiments for name in experiment.scores})
    columns = [(name, index) for name in modes for index, found in enumerate(experiments) if name in found.scores]
    return {
        "faults": faults,
        "metrics": metric_names(experiments),
        "rows": _rate_rows(experiments, [(mode, index) for index, _, _ in shown], rivals),
        "rivals": list(rivals),
        "has_single_trainings": any(len(group.macro_rates(mode)) == 1 for group in group_seeds(experiments)),
        "has_speakers": any(found.by_speaker for of in rivals.values() for found in of.values()),
        "min_speakers": MIN_SPEAKERS,
        "chart": interval_chart(_language_dots(data), label="Error rates by language"),
        "modes": Counter(name for name, _ in columns),
        "columns": columns,
        "all_rows": _rate_rows(experiments, columns, {}),
    }


def metric_names(experiments: Sequence[ExperimentResults]) -> str:
    """The metrics of all scorings: "CER", or "CER and WER"."""
    reports = [report for experiment in experiments for report in experiment.scores.values()]
    return " and ".join(sorted({report.rules.metric.upper() for report in reports}))


def _rate_rows(
    experiments: Sequence[ExperimentResults],
    columns: Sequence[tuple[str, int]],
    differences: Mapping[int, Mapping[str, Difference]],
) -> list[RateRow]:
    """Rows of `columns` (mode and index of an experiment): languages by name, then both averages."""
    reports = [experiments[index].scores[mode] for mode, index in columns]
    groups = (*sorted({lang for report in reports for lang in report.languages}), MACRO, MICRO)
    return [
        RateRow(
            name=group,
            scores=[_score_of(report, group) for report in reports],
            differences=[found.get(group) for found in differences.values()],
        )
        for group in groups
    ]


def _score_of(report: Report, group: str) -> LanguageScore | MacroScore | None:
    return report.macro if group == MACRO else report.micro if group == MICRO else report.languages.get(group)


def _language_dots(data: ReportData) -> list[tuple[str, list[Dot]]]:
    rows: dict[str, list[Dot]] = {}
    langs = sorted({lang for _, _, report in data.shown for lang in report.languages})
    for group in (*langs, MACRO):
        for index, experiment, report in data.shown:
            rows.setdefault(group, []).extend(rate_dots(_score_of(report, group), index, f"{experiment.name}, {group}"))
    return [(group, dots) for group, dots in rows.items() if dots]
