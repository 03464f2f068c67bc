# SPDX-License-Identifier: Apache-2.0
"""A user's faults. Each message is one line a fault: where, what was found, what to do. Anything else is our bug."""


class WenetHsError(Exception):
    """A fault that the user can mend; `bin/` prints it without a traceback and exits with `exit_code`."""

    exit_code = 2


class ConfigError(WenetHsError):
    """A YAML file, an override or a command-line value is wrong."""


class DataError(WenetHsError):
    """A corpus, a list, an audio file, a transcript or a unit table is wrong."""


class CheckpointError(WenetHsError):
    """A checkpoint or a model folder is damaged, missing or does not fit."""


class Stopped(WenetHsError):
    """No fault: a signal asked the command to end, and it did so in good order."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
