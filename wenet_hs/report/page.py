# SPDX-License-Identifier: Apache-2.0
"""The HTML page of a report, and its error rates as plain text."""

from collections.abc import Iterator

from wenet_hs.report import sections
from wenet_hs.report.confusions import confusions_section
from wenet_hs.report.render import render_page
from wenet_hs.report.utterances import AUDIO_MB, MAX_UTTERANCES, utterances_section
from wenet_hs.report.verdict import describe_single_trainings, names_without_other_seeds, write_verdict
from wenet_hs.results.report_data import ReportData
from wenet_hs.results.systems import group_seeds
from wenet_hs.score.bootstrap import SEED
from wenet_hs.score.error_rate import format_interval, percent
from wenet_hs.score.seeds import FIXED_LANGUAGES, count_tests
from wenet_hs.score.tables import format_columns, header_and_rows


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


def format_summary(data: ReportData) -> str:
    """Error rates in %, the macro average with its 95 % interval, and the real-time factor; empty without scores."""
    reports = [report for experiment in data.experiments for report in experiment.scores.values()]
    if not reports:
        return ""
    langs = sorted({lang for report in reports for lang in report.languages})
    averages, fault = ["macro"] if len(langs) > 1 else [], sections.speed_fault(data.experiments)
    rows = [["mode", "experiment", *langs, *averages, "95% interval", *([] if fault else ["RTF"])]]
    for mode in data.scored_modes:
        for experiment in data.experiments:
            if mode in experiment.scores:
                report = experiment.scores[mode]
                rates = [report.languages[lang].rate if lang in report.languages else None for lang in langs]
                interval = "" if report.macro.interval is None else format_interval(report.macro.interval)
                rtf = experiment.speeds[mode].rtf if mode in experiment.speeds else None
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
