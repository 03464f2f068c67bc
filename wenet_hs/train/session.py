# SPDX-License-Identifier: Apache-2.0
"""A training from its flags to `final.pt`: the folder, the resume, then steps, validations and checkpoints."""

import json
import logging
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wenet_hs.config.load import load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.batching import BatchPlan, plan_epoch
from wenet_hs.data.dataset import Batch, SpeechDataset, batches
from wenet_hs.devices import find_device, has_native_bf16
from wenet_hs.errors import CheckpointError, ConfigError
from wenet_hs.files import write_atomic
from wenet_hs.train.average import write_model
from wenet_hs.train.checkpoint import list_checkpoints, naming_full_disk, remove_litter, rotate, save_checkpoint
from wenet_hs.train.distributed import World, this_world
from wenet_hs.train.fine_tune import take_weights
from wenet_hs.train.folder import locked, prepare_folder
from wenet_hs.train.loop import run_epoch, validate
from wenet_hs.train.monitor import Monitor
from wenet_hs.train.start import TrainOptions, find_resume, load_parts
from wenet_hs.train.state import TrainState, progress_of

__all__ = ["Session", "TrainOptions", "train"]

logger = logging.getLogger(__name__)


def train(options: TrainOptions) -> Path:
    """Train to the end of the config. Returns the path of `final.pt`."""
    world = this_world()
    config = load_config(options.config, options.overrides)
    if config.dtype == "fp16":
        raise ConfigError(f"{options.config}: dtype: fp16 needs loss scaling, which is not there yet; use bf16 or fp32")
    device = find_device(options.device)
    if config.dtype == "auto":  # resolved before it is written down: a resumed run computes as the run did
        config = config.model_copy(update={"dtype": "bf16" if has_native_bf16(device) else "fp32"})
    checkpoints = options.model_dir / "checkpoints"
    with naming_full_disk(options.model_dir, checkpoints), locked(options.model_dir):
        remove_litter(checkpoints)
        resume_from = find_resume(options)
        config, files = prepare_folder(
            options.model_dir, config, config_dir=options.config.parent, resuming=resume_from is not None
        )
        parts = load_parts(config, options, files, device)
        if resume_from is not None:
            parts.state.restore(resume_from)
            progress = parts.state.progress
            logger.info("resuming from %s (epoch %d, step %d)", resume_from, progress.epoch, progress.step)
        elif options.checkpoint is not None:
            report = take_weights(parts.state.model, options.checkpoint, parts.units)
            report.log()
            if world.is_first:
                report.write(options.model_dir / "fine_tune.json")
        elif config.freeze:
            logger.warning("freeze without --checkpoint: what is frozen stays as it was drawn at random")
        Session(config, options.model_dir, parts.state, parts.train_set, parts.valid_set, world).run()
    return options.model_dir / "final.pt"


@dataclass(frozen=True)
class Session:
    """A training in progress."""

    config: ExperimentConfig
    model_dir: Path
    state: TrainState
    train_set: SpeechDataset
    valid_set: SpeechDataset
    world: World

    def run(self) -> None:
        """Train until the config says stop, then write `final.pt`; once it is there, it stays as it is.

        It may have been averaged since. `finished.json` says which end it belongs to, and is written after it.
        """
        progress, final = self.state.progress, self.model_dir / "final.pt"
        ending = json.dumps({"step": progress.step})
        if self._is_over() and final.exists() and self._ending.exists() and self._ending.read_text("utf-8") == ending:
            logger.info("%s: trained already (%d steps)", final, progress.step)
            return
        config = self.config
        steps_per_epoch = -(-len(self._plan(progress.epoch)) // config.accum_grad)
        with Monitor(
            self.model_dir,
            step=progress.step,
            metrics_bytes=progress.metrics_bytes,
            log_interval=config.log_interval,
            total_steps=min(steps_per_epoch * config.max_epoch, config.scheduler_conf.total_steps or sys.maxsize),
        ) as monitor:
            while not self._is_over():
                self._epoch(monitor)
        write_model(final, self.state.model.state_dict())
        write_atomic(self._ending, json.dumps({"step": progress.step}))

    @property
    def _ending(self) -> Path:
        return self.model_dir / "checkpoints" / "finished.json"

    def _epoch(self, monitor: Monitor) -> None:
        """The rest of one epoch; saves at each `save_interval` steps, or at its end, and at the end of all."""
        progress, interval = self.state.progress, self.config.save_interval
        plan = self._plan(progress.epoch)
        steps = run_epoch(self.state, self._batches(plan, progress.epoch, progress.batch), self.config)
        for stats in steps:
            monitor.step(stats)
            ended = progress.batch >= len(plan)
            if ended:
                progress.epoch, progress.batch = progress.epoch + 1, 0
            due = ended if interval is None else progress.step % interval == 0
            last = self._is_over()
            if due or last:
                self._save(monitor)
            if last:
                return

    def _save(self, monitor: Monitor) -> None:
        """Validate and commit a checkpoint; then let go of those that are no longer needed."""
        progress = self.state.progress
        plan = plan_epoch(
            self.valid_set.num_frames, self.config.dataset_conf.batch_conf, seed=0, epoch=0, shuffle=False
        )
        facts = validate(
            self.state.model, batches(self.valid_set, plan, 0), self.config, self.state.device
        ).per_target()
        monitor.valid(progress.step, progress.epoch, progress.seconds, facts)
        progress.cv_loss = facts["loss"] if math.isfinite(facts["loss"]) else None
        progress.metrics_bytes = monitor.sync()
        folder = self.model_dir / "checkpoints"
        newest = save_checkpoint(folder, progress.step, self.state.to_files())
        rotate(folder, {newest, *self._worth_keeping(folder)})

    def _worth_keeping(self, folder: Path) -> set[Path]:
        """The newest checkpoints and those of lowest validation loss, `keep_checkpoints` of each."""
        paths, num = list_checkpoints(folder), self.config.keep_checkpoints
        measured = {path: loss for path in paths if (loss := _cv_loss(path)) is not None}
        return {*paths[-num:], *sorted(measured, key=lambda path: measured[path])[:num]}

    def _plan(self, epoch: int) -> BatchPlan:
        return self.train_set.plan(epoch, rank=self.world.rank, world_size=self.world.size)

    def _batches(self, plan: BatchPlan, epoch: int, start: int) -> Iterator[Batch]:
        return batches(self.train_set, plan, epoch, num_workers=self.config.num_workers, start=start)

    def _is_over(self) -> bool:
        """After `max_epoch`, `max_minutes`, or where `warmup_cosine` has brought the learning rate to 0."""
        progress, config = self.state.progress, self.config
        out_of_time = config.max_minutes is not None and progress.seconds >= 60 * config.max_minutes
        total_steps = config.scheduler_conf.total_steps
        out_of_steps = total_steps is not None and progress.step >= total_steps
        return progress.epoch >= config.max_epoch or out_of_time or out_of_steps


def _cv_loss(path: Path) -> float | None:
    """The validation loss of a checkpoint; an old one that has been damaged since is no reason to stop training."""
    try:
        return progress_of(path).cv_loss
    except CheckpointError:
        return None
