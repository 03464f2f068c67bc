# SPDX-License-Identifier: Apache-2.0
"""What the tests of commands share."""

import pytest

Capsys = pytest.CaptureFixture[str]


def error_line(code: int, capsys: Capsys) -> str:
    """The one line on stderr of a command that ended with the exit code of a user error."""
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1), error
    return error.rstrip("\n")
