# SPDX-License-Identifier: Apache-2.0
"""Parts of an optimizer step of any model: learning rate, clipping, sums over ranks, skips."""

import math
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from wenet_hs.config.schema import TrainingConfig
from wenet_hs.train.optim import SMALLEST_SCALE, clip_gradient, learning_rate
from wenet_hs.train.state import Progress, TrainState
from wenet_hs.tree.errors import DataError

MAX_SKIPPED_IN_A_ROW = 10
"""A training ends with an error after so many steps in a row without a finite loss and gradient."""


def begin_step(state: TrainState[Any], config: TrainingConfig) -> None:
    """Count the next step, and set the learning rate of each part of the model.

    The first step after the warm-up records the training time at its end.
    """
    progress = state.progress
    progress.step += 1
    if progress.step == config.scheduler_conf.warmup_steps + 1:
        progress.warmup_seconds = progress.seconds
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(
            progress.step,
            config,
            part=group.get("part"),
            seconds=progress.seconds,
            warmup_seconds=progress.warmup_seconds,
        )


def clip_and_read(
    state: TrainState[Any], config: TrainingConfig, losses: Sequence[Tensor]
) -> tuple[float, list[list[float]]]:
    """Clip the gradients, and read the losses of the step from the device.

    Each reading waits for the device, so the norm and all losses are read together.

    `losses`: one tensor per batch, (N,) each.
    Returns: the norm of the gradients before clipping, and the N losses of each batch.
    """
    norm = clip_gradient(state.model.parameters(), config.grad_clip, state.precision.loss_scale)
    norm_as_loss = norm[None].to(losses[0].dtype)
    grad_norm, *values = torch.cat([norm_as_loss, *losses]).tolist()
    # The values of all batches follow each other: each batch takes its own from one iterator.
    remaining_values = iter(values)
    losses_of_batches = [list(islice(remaining_values, len(loss))) for loss in losses]
    return grad_norm, losses_of_batches


def sum_over_ranks(state: TrainState[Any], groups: Sequence[Sequence[float]]) -> list[list[float]]:
    """Sum each value over the ranks, in one collective per step; every rank must call it.

    The collective also adds the time of the step before to the progress, by the clock of rank 0,
    and tells all ranks whether one of them is asked to stop (`state.is_asked_to_stop`).

    `groups`: lists of values; each rank must give lists of the same lengths.
    Returns: the sums, in lists like the given ones.
    """
    values = [*chain.from_iterable(groups)]
    # `max_minutes` needs one clock: the other ranks add nothing.
    seconds = state.uncounted_seconds if state.world.is_first else 0.0
    request = float(state.wants_to_stop())
    *sums, seconds, num_requests = state.world.sum([*values, seconds, request])
    state.progress.seconds += seconds
    state.uncounted_seconds = 0.0
    state.is_asked_to_stop = num_requests > 0
    # The sums of all groups follow each other: each group takes its own from one iterator.
    remaining_sums = iter(sums)
    return [list(islice(remaining_sums, len(group))) for group in groups]


def count_seconds(state: TrainState[Any], seconds: float) -> None:
    """Add the time of a step to the training time in the progress.

    With several ranks it is kept until the next step, in which `sum_over_ranks` adds that of rank 0
    on all ranks.
    """
    if state.world.size == 1:
        state.progress.seconds += seconds
    else:
        state.uncounted_seconds = seconds


def apply_gradients(state: TrainState[Any], grad_norm: float, loss: float) -> bool:
    """Do the optimizer's step, and remove the gradients.

    The step is skipped and counted if loss or gradient are not finite. It does not count among the
    skipped steps in a row if the loss scale of fp16 may be the cause, which is lowered then.

    Args:
        grad_norm: the norm of the gradient of all ranks, before clipping.
        loss: the loss of the step, summed over the ranks.

    Returns: whether the step was done.
    """
    progress = state.progress
    precision = state.precision
    # A large scale lets the gradient overflow. The loss is without the scale.
    scale_may_be_cause = precision.loss_scale > SMALLEST_SCALE and math.isfinite(loss)
    is_finite = math.isfinite(grad_norm) and math.isfinite(loss)
    precision.step(state.optimizer, is_finite=is_finite)
    state.optimizer.zero_grad(set_to_none=True)
    if is_finite:
        progress.skipped_in_a_row = 0
    else:
        progress.skipped_steps += 1
        if not scale_may_be_cause:
            progress.skipped_in_a_row += 1
    return is_finite


def refuse_many_skips(progress: Progress, suspects: tuple[str, ...], to_do: str) -> None:
    """Raise DataError if the last MAX_SKIPPED_IN_A_ROW steps were all skipped.

    Args:
        suspects: keys of the utterances, or the batch, that may be the cause of the last skip.
        to_do: what the user can do.
    """
    if progress.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
        found = f"loss or gradient not finite {progress.skipped_in_a_row} times in a row, last with"
        raise DataError(f"step {progress.step}", f"{found} {', '.join(suspects)}", to_do)
