# SPDX-License-Identifier: Apache-2.0
"""The encoder and its parts: padding never changes an utterance; lengths, positions, names of parameters."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import NUM_BINS, row_of, small_batch, small_model

from wenet_hs.nn.conformer import Encoder, GlobalCmvn
from wenet_hs.nn.layers import causal_mask, length_mask
from wenet_hs.nn.positional import (
    AbsolutePositionalEncoding,
    NoPositionalEncoding,
    PositionalEncoding,
    RelativePositionalEncoding,
    sinusoids,
)
from wenet_hs.nn.subsampling import Conv2dSubsampling, LinearSubsampling, Subsampling

KINDS = {
    "conformer": {},
    "layer_norm": {"encoder_conf": {"cnn_module_norm": "layer_norm"}},
    "bare": {"encoder_conf": {"macaron_style": False, "use_cnn_module": False, "normalize_before": False}},
    "conv2d6": {"encoder_conf": {"input_layer": "conv2d6", "pos_enc_layer_type": "abs_pos"}},
    "linear": {"encoder_conf": {"input_layer": "linear"}},
    "no_pos": {"encoder_conf": {"pos_enc_layer_type": "no_pos", "selfattention_layer_type": "selfattn"}},
    "transformer": {"encoder": "transformer"},
}
ENCODERS: dict[str, Encoder] = {name: small_model(**sections).encoder for name, sections in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, deadline=None)
@given(frames=st.lists(st.integers(1, 60), min_size=2, max_size=4), extra=st.integers(0, 9))
def test_an_utterance_is_the_same_alone_and_in_a_batch(kind: str, frames: list[int], extra: int) -> None:
    encoder, batch = ENCODERS[kind], small_batch(frames, [1] * len(frames), seed=sum(frames))
    junk = torch.full((len(frames), extra, NUM_BINS), 7.0)
    with torch.inference_mode():
        out, lengths = encoder(torch.cat([batch.features, junk], dim=1), batch.feature_lengths)
        for index, length in enumerate(lengths.tolist()):
            row = row_of(batch, index)
            alone, alone_lengths = encoder(row.features, row.feature_lengths)
            assert alone_lengths.tolist() == [length] == [encoder.subsampled_length(frames[index])]
            torch.testing.assert_close(out[index, :length], alone[0, :length], atol=1e-5, rtol=1e-5)
    assert out.isfinite().all()


def test_training_statistics_do_not_see_padding() -> None:
    """A longer pad changes neither the output nor the running statistics of a training step."""
    results = []
    for extra in (0, 30):
        model = small_model(encoder_conf={"dropout_rate": 0.0, "positional_dropout_rate": 0.0}).train()
        batch = small_batch([50, 31], [1, 1])
        features = torch.nn.functional.pad(batch.features, (0, 0, 0, extra))
        out, lengths = model.encoder(features, batch.feature_lengths)
        norm = model.encoder.encoders[0].conv_module.norm
        results.append((out[0, : lengths[0]], out[1, : lengths[1]], norm.running_mean, norm.running_var))
        assert int(norm.num_batches_tracked) == 1 + int(
            small_model().encoder.encoders[0].conv_module.norm.num_batches_tracked
        )
    for short, long in zip(*results, strict=True):
        torch.testing.assert_close(short, long, atol=1e-5, rtol=1e-5)


def test_a_batch_too_short_for_one_frame() -> None:
    batch = small_batch([3, 1], [1, 1])
    out, lengths = ENCODERS["conformer"](batch.features, batch.feature_lengths)
    assert lengths.tolist() == [0, 0]
    assert out.shape == (2, 1, 16)
    assert out.isfinite().all()


def test_ten_minutes() -> None:
    encoder = small_model(encoder_conf={"num_blocks": 1, "input_layer": "conv2d8"}).encoder
    with torch.inference_mode():
        out, lengths = encoder(torch.randn(1, 60_000, NUM_BINS), torch.tensor([60_000]))
    assert lengths.tolist() == [7499] == [out.size(1)]
    assert out.isfinite().all()


def test_cmvn() -> None:
    cmvn = GlobalCmvn(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.5]))
    assert cmvn(torch.tensor([[[3.0, 4.0]]])).tolist() == [[[4.0, 1.0]]]
    assert set(cmvn.state_dict()) == {"mean", "istd"}
    with pytest.raises(ValueError, match=r"mean \(2,\) and istd \(3,\) must both be \(F,\)"):
        GlobalCmvn(torch.zeros(2), torch.ones(3))


def test_names_of_layers_are_wenets() -> None:
    def names(kind: str) -> set[str]:
        prefix = "encoders.0."
        state = ENCODERS[kind].state_dict()
        return {name.removeprefix(prefix).split(".")[0] for name in state if name.startswith(prefix)}

    norms = {"norm_ff", "norm_mha", "norm_ff_macaron", "norm_conv", "norm_final"}
    assert names("conformer") == {"self_attn", "feed_forward", "feed_forward_macaron", "conv_module"} | norms
    assert names("bare") == {"self_attn", "feed_forward", "norm_ff", "norm_mha"}
    assert names("transformer") == {"self_attn", "feed_forward", "norm1", "norm2"}


FORMULA = {
    "conv2d": lambda t: ((t - 1) // 2 - 1) // 2,
    "conv2d6": lambda t: ((t - 1) // 2 - 2) // 3,
    "conv2d8": lambda t: (((t - 1) // 2 - 1) // 2 - 1) // 2,
}


def make_subsampling(kind: str, size: int = 4, bins: int = 20) -> Subsampling:
    torch.manual_seed(0)
    if kind == "linear":
        return LinearSubsampling(bins, size, dropout_rate=0.0, positional=NoPositionalEncoding(size, 0.0)).eval()
    return Conv2dSubsampling(kind, bins, size, NoPositionalEncoding(size, 0.0)).eval()


@pytest.mark.parametrize("kind", FORMULA)
def test_lengths_are_wenets_formula_and_the_real_shape(kind: str) -> None:
    embed = make_subsampling(kind)
    lengths = torch.arange(0, 80)
    expected = [max(0, FORMULA[kind](t)) for t in range(80)]
    assert [embed.subsampled_length(t) for t in range(80)] == expected
    assert embed.subsampled_length(lengths).tolist() == expected
    for frames in range(embed.min_frames, 40):
        assert embed(torch.zeros(1, frames, 20))[0].size(1) == expected[frames]
    assert expected[embed.min_frames] == 1
    assert expected[embed.min_frames - 1] == 0


@pytest.mark.parametrize("kind", FORMULA)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_frames_behind_the_end_do_not_matter(kind: str, data: st.DataObject) -> None:
    embed = make_subsampling(kind)
    frames = data.draw(st.integers(embed.min_frames, 60))
    features = torch.randn(1, frames, 20, generator=torch.Generator().manual_seed(frames))
    junk = torch.full((1, data.draw(st.integers(1, 20)), 20), data.draw(st.floats(-1e5, 1e5)))
    alone, batched = embed(features)[0], embed(torch.cat([features, junk], dim=1))[0]
    torch.testing.assert_close(batched[:, : alone.size(1)], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "names"), [
    ("conv2d", {"conv.0", "conv.2", "out.0"}),
    ("conv2d6", {"conv.0", "conv.2", "linear"}),
    ("conv2d8", {"conv.0", "conv.2", "conv.4", "linear"}),
    ("linear", {"out.0", "out.1"}),
])  # fmt: skip
def test_names_are_wenets(kind: str, names: set[str]) -> None:
    assert {name.rpartition(".")[0] for name in make_subsampling(kind).state_dict()} == names


def test_shapes_are_wenets() -> None:
    def shape(kind: str, name: str) -> tuple[int, ...]:
        return tuple(make_subsampling(kind, bins=80).state_dict()[name].shape)

    assert shape("conv2d", "out.0.weight") == (4, 19 * 4)
    assert shape("conv2d6", "conv.2.weight") == (4, 4, 5, 5)
    assert shape("conv2d6", "linear.weight") == (4, 4 * (((80 - 1) // 2 - 2) // 3))
    assert shape("conv2d8", "linear.weight") == (4, 4 * 9)


def test_linear_keeps_every_frame() -> None:
    embed = make_subsampling("linear")
    assert embed.subsampled_length(3) == 3
    assert embed(torch.randn(2, 3, 20))[0].shape == (2, 3, 4)


def test_too_few_features() -> None:
    with pytest.raises(ValueError, match="conv2d cannot subsample 6 features: none would be left"):
        Conv2dSubsampling("conv2d", 6, 4, NoPositionalEncoding(4, 0.0))


def test_sinusoids_by_hand() -> None:
    table = sinusoids(4, 4)
    expected = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in range(4)]
    torch.testing.assert_close(table, torch.tensor(expected))


def test_ten_minutes_of_audio() -> None:
    encoding = AbsolutePositionalEncoding(8, 0.0)
    assert encoding.positions(3, torch.device("cpu")).shape == (1, 3, 8)
    long = encoding.positions(15_000, torch.device("cpu"))
    torch.testing.assert_close(long[0], sinusoids(15_000, 8), rtol=0, atol=0)


def test_training_after_recognition() -> None:
    encoding, linear = AbsolutePositionalEncoding(4, 0.0), torch.nn.Linear(4, 4)
    with torch.inference_mode():
        encoding(torch.zeros(1, 5, 4))
    linear(encoding.positions(5, torch.device("cpu"))).sum().backward()
    assert linear.weight.grad is not None


@pytest.mark.parametrize("kind", (AbsolutePositionalEncoding, RelativePositionalEncoding, NoPositionalEncoding))
def test_tables_are_no_state(kind: type[PositionalEncoding]) -> None:
    encoding = kind(8, 0.1)
    encoding(torch.zeros(1, 600, 8))
    assert not encoding.state_dict()
    assert not list(encoding.buffers())


def test_what_each_kind_gives() -> None:
    x, table = torch.randn(2, 5, 4), sinusoids(9, 4)
    out, _ = AbsolutePositionalEncoding(4, 0.0)(x)
    torch.testing.assert_close(out, 2 * x + table[:5])
    out, positions = RelativePositionalEncoding(4, 0.0)(x)
    torch.testing.assert_close(out, 2 * x)
    torch.testing.assert_close(positions, table[None, :5])
    out, positions = NoPositionalEncoding(4, 0.0)(x)
    assert torch.equal(out, x)
    assert not positions.any()
    assert positions.shape == (1, 5, 4)


def test_masks() -> None:
    assert length_mask(torch.tensor([2, 0, 3]), 3).int().tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    assert causal_mask(2).int().tolist() == [[1, 0], [1, 1]]
