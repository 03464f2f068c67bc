# SPDX-License-Identifier: Apache-2.0
"""The benchmark of training runs from one end to the other, and its note has a figure for each question."""

from pathlib import Path

import pytest
from quick_note import quick_note


@pytest.mark.slow
def test_a_quick_run_writes_its_note(tmp_path: Path) -> None:
    note, facts = quick_note("training_speed.py", tmp_path)
    assert "WeNet at the paper's size on 2 cores: 7 to 11 audio seconds a second (from earlier notes: not pa" in note
    assert "GPU: none here, not measured." in note
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
