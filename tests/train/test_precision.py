# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: dtypes, the search for the loss scale of fp16, and its checkpoint."""

import json
import logging
import math
from pathlib import Path

import pytest
import torch
from small_models import small_batch, small_config, small_model
from test_train_monitor import monitored, stats
from torch import nn

from wenet_hs import devices
from wenet_hs.checkpoint import save_checkpoint
from wenet_hs.errors import CheckpointError, ConfigError, DataError
from wenet_hs.train import setup
from wenet_hs.train.loop import MAX_SKIPPED_IN_A_ROW, run_epoch, validate
from wenet_hs.train.optim import Precision, build_optimizer
from wenet_hs.train.setup import resolve_dtype
from wenet_hs.train.state import TrainState

CPU = torch.device("cpu")
BATCH = small_batch([60, 41], [9, 2])


def state_of(dtype: str) -> TrainState:
    config = small_config()
    model = small_model(seed=1)
    return TrainState(model, build_optimizer(model, config), CPU, precision=Precision(dtype, CPU))


def weights(state: TrainState) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in state.model.state_dict().items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


def test_every_dtype_learns_the_same_from_a_batch() -> None:
    losses = {}
    for dtype in ("fp32", "bf16", "fp16"):
        config = small_config(dtype=dtype, optim_conf={"lr": 0.01}, scheduler_conf={"warmup_steps": 0})
        torch.manual_seed(3)
        state = state_of(dtype)
        losses[dtype] = [step.loss for step in run_epoch(state, [BATCH] * 3, config)]
        assert {value.dtype for value in state.model.parameters()} == {torch.float32}
        assert all(value.grad is None for value in state.model.parameters())
        losses[dtype].append(validate(state.model, [BATCH], config, CPU).per_target()["loss"])
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)
    assert losses["fp16"] == pytest.approx(losses["fp32"], rel=0.01)
    assert losses["fp16"] != losses["fp32"]
    assert losses["fp32"][-1] < losses["fp32"][0]


def test_gradients_do_not_depend_on_the_scale_and_only_fp16_has_one() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for dtype, scale in (("fp32", 1.0), ("bf16", 1.0), ("fp16", 65536.0)):
        one = Precision(dtype, CPU)
        assert (one.loss_scale, one.is_searching, bool(one.state_dict())) == (scale, scale > 1, scale > 1)
        weight.grad = None
        one.backward((weight * 3).sum())
        assert weight.grad is not None
        assert weight.grad.tolist() == [3 * scale] * 3
        one.unscale(optimizer)
        assert weight.grad.tolist() == [3.0] * 3
        one.step(optimizer, is_finite=True)
        one.step(optimizer, is_finite=False)  # no change in any dtype
    assert weight.tolist() == [1 - 3 * 3] * 3


def test_steps_skipped_for_the_loss_scale_do_not_end_training() -> None:
    """The scale begins so high that more than MAX_SKIPPED_IN_A_ROW gradients in a row overflow."""
    config, state = small_config(dtype="fp16"), state_of("fp16")
    scale = 2.0**40
    state.precision.load_state_dict({**state.precision.state_dict(), "scale": scale, "_growth_tracker": 7})
    before = weights(state)
    skipped = 0
    for step in run_epoch(state, [BATCH] * 60, config):
        assert step.loss_scale == scale
        if not step.suspects:
            break
        skipped, scale = skipped + 1, scale / 2
        assert same(before, weights(state)), "running statistics too"
        assert state.precision.state_dict()["_growth_tracker"] == 0
        assert (step.skipped_steps, state.progress.skipped_in_a_row) == (skipped, 0)
    assert skipped > MAX_SKIPPED_IN_A_ROW, "otherwise the test shows nothing"
    assert math.isfinite(step.grad_norm)
    assert not same(before, weights(state))
    assert state.precision.state_dict()["_growth_tracker"] == 1


def test_other_skipped_steps_in_a_row_end_training() -> None:
    config = small_config(dtype="fp16")
    features = BATCH.features.clone()
    features[0, 3, 5] = math.nan
    bad_batch = small_batch([60, 41], [9, 2])
    bad_batch.features.copy_(features)
    for scale in (1.0, 65536.0):
        state = state_of("fp16")
        state.precision.load_state_dict({**state.precision.state_dict(), "scale": scale})
        with pytest.raises(DataError, match=f"not finite {MAX_SKIPPED_IN_A_ROW} times in a row"):
            list(run_epoch(state, [bad_batch] * (MAX_SKIPPED_IN_A_ROW + 1), config))
        assert state.precision.loss_scale == max(1.0, scale / 2**MAX_SKIPPED_IN_A_ROW)


def test_the_loss_scale_is_restored_from_a_checkpoint(tmp_path: Path) -> None:
    config = small_config(dtype="fp16")
    state = state_of("fp16")
    state.precision.load_state_dict({**state.precision.state_dict(), "scale": 1024.0, "growth_interval": 3})
    torch.manual_seed(5)
    list(run_epoch(state, [BATCH] * 2, config))
    files = state.to_files()
    path = save_checkpoint(tmp_path, 2, files)
    other = state_of("fp16")
    other.restore(path)
    assert other.precision.state_dict() == state.precision.state_dict()
    assert [step.loss_scale for step in run_epoch(other, [BATCH] * 2, config)] == [1024.0, 2048.0], (
        "its third step doubles"
    )
    resumed = weights(other)
    state.restore(path)
    list(run_epoch(state, [BATCH] * 2, config))
    assert same(resumed, weights(state))
    record = json.loads(files["state.json"])
    del record["loss_scale"]
    path = save_checkpoint(tmp_path, 3, {**files, "state.json": json.dumps(record).encode()})
    with pytest.raises(
        CheckpointError, match=r"step-0*3: does not fit this training \('loss_scale'\); use an earlier checkpoint"
    ):
        other.restore(path)


def test_auto_chooses_a_native_dtype_and_emulated_fp16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    where = Path("c.yaml")
    for native, expected in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(setup, "has_native_bf16", lambda device, native=native: native)
        assert resolve_dtype(small_config(dtype="auto"), CPU, where=where).dtype == expected
    monkeypatch.setattr(torch.cpu, "_is_amx_fp16_supported", lambda: False)
    with pytest.raises(ConfigError, match=r"^c\.yaml: dtype: fp16 is emulated by this processor, .*; use bf16 or fp32"):
        resolve_dtype(small_config(dtype="fp16"), CPU, where=where)
    assert resolve_dtype(small_config(dtype="fp16"), torch.device("cuda"), where=where).dtype == "fp16"
    assert devices.peak_memory_bytes(CPU) > 50e6


def test_a_step_skipped_for_the_loss_scale_is_logged(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.INFO), monitored(tmp_path) as monitor:
        monitor.step(stats(4, suspects=("clip",), loss_scale=4096.0, grad_norm=math.inf))
    assert "step 4: skipped: fp16 overflow at loss scale 4096, now halved" in caplog.text
    assert "clip" not in caplog.text
