# SPDX-License-Identifier: Apache-2.0
"""Writes the run record of a training while it runs."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from wenet_hs.runs.record import (
    RUN_FILE,
    End,
    Resources,
    RunProgress,
    RunRecord,
    RunWarning,
    Steps,
    read_run,
    utc_now,
    write_run,
)
from wenet_hs.train.state import Progress
from wenet_hs.tree.errors import Stopped, WenetHsError, one_line

logger = logging.getLogger(__name__)

MAX_WARNINGS = 100
"""The newest ones are kept."""


class RunRecorder:
    """The record of a training in progress. Only rank 0 has one.

    Nothing is written before `begin`: a resume that is refused leaves the record of the run before
    as it is. As a context manager it collects the warnings that this process logs, and writes how
    the training ended. Processes that load data log warnings of their own, which are not collected.
    """

    def __init__(self, model_dir: Path, record: RunRecord) -> None:
        """`record`: with the start or resume that is about to happen as its last one."""
        self._model_dir = model_dir
        self._record = record
        self._has_begun = False
        self._handler = _WarningHandler(self.record_warning)
        self._position = Progress()
        self._has_failed = False
        """Whether the record could not be written at a log interval."""

    def use_position(self, position: Progress) -> None:
        """Use this position, which the training changes, for progress and warnings.

        The start that is recorded gets its step.
        """
        self._position = position
        last = self._record.last_start.model_copy(update={"step": position.step})
        starts = (*self._record.starts[:-1], last)
        self._record = self._record.model_copy(
            update={"starts": starts, "progress": self._progress()}
        )

    def begin(self) -> None:
        """Write the record from now on."""
        self._has_begun = True
        self._write()

    def record_plan(self, steps: Steps, resources: Resources, trees: Mapping[str, str]) -> None:
        """Record how long the training is, what it needs, and the kinds of its trees."""
        self._change(steps=steps, resources=resources, trees=dict(trees))

    def record_progress(self, **changes: object) -> None:
        """Record how far the training is.

        A record that cannot be written is no reason to end the training: one warning says so.

        Args:
            changes: fields of `RunProgress`; what does not change stays as it was.
        """
        try:
            self._change(progress=self._progress(**changes))
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                logger.warning(
                    "%s: cannot be written (%s)", self._model_dir / RUN_FILE, error.strerror
                )

    def _progress(self, **changes: object) -> RunProgress:
        """The recorded progress at the position of now."""
        position = {
            "step": self._position.step,
            "epoch": self._position.epoch,
            "seconds": self._position.seconds,
        }
        if self._record.progress is None:
            return RunProgress.model_validate(position | changes)
        return self._record.progress.model_copy(update=position | changes)

    def record_warning(self, code: str, text: str) -> None:
        """Record a warning; it is written with the next change, as the one of a log interval."""
        warning = RunWarning(code=code, step=self._position.step, text=text)
        warnings = (*self._record.warnings, warning)[-MAX_WARNINGS:]
        self._record = self._record.model_copy(update={"warnings": warnings})

    def confirm_end(self) -> None:
        """Record that the training had ended before; a kill may have prevented that it wrote this
        itself.

        This process then does not count as a start.
        """
        if not (self._model_dir / RUN_FILE).is_file():
            return
        record = read_run(self._model_dir)
        if record is not None and record.end is None:
            end = End(state="trained", time=utc_now())
            write_run(self._model_dir, record.model_copy(update={"end": end}))

    def __enter__(self) -> "RunRecorder":
        logging.getLogger("wenet_hs").addHandler(self._handler)
        return self

    def __exit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        logging.getLogger("wenet_hs").removeHandler(self._handler)
        if not self._has_begun:
            return
        if error is None:
            self._change(end=End(state="trained", time=utc_now()), progress=self._progress())
            return
        with suppress(OSError):  # the disk may be full, which is the error then
            self._change(end=_end_of(error), progress=self._progress())

    def _change(self, **values: object) -> None:
        self._record = self._record.model_copy(update=values)
        if self._has_begun:
            self._write()

    def _write(self) -> None:
        write_run(self._model_dir, self._record)


def _end_of(error: BaseException) -> End:
    """How a training ended that raised this error."""
    if isinstance(error, Stopped):
        return End(state="stopped", text=error.found, time=utc_now())
    if isinstance(error, WenetHsError):
        return End(state="failed", text=str(error), time=utc_now())
    if isinstance(error, Exception):
        text = f"{type(error).__name__}: {one_line(error)}"
        return End(state="failed", text=text, time=utc_now())
    return End(state="stopped", text=type(error).__name__, time=utc_now())


class _WarningHandler(logging.Handler):
    """Gives each warning of the log to a function, with the code that its call states:
    `extra={"code": …}`.
    """

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn

    def emit(self, record: logging.LogRecord) -> None:
        """Errors in the call of the logger are printed and do not end the training, as in other
        handlers.
        """
        if record.levelno != logging.WARNING:
            return
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001  # what `logging` does
            self.handleError(record)
            return
        self._warn(getattr(record, "code", "general"), text)
