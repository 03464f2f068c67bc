# SPDX-License-Identifier: Apache-2.0
"""Utterances of a report: the worst ones of the shown mode, their confidences and audio."""

import base64
import io
from collections.abc import Iterable, Mapping
from typing import Any

import soundfile

from wenet_hs.data.audio import read_audio
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.results.report_data import ReportData
from wenet_hs.score.error_rate import worst_first
from wenet_hs.score.rules import UNIT_NAMES
from wenet_hs.tree.errors import DataError

MAX_UTTERANCES = 400
AUDIO_MB = 3.0
_SAMPLE_RATE = 16_000


def utterances_section(data: ReportData, max_utterances: int, audio_mb: float) -> dict[str, Any]:
    """The worst utterances of the shown mode, by falling mean error rate of the systems.

    Args:
        max_utterances: their number; a page with all utterances of a large test would be slow.
        audio_mb: limit of embedded audio, in megabytes of the page; 0 for none.
    """
    reports = [report for _, _, report in data.shown]
    ordered = worst_first(reports)
    keys = ordered[:max_utterances]
    urls, num_omitted, num_unreadable = embed_audio(data.clips, keys, int(audio_mb * 10**6))
    confidences = {index: experiment.test.read_confidences(str(data.mode)) for index, experiment, _ in data.shown}
    return {
        "shown": keys,
        "num_scored": len(ordered),
        "langs": sorted({reports[0].utterances[key].lang for key in keys}),
        "unit": UNIT_NAMES[reports[0].rules.metric],
        "confidences": confidences,
        "audio_mb": audio_mb,
        "urls": urls,
        "num_omitted": num_omitted,
        "num_unreadable": num_unreadable,
    }


def embed_audio(clips: Mapping[str, Utterance], keys: Iterable[str], max_bytes: int) -> tuple[dict[str, str], int, int]:
    """Data URLs of the first clips that fit into `max_bytes`, the number of omitted and of unreadable clips."""
    urls, num_omitted, num_unreadable = dict[str, str](), 0, 0
    for key in filter(clips.__contains__, keys):
        if max_bytes <= 0:
            num_omitted += 1
            continue
        try:
            url = "data:audio/mpeg;base64," + base64.b64encode(encode_clip(clips[key])).decode("ascii")
        except (DataError, soundfile.LibsndfileError):
            num_unreadable += 1
            continue
        max_bytes -= len(url)
        if max_bytes < 0:
            num_omitted += 1
        else:
            urls[key] = url
    return urls, num_omitted, num_unreadable


def encode_clip(clip: Utterance) -> bytes:
    """The audio of one utterance as MP3, which every browser plays: mono, 16 kHz, about 4 kB per second."""
    waveform = read_audio(clip.wav, start=clip.start, end=clip.end, channel=clip.channel, sample_rate=_SAMPLE_RATE)
    buffer = io.BytesIO()
    how: dict[str, Any] = {"format": "MP3", "subtype": "MPEG_LAYER_III", "bitrate_mode": "CONSTANT"}
    soundfile.write(buffer, waveform.numpy(), _SAMPLE_RATE, compression_level=0.85, **how)  # about 35 kbit/s
    return buffer.getvalue()
