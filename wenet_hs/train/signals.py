# SPDX-License-Identifier: Apache-2.0
"""Signals that ask a training to end: SIGTERM (a scheduler, torchrun), SIGINT (Ctrl-C), SIGUSR1 (SLURM's warning).

The handler only records the signal. The training checks it after each step, saves a checkpoint without validation, and
ends with `Stopped`. A validation is interrupted, and the next run does it before its first step. So the resumed run
ends with the same bits as an uninterrupted one.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

SAME_REQUEST_SECONDS = 1.0
"""A launcher and its process group may both deliver one request; a later signal is a second request."""

_received: list[tuple[signal.Signals, float]] = []
"""The first signal that came, and its time. There is one list per process, as for signal handlers."""


def _record(number: int, frame: FrameType | None) -> None:
    """The handler. A second request ends the process at once, as the signal does without a handler."""
    if not _received:
        _received.append((signal.Signals(number), time.monotonic()))
    elif time.monotonic() - _received[0][1] > SAME_REQUEST_SECONDS:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


@contextmanager
def watch_signals() -> Iterator[None]:
    """Record the first of `SIGNALS` instead of ending; the earlier handlers are restored at the end.

    A signal that the parent ignored stays ignored. Python delivers signals to the main thread only: in another thread
    this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _received.clear()
    earlier = {number: signal.getsignal(number) for number in SIGNALS}
    watched = {number: handler for number, handler in earlier.items() if handler is not signal.SIG_IGN}
    try:
        for number in watched:
            signal.signal(number, _record)
        yield
    finally:
        for number, handler in watched.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python
        _received.clear()


def stop_requested() -> signal.Signals | None:
    """The signal that asks this process to end, if one came since `watch_signals()` began."""
    return _received[0][0] if _received else None
