# SPDX-License-Identifier: Apache-2.0
"""The first process of a job: writes its number, runs the command, and writes its exit code.

Called as `job_process.py FOLDER COMMAND…`. It writes FOLDER/pid before the command starts, and
FOLDER/code when it has ended, both whole or not at all. SIGTERM, SIGINT and SIGHUP reach all
processes of the job: they end the command but not this process. None is lost while the command
starts.

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


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(folder: Path, command: list[str]) -> None:
    """Run the command, with the files of its job in `folder`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the command has its own handlers
    for number in SIGNALS:
        signal.signal(number, do_nothing)
    write(folder / "pid", str(os.getpid()))
    write(folder / "code", str(run(command)))


def do_nothing(number: int, frame: FrameType | None) -> None:
    """Handle a signal that is meant for the command."""


def run(command: list[str]) -> int:
    """The exit code of the command, as a shell has it."""
    try:
        process = subprocess.Popen(
            command,
            close_fds=False,  # it also holds the lock of the job
            preexec_fn=restore_signals,
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return NOT_FOUND
    for number in signal.sigpending():  # came before there was a process of the command
        process.send_signal(number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    code = process.wait()
    return SIGNAL_BASE - code if code < 0 else code


def restore_signals() -> None:
    """In the process of the command: signals end it. One that came already does so now."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(f"{text}\n", "utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
