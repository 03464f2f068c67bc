# SPDX-License-Identifier: Apache-2.0
"""What one page is made of: the experiments, the one decoding mode that is shown, the test list and its speech."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wenet_hs.errors import ConfigError, DataError
from wenet_hs.manifest import Utterance, read_data_list
from wenet_hs.report.collect import ExperimentResults, in_order, read_json
from wenet_hs.report.simulated import named_simulated, says_simulated, stats_files
from wenet_hs.score import Report
from wenet_hs.score.error_rate import count_of, name_some

DEFAULT_MODE = "attention_rescoring"
PREFERRED = (DEFAULT_MODE, "joint", "attention", "ctc_prefix_beam_search", "ctc_greedy_search")
SIMULATED = ' <span class="simulated">(simulated speech)</span>'


@dataclass(frozen=True, kw_only=True)
class Material:
    """Everything that the sections of a page read."""

    experiments: Sequence[ExperimentResults]
    mode: str | None
    """The decoding mode whose results are shown wherever one is; None where nothing is scored."""
    stats: Mapping[Path, dict[str, Any]] = field(default_factory=dict)
    """The stats.json of each corpus that is known, by its path."""
    clips: Mapping[str, Utterance] = field(default_factory=dict)
    """The test list by key; empty where it is not known."""
    data_list: Path | None = None
    """Where `clips` are from."""
    simulated: bool | None = None
    """None: no source says."""

    @property
    def said(self) -> str:
        """HTML that stands behind every result."""
        return SIMULATED if self.simulated else ""

    @property
    def shown(self) -> list[tuple[int, ExperimentResults, Report]]:
        """The experiments scored in the shown mode, each with its place in the page's order."""
        return [
            (place, experiment, experiment.scores[self.mode])
            for place, experiment in enumerate(self.experiments)
            if self.mode is not None and self.mode in experiment.scores
        ]


def gather(
    experiments: Sequence[ExperimentResults],
    *,
    mode: str | None = None,
    stats: Path | None = None,
    data_list: Path | None = None,
) -> Material:
    """Everything for a page.

    Args:
        mode: the decoding mode to show; None: `attention_rescoring`, or the first of `PREFERRED` that all have.
            It is never chosen by its error rate: that would be a choice on the test set.
        stats: the stats.json of the data; None: those beside the lists that the trainings were called with.
        data_list: the list that was decoded; None: the one beside a stats.json, if it has all scored utterances.

    Raises ConfigError for a mode that nobody was scored in, DataError for experiments of different test sets.
    """
    check_same_test(experiments)
    found = [stats] if stats is not None else stats_files(experiments)
    corpora = {path: _section(path) for path in found}
    keys = {key for _, report in _reports(experiments) for key in report.utterances}
    simulated = named_simulated(keys) or any(map(says_simulated, corpora.values()))
    clips, source = _test_list(keys, found, data_list)
    return Material(
        experiments=experiments,
        mode=choose_mode(experiments, mode),
        stats=corpora,
        clips=clips,
        data_list=source,
        simulated=simulated if simulated or corpora else None,
    )


def choose_mode(experiments: Sequence[ExperimentResults], wanted: str | None) -> str | None:
    """The mode to show, by a fixed order and by who has it, never by its result; None where nothing is scored."""
    scored = [experiment for experiment in experiments if experiment.scores]
    modes = {mode for experiment in scored for mode in experiment.scores}
    if wanted is not None:
        if wanted not in modes:
            known = ", ".join(in_order(modes)) or "none"
            raise ConfigError(f"--mode {wanted}: no experiment was scored in it; choose one of those scored: {known}")
        return wanted
    order = [*PREFERRED, *sorted(modes - set(PREFERRED))]
    return max(
        (mode for mode in order if mode in modes),
        key=lambda mode: (sum(mode in experiment.scores for experiment in scored), -order.index(mode)),
        default=None,
    )


def check_same_test(experiments: Sequence[ExperimentResults]) -> None:
    """Refuse scorings of different references: their rates stand in one table. Raises DataError of one line."""
    first: tuple[str, dict[str, tuple[str, str]]] | None = None
    for where, report in _reports(experiments):
        reference = {key: (found.lang, found.ref) for key, found in report.utterances.items()}
        if first is None:
            first = where, reference
        elif reference != first[1]:
            differing = sorted(
                key for key in reference.keys() | first[1].keys() if reference.get(key) != first[1].get(key)
            )
            raise DataError(
                f"{where}: another test set than {first[0]}: {count_of(len(differing), 'utterance')} not alike "
                f"({name_some(differing)}); report experiments of one test set, or score all again with one --ref"
            )


def _reports(experiments: Sequence[ExperimentResults]) -> Iterator[tuple[str, Report]]:
    for experiment in experiments:
        for mode, report in experiment.scores.items():
            yield str(experiment.folder / experiment.test / mode / "score.json"), report


def _section(path: Path) -> dict[str, Any]:
    record = read_json(path)
    if not isinstance(record, dict):
        raise DataError(f"{path}: not the stats.json of `prepare`; name the right file with --stats")
    return record


def _test_list(
    keys: Set[str], stats: Iterable[Path], data_list: Path | None
) -> tuple[dict[str, Utterance], Path | None]:
    """The utterances of the test by key and their list; nothing where none is known that has all that was scored."""
    if data_list is not None:
        clips = {clip.key: clip for clip in read_data_list(data_list)}
        lacking = sorted(keys - clips.keys())
        if lacking:
            raise DataError(
                f"{data_list}: not the list that was decoded, {count_of(len(lacking), 'scored utterance')} not in it "
                f"({name_some(lacking)}); give --data_list that of the test"
            )
        return clips, data_list
    for beside in stats:
        path = beside.parent / "test" / "data.list"
        if path.is_file():
            clips = {clip.key: clip for clip in read_data_list(path)}
            if keys and keys <= clips.keys():
                return clips, path
    return {}, None
