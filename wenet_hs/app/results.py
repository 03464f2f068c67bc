# SPDX-License-Identifier: Apache-2.0
"""The expected time of a training, and the results of trainings on the test set."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from wenet_hs.app.expected_times import expected_time_file
from wenet_hs.app.lists import PageOf, page_of, read_clips, read_project_stats
from wenet_hs.app.projects import Project, ProjectModel, read_recipe_options
from wenet_hs.base.files import read_cached
from wenet_hs.model.modes import usual_mode
from wenet_hs.recipes.expected_record import read_expected
from wenet_hs.recipes.own_options import OwnOptions
from wenet_hs.results.folder import ExperimentFolder
from wenet_hs.results.model_scores import MIN_COUNT, ModelScores, read_scores
from wenet_hs.score.compare import Difference, Significance, compare_macro
from wenet_hs.score.error_rate import LanguageScore, MacroScore
from wenet_hs.tree.errors import DataError


def find_expected_time(project: Project, options: OwnOptions) -> str:
    """The sentence about the measured time; empty if it was not measured.

    What was measured before the lists were made again does not count.
    """
    path = expected_time_file(project, options)
    stats_path = project / "data/stats.json"
    if not path.is_file() or not stats_path.is_file():
        return ""
    is_outdated = path.stat().st_mtime < stats_path.stat().st_mtime
    if is_outdated:
        return ""
    with suppress(DataError):
        record = read_expected(path)
        hours = read_project_stats(project)["total"]["hours"].get("train", 0.0)
        return record.sentence if record.hours == hours else ""
    return ""


@dataclass(frozen=True, kw_only=True)
class ShownResults:
    """The scores of a training on the page of results."""

    mode: str
    modes: Sequence[str]
    """All scored ones."""
    scores: ModelScores
    score: LanguageScore | MacroScore
    """Of several languages the macro average, of one language its rate."""
    shown: PageOf[str]
    """Keys of utterances, the worst ones first."""
    min_count: int = MIN_COUNT
    """Occurrences of a unit in the test set without which its recall is not shown."""


def read_shown_results(training: ProjectModel, mode: str, page: str) -> ShownResults | None:
    """The scores in this mode, or in the usual one if it is not scored; None if nothing is scored.

    `page`: the number of the page of utterances.
    """
    test = ExperimentFolder(training.folder).test()
    modes = test.scored_modes()
    if not modes:
        return None
    chosen = (
        mode if mode in modes else usual_mode(modes)
    )  # the form sends that of the training shown before
    scores = read_cached(read_scores, test.score_path(chosen))
    report = scores.report
    return ShownResults(
        mode=chosen,
        modes=modes,
        scores=scores,
        score=report.macro if len(report.languages) > 1 else report.micro,
        shown=page_of(scores.worst, page, 10),
    )


@dataclass(frozen=True, kw_only=True)
class Improvement:
    """The paired difference of two trainings in one mode, as a macro average."""

    difference: Difference
    sampled: str
    """What was resampled for the test: utterances or speakers."""
    test: Significance
    num_langs: int


@dataclass(frozen=True, kw_only=True)
class ComparedTraining:
    """A training and the one that it began from."""

    old: str
    new: str
    """Names of the two."""
    begun: str
    """When the new one began."""
    mode: str = ""
    """In which both are scored; empty if there is none."""
    fault: str = ""
    """Why they are not compared in this mode; empty if they are."""
    improvement: Improvement | None = None


def read_comparisons(project: Project) -> list[ComparedTraining]:
    """Each scored training that began from a scored one, compared with that one."""
    scored = {
        training.folder.resolve(): training
        for training in project.trainings()
        if training.is_scored
    }
    comparisons = list[ComparedTraining]()
    for folder, new in scored.items():
        base = Path(read_recipe_options(folder.parent).get("base", "")).resolve()
        if base in scored:
            comparisons.append(_compare_trainings(project, scored[base], new))
    return comparisons


def _compare_trainings(project: Project, old: ProjectModel, new: ProjectModel) -> ComparedTraining:
    """The comparison in the usual one of the modes in which both are scored."""
    names = ComparedTraining(old=old.name, new=new.name, begun=new.begun)
    old_test = ExperimentFolder(old.folder).test()
    new_test = ExperimentFolder(new.folder).test()
    new_modes = new_test.scored_modes()
    modes = [mode for mode in old_test.scored_modes() if mode in new_modes]
    if not modes:
        return names
    mode = usual_mode(modes)
    try:
        improvement = _compare(
            project, _dated(old_test.score_path(mode)), _dated(new_test.score_path(mode))
        )
    except DataError as error:
        return replace(names, mode=mode, fault=str(error))
    return replace(names, mode=mode, improvement=improvement)


@dataclass(frozen=True)
class _DatedFile:
    """A file as it was at a time: a key of the cache of comparisons."""

    path: Path
    changed_ns: int


def _dated(path: Path) -> _DatedFile:
    return _DatedFile(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _compare(project: Project, old: _DatedFile, new: _DatedFile) -> Improvement:
    """The paired difference of two scorings. Raises DataError if they are not of the same
    utterances."""
    speakers = {key: clip.speaker for key, clip in read_clips(project).items()}
    old_report = read_cached(read_scores, old.path).report
    new_report = read_cached(read_scores, new.path).report
    difference, sampled, test = compare_macro(old_report, new_report, speakers)
    return Improvement(
        difference=difference, sampled=sampled, test=test, num_langs=len(new_report.languages)
    )
