# SPDX-License-Identifier: Apache-2.0
"""Runs `wenet-hs` in a process of its own, without the seconds that the import of PyTorch takes.

This process has imported the program; each command runs in a fork of it. A command then begins
with the same state as one that was started by a shell.
"""

import atexit
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import wenet_program

COMMAND_ENVIRONMENT = {"GIT_DIR": os.devnull}
"""No git: otherwise train.yaml has the commit, and its hash differs between commits."""
LIMIT_S = 300
"""A command that takes longer is ended by a signal, which the record shows."""


@dataclass(frozen=True)
class CommandResult:
    """What a command returned and printed."""

    exit_code: int
    """Negative: the number of the signal that ended it."""
    stdout: str
    stderr: str


def run_command(
    arguments: list[str],
    folder: Path,
    printed: Path,
    stdin: bytes = b"",
) -> CommandResult:
    """Run `wenet-hs ARGUMENTS` with `folder` as its working folder.

    Args:
        printed: folder for the files with what the command reads and prints.
    """
    printed.mkdir(parents=True, exist_ok=True)
    (printed / "stdin").write_bytes(stdin)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _run_and_exit(arguments, folder, printed)
    _, status = os.waitpid(child, 0)
    return CommandResult(
        exit_code=os.waitstatus_to_exitcode(status),
        stdout=(printed / "stdout").read_text("utf-8", "backslashreplace"),
        stderr=(printed / "stderr").read_text("utf-8", "backslashreplace"),
    )


def _run_and_exit(arguments: list[str], folder: Path, printed: Path) -> None:
    """Run the command in this forked process, and end the process."""
    signal.alarm(LIMIT_S)
    _redirect(0, printed / "stdin", os.O_RDONLY)
    _redirect(1, printed / "stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    _redirect(2, printed / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.chdir(folder)
    os.environ.update(COMMAND_ENVIRONMENT)
    sys.argv = ["wenet-hs", *arguments]
    exit_code = 1
    try:
        wenet_program.main()
        exit_code = 0
    except SystemExit as end:
        exit_code = _exit_code(end)
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _redirect(descriptor: int, path: Path, flags: int) -> None:
    """Let a descriptor of this process be a file."""
    opened = os.open(path, flags, 0o644)
    os.dup2(opened, descriptor)
    os.close(opened)


def _exit_code(end: SystemExit) -> int:
    """The exit code that Python gives a process for this exception."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    print(end.code, file=sys.stderr)
    return 1
