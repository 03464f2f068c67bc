# SPDX-License-Identifier: Apache-2.0
"""Encoders over streams: equal to the whole with the same chunks, to WeNet's causal models, in an
hour too.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import NUM_BINS, small_batch, small_model, wenet_reference
from torch import Tensor

from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.decode.modes import check_options, decode
from wenet_hs.interop.wenet import load_wenet_model
from wenet_hs.model.encoders.base import ChunkRule
from wenet_hs.model.encoders.stream import EncoderStream
from wenet_hs.nn.layers import Chunk
from wenet_hs.tree.errors import ConfigError

STREAMING: dict[str, Any] = {"causal": True, "use_dynamic_chunk": True}
ENCODERS: dict[str, dict[str, Any]] = {
    "conformer": {"encoder_conf": {**STREAMING, "cnn_module_kernel": 6}},
    "layer_norm": {
        "encoder_conf": {**STREAMING, "cnn_module_norm": "layer_norm", "input_layer": "conv2d6"}
    },
    "abs_pos": {
        "encoder_conf": {
            **STREAMING,
            "pos_enc_layer_type": "abs_pos",
            "selfattention_layer_type": "selfattn",
        }
    },
    "transformer": {
        "encoder": "transformer",
        "encoder_conf": {"use_dynamic_chunk": True, "input_layer": "linear"},
    },
}
MODELS = {name: small_model(**sections) for name, sections in ENCODERS.items()}
WENET_MODELS = ["causal_batchnorm_bitransformer", "causal_layernorm"]
GOLDEN = [(chunk, left) for chunk, left in ((4, -1), (4, 2), (8, 1))]


def whole(name: str, features: Tensor, chunk: Chunk | None) -> Tensor:
    with torch.inference_mode():
        return MODELS[name].encoder(features[None], torch.tensor([len(features)]), (), chunk)[0][0]


@pytest.mark.parametrize("name", ENCODERS)
@settings(max_examples=6, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 90), max_size=6),
    size=st.integers(1, 9),
    left=st.integers(-1, 3),
    seed=st.integers(0, 9),
)
def test_any_division_gives_the_memory_of_the_whole(
    name: str, cuts: list[int], size: int, left: int, seed: int
) -> None:
    features = torch.randn(90, NUM_BINS, generator=torch.Generator().manual_seed(seed))
    stream, ends = EncoderStream(MODELS[name].encoder, Chunk(size, left)), [*sorted(cuts), 90]
    parts = [
        part
        for start, end in zip([0, *ends], ends, strict=False)
        for part in stream.advance(features[start:end])
    ]
    torch.testing.assert_close(
        torch.cat([*parts, stream.finish()]), whole(name, features, stream.chunk), atol=1e-5, rtol=0
    )


def test_a_new_utterance_begins_with_the_features_that_are_left() -> None:
    features = torch.randn(120, NUM_BINS)
    stream = EncoderStream(MODELS["conformer"].encoder, Chunk(4, 1))
    first = torch.cat([*stream.advance(features[:70])])
    stream.restart()
    rest = torch.cat([*stream.advance(features[70:]), stream.finish()])
    torch.testing.assert_close(
        rest, whole("conformer", features[4 * len(first) :], Chunk(4, 1)), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("left", [-1, 1])
def test_a_new_utterance_may_begin_with_the_last_frames(left: int) -> None:
    """One layer without convolutions: its frames depend on the frames and positions that are seen
    only.
    """
    conf = {"use_dynamic_chunk": True, "input_layer": "linear", "num_blocks": 1}
    positions = {"pos_enc_layer_type": "rel_pos", "selfattention_layer_type": "rel_selfattn"}
    sections: dict[str, Any] = {"encoder": "transformer", "encoder_conf": {**conf, **positions}}
    encoder = small_model(**sections).encoder
    features = torch.randn(60, NUM_BINS, generator=torch.Generator().manual_seed(0))
    stream = EncoderStream(encoder, Chunk(8, left))  # type: ignore[arg-type]
    first = torch.cat([*stream.advance(features[:43])])
    assert len(first) == 40
    stream.restart(8)
    rest = torch.cat([*stream.advance(features[43:]), stream.finish()])
    other = EncoderStream(encoder, Chunk(8, left))  # type: ignore[arg-type]
    expected = torch.cat([*other.advance(features[32:]), other.finish()])
    torch.testing.assert_close(rest, expected[8:], atol=1e-5, rtol=0)


def test_caches_of_all_frames_do_not_grow_beyond_the_utterance() -> None:
    stream = EncoderStream(MODELS["conformer"].encoder, Chunk(4, -1))
    for _ in range(20):
        list(stream.advance(torch.randn(80, NUM_BINS)))
        stream.restart(3)
        assert {cache.attention.size(2) for cache in stream.caches} == {3}
        assert stream.num_frames == 3


@pytest.mark.slow
def test_an_hour_needs_no_more_memory_than_a_minute_and_no_longer_table() -> None:
    """A frame depends on few frames before it, so the end of the hour is the end of a part at the
    same position.
    """
    encoder, chunk = MODELS["conformer"].encoder, Chunk(64, 1)
    part, stream = torch.randn(6000, NUM_BINS), EncoderStream(encoder, chunk)
    for _ in range(60):
        last = torch.cat([*stream.advance(part)])
        sizes = {(cache.attention.shape, cache.convolution.shape) for cache in stream.caches}
        assert sizes == {((1, 2, 64, 16), (1, 5, 16))}
        assert len(encoder.embed.pos_enc._table_TD) <= 512
    assert stream.num_frames == 89_984
    later = EncoderStream(encoder, chunk)
    later.num_frames = stream.num_frames - 64 * 15
    tail = torch.cat(
        [*later.advance(part.repeat(2, 1)[-(60 * 6000 - later.num_frames * encoder.stride) :])]
    )
    torch.testing.assert_close(tail[-64:], last[-64:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", WENET_MODELS)
@torch.inference_mode()
def test_causal_models_of_wenet_whole_and_streamed(shared_dir: Path, name: str) -> None:
    yaml, weights, arrays = wenet_reference(shared_dir / "golden" / "wenet_causal", name)
    model = load_wenet_model(yaml, weights)
    for row in range(3):
        features, lengths = (
            arrays[f"{row}.feats"][None],
            torch.tensor([len(arrays[f"{row}.feats"])]),
        )
        decoded = decode(
            model,
            features,
            lengths,
            modes := ["ctc_greedy_search", "attention"],
            DecodeOptions(beam_size=4),
        )
        for mode in modes:
            assert list(decoded[mode][0][0].ids) == arrays[f"{row}.{mode}.tokens"].tolist()
        for size, left in GOLDEN:
            expected = f"{row}.chunk{size}.left{left}"
            memory, _ = model.encode(features, lengths, size, left)
            torch.testing.assert_close(
                memory[0], arrays[f"{expected}.encoder_out"], atol=1e-4, rtol=0
            )
            for is_streamed, kind in ((False, "masked"), (True, "streamed")):
                options = DecodeOptions(
                    beam_size=4,
                    decoding_chunk_size=size,
                    num_decoding_left_chunks=left,
                    simulate_streaming=is_streamed,
                )
                decoded = decode(
                    model, features, lengths, ["ctc_greedy_search", "attention_rescoring"], options
                )
                for mode, [[best, *_]] in decoded.items():
                    assert list(best.ids) == arrays[f"{expected}.{mode}.{kind}.tokens"].tolist()
            streamed = EncoderStream(model.encoder, Chunk(size, left))
            parts = torch.cat([*streamed.advance(features[0]), streamed.finish()])
            torch.testing.assert_close(
                parts, arrays[f"{expected}.streamed_encoder_out"], atol=1e-4, rtol=0
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", WENET_MODELS)
@torch.inference_mode()
def test_wenet_draws_the_chunk_of_its_forward_in_evaluation_too(
    shared_dir: Path, name: str
) -> None:
    yaml, weights, arrays = wenet_reference(shared_dir / "golden" / "wenet_causal", name)
    model = load_wenet_model(yaml, weights)
    drawn = [None, *(Chunk(size, left) for size in range(1, 26) for left in range(-1, 5))]
    for row in range(3):
        features, lengths = (
            arrays[f"{row}.feats"][None],
            torch.tensor([len(arrays[f"{row}.feats"])]),
        )
        found = [model.encoder(features, lengths, (), chunk)[0][0] for chunk in drawn]
        assert min(float((one - arrays[f"{row}.encoder_out"]).abs().max()) for one in found) < 1e-4


@pytest.mark.parametrize(("left", "most"), [(False, -1), (True, 7)])
def test_chunks_of_training_are_drawn_by_wenets_distribution(left: bool, most: int) -> None:
    torch.manual_seed(0)
    drawn = [ChunkRule(None, draws_left=left).draw(40) for _ in range(4000)]
    assert 0.45 < drawn.count(None) / len(drawn) < 0.55  # from 1 to 39; above 20 one chunk
    sizes = Counter(chunk.size for chunk in drawn if chunk is not None)
    assert set(sizes) == set(range(2, 22)) and max(sizes.values()) < 1.5 * min(sizes.values())
    lefts = {chunk.left for chunk in drawn if chunk is not None and chunk.size == 4}
    assert lefts == ({*range(9)} if left else {-1})
    assert most in {chunk.left for chunk in drawn if chunk is not None}
    assert all(
        ChunkRule(None, draws_left=True).draw(length) in (None, Chunk(2, 0))
        for length in (0, 1, 2, 3)
    )


@torch.no_grad()
def test_training_sees_chunks_and_evaluation_everything_or_static_chunks() -> None:
    model, batch = small_model(**ENCODERS["conformer"]), small_batch([90], [3])
    losses = {float(model(batch).ctc) for _ in range(3)}
    assert len(losses) == 1
    model.train()
    for module in model.modules():
        module.p = 0.0  # no dropout
    assert len({round(float(model(batch).ctc), 3) for _ in range(8)}) > 1
    static = small_model(encoder_conf={"causal": True, "static_chunk_size": 4}).encoder
    arguments = batch.features, batch.feature_lengths
    assert torch.equal(static(*arguments)[0], static(*arguments, (), Chunk(4))[0])
    assert not torch.equal(static(*arguments)[0], static(*arguments, (), Chunk(100))[0])


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            small_model(),
            {"decoding_chunk_size": 4},
            "decoding_chunk_size 4: this model's encoder reads whole utterances",
        ),
        (
            small_model(encoder_conf={"causal": True, "static_chunk_size": 4}),
            {"decoding_chunk_size": 8},
            "decoding_chunk_size 8: this model was trained with chunks of 4; use that size",
        ),
        (
            MODELS["conformer"],
            {"num_decoding_left_chunks": 2},
            "num_decoding_left_chunks: has no effect without",
        ),
        (
            MODELS["conformer"],
            {"simulate_streaming": True},
            "simulate_streaming: has no effect without decoding_chunk",
        ),
    ],
)
def test_a_model_that_cannot_stream_says_so(
    model: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_options(model, DecodeOptions(**options), ["ctc_greedy_search"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"decoding_chunk_size": 0},
            "decoding_chunk_size 0: must be at least 1, or -1: whole utterances",
        ),
        ({"decoding_chunk_size": -2}, "decoding_chunk_size -2: must be at least 1, or -1"),
        (
            {"decoding_chunk_size": 4, "num_decoding_left_chunks": -2},
            "num_decoding_left_chunks -2: must be at least 0",
        ),
    ],
)
def test_chunks_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecodeOptions(**options)
