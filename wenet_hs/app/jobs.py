# SPDX-License-Identifier: Apache-2.0
"""Jobs of a project: commands in a session of their own, which go on when the page and the server end.

A job is a folder with job.json (kind, command, time of the start), log, pid, and at its end code. Its processes hold
the file lock, by which any server knows whether it runs.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wenet_hs.errors import DataError
from wenet_hs.files import write_atomic

State = Literal["running", "stopping", "done", "failed", "stopped", "interrupted"]
STOPPED_CODES = (143, 130, 137, -15, -9, -2)
"""Exit codes after SIGTERM, SIGINT and SIGKILL; `wenet-hs train` has saved its work with the first two."""
_RUN = 'trap : TERM INT HUP; "$@"; echo $? > "$0/code.tmp"; mv "$0/code.tmp" "$0/code"'
_MAX_TAIL = 1 << 16


@dataclass(frozen=True)
class Job:
    """A job by its folder."""

    folder: Path
    kind: str
    command: tuple[str, ...]

    @property
    def state(self) -> State:
        """What the files and the lock of the folder show."""
        if _is_locked(self.folder / "lock"):
            return "stopping" if (self.folder / "stop").exists() else "running"
        with suppress(OSError, ValueError):
            code = int((self.folder / "code").read_text("utf-8"))
            return "done" if code == 0 else "stopped" if code in STOPPED_CODES else "failed"
        return "stopped" if (self.folder / "stop").exists() else "interrupted"

    @property
    def is_running(self) -> bool:
        """Whether any of its processes runs."""
        return self.state in ("running", "stopping")

    def option(self, flag: str) -> list[str]:
        """A flag of its command and the value; empty without it."""
        index = self.command.index(flag) if flag in self.command else len(self.command)
        return [*self.command[index : index + 2]]

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


def start_job(jobs: Path, kind: str, command: Sequence[str], *, folder: Path) -> Job:
    """Start a command in `folder`; `jobs`: where jobs are kept. Raises DataError while one of `kind` runs."""
    earlier = read_jobs(jobs)
    if running := next((job for job in earlier if job.kind == kind and job.is_running), None):
        raise DataError(running.folder.name, "still runs", "wait for its end, or stop it")
    number = 1 + max((int(job.folder.name.partition("-")[0]) for job in earlier), default=0)
    job = jobs / f"{number:04d}-{kind}"
    job.mkdir(parents=True)
    content = {"kind": kind, "command": [*command], "started": time.time()}
    write_atomic(job / "job.json", json.dumps(content, ensure_ascii=False))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # wenet-hs and python
    with (job / "lock").open("ab") as lock, (job / "log").open("ab") as log:
        fcntl.flock(lock, fcntl.LOCK_EX)  # unlike lockf, the child has it too
        process = subprocess.Popen(
            ["bash", "-c", _RUN, str(job), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock.fileno(),),
            cwd=folder,
            env={**os.environ, "PATH": path, "NO_COLOR": "1"},
        )
        write_atomic(job / "pid", str(process.pid))
    threading.Thread(target=process.wait, daemon=True).start()  # no zombie stays while the server runs
    return _read(job)


def read_jobs(jobs: Path) -> list[Job]:
    """The jobs of a project, the newest first."""
    found = []
    for path in sorted(jobs.glob("[0-9][0-9][0-9][0-9]-*"), reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):  # killed before it began
            found.append(_read(path))
    return found


def _read(folder: Path) -> Job:
    content = json.loads((folder / "job.json").read_text("utf-8"))
    return Job(folder, str(content["kind"]), tuple(map(str, content["command"])))


def _is_locked(path: Path) -> bool:
    try:
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def tail(path: Path, num_lines: int) -> list[str]:
    """The last lines of a log."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_TAIL))
        return file.read().decode("utf-8", errors="replace").splitlines()[-num_lines:]
