# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that writes down every error line of the program while the tests run.

`pytest -p error_lines`, with this folder in PYTHONPATH and the name of a file in
WENET_HS_ERROR_LINES. The file gets the text of each WenetHsError that is made, and what a command
printed on stderr before it ended with exit code 2. Processes that a test forks write too; programs
that a test starts anew do not.
"""

import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

import wenet_program

FILE = "WENET_HS_ERROR_LINES"
USER_ERROR = 2


class _LineFile:
    """The file, open from the beginning: some tests allow no more open files."""

    def __init__(self) -> None:
        self._descriptor = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write_lines(self, text: str) -> None:
        """Append the lines, each by one call, because forked processes write the file too."""
        for line in text.splitlines():
            if line.strip():
                os.write(self._descriptor, f"{line}\n".encode("utf-8", "backslashreplace"))


def pytest_configure() -> None:
    """Wrap the base class of all user errors, and the function that runs a command."""
    file = _LineFile()
    internals = wenet_program.internals()
    _wrap_error_class(internals.user_error_class(), file)
    main = internals.load_commands()
    main.run_command = _recorded_command(main.run_command, file)


def _wrap_error_class(error_class: type[Exception], file: _LineFile) -> None:
    """Let every new error write its lines. Subclasses call this `__init__` too."""
    initialise = error_class.__init__

    def initialise_and_record(error: Exception, *arguments: Any, **named: Any) -> None:
        initialise(error, *arguments, **named)
        file.write_lines(str(error))

    error_class.__init__ = initialise_and_record  # type: ignore[assignment,method-assign]


def _recorded_command(run_command: Callable[..., int], file: _LineFile) -> Callable[..., int]:
    """The function that also writes what a command printed that ended with a user error."""

    def run_and_record(*arguments: Any, **named: Any) -> int:
        with _CopyOfStderr() as copy:
            try:
                exit_code = run_command(*arguments, **named)
            except SystemExit as end:
                if end.code == USER_ERROR:
                    file.write_lines(copy.text())
                raise
        if exit_code == USER_ERROR:
            file.write_lines(copy.text())
        return exit_code

    return run_and_record


class _CopyOfStderr:
    """While it is entered, sys.stderr keeps a copy of what is written to it."""

    def __init__(self) -> None:
        self._stream: Any = None
        self._parts: list[str] = []

    def __enter__(self) -> "_CopyOfStderr":
        self._stream = sys.stderr
        sys.stderr = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if sys.stderr is self:
            sys.stderr = self._stream

    def write(self, text: str) -> int:
        """Write the text, and keep it."""
        self._parts.append(text)
        written: int = self._stream.write(text)
        return written

    def text(self) -> str:
        """All that was written."""
        return "".join(self._parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
