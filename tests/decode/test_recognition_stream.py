# SPDX-License-Identifier: Apache-2.0
"""Recognition of streams: the same results as of the whole with the same chunks, endpoints, wrong
pieces.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_folders import HSOFTMAX, noise, write_model_folder
from torch import Tensor, nn

from wenet_hs.decode import MODES, DecodeOptions
from wenet_hs.decode.stream import EndpointRules, RecognitionStream, StreamedSegment
from wenet_hs.recognizer import Recognizer, load_model
from wenet_hs.tree.errors import CheckpointError, ConfigError

STREAMING: dict[str, Any] = {"encoder_conf": {"causal": True, "use_dynamic_chunk": True}}
CHUNKS = DecodeOptions(beam_size=4, decoding_chunk_size=4, num_decoding_left_chunks=2)
ONE_SEGMENT = EndpointRules(silence_s=99, max_segment_s=99, no_speech_s=99)


@pytest.fixture(scope="module")
def recognizer(tmp_path_factory: pytest.TempPathFactory) -> Recognizer:
    return load_model(
        write_model_folder(tmp_path_factory.mktemp("models") / "m", **STREAMING), options=CHUNKS
    )


@pytest.fixture(scope="module")
def of_tree(tmp_path_factory: pytest.TempPathFactory) -> Recognizer:
    folder = write_model_folder(tmp_path_factory.mktemp("models") / "tree", **STREAMING, **HSOFTMAX)
    return load_model(folder, options=CHUNKS)


def feed(
    stream: RecognitionStream, wave: np.ndarray[Any, Any], rate: int, size: int
) -> list[StreamedSegment]:
    pieces = [wave[begin : begin + size] for begin in range(0, len(wave), size)]
    return [found for piece in pieces for found in stream.feed(piece, rate)] + stream.finish()


@pytest.mark.parametrize("head", ["softmax", "hsoftmax"])
@pytest.mark.parametrize(
    ("mode", "rate", "size"),
    # Pieces and rates end in the frontend, before the modes.
    [
        *((mode, 16000, 5000) for mode in MODES),
        ("attention_rescoring", 16000, 160),
        ("joint", 44100, 4410),
    ],
)
def test_a_segment_has_the_result_of_the_whole(
    recognizer: Recognizer, of_tree: Recognizer, head: str, mode: str, rate: int, size: int
) -> None:
    recognizer = of_tree if head == "hsoftmax" else recognizer
    wave = noise(1.5, rate=rate)
    whole = recognizer.transcribe((wave, rate), mode=mode, max_segment_s=0)
    stream = recognizer.stream(mode=mode, endpoints=ONE_SEGMENT)
    [found] = feed(stream, wave, rate, size)
    assert found.text == whole.text
    if found.units:
        assert (found.start, found.end) == (found.units[0].start, found.units[-1].end)
    assert found.score == pytest.approx(whole.score, abs=1e-3)
    assert (found.units is None) == (whole.units is None)
    for ours, other in zip(found.units or (), whole.units or (), strict=True):
        assert (ours.text, ours.start, ours.end) == (other.text, other.start, other.end)
        assert ours.confidence == pytest.approx(other.confidence, abs=1e-3)


def test_partial_texts_are_those_of_the_prefix_search_so_far(recognizer: Recognizer) -> None:
    wave, stream, texts = noise(2.0), recognizer.stream(endpoints=ONE_SEGMENT), [""]
    assert stream.partial == texts[0]
    for begin in range(0, len(wave), 4000):
        assert stream.feed(wave[begin : begin + 4000], 16000) == []
        texts.append(stream.partial)
    assert len(set(texts)) > 2
    # 198 features complete 12 chunks, 48 frames; so many frames are those of 195 features.
    part = recognizer.transcribe((wave[: 194 * 160 + 400], 16000), mode="ctc_prefix_beam_search")
    assert texts[-1] == part.text
    stream.finish()
    assert stream.partial == ""


class ScriptedEncoder:
    """Chunks of two frames, whose memory is the number of the frame in the stream."""

    def __init__(self, num_frames: int) -> None:
        self.left, self.num_frames, self.total = num_frames, 0, 0

    def restart(self, num_kept: int) -> None:
        self.num_frames = num_kept

    def advance(self, features: Tensor) -> Any:
        while self.left > 1:
            self.left -= 2
            yield self.step(2)

    def finish(self) -> Tensor:
        return self.step(self.left)

    def step(self, count: int) -> Tensor:
        memory = torch.arange(self.total, self.total + count, dtype=torch.float32)[:, None]
        self.num_frames, self.total = self.num_frames + count, self.total + count
        return memory


class ScriptedHead(nn.Module):
    """The best unit of each frame by its number: `.` is blank."""

    def __init__(self, script: str) -> None:
        super().__init__()
        self.num_units = 11
        self.units = torch.tensor([0 if letter == "." else int(letter) for letter in script])

    def topk(self, memory: Tensor, k: int) -> tuple[Tensor, Tensor]:
        best = self.units[memory[..., 0].long()]
        assert k <= 4
        other = torch.where(best == 0, 3, 0)
        return torch.tensor([-0.1, -3.0]).expand(*best.shape, 2), torch.stack([best, other], dim=-1)

    def label_log_probs(self, memory: Tensor, ids: Tensor) -> Tensor:
        best = self.units[memory[..., 0].long()]
        return torch.where(best[..., None] == ids, -0.1, -3.0)


SCRIPTS = {  # with the frames at which a segment begins, and the one after it
    "......4.55.........3......": [("45", 0, 13), ("3", 13, 23)],  # silence of 6 frames
    ".." * 12 + "4.": [("4", 15, 26)],  # half is dropped after 10 frames without speech
    "3.4.5.6.7.8.9.3.4.5.6.7.": [("34567893", 0, 15), ("4567", 15, 24)],  # 16 frames at most
    "3.4.5.6.7.8...9344445567": [("345678", 0, 12), ("934567", 12, 24)],
    "....................": [],
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_endpoints(recognizer: Recognizer, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = recognizer.stream(
        mode="ctc_greedy_search",
        endpoints=EndpointRules(silence_s=0.24, max_segment_s=0.64, no_speech_s=0.4),
    )
    model = recognizer._experiment.model
    stream._encoder = ScriptedEncoder(len(script))  # type: ignore[assignment]
    monkeypatch.setitem(model.ctc._modules, "head", ScriptedHead(script))
    found = stream.feed(np.zeros(400, np.float32), 16000) + stream.finish()
    names = recognizer._experiment.tokenizer.table.units
    assert [[unit.text for unit in one.units or ()] for one in found] == [
        [names[int(unit)] for unit in units] for units, *_ in SCRIPTS[script]
    ]
    for one, (_, first, end) in zip(found, SCRIPTS[script], strict=True):
        assert one.units and (one.start, one.end) == (one.units[0].start, one.units[-1].end)
        assert 0.04 * first <= one.start < one.end <= 0.04 * end + 0.03
        spoken = [frame for frame in range(first, end) if script[frame] != "."]
        assert one.start == pytest.approx(0.04 * spoken[0] + 0.0225)
        assert one.end == pytest.approx(0.04 * (spoken[-1] + 1) + 0.0225)


def test_a_long_silence_is_not_kept(
    recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = EndpointRules(silence_s=0.24, max_segment_s=0.64, no_speech_s=0.4)
    stream = recognizer.stream(mode="ctc_greedy_search", endpoints=rules)
    script = 2000 * "." + "45"
    stream._encoder = ScriptedEncoder(len(script))  # type: ignore[assignment]
    head = ScriptedHead(script)
    monkeypatch.setitem(recognizer._experiment.model.ctc._modules, "head", head)
    assert stream.feed(np.zeros(400, np.float32), 16000) == []
    num_frames = sum(map(len, stream._parts))
    assert 2 < num_frames < 14 and stream._start == len(script) - num_frames
    [segment] = stream.finish()
    assert segment.start == pytest.approx(0.04 * 2000 + 0.0225)


@pytest.fixture(scope="module")
def without_attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose frames see others by convolutions only: an endpoint may not change any of them."""
    folder = write_model_folder(tmp_path_factory.mktemp("models") / "convolutions", **STREAMING)
    experiment = load_model(folder)._experiment
    weights = experiment.model.state_dict()
    for name, value in weights.items():
        if "self_attn.linear_out" in name and name.startswith("encoder"):
            value.zero_()
    features_TF = experiment.frontend.compute(torch.from_numpy(noise(5.0)))
    memory_1TD, _ = experiment.model.encode(features_TF[None], torch.tensor([len(features_TF)]))
    weight, bias = (weights[f"ctc.head.output.{name}"] for name in ("weight", "bias"))
    weight *= 20
    bias.copy_(-weight @ memory_1TD[0].mean(0))  # frames have different units
    bias[0] += 0.9  # and many of them none
    torch.save(weights, folder / "final.pt")
    return folder


@pytest.mark.parametrize(("size", "left"), [(3, 0), (4, -1), (8, 2), (16, 4)])
@pytest.mark.parametrize(
    "rules",
    [
        EndpointRules(silence_s=0.08, max_segment_s=99, no_speech_s=99),
        EndpointRules(silence_s=99, max_segment_s=0.9, no_speech_s=99),
        EndpointRules(silence_s=0.08, max_segment_s=0.7, no_speech_s=0.1),
    ],
    ids=["silence", "length", "all"],
)
def test_endpoints_neither_lose_nor_repeat_a_unit(
    without_attention: Path, rules: EndpointRules, size: int, left: int
) -> None:
    """The units and their times are those of the stream without endpoints."""
    options = DecodeOptions(decoding_chunk_size=size, num_decoding_left_chunks=left)
    model = load_model(without_attention, options=options)
    wave = noise(5.0)
    segments = feed(model.stream(mode="ctc_greedy_search", endpoints=rules), wave, 16000, 3000)
    [whole] = feed(model.stream(mode="ctc_greedy_search", endpoints=ONE_SEGMENT), wave, 16000, 3000)
    assert len(segments) >= 3 and whole.units and len(whole.units) > 20
    units = [unit for segment in segments for unit in segment.units or ()]
    assert [(unit.text, unit.start, unit.end) for unit in units] == [
        (unit.text, pytest.approx(unit.start), pytest.approx(unit.end)) for unit in whole.units
    ]


@pytest.mark.parametrize(
    ("piece", "rate", "message"),
    [
        (
            np.zeros(100, np.float32),
            8000,
            "sample rate 8000: the stream began with 16000 Hz; start another stream",
        ),
        (b"abc", 16000, "3 bytes: samples have 16 bits; give an even number of bytes"),
        (np.full(100, np.nan, np.float32), 16000, "waveform: a peak of nan; floats must be finite"),
        (np.zeros(100, np.uint8), 16000, "waveform: torch.uint8; expected floats"),
        (np.zeros(100, np.float32), 0, "sample rate 0: must be from 1000 to 1000000 Hz"),
        (np.zeros(100, np.float32), math.inf, "sample rate inf: must be from"),
        (np.zeros(100, np.float32), "16k", "sample rate '16k': must be from"),
        (None, 16000, "waveform: object; expected floats"),
        (np.zeros((0, 5), np.float32), 16000, r"waveform: shape \(0, 5\), expected"),
        (
            np.zeros((32, 1), np.float32),
            16000,
            r"waveform: 32 channels; expected \(channels, samples\), transpose it",
        ),
    ],
)
def test_wrong_pieces_are_refused_and_the_stream_goes_on(
    recognizer: Recognizer, piece: Any, rate: int, message: str
) -> None:
    stream, wave = recognizer.stream(endpoints=ONE_SEGMENT), noise(0.8)
    assert stream.feed(wave[:4000], 16000) == []
    with pytest.raises(ValueError, match=message):
        stream.feed(piece, rate)
    found = stream.feed(wave[4000:], 16000) + stream.finish()
    assert [one.text for one in found] == [recognizer.transcribe((wave, 16000)).text]
    for call in (lambda: stream.feed(wave, 16000), stream.finish):
        with pytest.raises(ValueError, match="the stream has ended: begin another one"):
            call()


def test_bytes_are_samples_of_16_bits_and_a_stream_may_be_empty(recognizer: Recognizer) -> None:
    samples = (noise(0.8) * 32767).astype("<i2")
    stream = recognizer.stream(endpoints=ONE_SEGMENT)
    assert stream.feed(b"", 16000) == []
    [found] = stream.feed(samples.tobytes(), 16000) + stream.finish()
    assert found.text == recognizer.transcribe((samples, 16000)).text
    other = recognizer.stream(endpoints=ONE_SEGMENT)
    [same] = other.feed(bytearray(samples.tobytes()), 16000) + other.finish()
    assert same == found
    assert recognizer.stream().finish() == []
    with pytest.raises(ValueError, match="silence_s 0: must be above 0 s"):
        EndpointRules(silence_s=0)


def test_weights_that_are_not_finite_are_named(tmp_path: Path) -> None:
    damaged = load_model(write_model_folder(tmp_path / "nan", **STREAMING))
    with torch.no_grad():
        damaged._experiment.model.encoder.after_norm.weight.fill_(math.nan)
    with pytest.raises(
        CheckpointError, match="encoder output: NaN or infinity; the weights are damaged"
    ):
        damaged.stream().feed(noise(2.0), 16000)
    damaged = load_model(write_model_folder(tmp_path / "ctc", **STREAMING))
    with torch.no_grad():
        damaged._experiment.model.ctc.head.output.weight.fill_(math.nan)  # type: ignore[operator, union-attr]
    with pytest.raises(CheckpointError, match="CTC output: NaN; the weights are damaged"):
        damaged.stream().feed(noise(2.0), 16000)


def test_a_first_segment_whose_frames_are_all_blank_has_the_text_of_the_whole(
    tmp_path: Path,
) -> None:
    model = load_model(write_model_folder(tmp_path / "m", **STREAMING), options=CHUNKS)
    with torch.no_grad():
        model._experiment.model.ctc.head.output.bias[0] += 20  # type: ignore[index, operator, union-attr]
    for mode in ("attention", "attention_rescoring", "ctc_greedy_search"):
        whole = model.transcribe((noise(1.0), 16000), mode=mode).text
        stream = model.stream(mode=mode, endpoints=ONE_SEGMENT)
        assert "".join(one.text for one in feed(stream, noise(1.0), 16000, 4000)) == whole
        assert bool(whole) or mode != "attention", "the decoder has a text"
    rules = EndpointRules(silence_s=99, max_segment_s=0.7, no_speech_s=99)
    stream = model.stream(mode="attention", endpoints=rules)
    assert len(feed(stream, noise(3.0), 16000, 4000)) == 1, "later segments are silence"


def test_models_that_cannot_stream(tmp_path: Path, recognizer: Recognizer) -> None:
    whole = load_model(write_model_folder(tmp_path / "whole"))
    with pytest.raises(
        ConfigError,
        match="stream: this model's encoder reads whole utterances; use another model, or",
    ):
        whole.stream()
    with pytest.raises(ConfigError, match="decoding_chunk_size -1: a stream has chunks"):
        load_model(
            recognizer._experiment.model_dir, options=DecodeOptions(decoding_chunk_size=-1)
        ).stream()
    no_ctc = load_model(
        write_model_folder(tmp_path / "no_ctc", **STREAMING, model_conf={"ctc_weight": 0.0})
    )
    with pytest.raises(ConfigError, match="stream: this model was trained without CTC"):
        no_ctc.stream()
    static = {"encoder_conf": {"causal": True, "static_chunk_size": 8}}
    options = load_model(write_model_folder(tmp_path / "static", **static)).stream()._options
    assert (options.decoding_chunk_size, options.num_decoding_left_chunks) == (8, 4)
    for left in (0, -1):
        options = DecodeOptions(num_decoding_left_chunks=left)
        streamed = load_model(recognizer._experiment.model_dir, options=options).stream()._options
        assert (streamed.decoding_chunk_size, streamed.num_decoding_left_chunks) == (16, left)
