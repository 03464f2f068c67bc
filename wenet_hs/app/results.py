# SPDX-License-Identifier: Apache-2.0
"""The expected time of a training, and the results of trainings on the test set."""

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from wenet_hs.app.expected_times import expected_time_file
from wenet_hs.app.lists import page_of, read_clips, read_stats
from wenet_hs.app.projects import Project, Training, read_recipe_options
from wenet_hs.base.files import read_cached
from wenet_hs.model.modes import usual_mode
from wenet_hs.recipes.expected_record import read_expected
from wenet_hs.recipes.own_options import OwnOptions
from wenet_hs.results.experiments import sort_modes
from wenet_hs.results.model_scores import MIN_COUNT, read_scores, score_files
from wenet_hs.score.compare import Difference, Significance, compare_macro
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
        hours = read_stats(project)["total"]["hours"].get("train", 0.0)
        return record.sentence if record.hours == hours else ""
    return ""


def read_results(training: Training, mode: str, page: str) -> dict[str, Any] | None:
    """The scores in this mode, or in the usual one if it is not scored; None if nothing is scored."""
    paths = score_files(training.folder)
    modes = sort_modes(paths)
    if not modes:
        return None
    chosen = mode if mode in paths else usual_mode(modes)  # the form sends that of the training shown before
    scores = read_cached(read_scores, paths[chosen])
    score = scores.report.macro if len(scores.report.languages) > 1 else scores.report.micro
    found = {"mode": chosen, "modes": modes, "score": score, "shown": page_of(scores.worst, page, 10)}
    return found | vars(scores) | {"min_count": MIN_COUNT}


def read_comparisons(project: Project) -> list[dict[str, Any]]:
    """Each scored training that began from a scored one, and the difference of both; or why they are not compared."""
    scored = {one.folder.resolve(): one for one in project.trainings() if one.is_scored}
    bases = [Path(read_recipe_options(folder.parent).get("base", "")).resolve() for folder in scored]
    pairs = [(scored[base], new) for base, new in zip(bases, scored.values(), strict=True) if base in scored]
    return [
        {"old": old.name, "new": new.name, "begun": new.begun} | _read_difference(project, old, new)
        for old, new in pairs
    ]


def _read_difference(project: Project, old: Training, new: Training) -> dict[str, Any]:
    of_old, of_new = score_files(old.folder), score_files(new.folder)
    if not (modes := sort_modes(of_old.keys() & of_new.keys())):
        return {"mode": "", "fault": ""}
    mode = usual_mode(modes)
    paths = of_old[mode], of_new[mode]
    try:
        of, unit, test = _compare(project, *paths, *(path.stat().st_mtime_ns for path in paths))
    except DataError as error:
        return {"mode": mode, "fault": str(error)}
    num_langs = len(read_cached(read_scores, paths[1]).report.languages)
    return {"mode": mode, "fault": "", "of": of, "unit": unit, "test": test, "num_langs": num_langs}


@lru_cache(maxsize=64)
def _compare(project: Project, old: Path, new: Path, *_: int) -> tuple[Difference, str, Significance]:
    speakers = {key: clip.speaker for key, clip in read_clips(project).items()}
    of_old, of_new = read_cached(read_scores, old), read_cached(read_scores, new)
    return compare_macro(of_old.report, of_new.report, speakers)
