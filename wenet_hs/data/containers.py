# SPDX-License-Identifier: Apache-2.0
"""Lengths of audio files that libsndfile does not check: what a header declares, and audio that follows after it."""

import io
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_UNKNOWN = (0, 2**32 - 1, 2**64 - 1)
"""Sizes in a header whose program did not know it, such as one that wrote to a pipe."""
_KBITS = {  # per second, of MPEG layer III by its index; 0 has no frames of a known length
    1: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
}
_RATES = (44_100, 48_000, 32_000)
_DIVISORS = {3: 1, 2: 2, 0: 4}
"""Version in the frame's header → by what the sample rate is divided: MPEG 1, 2 and 2.5."""


class SourceError(Exception):
    """A source that cannot be read. The message does not contain its name: the caller adds it (see `AudioError`)."""

    def __init__(self, reason: str, remedy: str = "restore the file, or leave it out") -> None:
        super().__init__(reason)
        self.remedy = remedy


def declared_over_present(source: str | Path | bytes) -> float:
    """Declared bytes per byte in the file, at least 1: of the samples of a wav, or of a whole RF64, AIFF or AU file.

    libsndfile accepts files that are shorter than their headers state. Any other file has 1. Raises SourceError for an
    empty file, and for a wav that is too long for its 32 bits.
    """
    with io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb") as file:
        total = file.seek(0, os.SEEK_END)
        if not total:
            raise SourceError("empty: 0 bytes")
        file.seek(0)
        header = file.read(28)
        if header[:4] != b"RIFF" or header[8:12] != b"WAVE":
            return max(1.0, _declared_bytes(header) / total)
        file.seek(12)
        for _ in range(1000):  # chunks; without a limit a file of zeros is searched without end
            chunk = file.read(8)
            size = int.from_bytes(chunk[4:], "little")
            if chunk[:4] == b"data":
                present = total - file.tell()
                if present - size >= 2**32:
                    found = f"declares {size / 1e9:.1f} of {present / 1e9:.1f} GB of samples: too long for a wav"
                    raise SourceError(found, "convert it to FLAC or RF64")
                return 1.0 if size in _UNKNOWN[1:] else max(1.0, size / max(present, 1))
            file.seek(size + size % 2, os.SEEK_CUR)
    return 1.0


def _declared_bytes(header: bytes) -> int:
    """The length of the file that the header of an RF64, AIFF or AU file states; 0 if it does not."""
    start, size = 8, 0
    if header[:4] == b"RF64" and header[12:16] == b"ds64":
        size = int.from_bytes(header[20:28], "little")
    elif header[:4] == b"FORM":
        size = int.from_bytes(header[4:8], "big")
    elif header[:4] == b".snd":
        start, size = (int.from_bytes(header[first : first + 4], "big") for first in (4, 8))
    return 0 if size in _UNKNOWN else start + size


class End(NamedTuple):
    """What follows after the end that libsndfile believes in."""

    num_samples: int
    """Samples per channel of all frames of an MP3; 0 for another file, or if it has no frame of layer III."""
    is_stated: bool
    """Whether the first frame of an MP3 states the length (Xing, VBRI). If not, libsndfile guesses it."""
    is_joined: bool
    """Whether an Ogg stream follows after another one, of which libsndfile reads only the first one."""


def find_end(source: str | Path | bytes) -> End:
    """Read a whole MP3 or Ogg file for its end; a file that did not change since is not read again."""
    if isinstance(source, bytes):
        return _find_end(source)
    stat = Path(source).stat()
    return _find_end_of_file(source, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _find_end_of_file(path: str | Path, size: int, time_ns: int) -> End:
    return _find_end(Path(path).read_bytes())


def _find_end(data: bytes) -> End:
    if not data.startswith(b"OggS"):
        return End(*_count_mp3_samples(data), is_joined=False)
    first = re.search(rb"OggS\0[^\x02]", data)  # the first page after those with which streams begin
    return End(0, False, is_joined=first is not None and data.find(b"OggS\0\x02", first.start()) >= 0)


def _count_mp3_samples(data: bytes) -> tuple[int, bool]:
    position, count, is_stated = 0, 0, False
    while position + 4 <= len(data):
        if data.startswith(b"ID3", position):  # four times seven bits of length; also between joined files
            size = data[position + 6 : position + 10]
            position += 10 + sum(byte << shift for byte, shift in zip(size, (21, 14, 7, 0), strict=False))
            continue
        length, num_samples = _mp3_frame(data, position)
        if not length:  # tags of other kinds, or damage
            position = data.find(b"\xff", position + 1)
            if position < 0:
                break
            continue
        if not count and re.search(rb"Xing|Info|VBRI", data[position : position + 64]):
            is_stated = True  # and has no audio
        else:
            count += num_samples
        position += length
    return count, is_stated


def _mp3_frame(data: bytes, position: int) -> tuple[int, int]:
    """Bytes and samples per channel of the frame of layer III that begins here and is followed by another one or the
    end; 0 if there is none."""
    first, second, third = data[position : position + 3]
    version, layer, rate = second >> 3 & 3, second >> 1 & 3, third >> 2 & 3
    if first != 0xFF or second < 0xE0 or version == 1 or layer != 1 or rate == 3:
        return 0, 0
    num_samples = 1152 if version == 3 else 576
    bits_per_s = 1000 * _KBITS[1 if version == 3 else 2][third >> 4]
    length = num_samples // 8 * bits_per_s // (_RATES[rate] // _DIVISORS[version]) + (third >> 1 & 1)
    following = data[position + length : position + length + 2]
    is_followed = (
        len(following) < 2 or following in (b"ID", b"TA", b"AP") or (following[0] == 0xFF and following[1] >= 0xE0)
    )
    return (length, num_samples) if bits_per_s and is_followed else (0, 0)
