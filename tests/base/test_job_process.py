# SPDX-License-Identifier: Apache-2.0
"""The first process of a job, and what is kept with a job."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import within

from wenet_hs.base import job_process
from wenet_hs.base.jobs import read_jobs, start_job
from wenet_hs.tree.atomic import write_atomic


@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        (["true"], "0\n", ""),
        (["sh", "-c", "exit 3"], "3\n", ""),
        (["sh", "-c", "kill -KILL $$"], "137\n", ""),
        (["sh", "-c", "kill -TERM 0; sleep 60"], "143\n", ""),
        (["no-such-program"], "127\n", "no-such-program: No such file or directory\n"),
    ],
)
def test_the_exit_code_is_that_of_a_shell(
    command: list[str],
    code: str,
    error: str,
    tmp_path: Path,
) -> None:
    line = [sys.executable, "-IS", job_process.__file__, str(tmp_path), *command]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True) as job:
        _, printed = job.communicate(timeout=20)
    assert (tmp_path / "code").read_text() == code
    assert (tmp_path / "pid").read_text() == f"{job.pid}\n"
    assert printed == error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["code", "pid"]


def test_a_job_runs_without_bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    command = [sys.executable, "-c", "print('done')"]
    job = start_job(tmp_path / "jobs", "train", command, folder=tmp_path)
    assert within(20, lambda: job.state == "done") and job.tail() == ["done"]


def test_the_number_of_the_process_is_whole_as_soon_as_a_job_is_started(tmp_path: Path) -> None:
    for number in range(5):
        job = start_job(tmp_path / "jobs", f"k{number}", ["sleep", "1"], folder=tmp_path)
        process = int((job.folder / "pid").read_text())
        assert os.getpgid(process) == process


def test_details_are_kept(tmp_path: Path) -> None:
    details = {"own": {"elan": "/x", "seeds": [1, 2]}, "minutes": 2.5}
    job = start_job(tmp_path / "jobs", "train", ["true"], folder=tmp_path, details=details)
    assert job.details == details and read_jobs(tmp_path / "jobs")[0].details == details
    assert within(20, lambda: not job.is_running)


@pytest.mark.parametrize("others", [{}, {"details": None}, {"details": ["x"]}])
def test_a_job_without_details_is_read(others: dict[str, object], tmp_path: Path) -> None:
    content = json.dumps({"kind": "train", "command": ["x"], "started": 1.0} | others)
    write_atomic(tmp_path / "0001-train/job.json", content)
    [job] = read_jobs(tmp_path)
    assert (job.kind, job.command, job.details) == ("train", ("x",), {})


@pytest.mark.slow
def test_a_job_is_stopped_at_any_time_after_its_start(tmp_path: Path) -> None:
    """Also while its command starts: no signal is lost."""
    for number in range(20):
        job = start_job(tmp_path / "jobs", "train", ["sleep", "60"], folder=tmp_path)
        time.sleep(0.002 * number)
        job.stop()
        assert within(20, lambda: not job.is_running)  # noqa: B023
        assert job.state == "stopped"
