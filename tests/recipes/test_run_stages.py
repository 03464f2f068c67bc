# SPDX-License-Identifier: Apache-2.0
"""`wenet-hs own` as a process: failures, signals and kills. No training outlives it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import is_running, within

from wenet_hs.base.jobs import Job, start_job

ROOT = Path(__file__).parents[2]
STUB = """#!/bin/sh
case "$*" in
  check-options*) exit 0;;
  plan*) exit "$CODE_OF_PLAN";;
  progress*) exit 0;;
  *"$FAILING"*) until [ -s pid ]; do sleep 0.05; done; echo 1; echo 2; echo 3; echo failed; exit 5;;
  train*) trap 'echo saved >> saved; $AFTER_TERM' TERM; echo $$ > pid; while :; do sleep 0.05; done;;
esac
"""
PROGRAM = """
import sys
from pathlib import Path
from wenet_hs.bin import own
from wenet_hs.bin.main import run_command
from wenet_hs.recipes.run_stages import Programs
own.find_programs = lambda: Programs(wenet_hs=(sys.argv[1],), python="python")
sys.exit(run_command(own, sys.argv[2:]))
"""


@dataclass(frozen=True)
class OwnProcess:
    """`wenet-hs own` in a folder, with a stub whose training ends only by SIGTERM."""

    folder: Path
    process: "subprocess.Popen[str]"

    def training(self) -> int:
        """The number of the process that trains; waits until it runs."""
        path = self.folder / "pid"
        assert within(20, lambda: path.is_file() and path.read_text().strip() != "")
        return int(path.read_text())

    def saved(self) -> str:
        """What the training has written after SIGTERM."""
        path = self.folder / "saved"
        return path.read_text() if path.is_file() else ""


def start(
    folder: Path,
    *options: str,
    failing: str = "none",
    code_of_plan: int = 0,
) -> OwnProcess:
    stub = folder / "stub"
    stub.write_text(STUB)
    stub.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(stub), "--stage", "4", "--stop_stage", "4", *options],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "FAILING": failing,
            "CODE_OF_PLAN": str(code_of_plan),
            "AFTER_TERM": "exit 143",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return OwnProcess(folder, process)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnProcess]:
    running = start(tmp_path)
    yield running
    running.process.kill()
    running.process.communicate()


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGTERM, "wenet-hs own: stopped by SIGTERM; give the same command to go on\n"),
        (signal.SIGINT, "wenet-hs own: stopped by SIGINT; give the same command to go on\n"),
    ],
)
def test_a_signal_stops_the_training_and_waits_for_it(
    own: OwnProcess,
    number: signal.Signals,
    line: str,
) -> None:
    training = own.training()
    own.process.send_signal(number)
    _, error = own.process.communicate(timeout=20)
    assert (own.process.returncode, error) == (128 + number, line)
    assert own.saved() == "saved\n" and not is_running(training)


def test_ctrl_c_in_a_terminal_reaches_the_training_once(own: OwnProcess) -> None:
    training = own.training()
    os.killpg(own.process.pid, signal.SIGINT)
    own.process.communicate(timeout=20)
    assert own.process.returncode == 130
    assert own.saved() == "saved\n" and not is_running(training)


def test_no_training_outlives_a_kill(own: OwnProcess) -> None:
    training = own.training()
    own.process.kill()
    own.process.communicate(timeout=20)
    assert within(20, lambda: not is_running(training))
    assert own.saved() == "saved\n"


def test_a_training_that_fails_ends_the_others(tmp_path: Path) -> None:
    own = start(tmp_path, "--head", "softmax class", failing="exp/class")
    output, error = own.process.communicate(timeout=20)
    assert own.process.returncode == 2
    assert error == "==> exp/class.log <==\n2\n3\nfailed\n"
    assert output.partition(" ")[2] == "stage 4: training (logs: exp/*.log)\n"
    assert own.saved() == "saved\n" and not is_running(own.training())
    assert (tmp_path / "exp/options.json").is_file()


def test_a_command_that_fails_ends_the_recipe_with_its_code(tmp_path: Path) -> None:
    own = start(tmp_path, code_of_plan=5)
    _, error = own.process.communicate(timeout=20)
    assert (own.process.returncode, error) == (5, "")
    assert not (tmp_path / "pid").exists()


# ---- as a job of the page


def start_as_job(folder: Path, *, after_term: str = "exit 143") -> Job:
    """The same as a job. `after_term`: what its training does after it has saved."""
    stub = folder / "stub"
    stub.write_text(STUB)
    stub.chmod(0o755)
    variables = [f"PYTHONPATH={ROOT}", "FAILING=none", "CODE_OF_PLAN=0", f"AFTER_TERM={after_term}"]
    program = [sys.executable, "-c", PROGRAM, str(stub), "--stage", "4", "--stop_stage", "4"]
    return start_job(folder / "jobs", "train", ["env", *variables, *program], folder=folder)


def training_of(folder: Path) -> int:
    path = folder / "pid"
    assert within(20, lambda: path.is_file() and path.read_text().strip() != "")
    return int(path.read_text())


def test_a_job_that_is_stopped_saves_its_training(tmp_path: Path) -> None:
    job = start_as_job(tmp_path)
    training = training_of(tmp_path)
    job.stop()
    assert within(20, lambda: not job.is_running)
    assert job.state == "stopped" and not is_running(training)
    assert (tmp_path / "saved").read_text().startswith("saved\n")


def test_a_second_stop_ends_all_processes_of_a_job(tmp_path: Path) -> None:
    job = start_as_job(tmp_path, after_term="true")
    training = training_of(tmp_path)
    job.stop()
    assert within(20, (tmp_path / "saved").is_file) and job.state == "stopping"
    job.stop()
    assert within(20, lambda: not job.is_running and not is_running(training))


def test_a_job_runs_as_long_as_its_training(tmp_path: Path) -> None:
    """The training has the lock of the job too."""
    job = start_as_job(tmp_path)
    training = training_of(tmp_path)
    os.kill(int((job.folder / "pid").read_text()), signal.SIGKILL)
    assert job.is_running and is_running(training)
    job.stop()
    assert within(20, lambda: not job.is_running)
    assert not is_running(training)
