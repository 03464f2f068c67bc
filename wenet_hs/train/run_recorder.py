# SPDX-License-Identifier: Apache-2.0
"""Writes the run record of a training while it runs."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from wenet_hs.errors import Stopped, WenetHsError, one_line
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

MAX_WARNINGS = 100
"""The newest ones are kept."""


class RunRecorder:
    """The record of a training in progress. Only rank 0 has one.

    Nothing is written before `begin`: a resume that is refused leaves the record of the run before as it is. As a
    context manager it collects the warnings of the training from the log, and writes how the training ended.
    """

    def __init__(self, model_dir: Path, record: RunRecord) -> None:
        """`record`: with the start or resume that is about to happen as its last one."""
        self._model_dir = model_dir
        self._record = record
        self._has_begun = False
        self._handler = _WarningHandler(self.warn)
        self._position = Progress()

    def follow(self, position: Progress) -> None:
        """Use this position, which the training changes, for the step of later warnings.

        The start that is recorded gets its step.
        """
        self._position = position
        last = self._record.last_start.model_copy(update={"step": position.step})
        self._record = self._record.model_copy(update={"starts": (*self._record.starts[:-1], last)})

    def begin(self) -> None:
        """Write the record from now on."""
        self._has_begun = True
        self._write()

    def preserve_earlier(self) -> None:
        """Write the record of the starts before this one, if only the train.yaml of an earlier version has it.

        That train.yaml is replaced by one without these facts.
        """
        if not (self._model_dir / RUN_FILE).is_file():
            earlier = self._record.model_copy(update={"starts": self._record.starts[:-1]})
            write_run(self._model_dir, earlier)

    def plan(self, steps: Steps, resources: Resources, trees: Mapping[str, str]) -> None:
        """Record how long the training is, what it needs, and the kinds of its trees."""
        self._change(steps=steps, resources=resources, trees=dict(trees))

    def advance(self, progress: RunProgress) -> None:
        """Record how far the training is."""
        self._change(progress=progress)

    def warn(self, code: str, text: str) -> None:
        """Record a warning; it is written with the next change, as the one of a log interval."""
        warning = RunWarning(code=code, step=self._position.step, text=text)
        warnings = (*self._record.warnings, warning)[-MAX_WARNINGS:]
        self._record = self._record.model_copy(update={"warnings": warnings})

    def confirm_end(self) -> None:
        """Record that the training had ended before; a kill may have prevented that it wrote this itself.

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
            self._change(end=End(state="trained", time=utc_now()))
            return
        with suppress(OSError):  # the disk may be full, which is the error then
            self._change(end=_end_of(error))

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
    """Gives each warning of the log to a function, with the code that its call states: `extra={"code": …}`."""

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            self._warn(getattr(record, "code", "general"), record.getMessage())
