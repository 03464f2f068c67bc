# SPDX-License-Identifier: Apache-2.0
"""What tells whether several processes trained what one does."""

import json
from pathlib import Path

import compare_ranks
import pytest


def experiment(folder: Path, *, steps: int, rate: float) -> None:
    score = folder / "softmax" / "test" / "attention" / "score.json"
    score.parent.mkdir(parents=True)
    score.write_text(json.dumps({"macro": {"rate": rate, "interval": [rate - 0.02, rate + 0.02]}}))
    (folder / "softmax" / "final.pt").touch()
    (folder / "softmax" / "metrics.jsonl").write_text(f'{{"kind": "train", "step": {steps}}}\n')


@pytest.mark.parametrize(("steps", "rate", "code"), [(9, 0.21, 0), (8, 0.21, 1), (9, 0.25, 1)])
def test_steps_and_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int, rate: float, code: int
) -> None:
    experiment(tmp_path / "one", steps=9, rate=0.2)
    experiment(tmp_path / "two", steps=steps, rate=rate)
    assert compare_ranks.main([str(tmp_path / "one"), str(tmp_path / "two")]) == code
    printed = capsys.readouterr().out
    assert f"9 steps alone, {steps} with ranks" in printed
    assert ("too far apart" in printed) == (rate == 0.25)
    assert compare_ranks.main([str(tmp_path / "none"), str(tmp_path / "two")]) == 2
