# SPDX-License-Identifier: Apache-2.0
"""Show how far trainings are, until it is stopped: steps, loss, time left of all.

Example: wenet-hs progress exp

In a terminal every training has a live line, in a file one line per minute. What a training states
once is printed once: its resources, its expected duration, and each kind of warning. It reads the
run records (exp/NAME/run.json).

Recipes start it beside their trainings, with the model folder of each one, also of those that have
not begun. As long as a training runs, exp/progress.json has the time that is left of all, for the
page.
"""

import argparse
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.live import Live
from rich.text import Text

from wenet_hs.bin.main import check_at_least, main_of
from wenet_hs.runs.progress import (
    PROGRESS_FILE,
    ExperimentProgress,
    ShownTraining,
    describe_progress,
    estimate_seconds_left,
    find_model_folders,
    list_statements,
    read_trainings,
    write_progress,
)

INTERVAL_S = 60
"""Seconds between two lines of a training in a file."""
EARLIER_S = 2
"""Seconds by which the first training may have begun before this process."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `wenet-hs progress`."""
    add = parser.add_argument
    folders_help = "folder of an experiment, or model folders: all of a recipe"
    add("folders", type=Path, nargs="+", metavar="FOLDER", help=folders_help)
    add("--jobs", type=int, default=1, help="trainings at a time (default: 1)")


def run(args: argparse.Namespace) -> None:
    """Print the progress until SIGTERM or Ctrl-C: live in a terminal, as lines in a file."""
    check_at_least(args, 1, "jobs")
    signal.signal(signal.SIGTERM, _stop)
    model_dirs = list[Path]()
    for folder in args.folders:
        model_dirs += find_model_folders(folder)
    live = LiveProgress(model_dirs, jobs=args.jobs)
    try:
        if sys.stdout.isatty():
            _show_in_terminal(live)
        else:
            _show_in_file(live)
    finally:
        live.close()


class LiveProgress:
    """The progress of trainings, read again each second.

    `jobs` is the number of trainings at a time.
    """

    def __init__(self, model_dirs: Sequence[Path], *, jobs: int) -> None:
        self._model_dirs = model_dirs
        self._jobs = jobs
        self._began = time.time() - EARLIER_S
        self._statements = Statements()

    def update(self) -> list[str]:
        """Wait a second, read all run records, and print new statements.

        Renews progress.json if a training runs. Returns a line per running training.
        """
        time.sleep(1)
        trainings = self._read_and_print()
        num_trainings = len(self._model_dirs)
        seconds_left = estimate_seconds_left(
            trainings, jobs=self._jobs, num_trainings=num_trainings
        )
        if any(training.is_running for training in trainings):
            progress = ExperimentProgress(num_trainings=num_trainings, seconds_left=seconds_left)
            write_progress(self._folder, progress)
        return lines_of(trainings, seconds_left, num_trainings)

    def close(self) -> None:
        """Print the last statements, and remove progress.json.

        Trainings of less than a second have statements that `update` has not seen.
        """
        self._read_and_print()
        (self._folder / PROGRESS_FILE).unlink(missing_ok=True)

    @property
    def _folder(self) -> Path:
        """The folder of the experiment, which has the model folders."""
        return self._model_dirs[0].parent

    def _read_and_print(self) -> list[ShownTraining]:
        """Read all trainings, and print the new statements of those since this process began."""
        trainings = read_trainings(self._model_dirs, since=self._began)
        self._statements.print_new(training for training in trainings if training.is_recent)
        return trainings


def lines_of(
    trainings: Sequence[ShownTraining], seconds_left: float | None, num_trainings: int
) -> list[str]:
    """One line per running training, with the time that is left of all, if there are several.

    Args:
        seconds_left: of all trainings; None before it is known.
        num_trainings: also those that have not begun.
    """
    time_of_all = ""
    if seconds_left is not None and num_trainings > 1:
        time_of_all = f"; all {num_trainings} trainings: about {seconds_left / 60:.0f} min"
    lines = []
    for training in trainings:
        line = describe_progress(training)
        if line is None:  # it does not run
            continue
        if training.seconds_left is not None:
            line += time_of_all
        lines.append(line)
    return lines


class Statements:
    """Prints the statements of trainings, each once."""

    def __init__(self) -> None:
        self._printed: set[str] = set()

    def print_new(self, trainings: Iterable[ShownTraining]) -> None:
        """Print the statements that were not printed before, after the name of their training."""
        for training in trainings:
            for statement in list_statements(training):
                self._print_once(f"{training.name}: {statement}")

    def _print_once(self, line: str) -> None:
        """Print a line after the time of day, unless it was printed before."""
        if line not in self._printed:
            self._printed.add(line)
            print(f"{time.strftime('%T')} {line}", flush=True)


def _stop(number: int, frame: FrameType | None) -> None:
    """End the process at SIGTERM by SystemExit, so that the terminal is restored."""
    sys.exit(0)


def _show_in_terminal(live: LiveProgress) -> NoReturn:
    """Show the lines of `LiveProgress.update` at the bottom of the terminal, below statements."""
    with Live(transient=True, auto_refresh=False) as screen:
        while True:
            text = Text("\n".join(live.update()), overflow="ellipsis", no_wrap=True)
            screen.update(text, refresh=True)


def _show_in_file(live: LiveProgress) -> NoReturn:
    """Print a line per running training every INTERVAL_S."""
    last_printed = time.monotonic()
    while True:
        lines = live.update()
        if lines and time.monotonic() - last_printed >= INTERVAL_S:
            for line in lines:
                print(f"{time.strftime('%T')} {line}", flush=True)
            last_printed = time.monotonic()


if __name__ == "__main__":
    main_of(__name__)
