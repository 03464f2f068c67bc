# SPDX-License-Identifier: Apache-2.0
"""User errors: exceptions whose message has one line per fault. Other exceptions are bugs.

A fault is what is wrong with the user's input. Its line names where it is, what was found, and what
to do.
"""

from collections.abc import Sequence
from pathlib import Path

_MAX_FAULTS = 10
"""The most faults of one file that are printed."""
_MAX_LINE = 120
"""The most characters of another exception that are quoted."""


class WenetHsError(Exception):
    """An error that the user can fix: a command prints its line, without a traceback.

    Its line is `where: found; to_do`. Several faults at once are one text of several lines, given
    as `where`.
    """

    exit_code = 2
    """The exit code of the command that prints the error."""

    def __init__(self, where: object, found: str = "", to_do: str = "") -> None:
        """
        Args:
            where: file, file:line, flag, key or utterance.
            found: what is wrong there.
            to_do: what the user can do.
        """
        # pickle calls the class with these three when an error is sent to another process.
        super().__init__(where, found, to_do)
        self.where = str(where)
        self.found = found
        self.to_do = to_do

    def __str__(self) -> str:
        """The line `where: found; to_do`, without the parts that are empty."""
        located = f"{self.where}: {self.found}" if self.found else self.where
        return f"{located}; {self.to_do}" if self.to_do else located


class ConfigError(WenetHsError):
    """A setting or an argument is wrong: in a YAML file, on the command line or in a call."""


class DataError(WenetHsError):
    """Data are wrong: a tree, a corpus, an audio file, a transcript or a unit table."""


class CheckpointError(WenetHsError):
    """A checkpoint or a model folder is damaged, missing or does not fit."""


class Stopped(WenetHsError):
    """Not an error: a signal asked the command to end, and it saved its work."""

    def __init__(self, where: object, found: str, to_do: str, exit_code: int) -> None:
        super().__init__(where, found, to_do)
        # pickle calls the class with these four when an error is sent to another process.
        self.args = (where, found, to_do, exit_code)
        self.exit_code = exit_code


def list_names(names: Sequence[str], separator: str = ", ", *, most: int = 5) -> str:
    """The names in one line, for a message: `a, b, c`.

    If there are more than `most`, it has the first ones and the number of the others:
    `a, b, and 1,234 more`.
    """
    text = separator.join(names[:most])
    num_others = len(names) - most
    return f"{text}, and {num_others:,} more" if num_others > 0 else text


def refuse_faults(path: Path | str, faults: Sequence[str]) -> None:
    """Raise DataError with the faults of a file, if there are any.

    Each fault is one line that names its place. After the first ten lines, a last line that begins
    with `path` says how many more there are.
    """
    if not faults:
        return
    lines = list(faults[:_MAX_FAULTS])
    num_others = len(faults) - _MAX_FAULTS
    if num_others > 0:
        lines.append(f"{path}: and {num_others} more faults")
    raise DataError("\n".join(lines))


def one_line(error: BaseException) -> str:
    """The text of an exception on one line of at most 120 characters, or the name of its class."""
    text = " ".join(str(error).split())
    return text[:_MAX_LINE] or type(error).__name__
