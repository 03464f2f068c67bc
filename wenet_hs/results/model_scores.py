# SPDX-License-Identifier: Apache-2.0
"""The scores of one model in one decoding mode: the worst utterances, confusions, and units that
are seldom right."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wenet_hs.score.alignments import (
    Confusion,
    UnitRecall,
    count_confusions,
    find_examples,
    list_recalls,
)
from wenet_hs.score.error_rate import Report, worst_first
from wenet_hs.score.report_file import read_report

MAX_SHOWN = 20
"""Confusions and units that are kept."""
MIN_COUNT = 5
"""Occurrences of a unit in the test set without which its recall is left out."""


@dataclass(frozen=True, kw_only=True)
class ModelScores:
    """The content of score.json, and what follows from it."""

    report: Report
    worst: Sequence[str]
    """Keys by falling error rate."""
    pairs: Sequence[Confusion]
    """The most frequent confusions."""
    examples: dict[tuple[str | None, str | None], str]
    """Reference and hypothesis of a confusion → the key of the utterance with the fewest other
    errors."""
    recalls: Sequence[UnitRecall]
    """Units by rising recall."""


def read_scores(path: Path) -> ModelScores:
    """The scores of a score.json. Raises DataError if it is damaged."""
    report = read_report(path)
    confusions = count_confusions(report.utterances.values(), report.rules, sys.maxsize).overall
    pairs = confusions.substitutions[:MAX_SHOWN]
    recalls = [recall for recall in list_recalls(confusions) if recall.count >= MIN_COUNT]
    return ModelScores(
        report=report,
        worst=worst_first([report]),
        pairs=pairs,
        examples=find_examples(report.utterances, report.rules, pairs),
        recalls=recalls[:MAX_SHOWN],
    )
