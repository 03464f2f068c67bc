# SPDX-License-Identifier: Apache-2.0
"""Jobs: commands in a session of their own, which go on when the process that started them ends.

A job is a folder with job.json (kind, command, time of the start, details), log, pid, and at its
end code. Its processes hold the file lock, by which any server knows whether it runs.
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

SIGKILL (137) is also what a process gets when the memory is full.
"""
_MAX_WORD = (1 << 17) - 1  # of Linux
_MAX_TAIL, _JOBS = 1 << 16, "[0-9][0-9][0-9][0-9]-*"
_MUTEX = threading.Lock()


@dataclass(frozen=True)
class Job:
    """A job by its folder."""

    folder: Path
    kind: str
    command: tuple[str, ...]
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the job is for, as JSON of the program that started it; may be empty."""

    @property
    def state(self) -> State:
        """What the files and the lock of the folder show."""
        if _is_locked(self.folder / "lock"):
            return "stopping" if (self.folder / "stop").exists() else "running"
        was_asked = (self.folder / "stop").exists()
        with suppress(OSError, ValueError):
            code = int((self.folder / "code").read_text("utf-8"))
            return (
                "done"
                if code == 0
                else "stopped"
                if was_asked or code in STOPPED_CODES
                else "failed"
            )
        return "stopped" if was_asked else "interrupted"

    @property
    def is_running(self) -> bool:
        """Whether any of its processes runs."""
        return self.state in ("running", "stopping")

    def tail(self, num_lines: int = 40) -> list[str]:
        """The last lines of the log."""
        return tail(self.folder / "log", num_lines)

    def stop(self) -> None:
        """Ask its processes to save and end; the second time end them at once."""
        if self.is_running:
            number = signal.SIGKILL if (self.folder / "stop").exists() else signal.SIGTERM
            write_atomic(self.folder / "stop", "")
            with suppress(OSError, ValueError):
                os.killpg(int((self.folder / "pid").read_text("utf-8")), number)


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
    """Start a command. Raises DataError while a job of `kind` or one of `alone` runs.

    Args:
        jobs: the folder in which jobs are kept.
        kind: a name for the job.
        folder: in which the command runs.
        details: what the job is for, as JSON that is kept with it.
        alone: kinds of jobs that may not run beside it.
        before: is called when none of them runs; no other job starts until it has ended.
    """
    if longest := next((word for word in command if len(os.fsencode(word)) >= _MAX_WORD), None):
        raise DataError(
            f"{longest[:60]!r}…",
            f"a part of a command with more than {_MAX_WORD:,} bytes",
            "choose fewer",
        )
    with _MUTEX:
        others = (job for job in read_jobs(jobs) if job.kind in (kind, *alone))
        if running := next((job for job in others if job.is_running), None):
            raise DataError(running.folder.name, "still runs", "wait for its end, or stop it")
        before()
        number = 1 + max(
            (int(path.name[:4]) for path in jobs.glob(_JOBS)), default=0
        )  # also without job.json
        job = jobs / f"{number:04d}-{kind}"
        job.mkdir(parents=True)
        content = {
            "kind": kind,
            "command": [*command],
            "started": time.time(),
            "details": details or {},
        }
        write_atomic(job / "job.json", json.dumps(content, ensure_ascii=False))
        _run(job, command, folder)
    return _read(job)


def _run(job: Path, command: Sequence[str], folder: Path) -> None:
    path = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    )  # wenet-hs and python
    with (job / "lock").open("ab") as lock, (job / "log").open("ab") as log:
        fcntl.flock(lock, fcntl.LOCK_EX)  # unlike lockf, the child has it too
        process = subprocess.Popen(
            [sys.executable, "-IS", job_process.__file__, str(job), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock.fileno(),),
            cwd=folder,
            env={
                **os.environ,
                "PATH": path,
                "NO_COLOR": "1",
                "PYTHONSAFEPATH": "1",
            },  # no module of `folder`
        )
        write_atomic(job / "pid", str(process.pid))
    threading.Thread(
        target=process.wait, daemon=True
    ).start()  # no zombie stays while the server runs


def read_jobs(jobs: Path) -> list[Job]:
    """The jobs of a project, the newest first."""
    found = []
    for path in sorted((one for one in jobs.glob(_JOBS) if not one.is_symlink()), reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):  # killed before it began
            found.append(_read(path))
    return found


def _read(folder: Path) -> Job:
    content = json.loads((folder / "job.json").read_text("utf-8"))
    details = content.get("details", {})
    return Job(
        folder=folder,
        kind=str(content["kind"]),
        command=tuple(map(str, content["command"])),
        details=details if isinstance(details, dict) else {},
    )


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def tail(path: Path, num_lines: int) -> list[str]:
    """The last lines of a log."""
    if path.is_symlink() or not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_TAIL))
        return file.read().decode("utf-8", errors="replace").splitlines()[-num_lines:]
