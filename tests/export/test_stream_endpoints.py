# SPDX-License-Identifier: Apache-2.0
"""Endpoints of a trained model over a grid of pauses: no unit is lost or written twice.

Dimension key: N samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from shared_exports import Shared, shared_folder
from tone_models import EDGE_S, RATE, pause, tones

from wenet_hs.decode import DecodeOptions
from wenet_hs.decode.endpoints import EndpointRules
from wenet_hs.decode.stream import StreamedSegment
from wenet_hs.recognizer import Recognizer, load_model

pytestmark = pytest.mark.slow

Wave = NDArray[np.float32]
RULES = EndpointRules()
SHORT_RULES = EndpointRules(silence_s=0.3, max_segment_s=4, no_speech_s=1)
CHUNKS = ((16, 4), (8, -1), (4, 16), (16, 0))
REPEATED_S = 0.5
"""Audio before an endpoint that a new stream of sherpa-onnx gets again, as in docs/export.md."""


@dataclass(frozen=True)
class Clip:
    """Words and silences."""

    wave: Wave
    text: str
    last_word_s: float
    """Where the last word begins."""


def word(text: str, generator: np.random.Generator) -> Wave:
    """The tones of a word without the silence at both ends."""
    edge = round(EDGE_S * RATE)
    return tones(text, generator)[edge:-edge]


def two_words() -> Iterator[Clip]:
    """Two words with pauses that end at all places of a chunk of 640 ms."""
    generator = np.random.default_rng(3)
    for first in "bdg":
        for pause_ms in range(1200, 1840, 40):
            begin = [
                pause(0.5, generator),
                word("cab", generator),
                pause(pause_ms / 1000, generator),
            ]
            last_word_s = sum(map(len, begin)) / RATE
            end = [word(f"{first}ed", generator), pause(0.6, generator)]
            yield Clip(np.concatenate(begin + end), f"cab{first}ed", last_word_s)


def late_word() -> Iterator[Clip]:
    """A word after about five seconds of silence."""
    generator = np.random.default_rng(4)
    for first in "bg":
        for pause_ms in range(4900, 5560, 60):
            silence = pause(pause_ms / 1000, generator)
            wave = np.concatenate([silence, word(f"{first}ed", generator), pause(0.6, generator)])
            yield Clip(wave, f"{first}ed", len(silence) / RATE)


def long_speech() -> Iterator[Clip]:
    """Words without a pause, longer than a segment may be."""
    generator = np.random.default_rng(5)
    for text in ("badgecafedabfaceegg" * 2, "cabbagedeafgagabed" * 2):
        wave = np.concatenate([pause(0.4, generator), word(text, generator), pause(0.6, generator)])
        yield Clip(wave, text, 0.4)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return shared_folder(tmp_path_factory)


def model_of(shared: Shared, size: int, left: int) -> Recognizer:
    options = DecodeOptions(decoding_chunk_size=size, num_decoding_left_chunks=left)
    return load_model(shared.model("pauses"), options=options)


def text_of(segments: list[StreamedSegment]) -> str:
    return "".join(segment.text for segment in segments).replace(" ", "")


def hear(model: Recognizer, clip: Clip, rules: EndpointRules, mode: str) -> list[StreamedSegment]:
    stream = model.stream(mode=mode, endpoints=rules)
    return stream.feed(clip.wave, RATE) + stream.finish()


@pytest.mark.parametrize(("size", "left"), CHUNKS)
def test_no_endpoint_costs_a_sound(shared: Shared, size: int, left: int) -> None:
    model = model_of(shared, size, left)
    num_segments = 0
    for clip in [*two_words(), *late_word()]:
        segments = hear(model, clip, RULES, "ctc_prefix_beam_search")
        assert text_of(segments) == clip.text
        assert all(one.end <= other.start for one, other in pairwise(segments))
        num_segments += len(segments)
        if len(segments) == 2 or len(clip.text) == 3:
            assert segments[-1].start == pytest.approx(clip.last_word_s + 0.1, abs=0.15)
    assert num_segments > 90


@pytest.mark.parametrize("mode", ["ctc_greedy_search", "attention_rescoring", "joint"])
def test_no_endpoint_costs_a_sound_in_other_modes(shared: Shared, mode: str) -> None:
    model = model_of(shared, 16, 4)
    for clip in [*two_words(), *late_word()][::2]:
        assert text_of(hear(model, clip, RULES, mode)) == clip.text


@pytest.mark.parametrize(("size", "left"), CHUNKS)
def test_short_segments_cost_no_sound(shared: Shared, size: int, left: int) -> None:
    """Also where a segment is too long and ends without a silence."""
    model = model_of(shared, size, left)
    for clip in [*list(two_words())[::4], *long_speech()]:
        segments = hear(model, clip, SHORT_RULES, "ctc_greedy_search")
        assert text_of(segments) == clip.text
        assert len(segments) >= 2


# ---- sherpa-onnx


def hear_in_sherpa(export: Path, clip: Clip, *, repeats: bool) -> str:
    """What sherpa-onnx recognises in a stream, in segments of a second of silence.

    repeats: at an endpoint begin a new stream with the last `REPEATED_S` of the audio, instead of
        `reset`, which its programs call.
    """
    sherpa_onnx = pytest.importorskip("sherpa_onnx")
    recognizer = sherpa_onnx.OnlineRecognizer.from_wenet_ctc(
        model=str(export / "model.onnx"),
        tokens=str(export / "tokens.txt"),
        chunk_size=16,
        num_left_chunks=4,
        num_threads=1,
        enable_endpoint_detection=True,
        rule2_min_trailing_silence=1.0,
    )
    wave_N = np.concatenate([clip.wave, np.zeros(round(0.7 * RATE), np.float32)])
    stream = recognizer.create_stream()
    texts = []
    for end in range(1600, len(wave_N) + 1600, 1600):
        stream.accept_waveform(RATE, wave_N[end - 1600 : end])
        while recognizer.is_ready(stream):
            recognizer.decode_stream(stream)
            if not recognizer.is_endpoint(stream):
                continue
            texts.append(str(recognizer.get_result(stream)))
            if not repeats:
                recognizer.reset(stream)
                continue
            stream = recognizer.create_stream()
            stream.accept_waveform(RATE, wave_N[max(0, end - round(REPEATED_S * RATE)) : end])
    texts.append(str(recognizer.get_result(stream)))
    return "".join(texts).replace(" ", "")


def test_sherpa_loses_units_at_its_reset_and_none_if_audio_is_given_again(shared: Shared) -> None:
    """The limit and the remedy of docs/export.md."""
    export = shared.export("pauses", "sherpa", streaming=True)
    clips = list(two_words())[:16]
    expected = [clip.text for clip in clips]
    after_reset = [hear_in_sherpa(export, clip, repeats=False) for clip in clips]
    assert after_reset != expected, "if sherpa-onnx was mended, the limit is to be removed"
    assert [hear_in_sherpa(export, clip, repeats=True) for clip in clips] == expected
