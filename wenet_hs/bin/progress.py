# SPDX-License-Identifier: Apache-2.0
"""Show how far the trainings of an experiment folder are, until it is stopped: steps, loss, time left of all.

Example: wenet-hs progress --jobs 2 --total 6 exp

In a terminal every training has a live line, in a file one line per minute. What a training states once is printed
once: its resources, its expected duration, and each kind of warning. Recipes start it beside their trainings. It reads
the run records (exp/NAME/run.json) that were written since it began, and writes exp/progress.json for the page.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from rich.live import Live
from rich.text import Text

from wenet_hs.bin.main import check_at_least, main_of
from wenet_hs.runs.progress import (
    PROGRESS_FILE,
    ExperimentProgress,
    ShownTraining,
    describe_progress,
    read_trainings,
    seconds_of_all,
    statements,
    write_progress,
)

INTERVAL_S = 60
"""Between two lines of a training in a file."""
EARLIER_S = 2
"""The first training may have begun before this process by so much."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", type=Path, metavar="EXP", help="folder with the model folder of each training")
    add("--jobs", type=int, default=1, help="trainings at a time (default: 1)")
    add("--total", type=int, default=1, help="number of trainings, also of those that have not begun (default: 1)")


def run(args: argparse.Namespace) -> None:
    """Print until SIGTERM."""
    check_at_least(args, 1, "jobs", "total")
    signal.signal(signal.SIGTERM, _stop)
    began = time.time() - EARLIER_S
    printed = Statements()

    def read_lines() -> list[str]:
        time.sleep(1)
        trainings = read_trainings(args.folder, since=began)
        printed.print_new(trainings)  # in a terminal above the live lines
        seconds_left = seconds_of_all(trainings, jobs=args.jobs, num_trainings=args.total)
        if trainings:
            progress = ExperimentProgress(num_trainings=args.total, seconds_left=seconds_left)
            write_progress(args.folder, progress)
        return lines_of(trainings, seconds_left, args.total)

    try:
        _show(read_lines)
    finally:
        printed.print_new(read_trainings(args.folder, since=began))  # also of trainings of less than a second
        (args.folder / PROGRESS_FILE).unlink(missing_ok=True)


def lines_of(trainings: Sequence[ShownTraining], seconds_left: float | None, num_trainings: int) -> list[str]:
    """One line per running training, with the time that is left of all.

    `seconds_left`: of all trainings; None before it is known.
    """
    lines = []
    for training in trainings:
        line = describe_progress(training)
        if line is None:
            continue
        if seconds_left is not None and training.seconds_left is not None and num_trainings > 1:
            line += f"; all {num_trainings} trainings: about {seconds_left / 60:.0f} min"
        lines.append(line)
    return lines


class Statements:
    """Prints the statements of trainings, each once."""

    def __init__(self) -> None:
        self._printed: set[str] = set()

    def print_new(self, trainings: Sequence[ShownTraining]) -> None:
        """Print those that were not printed before."""
        for training in trainings:
            for statement in statements(training):
                self._print_once(f"{training.name}: {statement}")

    def _print_once(self, line: str) -> None:
        if line not in self._printed:
            self._printed.add(line)
            print(f"{time.strftime('%T')} {line}", flush=True)


def _stop(number: int, frame: FrameType | None) -> None:
    """End in a way that restores the terminal."""
    sys.exit(0)


def _show(read_lines: Callable[[], list[str]]) -> None:
    """Print the lines without end."""
    if sys.stdout.isatty():
        with Live(transient=True, auto_refresh=False) as live:
            while True:
                text = Text("\n".join(read_lines()), overflow="ellipsis", no_wrap=True)
                live.update(text, refresh=True)
    last_printed = time.monotonic()
    while True:
        lines = read_lines()
        if lines and time.monotonic() - last_printed >= INTERVAL_S:
            for line in lines:
                print(f"{time.strftime('%T')} {line}", flush=True)
            last_printed = time.monotonic()


if __name__ == "__main__":
    main_of(__name__)
