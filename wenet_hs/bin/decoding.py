# SPDX-License-Identifier: Apache-2.0
"""What `recognize`, `transcribe` and `align` share: flags of the searches, the flag --batch_size, the progress bar."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.decode.modes import MODES
from wenet_hs.decode.segments import DEFAULT_MAX_SEGMENT_S, check_max_segment
from wenet_hs.errors import ConfigError

MODES_HELP = "; ".join(f"{name}: {mode.help}" for name, mode in MODES.items())


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag per field of DecodeOptions, and the other flags."""
    for option in fields(DecodeOptions):
        flag, help_text = f"--{option.name}", option.metadata["help"]
        if option.default is False:
            parser.add_argument(flag, action="store_true", help=help_text)
        elif option.default is None:
            parser.add_argument(flag, type=int, help=help_text)
        else:
            shown = f"{help_text} (default: {option.default:g})"
            parser.add_argument(flag, type=type(option.default), default=option.default, help=shown)
    parser.add_argument("--lm", type=Path, metavar="FILE.arpa", help="n-gram language model over units")
    parser.add_argument(
        "--max_segment_s",
        type=float,
        default=DEFAULT_MAX_SEGMENT_S,
        help="longer audio is cut at pauses, decoded in segments, and the texts are joined; 0: never (default: "
        f"{DEFAULT_MAX_SEGMENT_S:g})",
    )


def search_options(args: argparse.Namespace) -> DecodeOptions:
    """The options of the searches. Raises ConfigError if a value is out of range."""
    check_max_segment(args.max_segment_s)
    try:
        return DecodeOptions(**{option.name: getattr(args, option.name) for option in fields(DecodeOptions)})
    except ValueError as error:
        raise ConfigError(f"--{error}") from error


def add_batch_size(parser: argparse.ArgumentParser) -> None:
    """Add the flag --batch_size."""
    help_text = "maximum number of utterances per batch; changes no text (default: 16)"
    parser.add_argument("--batch_size", type=int, default=16, help=help_text)


def check_batch_size(args: argparse.Namespace) -> None:
    """Raise ConfigError if the batch size is not positive."""
    if args.batch_size < 1:
        raise ConfigError(f"--batch_size {args.batch_size}: must be at least 1")


@contextmanager
def progress_bar(name: str, *, is_shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr if that is a terminal: a function of the newly finished and the total number."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    disable = not (is_shown and sys.stderr.isatty())
    with Progress(*columns, console=Console(stderr=True), disable=disable) as progress:
        task = progress.add_task(name)
        yield lambda count, total: progress.update(task, advance=count, total=total)
