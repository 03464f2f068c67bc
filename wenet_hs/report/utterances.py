# SPDX-License-Identifier: Apache-2.0
"""Utterances of a report: references aligned with the hypotheses of every system, confidences, and audio."""

import base64
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import soundfile

from wenet_hs.base.files import read_lines
from wenet_hs.data.audio import read_audio
from wenet_hs.manifest.data_list import Utterance
from wenet_hs.results.experiments import ReportData
from wenet_hs.score.edit_distance import Operation, align
from wenet_hs.score.error_rate import ScoredUtterance, worst_first
from wenet_hs.score.rules import UNIT_NAMES, Rules, word_lengths
from wenet_hs.tree.errors import DataError

MAX_UTTERANCES = 400
AUDIO_MB = 3.0
EMPTY = "·"  # shown opposite a deleted or an inserted unit
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
    confidences = {
        index: _read_confidences(experiment.folder / experiment.test / str(data.mode) / "hyps.jsonl")
        for index, experiment, _ in data.shown
    }
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


def align_columns(utterance: ScoredUtterance, rules: Rules) -> Iterator[tuple[str, str, str, bool]]:
    """The alignment as columns: runs of one kind inside a word of letters; each word or phone is a column.

    A column is its kind (C, S, D or I), reference, hypothesis, and whether a word ends here.
    """
    operations = align(*utterance.split(rules))
    lengths = word_lengths(utterance.ref, rules, utterance.lang) if rules.spaces == "ignore" else []
    word_ends = set(accumulate(lengths))
    num_units, run = 0, list[Operation]()
    for index, operation in enumerate(operations):
        run.append(operation)
        num_units += operation.ref is not None
        following = operations[index + 1] if index + 1 < len(operations) else None
        # A unit inserted after the last letter of a word belongs to that word.
        at_end = num_units in word_ends and not (following and following.ref is None)
        if rules.metric != "cer" or at_end or following is None or following.kind != operation.kind:
            ref, hyp = "".join(found.ref or "" for found in run), "".join(found.hyp or "" for found in run)
            ref, hyp = (text.replace(" ", "␣") or EMPTY for text in (ref, hyp))
            yield operation.kind, ref, hyp, rules.metric != "cer" or at_end
            run = []


def _read_confidences(path: Path) -> dict[str, float] | None:
    """The confidence of each utterance's best hypothesis in hyps.jsonl; None without the file."""
    if not path.is_file():
        return None
    found = {}
    for line in read_lines(path):
        try:
            record = json.loads(line)
            found[str(record["key"])] = float(record["confidence"])
        except (ValueError, KeyError, TypeError):  # an incomplete line, or no alignment
            continue
    return found


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
