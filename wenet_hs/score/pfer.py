# SPDX-License-Identifier: Apache-2.0
"""Phone feature error rate (PFER): an edit distance in which similar phones cost less.

See docs/scoring.md. A deletion and an insertion cost 1 each. A substitution costs the weighted
share of phonological features in which the two phones differ (panphon's table and weights,
Mortensen et al. 2016): with features f, g of -1, 0 or 1 and weights w it is
Σ w·|f - g| / (2·Σ w), from 0 to 1. For a symbol of several segments (`aɪ`, `ⁿd`) the cost is the
mean of two costs: of the first and of the last segments. A unit without features (`<unk>`) costs 1
against every other unit.

Dimension key: V units, K features, M reference units, L units of the hypothesis.
"""

from dataclasses import replace
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from wenet_hs.score.error_rate import Report, summarize
from wenet_hs.text.articulatory import phone_features


def with_pfer(report: Report) -> Report:
    """The report of phones with feature distances, and PFER beside the phone error rates.

    Its signature names the version of panphon, whose features are used.

    Raises ConfigError if panphon is not installed, ValueError if the report is not one of phones.
    """
    metric = report.rules.metric
    if metric != "per":
        raise ValueError(
            f"PFER: the metric of the report is {metric!r}; score phones with metric 'per'"
        )
    phones_by_key = {
        key: utterance.split(report.rules) for key, utterance in report.utterances.items()
    }
    symbols = set[str]()
    for ref, hyp in phones_by_key.values():
        symbols.update(ref, hyp)
    sorted_symbols = sorted(symbols)
    id_of = {symbol: index for index, symbol in enumerate(sorted_symbols)}
    costs_VV = substitution_costs(sorted_symbols)
    utterances = {}
    for key, (ref, hyp) in phones_by_key.items():
        distance = 0.0
        if ref != hyp:
            ref_M = np.array([id_of[symbol] for symbol in ref], dtype=np.int64)
            hyp_L = np.array([id_of[symbol] for symbol in hyp], dtype=np.int64)
            distance = edit_distance(ref_M, hyp_L, costs_VV)
        utterances[key] = replace(report.utterances[key], feature_distance=distance)
    lang_of = {key: utterance.lang for key, utterance in utterances.items()}
    by_language = summarize(utterances, lang_of, report.num_resamples)
    return replace(
        report,
        signature=f"{report.signature}|features:panphon-{version('panphon')}",
        languages=by_language.groups,
        macro=by_language.macro,
        micro=by_language.micro,
        utterances=utterances,
    )


def substitution_costs(units: list[str]) -> NDArray[np.float64]:
    """(V, V) cost of each substitution, 0 to 1; 0 on the diagonal, 1 for units without features.

    Phones with equal rows in panphon's table (`r ɾ`) cost nothing. The features of a symbol are
    those of its first segment (its start) and of its last one (its end).
    """
    starts_VK, ends_VK, weights_K = phone_features(units)
    num_units = len(units)
    # If all features of start and end differ by 2: 1 instead of -1.
    largest_cost = (2 + 2) * weights_K.sum()
    costs_VV = np.empty((num_units, num_units))
    for index in range(num_units):  # row by row: all at once would need V times the memory
        differences_VK = np.abs(starts_VK - starts_VK[index]) + np.abs(ends_VK - ends_VK[index])
        costs_VV[index] = differences_VK @ weights_K / largest_cost
    costs_VV[np.isnan(costs_VV)] = 1.0  # a unit without features has NaN in its rows
    np.fill_diagonal(costs_VV, 0.0)
    return costs_VV


def edit_distance(
    ref_M: NDArray[np.int64], hyp_L: NDArray[np.int64], costs_VV: NDArray[np.float64]
) -> float:
    """The least cost to change one list of unit ids into the other.

    Deletions and insertions cost 1, substitutions `costs_VV[ref, hyp]`. The result is exact. One
    row of the usual table is computed at a time: cell j is the cost to change the reference so far
    into the first j units of the hypothesis.
    """
    positions = np.arange(len(hyp_L) + 1, dtype=np.float64)
    row = positions  # the empty reference: j insertions
    for unit in ref_M:
        next_row = row + 1  # a deletion
        np.minimum(next_row[1:], row[:-1] + costs_VV[unit, hyp_L], out=next_row[1:])
        # Insertions: cell j may be reached from any cell i before it, for j - i more. That is the
        # smallest of next_row[i] - i over all i up to j, plus j.
        row = np.minimum.accumulate(next_row - positions) + positions
    return float(row[-1])
