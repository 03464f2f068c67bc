# SPDX-License-Identifier: Apache-2.0
"""The first process of a job: writes its number, runs the command, and writes its exit code.

Called as `job_process.py FOLDER COMMAND…`. It writes FOLDER/pid before the command starts, and
FOLDER/code when it has ended. SIGTERM, SIGINT and SIGHUP reach all processes of the job: they end
the command but not this process. A signal that comes while the command starts reaches it later.

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
"""Signals that are meant for the command."""


def main(folder: Path, command: list[str]) -> None:
    """Run the command; write `pid` before it starts and `code` after its end into `folder`."""
    # The system keeps these signals until the command can receive them.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for number in SIGNALS:
        signal.signal(number, do_nothing)
    write(folder / "pid", str(os.getpid()))
    exit_code = run(command)
    write(folder / "code", str(exit_code))


def do_nothing(number: int, frame: FrameType | None) -> None:
    """Handler of a signal that is meant for the command and must not end this process."""


def run(command: list[str]) -> int:
    """Run the command; returns its exit code as a shell has it.

    SIGNALS must be blocked. Those that came before the start are sent on to the command, then they
    are unblocked. A program that cannot be started gives a line on stderr and NOT_FOUND.
    """
    try:
        process = subprocess.Popen(
            command,
            close_fds=False,  # the command inherits the lock of the job too
            preexec_fn=restore_signals,
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return NOT_FOUND
    for number in signal.sigpending():
        process.send_signal(number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    code = process.wait()
    if code < 0:  # minus the number of the signal that has ended the command
        return SIGNAL_BASE - code
    return code


def restore_signals() -> None:
    """Let signals end the process of the command, in which this runs before the command starts.

    A signal that has already come ends it now.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def write(path: Path, text: str) -> None:
    """Write a line into a file, which is complete or does not exist."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(f"{text}\n", "utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
