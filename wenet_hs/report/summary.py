# SPDX-License-Identifier: Apache-2.0
"""The error rates of a report as plain text, for a terminal: a row a mode and experiment, a column a language."""

from collections.abc import Sequence

from wenet_hs.report.collect import ExperimentResults, in_order
from wenet_hs.score.error_rate import format_interval, percent


def summary(experiments: Sequence[ExperimentResults], *, said: str = "") -> str:
    """Error rates in percent, their macro average with its 95 % interval, and the real-time factor.

    `said` stands at the end of the first line: " (simulated speech)". "" where no experiment is scored.
    """
    reports = [report for experiment in experiments for report in experiment.scores.values()]
    if not reports:
        return ""
    langs = sorted({lang for report in reports for lang in report.languages})
    metrics = " and ".join(sorted({report.rules.metric.upper() for report in reports}))
    rows = [["mode", "experiment", *langs, "macro", "95% interval", "RTF"]]
    for mode in in_order({mode for experiment in experiments for mode in experiment.scores}):
        rows += [[mode, *_row(experiment, mode, langs)] for experiment in experiments if mode in experiment.scores]
    return f"{metrics} in %{said}\n{_aligned(rows)}"


def _row(experiment: ExperimentResults, mode: str, langs: Sequence[str]) -> list[str]:
    report = experiment.scores[mode]
    rates = [report.languages[lang].rate if lang in report.languages else None for lang in langs]
    interval = "" if report.macro.interval is None else format_interval(report.macro.interval)
    rtf = experiment.speeds.get(mode, {}).get("rtf")
    speed = "" if rtf is None else f"{rtf:.3f}"
    return [experiment.name, *map(percent, rates), percent(report.macro.rate), interval, speed]


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, two spaces apart; the first two are text and stand left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            f"{cell:<{w}}" if i < 2 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
