# SPDX-License-Identifier: Apache-2.0
"""The state of a training that runs, from its log and metrics.jsonl: step, time left, warnings, curves."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wenet_hs.curves import read_curves
from wenet_hs.files import read_cached
from wenet_hs.jobs import tail
from wenet_hs.report.sections import curve_charts

_STEP = re.compile(r"step (\d+) of (?:at most )?(\d+) \|.*?(?:\| ([\d.]+) min left)?$")
_ALL_PARTS = re.compile(r"all (\d+) trainings: about (\d+) min")
_DIAGNOSIS = re.compile(r"WARNING (.*)")


def read_state(model: Path, recipe_lines: Sequence[str]) -> dict[str, Any]:
    """The variables of a page about a model folder. `recipe_lines`: the end of the log of its recipe."""
    lines = tail(model.with_name(f"{model.name}.log"), 400)
    steps = [found for line in lines if (found := _STEP.search(line))]
    of_all = [float(found[2]) for line in recipe_lines if (found := _ALL_PARTS.search(line))]
    diagnoses = dict.fromkeys(found[1] for line in lines if (found := _DIAGNOSIS.search(line)))
    metrics = model / "metrics.jsonl"
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
