# SPDX-License-Identifier: Apache-2.0
"""The scores of one model in one decoding mode, with its worst utterances, confusions and units."""

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
"""How many confusions and how many units are kept."""
MIN_COUNT = 5
"""The recall of a unit is left out if it occurs less often in the test set."""


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
    """Read a score.json, and find the worst utterances, confusions and units in its texts.

    Confusions are all counted, and the most frequent ones kept. Units that are too rare in the test
    set are left out, and of the others those with the lowest recall kept.

    Raises DataError if the file is damaged.
    """
    report = read_report(path)
    all_confusions = sys.maxsize
    confusions = count_confusions(report.utterances.values(), report.rules, all_confusions).overall
    pairs = confusions.substitutions[:MAX_SHOWN]
    recalls = [recall for recall in list_recalls(confusions) if recall.count >= MIN_COUNT]
    return ModelScores(
        report=report,
        worst=worst_first([report]),
        pairs=pairs,
        examples=find_examples(report.utterances, report.rules, pairs),
        recalls=recalls[:MAX_SHOWN],
    )
