# SPDX-License-Identifier: Apache-2.0
"""The losses: WeNet's, additive over utterances, without padding, and only of the branches that
have a weight.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import (
    CTC_ONLY,
    SPECIAL,
    batch_of,
    row_of,
    small_batch,
    small_model,
    wenet_reference,
)
from torch import Tensor

from wenet_hs.data.batching import Batch
from wenet_hs.decode.modes import DecodeOptions, decode
from wenet_hs.heads.ctc import Ctc
from wenet_hs.interop.wenet import load_wenet_model
from wenet_hs.model.asr_model import AsrModel, reverse_labels, with_sos_eos
from wenet_hs.text.units import SpecialIds

MODELS = {
    "softmax": small_model(),
    "hsoftmax": small_model(head="hsoftmax", head_conf={"tree": "tree.json"}),
    "class": small_model(
        head="class", head_conf={"tree": "tree.json"}, model_conf={"lsm_kind": "node"}
    ),
    "adaptive": small_model(head="adaptive", head_conf={"tree": "tree.json"}),
    "ctc tree": small_model(ctc_conf={"head": "hsoftmax", "head_conf": {"tree": "tree.json"}}),
    "none": small_model(**CTC_ONLY),
    "bitransformer": small_model(
        decoder="bitransformer",
        decoder_conf={"r_num_blocks": 1},
        model_conf={"reverse_weight": 0.3},
    ),
}


@torch.inference_mode()
def check_outputs_and_losses(
    model: AsrModel, arrays: dict[str, Tensor], prefixes: Sequence[str]
) -> Batch:
    """WeNet ran one utterance at a time; its arrays have the utterance's prefix."""
    batch = batch_of(
        [arrays[f"{each}feats"] for each in prefixes],
        [arrays[f"{each}target"] for each in prefixes],
    )
    units_in, _ = with_sos_eos(batch.targets, batch.target_lengths, model.special)
    losses = model(batch)
    memory, lengths = model.encode(batch.features, batch.feature_lengths)
    hidden = model.decoder(memory, lengths, units_in, batch.target_lengths + 1)
    for key, values, num_valid in (
        ("encoder_out", memory, lengths),
        ("ctc_log_probs", model.ctc.log_probs(memory), lengths),
        ("decoder_log_probs", model.head.log_probs(hidden), batch.target_lengths + 1),
    ):
        for row, prefix in enumerate(prefixes):
            torch.testing.assert_close(
                values[row, : num_valid[row]], arrays[prefix + key], rtol=0, atol=1e-4
            )
    for found, key in (
        (losses.total, "loss"),
        (losses.attention, "loss_att"),
        (losses.ctc, "loss_ctc"),
    ):
        cost = sum(float(arrays[prefix + key]) for prefix in prefixes)
        assert float(found) == pytest.approx(cost, abs=1e-4 * len(prefixes))
    return batch


def test_the_model_in_this_folder_gives_wenets_numbers_and_hypotheses() -> None:
    config, weights, arrays = wenet_reference(
        Path(__file__).parents[1] / "golden", "wenet_conformer"
    )
    model = load_wenet_model(config, weights)
    batch = check_outputs_and_losses(model, arrays, [""])
    modes = ("attention", "ctc_greedy_search", "ctc_prefix_beam_search", "attention_rescoring")
    options = DecodeOptions(beam_size=4, ctc_weight=0.5)
    decoded = decode(model, batch.features, batch.feature_lengths, modes, options)
    for mode in modes:
        assert list(decoded[mode][0][0].ids) == arrays[f"{mode}.tokens"].tolist(), mode
    for rank, hypothesis in enumerate(decoded["ctc_prefix_beam_search"][0]):
        assert list(hypothesis.ids) == arrays[f"ctc_prefix_beam_search.nbest{rank}"].tolist()
        assert hypothesis.score == pytest.approx(
            float(arrays[f"ctc_prefix_beam_search.nbest{rank}.score"]), abs=1e-3
        )


@pytest.mark.parametrize("name", ["conformer_transformer", "conformer_layernorm_old_eos"])
def test_outputs_and_losses_are_wenets(shared_dir: Path, name: str) -> None:
    config, weights, arrays = wenet_reference(shared_dir / "golden" / "wenet", name)
    model = load_wenet_model(config, weights)
    assert (model.special.sos, model.special.eos) == ((39, 39) if "old_eos" in name else (2, 2))
    assert (model.loss_weights.ctc, model.loss_weights.smoothing) == (0.3, 0.1)
    for prefixes in (["0."], ["1."], ["2."], ["0.", "1.", "2."]):
        check_outputs_and_losses(model, arrays, prefixes)


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=5, deadline=None)
@given(shapes=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 6)), min_size=2, max_size=4))
def test_the_loss_of_a_batch_is_the_sum_of_its_utterances(
    kind: str, shapes: list[tuple[int, int]]
) -> None:
    batch = small_batch([frames for frames, _ in shapes], [labels for _, labels in shapes])
    with torch.inference_mode():
        losses = MODELS[kind](batch)
        singly = [MODELS[kind](row_of(batch, index)) for index in range(len(shapes))]
    for name in ("total", "attention", "ctc", "nll"):
        expected = torch.stack([getattr(one, name) for one in singly]).sum()
        torch.testing.assert_close(
            getattr(losses, name), expected, atol=1e-5 * len(shapes), rtol=1e-5, equal_nan=True
        )
    assert losses.num_targets == sum(labels + 1 for _, labels in shapes)
    assert int(losses.num_correct) == sum(int(one.num_correct) for one in singly)


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "none"])
@torch.inference_mode()
def test_losses_by_hand(kind: str) -> None:
    model, batch = MODELS[kind], small_batch([40], [5])
    memory, lengths = model.encode(batch.features, batch.feature_lengths)
    labels = batch.targets[0].tolist()
    directions = [(*model.left, labels)]
    if kind == "bitransformer":
        directions.append((model.decoder.right_decoder, model.right_head, labels[::-1]))
    costs, nlls = [], []
    for decoder, head, sequence in directions:
        hidden = decoder(
            memory,
            lengths,
            torch.tensor([[SPECIAL.sos, *sequence]]),
            torch.tensor([len(labels) + 1]),
        )
        targets = torch.tensor([*sequence, SPECIAL.eos])
        costs.append(
            head.loss(hidden[0], targets, 0.1, "node" if kind == "class" else "leaf").sum()
        )
        nlls.append(head.nll(hidden[0], targets).sum())
    attention = 0.7 * costs[0] + 0.3 * costs[1] if kind == "bitransformer" else costs[0]
    losses = model(batch)
    torch.testing.assert_close(losses.nll, nlls[0])
    torch.testing.assert_close(losses.attention, attention)
    torch.testing.assert_close(losses.total, 0.3 * losses.ctc + 0.7 * attention)


def test_intermediate_ctc() -> None:
    """Training adds the CTC loss of a lower layer; validation, and the loss that is logged, is the
    last layer's.
    """
    rates = {f"{name}dropout_rate": 0.0 for name in ("", "positional_")}
    no_dropout = {"encoder_conf": rates, "decoder_conf": rates}
    plain = small_model(**no_dropout)
    model = small_model(**no_dropout, model_conf={"interctc_weight": 0.25, "interctc_layer": 1})
    batch = small_batch([40, 33], [5, 2])
    torch.testing.assert_close(model(batch).total, plain(batch).total)
    expected, found = plain.train()(batch), model.train()(batch)
    memory, lengths, outputs = model.encoder(batch.features, batch.feature_lengths, (1, 2))
    assert torch.equal(memory, outputs[2])
    with pytest.raises(ValueError, match="layers: 3: must be from 1 to 2"):
        model.encoder(batch.features, batch.feature_lengths, (3,))
    lower = model.ctc.loss(outputs[1], lengths, batch.targets, batch.target_lengths)
    assert (lower - expected.ctc).abs() > 0.1
    torch.testing.assert_close(found.ctc, expected.ctc)
    torch.testing.assert_close(
        found.total, 0.3 * (0.75 * expected.ctc + 0.25 * lower) + 0.7 * expected.attention
    )


def test_a_branch_without_weight_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = small_model(), small_batch([40, 33], [5, 2])
    both = model(batch)
    never = partial(pytest.fail, "computed")
    with monkeypatch.context() as patch:
        patch.setattr(model.decoder, "forward", never)
        model.loss_weights = replace(model.loss_weights, ctc=1.0)
        only_ctc = model(batch)
    torch.testing.assert_close(only_ctc.total, both.ctc)
    assert (float(only_ctc.attention), int(only_ctc.num_correct)) == (0.0, 0)
    assert torch.isnan(only_ctc.nll)
    monkeypatch.setattr(Ctc, "loss", never)
    model.loss_weights = replace(model.loss_weights, ctc=0.0)
    only_attention = model(batch)
    torch.testing.assert_close(only_attention.total, both.attention)
    assert float(only_attention.ctc) == 0.0


def test_the_decoders_of_both_directions() -> None:
    both, only_left = MODELS["bitransformer"], MODELS["softmax"]
    assert both.left == (both.decoder.left_decoder, both.head)
    assert both.right == (both.decoder.right_decoder, both.right_head)
    assert only_left.left == (only_left.decoder, only_left.head)
    assert only_left.right is None and MODELS["none"].right is None


def test_a_model_without_a_decoder() -> None:
    model, batch = MODELS["none"], small_batch([40, 33], [5, 2])
    losses = model(batch)
    assert torch.equal(losses.total, losses.ctc) and losses.ctc > 0
    assert (model.decoder, model.head, model.right_head) == (None, None, None)
    assert {name.split(".")[0] for name in model.state_dict()} == {"encoder", "ctc"}
    with pytest.raises(ValueError, match="this model has no decoder"):
        _ = model.left
    limited = model.restrict({3: 3, 5: 4})
    assert limited.head is None and limited.num_units == model.num_units


def test_utterances_without_labels_and_with_too_many() -> None:
    batch = small_batch([20, 40, 30], [9, 2, 0])
    losses, second, third = (
        MODELS["bitransformer"](each) for each in (batch, row_of(batch, 1), row_of(batch, 2))
    )
    torch.testing.assert_close(losses.ctc, second.ctc + third.ctc, atol=1e-4, rtol=1e-5)
    assert losses.num_targets == 9 + 2 + 3 and losses.total.isfinite()


@torch.inference_mode()
def test_correct_targets_are_counted() -> None:
    """A head that always ranks <eos> first is right once per utterance."""
    model = small_model()
    model.head.output.bias[SPECIAL.eos] = 1e4
    assert int(model(small_batch([40, 33, 50], [5, 2, 3])).num_correct) == 3


def test_float32_losses_and_gradients_under_autocast() -> None:
    for kind in MODELS:
        model, batch = MODELS[kind], small_batch([40, 33], [5, 2])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses = model(batch)
        exact = model(batch)
        for name in ("total", "attention", "ctc"):
            torch.testing.assert_close(
                getattr(losses, name), getattr(exact, name), rtol=0.05, atol=0.5
            )  # float32
        model.zero_grad()
        losses.total.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        model.zero_grad()


def test_decoder_input_and_output_by_hand() -> None:
    labels, lengths = torch.tensor([[5, 6, 7], [8, -1, -1], [-1, -1, -1]]), torch.tensor([3, 1, 0])
    units_in, targets = with_sos_eos(labels, lengths, SpecialIds(blank=0, unk=1, sos=9, eos=2))
    assert units_in.tolist() == [[9, 5, 6, 7], [9, 8, 2, 2], [9, 2, 2, 2]]
    assert targets.tolist() == [[5, 6, 7, 2], [8, 2, 2, 2], [2, 2, 2, 2]]
    assert reverse_labels(labels, lengths).tolist() == [[7, 6, 5], [8, -1, -1], [-1, -1, -1]]
