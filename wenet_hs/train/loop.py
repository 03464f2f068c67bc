# SPDX-License-Identifier: Apache-2.0
"""The training loop. It yields facts, a StepStats for each optimizer step; the caller logs, validates and saves."""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass

import torch

from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.audio import BadClip
from wenet_hs.data.batching import Batch
from wenet_hs.data.dataset import with_features
from wenet_hs.distributed import World
from wenet_hs.model import AsrModel, Losses
from wenet_hs.train.guard import FiniteGuard, naming_batch, refuse_many
from wenet_hs.train.optim import attention_guide, ctc_weight, learning_rate
from wenet_hs.train.precision import Precision
from wenet_hs.train.sparse import clip_gradient
from wenet_hs.train.state import TrainState
from wenet_hs.train.stopwatch import Stopwatch
from wenet_hs.train.window import WindowSum, suspects_of_all


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
    compute_seconds: float
    """Wall time of forward, backward and optimizer; `Stopwatch` says how a GPU's is known."""
    padding_share: float
    """Of the feature frames that were computed, how many stand behind the end of an utterance."""
    loss_scale: float
    """What fp16 multiplied the loss by; 1 for any other dtype."""
    skipped_steps: int
    """Steps left out so far for a loss or a gradient that was not finite."""
    bad_clips: int = 0
    """Clips drawn so far that could not be read."""
    quarantined: tuple[BadClip, ...] = ()
    """Those drawn for this step."""
    suspects: tuple[str, ...] = ()
    """Where this step was left out: keys of the utterances that may be the cause, as `guard.suspects` finds them."""


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

    def add(self, losses: Losses) -> float:
        """Take in the sums of one batch. Returns its total."""
        parts = (losses.total, losses.attention, losses.ctc, losses.guide, losses.nll, losses.num_correct)
        sums = torch.stack([part.detach().double() for part in parts]).tolist()  # one wait for the device, not six
        self.total += sums[0]
        self.attention += sums[1]
        self.ctc += sums[2]
        self.guide += sums[3]
        self.nll += sums[4]
        self.num_correct += int(sums[5])
        self.num_targets += losses.num_targets
        return float(sums[0])

    def over(self, world: World) -> "LossSum":
        """The sums of all ranks; each has to ask."""
        total, attention, ctc, guide, nll, num_targets, num_correct = world.sum(astuple(self))
        return LossSum(total, attention, ctc, guide, nll, int(num_targets), int(num_correct))

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

    `batches` are this rank's; a window is that of all ranks, and so are the facts but for the seconds and quarantined.

    Raises DataError when loss or gradient were not finite so often in a row that training is of no use any more, and
    ConfigError with the batch for which memory does not suffice.
    """
    state.model.train()
    for window, wait_seconds in in_windows(batches, config.accum_grad):
        started = time.perf_counter()
        loss_scale, computing = state.precision.loss_scale, Stopwatch()
        whole = WindowSum.of(window, state.world)
        sums, grad_norm, left_out = _step(state, window, whole.num_targets, config, computing)
        progress = state.progress
        progress.batch += whole.num_batches
        progress.clips_drawn += whole.num_drawn
        progress.bad_clips += whole.num_bad
        seconds = time.perf_counter() - started + wait_seconds
        progress.seconds += state.world.sum([seconds * state.world.is_first])[0]  # one clock decides when time is up
        refuse_many(progress, left_out)
        yield StepStats(
            step=progress.step,
            epoch=progress.epoch,
            **sums.per_target(),
            grad_norm=grad_norm,
            lr=state.optimizer.param_groups[0]["lr"],
            num_targets=sums.num_targets,
            audio_seconds=whole.audio_seconds,
            seconds=seconds,
            wait_seconds=wait_seconds,
            compute_seconds=computing.seconds,
            padding_share=whole.padding_share,
            loss_scale=loss_scale,
            skipped_steps=progress.skipped_steps,
            bad_clips=progress.bad_clips,
            quarantined=tuple(clip for batch in window for clip in batch.quarantined),
            suspects=left_out,
        )


def _step(
    state: TrainState, window: list[Batch], num_targets: int, config: ExperimentConfig, computing: Stopwatch
) -> tuple[LossSum, float, tuple[str, ...]]:
    """Forward, backward, and the optimizer's step, or nothing at all where loss or gradient are not finite.

    Returns the losses, the norm of the gradient, and the suspects where the step was left out.
    """
    step = state.progress.step + 1
    state.model.ctc_weight = ctc_weight(step, config)
    state.model.attention_guide = attention_guide(step, config)
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(step, config)
    guard, totals = FiniteGuard(state.model), []
    sums, precision, replica = LossSum(), state.precision, state.replica
    for number, batch in enumerate(window, 1):
        with naming_batch(batch, f"step {step}"):
            on_device = batch.to(state.device)
            with computing, replica.pass_of(is_last=number == len(window)):
                with precision.autocast():
                    losses = replica(on_device)
                precision.backward(losses.total / replica.loss_divisor(num_targets))
                totals.append(sums.add(losses))
    sums = sums.over(state.world)
    was_searching = precision.is_searching
    with computing:
        precision.unscale(state.optimizer)
        grad_norm = float(clip_gradient(state.model.parameters(), config.grad_clip))
        stepped = precision.step(state.optimizer, is_finite=math.isfinite(grad_norm) and math.isfinite(sums.total))
    if stepped:
        guard.took(state.progress)
    else:
        guard.left_out(state.progress, counts=not (was_searching and math.isfinite(sums.total)))
    state.optimizer.zero_grad(set_to_none=True)
    state.progress.step = step
    return sums, grad_norm, () if stepped else suspects_of_all(window, totals, state.world)


@torch.no_grad()
def validate(model: AsrModel, batches: Iterable[Batch], config: ExperimentConfig, device: torch.device) -> LossSum:
    """Losses over a data set in evaluation mode, with the CTC share that the config ends with."""
    was_training, weight, precision = model.training, model.ctc_weight, Precision(config.dtype, device)
    model.eval()
    final = config.model_conf.ctc_weight_final
    model.ctc_weight = config.model_conf.ctc_weight if final is None else final
    sums = LossSum()
    try:
        for batch in batches:
            with naming_batch(batch, "validation"), precision.autocast():
                losses = model(with_features(batch.to(device), config.dataset_conf))
            sums.add(losses)
    finally:
        model.train(was_training)
        model.ctc_weight = weight
    return sums
