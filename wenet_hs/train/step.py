# SPDX-License-Identifier: Apache-2.0
"""The parts of an optimizer step that all kinds of models share: learning rate, clipping, skipped
steps.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wenet_hs.config.schema import TrainingConfig
from wenet_hs.train.optim import SMALLEST_SCALE, clip_gradient, learning_rate
from wenet_hs.train.state import Progress, TrainState
from wenet_hs.tree.errors import DataError

MAX_SKIPPED_IN_A_ROW = 10


def begin_step(state: TrainState[Any], config: TrainingConfig) -> None:
    """Count the next step, and set its learning rate."""
    progress = state.progress
    progress.step += 1
    if progress.step == config.scheduler_conf.warmup_steps + 1:
        progress.warmup_seconds = progress.seconds
    times = {"seconds": progress.seconds, "warmup_seconds": progress.warmup_seconds}
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(progress.step, config, part=group.get("part"), **times)


def clip_and_read(
    state: TrainState[Any], config: TrainingConfig, values: Tensor
) -> tuple[float, list[float]]:
    """Clip the gradients. Returns their norm before, and the values (N,) of the step.

    They are read together, because each reading waits for the device.
    """
    norm = clip_gradient(state.model.parameters(), config.grad_clip, state.precision.loss_scale)
    grad_norm, *read = torch.cat([norm[None].to(values.dtype), values]).tolist()
    return grad_norm, read


def sum_over_ranks(state: TrainState[Any], values: Sequence[float]) -> list[float]:
    """The values summed over the ranks, once per step; with them the time and the request to stop."""
    seconds = (
        state.uncounted_seconds if state.world.is_first else 0.0
    )  # `max_minutes` needs one clock
    *sums, seconds, num_requests = state.world.sum([*values, seconds, float(state.wants_to_stop())])
    state.progress.seconds += seconds
    state.uncounted_seconds, state.is_asked_to_stop = 0.0, num_requests > 0
    return sums


def count_seconds(state: TrainState[Any], seconds: float) -> None:
    """Add the time of a step to the progress; with several ranks the next step does it, by the
    clock of rank 0.
    """
    if state.world.size == 1:
        state.progress.seconds += seconds
    else:
        state.uncounted_seconds = seconds


def apply_gradients(state: TrainState[Any], grad_norm: float, loss: float) -> bool:
    """Do the optimizer's step, which is skipped and counted if loss or gradient are not finite.

    Args:
        grad_norm: of all ranks, before clipping; loss: of the step, summed over the ranks.

    Returns: whether the step was done.
    """
    progress, precision = state.progress, state.precision
    # The gradient may have overflowed because of the loss scale of fp16, which is then lowered.
    scale_may_be_cause = precision.loss_scale > SMALLEST_SCALE and math.isfinite(loss)
    is_finite = math.isfinite(grad_norm) and math.isfinite(loss)
    precision.step(state.optimizer, is_finite=is_finite)
    state.optimizer.zero_grad(set_to_none=True)
    if is_finite:
        progress.skipped_in_a_row = 0
    else:
        progress.skipped_steps += 1
        progress.skipped_in_a_row += int(not scale_may_be_cause)
    return is_finite


def refuse_many_skips(progress: Progress, suspects: tuple[str, ...], to_do: str) -> None:
    """Raise DataError after MAX_SKIPPED_IN_A_ROW steps whose loss or gradient was not finite.

    Args:
        suspects: what the last of them may have been skipped for.
        to_do: what the user can do.
    """
    if progress.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
        found = f"loss or gradient not finite {progress.skipped_in_a_row} times in a row, last with"
        raise DataError(f"step {progress.step}", f"{found} {', '.join(suspects)}", to_do)
