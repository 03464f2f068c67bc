# SPDX-License-Identifier: Apache-2.0
"""Lengths of audio files that libsndfile does not check: what a header declares, and audio that
follows after it.
"""

import io
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from wenet_hs.base.files import LFS_POINTER
from wenet_hs.data.frame_headers import MpegHeader, parse_mpeg_header
from wenet_hs.data.signatures import MAX_BEGINNING, Reader, find_file_format

CONVERT = "convert it to FLAC or wav"
RAW_SUFFIXES = (".raw", ".pcm", ".s16", ".s16le", ".sln")
"""Of samples without a header, unless libsndfile finds one."""
RAW_SAMPLES = "raw samples without a header, so their rate is not known"
_FFMPEG = "ffmpeg -f s16le -ar 16000 -ac 1 -i NAME.pcm NAME.wav"
ADD_HEADER = f"write a header with the right rate, such as by `{_FFMPEG}`"
"""What to do with raw samples."""
_UNKNOWN = (0, 2**32 - 1, 2**64 - 1)
"""Sizes in the header of an RF64, AIFF or AU file whose program did not know it, such as one that
wrote to a pipe.
"""
_MAX_CHUNKS = 1000  # without a limit a file of zeros is searched without end
_MAX_REST_S = 0.1  # after the samples of a wav: padding, or a tag that is cut off
_REFUSED_VARIANTS = (
    ("Ogg with other audio than Vorbis and Opus", rb"OggS.{24}(?!\x01vorbis|OpusHead)"),
    ("CAF with compressed audio", rb"caff.{4}desc.{16}(?!lpcm|alaw|ulaw)"),
    ("AU with G.722", rb"\.snd.{8}\0\0\0\x18"),
    ("BW64", rb"BW64.{4}WAVE"),
)
"""Variants of formats of libsndfile that it does not or not always read: how their files begin."""
_WAV_EXTENSIBLE = 0xFFFE
_WAV_FORMAT_SIZE = 26  # bytes of the chunk `fmt ` that are read
_SNDFILE_CODECS = frozenset((0x01, 0x02, 0x03, 0x06, 0x07, 0x11, 0x31, 0x38, 0x40, 0x55))
"""The codecs that libsndfile reads in a wav: PCM, float, A-law, µ-law, GSM, MP3, some ADPCM."""


class SourceError(Exception):
    """A source that cannot be read.

    The message does not contain its name: the caller adds it (see `AudioError`).

    is_of_file: whether the content of the file alone is the reason, not this computer, its network
    or its programs.
    """

    def __init__(
        self,
        reason: str,
        remedy: str = "restore the file, or leave it out",
        *,
        is_of_file: bool = True,
    ) -> None:
        super().__init__(reason)
        self.remedy, self.is_of_file = remedy, is_of_file


@dataclass(frozen=True)
class WavFormat:
    """The chunk `fmt ` of a WAV."""

    codec: int
    """Its number: 1 is PCM, 3 float, 6 A-law, 7 µ-law."""
    channels: int
    rate: int
    byte_rate: int
    """Bytes per second."""
    frame_size: int
    """Bytes of a frame, which has one sample of each channel."""

    @property
    def bits(self) -> int:
        """Bits per sample with their padding; 0 if they are not the same for all channels."""
        is_whole = self.channels > 0 and self.frame_size % self.channels == 0
        return 8 * self.frame_size // self.channels if is_whole else 0


def parse_wav_format(content: bytes) -> WavFormat:
    """The chunk `fmt ` by its content after name and size. What is missing at its end is 0."""

    def number(first: int, size: int) -> int:
        return int.from_bytes(content[first : first + size], "little")

    codec = number(0, 2)
    return WavFormat(
        codec=number(24, 2) if codec == _WAV_EXTENSIBLE else codec,
        channels=number(2, 2),
        rate=number(4, 4),
        byte_rate=number(8, 4),
        frame_size=number(12, 2),
    )


def open_bytes(source: str | Path | bytes) -> BinaryIO:
    """A local file, or bytes as a file."""
    return io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb")


def find_pyav_format(source: str | Path | bytes) -> str | None:
    """The format of audio or video that PyAV has to read, by its first bytes; None: another one."""
    with open_bytes(source) as file:
        return _find_pyav_format(file.read(MAX_BEGINNING))


def _find_pyav_format(head: bytes) -> str | None:
    audio_format = find_file_format(head)
    if audio_format is None or audio_format.reader is not Reader.PYAV:
        return None
    return audio_format.name


def find_ffmpeg_form(source: str | Path | bytes) -> str | None:
    """The form of a file that libsndfile refuses and FFmpeg may read, by its header.

    None: it should be audio that libsndfile reads, so it is damaged, or it is no audio.
    """
    with open_bytes(source) as file:
        tag = file.read(10)
        file.seek(_id3_length(tag) if tag.startswith(b"ID3") else 0)
        head = file.read(MAX_BEGINNING)
        name = _find_pyav_format(head)
        if name is not None:
            return name
        for variant, beginning in _REFUSED_VARIANTS:
            if re.match(beginning, head, re.DOTALL):
                return variant
        is_wav = head[:4] == b"RIFF" and head[8:12] == b"WAVE"
        codec = _read_wav_codec(file) if is_wav else None
    return None if codec is None or codec in _SNDFILE_CODECS else f"wav with the codec {codec:#06x}"


def _id3_length(header: bytes) -> int:
    """The bytes of an ID3 tag by its first ten bytes, of which the last four state the size.

    Each of the four has seven bits of the size. At the end of a file there may be fewer of them.
    """
    shifts = (21, 14, 7, 0)
    size = sum(byte << shift for byte, shift in zip(header[6:10], shifts, strict=False))
    return 10 + size


def _read_wav_codec(file: BinaryIO) -> int | None:
    """The number of the codec of a wav; None if it has no chunk of its format."""
    position = 12
    for _ in range(_MAX_CHUNKS):
        name, size = _read_chunk(file, position)
        if name == b"fmt ":
            return parse_wav_format(file.read(_WAV_FORMAT_SIZE)).codec
        position += 8 + size + size % 2
    return None


def read_sizes(source: str | Path | bytes) -> tuple[float, int]:
    """What the sizes in a header say, compared with the bytes that are present.

    libsndfile accepts files that are shorter than their headers state, and reads no more than they
    state. The size of the samples of a wav means nothing if it is beyond the end and one of those
    that programs write to a pipe; or if what follows is neither other chunks nor short: then the
    samples go on to the end of the file.

    Returns: declared bytes per byte in the file, at least 1 (of the samples of a wav, or of a whole
        RF64, AIFF or AU file), and the first byte of samples that go on to the end; 0: the header
        is right.
    Raises: SourceError for an empty file, and for wavs that were joined.
    """
    with open_bytes(source) as file:
        total = file.seek(0, os.SEEK_END)
        if not total:
            raise SourceError("empty: 0 bytes")
        file.seek(0)
        header = file.read(40)
        if header == LFS_POINTER:
            raise SourceError(
                "a Git LFS pointer, not the audio: run `git lfs pull` in its folder",
                "or leave it out",
            )
        if header[:4] != b"RIFF" or header[8:12] != b"WAVE":
            return max(1.0, _declared_bytes(header) / total), 0
        byte_rate, first = 0, 12
        for _ in range(_MAX_CHUNKS):
            name, size = _read_chunk(file, first)
            first += 8
            if name == b"fmt ":
                byte_rate = parse_wav_format(file.read(_WAV_FORMAT_SIZE)).byte_rate
            if name == b"data":
                rest = total - first - size
                if rest < 0:
                    return 1.0 if is_unknown_size(size) else size / max(total - first, 1), 0
                is_short = size > 0 and rest <= _MAX_REST_S * byte_rate
                return 1.0, 0 if is_short or _are_chunks(file, first + size, total) else first
            first += size + size % 2
    return 1.0, 0


def _read_chunk(file: BinaryIO, position: int) -> tuple[bytes, int]:
    file.seek(position)
    chunk = file.read(8)
    return chunk[:4], int.from_bytes(chunk[4:], "little")


def _are_chunks(file: BinaryIO, position: int, total: int) -> bool:
    """Whether what begins here are chunks up to the end of a wav, or tags.

    Raises SourceError for another wav.
    """
    name, _ = _read_chunk(file, position)
    if name == b"RIFF":
        raise SourceError("joined files: only the first one can be read", CONVERT)
    if name[:3] in (b"ID3", b"TAG", b"APE"):
        return True
    for _ in range(_MAX_CHUNKS):
        if position + 8 > total:
            return True
        name, size = _read_chunk(file, position)
        if not re.fullmatch(rb"\0?[A-Za-z][A-Za-z0-9_ ]{2,3}", name):
            return False
        position += 8 + size + size % 2
    return False


def _declared_bytes(header: bytes) -> int:
    """The length of the file that the header of an RF64, BW64, AIFF or AU file states; else 0."""
    start, size = 8, 0
    if header[:4] in (b"RF64", b"BW64") and header[12:16] == b"ds64":
        size = int.from_bytes(header[20:28], "little")
    elif header[:4] == b"FORM":
        size = int.from_bytes(header[4:8], "big")
    elif header[:4] == b".snd":
        start, size = (int.from_bytes(header[first : first + 4], "big") for first in (4, 8))
    return 0 if size in _UNKNOWN else start + size


class StreamEnd(NamedTuple):
    """What libsndfile does not know of the end of an MP3 or Ogg file, or of its beginning."""

    num_samples: int = 0
    """Samples per channel of all frames of an MP3; 0 for another file, or if it has no frame of
    layer III.
    """
    is_stated: bool = False
    """Whether the first frame of an MP3 states the length (Xing, VBRI).

    If not, libsndfile guesses it.
    """
    fault: str | None = None
    """What libsndfile does not read of an Ogg file."""


def find_end(source: str | Path | bytes) -> StreamEnd:
    """Read a whole MP3 or Ogg file for its end; a file that did not change since is not read again."""
    return (
        _find_end(source)
        if isinstance(source, bytes)
        else _find_end_of_file(source, *file_state(source))
    )


def file_state(path: str | Path) -> tuple[int, int]:
    """The size and time of a file, which differ after it changed."""
    stat = Path(path).stat()
    return stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=4096)
def _find_end_of_file(path: str | Path, size: int, time_ns: int) -> StreamEnd:
    return _find_end(Path(path).read_bytes())


def _find_end(data: bytes) -> StreamEnd:
    if not data.startswith(b"OggS"):
        return StreamEnd(*_count_mp3_samples(data))
    first = re.search(
        rb"OggS\0[^\x02]", data
    )  # the first page after those with which streams begin
    if first is not None and data.find(b"OggS\0\x02", first.start()) >= 0:
        return StreamEnd(fault="joined files: only the first one can be read")
    if data[28:35] == b"\x01vorbis" and _has_audio_with_headers(data):
        return StreamEnd(
            fault="Vorbis with audio on the page of its headers: its beginning cannot be read"
        )
    return StreamEnd()


def _has_audio_with_headers(data: bytes) -> bool:
    """Whether a packet follows on the page on which the third packet of an Ogg stream ends."""
    position, num_packets, lacing = 0, 0, b""
    while num_packets < 3 and data.startswith(b"OggS", position):
        begin = position + 27
        lacing = data[begin : begin + data[begin - 1]]
        num_packets += sum(size < 255 for size in lacing)
        position = begin + len(lacing) + sum(lacing)
    return num_packets > 3 or lacing.endswith(b"\xff")


def _count_mp3_samples(data: bytes) -> tuple[int, bool]:
    position, count, is_stated = 0, 0, False
    while position + 4 <= len(data):
        if data.startswith(b"ID3", position):  # also between joined files
            position += _id3_length(data[position : position + 10])
            continue
        frame = _find_mp3_frame(data, position)
        if frame is None:  # tags of other kinds, or damage
            position = data.find(b"\xff", position + 1)
            if position < 0:
                break
            continue
        if not count and re.search(rb"Xing|Info|VBRI", data[position : position + 64]):
            is_stated = True  # and has no audio
        else:
            count += frame.num_samples
        position += frame.frame_size
    return count, is_stated


def _find_mp3_frame(data: bytes, position: int) -> MpegHeader | None:
    """The frame of layer III that begins here and is followed by another one, a tag or the end."""
    frame = parse_mpeg_header(data[position : position + 3])
    if frame is None or frame.layer != 3:
        return None
    end = position + frame.frame_size
    following = data[end : end + 2]
    is_end_or_tag = len(following) < 2 or following in (b"ID", b"TA", b"AP")
    is_followed = is_end_or_tag or (following[0] == 0xFF and following[1] >= 0xE0)
    return frame if is_followed else None


def is_unknown_size(size: int) -> bool:
    """Whether the size of the samples of a WAV is one that programs write to a pipe: it means
    nothing.
    """
    return size == 0 or any(abs(size - power) <= 2**16 for power in (2**31, 2**32))
