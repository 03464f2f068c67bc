# SPDX-License-Identifier: Apache-2.0
"""The training loop.

It yields a SpeechStats per optimizer step; the caller logs, validates and saves.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

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


@dataclass(frozen=True)
class LossSum:
    """Sums of losses over batches, with the number of targets to divide them by."""

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
    """Of greedy CTC search in a validation, against the labels."""
    num_labels: float = 0.0
    """The labels of which `num_errors` counts."""

    @classmethod
    def of(cls, values: Sequence[float], num_targets: int) -> "LossSum":
        """`values`: of the fields before it, as in `values_of`."""
        return cls(*[*values, num_targets])

    @staticmethod
    def values_of(losses: Losses) -> Tensor:
        """The fields up to `num_frames`, (8,) on the device."""
        parts = (
            losses.total,
            losses.attention,
            losses.ctc,
            losses.guide,
            losses.nll,
            losses.num_correct,
        )
        return torch.stack(
            [part.detach().double() for part in (*parts, losses.num_blank, losses.num_frames)]
        )

    def __add__(self, other: "LossSum") -> "LossSum":
        return LossSum(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def over_ranks(self, world: World) -> "LossSum":
        """The sums of all ranks; every rank must call it."""
        return LossSum(*world.sum(astuple(self)))

    def per_target(self) -> dict[str, float]:
        """Mean losses in nats per target, the decoder's accuracy, and its bits per target.

        The decoder's are NaN if it was not computed, accuracy and bits also without the metrics.

        After a validation with CTC also `blank_share`: the share of the frames at which blank is
        its best unit, and `ctc_error_rate`: the errors of greedy search divided by the labels.
        """
        n = max(1.0, self.num_targets)
        of_ctc = {"blank_share": self.num_blank / self.num_frames} if self.num_frames else {}
        of_ctc |= {"ctc_error_rate": self.num_errors / self.num_labels} if self.num_labels else {}
        return of_ctc | {
            "loss": self.total / n,
            "loss_att": self.attention / n if self.attention else math.nan,
            "loss_ctc": self.ctc / n,
            "guide": self.guide / n,
            "accuracy": math.nan if math.isnan(self.nll) else self.num_correct / n,
            "bits_per_unit": self.nll / math.log(2) / n,
        }


class WindowCounts(NamedTuple):
    """Sums over the batches of a window (`accum_grad` batches); for the kinds of clips see
    `Progress`.
    """

    num_batches: float
    num_targets: float
    num_drawn: float
    num_bad: float
    num_incomplete: float
    num_frames: float
    num_padded_frames: float
    audio_seconds: float

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> "WindowCounts":
        rows = [
            (
                *(
                    1,
                    batch.num_targets,
                    batch.num_drawn,
                    len(batch.quarantined),
                    batch.num_incomplete,
                ),
                *(
                    batch.num_frames,
                    len(batch.keys) * int(batch.feature_lengths.max()),
                    batch.audio_seconds,
                ),
            )
            for batch in batches
        ]
        return cls._make(
            [sum(column) for column in zip(*rows, strict=True)] or [0] * len(cls._fields)
        )


class Window(NamedTuple):
    """The batches of an optimizer step on this rank."""

    batches: list[Batch]
    counts: WindowCounts
    """Of this rank, or of all ranks together."""
    wait_seconds: float
    error: Exception | None = None
    """That ended the loading.

    It is raised at this step, not in the one before, which loads the window.
    """


def run_epoch(
    state: TrainState[AsrModel], batches: Iterable[Batch], config: ExperimentConfig
) -> Iterator[SpeechStats]:
    """One optimizer step per accumulation window; the summed loss is divided once, by the targets
    of the window.

    `batches` are those of this rank. The values of a step are those of all ranks, except its times
    and `quarantined`.

    Raises DataError as `refuse_many_skips`, and ConfigError naming the batch for which the memory
        is too small.
    """
    state.model.train()
    iterator = iter(batches)

    def load() -> Window:
        started, window, failure = time.perf_counter(), list[Batch](), None
        try:
            if state.progress.step != config.scheduler_conf.total_steps:  # then this is the end
                window = [
                    batch for _, batch in zip(range(config.accum_grad), iterator, strict=False)
                ]
        except Exception as error:
            failure = error
        return Window(window, WindowCounts.of(window), time.perf_counter() - started, failure)

    window = load()
    window = window._replace(counts=WindowCounts(*state.world.sum(window.counts)))
    while window.batches or window.error:
        if window.error:
            raise window.error
        stats, window = _step(state, window, load, config)
        what_to_do = (
            "look at these utterances, or train with a lower optim_conf.lr in another --model_dir"
        )
        refuse_many_skips(state.progress, stats.suspects, what_to_do)
        yield stats


def _step(
    state: TrainState[AsrModel],
    window: Window,
    load: Callable[[], Window],
    config: ExperimentConfig,
) -> tuple[SpeechStats, Window]:
    """Forward, backward and the optimizer's step; the step is skipped if loss or gradient are not
    finite.

    A skipped step restores the running statistics of batch normalization: one value that is not
    finite would stay in them.

    Args:
        window: with the counts of all ranks.
        load: the next window, which is loaded in this step, so that the ranks sum its counts
            together with the losses: they wait for each other once per step.

    Returns: the facts of the step, and the next window.
    """
    progress, counts, loss_scale = state.progress, window.counts, state.precision.loss_scale
    started = time.perf_counter()
    begin_step(state, config)
    ctc, guide = ctc_weight(progress.step, config), attention_guide(progress.step, config)
    is_logged = progress.step % config.log_interval == 0
    state.model.loss_weights = replace(
        state.model.loss_weights, ctc=ctc, guide=guide, with_metrics=is_logged
    )
    encoder = state.model.encoder
    if isinstance(encoder, PretrainedEncoder) and encoder.conf.freeze_steps:
        is_held = progress.step <= encoder.conf.freeze_steps
        if encoder.is_held != is_held:
            encoder.is_held = is_held
            state.model.train()
    norms = [module for module in state.model.modules() if isinstance(module, MaskedBatchNorm)]
    statistics = [(value, value.clone()) for norm in norms for value in norm.buffers()]
    values, compute_seconds = _add_gradients(state, window.batches, int(counts.num_targets), config)
    following = load()  # while a GPU computes
    update_started = time.perf_counter()
    grad_norm, read = clip_and_read(state, config, torch.cat(values))
    compute_seconds += time.perf_counter() - update_started
    size = len(read) // len(window.batches)
    losses = [
        LossSum.of(read[size * i : size * (i + 1)], batch.num_targets)
        for i, batch in enumerate(window.batches)
    ]
    own = astuple(sum(losses, LossSum()))
    reduced = sum_over_ranks(state, [*own, *following.counts])
    sums, following = (
        LossSum(*reduced[: len(own)]),
        following._replace(counts=WindowCounts(*reduced[len(own) :])),
    )
    update_started = time.perf_counter()
    is_applied = apply_gradients(state, grad_norm, sums.total)
    compute_seconds += time.perf_counter() - update_started
    suspects: tuple[str, ...] = ()
    if not is_applied:
        for value, before in statistics:
            value.copy_(before)
        suspects = find_suspects(window.batches, [one.total for one in losses], state.world)
    progress.batch += int(counts.num_batches)
    progress.clips_drawn += int(counts.num_drawn)
    progress.bad_clips += int(counts.num_bad)
    progress.incomplete_clips += int(counts.num_incomplete)
    seconds = time.perf_counter() - started - following.wait_seconds + window.wait_seconds
    count_seconds(state, seconds)
    stats = SpeechStats(
        **(sums.per_target() | current_rates(state.optimizer)),
        grad_norm=grad_norm,
        num_targets=int(counts.num_targets),
        audio_seconds=counts.audio_seconds,
        seconds=seconds,
        wait_seconds=window.wait_seconds,
        compute_seconds=compute_seconds,
        padding_share=1 - counts.num_frames / counts.num_padded_frames,
        loss_scale=loss_scale,
        quarantined=tuple(clip for batch in window.batches for clip in batch.quarantined),
        suspects=suspects,
    )
    return stats, following


def _add_gradients(
    state: TrainState[AsrModel], window: list[Batch], num_targets: int, config: ExperimentConfig
) -> tuple[list[Tensor], float]:
    """Forward and backward pass of each batch.

    Returns its `LossSum.values_of`, and the computing time in seconds.
    """
    values, compute_seconds, where = [], 0.0, f"step {state.progress.step}"
    for number, batch in enumerate(window, 1):
        with translate_torch_errors(batch, where):
            on_device = with_features(batch.to(state.device), build_frontend(config.dataset_conf))
            started = time.perf_counter()
            with state.replica.micro_batch(is_last=number == len(window)):
                with state.precision.autocast():
                    losses = state.replica(on_device)
                if not losses.total.requires_grad:
                    weight = f"CTC weight {state.model.loss_weights.ctc:g}"
                    found = f"no parameter that freeze leaves to train has a part in the loss at {weight}"
                    raise ConfigError(where, found, "remove a name of freeze, or change model_conf")
                # num_targets is of all ranks, whose gradients are averaged
                state.precision.backward(losses.total / (num_targets / state.world.size))
                values.append(LossSum.values_of(losses))
        compute_seconds += time.perf_counter() - started
    return values, compute_seconds


@torch.no_grad()
def validate(
    model: AsrModel, batches: Iterable[Batch], config: ExperimentConfig, device: torch.device
) -> LossSum:
    """Losses over a data set in evaluation mode, with the final CTC weight of the config."""
    was_training, weights, precision = (
        model.training,
        model.loss_weights,
        Precision(config.dtype, device),
    )
    model.eval()
    model.loss_weights = replace(weights, ctc=config.model_conf.last_ctc_weight)
    sums = LossSum()
    for batch in batches:
        with translate_torch_errors(batch, "validation"), precision.autocast():
            losses = model(with_features(batch.to(device), build_frontend(config.dataset_conf)))
        sums += LossSum.of(LossSum.values_of(losses).tolist(), losses.num_targets)
        if losses.best_units is not None:
            sums += count_greedy_errors(losses.best_units, batch, model.ctc.blank)
    model.train(was_training)
    model.loss_weights = weights
    return sums


def count_greedy_errors(best_units: Tensor, batch: Batch, blank: int) -> LossSum:
    """Errors and labels of greedy CTC search on a batch; `best_units`: (B, T), as in `Losses`."""
    best_BT, num_errors = best_units.cpu(), 0
    is_written_BT = begins_unit(best_BT, blank) & (best_BT >= 0)
    for best_T, is_written_T, target, length in zip(
        best_BT, is_written_BT, batch.targets.tolist(), batch.target_lengths.tolist(), strict=True
    ):
        num_errors += Levenshtein.distance(best_T[is_written_T].tolist(), target[:length])
    return LossSum(num_errors=num_errors, num_labels=int(batch.target_lengths.sum()))


def find_suspects(
    window: Sequence[Batch], losses: Sequence[float], world: World
) -> tuple[str, ...]:
    """Keys of the utterances that may have made a step not finite, at most five per batch.

    Every rank must call it.

    A rank names the batches whose loss is not finite, or all its batches; in each the utterances
    whose features are not finite, or all. Only ranks with the strongest evidence count: features,
    then losses. Batch normalization spreads a value that is not finite over all ranks.
    """
    blamed = [batch for batch, loss in zip(window, losses, strict=True) if not math.isfinite(loss)]
    evidence, keys = int(bool(blamed)), []
    for batch in blamed or window:
        is_finite = torch.isfinite(batch.features).flatten(1).all(dim=1).tolist()
        bad = [key for key, finite in zip(batch.keys, is_finite, strict=True) if not finite]
        evidence = 2 if bad else evidence
        keys += (bad or batch.keys)[:5]
    of_ranks = world.all_gather((evidence, keys))
    strongest = max(evidence for evidence, _ in of_ranks)
    return tuple(key for evidence, keys in of_ranks if evidence == strongest for key in keys)


@contextmanager
def translate_torch_errors(batch: Batch, where: str) -> Iterator[None]:
    """Turn out-of-memory and compiler errors into a ConfigError of one line; that of memory names
    the batch.

    `where`: "step 812". An out-of-memory kill by the operating system cannot be reported.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        module = type(error).__module__  # by name: the import of the class takes seconds
        if module.startswith(("torch._inductor", "torch._dynamo")):
            detail = next(iter(str(error).splitlines()), "")
            to_do = (
                "install a C++ compiler and Python's headers (GPU: triton); after a kill remove incomplete kernels "
                "(TORCHINDUCTOR_CACHE_DIR, or torchinductor_* of the temporary folder); or set compile: false"
            )
            raise ConfigError(
                where, f"compile: true: torch's compiler failed ({detail})", to_do
            ) from error
        if not lacks_memory(error):
            raise
        longest = int(batch.feature_lengths.argmax())
        sizes = (
            f"{int(batch.feature_lengths.max())} frames and {int(batch.target_lengths.max())} units"
        )
        found = f"out of memory with {len(batch.keys)} utterances of up to {sizes}, the longest {batch.keys[longest]}"
        to_do = "lower batch_size or max_frames_in_batch of dataset_conf.batch_conf, filter_conf.max_length, or set "
        raise ConfigError(where, found, f"{to_do}encoder_conf.gradient_checkpointing") from error
