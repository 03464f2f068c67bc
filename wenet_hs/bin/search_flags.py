# SPDX-License-Identifier: Apache-2.0
"""Flags and the progress bar that `recognize`, `transcribe` and `align` share."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from wenet_hs.base.extensions import is_known_name, known_names, warn_about_clash
from wenet_hs.base.options import add_options, read_options
from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.decode.segments import DEFAULT_MAX_SEGMENT_S, check_max_segment
from wenet_hs.model.modes import MODES

MODES_HELP = "; ".join(f"{name}: {mode.help}" for name, mode in MODES.items())


class ModeNames:
    """The values of a flag that names modes, as `choices` of argparse.

    They are the modes of wenet_hs and of installed packages, and values that stand for modes, such
    as `auto`. Packages are asked only for a name that is not of wenet_hs.
    """

    def __init__(self, *other_values: str) -> None:
        self._other_values = other_values

    def __contains__(self, name: object) -> bool:
        """Whether the flag accepts the name.

        Logs a warning for a package with a mode of a name that wenet_hs has. Raises ConfigError
        for a mode of a package that cannot be used.
        """
        if name in self._other_values:
            warn_about_clash("mode", str(name))
            return True
        return is_known_name("mode", MODES, str(name))

    def __iter__(self) -> Iterator[str]:
        """All values, in the order of the message about a wrong one: packages at the end."""
        return iter(known_names("mode", [*MODES, *self._other_values]))


def add_batch_size(parser: argparse.ArgumentParser) -> None:
    """Declare --batch_size."""
    help_text = "maximum number of utterances per batch; changes no text (default: 16)"
    parser.add_argument("--batch_size", type=int, default=16, help=help_text)


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare a flag per field of DecodeOptions, and the other flags of the searches."""
    add_options(parser, DecodeOptions)
    lm_help = (
        "language model: n-gram model over units, or folder of `lm train`; one over words "
        "rescores n-best lists"
    )
    parser.add_argument("--lm", type=Path, metavar="FILE.arpa|DIR", help=lm_help)
    segment_help = (
        "longer audio is cut at pauses, decoded in segments, and the texts joined; "
        "from 4 on, or 0: never "
        f"(default: {DEFAULT_MAX_SEGMENT_S:g}; pretrained encoders: at most 30)"
    )
    parser.add_argument(
        "--max_segment_s", type=float, default=DEFAULT_MAX_SEGMENT_S, help=segment_help
    )


def search_options(args: argparse.Namespace) -> DecodeOptions:
    """The options of the searches. Raises ConfigError if a value is out of range."""
    check_max_segment(args.max_segment_s)
    return read_options(args, DecodeOptions)


@contextmanager
def progress_bar(name: str, *, is_shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr, if that is a terminal, as long as the context is open.

    Gives a function to call with the number of items that were finished since the last call, and
    with the number of all items.
    """
    has_terminal = sys.stderr.isatty()
    is_disabled = not is_shown or not has_terminal
    with Progress(console=Console(stderr=True), disable=is_disabled) as progress:
        task = progress.add_task(name)

        def advance(num_finished: int, num_items: int) -> None:
            progress.update(task, advance=num_finished, total=num_items)

        yield advance
