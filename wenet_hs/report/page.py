# SPDX-License-Identifier: Apache-2.0
"""The HTML page of a report, and its error rates as plain text."""

from collections.abc import Iterator
from datetime import datetime
from functools import cache
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from wenet_hs.report import sections
from wenet_hs.report.confusions import confusions_section
from wenet_hs.report.page_table import table_parts
from wenet_hs.report.utterances import AUDIO_MB, MAX_UTTERANCES, align_columns, utterances_section
from wenet_hs.report.verdict import describe_single_trainings, names_without_other_seeds, write_verdict
from wenet_hs.results.experiments import ReportData, group_seeds, sort_modes
from wenet_hs.score.bootstrap import SEED
from wenet_hs.score.error_rate import format_interval, percent, sortable_rate
from wenet_hs.score.seeds import FIXED_LANGUAGES, count_tests
from wenet_hs.score.tables import format_columns, format_p, format_points, format_signed, header_and_rows


def build_page(
    data: ReportData, *, title: str, command: str, max_utterances: int = MAX_UTTERANCES, audio_mb: float = AUDIO_MB
) -> str:
    """The HTML of one self-contained page. Its content security policy forbids network access.

    Args:
        command: the command that creates the page.
        max_utterances: the number of utterances on the page; the worst ones are shown.
        audio_mb: limit of their audio, in megabytes of the page; 0 for none.
    """
    errors = sections.errors_section(data) if data.shown else None
    return render_page(
        "page.html",
        data=data,
        title=title,
        command=command,
        bootstrap_seed=SEED,
        corpora=sections.corpora_section(data),
        speed=sections.speed_section(data),
        training=sections.training_section(data),
        trees=sections.trees_section(data),
        confusions=confusions_section(data),
        conditions=sections.conditions_section(data),
        errors=errors,
        verdict=write_verdict(data, errors["rivals"]) if errors else [],
        lengths=sections.lengths_section(data) if errors else None,
        utterances=utterances_section(data, max_utterances, audio_mb) if errors else None,
    )


def render_page(template: str, **values: Any) -> str:
    """The HTML of a file in `templates/`, with its variables, the date and the version of wenet_hs."""
    date = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return _environment().get_template(template).render(date=date, version=version("wenet_hs"), **values)


@cache
def _environment() -> Environment:
    """The templates, compiled once, with the filters for numbers."""
    environment = Environment(loader=PackageLoader("wenet_hs.report"), autoescape=True, undefined=StrictUndefined)
    environment.filters |= {
        "count": "{:,}".format,
        "columns": align_columns,
        "counts": sections.format_counts,
        "first_sentence": lambda html: Markup(html).striptags().split(". ")[0],
        "interval": format_interval,
        "p_value": format_p,
        "percent": percent,
        "points": format_points,
        "score": sections.score_of,
        "signed": format_signed,
        "sort_rate": sortable_rate,
        "table_parts": table_parts,
    }
    return environment


def format_summary(data: ReportData) -> str:
    """Error rates in %, the macro average with its 95 % interval, and the real-time factor; empty without scores."""
    reports = [report for experiment in data.experiments for report in experiment.scores.values()]
    if not reports:
        return ""
    langs = sorted({lang for report in reports for lang in report.languages})
    averages, fault = ["macro"] if len(langs) > 1 else [], sections.speed_fault(data.experiments)
    rows = [["mode", "experiment", *langs, *averages, "95% interval", *([] if fault else ["RTF"])]]
    for mode in sort_modes({mode for experiment in data.experiments for mode in experiment.scores}):
        for experiment in data.experiments:
            if mode in experiment.scores:
                report = experiment.scores[mode]
                rates = [report.languages[lang].rate if lang in report.languages else None for lang in langs]
                interval = "" if report.macro.interval is None else format_interval(report.macro.interval)
                rtf = experiment.speeds.get(mode, {}).get("rtf")
                row = [mode, experiment.name, *map(percent, [*rates, *(report.macro.rate for _ in averages)]), interval]
                rows.append(row if fault else [*row, "" if rtf is None else f"{rtf:.3f}"])
    metrics = sections.metric_names(data.experiments)
    lines = [f"{metrics} in %{data.note}", *format_columns(rows, num_left=2), *([fault] if fault else [])]
    return "\n".join([*lines, *_summarize_seeds(data), *_warn_of_single_trainings(data)])


def _warn_of_single_trainings(data: ReportData) -> Iterator[str]:
    """The sentence of the verdict on what one training per system cannot show, where there are several systems."""
    if data.mode is None:
        return
    groups = group_seeds(data.experiments, data.mode)
    if len(groups) > 1 and names_without_other_seeds(groups):
        sentence = describe_single_trainings(data.shown[0][2].rules.metric, data.mode)
        yield f"{sentence.statement} {sentence.numbers}"


def _summarize_seeds(data: ReportData) -> Iterator[str]:
    """The systems with several seeds: their rates, and their differences from the first system."""
    for records in filter(None, sections.seed_tables(data)):
        header, rows = header_and_rows(records)
        yield from ("", *format_columns([header, *rows], num_left=2))
    yield from data.seed_faults
    if data.systems:
        yield f"differences in points. p, Holm: corrected for {count_tests(data.systems)}. {FIXED_LANGUAGES}"
