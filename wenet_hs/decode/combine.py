# SPDX-License-Identifier: Apache-2.0
"""Combination of the n-best lists of several models: a weighted sum of log-posteriors, or the
fewest expected errors.

The scores of a list become log-posteriors: scale · score - log Σ exp(scale · score) over the list.
So models whose scores have different levels count the same. A hypothesis that a list lacks has a
score below all of that list: the beam of that model has lost it. It gets the list's lowest
log-posterior minus FLOOR_MARGIN. The weighted sums are normalised over all hypotheses of the
utterance, so combined lists can be combined again.

Hypotheses are equal if their units are.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

from wenet_hs.runs.file_names import HYPOTHESES_FILE
from wenet_hs.runs.hypotheses import Alternative, NBestList, read_hypotheses
from wenet_hs.score.edit_distance import count_errors
from wenet_hs.tree.errors import DataError, list_names

DEFAULT_SCALE = 1.0
"""Scores are natural logarithms, so with 1 a list has the probabilities of its model, limited to
the list.
"""
FLOOR_MARGIN = 1.0
"""Nats between the lowest hypothesis of a list and one that the list lacks.

0 would be the upper limit of its score.
"""
CRITERIA = ("posterior", "expected_errors")


def read_nbest_lists(folders: Sequence[Path]) -> list[dict[str, NBestList]]:
    """The n-best lists of each folder by key, in the order of the first folder.

    Raises: DataError if a `hyps.jsonl` is missing or damaged, if the folders have different
        utterances, or if a model has other units than the first: then no hypothesis of the one is a
        hypothesis of the other.
    """
    systems = [_read_folder(folder / HYPOTHESES_FILE) for folder in folders]
    first_name, first = folders[0], systems[0]
    for name, system in zip(folders[1:], systems[1:], strict=True):
        for (folder, own), (other, others) in permutations(((name, system), (first_name, first))):
            if keys := others.keys() - own.keys():
                found = f"lacks {len(keys)} utterances of {other} ({list_names(sorted(keys))})"
                raise DataError(folder, found, "decode the same list with all models")
        pairs = [
            ({one.units for one in first[key].nbest}, {one.units for one in system[key].nbest})
            for key in first
        ]
        if not any((ours & theirs) - {()} for ours, theirs in pairs) and any(
            (a | b) - {()} for a, b in pairs
        ):
            found = f"no hypothesis has the same units as one of {first_name}"
            raise DataError(name, found, "combine models of one unit table")
    return [{key: system[key] for key in first} for system in systems]


def _read_folder(path: Path) -> dict[str, NBestList]:
    nbest_lists: dict[str, NBestList] = {}
    for number, nbest_list in enumerate(read_hypotheses(path), start=1):
        if nbest_list is None or not _can_be_combined(nbest_list.nbest):
            fault = "not a line of `wenet-hs recognize` with `key` and `nbest` of different units and finite scores"
            raise DataError(f"{path}:{number}", fault, "decode the list again")
        key = nbest_list.key
        if key in nbest_lists:
            raise DataError(
                f"{path}:{number}", f"utterance {key!r} occurs twice", "decode the list again"
            )
        nbest_lists[key] = nbest_list
    if not nbest_lists:
        raise DataError(path, "contains no utterances", "decode the list again")
    return nbest_lists


def _can_be_combined(nbest: Sequence[Alternative]) -> bool:
    """Whether there are hypotheses, with different units and finite scores."""
    units = {hypothesis.units for hypothesis in nbest}
    are_finite = all(math.isfinite(hypothesis.score) for hypothesis in nbest)
    return 0 < len(nbest) == len(units) and are_finite


def combine(
    nbests: Sequence[Sequence[Alternative]],
    weights: Sequence[float],
    *,
    scale: float = DEFAULT_SCALE,
    by: str = CRITERIA[0],
) -> list[Alternative]:
    """All hypotheses of an utterance with their combined log-posteriors, best first; of equal ones
    the earlier one.

    Args:
        nbests: the list of each model, with at least one hypothesis.
        weights: per model, above 0; only their ratios have an effect.
        by: "posterior": the highest sum first. "expected_errors": the least expected number of
            wrong units first, where each hypothesis is the truth with its posterior (minimum Bayes
            risk; Goel and Byrne 2000).
    """
    union = {one.units: one for nbest in nbests for one in nbest}
    totals = dict.fromkeys(union, 0.0)
    for nbest, weight in zip(nbests, weights, strict=True):
        found = normalize_scores({one.units: scale * one.score for one in nbest})
        floor = min(found.values()) - FLOOR_MARGIN
        for units in totals:
            totals[units] += weight / sum(weights) * found.get(units, floor)
    posteriors = normalize_scores(totals)
    ranked = sorted(posteriors, key=posteriors.__getitem__, reverse=True)
    if by == "expected_errors":
        ranked.sort(key=lambda units: _expected_errors(units, posteriors))
    return [replace(union[units], score=posteriors[units]) for units in ranked]


def normalize_scores(scores: Mapping[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """Scores minus the logarithm of the sum of their exponentials."""
    highest = max(scores.values())
    log_sum = highest + math.log(sum(math.exp(score - highest) for score in scores.values()))
    return {units: score - log_sum for units, score in scores.items()}


def _expected_errors(units: Sequence[str], posteriors: Mapping[tuple[str, ...], float]) -> float:
    return sum(
        math.exp(score) * count_errors(truth, units).errors for truth, score in posteriors.items()
    )
