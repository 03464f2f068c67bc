# SPDX-License-Identifier: Apache-2.0
"""Training of recurrent language models by truncated back-propagation.

`load_task` reads the texts and builds the model; `LmTask` does the steps and the validation. The
text is read in B parts side by side, and the state of the network is carried from batch to batch.

Dimension key: B parts of the text, T steps, D width, S values of a state, N targets.
"""

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from wenet_hs.compute.devices import find_device
from wenet_hs.compute.distributed import World, int_from_environment
from wenet_hs.config.lm import LmConfig, NoiseUnitsConf
from wenet_hs.heads.softmax import SoftmaxHead
from wenet_hs.lm.loader import build_lm
from wenet_hs.lm.recurrent import RnnLm
from wenet_hs.lm.sampled import SampledLoss, SampledLossKind
from wenet_hs.lm.score import head_inputs, perplexity, text_nll
from wenet_hs.lm.text import RunningText, TextBatch, read_running_text
from wenet_hs.model.experiment import read_units
from wenet_hs.text.tokenizer import check_units
from wenet_hs.train.model_folder import PreparedFolder
from wenet_hs.train.monitor import StepStats
from wenet_hs.train.optim import build_optimizer, current_rates
from wenet_hs.train.start import ListPaths, TrainOptions, read_request
from wenet_hs.train.state import TrainState
from wenet_hs.train.step import apply_gradients, begin_step, clip_and_read, refuse_many_skips
from wenet_hs.train.training import Task, run_training
from wenet_hs.tree.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

VALIDATION_PARTS = 10
"""At most so many parts of the validation text are read side by side."""


def train_lm(options: TrainOptions) -> Path:
    """Train a language model to the end of its config.

    `train_data` and `cv_data` of the options are text files.

    Returns the path of `final.pt`. Raises ConfigError under a launcher of several processes, and
    what `run_training` raises.
    """
    if int_from_environment("WORLD_SIZE", 1) > 1:
        raise ConfigError("lm train", "uses one process", "start it without torchrun")
    world = World(device=find_device(options.device))
    request = read_request(options, base=None, num_ranks=world.size, kind=LmConfig)
    run_training(request, world, load_task)
    return options.model_dir / "final.pt"


def load_task(folder: PreparedFolder[LmConfig], lists: ListPaths, world: World) -> "LmTask":
    """Read the texts, and build a model with new weights and its optimizer, as the config says.

    Raises ConfigError or DataError for a fault in the config, the unit table or a text.
    """
    config = folder.config
    where = str(folder.config_file)
    table, tokenizer = read_units(config, folder.path / "units.txt", where=where)
    check_units(config.tokenizer, table, config.tokenizer_conf.symbol_table_path or "units.txt")
    keep = config.text_conf.keep_empty_lines
    train_text = read_running_text(lists.train, tokenizer, keep_empty_lines=keep)
    valid_text = read_running_text([lists.valid], tokenizer, keep_empty_lines=keep)
    batch_size = config.text_conf.batch_size
    if len(train_text) < batch_size:
        found = f"{len(train_text)} units, but text_conf.batch_size is {batch_size}"
        raise DataError(", ".join(map(str, lists.train)), found, "give more text, or lower it")
    config = _with_end_of_schedule(config, train_text)
    torch.manual_seed(config.seed)
    model = build_lm(config, table, folder.path).to(world.device)
    sampled_loss = None
    if config.loss != "exact":
        counts = torch.from_numpy(train_text.count_units(len(table)))
        sampled_loss = _make_sampled_loss(config.loss, config.sampling_conf, counts)
        sampled_loss = sampled_loss.to(world.device)
        _set_bias(model, counts)
    fingerprint = {
        **folder.hashes,
        "training text": hashlib.sha256(train_text.ids.data).hexdigest(),
        "validation text": hashlib.sha256(valid_text.ids.data).hexdigest(),
    }
    state = TrainState(
        model,
        build_optimizer(model, config, where=where),
        world.device,
        fingerprint=fingerprint,
        world=world,
        seed=config.seed,
    )
    return LmTask(config, state, train_text, valid_text, sampled_loss)


def _with_end_of_schedule(config: LmConfig, text: RunningText) -> LmConfig:
    """The config with `total_steps`, if `warmup_cosine` has no other end: the steps of `max_epoch`.

    `text`: the training text, on which the number of steps depends.
    Raises ConfigError if all these steps are in the warm-up.
    """
    schedule = config.scheduler_conf
    has_end = schedule.total_steps is not None or config.max_minutes is not None
    if config.scheduler != "warmup_cosine" or has_end:
        return config
    conf = config.text_conf
    total_steps = config.max_epoch * text.num_batches(conf.batch_size, conf.num_steps)
    if total_steps <= schedule.warmup_steps:
        found = f"{schedule.warmup_steps}, but {config.max_epoch} epochs have {total_steps} steps"
        raise ConfigError("scheduler_conf.warmup_steps", found, "lower it, or give more text")
    schedule_with_end = schedule.model_copy(update={"total_steps": total_steps})
    return config.model_copy(update={"scheduler_conf": schedule_with_end})


def _make_sampled_loss(kind: SampledLossKind, conf: NoiseUnitsConf, counts: Tensor) -> SampledLoss:
    """The loss of training over a sample of the units.

    Without `num_samples` in the config, a sample has a 20th of the units, and at least one.

    `counts`: how often each unit is in the training text.
    """
    num_samples = conf.num_samples or max(1, len(counts) // 20)
    return SampledLoss(kind, counts, num_samples, conf.power)


def _set_bias(model: RnnLm, counts: Tensor) -> None:
    """Set the bias of the output layer to the log frequencies of the units, for a sampled loss.

    NCE learns scores that are probabilities without normalization: their sum over all units is 1.
    So training begins with such scores. Each unit is counted once more than it occurs, so that none
    has the frequency 0.

    `counts`: how often each unit is in the training text.
    """
    assert isinstance(model.head, SoftmaxHead)  # the config refuses others
    smoothed_counts = counts + 1
    frequencies = smoothed_counts / smoothed_counts.sum()
    with torch.no_grad():
        model.head.output.bias.copy_(frequencies.log())


class LmTask(Task):
    """The training of a recurrent language model, in one process."""

    config: LmConfig
    state: TrainState[RnnLm]

    def __init__(
        self,
        config: LmConfig,
        state: TrainState[RnnLm],
        train_text: RunningText,
        valid_text: RunningText,
        sampled_loss: SampledLoss | None = None,
    ) -> None:
        """`sampled_loss`: the loss of training; None: the exact loss of the head."""
        self.config = config
        self.state = state
        self._train_text = train_text
        self._valid_text = valid_text
        self._sampled_loss = sampled_loss

    def num_batches(self) -> int:
        """The number of batches in an epoch, which is one optimizer step each."""
        conf = self.config.text_conf
        return self._train_text.num_batches(conf.batch_size, conf.num_steps)

    def run_epoch(self) -> Iterator[StepStats]:
        """Do the optimizer steps of the current epoch, one per batch; yield the facts of each.

        They begin at batch `progress.batch`. An epoch begins with an empty state of the network.
        Raises DataError after too many skipped steps in a row.
        """
        conf = self.config.text_conf
        progress = self.state.progress
        carried = self.state.carried
        if progress.batch == 0 or "state" not in carried:
            carried["state"] = self.state.model.start(conf.batch_size)
        self.state.model.train()
        started = time.perf_counter()
        for batch in self._train_text.batches(
            conf.batch_size, conf.num_steps, start=progress.batch
        ):
            stats = self._run_step(batch, started)
            what_to_do = "train with a lower optim_conf.lr or grad_clip in another --model_dir"
            refuse_many_skips(progress, stats.suspects, what_to_do)
            yield stats
            started = time.perf_counter()

    def _run_step(self, batch: TextBatch, started: float) -> StepStats:
        """One optimizer step on a batch; returns its facts.

        The state of the network at the end is carried to the next step. If loss or gradient are not
        finite, the step is skipped, and the next one begins with an empty state.

        `started`: when the wait for the batch began, by `time.perf_counter`.
        """
        state = self.state
        progress = state.progress
        compute_started = time.perf_counter()
        begin_step(state, self.config)
        loss_N, next_state_BS = self._compute_losses(batch)
        loss_N.mean().backward()  # type: ignore[no-untyped-call]
        mean_loss = loss_N.detach().mean()
        # One batch with one loss.
        grad_norm, [[loss]] = clip_and_read(state, self.config, [mean_loss[None]])
        is_applied = apply_gradients(state, grad_norm, loss)
        if is_applied:
            state.carried["state"] = next_state_BS.detach()
        else:
            state.carried["state"] = state.model.start(len(next_state_BS))
        progress.batch += 1
        ended = time.perf_counter()
        progress.seconds += ended - started
        is_exact = self._sampled_loss is None
        suspects = () if is_applied else (f"batch {progress.batch} of epoch {progress.epoch}",)
        return StepStats(
            loss=loss,
            # A sampled loss is no cross-entropy of the text.
            bits_per_unit=loss / math.log(2) if is_exact else math.nan,
            grad_norm=grad_norm,
            **current_rates(state.optimizer),
            num_targets=len(loss_N),
            seconds=ended - started,
            wait_seconds=compute_started - started,
            compute_seconds=ended - compute_started,
            suspects=suspects,
        )

    def _compute_losses(self, batch: TextBatch) -> tuple[Tensor, Tensor]:
        """The loss of each target, (N,), and the state of the network after the batch, (B, S).

        The network begins with the carried state, or with an empty one in the parts of the text
        where the batch begins with a sentence, if `reset_at_sentences` is set.
        """
        model = self.state.model
        state_BS = self.state.carried["state"]
        if self.config.text_conf.reset_at_sentences:
            # The input before the first unit of a sentence is <eos>.
            begins_sentence_B1 = (batch.inputs[:, :1] == self._train_text.eos).to(state_BS.device)
            state_BS = state_BS.masked_fill(begins_sentence_B1, 0.0)
        hidden_ND, targets_N, next_state_BS = head_inputs(model, batch, state_BS)
        if self._sampled_loss is None:
            return model.head.nll(hidden_ND, targets_N), next_state_BS
        assert isinstance(model.head, SoftmaxHead)  # the config refuses others
        return self._sampled_loss(model.head, hidden_ND, targets_N), next_state_BS

    def validate(self, is_stopped: Callable[[], bool]) -> dict[str, float] | None:
        """The exact loss of the validation text, its bits per unit, and its perplexity, by name.

        The state of the network is carried over the whole text.
        `is_stopped`: whether a signal arrived. It is called during the validation, which then ends
        and returns None.
        """
        total_nats = text_nll(
            self.state.model, self._valid_text, parts=VALIDATION_PARTS, is_stopped=is_stopped
        )
        if total_nats is None:  # it was stopped
            return None
        loss = total_nats / len(self._valid_text)
        return {"loss": loss, "bits_per_unit": loss / math.log(2), "perplexity": perplexity(loss)}
