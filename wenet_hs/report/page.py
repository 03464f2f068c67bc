# SPDX-License-Identifier: Apache-2.0
"""The HTML page of a report, and its error rates as plain text."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from wenet_hs.report.collect import ExperimentResults, ReportData, group_seeds, sort_modes
from wenet_hs.report.error_rates import errors_section, metric_names
from wenet_hs.report.sections import (
    conditions_section,
    confusions_section,
    corpora_section,
    format_counts,
    lengths_section,
    seeds_section,
    speed_section,
    training_section,
    trees_section,
)
from wenet_hs.report.utterances import AUDIO_MB, MAX_UTTERANCES, utterances_section
from wenet_hs.score.bootstrap import SEED
from wenet_hs.score.error_rate import format_interval, percent
from wenet_hs.score.tables import format_columns, format_p, format_signed


@dataclass(frozen=True, kw_only=True)
class Heading:
    """Title, date and command of the page itself."""

    title: str
    date: str
    command: str
    """The command that created the page."""


def build_page(
    data: ReportData, heading: Heading, *, max_utterances: int = MAX_UTTERANCES, audio_mb: float = AUDIO_MB
) -> str:
    """The HTML of one self-contained page. Its content security policy forbids network access.

    Args:
        max_utterances: the number of utterances on the page; the worst ones are shown.
        audio_mb: limit of their audio, in megabytes of the page; 0 for none.
    """
    return (
        _environment()
        .get_template("page.html")
        .render(
            data=data,
            heading=heading,
            note=data.result_note_html,
            version=version("wenet_hs"),
            bootstrap_seed=SEED,
            absent=_list_absent(data.experiments),
            errors=errors_section(data) if data.shown else None,
            seeds=seeds_section(data),
            corpora=corpora_section(data),
            speed=speed_section(data),
            training=training_section(data),
            trees=trees_section(data),
            confusions=confusions_section(data),
            lengths=lengths_section(data) if data.shown else None,
            utterances=utterances_section(data, max_utterances, audio_mb) if data.shown else None,
            conditions=conditions_section(data),
        )
    )


@cache
def _environment() -> Environment:
    """The templates, compiled once, with the filters for numbers."""
    environment = Environment(loader=PackageLoader("wenet_hs.report"), autoescape=True, undefined=StrictUndefined)
    environment.filters |= {
        "count": "{:,}".format,
        "counts": format_counts,
        "first_sentence": lambda html: Markup(html).striptags().split(". ")[0],
        "interval": format_interval,
        "p_value": format_p,
        "percent": percent,
        "points": lambda fraction: f"{100 * fraction:+.2f}",
        "signed": format_signed,
    }
    return environment


def _list_absent(experiments: Sequence[ExperimentResults]) -> list[str]:
    """What the folders lack, with the names of all experiments that lack it."""
    lacking: dict[str, list[str]] = {}
    for experiment in experiments:
        for what in experiment.absent:
            lacking.setdefault(what, []).append(experiment.name)
    return [
        f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} no {what}" for what, names in lacking.items()
    ]


def format_summary(data: ReportData) -> str:
    """Error rates in %, the macro average with its 95 % interval, and the real-time factor; empty without scores."""
    scored = [experiment for experiment in data.experiments if experiment.scores]
    if not scored:
        return ""
    langs = sorted({lang for found in scored for report in found.scores.values() for lang in report.languages})
    seeds: list[str] = []
    rows = [["mode", "experiment", *langs, "macro", "95% interval", "RTF"]]
    for mode in sort_modes({mode for experiment in scored for mode in experiment.scores}):
        for experiment in scored:
            if mode in experiment.scores:
                report = experiment.scores[mode]
                rates = [report.languages[lang].rate if lang in report.languages else None for lang in langs]
                interval = "" if report.macro.interval is None else format_interval(report.macro.interval)
                rtf = experiment.speeds.get(mode, {}).get("rtf")
                row = [mode, experiment.name, *map(percent, rates), percent(report.macro.rate), interval]
                rows.append([*row, "" if rtf is None else f"{rtf:.3f}"])
        for group in group_seeds(scored):
            num_seeds = len(group.macro_rates(mode))
            if num_seeds > 1:
                mean, deviation, each = group.summary(mode)
                name = group.experiments[0].name
                seeds.append(f"{mode}, {name}, {num_seeds} seeds: mean {mean}, standard deviation {deviation} ({each})")
    note = " (simulated speech)" if data.is_simulated else ""
    return "\n".join([f"{metric_names(scored)} in %{note}", *format_columns(rows, num_left=2), *seeds])
