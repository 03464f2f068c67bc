# SPDX-License-Identifier: Apache-2.0
"""A program that runs a command, and ends it when the process that started this program has ended.

Called as `guarded_process.py DESCRIPTOR COMMAND…`. The descriptor is the reading end of a pipe. No
byte is ever written to it, so that its end means: nobody has the writing end any more, however that
process ended. This works on every POSIX system. The exit code is that of the command.

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
"""A command that a signal has ended has this exit code plus the number of the signal."""


def main(descriptor: int, command: list[str]) -> int:
    """Run the command. Returns its exit code.

    SIGTERM and SIGHUP are passed on. SIGINT is ignored, also by the command: Ctrl-C reaches all
    processes of a terminal, and the one that started this program decides what ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    numbers = (signal.SIGTERM, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # until there is a process to pass them on to
    try:
        process = subprocess.Popen(
            command,
            close_fds=False,  # also descriptors of those that started us, such as the lock of a job
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers),
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return NOT_FOUND

    def pass_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    for number in numbers:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    watcher = threading.Thread(target=end_with_starter, args=(descriptor, process), daemon=True)
    watcher.start()
    code = process.wait()
    return SIGNAL_BASE - code if code < 0 else code


def end_with_starter(descriptor: int, process: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of the pipe, and then ask the process to save its work and end."""
    os.read(descriptor, 1)
    with suppress(ProcessLookupError):
        process.terminate()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
