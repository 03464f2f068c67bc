# SPDX-License-Identifier: Apache-2.0
"""Whether the speeds of experiments can be compared: equal work must take equal time."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from wenet_hs.results.experiment import ExperimentResults

MAX_WORK_RATIO = 1.1
"""Largest ratio of the times of equal work on an idle machine."""


@dataclass(frozen=True, order=True)
class WorkTime:
    """The time of some stages in one experiment. The order is by time."""

    seconds: float
    """Per second of audio."""
    experiment: str


@dataclass(frozen=True)
class UnequalWork:
    """Two experiments in which the same work took different times."""

    stages: Sequence[str]
    fast: WorkTime
    slow: WorkTime


def names_without_encoder_time(experiments: Sequence[ExperimentResults]) -> list[str]:
    """The names of the experiments whose speeds cannot be compared.

    They have decoding times, but not the time of the encoder or the duration of the audio.
    """
    return [
        experiment.name
        for experiment in experiments
        if experiment.speeds and not _has_encoder_time(experiment)
    ]


def _has_encoder_time(experiment: ExperimentResults) -> bool:
    """Whether the encoder's time per second of audio is known. A time of 0 was not measured."""
    has_duration = bool(experiment.decoding.audio_seconds)
    has_encoder = bool(experiment.decoding.seconds.get("encoder"))
    return has_duration and has_encoder


def find_unequal_work(experiments: Sequence[ExperimentResults]) -> UnequalWork | None:
    """The first two experiments in which the same work took different times; None without such two.

    One of the two ran on a machine that was busy with other work. Each experiment with decoding
    times must have the time of the encoder, see `names_without_encoder_time`.
    """
    timed = [experiment for experiment in experiments if experiment.speeds]
    for first, second in combinations(timed, 2):
        stages = _shared_stages(first, second)
        times = [_sum_times(first, stages), _sum_times(second, stages)]
        fast, slow = sorted(times)  # by seconds, see `WorkTime`
        if slow.seconds > MAX_WORK_RATIO * fast.seconds:
            return UnequalWork(stages=stages, fast=fast, slow=slow)
    return None


def _shared_stages(first: ExperimentResults, second: ExperimentResults) -> list[str]:
    """The stages in which both experiments did the same work, if both have recorded their time.

    Features and encoder are the same for each output layer, and CTC too if its settings and units
    are equal.
    """
    stages = ["features", "encoder"]
    has_equal_settings = first.settings.get("ctc_conf") == second.settings.get("ctc_conf")
    has_equal_units = first.run.files.get("units.txt") == second.run.files.get("units.txt")
    if has_equal_settings and has_equal_units:
        stages.append("ctc")
    recorded = first.decoding.seconds.keys() & second.decoding.seconds.keys()
    return [stage for stage in stages if stage in recorded]


def _sum_times(experiment: ExperimentResults, stages: Sequence[str]) -> WorkTime:
    """The time of these stages together, per second of audio."""
    audio_seconds = experiment.decoding.audio_seconds
    assert audio_seconds  # each experiment has the time of the encoder
    seconds = sum(experiment.decoding.seconds[stage] for stage in stages)
    return WorkTime(seconds=seconds / audio_seconds, experiment=experiment.name)
