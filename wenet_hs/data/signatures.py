# SPDX-License-Identifier: Apache-2.0
"""Formats of audio by their first bytes, and which library reads them.

A file is known to be no raw samples, so its first bytes decide. Raw samples in a pipe have no
signature. There a format needs at least 32 bits, or three frames that follow one another, so that
samples are almost never taken for one.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

import regex  # type: ignore[import-untyped]

from wenet_hs.data.frame_headers import (
    ac3_frame_size,
    adts_frame_size,
    loas_frame_size,
    m2ts_packet_size,
    mp2_frame_size,
    mp3_frame_size,
    ts_packet_size,
)

MAX_BEGINNING = 200
"""Bytes that are enough to find the format of a file."""
MAX_SIGNATURE = 1 << 15
"""Bytes after which no format of a pipe is undecided: two long frames, and a third header."""
WAV = "WAV"
_NUM_FRAMES = 3  # that follow one another: none in 10^8 streams of noise and speech


class Reader(Enum):
    """The library that reads the files of a format."""

    LIBSNDFILE = auto()
    """PyAV reads variants of these formats that libsndfile refuses."""
    PYAV = auto()
    """libsndfile is not asked: it refuses them, or finds frames of MP3 in them."""


@dataclass(frozen=True)
class _FrameSequence:
    """Frames that follow one another from the first byte on."""

    header_size: int
    """Bytes that `frame_size` needs."""
    frame_size: Callable[[bytes], int]
    """Header → bytes of the frame; 0: it is none."""

    def begin(self, head: bytes) -> bool | None:
        """Whether `head` begins with three frames; None: more bytes would tell."""
        position = 0
        for _ in range(_NUM_FRAMES):
            header = head[position : position + self.header_size]
            if len(header) < self.header_size:
                return None
            size = self.frame_size(header)
            if not size:
                return False
            position += size
        return True


@dataclass(frozen=True)
class AudioFormat:
    """A format of audio, and how it is recognised."""

    name: str
    beginning: bytes
    """A regular expression of the first bytes, without groups."""
    reader: Reader
    frames: _FrameSequence | None = None
    """Of formats whose beginning is too short to tell it from raw samples."""
    is_pipeable: bool = True
    """Whether a decoder can read it from a pipe. An MP4 may have its index at its end."""

    @cached_property
    def _pattern(self) -> regex.Pattern[bytes]:
        return regex.compile(self.beginning, regex.DOTALL)

    def begins_pipe(self, head: bytes) -> bool | None:
        """Whether `head` begins this format, not raw samples; None: more bytes would tell."""
        match = self._pattern.match(head, partial=True)
        if match is None:
            return False
        has_frames = True if self.frames is None else self.frames.begin(head)
        needs_more = match.partial and has_frames is not False
        return None if needs_more else has_frames


_SNDFILE = Reader.LIBSNDFILE
_PYAV = Reader.PYAV
FORMATS = (
    AudioFormat(WAV, rb"(?:RIFF|RF64|BW64).{4}WAVE", _SNDFILE),
    AudioFormat("FLAC", rb"fLaC", _SNDFILE),
    AudioFormat("Ogg (Vorbis, Opus, Speex or FLAC)", rb"OggS\0", _SNDFILE),
    AudioFormat("MP3", rb"ID3[\x02-\x04]\0", _SNDFILE),
    AudioFormat(
        "MP3", rb"\xff[\xfb\xfa\xf3\xf2\xe3\xe2]", _SNDFILE, _FrameSequence(3, mp3_frame_size)
    ),
    AudioFormat(
        "MP2", rb"\xff[\xfd\xfc\xf5\xf4\xe5\xe4]", _SNDFILE, _FrameSequence(3, mp2_frame_size)
    ),
    AudioFormat("AIFF", rb"FORM.{4}AIF", _SNDFILE),
    AudioFormat("AU", rb"\.snd", _SNDFILE),
    AudioFormat("CAF", rb"caff\0\x01", _SNDFILE),
    AudioFormat("NIST SPHERE", rb"NIST_1A\n", _SNDFILE),
    AudioFormat("Wave64", rb"riff\x2e\x91\xcf\x11", _SNDFILE),
    AudioFormat("big-endian WAV (RIFX)", rb"RIFX.{4}WAVE", _SNDFILE),
    AudioFormat("AAC", rb"\xff[\xf0\xf1\xf8\xf9]", _PYAV, _FrameSequence(6, adts_frame_size)),
    AudioFormat(
        "AAC (LATM)", rb"\x56[\xe0-\xff].\x20\0", _PYAV, _FrameSequence(3, loas_frame_size)
    ),
    AudioFormat("AC-3", rb"\x0b\x77", _PYAV, _FrameSequence(6, ac3_frame_size)),
    AudioFormat(
        "MP4, M4A or MOV",
        rb".{4}(?:ftyp|moov|mdat|wide|free|skip)",
        _PYAV,
        is_pipeable=False,
    ),
    AudioFormat("Matroska or WebM", rb"\x1a\x45\xdf\xa3", _PYAV),
    AudioFormat("AVI", rb"RIFF.{4}AVI ", _PYAV),
    AudioFormat("WMA or ASF", rb"\x30\x26\xb2\x75", _PYAV),
    AudioFormat("FLV", rb"FLV\x01", _PYAV),
    AudioFormat("MPEG program stream", rb"\0\0\x01\xba", _PYAV),
    AudioFormat("MPEG transport stream", rb"G.{187}G", _PYAV, _FrameSequence(4, ts_packet_size)),
    AudioFormat(
        "MPEG transport stream", rb".{4}G.{191}G", _PYAV, _FrameSequence(8, m2ts_packet_size)
    ),
    AudioFormat("AMR", rb"#!AMR", _PYAV),
    AudioFormat("WavPack", rb"wvpk", _PYAV),
    AudioFormat("Monkey's Audio", rb"MAC ", _PYAV),
    AudioFormat("True Audio", rb"TTA1", _PYAV),
    AudioFormat("TAK", rb"tBaK", _PYAV),
    AudioFormat("Musepack", rb"MPCK|MP\+[\x07\x17]", _PYAV),
)
_ANY_BEGINNING = re.compile(
    b"|".join(b"(" + audio_format.beginning + b")" for audio_format in FORMATS),
    re.DOTALL,
)
"""A group per format."""


def find_file_format(head: bytes) -> AudioFormat | None:
    """The format of a file of audio with these first bytes (`MAX_BEGINNING`); None: unknown."""
    match = _ANY_BEGINNING.match(head)
    if match is None or match.lastindex is None:
        return None
    return FORMATS[match.lastindex - 1]


def find_pipe_format(head: bytes) -> AudioFormat | None:
    """The format of audio that begins with these bytes of a pipe; None: raw samples, or unknown."""
    return next((audio for audio in FORMATS if audio.begins_pipe(head)), None)


def is_undecided(head: bytes) -> bool:
    """Whether these bytes of a pipe may begin a known format, and more of them would tell."""
    return any(audio.begins_pipe(head) is None for audio in FORMATS)
