# SPDX-License-Identifier: Apache-2.0
"""The encoder and its parts: padding changes nothing; lengths, positions, names; batch
normalization over ranks.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import NUM_BINS, row_of, small_batch, small_model
from torch import nn

from wenet_hs.heads.masks import length_mask
from wenet_hs.model.encoders.base import SpeechEncoder
from wenet_hs.model.encoders.stack import EncoderStack
from wenet_hs.nn.conformer import ConvolutionModule, GlobalCmvn, MaskedBatchNorm
from wenet_hs.nn.layers import Chunk, PositionalEncoding, causal_mask, sinusoids
from wenet_hs.nn.subsampling import Conv2dSubsampling, LinearSubsampling, Subsampling

KINDS = {
    "conformer": {},
    "layer_norm": {"encoder_conf": {"cnn_module_norm": "layer_norm"}},
    "bare": {
        "encoder_conf": {"macaron_style": False, "use_cnn_module": False, "normalize_before": False}
    },
    "conv2d6": {
        "encoder_conf": {"input_layer": "conv2d6", "pos_enc_layer_type": "abs_pos", "num_blocks": 1}
    },
    "conv2d8": {"encoder_conf": {"input_layer": "conv2d8", "num_blocks": 1}},
    "linear": {"encoder_conf": {"input_layer": "linear", "num_blocks": 1}},
    "no_pos": {
        "encoder_conf": {"pos_enc_layer_type": "no_pos", "selfattention_layer_type": "selfattn"}
    },
    "transformer": {"encoder": "transformer"},
}
ENCODERS: dict[str, SpeechEncoder] = {
    name: small_model(**sections).encoder for name, sections in KINDS.items()
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6, deadline=None)
@given(frames=st.lists(st.integers(1, 60), min_size=2, max_size=4), extra=st.integers(0, 9))
def test_an_utterance_is_the_same_alone_and_in_a_batch(
    kind: str, frames: list[int], extra: int
) -> None:
    encoder, batch = ENCODERS[kind], small_batch(frames, [1] * len(frames), seed=sum(frames))
    junk = torch.full((len(frames), extra, NUM_BINS), 7.0)
    with torch.inference_mode():
        out, lengths, _ = encoder(torch.cat([batch.features, junk], dim=1), batch.feature_lengths)
        for index, length in enumerate(lengths.tolist()):
            row = row_of(batch, index)
            alone, alone_lengths, _ = encoder(row.features, row.feature_lengths)
            assert alone_lengths.tolist() == [length] == [encoder.output_length(frames[index])]
            torch.testing.assert_close(out[index, :length], alone[0, :length], atol=1e-5, rtol=1e-5)
    assert out.isfinite().all()


def test_padding_changes_no_statistics_of_a_training_step() -> None:
    results = []
    for extra in (0, 30):
        model = small_model(
            encoder_conf={"dropout_rate": 0.0, "positional_dropout_rate": 0.0}
        ).train()
        norm = model.encoder.encoders[0].conv_module.norm
        steps = int(norm.num_batches_tracked)
        batch = small_batch([50, 31], [1, 1])
        features = torch.nn.functional.pad(batch.features, (0, 0, 0, extra))
        out, lengths, _ = model.encoder(features, batch.feature_lengths)
        results.append(
            (out[0, : lengths[0]], out[1, : lengths[1]], norm.running_mean, norm.running_var)
        )
        assert int(norm.num_batches_tracked) == steps + 1
    for short, long in zip(*results, strict=True):
        torch.testing.assert_close(short, long, atol=1e-5, rtol=1e-5)


def test_very_short_and_very_long_batches() -> None:
    batch = small_batch([3, 1], [1, 1])
    out, lengths, _ = ENCODERS["conformer"](batch.features, batch.feature_lengths)
    assert (lengths.tolist(), out.shape, bool(out.isfinite().all())) == ([0, 0], (2, 1, 16), True)
    with torch.inference_mode():  # ten minutes
        out, lengths, _ = ENCODERS["conv2d8"](
            torch.randn(1, 60_000, NUM_BINS), torch.tensor([60_000])
        )
    assert lengths.tolist() == [7499] == [out.size(1)]
    assert out.isfinite().all()


def test_names_of_layers_are_wenets() -> None:
    """tests/golden has those of a Conformer."""
    for kind, norms in (("bare", {"norm_ff", "norm_mha"}), ("transformer", {"norm1", "norm2"})):
        layer = ENCODERS[kind].encoders[0]
        assert {name.split(".")[0] for name in layer.state_dict()} == {
            "self_attn",
            "feed_forward",
        } | norms


# ---- subsampling

SUBSAMPLING = {  # WeNet's formula of the length, names and shapes
    "conv2d": (lambda t: ((t - 1) // 2 - 1) // 2,
        {"conv.0": (4, 1, 3, 3), "conv.2": (4, 4, 3, 3), "out.0": (4, 19 * 4)}),
    "conv2d6": (lambda t: ((t - 1) // 2 - 2) // 3,
        {"conv.0": (4, 1, 3, 3), "conv.2": (4, 4, 5, 5), "linear": (4, 4 * 12)}),
    "conv2d8": (lambda t: (((t - 1) // 2 - 1) // 2 - 1) // 2,
        {"conv.0": (4, 1, 3, 3), "conv.2": (4, 4, 3, 3), "conv.4": (4, 4, 3, 3), "linear": (4, 4 * 9)}),
    "linear": (lambda t: t, {"out.0": (4, 80), "out.1": (4,)}),
}  # fmt: skip


@pytest.mark.parametrize("kind", SUBSAMPLING)
def test_lengths_names_and_shapes_are_wenets(kind: str) -> None:
    positional = PositionalEncoding(4, 0.0, "no_pos")
    if kind == "linear":
        embed: Subsampling = LinearSubsampling(80, 4, dropout_rate=0.0, positional=positional)
    else:
        embed = Conv2dSubsampling(kind, 80, 4, positional)
        with pytest.raises(
            ValueError, match=f"{kind} cannot subsample 6 features: none would be left"
        ):
            Conv2dSubsampling(kind, 6, 4, positional)
    length_of, shapes = SUBSAMPLING[kind]
    expected = [max(0, length_of(t)) for t in range(80)]
    assert [embed.output_length(t) for t in range(80)] == expected
    assert embed.output_length(torch.arange(0, 80)).tolist() == expected
    for frames in range(embed.min_frames, 40):
        assert embed(torch.zeros(1, frames, 80))[0].shape == (1, expected[frames], 4)
    assert (expected[embed.min_frames], expected[embed.min_frames - 1]) == (1, 0)
    weights = {name: value for name, value in embed.state_dict().items() if name.endswith("weight")}
    assert {
        name.removesuffix(".weight"): tuple(value.shape) for name, value in weights.items()
    } == shapes


def test_fewer_channels_than_width() -> None:
    few = Conv2dSubsampling("conv2d", 80, 8, PositionalEncoding(8, 0.0, "no_pos"), 3)
    assert few(torch.zeros(2, 40, 80))[0].shape == (2, 9, 8)
    assert few.conv[2].weight.shape == (3, 3, 3, 3) and few.out[0].weight.shape == (8, 3 * 19)


# ---- positions and masks


def test_the_table_of_positions_grows_and_is_not_in_the_state() -> None:
    encoding, linear = PositionalEncoding(8, 0.0), torch.nn.Linear(8, 8)
    with torch.inference_mode():
        assert encoding(torch.zeros(1, 3, 8))[1].shape == (1, 3, 8)
    linear(
        encoding.positions(5, torch.device("cpu"))
    ).sum().backward()  # training after recognition
    assert torch.equal(
        encoding.positions(15_000, torch.device("cpu"))[0], sinusoids(15_000, 8)
    )  # ten minutes
    assert not encoding.state_dict() and not list(encoding.buffers())


@pytest.mark.parametrize(
    ("kind", "scale", "is_added"), [("abs_pos", 2, 1), ("rel_pos", 2, 0), ("no_pos", 1, 0)]
)
def test_what_each_positional_encoding_returns(kind: str, scale: int, is_added: int) -> None:
    x = torch.randn(2, 5, 4)
    table = torch.tensor(
        [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in range(5)]
    )
    out, positions = PositionalEncoding(4, 0.0, kind)(x)
    torch.testing.assert_close(out, scale * x + is_added * table)
    expected = torch.zeros(1, 5, 4) if kind == "no_pos" else table[None]
    torch.testing.assert_close(positions, expected)


@pytest.mark.parametrize("kind", ["abs_pos", "rel_pos", "no_pos"])
def test_positions_of_a_part_begin_at_its_offset(kind: str) -> None:
    x, encoding = torch.randn(2, 700, 6), PositionalEncoding(6, 0.0, kind)
    whole = encoding(x)
    part = PositionalEncoding(6, 0.0, kind)(x[:, 300:], 300)
    for one, other in zip(part, whole, strict=True):
        assert torch.equal(one, other[:, 300:])


def changed_frames(encoder: EncoderStack, visible: torch.Tensor, change: int) -> list[int]:
    """The frames (of 12, the last two padding) of the layers' output that depend on frame `change`
    of their input.

    `visible` is (T, T) bool.
    """
    is_speech = length_mask(torch.tensor([10]), 12)
    x, results = torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(1)), []
    for added in (0.0, 3.0):
        x[:, change, :8] += added
        out, positions = encoder.embed.pos_enc(x)
        for layer in encoder.encoders:
            out = layer(out, is_speech, visible & is_speech[:, None], positions)
        results.append(out)
    return (results[0] != results[1]).any(-1)[0, :10].nonzero()[:, 0].tolist()


@pytest.mark.parametrize("kind", ["conformer", "no_pos", "transformer"])
def test_frames_depend_only_on_what_is_visible_and_on_speech(kind: str) -> None:
    sections = {
        **KINDS[kind],
        "encoder_conf": {**KINDS[kind].get("encoder_conf", {}), "num_blocks": 1},
    }
    encoder, has_convolution = small_model(**sections).encoder, kind != "transformer"
    everything, past = torch.ones(12, 12, dtype=torch.bool), causal_mask(12)
    frames = list(range(10))
    with torch.inference_mode():
        assert changed_frames(encoder, everything, 5) == frames
        assert changed_frames(encoder, everything, 10) == []  # padding
        if has_convolution:
            encoder.encoders[0].conv_module = ConvolutionModule(
                16, 5
            ).eval()  # two frames before and after
            assert changed_frames(encoder, past, 5) == frames[3:]
            encoder.encoders[0].conv_module = ConvolutionModule(16, 5, is_causal=True).eval()
        assert changed_frames(encoder, past, 5) == frames[5:]
        chunks = torch.arange(12) // 4
        seen = chunks[:, None] >= chunks  # chunks of four frames
        assert changed_frames(encoder, seen, 5) == frames[4:]


def test_a_causal_convolution_by_hand() -> None:
    """The same convolution two frames later, where the zeros before the utterance are inputs of its
    first layer.
    """
    symmetric, causal = ConvolutionModule(3, 5), ConvolutionModule(3, 5, is_causal=True)
    causal.load_state_dict(symmetric.state_dict())
    x, is_speech = torch.randn(2, 9, 3), torch.ones(2, 11, dtype=torch.bool)
    expected = symmetric.eval()(torch.nn.functional.pad(x, (0, 0, 2, 0)), is_speech)[:, 2:-2]
    torch.testing.assert_close(causal.eval()(x, is_speech[:, :9])[:, 2:], expected)
    parts = torch.cat(
        [causal(x[:, :3], is_speech[:, :3]), causal(x[:, 4:], is_speech[:, :5], x[:, :4])], dim=1
    )
    torch.testing.assert_close(parts, causal(x, is_speech[:, :9])[:, [0, 1, 2, 4, 5, 6, 7, 8]])


def test_masks_and_cmvn_by_hand() -> None:
    assert length_mask(torch.tensor([2, 0, 3]), 3).int().tolist() == [
        [1, 1, 0],
        [0, 0, 0],
        [1, 1, 1],
    ]
    assert causal_mask(2).int().tolist() == [[1, 0], [1, 1]]
    assert Chunk(2).mask(5).int().tolist() == [
        *2 * [[1, 1, 0, 0, 0]],
        *2 * [[1, 1, 1, 1, 0]],
        [1] * 5,
    ]
    assert Chunk(2, 1).mask(5).int().tolist() == [
        *2 * [[1, 1, 0, 0, 0]],
        *2 * [[1, 1, 1, 1, 0]],
        [0, 0, 1, 1, 1],
    ]
    assert Chunk(1, 0).mask(2).int().tolist() == [[1, 0], [0, 1]]
    cmvn = GlobalCmvn(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 0.5]))
    assert cmvn(torch.tensor([[[3.0, 4.0]]])).tolist() == [[[4.0, 1.0]]]
    assert set(cmvn.state_dict()) == {"mean", "istd"}


# ---- batch normalization


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=2, max_size=4).filter(lambda ls: sum(ls) > 1),
    ranks=st.booleans(),
)
def test_batch_norm_is_pytorchs_of_the_valid_frames_of_all_ranks(
    lengths: list[int], ranks: bool
) -> None:
    """With `ranks`, the statistics of each utterance are gathered as if each were on a rank of its
    own.
    """
    torch.manual_seed(sum(lengths))
    mask = length_mask(torch.tensor(lengths), 6)
    x = (
        torch.randn(len(lengths), 6, 4)
        .mul(3)
        .add(1)
        .masked_fill(~mask[..., None], 1e3)
        .requires_grad_()
    )
    ours, theirs = MaskedBatchNorm(4), nn.BatchNorm1d(4)
    nn.init.uniform_(theirs.weight), nn.init.uniform_(theirs.bias)
    ours.load_state_dict(theirs.state_dict())
    if ranks:
        of_ranks: list[torch.Tensor] = []
        for row in range(len(lengths)):
            other = MaskedBatchNorm(4)
            other.across_ranks = lambda own: of_ranks.append(own) or own[None]
            other(x[[row]], mask[[row]])
        ours.across_ranks = lambda own: torch.stack(of_ranks)
    for training in (True, True, False):
        ours.train(training), theirs.train(training)
        out, expected = ours(x, mask)[mask], theirs(x[mask])
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
        if not ranks:
            weights, both = torch.randn_like(out), ((out, ours), (expected, theirs))
            grads = [
                torch.autograd.grad((y * weights).sum(), [x, *norm.parameters()])
                for y, norm in both
            ]
            torch.testing.assert_close(*grads, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_batch_norm_of_no_or_one_frame() -> None:
    norm, one = MaskedBatchNorm(3), torch.ones(1, 1, dtype=torch.bool)
    assert norm(torch.randn(1, 1, 3), ~one).isfinite().all()
    assert torch.equal(norm.running_mean, torch.zeros(3)) and torch.equal(
        norm.running_var, torch.ones(3)
    )
    assert norm(torch.randn(1, 1, 3), one).isfinite().all() and norm.running_var.isfinite().all()
