# SPDX-License-Identifier: Apache-2.0
"""What a training shows while it runs, and its results on the test set."""

import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from wenet_hs.app.commands import ONLY_TIME
from wenet_hs.app.lists import page_of, read_cached, read_clips
from wenet_hs.app.projects import Project, Training, read_recipe_options
from wenet_hs.curves import read_curves
from wenet_hs.decode.modes import DEFAULT_MODE
from wenet_hs.errors import DataError
from wenet_hs.jobs import tail
from wenet_hs.report.collect import sort_modes
from wenet_hs.report.sections import curve_charts
from wenet_hs.score.alignments import count_confusions, find_examples, list_recalls
from wenet_hs.score.compare import MACRO, choose_test, compare
from wenet_hs.score.error_rate import Report, worst_first
from wenet_hs.score.tables import read_report

MAX_SHOWN, MIN_COUNT = 20, 5
"""Rows of the tables of confusions and units; occurrences of a unit in the test set without which it is not shown."""
_STEP = re.compile(r"step (\d+) of (?:at most )?(\d+) \|.*?(?:\| ([\d.]+) min left)?$")
_ALL_PARTS = re.compile(r"all (\d+) trainings: about (\d+) min")
_DIAGNOSIS = re.compile(r"WARNING (.*)")


def find_expected_time(project: Project, command: Sequence[str]) -> str:
    """The line that was measured for a training with these options, into any folder; empty if there is none.

    What was measured before the lists were made again does not count.
    """

    def choice(words: Sequence[str]) -> dict[str, str]:
        options = dict(zip(words[1::2], words[2::2], strict=False))
        return {name: value for name, value in options.items() if name not in ("--exp", "--stage", *ONLY_TIME)}

    stats = project / "data/stats.json"
    made = stats.stat().st_mtime if stats.is_file() else 0.0
    jobs = [job for job in project.jobs("time") if (job.folder / "job.json").stat().st_mtime >= made]
    lines = (line for job in jobs if choice(job.command) == choice(command) for line in job.tail())
    return next((line for line in lines if line.startswith("expected time")), "")


def read_live(training: Training, recipe_lines: list[str]) -> dict[str, Any]:
    """The variables of live_training.html. `recipe_lines`: the end of the log of the recipe that started it."""
    lines = tail(training.folder.with_name(f"{training.folder.name}.log"), 400)
    steps = [found for line in lines if (found := _STEP.search(line))]
    of_all = [float(found[2]) for line in recipe_lines if (found := _ALL_PARTS.search(line))]
    diagnoses = dict.fromkeys(found[1] for line in lines if (found := _DIAGNOSIS.search(line)))
    metrics = training.folder / "metrics.jsonl"
    curves: dict[str, list[dict[str, float]]] = read_cached(read_curves, metrics, {})
    valid = curves.get("valid", [])
    return {
        "step": int(steps[-1][1]) if steps else 0,
        "total": int(steps[-1][2]) if steps else 0,
        "minutes_left": float(steps[-1][3]) if steps and steps[-1][3] else None,
        "minutes_of_all": of_all[-1] if of_all else None,
        "diagnoses": [*diagnoses][-5:],
        "charts": curve_charts([curves], "steps") if curves else [],
        "num_valid": len(valid),
        "error_rates": [one["ctc_error_rate"] for one in valid if "ctc_error_rate" in one],
        "lines": lines[-12:],
    }


def read_results(training: Training, mode: str, page: str) -> dict[str, Any] | None:
    """The scores in this mode, or the usual one; None if nothing is scored. Raises DataError for another mode."""
    paths = _score_files(training)
    modes = sort_modes(paths)
    if not modes:
        return None
    chosen = mode or (DEFAULT_MODE if DEFAULT_MODE in paths else modes[-1])
    if chosen not in paths:
        raise DataError(f"mode {chosen[:40]!r}", "not scored", f"there are: {', '.join(modes)}")
    report, worst, values = read_cached(_read_sorted, paths[chosen])
    score = report.macro if len(report.languages) > 1 else report.micro
    found = {"mode": chosen, "modes": modes, "report": report, "score": score, "shown": page_of(worst, page, 10)}
    return found | values


def read_comparisons(project: Project) -> list[dict[str, Any]]:
    """Each scored training that began from a scored one, and the difference of both; or why they are not compared."""
    scored = {one.folder.resolve(): one for one in project.trainings() if one.is_scored}
    bases = [Path(read_recipe_options(folder.parent).get("base", "")).resolve() for folder in scored]
    pairs = [(scored[base], new) for base, new in zip(bases, scored.values(), strict=True) if base in scored]
    return [{"old": old.name, "new": new.name} | _read_difference(project, old, new) for old, new in pairs]


def _read_difference(project: Project, old: Training, new: Training) -> dict[str, Any]:
    of_old, of_new = _score_files(old), _score_files(new)
    modes = sort_modes(of_old.keys() & of_new.keys())
    if not modes:
        return {"mode": "", "fault": ""}
    mode = DEFAULT_MODE if DEFAULT_MODE in modes else modes[-1]
    paths = of_old[mode], of_new[mode]
    try:
        return {"mode": mode, "fault": "", **_compare(project, *paths, *(path.stat().st_mtime_ns for path in paths))}
    except DataError as error:
        return {"mode": mode, "fault": str(error)}


def _score_files(training: Training) -> dict[str, Path]:
    return {path.parent.name: path for path in training.folder.glob("test/*/score.json")}


@lru_cache(maxsize=64)
def _compare(project: Project, old: Path, new: Path, *_: int) -> dict[str, Any]:
    """The paired difference of two scorings, over speakers where all are known."""
    reports, clips = [read_cached(_read_sorted, path)[0] for path in (old, new)], read_clips(project)
    speakers = {key: clips[key].speaker or "" for key in reports[0].utterances if key in clips}
    is_known = len(speakers) == len(reports[0].utterances) and all(speakers.values())
    differences = compare(*reports, speakers=speakers if is_known else None).differences
    unit, test = choose_test(differences)
    return {"of": differences[MACRO], "test": test, "unit": unit}


def _read_sorted(path: Path) -> tuple[Report, list[str], dict[str, Any]]:
    """The scores, the keys by falling error rate, and the variables of the template about single units."""
    report = read_report(path)
    found = count_confusions(report.utterances.values(), report.rules, sys.maxsize).overall
    pairs = found.substitutions[:MAX_SHOWN]
    recalls = [one for one in list_recalls(found) if one.count >= MIN_COUNT]
    values = {"pairs": pairs, "examples": find_examples(report.utterances, report.rules, pairs)}
    return report, worst_first([report]), values | {"recalls": recalls[:MAX_SHOWN], "min_count": MIN_COUNT}
