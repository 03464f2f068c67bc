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
"""So many warnings are recorded; of more the newest ones."""


class RunRecorder:
    """Changes and writes run.json while a training runs, on rank 0.

    Nothing is written before `begin`: a resume that is refused leaves the record of the earlier run
    as it is. As a context manager it collects the warnings that this process logs, and writes how
    the training ended. Processes that load data log warnings of their own, which are not collected.
    """

    def __init__(self, model_dir: Path, record: RunRecord) -> None:
        """`record`: its last start is the one that is about to happen."""
        self._model_dir = model_dir
        self._record = record
        self._has_begun = False
        self._handler = _WarningHandler(self.record_warning)
        self._position = Progress()
        self._has_failed = False
        """Whether the record could not be written at a log interval."""

    def use_position(self, position: Progress) -> None:
        """Take the step of progress and warnings from this position, which the training changes.

        Its step of now becomes that of the last start. Nothing is written yet.
        """
        self._position = position
        last_start = self._record.last_start.model_copy(update={"step": position.step})
        earlier_starts = self._record.starts[:-1]
        changes = {"starts": (*earlier_starts, last_start), "progress": self._progress_of_now()}
        self._record = self._record.model_copy(update=changes)

    def begin(self) -> None:
        """Write the record now, and after each later change."""
        self._has_begun = True
        self._write()

    def record_plan(self, steps: Steps, resources: Resources, trees: Mapping[str, str]) -> None:
        """Record how long the training is, what it needs, and the kinds of its trees."""
        self._change(steps=steps, resources=resources, trees=dict(trees))

    def record_progress(self, **changes: object) -> None:
        """Record how far the training is.

        A record that cannot be written is no reason to end the training. A warning is logged the
        first time.

        `changes`: fields of `RunProgress`; the others stay as they are.
        """
        try:
            self._change(progress=self._progress_of_now(**changes))
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                path = self._model_dir / RUN_FILE
                logger.warning("%s: cannot be written (%s)", path, error.strerror)

    def _progress_of_now(self, **changes: object) -> RunProgress:
        """The recorded progress with the present step, epoch and time, and with these changes."""
        position = {
            "step": self._position.step,
            "epoch": self._position.epoch,
            "seconds": self._position.seconds,
        }
        if self._record.progress is None:
            return RunProgress.model_validate(position | changes)
        return self._record.progress.model_copy(update=position | changes)

    def record_warning(self, code: str, text: str) -> None:
        """Record a warning at the present step; the next change of the record writes it."""
        warning = RunWarning(code=code, step=self._position.step, text=text)
        warnings = (*self._record.warnings, warning)[-MAX_WARNINGS:]
        self._record = self._record.model_copy(update={"warnings": warnings})

    def confirm_end(self) -> None:
        """Record that the training ended in an earlier run, if that run could not do it itself.

        It may have been killed right after it wrote `final.pt`. The start of this process is not
        recorded. Nothing is done if there is no record.
        """
        if not (self._model_dir / RUN_FILE).is_file():
            return
        record = read_run(self._model_dir)
        if record is not None and record.end is None:
            end = End(state="trained", time=utc_now())
            write_run(self._model_dir, record.model_copy(update={"end": end}))

    def __enter__(self) -> "RunRecorder":
        """Collect warnings from now on."""
        logging.getLogger("wenet_hs").addHandler(self._handler)
        return self

    def __exit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Record how the training ended, if it has begun: trained, or the error that ended it."""
        logging.getLogger("wenet_hs").removeHandler(self._handler)
        if not self._has_begun:
            return
        progress = self._progress_of_now()
        if error is None:
            self._change(end=End(state="trained", time=utc_now()), progress=progress)
            return
        # The disk may be full. That is the error which the user sees then, not this second one.
        with suppress(OSError):
            self._change(end=_end_of(error), progress=progress)

    def _change(self, **values: object) -> None:
        """Change fields of the record; write it if the training has begun."""
        self._record = self._record.model_copy(update=values)
        if self._has_begun:
            self._write()

    def _write(self) -> None:
        """Write the record to run.json."""
        write_run(self._model_dir, self._record)


def _end_of(error: BaseException) -> End:
    """How a training ended that raised this error: stopped by a signal, or failed, and why."""
    if isinstance(error, Stopped):
        return End(state="stopped", text=error.found, time=utc_now())
    if isinstance(error, WenetHsError):
        return End(state="failed", text=str(error), time=utc_now())
    if isinstance(error, Exception):
        text = f"{type(error).__name__}: {one_line(error)}"
        return End(state="failed", text=text, time=utc_now())
    # Such as KeyboardInterrupt: no fault, but a request to end.
    return End(state="stopped", text=type(error).__name__, time=utc_now())


class _WarningHandler(logging.Handler):
    """Gives the code and the text of each logged warning to a function.

    The call of the logger states the code: `extra={"code": …}`. Without it the code is `general`.
    """

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        """`warn`: called with code and text."""
        super().__init__(logging.WARNING)
        self._warn = warn

    def emit(self, record: logging.LogRecord) -> None:
        """Give a warning to the function; records of higher levels are ignored.

        If the text does not fit its values, the fault is printed and does not end the training, as
        in other handlers.
        """
        if record.levelno != logging.WARNING:
            return
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001  # what `logging` does
            self.handleError(record)
            return
        code = getattr(record, "code", "general")
        self._warn(code, text)
