# SPDX-License-Identifier: Apache-2.0
"""Formats of audio: how a file of each begins, and which library reads it.

A file is known to be no raw samples, so its first bytes decide its format. In a pipe there may be
raw samples, which have no signature. So in a pipe a format is recognised by at least 32 bits, or by
three frames that follow one another: samples almost never look so.
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
"""Bytes of a pipe after which `is_undecided` is false: two long frames, and a third header."""
WAV = "WAV"
_NUM_FRAMES = 3
"""Frames that have to follow one another.

10^8 streams of noise and speech never began with three frames by chance.
"""


class Reader(Enum):
    """The library that reads the files of a format."""

    LIBSNDFILE = auto()
    """libsndfile is tried first; PyAV reads variants of these formats that it refuses."""
    PYAV = auto()
    """libsndfile is not tried: it refuses these formats, or finds frames of MP3 in them."""


@dataclass(frozen=True)
class _FrameSequence:
    """A format that consists of frames, which follow one another from the first byte on."""

    header_size: int
    """Bytes that `frame_size` needs of a frame."""
    frame_size: Callable[[bytes], int]
    """The first bytes of a frame → bytes of the whole frame; 0: they begin no frame."""

    def has_frames(self, head: bytes) -> bool | None:
        """Whether a stream that begins with `head` begins with three frames.

        Only the headers are read: the third frame may be incomplete. None: `head` is too short to
        decide it.
        """
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
    """A regular expression of the first bytes, without capturing groups."""
    reader: Reader
    frames: _FrameSequence | None = None
    """The frames, if the beginning is too short to tell the format from raw samples."""
    is_pipeable: bool = True
    """Whether a decoder can read it from a pipe. An MP4 may have its index at its end."""

    @cached_property
    def _pattern(self) -> regex.Pattern[bytes]:
        return regex.compile(self.beginning, regex.DOTALL)

    def begins_pipe(self, head: bytes) -> bool | None:
        """Whether a pipe that begins with `head` has this format, and not raw samples.

        None: `head` is too short to decide it.
        """
        # A partial match: all of `head` begins a match, which later bytes may complete.
        match = self._pattern.match(head, partial=True)
        if match is None:
            return False
        has_frames = True if self.frames is None else self.frames.has_frames(head)
        if has_frames is False:
            return False
        is_too_short = match.partial or has_frames is None
        return None if is_too_short else True


_MP3_FRAMES = _FrameSequence(header_size=3, frame_size=mp3_frame_size)
_MP2_FRAMES = _FrameSequence(header_size=3, frame_size=mp2_frame_size)
_ADTS_FRAMES = _FrameSequence(header_size=6, frame_size=adts_frame_size)
_LOAS_FRAMES = _FrameSequence(header_size=3, frame_size=loas_frame_size)
_AC3_FRAMES = _FrameSequence(header_size=6, frame_size=ac3_frame_size)
_TS_PACKETS = _FrameSequence(header_size=4, frame_size=ts_packet_size)
_M2TS_PACKETS = _FrameSequence(header_size=8, frame_size=m2ts_packet_size)

_SNDFILE = Reader.LIBSNDFILE
_SNDFILE_FORMATS = (
    AudioFormat(WAV, rb"(?:RIFF|RF64|BW64).{4}WAVE", _SNDFILE),
    AudioFormat("FLAC", rb"fLaC", _SNDFILE),
    AudioFormat("Ogg (Vorbis, Opus, Speex or FLAC)", rb"OggS\0", _SNDFILE),
    AudioFormat("MP3", rb"ID3[\x02-\x04]\0", _SNDFILE),
    AudioFormat("MP3", rb"\xff[\xfb\xfa\xf3\xf2\xe3\xe2]", _SNDFILE, frames=_MP3_FRAMES),
    AudioFormat("MP2", rb"\xff[\xfd\xfc\xf5\xf4\xe5\xe4]", _SNDFILE, frames=_MP2_FRAMES),
    AudioFormat("AIFF", rb"FORM.{4}AIF", _SNDFILE),
    AudioFormat("AU", rb"\.snd", _SNDFILE),
    AudioFormat("CAF", rb"caff\0\x01", _SNDFILE),
    AudioFormat("NIST SPHERE", rb"NIST_1A\n", _SNDFILE),
    AudioFormat("Wave64", rb"riff\x2e\x91\xcf\x11", _SNDFILE),
    AudioFormat("big-endian WAV (RIFX)", rb"RIFX.{4}WAVE", _SNDFILE),
)
_PYAV = Reader.PYAV
_MP4_BEGINNING = rb".{4}(?:ftyp|moov|mdat|wide|free|skip)"
_PYAV_FORMATS = (
    AudioFormat("AAC", rb"\xff[\xf0\xf1\xf8\xf9]", _PYAV, frames=_ADTS_FRAMES),
    AudioFormat("AAC (LATM)", rb"\x56[\xe0-\xff].\x20\0", _PYAV, frames=_LOAS_FRAMES),
    AudioFormat("AC-3", rb"\x0b\x77", _PYAV, frames=_AC3_FRAMES),
    AudioFormat("MP4, M4A or MOV", _MP4_BEGINNING, _PYAV, is_pipeable=False),
    AudioFormat("Matroska or WebM", rb"\x1a\x45\xdf\xa3", _PYAV),
    AudioFormat("AVI", rb"RIFF.{4}AVI ", _PYAV),
    AudioFormat("WMA or ASF", rb"\x30\x26\xb2\x75", _PYAV),
    AudioFormat("FLV", rb"FLV\x01", _PYAV),
    AudioFormat("MPEG program stream", rb"\0\0\x01\xba", _PYAV),
    AudioFormat("MPEG transport stream", rb"G.{187}G", _PYAV, frames=_TS_PACKETS),
    AudioFormat("MPEG transport stream", rb".{4}G.{191}G", _PYAV, frames=_M2TS_PACKETS),
    AudioFormat("AMR", rb"#!AMR", _PYAV),
    AudioFormat("WavPack", rb"wvpk", _PYAV),
    AudioFormat("Monkey's Audio", rb"MAC ", _PYAV),
    AudioFormat("True Audio", rb"TTA1", _PYAV),
    AudioFormat("TAK", rb"tBaK", _PYAV),
    AudioFormat("Musepack", rb"MPCK|MP\+[\x07\x17]", _PYAV),
)
FORMATS = (*_SNDFILE_FORMATS, *_PYAV_FORMATS)
"""All known formats. If the beginning of a file fits several of them, the first one counts."""
_ANY_BEGINNING = re.compile(
    b"|".join(b"(" + audio_format.beginning + b")" for audio_format in FORMATS),
    re.DOTALL,
)
"""The beginnings of all formats, as one group per format: the number of the group is the format."""


def find_file_format(head: bytes) -> AudioFormat | None:
    """The format of a file that begins with `head`, up to MAX_BEGINNING bytes; None: unknown."""
    match = _ANY_BEGINNING.match(head)
    if match is None or match.lastindex is None:
        return None
    return FORMATS[match.lastindex - 1]  # groups are counted from 1


def find_pipe_format(head: bytes) -> AudioFormat | None:
    """The format of a pipe that begins with `head`.

    None: raw samples, an unknown format, or one that `head` is too short to decide.
    """
    for audio_format in FORMATS:
        if audio_format.begins_pipe(head):
            return audio_format
    return None


def is_undecided(head: bytes) -> bool:
    """Whether a pipe that begins with `head` may have a known format, and more bytes would tell."""
    return any(audio_format.begins_pipe(head) is None for audio_format in FORMATS)
