# SPDX-License-Identifier: Apache-2.0
"""`transcribe --stream`: segments of a pipe or of files, printed as they end.

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

_PIECE_S = 0.1  # of what is given to the recogniser at a time


def print_stream(
    stream: RecognitionStream,
    path: Path,
    *,
    rate: int | None,
    format_line: Callable[[StreamedSegment], str],
) -> None:
    """Recognise a file, or the pipe `-`. Ctrl-C ends the pipe, not its last segment.

    Args:
        rate: of raw samples in the pipe; None: 16,000.
    Raises: DataError for a file or a pipe that cannot be read; what was read before is printed.
    """
    is_pipe = path == Path(PIPE)
    pieces = _read_standard_input(rate) if is_pipe else _read_file(path)
    try:
        for piece, piece_rate in pieces:
            _print_lines(map(format_line, stream.feed(piece, piece_rate)))
            _show(stream.partial)
    except DataError:
        _print_lines(map(format_line, stream.finish()))
        raise
    except ValueError as error:  # of samples far above full scale
        _print_lines(map(format_line, stream.finish()))
        raise DataError(path, f"{error}", "convert it") from error
    except KeyboardInterrupt:
        if not is_pipe:
            raise
    _print_lines(map(format_line, stream.finish()))


class _DelayedInterrupt:
    """Ctrl-C has an effect only inside of `allowed`: elsewhere it would interrupt the encoder
    between two layers.
    """

    def __init__(self) -> None:
        self._is_allowed = self._is_pending = False

    def _handle(self, *_: object) -> None:
        if self._is_allowed:
            raise KeyboardInterrupt
        self._is_pending = True

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is signal.default_int_handler:  # a background job may ignore it
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        self._is_allowed = True
        try:
            if self._is_pending:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_allowed = False


def _read_standard_input(rate: int | None) -> Iterator[tuple[AnySamples | bytes, int]]:
    """The audio of the pipe, as soon as it arrives; Ctrl-C has an effect while this waits for it."""
    if sys.stdin is None:
        raise DataError(PIPE, "there is no standard input", "give a pipe or a file")
    standard_input = cast(BufferedReader, sys.stdin.buffer)
    with _DelayedInterrupt() as interrupt:

        def read(size: int) -> bytes:
            with interrupt.allowed():
                return standard_input.read1(size)

        yield from read_pipe(read, rate)


def _read_file(path: Path) -> Iterator[tuple[AnySamples, float]]:
    present_s = 0.0
    for block, rate in iterate_blocks(path):
        samples, size = mix_channels(block), max(1, int(rate * _PIECE_S))
        yield from ((samples[first : first + size], rate) for first in range(0, len(samples), size))
        present_s += len(samples) / rate
    try:
        accept_missing_audio(present_s, read_duration(path))
    except SourceError as error:
        raise DataError(path, f"{error}", error.remedy) from error


def _show(partial: str) -> None:
    """The end of the partial text in the last line of a terminal."""
    if sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns
        while cell_len(partial) >= columns:
            partial = partial[1:]
        sys.stdout.write(f"\r\x1b[K{partial}")
        sys.stdout.flush()


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        _show("")
        print(line, flush=True)
