# SPDX-License-Identifier: Apache-2.0
"""Paired differences of single trainings from the first one of a report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wenet_hs.results.pairing import SAME_COMPUTATION, check_pair
from wenet_hs.results.report_data import ReportData
from wenet_hs.score.compare import Difference, compare
from wenet_hs.tree.errors import DataError


@dataclass(frozen=True)
class ComparedTrainings:
    """The comparisons of the shown trainings with the first shown one, in the shown mode."""

    differences: Mapping[int, Mapping[str, Difference]]
    """By the number of the other experiment; of each language and average."""
    faults: Sequence[str]
    """A message for each training that cannot be compared, and for each one that is not scored in
    the mode."""
    is_over_seeds: bool
    """Whether systems are compared over seeds. Then only trainings with the seed of the first one
    are compared here."""


def compare_with_first(data: ReportData) -> ComparedTrainings:
    """Compare the shown trainings with the first one, of which there must be at least one.

    A training that cannot be compared gets a message instead. If systems are compared over seeds,
    trainings with another seed than the first one are left out. Takes a second per pair.
    """
    first, *others = data.shown
    first_seed = first.experiment.settings.get("seed")
    speakers = _known_speakers(data)
    is_over_seeds = any(system.mode == data.mode for system in data.systems)
    faults = _find_unscored(data)
    differences: dict[int, Mapping[str, Difference]] = {}
    for other in others:
        has_other_seed = other.experiment.settings.get("seed") != first_seed
        if is_over_seeds and has_other_seed:
            continue
        try:
            check_pair(first.experiment.training, other.experiment.training, SAME_COMPUTATION)
            comparison = compare(first.report, other.report, speakers=speakers)
        except DataError as error:
            names = f"{first.experiment.name} (A) and {other.experiment.name} (B)"
            faults.append(f"{names} are not compared in {data.mode}: {error}")
        else:
            differences[other.number] = comparison.differences
    return ComparedTrainings(differences, faults, is_over_seeds)


def _known_speakers(data: ReportData) -> dict[str, str] | None:
    """The speaker of each utterance of the test list by key.

    None if the speaker of a scored utterance is not known.
    """
    speakers = {key: clip.speaker for key, clip in data.clips.items() if clip.speaker}
    scored_keys = data.shown[0].report.utterances.keys()
    return speakers if scored_keys <= speakers.keys() else None


def _find_unscored(data: ReportData) -> list[str]:
    """A message for each experiment that is scored, but not in the shown mode."""
    return [
        f"{experiment.name} has no scored {data.mode}."
        for experiment in data.experiments
        if experiment.scores and data.mode not in experiment.scores
    ]
