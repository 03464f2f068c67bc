# SPDX-License-Identifier: Apache-2.0
"""The benchmark of recognition runs from one end to the other, and its note has a row for each question."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "recognize.py"


@pytest.mark.slow
def test_a_quick_run_writes_its_note(tmp_path: Path) -> None:
    line = [sys.executable, str(SCRIPT), "--quick", "--threads", "1", "--out", str(tmp_path / "note")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    note = (tmp_path / "note.md").read_text("utf-8")
    assert "tiny layers, no figures" in note
    assert "(not paired, not this run; random weights): RTF 0.013 CTC greedy" in note
    facts = json.loads((tmp_path / "note.json").read_text("utf-8"))
    cases = {record["case"]: record for record in facts["wenet"]}
    limited, ending = cases["attention, to the limit"], cases["attention, ends at different times"]
    assert limited["units"] == [124, 124]  # as many as encoder frames
    assert max(ending["units"]) < 124 and len(ending["rows"]) < 124
    assert all(record["same_places"] > 0.9 and record["ratio"] > 0 for record in cases.values())
    assert set(limited["rtf"]) == {"wenet", "ours", "encoder", "products"}
    assert set(cases["ctc_prefix_beam_search"]["rtf"]) == {"wenet", "ours", "encoder"}
    assert [record["set"][:2] for record in facts["sets"][::2]] == ["tr", "pl", "ru", "20", "40", "80"]
    assert [record["units"] for record in facts["vocabularies"][::2]] == [300, 500, 5_000, 10_000]
