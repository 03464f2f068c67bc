# SPDX-License-Identifier: Apache-2.0
"""Headers of audio files: formats that FFmpeg reads, and lengths that libsndfile does not check.

libsndfile believes the length in a header. So the length is compared here with the bytes that are
present, and with the audio that follows after it.
"""

import io
import os
import re
from collections.abc import Iterator
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
_UNKNOWN_SIZES = (0, 2**32 - 1, 2**64 - 1)
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
_HEADER_SIZE = len(LFS_POINTER)
"""Bytes that are read of a header: enough for a pointer of Git LFS, and for the size of an RF64,
AIFF or AU file.
"""
_FIRST_CHUNK = 12  # byte of a wav at which its first chunk begins, after RIFF, a size and WAVE
_CHUNK_HEADER_SIZE = 8  # bytes of the name and the size before the content of a chunk
_WAV_EXTENSIBLE = 0xFFFE
_WAV_FORMAT_SIZE = 26  # bytes of the chunk `fmt ` that are read
_SNDFILE_CODECS = frozenset((0x01, 0x02, 0x03, 0x06, 0x07, 0x11, 0x31, 0x38, 0x40, 0x55))
"""The codecs that libsndfile reads in a wav: PCM, float, A-law, µ-law, GSM, MP3, some ADPCM."""


class SourceError(Exception):
    """A source that cannot be read.

    The message does not contain the name of the source: the caller adds it (see `AudioError`).
    """

    def __init__(
        self,
        reason: str,
        remedy: str = "restore the file, or leave it out",
        *,
        is_of_file: bool = True,
    ) -> None:
        """Make the error of a source.

        Args:
            reason: what is wrong, without the name of the source.
            remedy: what the user can do.
            is_of_file: whether only the content of the file is the reason, not this computer, its
                network or its programs.
        """
        super().__init__(reason)
        self.remedy = remedy
        self.is_of_file = is_of_file


def open_bytes(source: str | Path | bytes) -> BinaryIO:
    """Open a local file, or bytes as if they were a file. Raises OSError."""
    return io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb")


# ---- Formats for FFmpeg


def find_pyav_format(source: str | Path | bytes) -> str | None:
    """The format of audio or video that PyAV has to read, by its first bytes; None: another one."""
    with open_bytes(source) as file:
        return _find_pyav_format(file.read(MAX_BEGINNING))


def _find_pyav_format(head: bytes) -> str | None:
    """The name of the format that begins so, if PyAV has to read it; None: another format."""
    audio_format = find_file_format(head)
    if audio_format is None or audio_format.reader is not Reader.PYAV:
        return None
    return audio_format.name


def find_ffmpeg_form(source: str | Path | bytes) -> str | None:
    """The form of a file that libsndfile refuses and FFmpeg may read, by its header.

    An ID3 tag before the audio is skipped. The form is a format for PyAV, a variant of a format of
    libsndfile, or a wav with a codec that libsndfile does not read.

    None: libsndfile should read a file of this form, so it is damaged; or it is not audio.
    """
    with open_bytes(source) as file:
        tag = file.read(10)
        audio_begin = _id3_length(tag) if tag.startswith(b"ID3") else 0
        file.seek(audio_begin)
        head = file.read(MAX_BEGINNING)
        pyav_format = _find_pyav_format(head)
        if pyav_format is not None:
            return pyav_format
        for variant, beginning in _REFUSED_VARIANTS:
            if re.match(beginning, head, re.DOTALL):
                return variant
        codec = _read_wav_codec(file) if _is_wav(head) else None
    if codec is None or codec in _SNDFILE_CODECS:
        return None
    return f"wav with the codec {codec:#06x}"


def _id3_length(header: bytes) -> int:
    """The bytes of an ID3 tag by its first ten bytes, of which the last four state the size.

    Each of the four bytes has seven bits of the size. At the end of a file fewer of them may be
    there; the missing ones count as 0.
    """
    shifts = (21, 14, 7, 0)
    size = sum(byte << shift for byte, shift in zip(header[6:10], shifts, strict=False))
    return 10 + size


def _read_wav_codec(file: BinaryIO) -> int | None:
    """The number of the codec of a wav; None if it has no chunk `fmt `."""
    for chunk in _iterate_chunks(file, _FIRST_CHUNK):
        if chunk.name == b"fmt ":
            return parse_wav_format(file.read(_WAV_FORMAT_SIZE)).codec
    return None


# ---- Chunks of a wav


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
    """The fields of a chunk `fmt `, of which the bytes after name and size are given.

    Bytes that are missing at the end count as 0. Of an extensible WAV the codec is that of its
    extension, which begins at byte 24.
    """

    def read_number(first: int, size: int) -> int:
        """The number in `size` bytes from the byte `first` on."""
        return int.from_bytes(content[first : first + size], "little")

    codec = read_number(0, size=2)
    if codec == _WAV_EXTENSIBLE:
        codec = read_number(24, size=2)
    return WavFormat(
        codec=codec,
        channels=read_number(2, size=2),
        rate=read_number(4, size=4),
        byte_rate=read_number(8, size=4),
        frame_size=read_number(12, size=2),
    )


class _RiffChunk(NamedTuple):
    """A chunk of a wav."""

    name: bytes
    """Four bytes; fewer at the end of the file."""
    size: int
    """Bytes of the content, as its header states them."""
    begin: int
    """The byte of the file at which the content begins."""


def _iterate_chunks(file: BinaryIO, position: int) -> Iterator[_RiffChunk]:
    """The chunks of a wav from a byte on, with the file at the beginning of their content.

    Beyond the end of the file there are empty chunks. There are at most _MAX_CHUNKS in all.
    """
    for _ in range(_MAX_CHUNKS):
        file.seek(position)
        header = file.read(_CHUNK_HEADER_SIZE)
        size = int.from_bytes(header[4:], "little")
        begin = position + _CHUNK_HEADER_SIZE
        yield _RiffChunk(name=header[:4], size=size, begin=begin)
        padding = size % 2
        position = begin + size + padding


def _is_wav(header: bytes) -> bool:
    return header[:4] == b"RIFF" and header[8:12] == b"WAVE"


# ---- Sizes in a header


@dataclass(frozen=True)
class SizeComparison:
    """The sizes in a header, compared with the bytes that are present."""

    declared_over_present: float = 1.0
    """Declared bytes per byte that is present: more than 1 if the file is cut off, else 1.

    Of a wav the bytes of the samples are compared, of an RF64, AIFF or AU file all its bytes.
    """
    samples_begin: int | None = None
    """The byte of a wav at which samples begin that go on to the end of the file, beyond the end
    that the header declares. None: the samples end where the header declares it.
    """


def compare_sizes(source: str | Path | bytes) -> SizeComparison:
    """Compare the sizes in the header of an audio file with the bytes that are present.

    libsndfile accepts files that are shorter than their headers state, and reads no more than the
    headers state. Formats without such sizes count as right.

    Raises: SourceError for an empty file, for a Git LFS pointer, and for wavs that were joined;
        OSError.
    """
    with open_bytes(source) as file:
        total_size = file.seek(0, os.SEEK_END)
        if total_size == 0:
            raise SourceError("empty: 0 bytes")
        file.seek(0)
        header = file.read(_HEADER_SIZE)
        if header == LFS_POINTER:
            raise SourceError(
                "a Git LFS pointer, not the audio: run `git lfs pull` in its folder",
                "or leave it out",
            )
        if _is_wav(header):
            return _compare_wav_sizes(file, total_size)
        # Less than 1, also for a size that is not declared (0): the file is not cut off.
        declared_over_present = _declared_size(header) / total_size
        return SizeComparison(declared_over_present=max(1.0, declared_over_present))


def _compare_wav_sizes(file: BinaryIO, total_size: int) -> SizeComparison:
    """Compare the size that a wav declares for its samples with the bytes that are present.

    Without a chunk `data`, which would have the samples, nothing is compared.

    Raises SourceError if another wav follows the samples.
    """
    byte_rate = 0
    for chunk in _iterate_chunks(file, _FIRST_CHUNK):
        if chunk.name == b"fmt ":
            byte_rate = parse_wav_format(file.read(_WAV_FORMAT_SIZE)).byte_rate
        if chunk.name == b"data":
            return _compare_samples_size(file, chunk, total_size, byte_rate)
    return SizeComparison()


def _compare_samples_size(
    file: BinaryIO, samples: _RiffChunk, total_size: int, byte_rate: int
) -> SizeComparison:
    """Compare the size that a wav declares for its samples with the bytes that are present.

    The declared size means nothing in two cases. It is beyond the end of the file, and is one that
    programs write to a pipe. Or the bytes after the samples are neither chunks nor short: then the
    samples go on to the end of the file.

    Args:
        samples: the chunk with the samples.
        total_size: bytes of the whole file.
        byte_rate: bytes per second; 0 if the header does not state it.
    Raises: SourceError if another wav follows the samples.
    """
    present_size = total_size - samples.begin
    rest_size = present_size - samples.size  # negative if the samples are cut off
    if rest_size < 0:
        if is_unknown_size(samples.size):
            return SizeComparison()
        # At least one byte, so that a file that ends with its header has a ratio too.
        return SizeComparison(declared_over_present=samples.size / max(present_size, 1))
    # A declared size of 0 is one of an unknown size, whatever follows.
    is_short_rest = samples.size > 0 and rest_size <= _MAX_REST_S * byte_rate
    if is_short_rest or _are_chunks(file, samples.begin + samples.size, total_size):
        return SizeComparison()
    return SizeComparison(samples_begin=samples.begin)


def _are_chunks(file: BinaryIO, position: int, total_size: int) -> bool:
    """Whether the bytes of a wav from `position` to its end are chunks or tags, not samples.

    Raises SourceError if another wav begins there.
    """
    file.seek(position)
    beginning = file.read(4)
    if beginning == b"RIFF":
        raise SourceError("joined files: only the first one can be read", CONVERT)
    if beginning[:3] in (b"ID3", b"TAG", b"APE"):
        return True
    for chunk in _iterate_chunks(file, position):
        if chunk.begin > total_size:  # all bytes were chunks
            return True
        # A zero byte may be before the name: the padding of a chunk of odd size.
        if not re.fullmatch(rb"\0?[A-Za-z][A-Za-z0-9_ ]{2,3}", chunk.name):
            return False
    return False  # more than _MAX_CHUNKS


def is_unknown_size(size: int) -> bool:
    """Whether the size of the samples of a WAV means nothing: programs write such to a pipe.

    These are 0 and all sizes within 64 KiB of 2 or 4 GiB.
    """
    return size == 0 or any(abs(size - power) <= 2**16 for power in (2**31, 2**32))


def _declared_size(header: bytes) -> int:
    """The bytes of the whole file that the header of an RF64, BW64, AIFF or AU file states.

    0: the file has another format, or the program that wrote it did not know its size.
    """
    start = 8  # bytes that the size does not count
    size = 0
    if header[:4] in (b"RF64", b"BW64") and header[12:16] == b"ds64":
        size = int.from_bytes(header[20:28], "little")
    elif header[:4] == b"FORM":
        size = int.from_bytes(header[4:8], "big")
    elif header[:4] == b".snd":
        start = int.from_bytes(header[4:8], "big")
        size = int.from_bytes(header[8:12], "big")
    return 0 if size in _UNKNOWN_SIZES else start + size


# ---- Audio that libsndfile does not find


@dataclass(frozen=True)
class StreamEnd:
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


def find_stream_end(source: str | Path | bytes) -> StreamEnd:
    """What libsndfile does not know of an MP3 or Ogg file, which is read as a whole for it.

    Raises OSError. A file that did not change since an earlier call is not read again.
    """
    if isinstance(source, bytes):
        return _find_stream_end(source)
    return _find_end_of_file(source, *file_state(source))


def file_state(path: str | Path) -> tuple[int, int]:
    """The size and time of a file, which differ after it changed."""
    stat = Path(path).stat()
    return stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=4096)
def _find_end_of_file(path: str | Path, size: int, time_ns: int) -> StreamEnd:
    """`_find_stream_end` of a file; `size` and `time_ns` only tell the cache that it changed."""
    return _find_stream_end(Path(path).read_bytes())


def _find_stream_end(data: bytes) -> StreamEnd:
    """Find in the bytes of an MP3 or Ogg file what libsndfile does not know; see `StreamEnd`."""
    if not data.startswith(b"OggS"):
        return _find_mp3_end(data)
    # Flag 2 is set on the first page of each stream. Streams of one file begin together, so such a
    # page after another page begins the next one of joined files.
    later_page = re.search(rb"OggS\0[^\x02]", data)
    if later_page is not None and data.find(b"OggS\0\x02", later_page.start()) >= 0:
        return StreamEnd(fault="joined files: only the first one can be read")
    is_vorbis = data[28:35] == b"\x01vorbis"
    if is_vorbis and _has_audio_with_headers(data):
        fault = "Vorbis with audio on the page of its headers: its beginning cannot be read"
        return StreamEnd(fault=fault)
    return StreamEnd()


def _has_audio_with_headers(data: bytes) -> bool:
    """Whether audio begins on the page of an Ogg stream on which its three header packets end.

    A page has 27 bytes, the last of which is the number of segments; the sizes of the segments; and
    the segments. A packet ends with a segment of less than 255 bytes.
    """
    position = 0
    num_packets = 0
    segment_sizes = b""
    while num_packets < 3 and data.startswith(b"OggS", position):
        sizes_begin = position + 27
        num_segments = data[sizes_begin - 1]
        segment_sizes = data[sizes_begin : sizes_begin + num_segments]
        num_packets += sum(size < 255 for size in segment_sizes)
        position = sizes_begin + len(segment_sizes) + sum(segment_sizes)
    is_next_packet_begun = segment_sizes.endswith(b"\xff")
    return num_packets > 3 or is_next_packet_begun


def _find_mp3_end(data: bytes) -> StreamEnd:
    """Count the samples of all frames of an MP3. Tags and damaged parts are skipped.

    A first frame that states the length of the file has no audio, so its samples do not count.
    """
    position = 0
    num_samples = 0
    is_stated = False
    while position + 4 <= len(data):  # the header of a frame has four bytes
        if data.startswith(b"ID3", position):  # also between joined files
            position += _id3_length(data[position : position + 10])
            continue
        frame = _find_mp3_frame(data, position)
        if frame is None:  # tags of other kinds, or damage
            position = data.find(b"\xff", position + 1)
            if position < 0:
                break
            continue
        is_first = num_samples == 0
        frame_begin = data[position : position + 64]  # these marks stand near its beginning
        if is_first and re.search(rb"Xing|Info|VBRI", frame_begin):
            is_stated = True
        else:
            num_samples += frame.num_samples
        position += frame.frame_size
    return StreamEnd(num_samples=num_samples, is_stated=is_stated)


def _find_mp3_frame(data: bytes, position: int) -> MpegHeader | None:
    """The frame of layer III that begins here and is followed by another one, a tag or the end."""
    frame = parse_mpeg_header(data[position : position + 3])
    if frame is None or frame.layer != 3:
        return None
    end = position + frame.frame_size
    following = data[end : end + 2]
    if len(following) < 2 or following in (b"ID", b"TA", b"AP"):  # the end; ID3, TAG, APE
        return frame
    is_frame_next = following[0] == 0xFF and following[1] >= 0xE0  # eleven bits of 1
    return frame if is_frame_next else None
