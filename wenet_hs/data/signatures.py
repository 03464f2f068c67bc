# SPDX-License-Identifier: Apache-2.0
"""Formats of audio by their first bytes.

Raw samples have no signature. Each of these has at least 32 bits, or is three frames that follow
one another, so that samples are almost never taken for one of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from wenet_hs.data.containers import mp3_frame_size

MAX_SIGNATURE = 1 << 14
"""Bytes after which no format is undecided: two long frames of AAC, and the header of a third."""
WAV = "WAV"
_ADTS_HEADER = 7  # bytes
_ADTS_RATES = 13  # sample rates that have an index
_ADTS_BYTES_PER_CHANNEL = 768  # the longest frame of the standard
_NUM_FRAMES = 3  # that follow one another: samples look like them once in 10^9 streams


@dataclass(frozen=True)
class _Signature:
    """A format that begins with fixed bytes."""

    name: str
    parts: tuple[tuple[int, bytes], ...]
    """Positions, in rising order, and the bytes that stand there."""

    def matches(self, head: bytes) -> bool | None:
        """Whether `head` begins a file of this format; None: more bytes would tell."""
        for position, expected in self.parts:
            present = head[position : position + len(expected)]
            if not expected.startswith(present):
                return False
        last_position, last = self.parts[-1]
        return True if len(head) >= last_position + len(last) else None


@dataclass(frozen=True)
class _FrameFormat:
    """A format without a header of the file: frames follow one another from the beginning."""

    name: str
    second_bytes: bytes
    """The first byte of a frame is 0xFF, the second one of these."""
    header_size: int
    """Bytes that `frame_size` reads."""
    frame_size: Callable[[bytes], int]
    """Header → bytes of the frame; 0: it is none."""

    def matches(self, head: bytes) -> bool | None:
        """As `_Signature.matches`."""
        position = 0
        for _ in range(_NUM_FRAMES):
            header = head[position : position + self.header_size]
            if not self._may_begin(header):
                return False
            if len(header) < self.header_size:
                return None
            length = self.frame_size(header)
            if not length:
                return False
            position += length
        return True

    def _may_begin(self, header: bytes) -> bool:
        if not header:
            return True
        return header[0] == 0xFF and (len(header) < 2 or header[1] in self.second_bytes)


def _adts_frame_size(header: bytes) -> int:
    """Bytes of a frame of AAC in ADTS, of which six bytes are given; 0: it is none."""
    rate_index = header[2] >> 2 & 15
    channels = (header[2] & 1) << 2 | header[3] >> 6
    length = (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5
    is_possible_length = _ADTS_HEADER < length <= _ADTS_BYTES_PER_CHANNEL * channels
    return length if rate_index < _ADTS_RATES and is_possible_length else 0


_MP4_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
_ID3_VERSIONS = (b"ID3\x02\0", b"ID3\x03\0", b"ID3\x04\0")
_FORMATS: tuple[_Signature | _FrameFormat, ...] = (
    _Signature(WAV, ((0, b"RIFF"), (8, b"WAVE"))),
    _Signature(WAV, ((0, b"RF64"), (8, b"WAVE"))),
    _Signature(WAV, ((0, b"BW64"), (8, b"WAVE"))),
    _Signature("FLAC", ((0, b"fLaC"),)),
    _Signature("Ogg (Vorbis, Opus, Speex or FLAC)", ((0, b"OggS\0"),)),
    *(_Signature("MP3", ((0, version),)) for version in _ID3_VERSIONS),
    _FrameFormat("MP3", b"\xfb\xfa\xf3\xf2\xe3\xe2", 3, mp3_frame_size),
    _FrameFormat("AAC", b"\xf0\xf1\xf8\xf9", 6, _adts_frame_size),
    *(_Signature("MP4, M4A or MOV", ((4, box),)) for box in _MP4_BOXES),
    _Signature("Matroska or WebM", ((0, b"\x1a\x45\xdf\xa3"),)),
    _Signature("AIFF", ((0, b"FORM"), (8, b"AIF"))),
    _Signature("AU", ((0, b".snd"),)),
    _Signature("CAF", ((0, b"caff\0\x01"),)),
    _Signature("NIST SPHERE", ((0, b"NIST_1A\n"),)),
    _Signature("Wave64", ((0, b"riff\x2e\x91\xcf\x11"),)),
    _Signature("big-endian WAV (RIFX)", ((0, b"RIFX"), (8, b"WAVE"))),
    _Signature("AVI", ((0, b"RIFF"), (8, b"AVI "))),
    _Signature("WMA or ASF", ((0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),)),
    _Signature("AMR", ((0, b"#!AMR"),)),
    _Signature("WavPack", ((0, b"wvpk"),)),
    _Signature("Monkey's Audio", ((0, b"MAC "),)),
    _Signature("FLV", ((0, b"FLV\x01"),)),
)


def find_format(head: bytes) -> str | None:
    """The name of the format that begins with these bytes; None: none of those that are known."""
    return next((audio.name for audio in _FORMATS if audio.matches(head)), None)


def is_undecided(head: bytes) -> bool:
    """Whether these bytes may begin a format that is known, and more of them would tell."""
    return any(audio.matches(head) is None for audio in _FORMATS)
