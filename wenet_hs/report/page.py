# SPDX-License-Identifier: Apache-2.0
"""The HTML page of a report, with the variables of all its sections."""

from typing import Any

from wenet_hs.report import sections
from wenet_hs.report.confusions import confusions_section
from wenet_hs.report.error_rates import errors_section
from wenet_hs.report.render import render_page
from wenet_hs.report.speed import speed_section
from wenet_hs.report.utterances import AUDIO_MB, MAX_UTTERANCES, utterances_section
from wenet_hs.report.verdict import write_verdict
from wenet_hs.results.report_data import ReportData
from wenet_hs.results.single_trainings import compare_with_first
from wenet_hs.score.bootstrap import SEED


def build_page(
    data: ReportData,
    *,
    title: str,
    command: str,
    max_utterances: int = MAX_UTTERANCES,
    audio_mb: float = AUDIO_MB,
) -> str:
    """The HTML of one self-contained page. Its content security policy forbids network access.

    A section without content is left out.

    Args:
        command: the command that creates the page.
        max_utterances: the number of utterances on the page; the worst ones are shown.
        audio_mb: limit of their audio, in megabytes of the page; 0 for none.
    """
    return render_page(
        "page.html",
        data=data,
        title=title,
        command=command,
        bootstrap_seed=SEED,
        corpora=sections.corpora_section(data),
        speed=speed_section(data),
        training=sections.training_section(data),
        trees=sections.trees_section(data),
        confusions=confusions_section(data),
        conditions=sections.conditions_section(data),
        **_sections_of_scores(data, max_utterances, audio_mb),
    )


def _sections_of_scores(data: ReportData, max_utterances: int, audio_mb: float) -> dict[str, Any]:
    """The sections that need scores in the shown mode; all are empty if nothing is scored."""
    if not data.shown:
        return {"verdict": [], "errors": None, "lengths": None, "utterances": None}
    compared = compare_with_first(data)
    return {
        "verdict": write_verdict(data, compared.differences),
        "errors": errors_section(data, compared),
        "lengths": sections.lengths_section(data),
        "utterances": utterances_section(data, max_utterances, audio_mb),
    }
