# SPDX-License-Identifier: Apache-2.0
"""`transcribe --stream`: segments of a pipe or of files, printed as they end; partial texts in a terminal."""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from io import BufferedReader
from pathlib import Path
from typing import cast

from wenet_hs.data.audio import read_audio_file, read_duration
from wenet_hs.data.samples import Samples
from wenet_hs.decode.stream import RecognitionStream, StreamedSegment
from wenet_hs.errors import DataError

_PIECE_S, _BLOCK_S = 0.1, 60.0  # of what is given to the recogniser, and of what is read from a file at a time


def print_stream(stream: RecognitionStream, path: Path, *, rate: int, mark: Mapping[str, bool] | None) -> None:
    """Recognise a file, or the pipe `-` of `rate`. Ctrl-C ends the pipe, not its last segment.

    mark: print JSON, with these fields; None: print text.

    Raises: DataError for a file that cannot be read, and a pipe that ends in the middle of a sample.
    """
    pieces = _read_pipe(rate) if path == Path("-") else _read_file(path)
    try:
        for piece, piece_rate in pieces:
            _print(path, stream.feed(piece, piece_rate), mark)
            _show(stream.partial)
    except KeyboardInterrupt:
        pass
    except ValueError as error:
        raise DataError(path, str(error), "give audio as --help describes it") from error
    _print(path, stream.finish(), mark)


def _read_pipe(rate: int) -> Iterator[tuple[bytes, float]]:
    """Whole samples, as soon as they arrive."""
    rest, pipe = b"", cast(BufferedReader, sys.stdin.buffer)
    while arrived := pipe.read1(2 * int(rate * _PIECE_S)):
        data = rest + arrived
        whole, rest = data[: len(data) // 2 * 2], data[len(data) // 2 * 2 :]
        yield whole, rate
    if rest:
        raise ValueError("the pipe ends in the middle of a sample of 16 bits")


def _read_file(path: Path) -> Iterator[tuple[Samples, float]]:
    begin_s, duration_s = 0.0, read_duration(path)
    while begin_s < duration_s:
        end_s = min(begin_s + _BLOCK_S, duration_s)
        samples, rate, _ = read_audio_file(path, start=begin_s, end=end_s)
        size = max(1, int(rate * _PIECE_S))
        yield from ((samples[first : first + size], rate) for first in range(0, len(samples), size))
        begin_s = end_s


def _show(partial: str) -> None:
    """The end of the partial text in the last line of a terminal."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        sys.stdout.write(f"\r\x1b[K{partial[-width:]}")
        sys.stdout.flush()


def _print(path: Path, segments: Sequence[StreamedSegment], mark: Mapping[str, bool] | None) -> None:
    if segments:
        _show("")
    for segment in segments:
        if mark is None:
            print(f"{segment.start:8.2f} {segment.end:8.2f}  {segment.text}", flush=True)
        else:
            print(json.dumps({"path": str(path), **asdict(segment), **mark}, ensure_ascii=False), flush=True)
