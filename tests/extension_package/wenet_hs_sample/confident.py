# SPDX-License-Identifier: Apache-2.0
"""Greedy CTC search that leaves out uncertain frames.

Dimension key: B utterances, T encoder frames, K best units of a frame.
"""

import math
from itertools import groupby

from wenet_hs.decode.hypothesis import Hypothesis
from wenet_hs.decode.modes import EncodedBatch, SearchMode

LEAST = math.log(0.5)
"""A frame whose best unit has a lower log-probability counts as blank."""


def confident_search(batch: EncodedBatch) -> list[list[Hypothesis]]:
    """One hypothesis per utterance, whose score is that of the best units of all frames."""
    values_BTK, ids_BTK = batch.ctc_best
    nbests = []
    for row, length in enumerate(batch.lengths.tolist()):
        values_T = values_BTK[row, :length, 0].tolist()
        ids_T = ids_BTK[row, :length, 0].tolist()
        blank = batch.model.ctc.blank
        units_T = [
            unit if value >= LEAST else blank for value, unit in zip(values_T, ids_T, strict=True)
        ]
        kept = tuple(unit for unit, _ in groupby(units_T) if unit != blank)
        nbests.append([Hypothesis(kept, sum(values_T))])
    return nbests


MODE = SearchMode(
    search=confident_search,
    help="greedy CTC without uncertain frames",
    branches=frozenset({"ctc"}),
    stages=("ctc",),
    is_greedy=True,
)
