# SPDX-License-Identifier: Apache-2.0
"""Clips small enough to travel in the page: mono, 16 kHz, MP3, as data URLs."""

import base64
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import soundfile

from wenet_hs.data.audio import read_audio
from wenet_hs.errors import DataError
from wenet_hs.manifest import Utterance

SAMPLE_RATE = 16_000
FORMAT = "MP3"  # every browser plays it, and a second takes about 4 kB
_QUALITY = 0.85  # libsndfile's compression level at a constant rate: about 35 kbit/s


@dataclass
class Sounds:
    """The clips of a page, filled in the order they are asked for, until the room is used up."""

    clips: Mapping[str, Utterance]
    """The test list by key."""
    room: int
    """Bytes that may still be embedded."""
    urls: dict[str, str] = field(default_factory=dict)
    """Data URLs by key."""
    left_out: int = 0
    """Clips for which there was no room."""
    unreadable: int = 0
    """Clips that could not be read."""

    def embed(self, keys: Iterable[str]) -> None:
        """Embed the clips of these keys, the first ones first. The first that does not fit ends it."""
        waiting = [key for key in keys if key in self.clips]
        full = self.room <= 0
        for key in waiting:
            url = None if full else self._url(key)
            if url is not None and len(url) <= self.room:
                self.room -= len(url)
                self.urls[key] = url
            elif full or url is not None:
                full = True
                self.left_out += 1

    def _url(self, key: str) -> str | None:
        clip = self.clips[key]
        try:
            content = mp3(clip)
        except DataError:
            self.unreadable += 1
            return None
        return "data:audio/mpeg;base64," + base64.b64encode(content).decode("ascii")


def can_encode() -> bool:
    """Whether this machine's libsndfile writes MP3 (1.1 and later)."""
    return FORMAT in soundfile.available_formats()


def mp3(clip: Utterance) -> bytes:
    """The segment of one utterance as an MP3 file. Raises DataError where its audio cannot be read."""
    waveform = read_audio(clip.wav, start=clip.start, end=clip.end, sample_rate=SAMPLE_RATE)
    buffer = io.BytesIO()
    soundfile.write(
        buffer,
        waveform.numpy(),
        SAMPLE_RATE,
        format=FORMAT,
        subtype="MPEG_LAYER_III",
        compression_level=_QUALITY,
        bitrate_mode="CONSTANT",
    )
    return buffer.getvalue()
