# SPDX-License-Identifier: Apache-2.0
"""The scores of one model in one decoding mode: the worst utterances, confusions, and units that are seldom right."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wenet_hs.score.alignments import Confusion, UnitRecall, count_confusions, find_examples, list_recalls
from wenet_hs.score.error_rate import Report, worst_first
from wenet_hs.score.tables import read_report

MAX_SHOWN, MIN_COUNT = 20, 5
"""Confusions and units that are kept; occurrences of a unit in the test set without which it is left out."""


@dataclass(frozen=True)
class ModelScores:
    """The content of score.json, and what follows from it."""

    report: Report
    worst: Sequence[str]
    """Keys by falling error rate."""
    pairs: Sequence[Confusion]
    """The most frequent confusions."""
    examples: dict[tuple[str | None, str | None], str]
    """Reference and hypothesis of a confusion → the key of the utterance with the fewest other errors."""
    recalls: Sequence[UnitRecall]
    """Units by rising recall."""


def read_scores(path: Path) -> ModelScores:
    """The scores of a score.json."""
    report = read_report(path)
    found = count_confusions(report.utterances.values(), report.rules, sys.maxsize).overall
    pairs = found.substitutions[:MAX_SHOWN]
    recalls = [one for one in list_recalls(found) if one.count >= MIN_COUNT][:MAX_SHOWN]
    examples = find_examples(report.utterances, report.rules, pairs)
    return ModelScores(report, worst_first([report]), pairs, examples, recalls)
