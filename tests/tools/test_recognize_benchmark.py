# SPDX-License-Identifier: Apache-2.0
"""The benchmark of recognition runs from one end to the other, and its note has a row for each question."""

from pathlib import Path

import pytest
from quick_note import quick_note


@pytest.mark.slow
def test_a_quick_run_writes_its_note(tmp_path: Path) -> None:
    note, facts = quick_note("recognize.py", tmp_path)
    assert "tiny layers, no figures" in note
    assert "(not paired, not this run; random weights): RTF 0.013 CTC greedy" in note
    cases = {record["case"]: record for record in facts["wenet"]}
    limited, ending = cases["attention, to the limit"], cases["attention, ends at different times"]
    assert limited["units"] == [124, 124]  # as many as encoder frames
    assert max(ending["units"]) < 124 and len(ending["rows"]) < 124
    assert all(record["same_places"] > 0.9 and record["ratio"] > 0 for record in cases.values())
    assert set(limited["rtf"]) == {"wenet", "ours", "encoder", "products"}
    assert set(cases["ctc_prefix_beam_search"]["rtf"]) == {"wenet", "ours", "encoder"}
    assert [record["set"][:2] for record in facts["sets"][::2]] == ["tr", "pl", "ru", "20", "40", "80"]
    assert [record["units"] for record in facts["vocabularies"][::2]] == [300, 500, 5_000, 10_000]
