# SPDX-License-Identifier: Apache-2.0
"""Optimizer steps: loss normalisation, clipping, schedules, skipped steps, validation."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_models import row_of, small_batch, small_config, small_model

from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.batching import Batch
from wenet_hs.errors import DataError
from wenet_hs.train.loop import MAX_SKIPPED_IN_A_ROW, run_epoch, validate
from wenet_hs.train.optim import Precision, build_optimizer, learning_rate
from wenet_hs.train.state import TrainState

PLAIN: dict[str, Any] = {
    "encoder_conf": {"dropout_rate": 0.0, "positional_dropout_rate": 0.0, "cnn_module_norm": "layer_norm"},
    "decoder_conf": {"dropout_rate": 0.0, "positional_dropout_rate": 0.0},
    "scheduler_conf": {"warmup_steps": 3},
}
"""Settings with which a result does not depend on the other utterances of a batch."""


def state_of(config: ExperimentConfig, **sections: Any) -> TrainState:
    model = small_model(seed=1, **sections)
    device = torch.device("cpu")
    return TrainState(model, build_optimizer(model, config), device, precision=Precision(config.dtype, device))


def gradients(monkeypatch: pytest.MonkeyPatch, state: TrainState) -> list[dict[str, torch.Tensor]]:
    """The gradients at each step; the optimizer changes nothing."""
    seen: list[dict[str, torch.Tensor]] = []

    def look() -> None:
        named = state.model.named_parameters()
        seen.append({name: value.grad.clone() for name, value in named if value.grad is not None})

    monkeypatch.setattr(state.optimizer, "step", look)
    return seen


def with_nan(batch: Batch) -> Batch:
    features = batch.features.clone()
    features[0, 3, 5] = math.nan
    return replace(batch, features=features)


@pytest.mark.parametrize("head", ["softmax", "hsoftmax"])
def test_micro_batches_of_unequal_size_give_the_gradient_of_one_batch(
    monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    sections = PLAIN if head == "softmax" else {**PLAIN, "head": head, "head_conf": {"tree": "t"}}
    whole = small_batch([60, 41, 33, 52], [9, 2, 4, 6])
    rows = [row_of(whole, index) for index in range(4)]
    three = replace(
        whole,
        keys=whole.keys[1:],
        features=whole.features[1:],
        feature_lengths=whole.feature_lengths[1:],
        targets=whole.targets[1:],
        target_lengths=whole.target_lengths[1:],
        num_targets=2 + 4 + 6 + 3,
        audio_seconds=0.41 + 0.33 + 0.52,
    )
    seen = []
    for batches, accum_grad in (([whole], 1), ([rows[0], three], 2), (rows, 4)):
        config = small_config(accum_grad=accum_grad, grad_clip=1e9, **sections)
        state = state_of(config, **sections)
        looked = gradients(monkeypatch, state)
        (stats,) = run_epoch(state, batches, config)
        assert stats.num_targets == whole.num_targets == 25
        seen.append((looked[0], stats))
    for grads, stats in seen[1:]:
        assert grads.keys() == seen[0][0].keys()
        for name, grad in grads.items():
            torch.testing.assert_close(grad, seen[0][0][name], rtol=1e-5, atol=1e-6, msg=name)
        assert stats.loss == pytest.approx(seen[0][1].loss, rel=1e-5)
        assert stats.audio_seconds == pytest.approx(1.86)
        assert stats.grad_norm == pytest.approx(seen[0][1].grad_norm, rel=1e-5)


def test_the_loss_of_a_step_is_the_mean_over_its_targets() -> None:
    config = small_config(accum_grad=2, **PLAIN)
    batches = [small_batch([40, 33], [5, 2], seed=1), small_batch([50], [7], seed=2)]
    with torch.no_grad():
        losses = [small_model(seed=1, **PLAIN).train()(batch) for batch in batches]
    (stats,) = run_epoch(state_of(config, **PLAIN), batches, config)
    num_targets = (5 + 1 + 2 + 1) + (7 + 1)
    assert stats.num_targets == num_targets
    assert stats.loss == pytest.approx(sum(float(part.total) for part in losses) / num_targets, rel=1e-6)
    assert stats.loss_att == pytest.approx(sum(float(part.attention) for part in losses) / num_targets, rel=1e-6)
    assert stats.loss_ctc == pytest.approx(sum(float(part.ctc) for part in losses) / num_targets, rel=1e-6)
    assert stats.loss == pytest.approx(0.3 * stats.loss_ctc + 0.7 * stats.loss_att, rel=1e-6)
    assert stats.accuracy == sum(int(part.num_correct) for part in losses) / num_targets
    bits = sum(float(part.nll) for part in losses) / math.log(2) / num_targets
    assert stats.bits_per_unit == pytest.approx(bits, rel=1e-6)


def test_the_gradient_is_clipped_to_grad_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = small_batch([40, 33], [5, 2])
    norms = {}
    for limit in (1e9, 0.125):
        config = small_config(grad_clip=limit, **PLAIN)
        state = state_of(config, **PLAIN)
        looked = gradients(monkeypatch, state)
        (stats,) = run_epoch(state, [batch], config)
        norms[limit] = math.sqrt(sum(float(grad.double().square().sum()) for grad in looked[0].values()))
        assert stats.grad_norm > 0.125, "the norm before clipping is reported"
    assert norms[1e9] == pytest.approx(stats.grad_norm, rel=1e-5)
    assert norms[0.125] == pytest.approx(0.125, rel=1e-4)


def test_position_learning_rate_and_ctc_weight_follow_the_steps() -> None:
    ramp = {**PLAIN, "model_conf": {"ctc_weight": 0.8, "ctc_weight_final": 0.2, "ctc_weight_steps": 2}}
    config = small_config(accum_grad=2, **ramp)
    state = state_of(config, **ramp)
    shares = []
    batches = [small_batch([40], [5], seed=seed) for seed in range(5)]
    for stats in run_epoch(state, batches, config):
        shares.append(state.model.ctc_weight)
        assert stats.lr == state.optimizer.param_groups[0]["lr"] == learning_rate(stats.step, config)
    assert shares == pytest.approx([0.8, 0.5, 0.2])
    assert (state.progress.step, state.progress.batch) == (3, 5)
    assert state.progress.seconds > 0


def test_the_attention_guide_decreases_and_is_not_part_of_validation() -> None:
    guided = {**PLAIN, "model_conf": {"ctc_weight": 0.5, "attention_guide": 2.0, "attention_guide_steps": 2}}
    config = small_config(**guided)
    state = state_of(config, **guided)
    batch = small_batch([60, 40], [5, 4])
    stats = list(run_epoch(state, [batch] * 3, config))
    for one, weight in zip(stats, (2.0, 1.0, 0.0), strict=True):
        assert one.loss == pytest.approx(0.5 * (one.loss_att + one.loss_ctc) + weight * one.guide, rel=1e-6)
    assert 0 < stats[0].guide <= 1
    assert stats[2].guide == 0.0
    state.model.attention_guide = 2.0
    sums = validate(state.model, [batch], config, torch.device("cpu"))
    assert sums.total == pytest.approx(0.5 * (sums.attention + sums.ctc), rel=1e-6)


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    config = small_config()  # batch norm: its running statistics would keep the NaN for ever
    state = state_of(config)
    good = small_batch([40, 33], [5, 2])
    next(run_epoch(state, [good], config))
    weights = {name: value.clone() for name, value in state.model.state_dict().items()}
    moments = {
        (index, name): value.clone()
        for index, values in state.optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }
    (stats,) = run_epoch(state, [with_nan(good)], config)
    assert not math.isfinite(stats.grad_norm)
    assert stats.suspects == ("utt0",)
    assert (stats.skipped_steps, state.progress.skipped_steps, state.progress.skipped_in_a_row) == (1, 1, 1)
    assert state.progress.step == 2, "the step counts, so that the schedule does not depend on what was skipped"
    for name, value in state.model.state_dict().items():
        assert torch.equal(value, weights[name]), name
    for index, values in state.optimizer.state_dict()["state"].items():
        for name, value in values.items():
            assert torch.equal(value, moments[index, name])
    (stats,) = run_epoch(state, [good], config)
    assert math.isfinite(stats.loss)
    assert stats.suspects == ()
    assert (stats.skipped_steps, state.progress.skipped_in_a_row) == (1, 0)


def test_ten_skipped_steps_in_a_row_end_training_also_across_epochs() -> None:
    config = small_config()
    state = state_of(config)
    bad = replace(with_nan(small_batch([40, 30], [5, 3])), keys=["clip_17", "clip_18"])
    for _ in range(4):
        assert len(list(run_epoch(state, [bad, bad], config))) == 2
    message = (
        "^step 10: loss or gradient not finite 10 times in a row, last with clip_17; look at these utterances, "
        "or train with a lower optim_conf.lr in another --model_dir$"
    )
    with pytest.raises(DataError, match=message):
        list(run_epoch(state, [bad, bad, bad], config))
    assert MAX_SKIPPED_IN_A_ROW == 10


def test_validation_changes_nothing_and_uses_the_final_ctc_weight() -> None:
    ramp = {"model_conf": {"ctc_weight": 1.0, "ctc_weight_final": 0.25, "ctc_weight_steps": 100}}
    config = small_config(**ramp)
    model = small_model(seed=1, **ramp).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    batch = small_batch([40, 33], [5, 2])
    sums = validate(model, [batch, batch], config, torch.device("cpu"))
    assert model.training
    assert model.ctc_weight == 1.0
    assert torch.equal(torch.get_rng_state(), random_state), "or a run that validates more often would differ"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert sums.num_targets == 2 * 9
    assert sums.total == pytest.approx(0.25 * sums.ctc + 0.75 * sums.attention, rel=1e-6)
    assert sums.per_target()["loss"] == sums.total / 18
