# SPDX-License-Identifier: Apache-2.0
"""Utterances of a report: the worst ones of the shown mode, their confidences and audio."""

from typing import Any

from wenet_hs.report.audio import embed_audio
from wenet_hs.results.report_data import ReportData
from wenet_hs.score.error_rate import worst_first
from wenet_hs.score.rules import UNIT_NAMES

MAX_UTTERANCES = 400
AUDIO_MB = 3.0


def utterances_section(data: ReportData, max_utterances: int, audio_mb: float) -> dict[str, Any]:
    """The worst utterances of the shown mode, by falling mean error rate of the systems.

    Args:
        max_utterances: their number; a page with all utterances of a large test would be slow.
        audio_mb: limit of embedded audio, in megabytes of the page; 0 for none.
    """
    reports = [shown.report for shown in data.shown]
    ordered = worst_first(reports)
    keys = ordered[:max_utterances]
    audio = embed_audio(data.clips, keys, int(audio_mb * 10**6))
    confidences = {
        index: experiment.test.read_confidences(str(data.mode))
        for index, experiment, _ in data.shown
    }
    return {
        "shown": keys,
        "num_scored": len(ordered),
        "langs": sorted({reports[0].utterances[key].lang for key in keys}),
        "unit": UNIT_NAMES[reports[0].rules.metric],
        "confidences": confidences,
        "audio_mb": audio_mb,
        "urls": audio.urls,
        "num_omitted": audio.num_omitted,
        "num_unreadable": audio.num_unreadable,
    }
