# SPDX-License-Identifier: Apache-2.0
"""Phone feature error rate (PFER): an edit distance in which a near miss costs less than a far one.

A deletion and an insertion cost 1 each. A substitution costs the weighted share of phonological features in which the
two phones differ (panphon's table and weights, Mortensen et al. 2016, "PanPhon: a resource for mapping IPA segments to
articulatory feature vectors"): with features f, g of -1, 0 or 1 and weights w it is Σ w·|f - g| / (2·Σ w), from 0 to 1.
Of a symbol of several segments (`aɪ`, `ⁿd`) the begin is compared with the begin, the end with the end, and the mean
is taken. A unit without features (`<unk>`) costs 1 against any other. The rate is the distance over reference units.

panphon's own `feature_error_rate` differs: it counts all features alike, charges less for deleting a phone that leaves
features open, and divides a string into segments by itself, so that what it does not know is dropped in silence; its
`weighted_feature_edit_distance` is not scaled to 1. Nearest to ours is its `partial_hamming_feature_edit_distance`: the
same but for weights and symbols of several segments.

Dimension key: V units, K features, M reference units, L units of the hypothesis.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from wenet_hs.score.error_rate import Report
from wenet_hs.score.summary import ScoredUtterance, summarize
from wenet_hs.score.units import Rules, units_of
from wenet_hs.tree.articulatory import phone_features

FEATURES = "features"


def with_features(report: Report) -> Report:
    """The report with feature distances, and their rates beside the phone error rates.

    Raises ValueError unless the metric is per, ConfigError where panphon is not installed.
    """
    if report.rules.metric != "per":
        raise ValueError(f"features are of phones; the metric is {report.rules.metric}, not per")
    utterances = {
        key: replace(utterance, feature_distance=distance)
        for (key, utterance), distance in zip(
            report.utterances.items(), _distances(list(report.utterances.values()), report.rules), strict=True
        )
    }
    found = summarize(utterances, {key: utterance.lang for key, utterance in utterances.items()}, report.num_resamples)
    return replace(
        report,
        signature=f"{report.signature}|{FEATURES}:panphon-{version('panphon')}",
        languages=found.groups,
        macro=found.macro,
        micro=found.micro,
        utterances=utterances,
    )


def _distances(utterances: Sequence[ScoredUtterance], rules: Rules) -> list[float]:
    refs = [units_of(utterance.ref, rules) for utterance in utterances]
    hyps = [units_of(utterance.hyp or "", rules) for utterance in utterances]
    ids = {unit: index for index, unit in enumerate(sorted({unit for units in (*refs, *hyps) for unit in units}))}
    costs_VV = substitution_costs(list(ids))
    return [
        0.0 if ref == hyp else edit_distance(_ids(ref, ids), _ids(hyp, ids), costs_VV)
        for ref, hyp in zip(refs, hyps, strict=True)
    ]


def _ids(units: Sequence[str], ids: Mapping[str, int]) -> NDArray[np.int64]:
    return np.array([ids[unit] for unit in units], dtype=np.int64)


def substitution_costs(units: Sequence[str]) -> NDArray[np.float64]:
    """(V, V) what it costs to take one unit for another, 0 to 1; 0 on the diagonal, 1 for units without features.

    Phones that panphon's table does not tell apart (`r ɾ`) cost nothing.
    """
    starts_VK, ends_VK, weights_K = phone_features(units)
    costs_VV = np.empty((len(units), len(units)))
    for row, start_K, end_K in zip(costs_VV, starts_VK, ends_VK, strict=True):
        row[:] = (np.abs(starts_VK - start_K) + np.abs(ends_VK - end_K)) @ weights_K / (4 * weights_K.sum())
    costs_VV[np.isnan(costs_VV)] = 1.0
    np.fill_diagonal(costs_VV, 0.0)
    return costs_VV


def edit_distance(ref_M: NDArray[np.int64], hyp_L: NDArray[np.int64], costs_VV: NDArray[np.float64]) -> float:
    """The least cost of turning one list of unit ids into the other; deletions and insertions cost 1.

    Exact: a row of the usual table at a time. What insertions add to the cells on the right is a running minimum, for
    the cell that is j places on costs j more.
    """
    steps = np.arange(len(hyp_L) + 1, dtype=np.float64)
    row = steps
    for unit in ref_M:
        reached = row + 1
        np.minimum(reached[1:], row[:-1] + costs_VV[unit, hyp_L], out=reached[1:])
        row = np.minimum.accumulate(reached - steps) + steps
    return float(row[-1])
