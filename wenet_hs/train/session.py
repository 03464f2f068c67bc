# SPDX-License-Identifier: Apache-2.0
"""A training from its flags to `final.pt`: the folder, the resume, then steps, validations and checkpoints."""

import hashlib
import json
import logging
import math
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path

from wenet_hs.checkpoint import (
    checkpoint_path,
    list_checkpoints,
    naming_full_disk,
    remove_litter,
    rotate,
    save_checkpoint,
)
from wenet_hs.config.load import load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.batching import Batch, BatchPlan, plan_epoch
from wenet_hs.data.dataset import SpeechDataset, batches, with_features
from wenet_hs.data.quarantine import Quarantine, RecordedBatches, quarantine_path
from wenet_hs.devices import find_device
from wenet_hs.distributed import World, join_process_group
from wenet_hs.errors import CheckpointError
from wenet_hs.files import locked, write_atomic
from wenet_hs.train.average import average, choose, write_final
from wenet_hs.train.fine_tune import take_weights
from wenet_hs.train.folder import prepare_folder
from wenet_hs.train.guard import naming_batch
from wenet_hs.train.keep import worth_keeping
from wenet_hs.train.loop import run_epoch, validate
from wenet_hs.train.monitor import Monitor
from wenet_hs.train.precision import resolve_dtype
from wenet_hs.train.prefetch import on_device
from wenet_hs.train.signals import listening, stop_requested, stopped_after
from wenet_hs.train.start import Parts, TrainOptions, find_resume, load_parts
from wenet_hs.train.state import TrainState
from wenet_hs.train.stopping import out_of_patience

__all__ = ["Session", "TrainOptions", "train"]

logger = logging.getLogger(__name__)


def train(options: TrainOptions) -> Path:
    """Train to the end of the config, with the other ranks of the launcher. Returns the path of `final.pt`."""
    checkpoints = options.model_dir / "checkpoints"
    with (
        join_process_group(find_device(options.device)) as world,
        naming_full_disk(options.model_dir, checkpoints),
        locked(options.model_dir, flag="--model_dir", work="training", fault=CheckpointError)
        if world.is_first
        else nullcontext(),
    ):
        config = resolve_dtype(load_config(options.config, options.overrides), world.device, where=options.config)
        if world.is_first:
            remove_litter(checkpoints)
        resume_from = _find_resume(options, world)
        with world.first_before_others():
            config, files = prepare_folder(
                options.model_dir,
                config,
                config_dir=options.config.parent,
                resuming=resume_from is not None,
                writes=world.is_first,
            )
        world.check_equal_across_ranks(
            {**files, "config": hashlib.sha256(config.model_dump_json().encode()).hexdigest(), **_versions()}
        )
        parts = load_parts(config, options, files, world)
        world.check_equal_across_ranks(parts.state.fingerprint)
        _begin(parts, options, config, resume_from)
        quarantine = Quarantine(
            quarantine_path(options.model_dir, world.rank), fresh=resume_from is None, is_only_rank=world.size == 1
        )
        if world.size > 1:
            logger.info(
                "%d processes; a step is %d batches, %d of each",
                world.size,
                world.size * config.accum_grad,
                config.accum_grad,
            )
        Session(config, options.model_dir, parts.state, parts.train_set, parts.valid_set, world, quarantine).run()
    return options.model_dir / "final.pt"


def _find_resume(options: TrainOptions, world: World) -> Path | None:
    """What `find_resume` says on rank 0, which may set damaged checkpoints aside."""
    found = find_resume(options) if world.is_first else None
    name = world.all_gather("" if found is None else found.name)[0]
    return options.model_dir / "checkpoints" / name if name else None


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "wenet_hs")}


def _begin(parts: Parts, options: TrainOptions, config: ExperimentConfig, resume_from: Path | None) -> None:
    """The weights and everything else that the first step begins with."""
    state = parts.state
    if resume_from is not None:
        state.restore(resume_from)
        logger.info("resuming from %s (epoch %d, step %d)", resume_from, state.progress.epoch, state.progress.step)
        return
    if options.checkpoint is not None:
        report = take_weights(state.model, options.checkpoint, parts.units)
        report.log()
        if state.world.is_first:
            report.write(options.model_dir / "fine_tune.json")
    elif config.freeze:
        logger.warning("freeze without --checkpoint: what is frozen stays as it was drawn at random")
    state.begin_random()


@dataclass(frozen=True)
class Session:
    """A training in progress."""

    config: ExperimentConfig
    model_dir: Path
    state: TrainState
    train_set: SpeechDataset
    valid_set: SpeechDataset
    world: World
    quarantine: Quarantine

    def run(self) -> None:
        """Train until the config says stop, then write `final.pt`; once it is there, it stays as it is.

        It may have been averaged since. `finished.json` says which end it belongs to, and is written after it.
        """
        progress, final = self.state.progress, self.model_dir / "final.pt"
        if self.world.any(self.world.is_first and self._has_ended()):
            logger.info("%s: trained already (%d steps)", final, progress.step)
            return
        with self._monitor() if self.world.is_first else nullcontext() as monitor, listening():
            if progress.validation_due:
                self._save(monitor, due=True)
                self._stop_if_asked()
            while not self._is_over():
                self._epoch(monitor)
            if self.world.is_first:
                self._write_final()
                write_atomic(self._ending, json.dumps({"step": progress.step}))

    def _has_ended(self) -> bool:
        ending, final = json.dumps({"step": self.state.progress.step}), self.model_dir / "final.pt"
        is_written = final.exists() and self._ending.exists() and self._ending.read_text("utf-8") == ending
        return is_written and self._is_over()

    def _monitor(self) -> Monitor:
        config, progress = self.config, self.state.progress
        steps_per_epoch = -(-len(self.train_set.plan(progress.epoch)) // (config.accum_grad * self.world.size))
        return Monitor(
            self.model_dir,
            step=progress.step,
            metrics_bytes=progress.metrics_bytes,
            log_interval=config.log_interval,
            total_steps=min(steps_per_epoch * config.max_epoch, config.scheduler_conf.total_steps or sys.maxsize),
            device=self.state.device,
        )

    @property
    def _max_bad_clips(self) -> float:
        return self.config.dataset_conf.max_bad_clips

    @property
    def _ending(self) -> Path:
        return self.model_dir / "checkpoints" / "finished.json"

    def _epoch(self, monitor: Monitor | None) -> None:
        """The rest of one epoch; saves at each `save_interval` steps, or at its end, and at the end of all."""
        progress, interval = self.state.progress, self.config.save_interval
        plan = self.train_set.plan(progress.epoch)
        bad_before = progress.bad_clips  # clips that were restored since end no run
        mine = plan.share(rank=self.world.rank, world_size=self.world.size, start=progress.batch)
        for stats in run_epoch(self.state, self._batches(mine, progress.epoch), self.config):
            if monitor is not None:
                monitor.step(stats)
            ended = progress.batch >= len(plan)
            if ended:
                progress.epoch, progress.batch = progress.epoch + 1, 0
            due = ended if interval is None else progress.step % interval == 0
            last = self._is_over()
            self.quarantine.record(stats.quarantined)
            if progress.bad_clips > bad_before:
                drawn, at_end = progress.clips_drawn, ended or last
                self.quarantine.check_share(progress.bad_clips, drawn, self._max_bad_clips, at_end=at_end)
            if due or last or self._is_asked_to_stop():
                self._save(monitor, due=due or last)
                self._stop_if_asked()
            if last or self._is_over():
                return

    def _save(self, monitor: Monitor | None, *, due: bool) -> None:
        """Validate where a checkpoint is due, and commit it; then let go of those that are no longer needed.

        A signal asks for one at any step, without a validation; and one that comes in the midst of a validation leaves
        that to the next run.
        """
        progress, folder = self.state.progress, self.model_dir / "checkpoints"
        facts = self._validate() if due else None
        progress.interim, progress.validation_due = facts is None, due and facts is None
        if facts is not None:
            if monitor is not None:
                monitor.valid(progress.step, progress.epoch, progress.seconds, facts)
            finite = {name: value for name, value in facts.items() if math.isfinite(value)}
            progress.validations.append({"step": progress.step, **finite})
        if monitor is not None:
            progress.metrics_bytes = monitor.sync()
        files = self.state.to_files()
        if self.world.is_first:
            newest = save_checkpoint(folder, progress.step, files)
            rotate(folder, {newest, *worth_keeping(folder, self.config)})

    def _validate(self) -> dict[str, float] | None:
        """What the validation list measures; None where a signal came before it was through."""
        plan = plan_epoch(
            self.valid_set.num_frames, self.config.dataset_conf.batch_conf, seed=0, epoch=0, shuffle=False
        )
        mine = plan[self.world.rank :: self.world.size]  # not as many on every rank: nothing is repeated here
        watched = RecordedBatches(self.quarantine, batches(self.valid_set, mine, 0))
        valid = takewhile(lambda _: stop_requested() is None, watched)
        sums = validate(self.state.model, valid, self.config, self.state.device).over(self.world)
        num_bad, num_drawn = map(int, self.world.sum([watched.num_bad, watched.num_drawn]))
        if self._is_asked_to_stop():
            return None
        self.quarantine.check_share(num_bad, num_drawn, self._max_bad_clips, at_end=True)
        return sums.per_target() | {"bad_clips": num_bad}

    def _is_asked_to_stop(self) -> bool:
        """Whether a signal asks any of the processes to end."""
        return self.world.any(stop_requested() is not None)

    def _stop_if_asked(self) -> None:
        """End here, where a checkpoint was just written; unless training is over, and has but to write its end."""
        progress = self.state.progress
        if self._is_asked_to_stop() and (progress.validation_due or not self._is_over()):
            raise stopped_after(progress.step, str(checkpoint_path(self.model_dir / "checkpoints", progress.step)))

    def _write_final(self) -> None:
        """`final.pt`: the weights as they are now; with `early_stopping` those of the best checkpoint."""
        early, target = self.config.early_stopping, self.model_dir / "final.pt"
        if early is None:
            newest = list_checkpoints(self.model_dir / "checkpoints")[-1]
            write_final(target, self.state.model.state_dict(), [newest], by="last")
            return
        best = choose(self.model_dir, 1, early.metric)
        write_final(target, average(best), best, by=early.metric)
        if out_of_patience(self.state.progress.validations, early):
            logger.info("validation brought nothing better by %s for %d validations", early.metric, early.patience)
        logger.info("%s is %s, the best by %s", target, best[0].name, early.metric)

    def _batches(self, plan: BatchPlan, epoch: int) -> Iterator[Batch]:
        ahead = batches(self.train_set, plan, epoch, num_workers=self.config.num_workers)
        there = on_device(ahead, self.state.device)
        if self.config.dataset_conf.features_on == "worker":
            return there
        return self._with_features(there)

    def _with_features(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            with naming_batch(batch, f"step {self.state.progress.step + 1}"):
                sent = batch.to(self.state.device)  # `on_device` leaves it to the step, but on a GPU
                ready = with_features(sent, self.config.dataset_conf)
            yield ready

    def _is_over(self) -> bool:
        """After `max_epoch` or `max_minutes`, at a learning rate of 0 (`warmup_cosine`), or out of patience."""
        progress, config = self.state.progress, self.config
        out_of_time = config.max_minutes is not None and progress.seconds >= 60 * config.max_minutes
        total_steps = config.scheduler_conf.total_steps
        out_of_steps = total_steps is not None and progress.step >= total_steps
        stopped_early = out_of_patience(progress.validations, config.early_stopping)
        return progress.epoch >= config.max_epoch or out_of_time or out_of_steps or stopped_early
