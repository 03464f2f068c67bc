# SPDX-License-Identifier: Apache-2.0
"""Error rates over explicit units, with confidence intervals and the rules they were counted by."""

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
