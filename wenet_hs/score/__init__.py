# SPDX-License-Identifier: Apache-2.0
"""Error rates by explicit units, with what they were counted on and how sure they are."""

from wenet_hs.score.bootstrap import Interval, bootstrap_interval
from wenet_hs.score.edit_distance import EditAlignment, ErrorCounts, Operation, align, count_errors
from wenet_hs.score.error_rate import Report, error_rate, score
from wenet_hs.score.record import read_report
from wenet_hs.score.summary import FeatureRate, Grouping, LanguageScore, MacroScore, ScoredUtterance
from wenet_hs.score.units import METRICS, Rules, split_units

__all__ = [
    "METRICS",
    "EditAlignment",
    "ErrorCounts",
    "FeatureRate",
    "Grouping",
    "Interval",
    "LanguageScore",
    "MacroScore",
    "Operation",
    "Report",
    "Rules",
    "ScoredUtterance",
    "align",
    "bootstrap_interval",
    "count_errors",
    "error_rate",
    "read_report",
    "score",
    "split_units",
]
