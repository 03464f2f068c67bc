# SPDX-License-Identifier: Apache-2.0
"""A training of any kind of model, from its first step to `final.pt`.

`run_training` prepares the model folder, begins or resumes the `Task`, and runs it in a
`TrainingLoop`: steps, validations, checkpoints, signals.
"""

import hashlib
import json
import logging
import math
import os
import shutil
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

from wenet_hs.base.extensions import package_versions
from wenet_hs.base.files import locked
from wenet_hs.compute.devices import processor_name
from wenet_hs.compute.distributed import World
from wenet_hs.config.load import Config, dump_config
from wenet_hs.config.schema import TrainingConfig
from wenet_hs.model.checkpoint import (
    checkpoint_path,
    list_checkpoints,
    report_full_disk,
    rotate,
    save_checkpoint,
    set_aside_newer,
    write_final,
)
from wenet_hs.model.experiment import tree_paths
from wenet_hs.runs.record import ListSize, Resources, Steps
from wenet_hs.runs.sentences import describe_resources
from wenet_hs.train.average import (
    average_weights,
    checkpoints_to_keep,
    choose_checkpoints,
    is_out_of_patience,
    kept_checkpoint_bytes,
    read_validations,
)
from wenet_hs.train.finetune import BaseModel, read_base_model
from wenet_hs.train.model_folder import (
    PreparedFolder,
    prepare_folder,
    resolve_auto,
)
from wenet_hs.train.monitor import Monitor, StepStats
from wenet_hs.train.optim import learning_rate, matmul_precision
from wenet_hs.train.run_recorder import RunRecorder
from wenet_hs.train.start import EarlierTraining, ListPaths, TrainingRequest, find_earlier_training
from wenet_hs.train.start_record import Hardware
from wenet_hs.train.state import TrainState
from wenet_hs.tree.atomic import write_atomic
from wenet_hs.tree.errors import CheckpointError, Stopped
from wenet_hs.tree.tree import load_tree

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Signals that ask a training to end: of a scheduler or torchrun, Ctrl-C, SLURM's warning."""
SAME_REQUEST_SECONDS = 1.0
"""Signals within so many seconds are one request, which both a launcher and its group deliver."""


@dataclass(frozen=True)
class DataSize:
    """The amount of the data of a training, and its memory."""

    lists: tuple[ListSize, ...] = ()
    """The utterances and hours of each data list; none for a language model."""
    list_bytes: int = 0
    """The memory of the lists on this rank."""
    feature_bytes: int = 0
    """The memory of features that are kept for later epochs."""


class Task(ABC):
    """The part of a training that differs between recognisers and language models.

    It has the model, the data, and the steps of an epoch.
    """

    config: TrainingConfig
    state: TrainState[Any]
    accum_grad: int = 1
    """Batches of a rank per optimizer step."""

    def begin(self, base: BaseModel | None) -> None:  # noqa: B027  # some have nothing to do here
        """Called once at the start of a new training, to set its first weights.

        `base`: the trained model that gives them; None without `--checkpoint`.
        """

    def resume(self) -> None:  # noqa: B027
        """Called once after a checkpoint was restored."""

    def prepare(self) -> None:  # noqa: B027
        """Called once before the first step. A signal has an effect only after it."""

    def data_size(self) -> DataSize:
        """The amount of the data and its memory."""
        return DataSize()

    def num_ctc_only_steps(self) -> int:
        """How many steps at the start of the training train only CTC."""
        return 0

    @abstractmethod
    def num_batches(self) -> int:
        """The number of batches in the current epoch, of all ranks together."""

    @abstractmethod
    def run_epoch(self) -> Iterator[StepStats]:
        """Do the optimizer steps of the current epoch, and yield the facts of each.

        They begin at batch `progress.batch` of the epoch, and each step increases it.
        """

    def after_step(self, stats: StepStats, *, at_end: bool) -> None:  # noqa: B027
        """Called after each step; `at_end`: whether an epoch or the training ends with it."""

    @abstractmethod
    def validate(self, is_stopped: Callable[[], bool]) -> dict[str, float] | None:
        """The metrics of the validation data, by name; None if the validation was interrupted.

        `is_stopped`: whether this rank got a signal. The validation ends early if one of them did.
        """

    def plateau_ctc(self) -> float | None:
        """The loss of a constant CTC output on the validation list; None without CTC.

        It is in nats per target. CTC has learned nothing as long as its loss is as high.
        """
        return None


TaskLoader = Callable[[PreparedFolder[Config], ListPaths, World], Task]
"""A function that makes the task: from the model folder, the lists, and the device of this rank."""


def run_training(
    request: TrainingRequest[Config], world: World, load_task: TaskLoader[Config]
) -> None:
    """Train on this rank: lock and prepare the model folder, begin or resume the task, and run it.

    Nothing refers to the model at the end, so it is freed before the process group ends.

    `load_task`: makes the task, with a new model.
    Raises Stopped after a signal, and an error of this package for a fault of config, data, folder,
        checkpoint or disk.
    """
    model_dir = request.model_dir
    checkpoints = model_dir / "checkpoints"
    lock: AbstractContextManager[object] = nullcontext()
    if world.is_first:  # the only rank that writes
        lock = locked(model_dir, flag="--model_dir", work="training", error_class=CheckpointError)
    with report_full_disk(model_dir, checkpoints), lock:
        earlier = find_earlier_training(model_dir, request.resume, world, type(request.config))
        folder = _prepare_folder(request, earlier, world)
        recorder = None if folder.record is None else RunRecorder(model_dir, folder.record)
        # The recorder collects warnings from now on, and records how the training ends.
        with recorder or nullcontext():
            if earlier is None:
                task = _begin_task(folder, request, world, recorder, load_task)
            else:
                task = _resume_task(folder, request.lists, earlier, world, recorder, load_task)
            _log_size(task, world)
            TrainingLoop(model_dir, task, recorder).run()


def _prepare_folder(
    request: TrainingRequest[Config], earlier: EarlierTraining[Config] | None, world: World
) -> PreparedFolder[Config]:
    """Write the model folder on rank 0; check that all ranks have equal settings, files, versions.

    `earlier`: the training that is resumed; None: a new one begins.
    Raises ConfigError if the ranks differ, and if a resumed run has other settings or files.
    """
    config = resolve_auto(request.config, world.device, where=request.config_file, earlier=earlier)
    processors = sorted(set(world.all_gather(processor_name(world.device))))
    hardware = None  # this rank does not write
    if world.is_first:
        hardware = Hardware(processors=tuple(processors), ranks=world.size)
    with world.first_before_others():
        folder = prepare_folder(replace(request, config=config), earlier, hardware)
    versions = {name: version(name) for name in ("torch", "wenet_hs")}
    versions |= package_versions(folder.config.extensions())
    sha256 = hashlib.sha256(folder.config.model_dump_json().encode()).hexdigest()
    world.check_equal_across_ranks({**folder.hashes, "config": sha256, **versions})
    return folder


def _begin_task(
    folder: PreparedFolder[Config],
    request: TrainingRequest[Config],
    world: World,
    recorder: RunRecorder | None,
    load_task: TaskLoader[Config],
) -> Task:
    """Make the task of a new training, with its first weights.

    Rank 0 writes train.yaml and run.json. They say with which lists the model in the folder is
    trained, so they are written before anything else can fail.
    Raises an error of this package for a fault of data or checkpoint, or if the ranks differ.
    """
    if recorder is not None:  # on rank 0
        dump_config(folder.config, folder.path / "train.yaml")
        recorder.begin()
    base = None if request.base is None else read_base_model(request.base.path)
    task = load_task(folder, request.lists, world)
    world.check_equal_across_ranks(task.state.fingerprint)
    task.begin(base)
    return task


def _resume_task(
    folder: PreparedFolder[Config],
    lists: ListPaths,
    earlier: EarlierTraining[Config],
    world: World,
    recorder: RunRecorder | None,
    load_task: TaskLoader[Config],
) -> Task:
    """Make the task of a resumed training, in the state of its checkpoint.

    Rank 0 renames newer checkpoints, and writes train.yaml. It does so only after the state is
    restored: a resume that is refused leaves the folder as it is.
    Raises an error of this package for a fault of data or checkpoint, or if the ranks differ.
    """
    task = load_task(folder, lists, world)
    world.check_equal_across_ranks(task.state.fingerprint)
    task.state.restore(earlier.checkpoint)
    progress = task.state.progress
    logger.info(
        "resuming from %s (epoch %d, step %d)", earlier.checkpoint, progress.epoch, progress.step
    )
    if world.is_first:
        set_aside_newer(earlier.checkpoint)
    if recorder is not None:  # on rank 0
        dump_config(folder.config, folder.path / "train.yaml")
    task.resume()
    return task


def _log_size(task: Task, world: World) -> None:
    """Log the number of parameters, and with several ranks the batches of a step."""
    num_parameters = sum(value.numel() for value in task.state.model.parameters())
    logger.info("the model has %s parameters", f"{num_parameters:,}")
    if world.size > 1:
        logger.info("%d processes; a step has %d batches of each", world.size, task.accum_grad)


class TrainingLoop:
    """The epochs of a training, with validations and checkpoints, until it ends or is stopped."""

    def __init__(self, model_dir: Path, task: Task, recorder: RunRecorder | None = None) -> None:
        """`recorder`: writes run.json; None on other ranks than rank 0."""
        self.model_dir = model_dir
        self.task = task
        self.stop = StopRequest()
        self.config = task.config
        self.state = task.state
        self.world = task.state.world
        self._recorder = recorder
        self._final = model_dir / "final.pt"
        self._checkpoints = model_dir / "checkpoints"
        self._finished = self._checkpoints / "finished.json"
        # The lambda must not refer to self, which refers to the state: such a cycle of references
        # would keep the model longer than its process group.
        stop = self.stop
        self.state.wants_to_stop = lambda: stop.signal is not None

    def run(self) -> None:
        """Train until the config ends it, then write `final.pt` and `finished.json`.

        If a signal interrupted the last validation of the earlier run, that validation is done
        first. If the training ended in an earlier run, this is only recorded (`_confirm_end`): its
        `final.pt` may have been replaced by an average since.
        Raises Stopped after a signal, when a checkpoint is saved.
        """
        # Rank 0, which wrote the files, decides for all ranks.
        has_ended_before = self.world.is_first and self._has_ended_before()
        if self.world.any(has_ended_before):
            self._confirm_end()
            return
        if self._recorder is not None:
            self._recorder.use_position(self.state.progress)
            self._recorder.begin()
        monitor_context = self._make_monitor() if self.world.is_first else nullcontext()
        precision = matmul_precision(self.config.matmul_precision, self.state.device)
        with monitor_context as monitor, self.stop, precision:
            self.task.prepare()
            if monitor is not None:  # on rank 0
                self._report_plan(monitor.steps)
            if self.state.progress.validation_due:
                self._save(monitor, due=True)
                self._stop_if_asked()
            while not self._is_over():
                self._run_epoch(monitor)
            if self.world.is_first:
                self._finish()

    def _has_ended_before(self) -> bool:
        """Whether an earlier run ended at this step and wrote all files of the training."""
        if not (self._final.exists() and self._finished.exists()):
            return False
        return self._finished.read_text("utf-8") == self._ending and self._is_over()

    def _confirm_end(self) -> None:
        """Log, and record on rank 0, that the training ended in an earlier run."""
        logger.info("%s: trained already (%d steps)", self._final, self.state.progress.step)
        if self._recorder is not None:
            self._recorder.confirm_end()

    def _report_plan(self, steps: Steps) -> None:
        """Log and record how long the training is, and what memory and disk it needs."""
        interval = self.config.save_interval or steps.per_epoch  # None: a checkpoint per epoch
        num_saves = math.ceil(steps.planned / interval)
        resources = self._find_resources(num_saves)
        self._log_resources(resources)
        if self._recorder is not None:
            self._recorder.record_plan(steps, resources, self._tree_kinds())

    def _finish(self) -> None:
        """Write `final.pt` and `finished.json`, which has the number of the last step.

        Warns if the training ended in the warm-up of the learning rate.
        """
        step = self.state.progress.step
        warmup_steps = self.config.scheduler_conf.warmup_steps
        if 0 < step <= warmup_steps:
            message = (
                "training ended at step %d, in the warm-up of %d steps; "
                "lower scheduler_conf.warmup_steps"
            )
            logger.warning(message, step, warmup_steps, extra={"code": "ended_in_warmup"})
        self._write_final()
        write_atomic(self._finished, self._ending)

    @property
    def _ending(self) -> str:
        """The content of `finished.json` for a training that ends at the current step."""
        return json.dumps({"step": self.state.progress.step})

    def _is_over(self) -> bool:
        """Whether the config ends the training at the current step.

        It ends after `max_epoch` epochs or `max_minutes`, after `total_steps`, at which the
        learning rate of `warmup_cosine` is 0, or when `early_stopping` is out of patience.
        """
        progress = self.state.progress
        config = self.config
        if progress.epoch >= config.max_epoch:
            return True
        if config.max_minutes is not None and progress.seconds >= 60 * config.max_minutes:
            return True
        total_steps = config.scheduler_conf.total_steps
        if total_steps is not None and progress.step >= total_steps:
            return True
        return is_out_of_patience(progress.validations, config.early_stopping)

    def _is_asked_to_stop(self, *, at_step: bool = False) -> bool:
        """Whether any rank has received a signal. Every rank must call it.

        `at_step`: whether this is right after a step. Several ranks have then told each other in
        the step already, which saves a collective.
        """
        if at_step and self.world.size > 1:
            return self.state.is_asked_to_stop
        return self.world.any(self.stop.signal is not None)

    def _stop_if_asked(self) -> None:
        """Raise Stopped if a rank has received a signal. Call it after a checkpoint was written.

        A training that is over goes on: it only has to write `final.pt`.

        The exit code is 128 plus the number of the signal: 143, 130 or 138. A rank that received no
        signal itself has that of SIGTERM.
        """
        progress = self.state.progress
        has_work_left = progress.validation_due or not self._is_over()
        if self._is_asked_to_stop() and has_work_left:
            number = self.stop.signal or signal.SIGTERM
            checkpoint = checkpoint_path(self._checkpoints, progress.step)
            found = f"stopped by {number.name} after step {progress.step}, which is saved"
            to_do = "run the same command again to resume"
            raise Stopped(checkpoint, found, to_do, 128 + number)

    def _make_monitor(self) -> Monitor:
        """Make the monitor of this training, and tell it how many steps are planned; on rank 0."""
        batches_per_step = self.task.accum_grad * self.world.size
        steps_per_epoch = math.ceil(self.task.num_batches() / batches_per_step)
        steps = Steps(
            planned=self._count_steps(steps_per_epoch),
            per_epoch=steps_per_epoch,
            warmup=self.config.scheduler_conf.warmup_steps,
            ctc_only=self.task.num_ctc_only_steps(),
            max_minutes=self.config.max_minutes,
        )
        return Monitor(
            self.model_dir,
            self.state.progress,
            self.config,
            steps=steps,
            device=self.state.device,
            plateau_ctc=self.task.plateau_ctc(),
            recorder=self._recorder,
        )

    def _tree_kinds(self) -> dict[str, str]:
        """The kind of each tree in the model folder, such as `huffman`, by the name of its file."""
        paths = [self.model_dir / name for name in tree_paths(self.config).values()]
        return {path.name: load_tree(path).kind for path in paths}

    def _find_resources(self, num_saves: int) -> Resources:
        """The size of the data and of the checkpoints that are kept, and the free disk space.

        `num_saves`: how many checkpoints the whole training writes.
        """
        data = self.task.data_size()
        checkpoint_bytes = self.state.checkpoint_bytes()
        return Resources(
            lists=data.lists,
            list_bytes=data.list_bytes,
            feature_bytes=data.feature_bytes,
            checkpoint_bytes=checkpoint_bytes,
            kept_bytes=kept_checkpoint_bytes(self.config, checkpoint_bytes, num_saves),
            free_bytes=shutil.disk_usage(self.model_dir).free,
        )

    def _log_resources(self, resources: Resources) -> None:
        """Log one line about data and disk; a warning if the checkpoints do not fit on the disk.

        Checkpoints that are already written count as space, because later ones replace them.
        """
        written_bytes = 0
        for folder in list_checkpoints(self._checkpoints):
            written_bytes += sum(file.stat().st_size for file in folder.iterdir())
        # The next checkpoint is written before another one is deleted.
        needed_bytes = resources.kept_bytes + resources.checkpoint_bytes
        text = describe_resources(resources)
        if needed_bytes > written_bytes + resources.free_bytes:
            to_do = "free some space, or set keep_checkpoints_gb"
            logger.warning("%s; %s", text, to_do, extra={"code": "disk_too_small"})
        else:
            logger.info("%s", text)

    def _count_steps(self, steps_per_epoch: int) -> int:
        """How many steps run if no time limit ends the training: `total_steps`, or all epochs.

        Warns if all of them are in the warm-up of the learning rate, and if `max_epoch` ends the
        training before its schedule.
        """
        config = self.config
        steps_of_epochs = steps_per_epoch * config.max_epoch
        steps_of_schedule = config.scheduler_conf.total_steps
        if steps_of_schedule is None:
            num_steps = steps_of_epochs
        else:
            num_steps = min(steps_of_schedule, steps_of_epochs)
        if num_steps <= config.scheduler_conf.warmup_steps:
            self._warn_of_long_warmup(num_steps)
        if steps_of_schedule is not None and steps_of_schedule > steps_of_epochs:
            epochs_of_schedule = math.ceil(steps_of_schedule / steps_per_epoch)
            self._warn_of_early_end(num_steps, steps_of_schedule, epochs_of_schedule)
        return num_steps

    def _warn_of_long_warmup(self, num_steps: int) -> None:
        """Warn that all `num_steps` steps of the training are in the warm-up."""
        warmup_steps = self.config.scheduler_conf.warmup_steps
        highest_rate = learning_rate(num_steps, self.config)
        text = (
            f"{num_steps} steps will run, all in the warm-up of {warmup_steps}: "
            f"the learning rate only rises to {highest_rate:.1e}; "
            "lower scheduler_conf.warmup_steps"
        )
        logger.warning("%s", text, extra={"code": "all_in_warmup"})

    def _warn_of_early_end(
        self, num_steps: int, steps_of_schedule: int, epochs_of_schedule: int
    ) -> None:
        """Warn that `max_epoch` ends the training after `num_steps`, before the rate falls to 0."""
        last_rate = learning_rate(num_steps, self.config)
        text = (
            f"max_epoch: {self.config.max_epoch} ends this training after {num_steps} steps, "
            f"before scheduler_conf.total_steps: {steps_of_schedule}; "
            f"the learning rate is still {last_rate:.1e} there; "
            f"set max_epoch: {epochs_of_schedule} for all steps, "
            f"or total_steps: {num_steps} for a rate that falls to 0"
        )
        logger.warning("%s", text, extra={"code": "ends_before_schedule"})

    def _run_epoch(self, monitor: Monitor | None) -> None:
        """Do the rest of the current epoch, with the checkpoints that are due in it.

        A checkpoint is due every `save_interval` steps, or without it at the end of the epoch, and
        at the end of the training. After a signal one is saved at once, and Stopped is raised.

        `monitor`: writes the records of the steps; None on other ranks than rank 0.
        """
        progress = self.state.progress
        interval = self.config.save_interval
        num_batches = self.task.num_batches()
        for stats in self.task.run_epoch():
            if monitor is not None:
                monitor.record_step(stats)
            ends_epoch = progress.batch >= num_batches
            if ends_epoch:
                progress.epoch += 1
                progress.batch = 0
            ends_training = self._is_over()
            is_interval_over = ends_epoch if interval is None else progress.step % interval == 0
            is_due = is_interval_over or ends_training
            self.task.after_step(stats, at_end=ends_epoch or ends_training)
            if is_due or self._is_asked_to_stop(at_step=True):
                self._save(monitor, due=is_due)
                self._stop_if_asked()
            # A validation of `_save` may have been the last one that `early_stopping` allows.
            if ends_training or self._is_over():
                return

    def _save(self, monitor: Monitor | None, *, due: bool) -> None:
        """Save a checkpoint, after a validation if one is due; delete those no longer needed.

        A checkpoint for a signal is not due, and has no validation. A validation that a signal
        interrupts is left to the next run: the checkpoint then says that it is still due.
        Every rank must call it.

        `monitor`: records the validation; None on other ranks than rank 0.
        """
        progress = self.state.progress
        metrics: dict[str, float] | None = None
        if due:
            metrics = self.task.validate(lambda: self.stop.signal is not None)
        was_validated = metrics is not None
        progress.interim = not was_validated
        progress.validation_due = due and not was_validated
        if metrics is not None:
            if monitor is not None:
                monitor.record_validation(metrics)
            finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
            progress.validations.append({"step": progress.step, **finite})
        if monitor is not None:
            progress.metrics_bytes = monitor.sync()
        if self.world.is_first:
            self.state.leave_out_frozen(self._checkpoints)
        files = self.state.to_files()
        # Rank 0 writes and reads checkpoints here, which may last longer than a collective may.
        with self.world.first_before_others():
            if self.world.is_first:
                newest = save_checkpoint(self._checkpoints, progress.step, files)
                kept = {newest, *checkpoints_to_keep(self._checkpoints, self.config)}
                rotate(self._checkpoints, kept)

    def _write_final(self) -> None:
        """Write `final.pt`: the last weights; with `early_stopping` those of the best checkpoint.

        Raises CheckpointError if there is no best checkpoint, because the metric of
        `early_stopping` was not finite in any validation.
        """
        conf = self.config.early_stopping
        if conf is None:
            last = list_checkpoints(self._checkpoints)[-1:]
            weights = self.state.model.state_dict()
            write_final(self._final, weights, read_validations(last), by="last")
            return
        validations = self.state.progress.validations
        if not any(conf.metric in validation for validation in validations):
            found = (
                f"{conf.metric} was not finite in any validation, so there is no best checkpoint"
            )
            to_do = "train with a lower optim_conf.lr in another --model_dir"
            raise CheckpointError(self.model_dir, found, to_do)
        best = choose_checkpoints(self.model_dir, 1, conf.metric)
        write_final(self._final, average_weights(best), read_validations(best), by=conf.metric)
        if is_out_of_patience(validations, conf):
            logger.info("no better %s in the last %d validations", conf.metric, conf.patience)
        logger.info("%s is %s, the best by %s", self._final, best[0].name, conf.metric)


class StopRequest:
    """While it is entered, records the first signal of `SIGNALS` instead of ending the process.

    After each step the training checks it, saves a checkpoint without validation, and ends with
    `Stopped`. A validation is interrupted, and the next run does it before its first step. So the
    resumed run ends with the same bits as an uninterrupted one. A second request ends the process
    at once, as the signal does without a handler.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        """The signal that asks this process to end."""
        self._first_time = 0.0
        """When it arrived, on the monotonic clock."""
        self._earlier_handlers: dict[signal.Signals, Any] = {}
        """The handlers to restore at the end; None: one that was not set by Python."""

    def __enter__(self) -> "StopRequest":
        """Handle the signals from now on.

        A signal that the parent process ignores stays ignored. Outside of the main thread, the only
        one to which Python delivers signals, this does nothing.
        """
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if handler is not signal.SIG_IGN:
                    self._earlier_handlers[number] = handler
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        """Restore the handlers of before."""
        for number, handler in self._earlier_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Record the first request to stop; end the process by the signal at a second request.

        A signal less than SAME_REQUEST_SECONDS after the first one is the same request.
        """
        now = time.monotonic()
        if self.signal is None:
            self.signal = signal.Signals(number)
            self._first_time = now
        elif now - self._first_time > SAME_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
