# SPDX-License-Identifier: Apache-2.0
"""Ten real kills of a real training: the script that the reader can run with any number of them."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_training.py")


@pytest.mark.slow
def test_ten_kills_change_no_bit(tmp_path: Path) -> None:
    line = [sys.executable, str(SCRIPT), "--kills", "10", "--seed", "7", "--model_dir", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n") == 1
    assert done.stdout.startswith("seed 7 | 48 steps | 10 kills (after step ")
    assert done.stdout.endswith("| equal bit for bit\n")
    assert "resuming from" in (tmp_path / "killed" / "train.log").read_text()
    assert not list((tmp_path / "killed" / "checkpoints").glob("*.bad")), "no kill ever damages a checkpoint"
