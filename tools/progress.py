#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print the progress of the trainings of a recipe until it is stopped: step of total, loss, time left of all parts.

Reads DIR.log of each training. In a terminal every training has a live line, in a file one line per minute.

Example: python tools/progress.py --jobs 2 --config conf/own.yaml --first exp/base --second exp/softmax exp/hsoftmax
"""

import argparse
import logging
import math
import os
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.live import Live
from rich.text import Text

from wenet_hs.config.load import load_config
from wenet_hs.errors import ConfigError

INTERVAL_S = 60
END_BYTES = 65536
"""Of a log, which are read every second."""
_STEP = re.compile(
    r"step (\d+) of (?:at most )?(\d+) \| (loss [\d.]+|loss nan).*?(?:\| ([\d.]+) min left)?$", re.MULTILINE
)
_END = re.compile(r": trained( already .*)?$", re.MULTILINE)


@dataclass
class Part:
    """One training: a first part, or the second part of one head and seed."""

    name: str
    step: int
    total: int
    loss: str
    minutes: float | None
    """Time left; None if it is not known yet."""
    is_over: bool
    max_minutes: float
    """Setting of this name; infinity without it."""


def read_part(folder: str, planned: int, max_minutes: float = math.inf) -> Part:
    """The state of the training in `folder` by the end of its log; `planned`: its steps before it has begun."""
    text = ""
    with suppress(FileNotFoundError), Path(f"{folder}.log").open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - END_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    found = _STEP.findall(text)
    step, total, loss, minutes = found[-1] if found else ("0", str(planned), "", "")
    is_over = _END.search(text) is not None
    return Part(folder, int(step), int(total), loss, float(minutes) if minutes else None, is_over, max_minutes)


def minutes_of_all(phases: list[list[Part]], jobs: int) -> float | None:
    """The time until all parts have ended; None before one of them has a time.

    `phases`: parts that begin when all of the phase before have ended, `jobs` of them at a time. A part that has not
    begun is expected to take its `max_minutes` or, without that, to be as fast per step as the one before it.
    """
    per_step, total = None, 0.0
    for phase in phases:
        left = []
        for part in phase:
            if part.minutes is not None and part.total > part.step:
                per_step = part.minutes / (part.total - part.step)
            if not part.is_over:
                is_limited = part.minutes is None and part.max_minutes < math.inf
                left.append(part.max_minutes if is_limited else (per_step or 0.0) * (part.total - part.step))
        total += max(max(left, default=0.0), sum(left) / jobs)
    return None if per_step is None else total


def lines_of(phases: list[list[Part]], jobs: int) -> list[str]:
    """One line per running training, with the time that is left of all parts."""
    parts = [part for phase in phases for part in phase]
    left = minutes_of_all(phases, jobs)
    of_all = "" if left is None or len(parts) == 1 else f"; all {len(parts)} trainings: about {left:.0f} min"
    lines = []
    for part in parts:
        if part.step and not part.is_over:
            time_left = "" if part.minutes is None else f" | {part.minutes:.0f} min left{of_all}"
            name = "/".join(Path(part.name).parts[-2:])
            limit = "at most " if part.max_minutes < math.inf else ""
            lines.append(f"{name}: step {part.step} of {limit}{part.total} | {part.loss}{time_left}")
    return lines


def planned_end(config: Path, settings: str) -> tuple[int, float]:
    """`total_steps` and `max_minutes` with the settings for --override_config; without them 0 and infinity."""
    try:
        loaded = load_config(config, settings.split())
    except ConfigError:  # the training itself prints what is wrong
        return 0, math.inf
    return loaded.scheduler_conf.total_steps or 0, loaded.max_minutes or math.inf


def stop(number: int, frame: FrameType | None) -> None:
    """End in a way that restores the terminal."""
    sys.exit(0)


def main() -> None:
    """Print until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time (default: 1)")
    parser.add_argument("--config", type=Path, required=True, help="YAML of the trainings")
    for name in ("first", "second"):
        parser.add_argument(f"--{name}", nargs="*", default=[], metavar="DIR", help=f"the trainings of the {name} part")
        parser.add_argument(f"--{name}_settings", default="", help="their settings for --override_config")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    settings = (args.first_settings, args.second_settings)
    logging.disable()  # the trainings print the same warnings
    limits = [planned_end(args.config, one) for one in settings]

    def read_lines() -> list[str]:
        time.sleep(1)
        phases = zip((args.first, args.second), limits, strict=True)
        return lines_of([[read_part(name, *limit) for name in names] for names, limit in phases], args.jobs)

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
