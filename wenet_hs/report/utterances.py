# SPDX-License-Identifier: Apache-2.0
"""The section of the report about utterances: the worst ones, their confidences and audio."""

from typing import Any

from wenet_hs.report.audio import embed_audio
from wenet_hs.results.report_data import ReportData
from wenet_hs.score.error_rate import worst_first
from wenet_hs.score.rules import UNIT_NAMES

MAX_UTTERANCES = 400
AUDIO_MB = 3.0


def utterances_section(data: ReportData, max_utterances: int, audio_mb: float) -> dict[str, Any]:
    """The variables of `utterances.html`: the worst utterances of the shown mode.

    They are in the order of falling mean error rate of the systems. At least one experiment must be
    shown.

    Args:
        max_utterances: their number; a page with all utterances of a large test would be slow.
        audio_mb: limit of embedded audio, in megabytes of the page; 0 for none.
    """
    reports = [shown.report for shown in data.shown]
    all_keys = worst_first(reports)
    keys = all_keys[:max_utterances]
    audio = embed_audio(data.clips, keys, max_bytes=int(audio_mb * 10**6))
    assert data.mode is not None  # an experiment is shown
    confidences = dict[int, dict[str, float] | None]()
    for shown in data.shown:
        confidences[shown.number] = shown.experiment.test.read_confidences(data.mode)
    first = reports[0]  # the languages are the same in all: their references are equal
    langs = {first.utterances[key].lang for key in keys}
    return {
        "shown": keys,
        "num_scored": len(all_keys),
        "langs": sorted(langs),
        "unit": UNIT_NAMES[first.rules.metric],
        "confidences": confidences,
        "audio_mb": audio_mb,
        "urls": audio.urls,
        "num_omitted": audio.num_omitted,
        "num_unreadable": audio.num_unreadable,
    }
