# SPDX-License-Identifier: Apache-2.0
"""A program that runs a command, and ends it when the process that started this program has ended.

Called as `guarded_process.py DESCRIPTOR COMMAND…`. The descriptor is the reading end of a pipe,
whose writing end only the starting process has. No byte is ever written to the pipe. So its end
means that the starting process has ended, in whatever way. This works on every POSIX system. The
exit code is that of the command.

It imports nothing of wenet_hs, so that it starts in a few milliseconds.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from types import FrameType

NOT_FOUND = 127
"""The exit code of a shell for a program that does not exist."""
SIGNAL_BASE = 128
"""The exit code for a command that a signal has ended is this plus the number of the signal."""


def main(descriptor: int, command: list[str]) -> int:
    """Run the command until it ends, and return its exit code, or NOT_FOUND if it cannot start.

    SIGTERM and SIGHUP are passed on to the command. SIGINT is ignored, also by the command: Ctrl-C
    reaches all processes of a terminal, and the one that started this program decides what ends.

    `descriptor`: the reading end of the pipe. At its end the command gets SIGTERM.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    passed_on = (signal.SIGTERM, signal.SIGHUP)
    # Signals that come before there is a command to pass them on to wait until they are unblocked.
    signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    try:
        process = subprocess.Popen(
            command,
            close_fds=False,  # the command inherits what this process inherited, as a job's lock
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on),
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return NOT_FOUND

    def pass_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    for number in passed_on:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
    watcher = threading.Thread(target=end_with_starter, args=(descriptor, process), daemon=True)
    watcher.start()
    code = process.wait()
    has_ended_by_signal = code < 0  # then it is the number of the signal, negative
    return SIGNAL_BASE - code if has_ended_by_signal else code


def end_with_starter(descriptor: int, process: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of the pipe, and then ask the process to save its work and end."""
    os.read(descriptor, 1)  # returns only at the end: nothing is ever written
    with suppress(ProcessLookupError):
        process.terminate()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
