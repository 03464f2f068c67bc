#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print the progress of the trainings of a recipe until it is stopped: step of total, loss, time left of all parts.

Reads the logs in a folder that have changed since it began. In a terminal every training has a live line, in a file one
line per minute. What a training states once is printed once: the resources that it needs, and its expected duration.

Example: python tools/progress.py --jobs 2 --total 6 exp
"""

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.live import Live
from rich.text import Text

INTERVAL_S = 60
END_BYTES = 65536
"""Of the begin and the end of a log, which are read every second."""
_ONCE = re.compile(r"(?:INFO|WARNING) ((?:resources|duration without validations): .*)\n")
_STEP = re.compile(
    r"step (\d+) of ((?:at most )?)(\d+) \| (loss [\d.]+|loss nan).*?(?:\| ([\d.]+) min left)?$", re.MULTILINE
)
_END = re.compile(r": trained( already .*)?$", re.MULTILINE)


@dataclass
class Training:
    """The state of a training by its log."""

    name: str
    step: int
    limit: str
    """`at most ` if a setting may end it before the last step."""
    total: int
    loss: str
    minutes: float | None
    """Time left; None if it is not known yet."""
    is_over: bool
    elapsed: float
    """Minutes since it began."""
    statements: list[str]
    """The lines that a training logs once."""


def read_log(path: Path, elapsed: float) -> Training:
    """The state of a training by the begin and the end of its log."""
    with path.open("rb") as file:
        statements = _ONCE.findall(file.read(END_BYTES).decode("utf-8", errors="replace"))
        file.seek(max(0, file.seek(0, os.SEEK_END) - END_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    found = _STEP.findall(text)
    step, limit, total, loss, minutes = found[-1] if found else ("0", "", "0", "", "")
    name = f"{path.parent.name}/{path.stem}"
    is_over = _END.search(text) is not None
    time_left = float(minutes) if minutes else None
    return Training(name, int(step), limit, int(total), loss, time_left, is_over, elapsed, statements)


def minutes_of_all(trainings: Sequence[Training], jobs: int, total: int) -> float | None:
    """The time until all of `total` trainings have ended, `jobs` at a time; None before one of them has a time.

    One that has not begun is expected to take as long as the longest one that runs.
    """
    running = [one for one in trainings if not one.is_over and one.minutes is not None]
    if not running:
        return None
    left = [one.minutes or 0.0 for one in running]
    whole = max((one.minutes or 0.0) + one.elapsed for one in running)
    waiting = total - len(running) - sum(one.is_over for one in trainings)
    return max(max(left), (sum(left) + waiting * whole) / jobs)


def lines_of(trainings: Sequence[Training], jobs: int, total: int) -> list[str]:
    """One line per running training, with the time that is left of all."""
    left = minutes_of_all(trainings, jobs, total)
    of_all = "" if left is None or total == 1 else f"; all {total} trainings: about {left:.0f} min"
    lines = []
    for one in trainings:
        if one.step and not one.is_over:
            time_left = "" if one.minutes is None else f" | {one.minutes:.0f} min left{of_all}"
            lines.append(f"{one.name}: step {one.step} of {one.limit}{one.total} | {one.loss}{time_left}")
    return lines


class Statements:
    """Prints the statements of trainings, each once."""

    def __init__(self) -> None:
        self._printed: set[str] = set()

    def print_new(self, trainings: Sequence[Training]) -> None:
        """Print those that were not printed before."""
        for line in [f"{one.name}: {statement}" for one in trainings for statement in one.statements]:
            if line not in self._printed:
                self._printed.add(line)
                print(f"{time.strftime('%T')} {line}", flush=True)


def stop(number: int, frame: FrameType | None) -> None:
    """End in a way that restores the terminal."""
    sys.exit(0)


def main() -> None:
    """Print until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with NAME.log of each training")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time (default: 1)")
    parser.add_argument("--total", type=int, default=1, help="number of trainings (default: 1)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    began = time.time() - 2  # the first log may be older than this process
    first_seen: dict[Path, float] = {}
    statements = Statements()

    def read_trainings() -> list[Training]:
        logs = sorted(path for path in args.folder.glob("*.log") if path.stat().st_mtime >= began)
        now = time.monotonic()
        return [read_log(path, (now - first_seen.setdefault(path, now)) / 60) for path in logs]

    def read_lines() -> list[str]:
        time.sleep(1)
        trainings = read_trainings()
        statements.print_new(trainings)  # in a terminal above the live lines
        return lines_of(trainings, args.jobs, args.total)

    try:
        show(read_lines)
    finally:
        statements.print_new(read_trainings())  # of trainings that took less than a second


def show(read_lines: Callable[[], list[str]]) -> None:
    """Print the lines without end."""
    if sys.stdout.isatty():
        with Live(transient=True, auto_refresh=False) as live:
            while True:
                live.update(Text("\n".join(read_lines()), overflow="ellipsis", no_wrap=True), refresh=True)
    printed = time.monotonic()
    while True:
        lines = read_lines()
        if lines and time.monotonic() - printed >= INTERVAL_S:
            print(*(f"{time.strftime('%T')} {line}" for line in lines), sep="\n", flush=True)
            printed = time.monotonic()


if __name__ == "__main__":
    main()
