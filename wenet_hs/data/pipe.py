# SPDX-License-Identifier: Apache-2.0
"""Audio that arrives in a pipe: raw samples or a WAV. Other formats are refused by their names.

A pipe may be endless, so samples are not kept after they were returned. A read waits only for the
bytes that are needed.

Dimension key: N samples.
"""

import codecs
import io
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import soundfile

from wenet_hs.data.audio import Samples, accept_missing_audio, mix_channels
from wenet_hs.data.containers import (
    CONVERT,
    SourceError,
    WavFormat,
    is_unknown_size,
    parse_wav_format,
)
from wenet_hs.data.samples import RATES
from wenet_hs.data.signatures import WAV, find_pipe_format, is_undecided
from wenet_hs.tree.errors import DataError

logger = logging.getLogger(__name__)

PIPE = "-"
"""The name of the pipe on a command line."""
RAW_RATE = 16_000
"""Samples per second of raw samples, if nothing else is given."""

Read = Callable[[int], bytes]
"""Number of bytes → up to so many bytes of a pipe, as soon as there is one; none at its end."""

_PIECE_S = 0.1  # of audio that is returned at a time
_RAW_FRAME = 2  # bytes: 16 bits, mono
_READ_SIZE = 4096  # bytes that are read at a time, other than samples
_TEXT_SIZE = 32  # bytes at the beginning that tell text from samples
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
_MAX_CHUNKS = 1000  # of a WAV before its samples: a pipe of zeros has no end
_MAX_DESCRIPTION = 1 << 16  # bytes of a chunk that describes the samples
_MAX_CHANNELS = 64
_GIVE_BY_NAME = "give the file by its name"
_RESTORE = "restore the file, or leave it out"
_MAX_PADDING_S = 0.1  # after the samples of a WAV
_CHUNK_HEADER_SIZE = 8  # bytes of the name and the size before the content of a chunk
_CHUNK_NAME = re.compile(rb"\0?[A-Za-z][A-Za-z0-9_ ]{2,3}")
"""Four bytes, the first of which may be a zero: the padding of a chunk of odd size."""
_SUBTYPES = {
    (1, 8): "PCM_U8",
    (1, 16): "PCM_16",
    (1, 24): "PCM_24",
    (1, 32): "PCM_32",
    (3, 32): "FLOAT",
    (3, 64): "DOUBLE",
    (6, 8): "ALAW",
    (7, 8): "ULAW",
}
"""Codec of a WAV and bits per sample → libsndfile's name of the encoding."""


def read_pipe(read: Read, raw_rate: int | None) -> Iterator[tuple[Samples | bytes, int]]:
    """The audio of a pipe in pieces, as it arrives, each with its rate in Hz.

    Raw samples are returned as bytes: 16 bits, little-endian, mono. A WAV is returned as samples
    (N,), mixed as those of a file. A part of a sample at the end is left out with a warning.

    Args:
        raw_rate: samples per second of raw samples; None: 16,000.
    Raises: DataError for an empty pipe, for text and other formats, for a WAV of another rate than
        `raw_rate`, and for a WAV that is damaged, cut off, joined to another one, or of an encoding
        that is unknown here.
    """
    pipe = _Pipe(read)
    head = _peek_beginning(pipe)
    audio_format = find_pipe_format(head)
    if audio_format is None:
        _check_raw_samples(head)
        yield from _read_raw(pipe, raw_rate or RAW_RATE)
        return
    if audio_format.name != WAV:
        found = f"{audio_format.name} in the pipe, which takes raw samples or WAV"
        remedy = _how_to_decode(raw_rate) if audio_format.is_pipeable else _GIVE_BY_NAME
        raise DataError(PIPE, found, remedy)
    header = _read_header(pipe)
    if raw_rate not in (None, header.rate):
        found = f"the WAV in the pipe has {header.rate} Hz"
        raise DataError(f"--rate {raw_rate}", found, "leave --rate out")
    yield from _read_wav(pipe, header)


class _Pipe:
    """A pipe whose next bytes can be read without taking them."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._next = b""

    def peek(self, size: int) -> bytes:
        """The next bytes, which remain in the pipe: at least `size`, fewer only at the end."""
        while len(self._next) < size:
            arrived = self._read(max(size - len(self._next), _READ_SIZE))
            if not arrived:
                break
            self._next += arrived
        return self._next

    def take(self, size: int) -> bytes:
        """The next `size` bytes; fewer at the end."""
        taken = self.peek(size)[:size]
        self._next = self._next[size:]
        return taken

    def take_available(self, size: int) -> bytes:
        """Up to `size` bytes, as soon as there is one; none at the end."""
        if not self._next:
            return self._read(size)
        return self.take(min(size, len(self._next)))

    def skip(self, size: int) -> None:
        """Take `size` bytes without keeping them; fewer at the end."""
        num_left = size
        while num_left > 0:
            taken = self.take_available(min(num_left, _READ_SIZE))
            if not taken:
                break
            num_left -= len(taken)

    def skip_all(self) -> None:
        """Take all bytes without keeping them, so that the program that writes them can end."""
        while self.take_available(_READ_SIZE):
            pass


def _peek_beginning(pipe: _Pipe) -> bytes:
    """As many bytes as are needed to tell what is in the pipe; all bytes of a shorter pipe.

    They remain in the pipe.
    """
    head = pipe.peek(1)
    while is_undecided(head) or _may_be_text(head):
        longer = pipe.peek(len(head) + 1)
        if len(longer) == len(head):  # the pipe has ended
            break
        head = longer
    return head


def _may_be_text(head: bytes) -> bool:
    """Whether these bytes are text, but too few to exclude samples."""
    return len(head) < _TEXT_SIZE and _is_text(head)


def _is_text(head: bytes) -> bool:
    """Whether bytes are UTF-8 without control characters; the last character may be incomplete.

    Of 10^11 pieces of loud noise of 32 bytes one looks like text. Quiet samples contain zeros or
    bytes of negative numbers, which text does not contain.
    """
    if _CONTROL.search(head):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _check_raw_samples(head: bytes) -> None:
    """Raises DataError for a pipe that is empty or begins with text."""
    if not head:
        raise DataError(PIPE, "empty: no audio arrived", "check the program that writes the audio")
    if _is_text(head[:_TEXT_SIZE]):
        found = "text in the pipe, which takes raw samples or WAV"
        raise DataError(PIPE, found, "give the recording")


def _how_to_decode(raw_rate: int | None) -> str:
    """What to do with a format that is not read from a pipe. raw_rate: see `read_pipe`."""
    command = f"ffmpeg -i - -f s16le -ar {raw_rate or RAW_RATE} -ac 1 -"
    return f"{_GIVE_BY_NAME}, or put `{command}` before this command"


def _read_whole_frames(
    pipe: _Pipe,
    *,
    frame_size: int,
    rate: int,
    num_bytes: int | None,
) -> Iterator[bytes]:
    """Pieces of whole frames as soon as they arrive. A part of a frame at the end is left out.

    Args:
        frame_size: bytes of a frame, which has one sample of each channel.
        rate: frames per second.
        num_bytes: bytes of all frames; None: they end with the pipe.
    """
    frames_per_piece = max(1, int(rate * _PIECE_S))  # one at rates below 10 Hz
    piece_size = frame_size * frames_per_piece
    rest = b""  # the part of a frame that has arrived
    num_read = 0
    while num_bytes is None or num_read < num_bytes:
        num_wanted = piece_size
        if num_bytes is not None:
            num_wanted = min(piece_size, num_bytes - num_read)
        arrived = pipe.take_available(num_wanted)
        if not arrived:
            break
        num_read += len(arrived)
        available = rest + arrived
        whole_size = len(available) // frame_size * frame_size
        rest = available[whole_size:]
        if whole_size:
            yield available[:whole_size]
    if rest:
        _warn_about_rest(len(rest), frame_size)


def _warn_about_rest(num_bytes: int, frame_size: int) -> None:
    """Warn that the last bytes of a pipe are a part of a frame, which is left out."""
    left_out = "its last byte is" if num_bytes == 1 else f"its last {num_bytes} bytes are"
    message = "%s: the pipe ends in the middle of a sample of %d bits; %s left out"
    logger.warning(message, PIPE, 8 * frame_size, left_out)


def _read_raw(pipe: _Pipe, rate: int) -> Iterator[tuple[bytes, int]]:
    """Pieces of raw samples as they arrive, each with the rate in Hz."""
    for piece in _read_whole_frames(pipe, frame_size=_RAW_FRAME, rate=rate, num_bytes=None):
        yield piece, rate


# ---- WAV


@dataclass(frozen=True)
class _WavHeader:
    """What the samples of a WAV are."""

    rate: int
    channels: int
    subtype: str
    """libsndfile's name of the encoding."""
    frame_size: int
    """Bytes of a frame, which has one sample of each channel."""
    num_bytes: int | None
    """Bytes of all samples; None: the header does not state it, and they end with the pipe."""


def _read_header(pipe: _Pipe) -> _WavHeader:
    """Take everything before the samples of a WAV, and read what it states of them.

    Raises: DataError, also if there are no samples; see `_make_header`.
    """
    pipe.skip(12)  # RIFF, a size, WAVE
    wav_format = None
    num_bytes_64 = 0  # size of the samples in the chunk ds64 of a WAV of more than 4 GiB
    for _ in range(_MAX_CHUNKS):
        chunk_header = pipe.take(_CHUNK_HEADER_SIZE)
        if len(chunk_header) < _CHUNK_HEADER_SIZE:
            break
        name = chunk_header[:4]
        size = int.from_bytes(chunk_header[4:], "little")
        if name == b"data":
            num_bytes = num_bytes_64 or size
            return _make_header(wav_format, None if is_unknown_size(num_bytes) else num_bytes)
        padded_size = size + size % 2
        if name == b"fmt " and size <= _MAX_DESCRIPTION:
            wav_format = parse_wav_format(pipe.take(padded_size))
        elif name == b"ds64" and size <= _MAX_DESCRIPTION:
            # It has the size of the file, of the samples and others, each with 8 bytes.
            num_bytes_64 = int.from_bytes(pipe.take(padded_size)[8:16], "little")
        else:
            pipe.skip(padded_size)
    raise DataError(PIPE, "a WAV without samples: it ends in its header", _RESTORE)


def _make_header(wav_format: WavFormat | None, num_bytes: int | None) -> _WavHeader:
    """The header of a WAV with this format, and `num_bytes` bytes of samples (None: not stated).

    A part of a frame at the end is not counted.

    Raises: DataError if the samples cannot be read: without a format (`wav_format` is None), with
        an implausible rate or number of channels, or in an unknown encoding.
    """
    if wav_format is None:
        raise DataError(PIPE, "a WAV whose header does not describe its samples", _RESTORE)
    if not RATES[0] <= wav_format.rate <= RATES[1]:
        found = f"a WAV that declares a sample rate of {wav_format.rate} Hz"
        raise DataError(PIPE, found, _RESTORE)
    if not 1 <= wav_format.channels <= _MAX_CHANNELS:
        raise DataError(PIPE, f"a WAV that declares {wav_format.channels} channels", _RESTORE)
    subtype = _SUBTYPES.get((wav_format.codec, wav_format.bits))
    if subtype is None:
        found = f"a WAV of the encoding {wav_format.codec:#06x}, which is not read from a pipe"
        raise DataError(PIPE, found, _how_to_decode(None))
    if num_bytes is not None:
        num_bytes -= num_bytes % wav_format.frame_size
    return _WavHeader(
        rate=wav_format.rate,
        channels=wav_format.channels,
        subtype=subtype,
        frame_size=wav_format.frame_size,
        num_bytes=num_bytes,
    )


def _read_wav(pipe: _Pipe, header: _WavHeader) -> Iterator[tuple[Samples, int]]:
    """The samples of a WAV after its header, in pieces, each with the rate in Hz.

    If samples follow the end that the header declares, they are returned too. Chunks and tags at
    the end are skipped.

    Raises: DataError for a WAV that is empty, cut off, or joined to another one.
    """
    num_frames = 0
    for samples in _decode_frames(pipe, header, header.num_bytes):
        num_frames += len(samples)
        yield samples, header.rate
    if header.num_bytes is not None:
        declared_s = header.num_bytes / header.frame_size / header.rate
        try:
            accept_missing_audio(num_frames / header.rate, declared_s)
        except SourceError as error:
            raise DataError(PIPE, f"{error}", error.remedy) from error
        _check_no_joined_wav(pipe)
        if _has_samples_after_end(pipe, header):
            for samples in _decode_frames(pipe, header, num_bytes=None):
                yield samples, header.rate
        pipe.skip_all()
    if not num_frames:
        raise DataError(PIPE, "empty: no samples", _RESTORE)


def _decode_frames(pipe: _Pipe, header: _WavHeader, num_bytes: int | None) -> Iterator[Samples]:
    """The samples (N,) of a WAV in pieces. num_bytes: see `_read_whole_frames`."""
    pieces = _read_whole_frames(
        pipe,
        frame_size=header.frame_size,
        rate=header.rate,
        num_bytes=num_bytes,
    )
    for frames in pieces:
        samples_NC, _ = soundfile.read(
            io.BytesIO(frames),
            format="RAW",
            endian="LITTLE",
            samplerate=header.rate,
            channels=header.channels,
            subtype=header.subtype,
            dtype="float32",
            always_2d=True,
        )
        yield mix_channels(samples_NC)


def _check_no_joined_wav(pipe: _Pipe) -> None:
    """Raises DataError if another WAV follows the samples."""
    if pipe.peek(4)[:4] == b"RIFF":
        raise DataError(PIPE, "joined files: only the first one was read", CONVERT)


def _has_samples_after_end(pipe: _Pipe, header: _WavHeader) -> bool:
    """Whether samples follow the end that the header declares. All bytes remain in the pipe.

    What follows is no samples if it begins with the name of a chunk or tag, or if it is at most
    0.1 s long: padding.
    """
    if _CHUNK_NAME.fullmatch(pipe.peek(4)[:4]):
        return False
    padding_size = int(_MAX_PADDING_S * header.rate) * header.frame_size
    return len(pipe.peek(padding_size + 1)) > padding_size
