# SPDX-License-Identifier: Apache-2.0
"""The benchmark of training runs from one end to the other, and its note has a figure for each question."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "training_speed.py"


@pytest.mark.slow
def test_a_quick_run_writes_its_note(tmp_path: Path) -> None:
    line = [sys.executable, str(SCRIPT), "--quick", "--threads", "1", "--out", str(tmp_path / "note")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    note = (tmp_path / "note.md").read_text("utf-8")
    assert "WeNet at the paper's size on 2 cores: 7 to 11 audio seconds a second (from earlier notes: not pa" in note
    assert "GPU: none here, not measured." in note
    facts = json.loads((tmp_path / "note.json").read_text("utf-8"))
    assert [(record["size"], record["head"]) for record in facts["options"]] == [
        *(("paper", "softmax"), ("paper", "hsoftmax"), ("mini", "softmax"), ("mini", "hsoftmax"))
    ]
    for record in facts["options"]:
        assert {"plain", "fp32"} <= set(record["ratio"]) == set(record["audio_seconds_a_second"])
        assert record["ratio"]["plain"] == 1
    assert 0 < facts["padding"]["waste_of_plan"] < 0.2
    assert 0 < facts["padding"]["waste_planned"] < facts["padding"]["waste_arrival"]
    assert set(facts["loop"]) == {"paper", "mini"}
    assert all(0 < loop["outside"] < 1 for loop in facts["loop"].values())
    assert all(speed > 0 for speed in facts["data"].values())
