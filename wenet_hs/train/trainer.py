# SPDX-License-Identifier: Apache-2.0
"""A training from its flags to `final.pt`: the folder, the resume, then steps, validations and checkpoints."""

import hashlib
import json
import logging
import math
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any

from wenet_hs.checkpoint import (
    checkpoint_path,
    list_checkpoints,
    newest_intact,
    read_checkpoint,
    remove_incomplete,
    report_full_disk,
    rotate,
    save_checkpoint,
    set_aside_newer,
)
from wenet_hs.config.load import load_config
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.data.batching import Batch, Quarantine, plan_epoch
from wenet_hs.data.dataset import SpeechDataset, batches
from wenet_hs.devices import find_device, processor_name
from wenet_hs.distributed import World, join_process_group
from wenet_hs.errors import CheckpointError, Stopped
from wenet_hs.files import locked, write_atomic
from wenet_hs.heads.ctc import constant_output_loss
from wenet_hs.text.units import UnitTable
from wenet_hs.train.average import (
    average_weights,
    checkpoints_to_keep,
    choose_checkpoints,
    is_out_of_patience,
    write_final,
)
from wenet_hs.train.finetune import load_base_weights
from wenet_hs.train.loop import run_epoch, validate
from wenet_hs.train.monitor import Monitor
from wenet_hs.train.setup import (
    TrainOptions,
    check_dtype,
    load_parts,
    open_feature_caches,
    prepare_folder,
    resolve_dtype,
)
from wenet_hs.train.state import TrainState

__all__ = ["TrainOptions", "Training", "train"]

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Signals that ask a training to end: of a scheduler or torchrun, Ctrl-C, SLURM's warning."""
SAME_REQUEST_SECONDS = 1.0
"""A launcher and its process group may both deliver one request; a later signal is a second request."""

PLATEAU_UTTERANCES = 200
"""Validation utterances for the CTC plateau."""


class StopRequest:
    """Records the first of `SIGNALS` while it is entered; the earlier handlers are restored at the end.

    After each step the training checks it, saves a checkpoint without validation, and ends with `Stopped`. A validation
    is interrupted, and the next run does it before its first step. So the resumed run ends with the same bits as an
    uninterrupted one. A second request ends the process at once, as the signal does without a handler.

    A signal that the parent ignored stays ignored. Python delivers signals to the main thread only: in another thread
    this does nothing.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        """The signal that asks this process to end."""
        self._time = 0.0
        self._earlier: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in SIGNALS}
            self._earlier = {number: old for number, old in handlers.items() if old is not signal.SIG_IGN}
            for number in self._earlier:
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal, self._time = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._time > SAME_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def train(options: TrainOptions) -> Path:
    """Train to the end of the config, with the other ranks of the launcher. Returns the path of `final.pt`."""
    with (
        join_process_group(find_device(options.device)) as world,
        report_full_disk(options.model_dir, options.model_dir / "checkpoints"),
        locked(options.model_dir, flag="--model_dir", work="training", error_class=CheckpointError)
        if world.is_first
        else nullcontext(),
    ):
        _train_as_rank(options, world)
    return options.model_dir / "final.pt"


def _train_as_rank(options: TrainOptions, world: World) -> None:
    """Train on this rank. The model is freed at the end, as `join_process_group` asks for."""
    checkpoints = options.model_dir / "checkpoints"
    config = load_config(options.config, options.override_config)
    check_dtype(config, options.config, world.device)
    if world.is_first:
        remove_incomplete(checkpoints)
    found = find_resume(options) if world.is_first else None  # it may rename damaged checkpoints
    name = world.all_gather(None if found is None else found.name)[0]
    resume_from = None if name is None else checkpoints / name
    config = resolve_dtype(config, options, world.device, is_resumed=resume_from is not None)
    processors = sorted(set(world.all_gather(processor_name(world.device))))
    hardware = {"processor": "; ".join(processors), "ranks": str(world.size)} if world.is_first else None
    with world.first_before_others():
        config, hashes = prepare_folder(options, config, is_resumed=resume_from is not None, hardware=hardware)
    versions = {name: version(name) for name in ("torch", "wenet_hs")}
    sha256 = hashlib.sha256(config.model_dump_json().encode()).hexdigest()
    world.check_equal_across_ranks({**hashes, "config": sha256, **versions})
    state, train_set, valid_set = load_parts(config, options, hashes, world)
    world.check_equal_across_ranks(state.fingerprint)
    if resume_from is not None:
        state.restore(resume_from)
        logger.info("resuming from %s (epoch %d, step %d)", resume_from, state.progress.epoch, state.progress.step)
    else:
        _load_base_weights(state, options, config)
    quarantine = Quarantine(options.model_dir, fresh=resume_from is None, rank=world.rank, num_ranks=world.size)
    if world.size > 1:
        logger.info("%d processes; a step has %d batches of each", world.size, config.accum_grad)
    Training(config, options.model_dir, state, train_set, valid_set, world, quarantine).run()


def find_resume(options: TrainOptions) -> Path | None:
    """The checkpoint to resume from, by `--resume`, or None. Raises CheckpointError if a model would be overwritten."""
    folder, final = options.model_dir / "checkpoints", options.model_dir / "final.pt"
    if options.resume not in ("auto", "never"):
        path = Path(options.resume)
        if path.resolve() not in [checkpoint.resolve() for checkpoint in list_checkpoints(folder)]:
            what = f"--resume {path}: not auto, never or one of {folder}/step-*"
            raise CheckpointError(f"{what}; to start from its weights use --checkpoint")
        read_checkpoint(path)  # before others are renamed
        set_aside_newer(folder / path.name)
        return folder / path.name
    if options.resume == "never" and list_checkpoints(folder):
        raise CheckpointError(
            f"{folder}: holds checkpoints and --resume is never; use another --model_dir or remove it"
        )
    newest = newest_intact(folder)
    if newest is None and final.exists():
        raise CheckpointError(f"{final}: a model without checkpoints, so it cannot be resumed; use another --model_dir")
    return newest


def _load_base_weights(state: TrainState, options: TrainOptions, config: ExperimentConfig) -> None:
    """Load the weights that `--checkpoint` names, if any, and seed the random numbers of this rank."""
    if options.checkpoint is not None:
        report = load_base_weights(state.model, options.checkpoint, UnitTable.read(options.model_dir / "units.txt"))
        report.log()
        if state.world.is_first:
            write_atomic(options.model_dir / "fine_tune.json", report.to_json())
    elif config.freeze:
        logger.warning("freeze without --checkpoint: frozen parameters keep their random initial values")
    if not state.world.is_first:  # all ranks have the same initial weights; from now on each draws its own numbers
        state.seed_new_rank()


@dataclass(frozen=True)
class Training:
    """A training in progress."""

    config: ExperimentConfig
    model_dir: Path
    state: TrainState
    train_set: SpeechDataset
    valid_set: SpeechDataset
    world: World
    quarantine: Quarantine
    stop: StopRequest = field(default_factory=StopRequest)

    def run(self) -> None:
        """Train until the config ends it, then write `final.pt` and, with the last step, `finished.json`.

        A run that has ended before changes nothing: `final.pt` may have been averaged since.
        """
        progress, final = self.state.progress, self.model_dir / "final.pt"
        finished = self._checkpoints / "finished.json"
        is_finished = final.exists() and finished.exists() and finished.read_text("utf-8") == self._ending
        if self.world.any(self.world.is_first and is_finished and self._is_over()):
            logger.info("%s: trained already (%d steps)", final, progress.step)
            return
        with self._monitor() if self.world.is_first else nullcontext() as monitor, self.stop:
            if self.config.dataset_conf.cache_features:  # `stop` lets a signal wait until its files are unlinked
                open_feature_caches([self.train_set, self.valid_set], self.world)
            if progress.validation_due:
                self._save(monitor, due=True)
                self._stop_if_asked()
            while not self._is_over():
                self._run_epoch(monitor)
            if self.world.is_first:
                self._warn_about_warmup()
                self._write_final()
                write_atomic(finished, self._ending)

    def _warn_about_warmup(self) -> None:
        step, warmup_steps = self.state.progress.step, self.config.scheduler_conf.warmup_steps
        if step <= warmup_steps and self.config.scheduler == "warmup_cosine":
            message = "training ended at step %d, in the warm-up of %d steps; lower scheduler_conf.warmup_steps"
            logger.warning(message, step, warmup_steps)

    @property
    def _checkpoints(self) -> Path:
        return self.model_dir / "checkpoints"

    @property
    def _ending(self) -> str:
        return json.dumps({"step": self.state.progress.step})

    def _is_over(self) -> bool:
        """After `max_epoch` or `max_minutes`, at a learning rate of 0 (`warmup_cosine`), or out of patience."""
        progress, config = self.state.progress, self.config
        out_of_time = config.max_minutes is not None and progress.seconds >= 60 * config.max_minutes
        total_steps = config.scheduler_conf.total_steps
        out_of_steps = total_steps is not None and progress.step >= total_steps
        stopped_early = is_out_of_patience(progress.validations, config.early_stopping)
        return progress.epoch >= config.max_epoch or out_of_time or out_of_steps or stopped_early

    def _is_asked_to_stop(self) -> bool:
        return self.world.any(self.stop.signal is not None)

    def _stop_if_asked(self) -> None:
        """End here, after a checkpoint was written. A training that is over only has to write `final.pt`.

        The exit code is 128 plus the signal: 143, 130, 138; that of SIGTERM if only another rank received a signal.
        """
        progress = self.state.progress
        if self._is_asked_to_stop() and (progress.validation_due or not self._is_over()):
            number = self.stop.signal or signal.SIGTERM
            raise Stopped(
                f"{checkpoint_path(self._checkpoints, progress.step)}: stopped by {number.name} after step "
                f"{progress.step}, which is saved; run the same command again to resume",
                exit_code=128 + number,
            )

    def _monitor(self) -> Monitor:
        config, progress = self.config, self.state.progress
        steps_per_epoch = -(-len(self.train_set.plan(progress.epoch)) // (config.accum_grad * self.world.size))
        return Monitor(
            self.model_dir,
            progress,
            log_interval=config.log_interval,
            total_steps=min(steps_per_epoch * config.max_epoch, config.scheduler_conf.total_steps or sys.maxsize),
            device=self.state.device,
            warmup_steps=config.scheduler_conf.warmup_steps,
            plateau_ctc=self._plateau_ctc(),
        )

    def _plateau_ctc(self) -> float | None:
        """The loss of a constant CTC output on the validation list; None without CTC."""
        targets, num_frames = self.valid_set.sample_targets(PLATEAU_UTTERANCES)
        if not targets or (self.config.model_conf.ctc_weight == 0 and not self.config.model_conf.ctc_only_steps):
            return None
        return constant_output_loss(targets, num_frames, self.state.model.ctc.blank)

    def _run_epoch(self, monitor: Monitor | None) -> None:
        """The rest of one epoch. Saves every `save_interval` steps, or at its end, and at the end of training."""
        progress, interval = self.state.progress, self.config.save_interval
        plan = self.train_set.plan(progress.epoch)
        bad_before = progress.bad_clips  # clips restored since then must not end the run
        share = plan.share(rank=self.world.rank, world_size=self.world.size, start=progress.batch)
        loaded = batches(self.train_set, share, progress.epoch, num_workers=self.config.num_workers)
        for stats in run_epoch(self.state, loaded, self.config):
            if monitor is not None:
                monitor.step(stats)
            ended = progress.batch >= len(plan)
            if ended:
                progress.epoch, progress.batch = progress.epoch + 1, 0
            due = ended if interval is None else progress.step % interval == 0
            last = self._is_over()
            self.quarantine.record(stats.quarantined)
            if progress.bad_clips > bad_before:
                self._check_bad_clips(progress.bad_clips, progress.clips_drawn, at_end=ended or last)
            if due or last or self._is_asked_to_stop():
                self._save(monitor, due=due or last)
                self._stop_if_asked()
            if last or self._is_over():
                return

    def _check_bad_clips(self, num_bad: int, num_drawn: int, *, at_end: bool) -> None:
        self.quarantine.check_share(num_bad, num_drawn, self.config.dataset_conf.max_bad_clips, at_end=at_end)

    def _save(self, monitor: Monitor | None, *, due: bool) -> None:
        """Commit a checkpoint, after a validation if one is due, and delete those that are no longer needed.

        A signal saves a checkpoint at any step without validation. A validation that a signal interrupts is left to the
        next run.
        """
        progress = self.state.progress
        metrics = self._validate() if due else None
        progress.interim, progress.validation_due = metrics is None, due and metrics is None
        if metrics is not None:
            if monitor is not None:
                monitor.valid(metrics)
            finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
            progress.validations.append({"step": progress.step, **finite})
        if monitor is not None:
            progress.metrics_bytes = monitor.sync()
        files = self.state.to_files()
        if self.world.is_first:
            newest = save_checkpoint(self._checkpoints, progress.step, files)
            rotate(self._checkpoints, {newest, *checkpoints_to_keep(self._checkpoints, self.config)})

    def _validate(self) -> dict[str, float] | None:
        """The metrics of the validation list; None if a signal came before the end."""
        conf = self.config.dataset_conf.batch_conf
        plan = plan_epoch(self.valid_set.num_frames, conf, seed=0, epoch=0, shuffle=False)
        share = plan[self.world.rank :: self.world.size]  # ranks may have different numbers: no batch is repeated
        counts = Counter[str]()
        watched = self.quarantine.record_batches(batches(self.valid_set, share, 0), counts)
        valid: Iterator[Batch] = takewhile(lambda _: self.stop.signal is None, watched)
        sums = validate(self.state.model, valid, self.config, self.state.device).over_ranks(self.world)
        num_bad, num_drawn = map(int, self.world.sum([counts["bad"], counts["drawn"]]))
        if self._is_asked_to_stop():
            return None
        self._check_bad_clips(num_bad, num_drawn, at_end=True)
        return sums.per_target() | {"bad_clips": num_bad}

    def _write_final(self) -> None:
        """Write `final.pt`: the last weights; with `early_stopping` those of the best checkpoint."""
        early, target = self.config.early_stopping, self.model_dir / "final.pt"
        if early is None:
            write_final(target, self.state.model.state_dict(), list_checkpoints(self._checkpoints)[-1:], by="last")
            return
        best = choose_checkpoints(self.model_dir, 1, early.metric)
        write_final(target, average_weights(best), best, by=early.metric)
        if is_out_of_patience(self.state.progress.validations, early):
            logger.info("no better %s in the last %d validations", early.metric, early.patience)
        logger.info("%s is %s, the best by %s", target, best[0].name, early.metric)
