# SPDX-License-Identifier: Apache-2.0
"""Optimizer steps: loss normalisation, clipping, skipped steps, validation, dtypes, and their error
messages.
"""

import json
import math
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import row_of, small_batch, small_config, small_model
from torch import Tensor

from wenet_hs.compute.distributed import World
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.batching import Batch
from wenet_hs.heads.ctc import Ctc
from wenet_hs.model.asr_model import AsrModel
from wenet_hs.model.checkpoint import save_checkpoint
from wenet_hs.score.edit_distance import count_errors
from wenet_hs.train import model_folder, optim
from wenet_hs.train.optim import Precision, build_optimizer, learning_rate
from wenet_hs.train.speech_steps import (
    SpeechStats,
    count_greedy_errors,
    find_suspects,
    run_epoch,
    translate_torch_errors,
    validate,
)
from wenet_hs.train.start import EarlierTraining
from wenet_hs.train.state import TrainState
from wenet_hs.tree.errors import CheckpointError, ConfigError, DataError

CPU = torch.device("cpu")
ONE_LAYER = {"encoder_conf": {"num_blocks": 1}, "decoder_conf": {"num_blocks": 1}}
NO_DROPOUT = {"num_blocks": 1, "dropout_rate": 0.0, "positional_dropout_rate": 0.0}
PLAIN: dict[str, Any] = {
    "encoder_conf": {**NO_DROPOUT, "cnn_module_norm": "layer_norm"},
    "decoder_conf": NO_DROPOUT,
    "scheduler_conf": {"warmup_steps": 3},
}
"""Settings with which a result does not depend on the other utterances of a batch."""
PAIR = small_batch([40, 33], [5, 2])


def state_of(config: ExperimentConfig, **sections: Any) -> TrainState:
    model = small_model(seed=1, **(sections or ONE_LAYER))
    return TrainState(
        model, build_optimizer(model, config), CPU, precision=Precision(config.dtype, CPU)
    )


def weights(model: AsrModel) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def is_unchanged(model: AsrModel, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def gradients(monkeypatch: pytest.MonkeyPatch, state: TrainState) -> dict[str, Tensor]:
    """The gradients of the next step; the optimizer changes nothing."""
    seen: dict[str, Tensor] = {}
    named = list(state.model.named_parameters())

    def keep() -> None:
        seen.update({name: value.grad.clone() for name, value in named if value.grad is not None})

    monkeypatch.setattr(state.optimizer, "step", keep)
    return seen


def with_nan(batch: Batch) -> Batch:
    features = batch.features.clone()
    features[0, 3, 5] = math.nan
    return replace(batch, features=features)


@pytest.mark.parametrize("head", ["softmax", "hsoftmax"])
def test_micro_batches_of_unequal_size_give_the_clipped_gradient_of_one_batch(
    monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    conf = {"tree": "t"}
    sections = PLAIN if head == "softmax" else {**PLAIN, "head": head, "head_conf": conf}
    whole = small_batch([60, 41, 33, 52], [9, 2, 4, 6])
    rows = [row_of(whole, index) for index in range(4)]
    expected: tuple[dict[str, Tensor], SpeechStats] | None = None
    for batches, accum_grad in (([whole], 1), ([rows[0], row_of(whole, 1, 2, 3)], 2), (rows, 4)):
        config = small_config(accum_grad=accum_grad, grad_clip=0.125, **sections)
        state = state_of(config, **sections)
        grads = gradients(monkeypatch, state)
        (stats,) = run_epoch(state, batches, config)
        assert stats.num_targets == whole.num_targets == 25
        assert stats.audio_seconds == pytest.approx(1.86)
        expected = expected or (grads, stats)
        torch.testing.assert_close(grads, expected[0], rtol=1e-5, atol=1e-7)
        clipped_norm = math.sqrt(
            sum(float(grad.double().square().sum()) for grad in grads.values())
        )
        assert stats.grad_norm > clipped_norm == pytest.approx(0.125, rel=1e-4), (
            "the norm before clipping is reported"
        )
        assert stats.loss == pytest.approx(expected[1].loss, rel=1e-5)
        assert stats.grad_norm == pytest.approx(expected[1].grad_norm, rel=1e-5)


def test_the_loss_of_a_step_is_the_mean_over_its_targets() -> None:
    config = small_config(accum_grad=2, log_interval=1, **PLAIN)
    batches = [small_batch([40, 33], [5, 2], seed=1), small_batch([50], [7], seed=2)]
    with torch.no_grad():
        losses = [small_model(seed=1, **PLAIN).train()(batch) for batch in batches]
    (stats,) = run_epoch(state_of(config, **PLAIN), batches, config)
    num_targets = (5 + 1 + 2 + 1) + (7 + 1)
    assert stats.num_targets == num_targets
    bits = stats.bits_per_unit * math.log(2)
    found = (stats.loss, stats.loss_att, stats.loss_ctc, stats.accuracy, bits)
    for mean, name in zip(found, ("total", "attention", "ctc", "num_correct", "nll"), strict=True):
        assert mean == pytest.approx(
            sum(float(getattr(part, name)) for part in losses) / num_targets, rel=1e-6
        ), name
    assert stats.loss == pytest.approx(0.3 * stats.loss_ctc + 0.7 * stats.loss_att, rel=1e-6)


def test_position_learning_rate_ctc_weight_and_attention_guide_follow_the_steps() -> None:
    conf = {"ctc_weight": 0.8, "ctc_weight_final": 0.2, "ctc_weight_steps": 2}
    ramp = {**PLAIN, "model_conf": {**conf, "attention_guide": 2.0, "attention_guide_steps": 2}}
    config = small_config(accum_grad=2, **ramp)
    state = state_of(config, **ramp)
    batches = [small_batch([40], [5], seed=seed) for seed in range(5)]
    for stats, share, guide in zip(
        run_epoch(state, batches, config), (0.8, 0.5, 0.2), (2.0, 1.0, 0.0), strict=True
    ):
        assert (
            stats.lr
            == state.optimizer.param_groups[0]["lr"]
            == learning_rate(state.progress.step, config)
        )
        assert state.model.loss_weights.ctc == pytest.approx(share)
        expected = (1 - share) * stats.loss_att + share * stats.loss_ctc + guide * stats.guide
        assert stats.loss == pytest.approx(expected, rel=1e-6)
        assert (0 < stats.guide <= 1) == (guide > 0)
    assert (state.progress.step, state.progress.batch) == (3, 5)
    assert state.progress.seconds > 0


def test_validation_changes_nothing_and_uses_the_final_ctc_weight_without_guide() -> None:
    ramp = {
        **ONE_LAYER,
        "model_conf": {"ctc_weight": 1.0, "ctc_weight_final": 0.25, "ctc_weight_steps": 100},
    }
    config = small_config(**ramp)
    model = small_model(seed=1, **ramp).train()
    model.loss_weights = replace(model.loss_weights, ctc=0.9, guide=2.0)
    before, random_state = weights(model), torch.get_rng_state()
    sums = validate(model, [PAIR, PAIR], config, CPU)
    assert model.training and model.loss_weights.ctc == 0.9
    assert torch.equal(torch.get_rng_state(), random_state), (
        "or a run that validates more often would differ"
    )
    assert is_unchanged(model, before)
    assert sums.num_targets == 2 * 9
    assert sums.total == pytest.approx(0.25 * sums.ctc + 0.75 * sums.attention, rel=1e-6)
    assert sums.per_target()["loss"] == sums.total / 18


@pytest.mark.parametrize("head", ["softmax", "hsoftmax"])
def test_validation_has_the_share_of_frames_at_which_blank_is_best(head: str) -> None:
    sections = {
        **ONE_LAYER,
        "ctc_conf": {"head": head, "head_conf": {"tree": "tree.json"} if head != "softmax" else {}},
    }
    config, model = small_config(**sections), small_model(**sections)
    memory, lengths = model.encode(PAIR.features, PAIR.feature_lengths)
    best = [row[:n].argmax(-1) for row, n in zip(model.ctc.log_probs(memory), lengths, strict=True)]
    num_blank, num_frames = sum(int((units == 0).sum()) for units in best), int(lengths.sum())
    assert len(best[0]) > len(best[1]), "padding"
    sums = validate(model, [PAIR, PAIR], config, CPU)
    assert (sums.num_blank, sums.num_frames) == (2 * num_blank, 2 * num_frames)
    assert sums.per_target()["blank_share"] == num_blank / num_frames
    written: list[list[int]] = [
        [unit for unit, _ in groupby(units.tolist()) if unit != 0] for units in best
    ]
    labels = [row[:n].tolist() for row, n in zip(PAIR.targets, PAIR.target_lengths, strict=True)]
    counts = [
        count_errors([*map(str, ref)], [*map(str, hyp)])
        for ref, hyp in zip(labels, written, strict=True)
    ]
    assert (sums.num_errors, sums.num_labels) == (2 * sum(one.errors for one in counts), 2 * 7)
    assert sums.per_target()["ctc_error_rate"] == sum(one.errors for one in counts) / 7
    without = {**sections, "model_conf": {"ctc_weight": 0.0}}
    found = validate(model, [PAIR], small_config(**without), CPU).per_target()
    assert not {"blank_share", "ctc_error_rate"} & found.keys()


def test_greedy_errors_ignore_padding_repeats_and_blanks() -> None:
    best_units = torch.tensor([[3, 3, 0, 3, 4, 4], [0, 5, 5, -1, -1, -1]])
    targets, lengths = torch.tensor([[3, 3, 4], [5, 6, -1]]), torch.tensor([3, 2])
    batch = replace(PAIR, targets=targets, target_lengths=lengths)
    found = count_greedy_errors(best_units, batch, blank=0)
    assert (found.num_errors, found.num_labels, found.total, found.num_targets) == (1, 5, 0, 0)


def test_a_step_does_not_search_the_best_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ctc, "best_units", partial(pytest.fail, "computed"))
    config = small_config(**ONE_LAYER)
    (stats,) = run_epoch(state_of(config), [PAIR], config)
    assert stats.loss_ctc > 0


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    config = small_config(**ONE_LAYER)  # batch norm: its running statistics would keep the NaN
    state = state_of(config)
    next(run_epoch(state, [PAIR], config))
    before, moments = weights(state.model), str(state.optimizer.state_dict()["state"])
    (stats,) = run_epoch(state, [with_nan(PAIR)], config)
    assert not math.isfinite(stats.grad_norm)
    assert stats.suspects == ("utt0",)
    assert (state.progress.skipped_steps, state.progress.skipped_in_a_row) == (1, 1)
    assert state.progress.step == 2, (
        "the step counts, so that the schedule does not depend on what was skipped"
    )
    assert is_unchanged(state.model, before)
    assert str(state.optimizer.state_dict()["state"]) == moments
    (stats,) = run_epoch(state, [PAIR], config)
    assert math.isfinite(stats.loss) and stats.suspects == ()
    assert (state.progress.skipped_steps, state.progress.skipped_in_a_row) == (1, 0)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])  # with fp16 a lower loss scale does not help
def test_ten_skipped_steps_in_a_row_end_training_also_across_epochs(dtype: str) -> None:
    config = small_config(dtype=dtype, **ONE_LAYER)
    state = state_of(config)
    bad = replace(with_nan(PAIR), keys=["clip_17", "clip_18"])
    for _ in range(4):
        assert len(list(run_epoch(state, [bad, bad], config))) == 2
    message = "^step 10: loss or gradient not finite 10 times in a row, last with clip_17; look at these utterances, or"
    with pytest.raises(DataError, match=message):
        list(run_epoch(state, [bad, bad, bad], config))


def test_an_infinite_loss_with_a_finite_gradient_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = small_config(accum_grad=2, **ONE_LAYER)
    state = state_of(config)
    before, forward = weights(state.model), AsrModel.forward
    bad = replace(small_batch([20] * 7, [2] * 7), keys=[f"bad{i}" for i in range(7)])
    first = ("bad0", "bad1", "bad2", "bad3", "bad4")

    def infinite(self: AsrModel, batch: Batch) -> object:
        losses = forward(self, batch)
        return replace(losses, total=losses.total + math.inf) if batch.keys == bad.keys else losses

    monkeypatch.setattr(AsrModel, "forward", infinite)
    (stats,) = run_epoch(state, [PAIR, bad], config)
    assert math.isfinite(stats.grad_norm)
    assert (stats.suspects, state.progress.skipped_steps) == (first, 1)
    assert is_unchanged(state.model, before)
    assert find_suspects([PAIR, bad], [1.0, 1.0], World()) == ("utt0", "utt1", *first), (
        "only the gradient is infinite"
    )


def test_an_out_of_memory_error_names_the_batch_and_the_step_or_the_validation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = "out of memory with 2 utterances of up to 40 frames and 5 units, the longest utt0; lower batch_size or max_"
    of_gpu = (
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    )
    for error in (
        torch.OutOfMemoryError("CUDA out of memory."),
        *map(RuntimeError, of_gpu),
        MemoryError(),
    ):
        with (
            pytest.raises(ConfigError, match=f"^step 812: {line}"),
            translate_torch_errors(PAIR, "step 812"),
        ):
            raise error
    config = small_config(**ONE_LAYER)
    state = state_of(config)
    monkeypatch.setattr(AsrModel, "forward", lambda self, batch: torch.empty(1 << 60))
    with pytest.raises(ConfigError, match=f"^step 1: {line}"):
        next(run_epoch(state, [PAIR], config))
    with pytest.raises(ConfigError, match=f"^validation: {line}"):
        validate(state.model, [PAIR], config, CPU)


def test_an_error_of_the_compiler_is_one_line_and_others_are_unchanged() -> None:
    fault = type("InductorError", (RuntimeError,), {"__module__": "torch._inductor.exc"})
    line = r"^step 1: compile: true: torch's compiler failed \(ImportError: file too short\); install .* set compile:"
    for error, kind, match in (
        (fault("ImportError: file too short\n\nSet TORCHDYNAMO_VERBOSE=1"), ConfigError, line),
        (ValueError("other"), ValueError, "^other$"),
    ):
        with pytest.raises(kind, match=match), translate_torch_errors(PAIR, "step 1"):
            raise error


def test_every_dtype_learns_the_same_from_a_batch() -> None:
    losses = {}
    for dtype in ("fp32", "bf16", "fp16"):
        config = small_config(
            dtype=dtype, optim_conf={"lr": 0.01}, scheduler_conf={"warmup_steps": 0}, **ONE_LAYER
        )
        torch.manual_seed(3)
        state = state_of(config)
        losses[dtype] = [step.loss for step in run_epoch(state, [PAIR] * 2, config)]
        assert {value.dtype for value in state.model.parameters()} == {torch.float32}
        assert all(value.grad is None for value in state.model.parameters())
        losses[dtype].append(validate(state.model, [PAIR], config, CPU).per_target()["loss"])
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)
    assert losses["fp16"] == pytest.approx(losses["fp32"], rel=0.01)
    assert losses["fp16"] != losses["fp32"]
    assert losses["fp32"][-1] < losses["fp32"][0]


def test_steps_skipped_for_the_loss_scale_do_not_end_training() -> None:
    """The first scale is so high that the gradient overflows; then the scale is halved, and doubled
    later.
    """
    config = small_config(dtype="fp16", **ONE_LAYER)
    state, scale, skipped = state_of(config), 2.0**32, 0
    state.precision.load_state_dict(
        {**state.precision.state_dict(), "scale": scale, "_growth_tracker": 7}
    )
    before = weights(state.model)
    for step in run_epoch(state, [PAIR] * 60, config):
        assert step.loss_scale == scale
        if not step.suspects:
            break
        skipped, scale = skipped + 1, scale / 2
        assert is_unchanged(state.model, before), "running statistics too"
        assert state.precision.state_dict()["_growth_tracker"] == 0
        assert (state.progress.skipped_steps, state.progress.skipped_in_a_row) == (skipped, 0)
    assert skipped > 10, "otherwise the test shows nothing"
    assert math.isfinite(step.grad_norm)
    assert not is_unchanged(state.model, before)
    assert state.precision.state_dict()["_growth_tracker"] == 1


def test_the_loss_scale_is_restored_from_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optim, "STEPS_TO_DOUBLE", 2)
    config = small_config(dtype="fp16", **ONE_LAYER)
    state, other = state_of(config), state_of(config)
    state.precision.load_state_dict({**state.precision.state_dict(), "scale": 1024.0})
    list(run_epoch(state, [PAIR], config))
    files = state.to_files()
    path = save_checkpoint(tmp_path, 1, files)
    other.restore(path)
    assert [step.loss_scale for step in run_epoch(other, [PAIR] * 2, config)] == [1024.0, 2048.0], (
        "doubled after two"
    )
    state.restore(path)
    list(run_epoch(state, [PAIR] * 2, config))
    assert is_unchanged(other.model, state.model.state_dict())
    record = {**json.loads(files["state.json"]), "loss_scale": {}}
    path = save_checkpoint(tmp_path, 3, {**files, "state.json": json.dumps(record).encode()})
    with pytest.raises(
        CheckpointError,
        match=r"step-0*3: does not fit this training \(only fp16 has the state of a l",
    ):
        other.restore(path)


def test_auto_is_bf16_where_it_is_native_and_the_model_wide_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolved(dtype: str, width: int, device: str) -> str:
        config = small_config(dtype=dtype, encoder_conf={"output_size": width})
        return model_folder.resolve_auto(config, torch.device(device), where=Path("c.yaml")).dtype

    sizes = ((256, "cpu"), (192, "cpu"), (192, "cuda"))
    for native, expected in ((True, ["bf16", "fp32", "bf16"]), (False, ["fp32"] * 3)):
        monkeypatch.setattr(model_folder, "has_native_bf16", lambda device, native=native: native)
        assert [resolved("auto", *size) for size in sizes] == expected
    assert (
        resolved("fp16", 256, "cuda") == "fp16"
    )  # bin/test_bin_train.py: refused where it is emulated
    monkeypatch.setattr(model_folder, "has_native_fp16", lambda device: False)
    with pytest.raises(
        ConfigError,
        match="train.yaml: dtype: fp16 is emulated by this processor, .*; use --device c",
    ):
        earlier = EarlierTraining(
            checkpoint=tmp_path / "checkpoints/step-00000001",
            config_file=tmp_path / "train.yaml",
            config=small_config(dtype="fp16"),
        )
        model_folder.resolve_auto(
            small_config(dtype="auto"), CPU, where=Path("c.yaml"), earlier=earlier
        )
