# SPDX-License-Identifier: Apache-2.0
"""Jobs go on without the server, end when they are asked to, and their state is on the disk."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import within

from wenet_hs.base import jobs
from wenet_hs.base.jobs import Job, read_jobs, start_job
from wenet_hs.tree.errors import DataError


def begin(tmp_path: Path, *command: str, kind: str = "train") -> Job:
    return start_job(tmp_path / "jobs", kind, command, folder=tmp_path)


def test_a_job_outlives_a_killed_server(tmp_path: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from wenet_hs.base.jobs import start_job
root = Path({str(tmp_path)!r})
command = ["sh", "-c", "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo over"]
start_job(root / "jobs", "train", command, folder=root)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    (job,) = read_jobs(tmp_path / "jobs")
    assert within(20, lambda: job.tail() == ["begun"])
    assert job.state == "running" and job.is_running
    with pytest.raises(DataError, match="0001-train: still runs; wait for its end, or stop it"):
        begin(tmp_path, "true")
    (tmp_path / "go").touch()
    assert within(20, lambda: job.state == "done")
    assert job.tail() == ["begun", "over"]


def test_a_job_writes_its_own_number_and_no_file_of_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may be killed before it can write the number."""
    write = jobs.write_atomic
    monkeypatch.setattr(
        jobs, "write_atomic", lambda path, text: path.name == "pid" or write(path, text)
    )
    job = begin(tmp_path, "true")
    assert within(20, lambda: job.state == "done")
    assert (job.folder / "pid").read_text().strip().isdecimal()
    (tmp_path / "jobs/0002-train").symlink_to(job.folder)
    (job.folder / "lock").unlink()
    (job.folder / "lock").symlink_to(tmp_path / "made")
    assert [one.folder.name for one in read_jobs(tmp_path / "jobs")] == ["0001-train"]
    assert job.state == "done" and not (tmp_path / "made").exists()
    (job.folder / "log").unlink()
    (job.folder / "log").symlink_to("/etc/passwd")
    assert job.tail() == []


def test_states_of_jobs(tmp_path: Path) -> None:
    done, failed = (
        begin(tmp_path, "true", kind="a"),
        begin(tmp_path, "sh", "-c", "exit 2", kind="b"),
    )
    missing, running = (
        begin(tmp_path, "no-such-program", kind="c"),
        begin(tmp_path, "sleep", "60", kind="d"),
    )
    assert within(
        20, lambda: [job.state for job in (done, failed, missing)] == ["done", "failed", "failed"]
    )
    assert [job.kind for job in read_jobs(tmp_path / "jobs")] == ["d", "c", "b", "a"]
    running.stop()
    assert within(20, lambda: running.state == "stopped")
    killed = begin(tmp_path, "sleep", "60", kind="d")
    assert killed.folder.name == "0005-d"
    os.killpg(int((killed.folder / "pid").read_text()), signal.SIGKILL)
    assert within(20, lambda: killed.state == "interrupted")


def test_a_second_stop_ends_a_job_at_once(tmp_path: Path) -> None:
    job = begin(tmp_path, "sh", "-c", "trap : TERM; echo begun; while :; do sleep 0.05; done")
    assert within(20, lambda: job.tail() == ["begun"])
    job.stop()
    assert job.state == "stopping"
    job.stop()
    assert within(20, lambda: not job.is_running)


def test_arguments_reach_the_command_as_they_are(tmp_path: Path) -> None:
    words = ["a b", "$(touch x)", "`id`", "; rm -rf .", "'", '"', "*"]
    job = begin(tmp_path, sys.executable, "-c", "import sys; print(sys.argv[1:])", *words)
    assert within(20, lambda: job.state == "done")
    assert job.tail() == [repr(words)]
    assert not (tmp_path / "x").exists()


def test_a_folder_without_job_json_does_not_block_the_next_job(tmp_path: Path) -> None:
    (tmp_path / "jobs/0001-train").mkdir(
        parents=True
    )  # of a server that was killed, or of a full disk
    assert begin(tmp_path, "true").folder.name == "0002-train"


def test_jobs_that_exclude_each_other_start_one_at_a_time(tmp_path: Path) -> None:
    started, refused = list[Job](), list[str]()

    def start(kind: str) -> None:
        try:
            jobs, others = tmp_path / "jobs", ("prepare", "train")
            started.append(
                start_job(
                    jobs,
                    kind,
                    ["sleep", "60"],
                    folder=tmp_path,
                    alone=others,
                    before=lambda: time.sleep(0.2),
                )
            )
        except DataError as error:
            refused.append(str(error))

    threads = [
        threading.Thread(target=start, args=(kind,)) for kind in ("prepare", "train", "train")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == 1 and len(refused) == 2 and all("still runs" in line for line in refused)
    started[0].stop()


def test_a_job_that_the_system_killed_has_failed(tmp_path: Path) -> None:
    killed, stopped = (
        begin(tmp_path, "sh", "-c", "exit 137", kind="a"),
        begin(tmp_path, "sh", "-c", "exit 143", kind="b"),
    )
    assert within(20, lambda: [killed.state, stopped.state] == ["failed", "stopped"])


def test_modules_in_the_folder_of_a_job_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('json.py of the project')")
    job = begin(tmp_path, sys.executable, "-c", "import json; print(json.dumps(1))")
    assert within(20, lambda: not job.is_running) and job.tail() == ["1"]
