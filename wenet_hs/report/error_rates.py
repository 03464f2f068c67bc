# SPDX-License-Identifier: Apache-2.0
"""Error rates of a report: rates per language and mode, paired differences, significantly best rates."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from wenet_hs.errors import DataError
from wenet_hs.report.collect import ExperimentResults, ReportData, sort_modes
from wenet_hs.report.plots import Dot, interval_chart
from wenet_hs.score.bootstrap import CONFIDENCE
from wenet_hs.score.compare import MACRO, MICRO, MIN_SPEAKERS, Difference, compare
from wenet_hs.score.error_rate import LanguageScore, MacroScore, Report, format_interval, percent

QUICK_RESAMPLES = 1_000  # for modes whose differences are not printed


@dataclass(frozen=True, kw_only=True)
class RateRow:
    """A row of a table of error rates: a language or an average."""

    name: str
    cells: list[tuple[LanguageScore | MacroScore | None, bool]]
    """The score of each system and whether it is significantly the best."""
    differences: list[Difference | None]
    """Each other system minus the first one."""

    @property
    def is_average(self) -> bool:
        """Whether the row is the macro or micro average."""
        return self.name in (MACRO, MICRO)

    @property
    def size(self) -> LanguageScore | None:
        """A score with the number of utterances and units; None for the macro average."""
        return next((score for score, _ in self.cells if isinstance(score, LanguageScore)), None)


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The differences of every two experiments in one mode."""

    differences: Mapping[tuple[int, int], Mapping[str, Difference]]
    """By the indices of two experiments in ascending order, then by language, MACRO or MICRO."""
    faults: Sequence[str]
    """Why a pair cannot be compared, one line each."""

    @property
    def has_speakers(self) -> bool:
        """Whether the differences have intervals over speakers."""
        return any(found.by_speaker for of_pair in self.differences.values() for found in of_pair.values())

    def is_best(self, index: int, rivals: Sequence[int], group: str) -> bool:
        """Whether an experiment's rate is significantly below that of each rival.

        The 95 % interval of each difference excludes 0 and its p is below 0.05, by speaker too if speakers are known.
        The interval alone is too narrow with few utterances or speakers; p takes their number into account.
        """
        return bool(rivals) and all(self._is_below(index, rival, group) for rival in rivals)

    def _is_below(self, index: int, rival: int, group: str) -> bool:
        found = self.differences.get((min(index, rival), max(index, rival)), {}).get(group)
        if found is None:
            return False
        for significance in (found.by_utterance, found.by_speaker or found.by_utterance):
            if significance.interval is None or significance.p is None or significance.p >= 1 - CONFIDENCE:
                return False
            if not (significance.interval.low > 0 if index < rival else significance.interval.high < 0):
                return False
        return True


def compare_pairs(
    experiments: Sequence[ExperimentResults], mode: str, *, speakers: Mapping[str, str] | None, num_resamples: int
) -> Pairs:
    """Compare every two experiments that are scored in this mode."""
    scored = [(index, experiment) for index, experiment in enumerate(experiments) if mode in experiment.scores]
    differences, faults = {}, []
    for (i, a), (j, b) in combinations(scored, 2):
        try:
            compared = compare(a.scores[mode], b.scores[mode], speakers=speakers, num_resamples=num_resamples)
            differences[i, j] = compared.differences
        except DataError as error:
            faults.append(f"{a.name} (A) and {b.name} (B) are not compared in {mode}: {error}")
    return Pairs(differences=differences, faults=faults)


def errors_section(data: ReportData) -> dict[str, Any]:
    """Rates, paired differences and the interval chart of the shown mode; the rates of all modes."""
    experiments, shown = data.experiments, data.shown
    keys = {key for _, _, report in shown for key in report.utterances}
    speakers = {key: clip.speaker for key, clip in data.clips.items() if key in keys and clip.speaker}
    modes = sort_modes({mode for experiment in experiments for mode in experiment.scores})
    pairs = {
        mode: compare_pairs(
            experiments,
            mode,
            speakers=speakers if len(speakers) == len(keys) else None,
            num_resamples=10_000 if mode == data.mode else QUICK_RESAMPLES,
        )
        for mode in modes
    }
    assert data.mode is not None
    first, *others = [index for index, _, _ in shown]
    rivals = [index for index in others if (first, index) in pairs[data.mode].differences]
    columns = [(mode, index) for mode in modes for index, found in enumerate(experiments) if mode in found.scores]
    unscored = [found.name for found in experiments if found.scores and data.mode not in found.scores]
    return {
        "faults": [*(f"{name} has no scored {data.mode}." for name in unscored), *pairs[data.mode].faults],
        "metrics": metric_names(experiments),
        "rows": _rate_rows(experiments, [(data.mode, index) for index, _, _ in shown], pairs, rivals),
        "rivals": rivals,
        "has_speakers": pairs[data.mode].has_speakers,
        "min_speakers": MIN_SPEAKERS,
        "chart": interval_chart(_language_dots(data), label="Error rates by language"),
        "modes": Counter(mode for mode, _ in columns),
        "columns": columns,
        "all_rows": _rate_rows(experiments, columns, pairs, []),
    }


def metric_names(experiments: Sequence[ExperimentResults]) -> str:
    """The metrics of all scorings: "CER", or "CER and WER"."""
    reports = [report for experiment in experiments for report in experiment.scores.values()]
    return " and ".join(sorted({report.rules.metric.upper() for report in reports}))


def _rate_rows(
    experiments: Sequence[ExperimentResults],
    columns: Sequence[tuple[str, int]],
    pairs: Mapping[str, Pairs],
    rivals: Sequence[int],
) -> list[RateRow]:
    """Rows of `columns` (mode and index of an experiment): languages by name, then both averages."""
    reports = [experiments[index].scores[mode] for mode, index in columns]
    rows = []
    for group in (*sorted({lang for report in reports for lang in report.languages}), MACRO, MICRO):
        cells = []
        for (mode, index), report in zip(columns, reports, strict=True):
            others = [other for name, other in columns if name == mode and other != index]
            cells.append((_score_of(report, group), pairs[mode].is_best(index, others, group)))
        mode, first = columns[0]
        differences = [pairs[mode].differences[first, rival].get(group) for rival in rivals]
        rows.append(RateRow(name=group, cells=cells, differences=differences))
    return rows


def _score_of(report: Report, group: str) -> LanguageScore | MacroScore | None:
    return report.macro if group == MACRO else report.micro if group == MICRO else report.languages.get(group)


def _language_dots(data: ReportData) -> list[tuple[str, list[Dot]]]:
    rows: dict[str, list[Dot]] = {}
    langs = sorted({lang for _, _, report in data.shown for lang in report.languages})
    for group in (*langs, MACRO):
        for index, experiment, report in data.shown:
            rows.setdefault(group, []).extend(rate_dots(_score_of(report, group), index, f"{experiment.name}, {group}"))
    return [(group, dots) for group, dots in rows.items() if dots]


def rate_dots(score: LanguageScore | MacroScore | None, colour: int, label: str) -> Iterator[Dot]:
    """The dot of a score in an interval chart; none without a rate."""
    if score is not None and score.rate is not None:
        low, high = score.interval or (score.rate, score.rate)
        text = f"{label}: {percent(score.rate)} % {format_interval(score.interval)}"
        yield Dot(rate=score.rate, low=low, high=high, colour=colour, label=text)
