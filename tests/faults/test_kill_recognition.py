# SPDX-License-Identifier: Apache-2.0
"""Some real kills of a real recognition, alone and under torchrun: the script that a reader can run with any number."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_recognition.py")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_kills_change_no_byte(ranks: int, tmp_path: Path) -> None:
    line = [
        sys.executable,
        str(SCRIPT),
        "--kills",
        "4",
        "--seed",
        "7",
        "--ranks",
        str(ranks),
        "--folder",
        str(tmp_path),
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n") == 1
    assert done.stdout.startswith("seed 7 | ")
    assert " | 4 kills in " in done.stdout
    assert done.stdout.endswith("| equal byte for byte\n")
    assert "batches are decoded already; continuing" in (tmp_path / "killed-0.log").read_text()
