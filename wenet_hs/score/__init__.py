# SPDX-License-Identifier: Apache-2.0
"""Error rates over explicit units, with confidence intervals and the rules of their counting.

Transcripts are read from files (`transcript_files`), split into units by stated rules (`rules`) and
aligned (`edit_distance`). The error counts become rates per language and averages with bootstrap
intervals (`error_rate`, `bootstrap`, `pfer`), and two systems are compared over utterances
(`compare`) or over seeds (`seeds`). The results are written as aligned texts, tables and JSON
(`alignments`, `tables`, `report_file`).
"""

from wenet_hs.score.edit_distance import ErrorCounts, Operation, align, count_errors
from wenet_hs.score.error_rate import Report, ScoredUtterance, score
from wenet_hs.score.report_file import read_report, report_to_json
from wenet_hs.score.rules import METRICS, Rules, split_units

__all__ = [
    "METRICS",
    "ErrorCounts",
    "Operation",
    "Report",
    "Rules",
    "ScoredUtterance",
    "align",
    "count_errors",
    "read_report",
    "report_to_json",
    "score",
    "split_units",
]
