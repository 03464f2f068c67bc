# SPDX-License-Identifier: Apache-2.0
"""Audio of utterances in a page, as MP3."""

import base64
import io
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import soundfile

from wenet_hs.data.audio import read_audio
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.tree.errors import DataError

_SAMPLE_RATE = 16_000  # Hz
_MP3: dict[str, Any] = {"format": "MP3", "subtype": "MPEG_LAYER_III", "bitrate_mode": "CONSTANT"}
_COMPRESSION_LEVEL = 0.85  # gives about 35 kbit/s


class EmbeddedAudio(NamedTuple):
    """The audio of some utterances."""

    urls: Mapping[str, str]
    """Data URLs by key."""
    num_omitted: int
    """Utterances for which there was no space."""
    num_unreadable: int


def embed_audio(
    clips: Mapping[str, Utterance], keys: Iterable[str], max_bytes: int
) -> EmbeddedAudio:
    """The audio of the first utterances that fit into `max_bytes` as data URLs.

    From the first one that does not fit, all others are omitted. Audio that cannot be read is only
    counted. Keys without a clip are left out.
    """
    urls = dict[str, str]()
    num_omitted = 0
    num_unreadable = 0
    remaining_bytes = max_bytes
    for key in keys:
        if key not in clips:
            continue
        if remaining_bytes <= 0:
            num_omitted += 1
            continue
        try:
            mp3 = encode_clip(clips[key])
        except (DataError, soundfile.LibsndfileError):
            num_unreadable += 1
            continue
        url = "data:audio/mpeg;base64," + base64.b64encode(mp3).decode("ascii")
        remaining_bytes -= len(url)  # below 0 if this one does not fit, so that no other is read
        if remaining_bytes >= 0:
            urls[key] = url
        else:
            num_omitted += 1
    return EmbeddedAudio(urls, num_omitted, num_unreadable)


def encode_clip(clip: Utterance) -> bytes:
    """The audio of one utterance as MP3: mono, 16 kHz, about 4 kB per second.

    Every browser plays it. Raises AudioError, a DataError, if the audio cannot be read, and
    soundfile.LibsndfileError if it cannot be encoded.
    """
    waveform = read_audio(
        clip.wav, start=clip.start, end=clip.end, channel=clip.channel, sample_rate=_SAMPLE_RATE
    )
    buffer = io.BytesIO()
    soundfile.write(
        buffer, waveform.numpy(), _SAMPLE_RATE, compression_level=_COMPRESSION_LEVEL, **_MP3
    )
    return buffer.getvalue()
