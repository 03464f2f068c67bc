# SPDX-License-Identifier: Apache-2.0
"""Training of language models by truncated back-propagation.

The state is carried from batch to batch.

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
from wenet_hs.config.lm import LmConfig
from wenet_hs.heads.softmax import SoftmaxHead
from wenet_hs.lm.loader import build_lm
from wenet_hs.lm.recurrent import RnnLm
from wenet_hs.lm.sampled import SampledLoss
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
"""Parts of the validation text that are read side by side, at most."""


def train_lm(options: TrainOptions) -> Path:
    """Train a language model to the end of its config.

    `train_data` and `cv_data` of the options are text files.

    Returns the path of `final.pt`.
    """
    if int_from_environment("WORLD_SIZE", 1) > 1:
        raise ConfigError("lm train", "uses one process", "start it without torchrun")
    world = World(device=find_device(options.device))
    run_training(read_request(options, None, world.size, LmConfig), world, load_task)
    return options.model_dir / "final.pt"


def load_task(folder: PreparedFolder[LmConfig], lists: ListPaths, world: World) -> "LmTask":
    """The texts, and a model with new weights and its optimizer."""
    config = folder.config
    where = str(folder.config_file)
    table, tokenizer = read_units(config, folder.path / "units.txt", where=where)
    check_units(config.tokenizer, table, config.tokenizer_conf.symbol_table_path or "units.txt")
    keep = config.text_conf.keep_empty_lines
    train_text = read_running_text(lists.train, tokenizer, keep_empty_lines=keep)
    valid_text = read_running_text([lists.valid], tokenizer, keep_empty_lines=keep)
    if len(train_text) < config.text_conf.batch_size:
        found = (
            f"{len(train_text)} units, but text_conf.batch_size is {config.text_conf.batch_size}"
        )
        raise DataError(", ".join(map(str, lists.train)), found, "give more text, or lower it")
    config = _add_end(config, train_text)
    torch.manual_seed(config.seed)
    model = build_lm(config, table, folder.path).to(world.device)
    sampled = None
    if config.loss != "exact":
        counts = torch.from_numpy(train_text.count_units(len(table)))
        num_samples = config.sampling_conf.num_samples or max(1, len(table) // 20)
        sampled = SampledLoss(config.loss, counts, num_samples, config.sampling_conf.power).to(
            world.device
        )
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
    return LmTask(config, state, train_text, valid_text, sampled)


def _add_end(config: LmConfig, text: RunningText) -> LmConfig:
    """The config with `total_steps` for a schedule whose end is not given: after `max_epoch`."""
    schedule, conf = config.scheduler_conf, config.text_conf
    if (
        config.scheduler != "warmup_cosine"
        or schedule.total_steps is not None
        or config.max_minutes is not None
    ):
        return config
    total_steps = config.max_epoch * text.num_batches(conf.batch_size, conf.num_steps)
    if total_steps <= schedule.warmup_steps:
        found = f"{schedule.warmup_steps}, but {config.max_epoch} epochs have {total_steps} steps"
        raise ConfigError("scheduler_conf.warmup_steps", found, "lower it, or give more text")
    return config.model_copy(
        update={"scheduler_conf": schedule.model_copy(update={"total_steps": total_steps})}
    )


def _set_bias(model: RnnLm, counts: Tensor) -> None:
    """Start a sampled loss from the frequencies of the units: NCE learns scores whose sum over all
    units is 1.
    """
    assert isinstance(model.head, SoftmaxHead)  # the config refuses others
    with torch.no_grad():
        model.head.output.bias.copy_(((counts + 1) / (counts + 1).sum()).log())


class LmTask(Task):
    """The training of a language model."""

    config: LmConfig
    state: TrainState[RnnLm]

    def __init__(
        self,
        config: LmConfig,
        state: TrainState[RnnLm],
        train_text: RunningText,
        valid_text: RunningText,
        sampled: SampledLoss | None = None,
    ) -> None:
        """`sampled`: the loss in training instead of that of the head."""
        self.config, self.state = config, state
        self._train_text, self._valid_text, self._sampled = train_text, valid_text, sampled

    def num_batches(self) -> int:
        conf = self.config.text_conf
        return self._train_text.num_batches(conf.batch_size, conf.num_steps)

    def run_epoch(self) -> Iterator[StepStats]:
        """Raises DataError as `refuse_many_skips`."""
        conf, progress, carried = self.config.text_conf, self.state.progress, self.state.carried
        if progress.batch == 0 or "state" not in carried:
            carried["state"] = self.state.model.start(conf.batch_size)
        self.state.model.train()
        started = time.perf_counter()
        for batch in self._train_text.batches(
            conf.batch_size, conf.num_steps, start=progress.batch
        ):
            stats = self._step(batch, started)
            what_to_do = "train with a lower optim_conf.lr or grad_clip in another --model_dir"
            refuse_many_skips(progress, stats.suspects, what_to_do)
            yield stats
            started = time.perf_counter()

    def _step(self, batch: TextBatch, started: float) -> StepStats:
        """Forward, backward and the optimizer's step, which is skipped if loss or gradient are not
        finite.
        """
        state, progress, computing = self.state, self.state.progress, time.perf_counter()
        begin_step(state, self.config)
        state_BS = state.carried["state"]
        if self.config.text_conf.reset_at_sentences:
            begins_B1 = (batch.inputs[:, :1] == self._train_text.eos).to(state_BS.device)
            state_BS = state_BS.masked_fill(begins_B1, 0.0)
        hidden_ND, targets_N, after_BS = head_inputs(state.model, batch, state_BS)
        if self._sampled is None:
            loss_N = state.model.head.nll(hidden_ND, targets_N)
        else:
            assert isinstance(state.model.head, SoftmaxHead)
            loss_N = self._sampled(state.model.head, hidden_ND, targets_N)
        loss_N.mean().backward()  # type: ignore[no-untyped-call]
        grad_norm, (loss,) = clip_and_read(state, self.config, loss_N.detach().mean()[None])
        is_applied = apply_gradients(state, grad_norm, loss)
        state.carried["state"] = (
            after_BS.detach() if is_applied else state.model.start(len(after_BS))
        )
        progress.batch += 1
        now = time.perf_counter()
        progress.seconds += now - started
        return StepStats(
            loss=loss,
            bits_per_unit=math.nan if self._sampled is not None else loss / math.log(2),
            grad_norm=grad_norm,
            **current_rates(state.optimizer),
            num_targets=len(targets_N),
            seconds=now - started,
            wait_seconds=computing - started,
            compute_seconds=now - computing,
            suspects=() if is_applied else (f"batch {progress.batch} of epoch {progress.epoch}",),
        )

    def validate(self, is_stopped: Callable[[], bool]) -> dict[str, float] | None:
        """The exact loss, with the state carried over the whole text."""
        total = text_nll(
            self.state.model, self._valid_text, parts=VALIDATION_PARTS, is_stopped=is_stopped
        )
        if total is None:
            return None
        loss = total / len(self._valid_text)
        return {"loss": loss, "bits_per_unit": loss / math.log(2), "perplexity": perplexity(loss)}
