# SPDX-License-Identifier: Apache-2.0
"""A scoring told apart by speaker and by length of the reference."""

from collections.abc import Mapping
from dataclasses import replace

from wenet_hs.errors import DataError
from wenet_hs.score.bootstrap import clustered_intervals
from wenet_hs.score.error_rate import Report, count_of, name_some
from wenet_hs.score.summary import summarize

SPEAKER, LENGTH = "speaker", "length"
_FIRST_BIN = 5


def by_speaker(report: Report, speakers: Mapping[str, str]) -> Report:
    """The report with a line for each speaker in `by`.

    A speaker's own interval draws their utterances. Speakers are themselves a sample, so the averages' intervals draw
    speakers with all their utterances: they say what to expect of other people.

    Raises DataError for an utterance without a speaker.
    """
    unknown = sorted(report.utterances.keys() - speakers.keys())
    if unknown:
        raise DataError(
            f"the speakers: {count_of(len(unknown), 'reference utterance')} without one ({name_some(unknown)}); "
            "take a data.list that has them all"
        )
    grouping = summarize(report.utterances, speakers, report.num_resamples, intervals=clustered_intervals)
    return replace(report, by=report.by | {SPEAKER: grouping})


def by_length(report: Report) -> Report:
    """The report with a line for each length of the reference in `by`: see `length_bin`.

    Every bin keeps its number of utterances in every resample, as languages do.
    """
    bin_of = {key: length_bin(utterance.counts.num_units) for key, utterance in report.utterances.items()}
    grouping = summarize(report.utterances, bin_of, report.num_resamples, order=_shortest_first)
    return replace(report, by=report.by | {LENGTH: grouping})


def length_bin(num_units: int) -> str:
    """The bin of a reference of so many units: 0, 1-5, and from there on bins that double: 6-10, 11-20, 21-40, …"""
    if num_units == 0:
        return "0"
    low, high = 1, _FIRST_BIN
    while num_units > high:
        low, high = high + 1, 2 * high
    return f"{low}-{high}"


def _shortest_first(name: str) -> int:
    return int(name.partition("-")[0])
