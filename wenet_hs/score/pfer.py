# SPDX-License-Identifier: Apache-2.0
"""Phone feature error rate (PFER): an edit distance in which similar phones cost less; see
docs/scoring.md.

A deletion and an insertion cost 1 each. A substitution costs the weighted share of phonological
features in which the two phones differ (panphon's table and weights, Mortensen et al. 2016): with
features f, g of -1, 0 or 1 and weights w it is Σ w·|f - g| / (2·Σ w), from 0 to 1. For a symbol of
several segments (`aɪ`, `ⁿd`) the cost is the mean of two costs: of the first and of the last
segments. A unit without features (`<unk>`) costs 1 against every other unit.

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

    Raises ConfigError if panphon is not installed, ValueError if the report is not one of phones.
    """
    if report.rules.metric != "per":
        raise ValueError(
            f"PFER: the metric of the report is {report.rules.metric!r}; score phones with metric 'per'"
        )
    pairs = {key: utterance.split(report.rules) for key, utterance in report.utterances.items()}
    ids = {
        unit: index
        for index, unit in enumerate(
            sorted({u for pair in pairs.values() for of in pair for u in of})
        )
    }
    costs_VV = substitution_costs(list(ids))
    utterances = {}
    for key, (ref, hyp) in pairs.items():
        ref_M, hyp_L = (
            np.array([ids[unit] for unit in units], dtype=np.int64) for units in (ref, hyp)
        )
        distance = 0.0 if ref == hyp else edit_distance(ref_M, hyp_L, costs_VV)
        utterances[key] = replace(report.utterances[key], feature_distance=distance)
    found = summarize(
        utterances,
        {key: utterance.lang for key, utterance in utterances.items()},
        report.num_resamples,
    )
    return replace(
        report,
        signature=f"{report.signature}|features:panphon-{version('panphon')}",
        languages=found.groups,
        macro=found.macro,
        micro=found.micro,
        utterances=utterances,
    )


def substitution_costs(units: list[str]) -> NDArray[np.float64]:
    """(V, V) cost of each substitution, 0 to 1; 0 on the diagonal, 1 for units without features.

    Phones with equal rows in panphon's table (`r ɾ`) cost nothing.
    """
    starts_VK, ends_VK, weights_K = phone_features(units)
    costs_VV = np.empty((len(units), len(units)))
    for row, start_K, end_K in zip(costs_VV, starts_VK, ends_VK, strict=True):
        row[:] = (
            (np.abs(starts_VK - start_K) + np.abs(ends_VK - end_K))
            @ weights_K
            / (4 * weights_K.sum())
        )
    costs_VV[np.isnan(costs_VV)] = 1.0
    np.fill_diagonal(costs_VV, 0.0)
    return costs_VV


def edit_distance(
    ref_M: NDArray[np.int64], hyp_L: NDArray[np.int64], costs_VV: NDArray[np.float64]
) -> float:
    """The least cost to change one list of unit ids into the other; deletions and insertions cost
    1.

    Exact: one row of the usual table at a time. The insertions of a row are a running minimum,
    because a cell j positions to the right costs j more.
    """
    steps = np.arange(len(hyp_L) + 1, dtype=np.float64)
    row = steps
    for unit in ref_M:
        reached = row + 1
        np.minimum(reached[1:], row[:-1] + costs_VV[unit, hyp_L], out=reached[1:])
        row = np.minimum.accumulate(reached - steps) + steps
    return float(row[-1])
