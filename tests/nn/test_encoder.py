# SPDX-License-Identifier: Apache-2.0
"""The encoder as a whole: padding, short and long utterances, the kinds of layers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import NUM_BINS, row_of, small_batch, small_model

from wenet_hs.nn.conformer import Encoder, GlobalCmvn

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
