# SPDX-License-Identifier: Apache-2.0
"""The first process of a job: writes its number, runs the command, and writes its exit code.

Called as `job_process.py FOLDER COMMAND…`. It writes FOLDER/pid before the command starts, and
FOLDER/code when it has ended, both whole or not at all. SIGTERM, SIGINT and SIGHUP, which reach all
processes of the job, end the command but not this process.

It imports nothing of wenet_hs, so that it starts in a few milliseconds.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

NOT_FOUND = 127
"""The exit code of a shell for a program that does not exist."""
SIGNAL_BASE = 128
"""A command that a signal has ended has this exit code plus the number of the signal."""


def main(folder: Path, command: list[str]) -> None:
    """Run the command, with the files of its job in `folder`."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, do_nothing)  # unlike SIG_IGN, the command does not inherit it
    write(folder / "pid", str(os.getpid()))
    write(folder / "code", str(run(command)))


def do_nothing(number: int, frame: FrameType | None) -> None:
    """Handle a signal that is meant for the command."""


def run(command: list[str]) -> int:
    """The exit code of the command, as a shell has it."""
    try:
        code = subprocess.call(command, close_fds=False)  # it also holds the lock of the job
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return NOT_FOUND
    return SIGNAL_BASE - code if code < 0 else code


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(f"{text}\n", "utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
