# SPDX-License-Identifier: Apache-2.0
"""`transcribe --stream`: recognition of a pipe or of files, with each segment printed as it ends.

In a terminal partial texts are shown too.
"""

import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Self, cast

from rich.cells import cell_len

from wenet_hs.data.audio import accept_missing_audio, iterate_blocks, mix_channels, read_duration
from wenet_hs.data.containers import SourceError
from wenet_hs.data.pipe import PIPE, read_pipe
from wenet_hs.data.samples import AnySamples
from wenet_hs.decode.stream import RecognitionStream, StreamedSegment
from wenet_hs.tree.errors import DataError

_PIECE_S = 0.1
"""Seconds of a file that the recogniser gets at a time."""
_BEGIN_OF_EMPTY_LINE = "\r\x1b[K"
"""Moves the cursor of a terminal to the begin of its line, and clears the line."""


def print_stream(
    stream: RecognitionStream,
    path: Path,
    *,
    rate: int | None,
    format_line: Callable[[StreamedSegment], str],
) -> None:
    """Recognise a file, or the pipe `-`, and print its segments.

    Ctrl-C ends the pipe: its last segment is still printed. In a file it raises KeyboardInterrupt
    at once.

    Args:
        rate: of raw samples in the pipe, in Hz; None: 16,000.
    Raises: DataError for a file or a pipe that cannot be read, after the segments before the fault
        are printed.
    """
    is_pipe = path == Path(PIPE)
    pieces = _read_standard_input(rate) if is_pipe else _read_file(path)
    try:
        for piece, piece_rate in pieces:
            _print_lines(map(format_line, stream.feed(piece, piece_rate)))
            _show_partial(stream.partial)
    except DataError:
        _print_lines(map(format_line, stream.finish()))
        raise
    except ValueError as error:  # the stream refuses samples far above full scale
        _print_lines(map(format_line, stream.finish()))
        raise DataError(path, f"{error}", "convert it") from error
    except KeyboardInterrupt:
        if not is_pipe:
            raise
    _print_lines(map(format_line, stream.finish()))


class _DelayedInterrupt:
    """A context in which Ctrl-C raises KeyboardInterrupt only inside of `allowed`.

    Elsewhere it would interrupt the encoder between two layers. A Ctrl-C at another time takes
    effect when `allowed` begins.
    """

    def __init__(self) -> None:
        self._is_allowed = False
        self._is_pending = False

    def __enter__(self) -> Self:
        self._previous_handler = signal.getsignal(signal.SIGINT)
        # a background job may ignore Ctrl-C
        if self._previous_handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous_handler)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """A context in which Ctrl-C, also an earlier one, raises KeyboardInterrupt."""
        self._is_allowed = True
        try:
            if self._is_pending:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_allowed = False

    def _handle(self, *_: object) -> None:
        if self._is_allowed:
            raise KeyboardInterrupt
        self._is_pending = True


def _read_standard_input(rate: int | None) -> Iterator[tuple[AnySamples | bytes, int]]:
    """Pieces of the audio in the pipe as they arrive, each with its sample rate in Hz.

    Ctrl-C has an effect while this waits for audio. Raises DataError without a standard input.
    """
    if sys.stdin is None:
        raise DataError(PIPE, "there is no standard input", "give a pipe or a file")
    standard_input = cast(BufferedReader, sys.stdin.buffer)
    with _DelayedInterrupt() as interrupt:

        def read(size: int) -> bytes:
            with interrupt.allowed():
                return standard_input.read1(size)

        yield from read_pipe(read, rate)


def _read_file(path: Path) -> Iterator[tuple[AnySamples, float]]:
    """Pieces of _PIECE_S of a file, mixed to one channel, each with its sample rate in Hz.

    Raises DataError at the end if the file has much less audio than its header states.
    """
    seconds_read = 0.0
    for block, rate in iterate_blocks(path):
        samples = mix_channels(block)
        piece_size = max(1, int(rate * _PIECE_S))
        for start in range(0, len(samples), piece_size):
            yield samples[start : start + piece_size], rate
        seconds_read += len(samples) / rate
    try:
        accept_missing_audio(seconds_read, read_duration(path))
    except SourceError as error:
        raise DataError(path, f"{error}", error.remedy) from error


def _show_partial(text: str) -> None:
    """Replace the last line of a terminal by the end of a partial text, as much as fits."""
    if not sys.stdout.isatty():
        return
    num_columns = shutil.get_terminal_size().columns
    while cell_len(text) >= num_columns:  # a full line would move the cursor to the next one
        text = text[1:]
    sys.stdout.write(f"{_BEGIN_OF_EMPTY_LINE}{text}")
    sys.stdout.flush()


def _print_lines(lines: Iterable[str]) -> None:
    """Print lines of segments, each in place of the partial text."""
    for line in lines:
        _show_partial("")
        print(line, flush=True)
