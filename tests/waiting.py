# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition, and for the end of a process."""

import time
from collections.abc import Callable
from pathlib import Path


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether the condition becomes true in this time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def is_running(pid: int | str) -> bool:
    """Whether a process exists that is no zombie, from Linux's /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
