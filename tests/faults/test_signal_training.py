# SPDX-License-Identifier: Apache-2.0
"""Two real signals to a real training: the script that the reader can run with any number of them."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("signal_training.py")


@pytest.mark.slow
def test_two_signals_change_no_bit(tmp_path: Path) -> None:
    line = [sys.executable, str(SCRIPT), "--signals", "2", "--epochs", "6", "--seed", "5", "--scratch", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("seed 5 | 24 steps | 2 signals | 2 stopped in good order | ")
    assert done.stdout.endswith("| no violation\n")
