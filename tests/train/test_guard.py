# SPDX-License-Identifier: Apache-2.0
"""Error messages of a step: out of memory names the batch, values that are not finite the utterances."""

import math
from dataclasses import replace

import pytest
import torch
from small_models import small_batch, small_config, small_model

from wenet_hs.data.batching import Batch
from wenet_hs.distributed import World
from wenet_hs.errors import ConfigError
from wenet_hs.model import AsrModel
from wenet_hs.train.loop import find_suspects, report_out_of_memory, run_epoch, validate
from wenet_hs.train.optim import build_optimizer
from wenet_hs.train.state import TrainState

LINE = (
    "out of memory with 3 utterances of up to 60 frames and 7 units, the longest utt1; lower batch_size or "
    "max_frames_in_batch of dataset_conf.batch_conf, filter_conf.max_length, or set "
    "encoder_conf.gradient_checkpointing$"
)
BATCH = small_batch([40, 60, 33], [5, 2, 7])


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
)
def test_each_out_of_memory_error_names_the_batch(error: Exception) -> None:
    with pytest.raises(ConfigError, match=f"^step 812: {LINE}"), report_out_of_memory(BATCH, "step 812"):
        raise error


def test_an_error_of_the_compiler() -> None:
    fault = type("InductorError", (RuntimeError,), {"__module__": "torch._inductor.exc"})
    line = r"^step 1: compile: true: torch's compiler failed \(ImportError: file too short\); install .*: false$"
    with pytest.raises(ConfigError, match=line), report_out_of_memory(BATCH, "step 1"):
        raise fault("ImportError: file too short\n\nSet TORCHDYNAMO_VERBOSE=1")


def test_the_message_names_the_step_or_the_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config()
    model = small_model(seed=1)
    state = TrainState(model, build_optimizer(model, config), torch.device("cpu"))
    next(run_epoch(state, [BATCH], config))
    monkeypatch.setattr(AsrModel, "forward", lambda self, batch: torch.empty(1 << 60))
    with pytest.raises(ConfigError, match=f"^step 2: {LINE}"):
        next(run_epoch(state, [BATCH], config))
    with pytest.raises(ConfigError, match=f"^validation: {LINE}"):
        validate(model, [BATCH], config, torch.device("cpu"))


def named(batch: Batch, *keys: str, bad_rows: tuple[int, ...] = ()) -> Batch:
    features = batch.features.clone()
    features[list(bad_rows), 2, 3] = math.inf
    return replace(batch, keys=list(keys), features=features)


def test_suspects_of_a_step_that_is_not_finite() -> None:
    many = small_batch([20] * 7, [2] * 7)
    good = named(many, *(f"a{i}" for i in range(7)))
    loud = named(many, *(f"b{i}" for i in range(7)), bad_rows=(2, 6))
    other = named(many, *(f"c{i}" for i in range(7)))
    assert find_suspects([good, loud, other], [1.0, math.nan, 1.0], World()) == ("b2", "b6")
    assert find_suspects([good, loud, other], [1.0, 1.0, math.inf], World()) == ("c0", "c1", "c2", "c3", "c4")
    unknown = find_suspects([good, other], [1.0, 1.0], World())  # losses are finite, the gradient is not
    assert unknown == ("a0", "a1", "a2", "a3", "a4", "c0", "c1", "c2", "c3", "c4")


def test_an_infinite_loss_with_a_finite_gradient_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(accum_grad=2)
    model = small_model(seed=1)
    state = TrainState(model, build_optimizer(model, config), torch.device("cpu"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    forward, second = AsrModel.forward, small_batch([30, 20], [3, 2], seed=2)

    def infinite(self: AsrModel, batch: Batch) -> object:
        losses = forward(self, batch)
        return replace(losses, total=losses.total + math.inf) if batch.keys == ["bad", "too"] else losses

    monkeypatch.setattr(AsrModel, "forward", infinite)
    (stats,) = run_epoch(state, [BATCH, replace(second, keys=["bad", "too"])], config)
    assert math.isfinite(stats.grad_norm)
    assert (stats.suspects, stats.skipped_steps) == (("bad", "too"), 1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
