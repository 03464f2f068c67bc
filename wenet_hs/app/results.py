# SPDX-License-Identifier: Apache-2.0
"""What a training shows while it runs, and its results on the test set."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from wenet_hs.app.jobs import tail
from wenet_hs.app.lists import PageOf, page_of, read_cached
from wenet_hs.app.projects import Training
from wenet_hs.curves import read_curves
from wenet_hs.decode.modes import DEFAULT_MODE
from wenet_hs.errors import DataError
from wenet_hs.report.collect import sort_modes
from wenet_hs.report.sections import curve_charts
from wenet_hs.score.error_rate import LanguageScore, MacroScore, Report, ScoredUtterance, worst_first
from wenet_hs.score.tables import read_report

_STEP = re.compile(r"step (\d+) of (?:at most )?(\d+) \|.*?(?:\| ([\d.]+) min left)?$")
_ALL_PARTS = re.compile(r"all (\d+) trainings: about (\d+) min")
_DIAGNOSIS = re.compile(r"WARNING (.*)")


@dataclass(frozen=True)
class Live:
    """The state of a training by its log and its curves."""

    step: int
    total: int
    minutes_left: float | None
    minutes_of_all: float | None
    """Of all parts of the recipe."""
    diagnoses: list[str]
    charts: list[tuple[str, Markup]]
    lines: list[str]


def read_live(training: Training, recipe_lines: list[str]) -> Live:
    """The state of a training. `recipe_lines`: the end of the log of the recipe that started it."""
    lines = tail(training.folder.with_name(f"{training.folder.name}.log"), 400)
    steps = [found for line in lines if (found := _STEP.search(line))]
    of_all = [found for line in recipe_lines if (found := _ALL_PARTS.search(line))]
    diagnoses = dict.fromkeys(found[1] for line in lines if (found := _DIAGNOSIS.search(line)))
    metrics = training.folder / "metrics.jsonl"
    charts = curve_charts([read_cached(read_curves, metrics)], "steps") if metrics.is_file() else []
    last = steps[-1] if steps else None
    return Live(
        step=int(last[1]) if last else 0,
        total=int(last[2]) if last else 0,
        minutes_left=float(last[3]) if last and last[3] else None,
        minutes_of_all=float(of_all[-1][2]) if of_all else None,
        diagnoses=[*diagnoses][-5:],
        charts=charts,
        lines=lines[-12:],
    )


@dataclass(frozen=True)
class Results:
    """The scores of a training in one decoding mode."""

    mode: str
    modes: list[str]
    report: Report
    score: LanguageScore | MacroScore
    utterances: PageOf[tuple[str, ScoredUtterance]]


def read_results(training: Training, mode: str, page: str) -> Results | None:
    """The scores in this mode, or the usual one; None if nothing is scored. Raises DataError for another mode."""
    paths = {path.parent.name: path for path in training.folder.glob("test/*/score.json")}
    modes = sort_modes(paths)
    if not modes:
        return None
    chosen = mode or (DEFAULT_MODE if DEFAULT_MODE in paths else modes[-1])
    if chosen not in paths:
        raise DataError(f"mode {chosen[:40]!r}", "not scored", f"there are: {', '.join(modes)}")
    report, worst = read_cached(_read_sorted, paths[chosen])
    score: Any = report.macro if len(report.languages) > 1 else report.micro
    shown = page_of(worst, page, 10)
    items = [(key, report.utterances[key]) for key in shown.items]
    return Results(chosen, modes, report, score, PageOf(items, shown.number, shown.num_pages, shown.total))


def _read_sorted(path: Path) -> tuple[Report, list[str]]:
    report = read_report(path)
    return report, worst_first([report])
