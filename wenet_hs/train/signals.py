# SPDX-License-Identifier: Apache-2.0
"""Signals that ask a training to end: SIGTERM (a scheduler, torchrun), SIGINT (Ctrl-C), SIGUSR1 (SLURM's warning).

The handler only notes the signal. The loop looks at the end of each step, saves a checkpoint without validating, and
ends with `Stopped`; a validation is cut short, and made up for by the next run before its first step. So the run that
goes on ends with the bits of one that nobody disturbed.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from wenet_hs.errors import Stopped

__all__ = ["SIGNALS", "Stopped", "listening", "stop_requested", "stopped_after"]

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

SAME_REQUEST_SECONDS = 1.0
"""A launcher and the process group that it leads may both deliver one request; a later signal is a second request."""


class _Request:
    """The first signal that came, and when. One a process, as its handlers are."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self._time = 0.0

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler. A second request ends the process at once, as the signal does where nobody listens."""
        if self.number is None:
            self.number, self._time = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._time > SAME_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


_request = _Request()


@contextmanager
def listening() -> Iterator[None]:
    """Note the first of `SIGNALS` instead of ending by it; the earlier handlers come back at the end.

    A signal that the parent had ignored stays ignored. Python hands signals to the main thread alone: elsewhere this
    does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _request.number = None
    earlier = {number: signal.getsignal(number) for number in SIGNALS}
    heard = {number: handler for number, handler in earlier.items() if handler is not signal.SIG_IGN}
    try:
        for number in heard:
            signal.signal(number, _request.note)
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python
        _request.number = None


def stop_requested() -> signal.Signals | None:
    """The signal that asks this process to end, if one came since `listening()` began."""
    return _request.number


def stopped_after(step: int, checkpoint: str) -> Stopped:
    """What to raise when the checkpoint is written. Its exit code is 128 and the signal: 143, 130, 138.

    Where another rank was the one to be asked, this process ends as by SIGTERM.
    """
    number = stop_requested() or signal.SIGTERM
    return Stopped(
        f"{checkpoint}: stopped by {number.name} after step {step}, which is saved; run the same command to go on",
        exit_code=128 + number,
    )
