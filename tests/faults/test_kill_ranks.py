# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed, or fall silent, under torchrun: the script that the reader can run with any number of runs."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kill_ranks import Launch
from tiny_corpus import write_tiny_corpus

SCRIPT = Path(__file__).with_name("kill_ranks.py")


@pytest.mark.slow
def test_a_run_with_two_kills_ends_with_the_same_bits(tmp_path: Path) -> None:
    line = [sys.executable, str(SCRIPT), "--runs", "1", "--kills", "2", "--seed", "3", "--folder", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(
        r"seed 3 \| 2 ranks \| 16 steps \| 1 runs \| rank 0 killed \d times, rank 1 \d times \| \d+ s \| all equal bit "
        r"for bit\n",
        done.stdout,
    )
    assert "resuming from" in (tmp_path / "run-0" / "train.log").read_text()


@pytest.mark.slow
def test_a_silent_rank_ends_the_run_within_the_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kill_ranks.TIMEOUT_S", 5)
    corpus = write_tiny_corpus(tmp_path / "corpus")
    launch = Launch(corpus, tmp_path / "run", max_restarts=0)
    while not (tmp_path / "run" / "metrics.jsonl").is_file() or 1 not in (ranks := launch.rank_processes()):
        assert launch.is_running(), launch.log.read_text()
        time.sleep(0.01)
    os.kill(ranks[1], signal.SIGSTOP)
    while b"another rank has not answered for 5 s" not in launch.log.read_bytes():
        assert launch.is_running(), launch.log.read_text()
        time.sleep(0.1)
    os.kill(ranks[1], signal.SIGKILL)  # torchrun would wait half a minute for it to take its SIGTERM
    assert launch.wait() == 1
    lines = [line for line in launch.log.read_text().splitlines() if line.startswith("rank 0: ")]
    assert lines == [
        "rank 0: another rank has not answered for 5 s; see what it says, then run the same command again: it goes on "
        "with what is saved"
    ]
