# SPDX-License-Identifier: Apache-2.0
"""What the tests of commands share."""

import shlex
from types import ModuleType

import pytest

from wenet_hs.bin.main import run_command

Capsys = pytest.CaptureFixture[str]


def run_line(command: ModuleType, line: str) -> int:
    """Run a command with the flags as they are typed; the exit code."""
    return run_command(command, shlex.split(line))


def error_line(code: int, capsys: Capsys) -> str:
    """The one line on stderr of a command that ended with the exit code of a user error."""
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1), error
    return error.rstrip("\n")
