# SPDX-License-Identifier: Apache-2.0
"""Jobs: commands in a session of their own, which go on when the process that started them ends.

A job is a folder with these files:

    job.json  kind, command, time of the start, details
    log       what the command prints
    lock      locked by the processes of the job as long as one of them runs
    pid       the number of the first process, which leads the process group
    stop      exists after `Job.stop`
    code      the exit code, after the end
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from wenet_hs.base import job_process
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import DataError

State = Literal["running", "stopping", "done", "failed", "stopped", "interrupted"]
STOPPED_CODES = (143, 130)
"""Exit codes after SIGTERM and SIGINT.

SIGKILL (137) is not among them: the system also sends it when the memory is full.
"""
_MAX_ARGUMENT_BYTES = (1 << 17) - 1
"""The longest argument of a command that Linux takes."""
_MAX_TAIL_BYTES = 1 << 16
"""How much of the end of a log is read for its last lines."""
_NAME_PATTERN = "[0-9][0-9][0-9][0-9]-*"
"""Names of the folders of jobs, as `0012-train`: a number, and the kind."""
_START_MUTEX = threading.Lock()
"""Held while a job starts, so that two jobs that exclude each other do not start at once."""


@dataclass(frozen=True)
class Job:
    """A job, read from its folder. Its state is read again each time."""

    folder: Path
    kind: str
    command: tuple[str, ...]
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the job is for, as JSON of the program that started it; may be empty."""

    @property
    def state(self) -> State:
        """What the lock and the files of the folder show now.

        running: a process of the job runs.
        stopping: a process of the job runs, and `stop` was called.
        done: the command has ended with exit code 0.
        stopped: it has ended otherwise, after `stop` or by SIGTERM or SIGINT.
        failed: it has ended with another exit code.
        interrupted: it was killed before it could write its exit code, and not by `stop`.
        """
        is_locked = _is_locked(self.folder / "lock")
        was_asked_to_stop = self._was_asked_to_stop()
        if is_locked:
            return "stopping" if was_asked_to_stop else "running"
        exit_code = self._exit_code()
        if exit_code == 0:
            return "done"
        if was_asked_to_stop or exit_code in STOPPED_CODES:
            return "stopped"
        return "interrupted" if exit_code is None else "failed"

    @property
    def is_running(self) -> bool:
        """Whether any of its processes runs."""
        return self.state in ("running", "stopping")

    def tail(self, num_lines: int = 40) -> list[str]:
        """The last lines of the log."""
        return tail(self.folder / "log", num_lines)

    def stop(self) -> None:
        """Ask the processes of a running job to save and end (SIGTERM).

        The second call ends them at once (SIGKILL). Nothing happens to a job that has ended.
        """
        if not self.is_running:
            return
        number = signal.SIGKILL if self._was_asked_to_stop() else signal.SIGTERM
        write_atomic(self.folder / "stop", "")
        with suppress(OSError, ValueError):  # it has just ended, or has no number yet
            process_group = int((self.folder / "pid").read_text("utf-8"))
            os.killpg(process_group, number)

    def _was_asked_to_stop(self) -> bool:
        """Whether `stop` was called, by this process or another one."""
        return (self.folder / "stop").exists()

    def _exit_code(self) -> int | None:
        """The exit code of the command; None if it has not ended, or was killed with its parent."""
        with suppress(OSError, ValueError):
            return int((self.folder / "code").read_text("utf-8"))
        return None


def start_job(
    jobs: Path,
    kind: str,
    command: Sequence[str],
    *,
    folder: Path,
    details: Mapping[str, Any] | None = None,
    alone: Sequence[str] = (),
    before: Callable[[], object] = lambda: None,
) -> Job:
    """Start a command as a job in a new folder, with the next free number.

    Raises DataError while a job of the same kind, or of one of the kinds `alone`, runs, and for a
    command with an argument that is longer than the system allows. Then no folder is made.

    Args:
        jobs: the folder in which the folders of jobs are.
        kind: a name for the job, such as `train`.
        command: the program and its arguments.
        folder: in which the command runs.
        details: what the job is for, as JSON that is kept with it.
        alone: other kinds of jobs during which this one may not start.
        before: is called before the start when none of them runs; no other job starts meanwhile.
    """
    _refuse_long_arguments(command)
    with _START_MUTEX:
        _refuse_running_jobs(jobs, [kind, *alone])
        before()
        job = jobs / f"{_next_number(jobs):04d}-{kind}"
        job.mkdir(parents=True)
        content = {
            "kind": kind,
            "command": [*command],
            "started": time.time(),
            "details": details or {},
        }
        write_atomic(job / "job.json", json.dumps(content, ensure_ascii=False))
        _start_process(job, command, folder)
    return _read_job(job)


def _refuse_long_arguments(command: Sequence[str]) -> None:
    """Raise DataError if an argument is longer than Linux allows."""
    for argument in command:
        if len(os.fsencode(argument)) > _MAX_ARGUMENT_BYTES:
            found = f"a part of a command with more than {_MAX_ARGUMENT_BYTES:,} bytes"
            raise DataError(f"{argument[:60]!r}…", found, "choose fewer")


def _refuse_running_jobs(jobs: Path, kinds: Sequence[str]) -> None:
    """Raise DataError if a job of one of the kinds runs."""
    for job in read_jobs(jobs):
        if job.kind in kinds and job.is_running:
            raise DataError(job.folder.name, "still runs", "wait for its end, or stop it")


def _next_number(jobs: Path) -> int:
    """The number after the greatest one of all folders of jobs; 1 for the first job.

    A folder without job.json counts too: a server that was killed may have left one.
    """
    numbers = [int(path.name[:4]) for path in jobs.glob(_NAME_PATTERN)]
    return max(numbers, default=0) + 1


def _start_process(job: Path, command: Sequence[str], folder: Path) -> None:
    """Start the processes of a job. `job`: its folder; `folder`: where the command runs.

    `job_process` runs in a new session and starts the command. Both inherit the locked file `lock`,
    so the lock ends with the last of them. What they print goes to `log`. `pid` is written here and
    by `job_process`, because this process may be killed before it can write.
    """
    # The commands `wenet-hs` and `python` of this environment come first.
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {
        **os.environ,
        "PATH": search_path,
        "NO_COLOR": "1",
        "PYTHONSAFEPATH": "1",  # Python does not import modules of `folder`
    }
    with (job / "lock").open("ab") as lock, (job / "log").open("ab") as log:
        fcntl.flock(lock, fcntl.LOCK_EX)  # unlike lockf, the child has it too
        process = subprocess.Popen(
            # -IS: without the user's settings of Python and installed packages, it starts at once
            [sys.executable, "-IS", job_process.__file__, str(job), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock.fileno(),),
            cwd=folder,
            env=environment,
        )
        write_atomic(job / "pid", str(process.pid))
    # A process that has ended stays as a zombie until its parent waits for it.
    threading.Thread(target=process.wait, daemon=True).start()


def read_jobs(jobs: Path) -> list[Job]:
    """The jobs in a folder, the newest first.

    Links are left out. So are folders without a complete job.json: their start was interrupted.
    """
    folders = [path for path in jobs.glob(_NAME_PATTERN) if not path.is_symlink()]
    readable_jobs = []
    for folder in sorted(folders, reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):
            readable_jobs.append(_read_job(folder))
    return readable_jobs


def _read_job(folder: Path) -> Job:
    """The job of a folder; its details are empty if they are missing or no JSON object.

    Raises OSError, ValueError, KeyError or TypeError if its job.json is missing or damaged.
    """
    content = json.loads((folder / "job.json").read_text("utf-8"))
    details = content.get("details", {})
    return Job(
        folder=folder,
        kind=str(content["kind"]),
        command=tuple(map(str, content["command"])),
        details=details if isinstance(details, dict) else {},
    )


def _is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file; False if the file cannot be opened."""
    try:
        with path.open("rb") as file:
            # A shared lock, until the file is closed; it is refused while a job has its own lock.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def tail(path: Path, num_lines: int) -> list[str]:
    """The last lines of a log, at most `num_lines` and 64 KiB.

    Empty if the log does not exist or is a link. Bytes that are not UTF-8 are replaced.
    """
    if path.is_symlink() or not path.is_file():
        return []
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _MAX_TAIL_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    return text.splitlines()[-num_lines:]
