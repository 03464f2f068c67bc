# SPDX-License-Identifier: Apache-2.0
"""A training from its first step to `final.pt`, of any kind of model: steps, validations,
checkpoints, signals.
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
from contextlib import nullcontext
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
"""A launcher and its process group may both deliver one request; a later signal is a second
request.
"""


class StopRequest:
    """Records the first of `SIGNALS` while it is entered; the earlier handlers are restored at the
    end.

    After each step the training checks it, saves a checkpoint without validation, and ends with
    `Stopped`. A validation is interrupted, and the next run does it before its first step. So the
    resumed run ends with the same bits as an uninterrupted one. A second request ends the process
    at once, as the signal does without a handler.

    A signal that the parent ignored stays ignored. Python delivers signals to the main thread only:
    in another thread this does nothing.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        """The signal that asks this process to end."""
        self._time = 0.0
        self._earlier: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in SIGNALS}
            self._earlier = {
                number: old for number, old in handlers.items() if old is not signal.SIG_IGN
            }
            for number in self._earlier:
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(
                number, signal.SIG_DFL if handler is None else handler
            )  # None: not set by Python

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal, self._time = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._time > SAME_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


@dataclass(frozen=True)
class DataSize:
    """The amount of the data of a training, and its memory."""

    lists: tuple[ListSize, ...] = ()
    list_bytes: int = 0
    feature_bytes: int = 0


class Task(ABC):
    """What differs between the trainings of recognisers and of language models: the batches of a
    step.
    """

    config: TrainingConfig
    state: TrainState[Any]
    accum_grad: int = 1
    """Batches of a rank per optimizer step."""

    def begin(self, base: BaseModel | None) -> None:  # noqa: B027  # some have nothing to do here
        """Called once at the start of a new training, which begins with the weights of `base`, if
        there is one.
        """

    def resume(self) -> None:  # noqa: B027
        """Called once after a checkpoint was restored."""

    def prepare(self) -> None:  # noqa: B027
        """Called once before the first step. A signal waits until it is done."""

    def data_size(self) -> DataSize:
        """The amount of the data and its memory."""
        return DataSize()

    def num_ctc_only_steps(self) -> int:
        """The steps of a first part that trains CTC only."""
        return 0

    @abstractmethod
    def num_batches(self) -> int:
        """Batches of the current epoch, of all ranks together."""

    @abstractmethod
    def run_epoch(self) -> Iterator[StepStats]:
        """The optimizer steps of the current epoch from batch `progress.batch` on, which they
        increase.
        """

    def after_step(self, stats: StepStats, *, at_end: bool) -> None:  # noqa: B027
        """Called after each step; `at_end`: of an epoch or of the training."""

    @abstractmethod
    def validate(self, is_stopped: Callable[[], bool]) -> dict[str, float] | None:
        """The metrics of the validation data; None if a rank got a signal before the end."""

    def plateau_ctc(self) -> float | None:
        """The loss of a constant CTC output on the validation list; None without CTC."""
        return None


class TrainingLoop:
    """The epochs of a training with its validations and checkpoints, until it ends or is stopped."""

    def __init__(self, model_dir: Path, task: Task, recorder: RunRecorder | None = None) -> None:
        """`recorder`: of rank 0."""
        self.model_dir, self.task, self.stop = model_dir, task, StopRequest()
        self._recorder = recorder
        self.config, self.state, self.world = task.config, task.state, task.state.world
        self._checkpoints = model_dir / "checkpoints"
        self._finished = self._checkpoints / "finished.json"
        stop = (
            self.stop
        )  # not self: a cycle of references would keep the model beyond its process group
        self.state.wants_to_stop = lambda: stop.signal is not None

    def run(self) -> None:
        """Train until the config ends it, then write `final.pt` and, with the last step,
        `finished.json`.

        A run that has ended before changes nothing: `final.pt` may have been averaged since.
        """
        if self.world.any(self.world.is_first and self._has_ended_before()):
            self._confirm_end()
            return
        if self._recorder is not None:
            self._recorder.use_position(self.state.progress)
            self._recorder.begin()
        monitoring = self._monitor() if self.world.is_first else nullcontext()
        precision = matmul_precision(self.config.matmul_precision, self.state.device)
        with monitoring as monitor, self.stop, precision:
            self.task.prepare()
            if monitor is not None:
                self._state_plan(monitor.steps)
            if self.state.progress.validation_due:
                self._save(monitor, due=True)
                self._stop_if_asked()
            while not self._is_over():
                self._run_epoch(monitor)
            if self.world.is_first:
                self._finish()

    def _has_ended_before(self) -> bool:
        """Whether an earlier run has written all files of this training."""
        final = self.model_dir / "final.pt"
        if not (final.exists() and self._finished.exists()):
            return False
        return self._finished.read_text("utf-8") == self._ending and self._is_over()

    def _confirm_end(self) -> None:
        final = self.model_dir / "final.pt"
        logger.info("%s: trained already (%d steps)", final, self.state.progress.step)
        if self._recorder is not None:
            self._recorder.confirm_end()

    def _state_plan(self, steps: Steps) -> None:
        """Log and record how long the training is, and what it needs."""
        interval = self.config.save_interval or steps.per_epoch
        num_saves = -(-steps.planned // interval)
        resources = self._find_resources(num_saves)
        self._log_resources(resources)
        if self._recorder is not None:
            self._recorder.record_plan(steps, resources, self._tree_kinds())

    def _finish(self) -> None:
        """Write `final.pt` and `finished.json`. Warns if the learning rate never fell."""
        step = self.state.progress.step
        warmup_steps = self.config.scheduler_conf.warmup_steps
        if 0 < step <= warmup_steps:
            message = "training ended at step %d, in the warm-up of %d steps; lower scheduler_conf.warmup_steps"
            logger.warning(message, step, warmup_steps, extra={"code": "ended_in_warmup"})
        self._write_final()
        write_atomic(self._finished, self._ending)

    @property
    def _ending(self) -> str:
        return json.dumps({"step": self.state.progress.step})

    def _is_over(self) -> bool:
        """After `max_epoch` or `max_minutes`, at a learning rate of 0 (`warmup_cosine`), or out of
        patience.
        """
        progress, config = self.state.progress, self.config
        out_of_time = config.max_minutes is not None and progress.seconds >= 60 * config.max_minutes
        total_steps = config.scheduler_conf.total_steps
        out_of_steps = total_steps is not None and progress.step >= total_steps
        stopped_early = is_out_of_patience(progress.validations, config.early_stopping)
        return progress.epoch >= config.max_epoch or out_of_time or out_of_steps or stopped_early

    def _is_asked_to_stop(self, *, at_step: bool = False) -> bool:
        """Whether a rank is; after a step of several ranks, what they told each other in it."""
        if at_step and self.world.size > 1:
            return self.state.is_asked_to_stop
        return self.world.any(self.stop.signal is not None)

    def _stop_if_asked(self) -> None:
        """End here, after a checkpoint was written.

        A training that is over only has to write `final.pt`.

        The exit code is 128 plus the signal: 143, 130, 138; that of SIGTERM if only another rank
        received a signal.
        """
        progress = self.state.progress
        if self._is_asked_to_stop() and (progress.validation_due or not self._is_over()):
            number = self.stop.signal or signal.SIGTERM
            found = f"stopped by {number.name} after step {progress.step}, which is saved"
            to_do = "run the same command again to resume"
            raise Stopped(
                checkpoint_path(self._checkpoints, progress.step), found, to_do, 128 + number
            )

    def _monitor(self) -> Monitor:
        steps_per_epoch = -(-self.task.num_batches() // (self.task.accum_grad * self.world.size))
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
        """The kind of each tree in the model folder by the name of its file."""
        paths = [self.model_dir / name for name in tree_paths(self.config).values()]
        return {path.name: load_tree(path).kind for path in paths}

    def _find_resources(self, num_saves: int) -> Resources:
        """The data, and the checkpoints that are kept, of `num_saves`, against the free disk."""
        config = self.config
        data = self.task.data_size()
        each = self.state.checkpoint_bytes()
        return Resources(
            lists=data.lists,
            list_bytes=data.list_bytes,
            feature_bytes=data.feature_bytes,
            checkpoint_bytes=each,
            kept_bytes=kept_checkpoint_bytes(config, each, num_saves),
            free_bytes=shutil.disk_usage(self.model_dir).free,
        )

    def _log_resources(self, resources: Resources) -> None:
        """One line, which is a warning if the checkpoints do not fit on the disk."""
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
        """The steps that will run without a time limit.

        Warns if `max_epoch` ends the training before its schedule.
        """
        config, planned = self.config, self.config.scheduler_conf.total_steps
        of_epochs, warmup = steps_per_epoch * config.max_epoch, config.scheduler_conf.warmup_steps
        if (steps := min(planned or of_epochs, of_epochs)) <= warmup:
            logger.warning(
                "%d steps will run, all in the warm-up of %d: the learning rate only rises to %.1e; "
                "lower scheduler_conf.warmup_steps",
                *(steps, warmup, learning_rate(steps, config)),
                extra={"code": "all_in_warmup"},
            )
        if planned is None or planned <= of_epochs:
            return planned or of_epochs
        logger.warning(
            "max_epoch: %d ends this training after %d steps, before scheduler_conf.total_steps: %d; the learning rate "
            "is still %.1e there; set max_epoch: %d for all steps, or total_steps: %d for a rate that falls to 0",
            *(config.max_epoch, of_epochs, planned, learning_rate(of_epochs, config)),
            *(-(-planned // steps_per_epoch), of_epochs),
            extra={"code": "ends_before_schedule"},
        )
        return of_epochs

    def _run_epoch(self, monitor: Monitor | None) -> None:
        """The rest of one epoch.

        Saves every `save_interval` steps, or at its end, and at the end of training.
        """
        progress, interval = self.state.progress, self.config.save_interval
        num_batches = self.task.num_batches()
        for stats in self.task.run_epoch():
            if monitor is not None:
                monitor.step(stats)
            ended = progress.batch >= num_batches
            if ended:
                progress.epoch, progress.batch = progress.epoch + 1, 0
            due = ended if interval is None else progress.step % interval == 0
            last = self._is_over()
            self.task.after_step(stats, at_end=ended or last)
            if due or last or self._is_asked_to_stop(at_step=True):
                self._save(monitor, due=due or last)
                self._stop_if_asked()
            if last or self._is_over():
                return

    def _save(self, monitor: Monitor | None, *, due: bool) -> None:
        """Commit a checkpoint, after a validation if one is due, and delete those that are no
        longer needed.

        A signal saves a checkpoint at any step without validation. A validation that a signal
        interrupts is left to the next run.
        """
        progress = self.state.progress
        metrics = self.task.validate(lambda: self.stop.signal is not None) if due else None
        progress.interim, progress.validation_due = metrics is None, due and metrics is None
        if metrics is not None:
            if monitor is not None:
                monitor.valid(metrics)
            finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
            progress.validations.append({"step": progress.step, **finite})
        if monitor is not None:
            progress.metrics_bytes = monitor.sync()
        if self.world.is_first:
            self.state.leave_out_frozen(self._checkpoints)
        files = self.state.to_files()
        with (
            self.world.first_before_others()
        ):  # that writes and reads, maybe for longer than a collective may last
            if self.world.is_first:
                newest = save_checkpoint(self._checkpoints, progress.step, files)
                rotate(
                    self._checkpoints,
                    {newest, *checkpoints_to_keep(self._checkpoints, self.config)},
                )

    def _write_final(self) -> None:
        """Write `final.pt`: the last weights; with `early_stopping` those of the best checkpoint."""
        early, target = self.config.early_stopping, self.model_dir / "final.pt"
        if early is None:
            last = list_checkpoints(self._checkpoints)[-1:]
            write_final(target, self.state.model.state_dict(), read_validations(last), by="last")
            return
        if not any(early.metric in validation for validation in self.state.progress.validations):
            found = (
                f"{early.metric} was not finite in any validation, so there is no best checkpoint"
            )
            raise CheckpointError(
                self.model_dir, found, "train with a lower optim_conf.lr in another --model_dir"
            )
        best = choose_checkpoints(self.model_dir, 1, early.metric)
        write_final(target, average_weights(best), read_validations(best), by=early.metric)
        if is_out_of_patience(self.state.progress.validations, early):
            logger.info("no better %s in the last %d validations", early.metric, early.patience)
        logger.info("%s is %s, the best by %s", target, best[0].name, early.metric)


TaskLoader = Callable[[PreparedFolder[Config], ListPaths, World], Task]
"""Makes the task in a folder with these lists, on the device of this rank."""


def run_training(
    request: TrainingRequest[Config], world: World, load_task: TaskLoader[Config]
) -> None:
    """Train on this rank: lock and write the folder, begin or resume the task, and run it.

    The model is freed at the end, as `join_process_group` asks for.
    """
    model_dir = request.model_dir
    checkpoints = model_dir / "checkpoints"
    lock = locked(model_dir, flag="--model_dir", work="training", error_class=CheckpointError)
    with report_full_disk(model_dir, checkpoints), lock if world.is_first else nullcontext():
        earlier = find_earlier_training(model_dir, request.resume, world, type(request.config))
        folder = _prepare_folder(request, earlier, world)
        recorder = None if folder.record is None else RunRecorder(model_dir, folder.record)
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
    """Write the folder on rank 0, and check that all ranks have the same settings, files and
    versions.
    """
    config = resolve_auto(request.config, world.device, where=request.config_file, earlier=earlier)
    processors = sorted(set(world.all_gather(processor_name(world.device))))
    hardware = Hardware(processors=tuple(processors), ranks=world.size) if world.is_first else None
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
    """The task of a new training with its first weights.

    train.yaml and run.json say with which lists the model in the folder is trained, so they are
    written before anything can fail.
    """
    if recorder is not None:
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
    """The task in the state of the checkpoint.

    train.yaml and run.json are written when nothing can be refused any more.
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
    if recorder is not None:
        dump_config(folder.config, folder.path / "train.yaml")
    task.resume()
    return task


def _log_size(task: Task, world: World) -> None:
    num_parameters = sum(value.numel() for value in task.state.model.parameters())
    logger.info("the model has %s parameters", f"{num_parameters:,}")
    if world.size > 1:
        logger.info("%d processes; a step has %d batches of each", world.size, task.accum_grad)
