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
"""What the first hypothesis of a combined list is best by: see `combine`."""
_NEW_LISTS = "decode the list again"
"""What to do if a file cannot be read."""


def read_nbest_lists(folders: Sequence[Path]) -> list[dict[str, NBestList]]:
    """The n-best lists of each folder by key, in the order of the first folder.

    Raises: DataError if a `hyps.jsonl` is missing or damaged, if the folders have different
        utterances, or if a model seems to have other units than the first one, because they have
        no hypothesis in common.
    """
    systems = [_read_folder(folder / HYPOTHESES_FILE) for folder in folders]
    first_folder = folders[0]
    first = systems[0]
    for folder, system in zip(folders[1:], systems[1:], strict=True):
        _check_utterances(folder, system, first_folder, first)
        _check_utterances(first_folder, first, folder, system)
        _check_units(folder, system, first_folder, first)
    return [{key: system[key] for key in first} for system in systems]


def _check_utterances(
    folder: Path,
    system: Mapping[str, NBestList],
    other_folder: Path,
    other: Mapping[str, NBestList],
) -> None:
    """Raise DataError if a folder lacks utterances of another one."""
    missing = other.keys() - system.keys()
    if missing:
        names = list_names(sorted(missing))
        found = f"lacks {len(missing)} utterances of {other_folder} ({names})"
        raise DataError(folder, found, "decode the same list with all models")


def _check_units(
    folder: Path,
    system: Mapping[str, NBestList],
    first_folder: Path,
    first: Mapping[str, NBestList],
) -> None:
    """Raise DataError if two models with the same utterances have no hypothesis in common.

    Empty hypotheses do not count. If all hypotheses of both are empty, there is nothing to compare.
    """
    has_text = False
    for key in first:
        texts_of_first = _nonempty_texts(first[key])
        texts = _nonempty_texts(system[key])
        if texts_of_first & texts:
            return
        if texts_of_first or texts:
            has_text = True
    if has_text:
        found = f"no hypothesis has the same units as one of {first_folder}"
        raise DataError(folder, found, "combine models of one unit table")


def _nonempty_texts(nbest_list: NBestList) -> set[tuple[str, ...]]:
    """The units of each hypothesis that has units."""
    return {hypothesis.units for hypothesis in nbest_list.nbest if hypothesis.units}


def _read_folder(path: Path) -> dict[str, NBestList]:
    """The n-best lists of a `hyps.jsonl` by key.

    Raises DataError if the file is missing, empty, damaged or has a key twice.
    """
    nbest_lists: dict[str, NBestList] = {}
    for number, nbest_list in enumerate(read_hypotheses(path), start=1):
        where = f"{path}:{number}"
        if nbest_list is None or not _can_be_combined(nbest_list.nbest):
            found = "not a line of `wenet-hs recognize` with `key` and `nbest` of different units and finite scores"
            raise DataError(where, found, _NEW_LISTS)
        key = nbest_list.key
        if key in nbest_lists:
            raise DataError(where, f"utterance {key!r} occurs twice", _NEW_LISTS)
        nbest_lists[key] = nbest_list
    if not nbest_lists:
        raise DataError(path, "contains no utterances", _NEW_LISTS)
    return nbest_lists


def _can_be_combined(nbest: Sequence[Alternative]) -> bool:
    """Whether there are hypotheses, all with different units and finite scores."""
    num_different = len({hypothesis.units for hypothesis in nbest})
    are_finite = all(math.isfinite(hypothesis.score) for hypothesis in nbest)
    return len(nbest) > 0 and num_different == len(nbest) and are_finite


def combine(
    nbests: Sequence[Sequence[Alternative]],
    weights: Sequence[float],
    *,
    scale: float = DEFAULT_SCALE,
    by: str = CRITERIA[0],
) -> list[Alternative]:
    """All hypotheses of an utterance with their combined log-posteriors, best first.

    Of equal ones the earlier one is first.

    Args:
        nbests: the list of each model, with at least one hypothesis.
        weights: per model, above 0; only their ratios have an effect.
        by: "posterior": the highest sum first. "expected_errors": the least expected number of
            wrong units first, where each hypothesis is the truth with its posterior (minimum Bayes
            risk; Goel and Byrne 2000).
    """
    hypothesis_of: dict[tuple[str, ...], Alternative] = {}
    for nbest in nbests:
        for hypothesis in nbest:
            hypothesis_of[hypothesis.units] = hypothesis
    totals = dict.fromkeys(hypothesis_of, 0.0)
    for nbest, weight in zip(nbests, weights, strict=True):
        scaled_scores = {hypothesis.units: scale * hypothesis.score for hypothesis in nbest}
        log_posteriors = normalize_scores(scaled_scores)
        floor = min(log_posteriors.values()) - FLOOR_MARGIN
        for units in totals:
            totals[units] += weight / sum(weights) * log_posteriors.get(units, floor)
    combined = normalize_scores(totals)
    ranked = sorted(combined, key=combined.__getitem__, reverse=True)
    if by == "expected_errors":
        ranked.sort(key=lambda units: _expected_errors(units, combined))
    return [replace(hypothesis_of[units], score=combined[units]) for units in ranked]


def normalize_scores(scores: Mapping[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """Scores as log-posteriors: minus the logarithm of the sum of their exponentials."""
    highest = max(scores.values())  # subtracted, so that no exponential overflows
    log_sum = highest + math.log(sum(math.exp(score - highest) for score in scores.values()))
    return {units: score - log_sum for units, score in scores.items()}


def _expected_errors(
    units: Sequence[str], log_posteriors: Mapping[tuple[str, ...], float]
) -> float:
    """The number of wrong units of a hypothesis, averaged over all possible truths.

    Each hypothesis of the utterance is the truth with its posterior.
    """
    return sum(
        math.exp(log_posterior) * count_errors(truth, units).errors
        for truth, log_posterior in log_posteriors.items()
    )
