# SPDX-License-Identifier: Apache-2.0
"""Benchmarks run with --quick, from one end to the other; their notes have a row per question."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def quick_note(script: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """The note that benchmarks/SCRIPT writes, as text and as facts."""
    line = [sys.executable, str(BENCHMARKS / script), "--quick", "--threads", "1", "--out", str(folder / "note")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return (folder / "note.md").read_text("utf-8"), json.loads((folder / "note.json").read_text("utf-8"))


def test_recognize_writes_its_note(tmp_path: Path) -> None:
    note, facts = quick_note("recognize.py", tmp_path)
    assert "tiny layers, no figures" in note
    cases = {record["case"]: record for record in facts["wenet"]}
    limited, ending = cases["attention, to the limit"], cases["attention, ends at different times"]
    assert limited["units"] == [124, 124]  # as many as encoder frames
    assert max(ending["units"]) < 124 and len(ending["rows"]) < 124
    assert all(record["same_places"] > 0.9 and record["ratio"] > 0 for record in cases.values())
    assert [record["set"][:2] for record in facts["sets"][::2]] == ["tr", "pl", "ru", "20", "40", "80"]
    assert [record["units"] for record in facts["vocabularies"][::2]] == [300, 500, 5_000, 10_000]


def test_training_speed_writes_its_note(tmp_path: Path) -> None:
    note, facts = quick_note("training_speed.py", tmp_path)
    assert "GPU: none here, not measured." in note
    assert [(record["size"], record["head"]) for record in facts["options"]] == [
        *(("paper", "softmax"), ("paper", "hsoftmax"), ("mini", "softmax"), ("mini", "hsoftmax"))
    ]
    assert all({"plain", "fp32"} <= set(record["ratio"]) for record in facts["options"])
    assert 0 < facts["padding"]["waste_of_plan"] < 0.2
    assert 0 < facts["padding"]["waste_planned"] < facts["padding"]["waste_arrival"]
    assert set(facts["loop"]) == {"paper", "mini"}
    assert all(0 < loop["outside"] < 1 for loop in facts["loop"].values())
    assert all(speed > 0 for speed in facts["data"].values())
