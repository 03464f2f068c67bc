# SPDX-License-Identifier: Apache-2.0
"""User errors: exceptions whose message has one line per fault. Other exceptions are bugs.

A fault is what is wrong with the user's input. Its line names where it is, what was found, and what
to do.
"""

from collections.abc import Sequence
from pathlib import Path

_MAX_FAULTS = 10


class WenetHsError(Exception):
    """An error that the user can fix: a command prints its line, without a traceback.

    Its line is `where: found; to_do`. Several faults at once are one text of several lines, given
    as `where`.
    """

    exit_code = 2
    """Of the command that prints it."""

    def __init__(self, where: object, found: str = "", to_do: str = "") -> None:
        """
        Args:
            where: file, file:line, flag, key or utterance.
            found: what is wrong there.
            to_do: what the user can do.
        """
        super().__init__(where, found, to_do)  # all arguments: errors are sent between processes
        self.where, self.found, self.to_do = str(where), found, to_do

    def __str__(self) -> str:
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
        self.args = (where, found, to_do, exit_code)
        self.exit_code = exit_code


def list_names(names: Sequence[str], separator: str = ", ", *, most: int = 5) -> str:
    """The first names, at most `most`, and the number of the others, for a message of one line."""
    shown = separator.join(names[:most])
    return f"{shown}, and {len(names) - most:,} more" if len(names) > most else shown


def refuse_faults(path: Path | str, faults: Sequence[str]) -> None:
    """Raise DataError with the first ten faults of a file, one per line, if there are any."""
    if faults:
        more = (
            [f"{path}: and {len(faults) - _MAX_FAULTS} more faults"]
            if len(faults) > _MAX_FAULTS
            else []
        )
        raise DataError("\n".join([*faults[:_MAX_FAULTS], *more]))


def one_line(error: BaseException) -> str:
    """The text of an exception on one line of at most 120 characters, or its class if it has no
    text.
    """
    return " ".join(str(error).split())[:120] or type(error).__name__
