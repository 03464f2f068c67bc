# SPDX-License-Identifier: Apache-2.0
"""The optimizer steps of an epoch, and the validation, of a recogniser.

`run_epoch` yields the facts of each step. Its caller logs them, validates and saves checkpoints.

Dimension key: B utterances, T frames.
"""

import math
import operator
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from enum import IntEnum
from itertools import islice

import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from wenet_hs.compute.devices import lacks_memory
from wenet_hs.compute.distributed import World
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.batching import Batch
from wenet_hs.data.dataset import with_features
from wenet_hs.frontends.build import build_frontend
from wenet_hs.heads.ctc import begins_unit
from wenet_hs.manifest.data_list import BadClip
from wenet_hs.model.asr_model import AsrModel, Losses
from wenet_hs.model.encoders.pretrained import PretrainedEncoder
from wenet_hs.nn.conformer import MaskedBatchNorm
from wenet_hs.train.monitor import StepStats
from wenet_hs.train.optim import Precision, attention_guide, ctc_weight, current_rates
from wenet_hs.train.state import TrainState
from wenet_hs.train.step import (
    apply_gradients,
    begin_step,
    clip_and_read,
    count_seconds,
    refuse_many_skips,
    sum_over_ranks,
)
from wenet_hs.tree.errors import ConfigError

MOST_SUSPECTS = 5
"""Utterances per batch that a message about a skipped step names."""


@dataclass(frozen=True, kw_only=True)
class SpeechStats(StepStats):
    """The facts of one optimizer step of a recogniser."""

    throughput = "audio_seconds"
    loss_att: float
    loss_ctc: float
    guide: float = 0.0
    """The guided-attention penalty, at most 1; 0 where it is off."""
    accuracy: float
    audio_seconds: float
    padding_share: float
    """Share of the computed feature frames that are padding."""
    quarantined: tuple[BadClip, ...] = ()
    """The clips drawn for this step that could not be read."""


_SUMMED_LOSSES = (
    "total",
    "attention",
    "ctc",
    "guide",
    "nll",
    "num_correct",
    "num_blank",
    "num_frames",
)
"""The tensors of `Losses` that LossSum adds up."""


@dataclass(frozen=True)
class LossSum:
    """Sums over batches of what `Losses` has, with the number of targets to divide them by."""

    total: float = 0.0
    attention: float = 0.0
    ctc: float = 0.0
    guide: float = 0.0
    nll: float = 0.0
    num_correct: float = 0.0
    num_blank: float = 0.0
    num_frames: float = 0.0
    num_targets: float = 0.0
    num_errors: float = 0.0
    """Errors of greedy CTC search against the labels; 0 in training."""
    num_labels: float = 0.0
    """The labels with which greedy CTC search was compared; 0 in training."""

    @staticmethod
    def stack(losses: Losses) -> Tensor:
        """The tensors of _SUMMED_LOSSES as one, (8,) float64 on their device.

        So they are read from a GPU at once: each reading waits for it.
        """
        values = [getattr(losses, name) for name in _SUMMED_LOSSES]
        return torch.stack([value.detach().double() for value in values])

    @classmethod
    def of_batch(cls, stacked: Sequence[float], num_targets: int) -> "LossSum":
        """The sums of one batch. `stacked`: the numbers that `stack` put into one tensor."""
        values = dict(zip(_SUMMED_LOSSES, stacked, strict=True))
        return cls(**values, num_targets=num_targets)

    def __add__(self, other: "LossSum") -> "LossSum":
        """The sums over the batches of both."""
        return LossSum(*map(operator.add, astuple(self), astuple(other)))

    def over_ranks(self, world: World) -> "LossSum":
        """The sums of all ranks; every rank must call it."""
        return LossSum(*world.sum(astuple(self)))

    def per_target(self) -> dict[str, float]:
        """The metrics by their names in metrics.jsonl.

        The losses are means in nats per target. `accuracy` (a share) and `bits_per_unit` are of the
        decoder. They are NaN without a decoder, and in steps that do not compute the metrics.
        `loss_att` is NaN if the decoder did not run.

        Only after a validation with CTC are there two more: `blank_share`, the share of the frames
        at which blank is the best unit, and `ctc_error_rate`, the errors of greedy search per
        label.
        """
        metrics: dict[str, float] = {}
        if self.num_frames:
            metrics["blank_share"] = self.num_blank / self.num_frames
        if self.num_labels:
            metrics["ctc_error_rate"] = self.num_errors / self.num_labels
        num_targets = max(1.0, self.num_targets)  # without targets: 0 divided by 1
        has_attention = self.attention != 0  # it is exactly 0 if the decoder did not run
        has_metrics = not math.isnan(self.nll)
        return metrics | {
            "loss": self.total / num_targets,
            "loss_att": self.attention / num_targets if has_attention else math.nan,
            "loss_ctc": self.ctc / num_targets,
            "guide": self.guide / num_targets,
            "accuracy": self.num_correct / num_targets if has_metrics else math.nan,
            "bits_per_unit": self.nll / math.log(2) / num_targets,
        }


@dataclass(frozen=True)
class WindowCounts:
    """Sums over the batches of a window, of this rank or of all ranks together."""

    num_batches: float
    num_targets: float
    num_drawn: float
    """Clips drawn from the training list, with those that could not be read."""
    num_bad: float
    """Clips that could not be read."""
    num_incomplete: float
    """Clips that lack a little of the length in their header, and are used."""
    num_frames: float
    num_padded_frames: float
    """The frames with the padding, as many as are computed."""
    audio_seconds: float

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> "WindowCounts":
        """The counts of these batches; all 0 without a batch."""
        return cls(
            num_batches=len(batches),
            num_targets=sum(batch.num_targets for batch in batches),
            num_drawn=sum(batch.num_drawn for batch in batches),
            num_bad=sum(len(batch.quarantined) for batch in batches),
            num_incomplete=sum(batch.num_incomplete for batch in batches),
            num_frames=sum(batch.num_frames for batch in batches),
            num_padded_frames=sum(_count_padded_frames(batch) for batch in batches),
            audio_seconds=sum(batch.audio_seconds for batch in batches),
        )


def _count_padded_frames(batch: Batch) -> int:
    """The frames of a batch with its padding, which makes all utterances as long as the longest."""
    return len(batch.keys) * int(batch.feature_lengths.max())


@dataclass(frozen=True, kw_only=True)
class Window:
    """The batches of one optimizer step on this rank: `accum_grad` of them, at the end fewer."""

    batches: Sequence[Batch]
    """Empty: the epoch or the training is over."""
    counts: WindowCounts
    """Those of this rank when it was read; of all ranks together when its step begins."""
    wait_seconds: float
    """Wall time of reading it."""
    error: Exception | None = None
    """The error that ended the reading.

    The window is read during the step before. The error is raised when its own step begins.
    """


class WindowReader:
    """Reads the windows of an epoch on this rank."""

    def __init__(
        self, batches: Iterable[Batch], state: TrainState[AsrModel], config: ExperimentConfig
    ) -> None:
        """`batches`: those of this rank, in order."""
        self._batches = iter(batches)
        self._progress = state.progress
        self._last_step = config.scheduler_conf.total_steps
        """The step that ends the training; None if the schedule has no last step."""
        self._size = config.accum_grad

    def read_next(self) -> Window:
        """The next window, with the counts of this rank.

        It is empty at the end of the epoch and after the last step of the training. If reading
        fails, it is empty and has the error, which is not raised here.
        """
        started = time.perf_counter()
        batches: list[Batch] = []
        failure: Exception | None = None
        if self._progress.step != self._last_step:
            try:
                batches = list(islice(self._batches, self._size))
            except Exception as error:
                failure = error
        return Window(
            batches=batches,
            counts=WindowCounts.of(batches),
            wait_seconds=time.perf_counter() - started,
            error=failure,
        )


class _Stopwatch:
    """Adds up the wall time of the blocks that `running` encloses."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """The sum so far."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the time of this block."""
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started


class _BatchNormStatistics:
    """A copy of the running statistics of each batch normalization in a model."""

    def __init__(self, model: AsrModel) -> None:
        self._copies: list[tuple[Tensor, Tensor]] = []
        """Each buffer of the model with its copy."""
        for module in model.modules():
            if isinstance(module, MaskedBatchNorm):
                self._copies += [(buffer, buffer.clone()) for buffer in module.buffers()]

    def restore(self) -> None:
        """Give the model the statistics that it had when they were copied."""
        for buffer, copy in self._copies:
            buffer.copy_(copy)


def run_epoch(
    state: TrainState[AsrModel], batches: Iterable[Batch], config: ExperimentConfig
) -> Iterator[SpeechStats]:
    """Do the optimizer steps of an epoch, one per window; yield the facts of each.

    The loss is summed over the window, and divided once by the targets of the window on all ranks.
    The model is put into training mode. The facts are those of all ranks together, except the times
    and `quarantined`, which are those of this rank.

    `batches`: those of this rank, from the first one that is not yet used.
    Raises DataError after too many skipped steps in a row, and what reading the data raises;
        ConfigError that names the batch for which the memory is too small.
    """
    state.model.train()
    windows = WindowReader(batches, state, config)
    window = windows.read_next()
    counts_of_ranks = WindowCounts(*state.world.sum(astuple(window.counts)))
    window = replace(window, counts=counts_of_ranks)
    while window.batches or window.error:
        if window.error:
            raise window.error
        stats, window = _run_step(state, window, windows, config)
        what_to_do = (
            "look at these utterances, or train with a lower optim_conf.lr in another --model_dir"
        )
        refuse_many_skips(state.progress, stats.suspects, what_to_do)
        yield stats


def _run_step(
    state: TrainState[AsrModel], window: Window, windows: WindowReader, config: ExperimentConfig
) -> tuple[SpeechStats, Window]:
    """One optimizer step on `window`; reads the next window while a GPU computes.

    A step whose loss or gradient is not finite is skipped: weights and running statistics of batch
    normalization stay as they were before.
    The ranks wait for each other once per step, when they sum their losses. With these they sum the
    counts of the next window, which every rank needs before its own step.

    `window`: with the counts of all ranks.
    Returns: the facts of the step, and the next window with the counts of all ranks.
    """
    started = time.perf_counter()
    computing = _Stopwatch()
    begin_step(state, config)
    _apply_schedules(state, config)
    loss_scale = state.precision.loss_scale  # of this step: `apply_gradients` may change it
    statistics = _BatchNormStatistics(state.model)
    stacked_losses = _add_gradients(state, window, config, computing)
    next_window = windows.read_next()
    with computing.running():
        grad_norm, read_losses = clip_and_read(state, config, stacked_losses)
    batch_losses = [
        LossSum.of_batch(values, batch.num_targets)
        for values, batch in zip(read_losses, window.batches, strict=True)
    ]
    own_losses = sum(batch_losses, LossSum())
    loss_sums, next_counts = sum_over_ranks(
        state, [astuple(own_losses), astuple(next_window.counts)]
    )
    losses = LossSum(*loss_sums)
    next_window = replace(next_window, counts=WindowCounts(*next_counts))
    with computing.running():
        is_applied = apply_gradients(state, grad_norm, losses.total)
    suspects: tuple[str, ...] = ()
    if not is_applied:
        statistics.restore()
        totals = [batch_loss.total for batch_loss in batch_losses]
        suspects = find_suspects(window.batches, totals, state.world)
    _count_batches(state, window.counts)
    # The time of reading a window belongs to its own step.
    seconds = time.perf_counter() - started - next_window.wait_seconds + window.wait_seconds
    count_seconds(state, seconds)
    stats = SpeechStats(
        **(losses.per_target() | current_rates(state.optimizer)),
        grad_norm=grad_norm,
        num_targets=int(window.counts.num_targets),
        audio_seconds=window.counts.audio_seconds,
        seconds=seconds,
        wait_seconds=window.wait_seconds,
        compute_seconds=computing.seconds,
        padding_share=1 - window.counts.num_frames / window.counts.num_padded_frames,
        loss_scale=loss_scale,
        quarantined=_bad_clips_of(window),
        suspects=suspects,
    )
    return stats, next_window


def _apply_schedules(state: TrainState[AsrModel], config: ExperimentConfig) -> None:
    """Set the weights of the losses of this step, and whether the encoder is held.

    A pretrained encoder is held, which means not trained, in its first `freeze_steps` steps.
    The metrics of the decoder are computed only in steps that are logged.
    """
    step = state.progress.step
    model = state.model
    model.loss_weights = replace(
        model.loss_weights,
        ctc=ctc_weight(step, config),
        guide=attention_guide(step, config),
        with_metrics=step % config.log_interval == 0,
    )
    encoder = model.encoder
    if isinstance(encoder, PretrainedEncoder) and encoder.conf.freeze_steps:
        is_held = step <= encoder.conf.freeze_steps
        if encoder.is_held != is_held:
            encoder.is_held = is_held
            model.train()  # the mode of the encoder's parts depends on it


def _add_gradients(
    state: TrainState[AsrModel], window: Window, config: ExperimentConfig, computing: _Stopwatch
) -> list[Tensor]:
    """Forward and backward pass of each batch; the last one also averages the ranks' gradients.

    `computing` gets the time of the passes.
    Returns the losses of each batch as one tensor on the device, see `LossSum.stack`.
    Raises ConfigError if the memory is too small, torch's compiler fails, or no trained parameter
        has a part in the loss.
    """
    where = f"step {state.progress.step}"
    # The gradients of the ranks are averaged, not summed: so each rank divides its loss by the mean
    # number of targets per rank, not by all targets.
    targets_per_rank = int(window.counts.num_targets) / state.world.size
    stacked_losses: list[Tensor] = []
    for number, batch in enumerate(window.batches, start=1):
        is_last = number == len(window.batches)
        with translate_torch_errors(batch, where):
            on_device = with_features(batch.to(state.device), build_frontend(config.dataset_conf))
            with computing.running(), state.replica.micro_batch(is_last=is_last):
                with state.precision.autocast():
                    losses = state.replica(on_device)
                if not losses.total.requires_grad:
                    raise _nothing_to_train_error(where, state.model.loss_weights.ctc)
                state.precision.backward(losses.total / targets_per_rank)
                stacked_losses.append(LossSum.stack(losses))
    return stacked_losses


def _nothing_to_train_error(where: str, weight: float) -> ConfigError:
    """The error of a step in which the loss depends on frozen parameters only.

    `weight`: the CTC weight of the step, which may leave out the parameters that are trained.
    """
    found = (
        f"no parameter that freeze leaves to train has a part in the loss at CTC weight {weight:g}"
    )
    return ConfigError(where, found, "remove a name of freeze, or change model_conf")


def _count_batches(state: TrainState[AsrModel], counts: WindowCounts) -> None:
    """Add the batches and clips of a step, of all ranks, to the progress."""
    progress = state.progress
    progress.batch += int(counts.num_batches)
    progress.clips_drawn += int(counts.num_drawn)
    progress.bad_clips += int(counts.num_bad)
    progress.incomplete_clips += int(counts.num_incomplete)


def _bad_clips_of(window: Window) -> tuple[BadClip, ...]:
    """The clips drawn for a window on this rank that could not be read."""
    clips: list[BadClip] = []
    for batch in window.batches:
        clips += batch.quarantined
    return tuple(clips)


@torch.no_grad()
def validate(
    model: AsrModel, batches: Iterable[Batch], config: ExperimentConfig, device: torch.device
) -> LossSum:
    """The sums of the losses over a data set, and with CTC the errors of greedy search.

    The model is in evaluation mode meanwhile, with the CTC weight of the end of the training. Its
    mode and weights are restored at the end.
    Raises ConfigError if the memory is too small or torch's compiler fails.
    """
    was_training = model.training
    weights_before = model.loss_weights
    precision = Precision(config.dtype, device)
    model.eval()
    model.loss_weights = replace(weights_before, ctc=config.model_conf.last_ctc_weight)
    sums = LossSum()
    for batch in batches:
        with translate_torch_errors(batch, "validation"), precision.autocast():
            losses = model(with_features(batch.to(device), build_frontend(config.dataset_conf)))
        sums += LossSum.of_batch(LossSum.stack(losses).tolist(), losses.num_targets)
        if losses.best_units is not None:
            sums += count_greedy_errors(losses.best_units, batch, model.ctc.blank)
    model.train(was_training)
    model.loss_weights = weights_before
    return sums


def count_greedy_errors(best_units: Tensor, batch: Batch, blank: int) -> LossSum:
    """Errors and labels of greedy CTC search on a batch, as a LossSum with nothing else.

    Errors are insertions, deletions and substitutions of units.

    Args:
        best_units: (B, T) the most probable unit of each frame; -1 in the padding.
        batch: the batch of the frames, with the labels.
        blank: the id of the CTC blank.
    """
    best_BT = best_units.cpu()
    # Greedy search writes the unit of a frame unless it is blank or that of the frame before.
    is_written_BT = begins_unit(best_BT, blank) & (best_BT >= 0)
    num_errors = 0
    for best_T, is_written_T, target, length in zip(
        best_BT, is_written_BT, batch.targets.tolist(), batch.target_lengths.tolist(), strict=True
    ):
        hypothesis = best_T[is_written_T].tolist()
        num_errors += Levenshtein.distance(hypothesis, target[:length])
    return LossSum(num_errors=num_errors, num_labels=int(batch.target_lengths.sum()))


class _Evidence(IntEnum):
    """Why a batch is suspected; the strongest evidence has the highest number."""

    NONE = 0
    LOSS = 1
    """Its loss is not finite."""
    FEATURES = 2
    """Some of its features are not finite."""


def find_suspects(
    window: Sequence[Batch], losses: Sequence[float], world: World
) -> tuple[str, ...]:
    """Keys of the utterances that may have made a step not finite, in the order of the ranks.

    Every rank must call it. A rank suspects its batches whose loss is not finite, or else all; in
    each of them the utterances whose features are not finite, or else all. Only the suspects of the
    ranks with the strongest evidence are returned: batch normalization spreads a value that is not
    finite over all ranks.

    Args:
        window: the batches of the step on this rank.
        losses: the loss of each of them.
    """
    evidence = _Evidence.NONE
    keys: list[str] = []
    suspected_batches = [
        batch for batch, loss in zip(window, losses, strict=True) if not math.isfinite(loss)
    ]
    if suspected_batches:
        evidence = _Evidence.LOSS
    # If every loss is finite, the gradient was not: then each batch may be the cause.
    for batch in suspected_batches or window:
        bad_keys = _keys_with_bad_features(batch)
        if bad_keys:
            evidence = _Evidence.FEATURES
        suspected_keys = bad_keys or list(batch.keys)
        keys += suspected_keys[:MOST_SUSPECTS]
    suspects_of_ranks = world.all_gather((evidence, keys))
    strongest = max(rank_evidence for rank_evidence, _ in suspects_of_ranks)
    suspects: list[str] = []
    for rank_evidence, rank_keys in suspects_of_ranks:
        if rank_evidence == strongest:
            suspects += rank_keys
    return tuple(suspects)


def _keys_with_bad_features(batch: Batch) -> list[str]:
    """The keys of the utterances of a batch with a feature that is not finite."""
    is_finite = torch.isfinite(batch.features).flatten(1).all(dim=1).tolist()
    return [key for key, finite in zip(batch.keys, is_finite, strict=True) if not finite]


@contextmanager
def translate_torch_errors(batch: Batch, where: str) -> Iterator[None]:
    """Turn errors of memory and of torch's compiler in this block into a ConfigError of one line.

    Other errors are raised unchanged. An out-of-memory kill by the operating system ends the
    process and cannot be reported.

    `batch`: what the block computes; the message about memory describes it. `where`: `step 812`.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        module = type(error).__module__  # by name: the import of the class takes seconds
        if module.startswith(("torch._inductor", "torch._dynamo")):
            raise _compiler_error(where, error) from error
        if lacks_memory(error):
            raise _memory_error(where, batch) from error
        raise


def _compiler_error(where: str, error: Exception) -> ConfigError:
    """The error of a failed compilation, with the first line of what torch's compiler says."""
    first_line = next(iter(str(error).splitlines()), "")
    to_do = (
        "install a C++ compiler and Python's headers (GPU: triton); "
        "after a kill remove incomplete kernels "
        "(TORCHINDUCTOR_CACHE_DIR, or torchinductor_* of the temporary folder); "
        "or set compile: false"
    )
    found = f"compile: true: torch's compiler failed ({first_line})"
    return ConfigError(where, found, to_do)


def _memory_error(where: str, batch: Batch) -> ConfigError:
    """The error of a batch for which the memory is too small, with its size."""
    most_frames = int(batch.feature_lengths.max())
    most_units = int(batch.target_lengths.max())
    longest_key = batch.keys[int(batch.feature_lengths.argmax())]
    found = (
        f"out of memory with {len(batch.keys)} utterances "
        f"of up to {most_frames} frames and {most_units} units, the longest {longest_key}"
    )
    to_do = (
        "lower batch_size or max_frames_in_batch of dataset_conf.batch_conf, "
        "filter_conf.max_length, or set encoder_conf.gradient_checkpointing"
    )
    return ConfigError(where, found, to_do)
