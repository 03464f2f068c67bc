# SPDX-License-Identifier: Apache-2.0
"""The training loop. It yields facts, a StepStats for each optimizer step; the caller logs, validates and saves."""

import contextlib
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.dataset import Batch
from wenet_hs.errors import DataError
from wenet_hs.model import AsrModel, Losses
from wenet_hs.nn.convolution import MaskedBatchNorm
from wenet_hs.train.optim import attention_guide, ctc_weight, learning_rate
from wenet_hs.train.sparse import clip_gradient
from wenet_hs.train.state import TrainState

MAX_SKIPPED_IN_A_ROW = 10


@dataclass(frozen=True, kw_only=True)
class StepStats:
    """What one optimizer step did. Losses are nats a target (unit or end of sentence)."""

    step: int
    epoch: int
    loss: float
    loss_att: float
    loss_ctc: float
    guide: float = 0.0
    """The guided-attention penalty, at most 1; 0 where it is off."""
    accuracy: float
    bits_per_unit: float
    """What the decoder's head needs for a target, without label smoothing."""
    grad_norm: float
    lr: float
    num_targets: int
    audio_seconds: float
    seconds: float
    """Wall time of the step, the wait for data included."""
    wait_seconds: float
    """Wall time spent waiting for data."""
    skipped_steps: int
    """Steps left out so far for a gradient that was not finite."""
    suspects: tuple[str, ...] = ()
    """Where this step was left out: keys of its utterances, the first five of each batch."""


@dataclass
class LossSum:
    """Sums of losses over batches, and the targets to divide them by once."""

    total: float = 0.0
    attention: float = 0.0
    ctc: float = 0.0
    guide: float = 0.0
    nll: float = 0.0
    num_targets: int = 0
    num_correct: int = 0

    def add(self, losses: Losses) -> None:
        """Take in the sums of one batch."""
        parts = (losses.total, losses.attention, losses.ctc, losses.guide, losses.nll, losses.num_correct)
        sums = torch.stack([part.detach().double() for part in parts]).tolist()  # one wait for the device, not six
        self.total += sums[0]
        self.attention += sums[1]
        self.ctc += sums[2]
        self.guide += sums[3]
        self.nll += sums[4]
        self.num_correct += int(sums[5])
        self.num_targets += losses.num_targets

    def per_target(self) -> dict[str, float]:
        """Mean losses in nats a target, the share of targets that the decoder ranks first, and its bits a target."""
        n = max(1, self.num_targets)
        return {
            "loss": self.total / n,
            "loss_att": self.attention / n,
            "loss_ctc": self.ctc / n,
            "guide": self.guide / n,
            "accuracy": self.num_correct / n,
            "bits_per_unit": self.nll / math.log(2) / n,
        }


def autocast(config: ExperimentConfig, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """bfloat16 autocast where the config asks for it; heads and losses stay in float32 inside."""
    if config.dtype == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def in_windows(batches: Iterable[Batch], size: int) -> Iterator[tuple[list[Batch], float]]:
    """Batches in groups of `size` (the last one may be smaller), each with the seconds waited for it."""
    iterator = iter(batches)
    while True:
        started = time.perf_counter()
        window = [batch for _, batch in zip(range(size), iterator, strict=False)]
        if not window:
            return
        yield window, time.perf_counter() - started


def run_epoch(state: TrainState, batches: Iterable[Batch], config: ExperimentConfig) -> Iterator[StepStats]:
    """One optimizer step an accumulation window; the summed loss is divided once, by the targets of the window.

    Raises DataError when the gradient was not finite so often in a row that training is of no use any more.
    """
    state.model.train()
    for window, wait_seconds in in_windows(batches, config.accum_grad):
        started = time.perf_counter()
        sums, grad_norm = _step(state, window, config)
        progress = state.progress
        progress.batch += len(window)
        progress.cv_loss = None
        seconds = time.perf_counter() - started + wait_seconds
        progress.seconds += seconds
        suspects = () if math.isfinite(grad_norm) else tuple(key for batch in window for key in batch.keys[:5])
        if progress.skipped_in_a_row == MAX_SKIPPED_IN_A_ROW:
            raise DataError(
                f"step {progress.step}: gradient not finite {MAX_SKIPPED_IN_A_ROW} times in a row, last with "
                f"{', '.join(suspects)}; look at these utterances, or train with a lower optim_conf.lr in another "
                "--model_dir"
            )
        yield StepStats(
            step=progress.step,
            epoch=progress.epoch,
            **sums.per_target(),
            grad_norm=grad_norm,
            lr=state.optimizer.param_groups[0]["lr"],
            num_targets=sums.num_targets,
            audio_seconds=sum(batch.audio_seconds for batch in window),
            seconds=seconds,
            wait_seconds=wait_seconds,
            skipped_steps=progress.skipped_steps,
            suspects=suspects,
        )


def _step(state: TrainState, window: list[Batch], config: ExperimentConfig) -> tuple[LossSum, float]:
    """Forward, backward, and the optimizer's step, or nothing at all where the gradient is not finite."""
    step = state.progress.step + 1
    state.model.ctc_weight = ctc_weight(step, config)
    state.model.attention_guide = attention_guide(step, config)
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(step, config)
    statistics = _running_statistics(state.model)
    before = [value.clone() for value in statistics]
    num_targets = sum(batch.num_targets for batch in window)
    sums = LossSum()
    for batch in window:
        with autocast(config, state.device):
            losses = state.model(batch.to(state.device))
        (losses.total / num_targets).backward()
        sums.add(losses)
    grad_norm = float(clip_gradient(state.model.parameters(), config.grad_clip))
    if math.isfinite(grad_norm):
        state.optimizer.step()
        state.progress.skipped_in_a_row = 0
    else:
        for value, earlier in zip(statistics, before, strict=True):
            value.copy_(earlier)
        state.progress.skipped_steps += 1
        state.progress.skipped_in_a_row += 1
    state.optimizer.zero_grad(set_to_none=True)
    state.progress.step = step
    return sums, grad_norm


def _running_statistics(model: AsrModel) -> list[torch.Tensor]:
    """What the forward pass changes: one value that is not finite would stay in them for the rest of the training."""
    return [value for module in model.modules() if isinstance(module, MaskedBatchNorm) for value in module.buffers()]


@torch.no_grad()
def validate(model: AsrModel, batches: Iterable[Batch], config: ExperimentConfig, device: torch.device) -> LossSum:
    """Losses over a data set in evaluation mode, with the CTC share that the config ends with."""
    was_training, weight = model.training, model.ctc_weight
    model.eval()
    final = config.model_conf.ctc_weight_final
    model.ctc_weight = config.model_conf.ctc_weight if final is None else final
    sums = LossSum()
    try:
        for batch in batches:
            with autocast(config, device):
                losses = model(batch.to(device))
            sums.add(losses)
    finally:
        model.train(was_training)
        model.ctc_weight = weight
    return sums
