# SPDX-License-Identifier: Apache-2.0
"""Paired differences between the experiments of a page, and who is surely better: what a bold number may say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from wenet_hs.errors import DataError
from wenet_hs.report.collect import ExperimentResults
from wenet_hs.score.bootstrap import CONFIDENCE
from wenet_hs.score.compare import MACRO, MICRO, Difference, Significance, compare

__all__ = ["MACRO", "MICRO", "Pairs", "pair"]


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The differences of every two experiments in one mode."""

    found: Mapping[tuple[int, int], Mapping[str, Difference]]
    """By the places of two experiments, the first the smaller, and by language, MACRO or MICRO."""
    faults: tuple[str, ...]
    """Why a pair cannot be compared, each in one line."""

    def difference(self, one: int, other: int, group: str) -> Difference | None:
        """Of the pair one < other: other minus one."""
        return self.found.get((one, other), {}).get(group)

    @property
    def by_speaker(self) -> bool:
        """Whether the differences have an interval over speakers too."""
        return any(found.by_speaker for of_pair in self.found.values() for found in of_pair.values())

    def surely_best(self, place: int, rivals: Sequence[int], group: str) -> bool:
        """Whether this experiment's rate is below each rival's, and no paired difference may be chance.

        That is: its 95 % interval leaves out 0 and its p is below 0.05, by speaker too where speakers are known. An
        interval alone says too much where few utterances or speakers are resampled; p knows their number.
        """
        return bool(rivals) and all(self._below(place, rival, group) for rival in rivals)

    def _below(self, place: int, rival: int, group: str) -> bool:
        found = self.difference(min(place, rival), max(place, rival), group)
        if found is None:
            return False
        sign = 1 if place < rival else -1  # B minus A is above 0 where A is better
        sure = [found.by_utterance] if found.by_speaker is None else [found.by_utterance, found.by_speaker]
        return all(_clear(significance, sign) for significance in sure)


def _clear(found: Significance, sign: int) -> bool:
    if found.interval is None or found.p is None or found.p >= 1 - CONFIDENCE:
        return False
    return found.interval.low > 0 if sign > 0 else found.interval.high < 0


def pair(
    experiments: Sequence[ExperimentResults],
    mode: str,
    *,
    speakers: Mapping[str, str] | None = None,
    num_resamples: int = 10_000,
) -> Pairs:
    """Compare every two experiments that were scored in this mode.

    Args:
        speakers: of each key, where every scored utterance has one; then there is an interval over speakers too.
        num_resamples: of the bootstrap.
    """
    scored = [(place, experiment) for place, experiment in enumerate(experiments) if mode in experiment.scores]
    found, faults = {}, []
    for (i, a), (j, b) in combinations(scored, 2):
        try:
            compared = compare(a.scores[mode], b.scores[mode], speakers=speakers, num_resamples=num_resamples)
            found[i, j] = compared.differences
        except DataError as error:
            faults.append(f"{a.name} (A) and {b.name} (B) are not compared in {mode}: {error}")
    return Pairs(found=found, faults=tuple(faults))
