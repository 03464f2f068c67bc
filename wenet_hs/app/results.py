# SPDX-License-Identifier: Apache-2.0
"""The expected time of a training, and the results of trainings on the test set."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from wenet_hs.app.expected_times import expected_time_path
from wenet_hs.app.lists import ListPage, read_clips, read_project_stats, select_page
from wenet_hs.app.projects import Project, ProjectTraining, read_recipe_options
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
    """The sentence about the measured time of a training with these options.

    Empty if it was not measured, or if the lists were made again or changed after that.
    """
    path = expected_time_path(project, options)
    stats_path = project / "data/stats.json"
    if not path.is_file() or not stats_path.is_file():
        return ""
    is_outdated = path.stat().st_mtime < stats_path.stat().st_mtime
    if is_outdated:
        return ""
    with suppress(DataError):  # a damaged file counts as none
        record = read_expected(path)
        hours = read_project_stats(project)["total"]["hours"].get("train", 0.0)
        has_same_lists = record.hours == hours
        if has_same_lists:
            return record.sentence
    return ""


@dataclass(frozen=True, kw_only=True)
class ShownResults:
    """The scores of a training in one decoding mode, as the page of results shows them."""

    mode: str
    modes: Sequence[str]
    """All modes in which the training is scored."""
    scores: ModelScores
    score: LanguageScore | MacroScore
    """The macro average over several languages, or the rate of a single language."""
    shown: ListPage[str]
    """Keys of utterances; those with the most errors come first."""
    min_count: int = MIN_COUNT
    """The recall of a unit is shown from this number of occurrences in the test set on."""


def read_shown_results(training: ProjectTraining, mode: str, page: str) -> ShownResults | None:
    """The scores of a training on the test set; None if it is not scored in any mode.

    Args:
        mode: a decoding mode. If the training is not scored in it, its usual mode is shown: the
            form still has the mode of the training that was shown before.
        page: the number of the page of utterances, as a request sent it.
    """
    test = ExperimentFolder(training.folder).test()
    scored_modes = test.scored_modes()
    if not scored_modes:
        return None
    shown_mode = mode if mode in scored_modes else usual_mode(scored_modes)
    scores = read_cached(read_scores, test.score_path(shown_mode))
    report = scores.report
    has_several_languages = len(report.languages) > 1
    return ShownResults(
        mode=shown_mode,
        modes=scored_modes,
        scores=scores,
        score=report.macro if has_several_languages else report.micro,
        shown=select_page(scores.worst, page, size=10),
    )


# ---- comparisons


@dataclass(frozen=True, kw_only=True)
class Improvement:
    """The paired difference of two trainings in one mode, as a macro average."""

    difference: Difference
    sampled: str
    """What was resampled for the test of significance: utterances or speakers."""
    test: Significance
    num_langs: int


@dataclass(frozen=True, kw_only=True)
class ComparedTraining:
    """A training and the one whose model it started from."""

    old: str
    """The name of the training that was started from."""
    new: str
    """The name of the training that started from it."""
    begun: str
    """When the new one began."""
    mode: str = ""
    """The decoding mode in which both are scored; empty if there is none."""
    fault: str = ""
    """Why they are not compared in this mode; empty if they are."""
    improvement: Improvement | None = None
    """None: they are not compared, because there is no mode, or a fault."""


def read_comparisons(project: Project) -> list[ComparedTraining]:
    """Each scored training that started from the model of a scored one, compared with that one."""
    scored = dict[Path, ProjectTraining]()
    for training in project.trainings():
        if training.is_scored:
            scored[training.folder.resolve()] = training
    comparisons = list[ComparedTraining]()
    for folder, new in scored.items():
        base = read_recipe_options(folder.parent).get("base")
        if base is None:  # it started from no model
            continue
        old = scored.get(Path(base).resolve())
        if old is not None:
            comparisons.append(_compare_trainings(project, old, new))
    return comparisons


def _compare_trainings(
    project: Project, old: ProjectTraining, new: ProjectTraining
) -> ComparedTraining:
    """The comparison of two trainings in the usual one of the modes in which both are scored.

    Without such a mode it has only the names. If the scores cannot be compared, because they are of
    other utterances or damaged, it has a fault instead of the improvement.
    """
    compared = ComparedTraining(old=old.name, new=new.name, begun=new.begun)
    old_test = ExperimentFolder(old.folder).test()
    new_test = ExperimentFolder(new.folder).test()
    new_modes = new_test.scored_modes()
    common_modes = [mode for mode in old_test.scored_modes() if mode in new_modes]
    if not common_modes:
        return compared
    mode = usual_mode(common_modes)
    old_scores = _date_file(old_test.score_path(mode))
    new_scores = _date_file(new_test.score_path(mode))
    try:
        improvement = _compare_scores(project, old_scores, new_scores)
    except DataError as error:
        return replace(compared, mode=mode, fault=str(error))
    return replace(compared, mode=mode, improvement=improvement)


@dataclass(frozen=True)
class _DatedFile:
    """A file as it was at a time: part of a key of the cache of comparisons."""

    path: Path
    changed_ns: int


def _date_file(path: Path) -> _DatedFile:
    return _DatedFile(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _compare_scores(project: Project, old: _DatedFile, new: _DatedFile) -> Improvement:
    """The paired difference of two files of scores, and its test of significance.

    The speakers in the data lists are used for the test if enough of them are known; see
    `compare_macro`. The result is kept in a cache. The time of the last change is part of both
    arguments, so the result is computed again if one of the files changes.
    Raises DataError if they are not of the same utterances, or damaged.
    """
    speakers = {key: clip.speaker for key, clip in read_clips(project).items()}
    old_report = read_cached(read_scores, old.path).report
    new_report = read_cached(read_scores, new.path).report
    difference, sampled, test = compare_macro(old_report, new_report, speakers)
    return Improvement(
        difference=difference,
        sampled=sampled,
        test=test,
        num_langs=len(new_report.languages),
    )
