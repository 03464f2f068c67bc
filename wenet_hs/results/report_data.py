# SPDX-License-Identifier: Apache-2.0
"""The input of a report: experiments on one test set, the shown mode, their data and systems."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from wenet_hs.manifest.data_list import Utterance
from wenet_hs.results.corpora import find_stats, find_test_list, read_stats, read_test_list
from wenet_hs.results.experiment import ExperimentResults
from wenet_hs.results.modes import default_modes_first, sort_modes
from wenet_hs.results.speech import describe_speech, has_simulated_speech, is_marked_simulated
from wenet_hs.results.systems import compare_systems
from wenet_hs.score.error_rate import Report, count_of
from wenet_hs.score.seeds import SystemSeeds
from wenet_hs.tree.errors import ConfigError, DataError, list_names


class ShownExperiment(NamedTuple):
    """An experiment that is scored in the shown mode."""

    number: int
    """Of the experiment on the page, from 0."""
    experiment: ExperimentResults
    report: Report
    """Its scoring in the shown mode."""


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """The input of all sections of the page."""

    experiments: Sequence[ExperimentResults]
    mode: str | None
    """The decoding mode that the page shows; None if nothing is scored."""
    stats: Mapping[Path, dict[str, Any]] = field(default_factory=dict)
    """The content of each known stats.json of `prepare` by its path."""
    clips: Mapping[str, Utterance] = field(default_factory=dict)
    """The test list by key; empty if unknown."""
    data_list: Path | None = None
    """The file of `clips`."""
    is_simulated: bool | None = None
    """Whether the test set is simulated speech; None: unknown."""
    systems: Sequence[SystemSeeds] = ()
    """The systems with several seeds, by mode."""
    seed_faults: Sequence[str] = ()
    """A message for each system that cannot be compared over seeds."""

    @property
    def note(self) -> str:
        """The kind of speech behind the numbers, see `describe_speech`."""
        are_pretrained = [experiment.is_pretrained_on_simulated for experiment in self.experiments]
        return describe_speech(bool(self.is_simulated), are_pretrained)

    @property
    def folders(self) -> list[Path]:
        """The folders with a known stats.json, and that of the test list."""
        folders = [path.parent for path in self.stats]
        if self.data_list is not None:
            folders.append(self.data_list.parent.parent)
        return [*dict.fromkeys(folders)]

    @property
    def shown(self) -> list[ShownExperiment]:
        """The experiments scored in the shown mode."""
        return [
            ShownExperiment(index, experiment, experiment.scores[self.mode])
            for index, experiment in enumerate(self.experiments)
            if self.mode is not None and self.mode in experiment.scores
        ]

    @property
    def scored_modes(self) -> list[str]:
        """The modes in which an experiment is scored, in the order of `sort_modes`."""
        return scored_modes(self.experiments)


def scored_modes(experiments: Sequence[ExperimentResults]) -> list[str]:
    """The modes in which one of these experiments is scored, in the order of `sort_modes`."""
    return sort_modes({mode for experiment in experiments for mode in experiment.scores})


def gather_data(
    experiments: Sequence[ExperimentResults],
    *,
    mode: str | None = None,
    stats: Path | None = None,
    data_list: Path | None = None,
) -> ReportData:
    """Collect all input of a report about experiments on one test set.

    Whether the speech is real is known if a stats.json was found, or if the keys of the utterances
    show that they are simulated.

    Args:
        mode: the decoding mode to show; None: `attention_rescoring`, or another mode that most
            experiments have. The error rates never decide: that would be a selection on the test
            set.
        stats: the stats.json of the data; None: the files beside the lists of the trainings.
        data_list: the list that was decoded; None: the one beside a stats.json, if it has all
            scored utterances.

    Raises ConfigError for a mode without scores, DataError for experiments with different test
    sets, or for a damaged file of the data.
    """
    keys = _keys_of_one_test(experiments)
    runs = [experiment.run for experiment in experiments]
    stats_paths = find_stats(runs) if stats is None else [stats]
    corpora = {path: read_stats(path) for path in stats_paths}
    has_simulated_corpus = any(map(is_marked_simulated, corpora.values()))
    is_simulated = has_simulated_corpus or has_simulated_speech(keys)
    is_kind_of_speech_known = is_simulated or bool(corpora)
    if data_list is None:
        test_list = find_test_list(keys, stats_paths)
    else:
        test_list = read_test_list(keys, data_list)
    compared = compare_systems(experiments, scored_modes(experiments))
    return ReportData(
        experiments=experiments,
        mode=choose_mode(experiments, mode),
        stats=corpora,
        clips=test_list.clips,
        data_list=test_list.path,
        is_simulated=is_simulated if is_kind_of_speech_known else None,
        systems=compared.systems,
        seed_faults=compared.faults,
    )


def choose_mode(experiments: Sequence[ExperimentResults], requested: str | None) -> str | None:
    """The decoding mode to show: the requested one, or that in which most experiments are scored.

    If several modes have equally many, it is the first one of `default_modes_first`. None if
    nothing is scored. Raises ConfigError if no experiment is scored in the requested mode.
    """
    num_scored = Counter[str]()
    for experiment in experiments:
        num_scored.update(experiment.scores.keys())
    if requested is None:
        # Of equally large numbers `max` takes the first one.
        return max(default_modes_first(num_scored), key=num_scored.__getitem__, default=None)
    if requested not in num_scored:
        known = ", ".join(sort_modes(num_scored)) or "none"
        fault = "no experiment is scored in this mode"
        raise ConfigError(f"--mode {requested}", fault, f"scored modes are: {known}")
    return requested


def _keys_of_one_test(experiments: Sequence[ExperimentResults]) -> set[str]:
    """The keys of the utterances that all modes of all experiments have scored.

    Raises DataError if two scorings have different keys, languages or references, because one table
    shows the rates of all.
    """
    # Of the first scoring that is not empty; before it there is no path and no reference.
    first_path = Path()
    first_references: dict[str, tuple[str, str]] = {}
    for experiment in experiments:
        for mode, report in experiment.scores.items():
            path = experiment.test.score_path(mode)
            references = {
                key: (scored.lang, scored.ref) for key, scored in report.utterances.items()
            }
            if not first_references:
                first_path = path
                first_references = references
            if references != first_references:
                raise _make_other_test_error(path, references, first_path, first_references)
    return set(first_references)


def _make_other_test_error(
    path: Path,
    references: Mapping[str, tuple[str, str]],
    first_path: Path,
    first_references: Mapping[str, tuple[str, str]],
) -> DataError:
    """The error for two scorings of different test sets. It names the utterances that differ.

    The references are language and text of each utterance by key.
    """
    differing_items = references.items() ^ first_references.items()  # those of only one scoring
    differing = sorted({key for key, _ in differing_items})
    which = f"{count_of(len(differing), 'utterance')} differ ({list_names(differing)})"
    to_do = "report experiments with one test set, or score all again with one --ref"
    return DataError(path, f"another test set than {first_path}: {which}", to_do)
