# SPDX-License-Identifier: Apache-2.0
"""What a running training shows: log lines, a progress bar, metrics.jsonl and TensorBoard.

All have the same values. TensorBoard's event files are in the model folder, so `tensorboard
--logdir exp` shows one run per folder in exp, with its name.

A record of a step has the fields of its StepStats and PROGRESS_FIELDS, and `peak_memory_mb`, the
maximum memory of tensors on the GPU, or of the process on a CPU. It also has these values over all
steps since the last record: `audio_seconds_per_second` (language models: `num_targets_per_second`);
`wait_share`, the share of time spent waiting for data; and `outside_share`, the share outside
forward, backward and optimizer, which includes the wait. A record of a validation with CTC has
`blank_share`, the share of the encoder frames at which blank is its best unit.
"""

import json
import logging
import math
import os
import platform
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import IO, Any, ClassVar

import torch
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

from wenet_hs.compute.devices import peak_memory_bytes
from wenet_hs.config.schema import TrainingConfig
from wenet_hs.runs.curves import TAKE_OFF_NATS, is_overfitted, losses_by_validation, read_curves
from wenet_hs.runs.file_names import CURVES_FILE
from wenet_hs.runs.record import Steps
from wenet_hs.runs.sentences import describe_duration, describe_limit
from wenet_hs.train.optim import SMALLEST_SCALE
from wenet_hs.train.run_recorder import RunRecorder
from wenet_hs.train.state import Progress
from wenet_hs.tree.errors import DataError

logger = logging.getLogger(__name__)

PROGRESS_FIELDS = ("step", "epoch", "skipped_steps", "bad_clips", "incomplete_clips")
"""Fields of `Progress` in the record of a step."""
NOT_RECORDED = ("lr_of", "suspects", "quarantined")
"""Fields of a StepStats that are not numbers, and so not in the record of a step."""
LOSSES = ("loss", "loss_att", "loss_ctc", "bits_per_unit")
"""Losses in the run record of a training."""
NOT_IN_TENSORBOARD = ("step", "epoch", "plateau_ctc")
"""Numbers that TensorBoard does not show: the axis of its charts, and the constant of a run."""
USUAL_VALUES = {
    "loss_scale": SMALLEST_SCALE,
    "guide": 0,
    "skipped_steps": 0,
    "bad_clips": 0,
    "incomplete_clips": 0,
}
"""Values of numbers that have no other value in most runs; TensorBoard shows only other values."""
EXPECTED_AFTER = 50
"""The log states the remaining time after this many steps, from their median time.

The first steps are slow because they compile.
"""
TAKE_OFF_SHARE = 0.2
TAKE_OFF_WARMUPS = 1.5
"""The CTC loss should be TAKE_OFF_NATS below its plateau after TAKE_OFF_SHARE of all steps, and not
before TAKE_OFF_WARMUPS times the warm-up steps.

The plateau is the loss of an output that is the same in each frame. The nats are per target, the
unit of `loss_ctc`, which is stricter than 0.5 nats per label.
"""
BLANK_SHARE = 0.99
BLANK_VALIDATIONS = 3
"""It is a warning if CTC has not taken off, blank is its best unit at BLANK_SHARE of the frames or
more, and this share fell at none of the last BLANK_VALIDATIONS validations. Otherwise it is a line
of the log.
"""


@dataclass(frozen=True, kw_only=True)
class StepStats:
    """The facts of one optimizer step besides `Progress`.

    Losses are nats per target (unit or end of sentence).
    """

    throughput: ClassVar[str] = "num_targets"
    """The field whose sum per second is the speed of the training."""
    loss: float
    bits_per_unit: float
    """Cross-entropy of the head per target, without label smoothing."""
    grad_norm: float
    lr: float
    lr_of: Mapping[str, float] = field(default_factory=dict)
    """Learning rates of the parts of the model that have their own; `lr.PART` in the records."""
    num_targets: int
    seconds: float
    """Wall time of the step, with the wait for data."""
    wait_seconds: float
    """Wall time of the wait for data."""
    compute_seconds: float
    """Wall time of forward, backward and optimizer. It contains the wait for a GPU."""
    loss_scale: float = SMALLEST_SCALE
    """The factor of the loss for fp16; 1 for any other dtype."""
    suspects: tuple[str, ...] = ()
    """Of a skipped step: keys of the utterances that may be the cause."""


@dataclass(frozen=True, kw_only=True)
class _Speed:
    """The speed of some steps together."""

    name: str
    """What is counted per second: the field of StepStats that `throughput` names."""
    per_second: float
    wait_share: float
    """Share of the time in which the steps waited for data."""
    outside_share: float
    """Share of the time outside of forward, backward and optimizer; it includes the wait."""

    @classmethod
    def of(cls, steps: Sequence[StepStats]) -> "_Speed":
        """The speed of these steps, of which there is at least one."""
        name = steps[0].throughput
        seconds = max(1e-9, sum(stats.seconds for stats in steps))  # no division by 0
        amount = sum(getattr(stats, name) for stats in steps)
        wait_seconds = sum(stats.wait_seconds for stats in steps)
        compute_seconds = sum(stats.compute_seconds for stats in steps)
        return cls(
            name=name,
            per_second=amount / seconds,
            wait_share=wait_seconds / seconds,
            outside_share=1 - compute_seconds / seconds,
        )

    @property
    def unit(self) -> str:
        """The unit of `per_second`, for people."""
        return "units/s" if self.name == "num_targets" else "audio s/s"

    def as_record(self) -> dict[str, float]:
        """The values by their names in metrics.jsonl."""
        return {
            f"{self.name}_per_second": self.per_second,
            "wait_share": self.wait_share,
            "outside_share": self.outside_share,
        }


class Monitor:
    """Writes the records of a run, as a context manager.

    A resumed run continues at its `progress`; later records are deleted.
    """

    def __init__(
        self,
        model_dir: Path,
        progress: Progress,
        config: TrainingConfig,
        *,
        steps: Steps,
        device: torch.device,
        plateau_ctc: float | None = None,
        recorder: RunRecorder | None = None,
    ) -> None:
        """
        Args:
            progress: the position of the training, which changes with each step.
            steps: the planned steps and the limit of time: whichever comes first ends the training.
            plateau_ctc: the CTC loss on the validation list of an output that is always the same,
                in the unit of `loss_ctc`; None without CTC.
            recorder: gets how far the training is at each log interval and each validation.
        """
        self.steps = steps
        self._recorder = recorder
        self._progress = progress
        self._metrics_path = model_dir / CURVES_FILE
        self._metrics = _open_truncated(self._metrics_path, progress.metrics_bytes)
        self._board = EventFile(model_dir, step=progress.step + 1)  # the next step
        self._log_interval = config.log_interval
        self._device = device
        self._num_steps = 0
        """Steps of this run."""
        self._max_seconds = math.inf if steps.max_minutes is None else 60 * steps.max_minutes
        """The limit of time; infinite without one."""
        self._last_seconds = deque[float](maxlen=EXPECTED_AFTER)
        """The times of the latest steps."""
        self._has_warned_of_overfitting = False
        self._plateau_ctc = plateau_ctc
        # CTC should take off before this step; the later one of two rules counts.
        self._take_off_step = max(TAKE_OFF_SHARE * steps.planned, TAKE_OFF_WARMUPS * steps.warmup)
        console = Console(stderr=True)
        self._bar = ProgressBar(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("step {task.completed}/{task.total} {task.fields[summary]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(
            "train", total=steps.planned, completed=progress.step, epoch=0, summary=""
        )
        self._recent: list[StepStats] = []
        """The steps since the last record."""
        self._closing = ExitStack()

    def __enter__(self) -> "Monitor":
        """Show the progress bar, and register all that `__exit__` closes."""
        self._closing.callback(self._metrics.close)
        self._closing.callback(self._board.close)
        self._closing.enter_context(self._bar)
        self._closing.enter_context(_logging_above_the_bar())
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.close()

    def record_step(self, stats: StepStats) -> None:
        """Show the optimizer step just done on the progress bar; log a warning if it was skipped.

        Every `log_interval` steps a record is written, with the speed since the record before. The
        expected time of the training is logged once, after EXPECTED_AFTER steps.
        """
        self._recent.append(stats)
        self._last_seconds.append(stats.seconds)
        self._num_steps += 1
        if self._num_steps == EXPECTED_AFTER:
            self._log_duration()
        if stats.suspects:
            _log_skipped_step(self._progress.step, stats)
        speed = _Speed.of(self._recent)
        amount = f"{speed.per_second:.0f} {speed.unit}"
        self._bar.update(
            self._task,
            completed=self._progress.step,
            epoch=self._progress.epoch,
            summary=f"loss {stats.loss:.3f} | {amount} | wait {speed.wait_share:.0%}",
        )
        if self._progress.step % self._log_interval == 0:
            self._write_step(stats, speed)
            self._recent.clear()

    def _write_step(self, stats: StepStats, speed: _Speed) -> None:
        """Log a step, and write it to metrics.jsonl, TensorBoard and the run record.

        `speed`: that of all steps since the last one that was written.
        """
        record: dict[str, Any] = {name: getattr(self._progress, name) for name in PROGRESS_FIELDS}
        for name, value in asdict(stats).items():
            if name not in NOT_RECORDED:
                record[name] = value
        record |= speed.as_record()
        record |= {f"lr.{part}": rate for part, rate in stats.lr_of.items()}
        rates_of_parts = "".join(f", {part} {rate:.2e}" for part, rate in stats.lr_of.items())
        fields = (
            f"step {self._progress.step} of {describe_limit(self.steps)}",
            _describe_losses(record),
            f"lr {stats.lr:.2e}{rates_of_parts}",
            f"grad {stats.grad_norm:.2f}",
            f"{speed.per_second:.0f} {speed.unit}",
            f"wait {100 * speed.wait_share:.0f} %{self._describe_time_left()}",
        )
        logger.info("%s", " | ".join(fields))
        record["peak_memory_mb"] = peak_memory_bytes(self._device) / 1e6
        self._write("train", record)
        self._record_progress(
            losses=losses_of(record),
            seconds_per_step=self._seconds_per_step(),
            seconds_left=self._seconds_left(),
            speed=speed.per_second,
            speed_unit=speed.unit,
        )

    def _log_duration(self) -> None:
        """Log and record the expected time of an epoch and of all steps, once per run."""
        seconds_per_step = median(self._last_seconds)
        logger.info("%s", describe_duration(self.steps, seconds_per_step))
        self._record_progress(first_seconds_per_step=seconds_per_step)

    def _seconds_per_step(self) -> float | None:
        """The median time of the latest steps; None before there are enough of them."""
        if len(self._last_seconds) < EXPECTED_AFTER:
            return None
        return median(self._last_seconds)

    def _seconds_left(self) -> float | None:
        """The expected time until the training ends, without validations; None: not yet known."""
        seconds_per_step = self._seconds_per_step()
        if seconds_per_step is None:
            return None
        until_last_step = seconds_per_step * (self.steps.planned - self._progress.step)
        until_limit = self._max_seconds - self._progress.seconds
        return max(0.0, min(until_last_step, until_limit))

    def _describe_time_left(self) -> str:
        """The end of the log line: the time that is left; empty before it is known."""
        seconds = self._seconds_left()
        return "" if seconds is None else f" | {seconds / 60:.1f} min left"

    def _record_progress(self, **changes: object) -> None:
        """Change fields of the progress in the run record, if there is a recorder."""
        if self._recorder is not None:
            self._recorder.record_progress(**changes)

    def record_validation(self, metrics: Mapping[str, float]) -> None:
        """Log a validation, write its metrics, and report if the training goes wrong.

        `metrics`: by name, as `LossSum.per_target` returns them; some may be NaN.
        """
        step = self._progress.step
        epoch = self._progress.epoch
        seconds = self._progress.seconds
        fields = [f"epoch {epoch}", f"step {step}", f"validation {_describe_losses(metrics)}"]
        if "blank_share" in metrics:
            fields.append(f"blank {100 * metrics['blank_share']:.1f} %")
        if "ctc_error_rate" in metrics:
            fields.append(f"ctc errors {100 * metrics['ctc_error_rate']:.1f} %")
        fields.append(f"{seconds:.0f} s of training")
        logger.info("%s", " | ".join(fields))
        record = {"step": step, "epoch": epoch, "seconds": seconds, **metrics}
        if self._plateau_ctc is not None:
            record["plateau_ctc"] = self._plateau_ctc
        self._write("valid", record)
        self._diagnose(step, metrics)
        self._record_progress(
            dev_step=step,
            dev_losses=losses_of(metrics),
            dev_error_rate=metrics.get("ctc_error_rate"),
        )

    def _diagnose(self, step: int, metrics: Mapping[str, float]) -> None:
        """Warn if the model over-fits, or else report that CTC has not taken off though it should.

        The model also over-fits if CTC has not taken off on the validation list, but has on the
        training list.
        """
        curves = {}
        with suppress(DataError):  # a damaged record of an earlier run must not end the training
            curves = read_curves(self._metrics_path)
        # The losses of both lists at each validation so far.
        train_losses, valid_losses = losses_by_validation(curves)
        is_late = self._is_late_to_take_off(step, metrics)
        has_training_list_taken_off = bool(train_losses) and self._has_taken_off(train_losses[-1])
        fits_training_list_only = is_late and has_training_list_taken_off
        if is_overfitted(train_losses, valid_losses) or fits_training_list_only:
            self._warn_of_overfitting(step, train_losses, valid_losses)
        elif is_late:
            self._report_plateau(step, metrics)

    def _warn_of_overfitting(
        self, step: int, train_losses: Sequence[float], valid_losses: Sequence[float]
    ) -> None:
        """Warn that the model over-fits, once per run.

        The losses are those of both lists at each validation, the newest last.
        """
        if self._has_warned_of_overfitting:
            return
        self._has_warned_of_overfitting = True
        message = (
            "step %d: the model over-fits: "
            "training loss %.2f, validation loss %.2f (lowest: %.2f); "
            "add training data or use a smaller model; early_stopping keeps the best checkpoint"
        )
        losses = (train_losses[-1], valid_losses[-1], min(valid_losses))
        logger.warning(message, step, *losses, extra={"code": "overfitted"})

    def _is_late_to_take_off(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether CTC should have taken off at this step, and its validation loss says it has not.

        False without CTC, and if the plateau is so low that no loss can be TAKE_OFF_NATS below it.
        """
        if self._plateau_ctc is None or self._plateau_ctc <= TAKE_OFF_NATS:
            return False
        if step < self._take_off_step or "loss_ctc" not in metrics:
            return False
        return metrics["loss_ctc"] > self._plateau_ctc - TAKE_OFF_NATS

    def _has_taken_off(self, loss_ctc: float) -> bool:
        """Whether a CTC loss is TAKE_OFF_NATS below the plateau; False without CTC."""
        return self._plateau_ctc is not None and loss_ctc < self._plateau_ctc - TAKE_OFF_NATS

    def _report_plateau(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log that CTC has not taken off, with its loss and the trend of its share of blank.

        It is a warning if the output is blank nearly everywhere and stays so; see BLANK_SHARE.
        """
        newest_first = [metrics, *reversed(self._progress.validations)]
        shares = [round(validation["blank_share"], 3) for validation in newest_first]
        num_steady = _count_without_fall(shares)
        is_blank = shares[0] >= BLANK_SHARE
        is_stuck = is_blank and num_steady >= BLANK_VALIDATIONS
        has_validation_before = len(shares) > 1
        trend = _describe_trend(shares[1], num_steady) if has_validation_before else ""
        advice = _advise_on_plateau(is_blank=is_blank, num_steady=num_steady)
        message = (
            "step %d: CTC has not taken off: "
            "its validation loss is %.2f, that of a constant output is %.2f; "
            "blank: %.1f %% of the frames%s%s"
        )
        losses = (metrics["loss_ctc"], self._plateau_ctc)
        level = logging.WARNING if is_stuck else logging.INFO
        values = (step, *losses, 100 * shares[0], trend, advice)
        logger.log(level, message, *values, extra={"code": "ctc_on_plateau"})

    def sync(self) -> int:
        """Write metrics.jsonl through to the disk; return its length in bytes, for checkpoints."""
        self._metrics.flush()
        os.fsync(self._metrics.fileno())
        return os.fstat(self._metrics.fileno()).st_size

    def _write(self, kind: str, record: Mapping[str, float]) -> None:
        """Append a record to metrics.jsonl, and its numbers to the event file of TensorBoard.

        `kind`: train or valid. A number that is not finite is null in metrics.jsonl, because JSON
        has no NaN, and is left out in TensorBoard.
        """
        numbers = {name: _finite_or_none(value) for name, value in record.items()}
        line = json.dumps({"kind": kind, **numbers}, allow_nan=False)
        self._metrics.write(line.encode() + b"\n")
        self._metrics.flush()
        for name, value in numbers.items():
            is_usual = value == USUAL_VALUES.get(name)
            if value is None or is_usual or name in NOT_IN_TENSORBOARD:
                continue
            self._board.add(f"{board_group(name)}/{name}/{kind}", value, int(record["step"]))
        self._board.flush()


def _finite_or_none(value: float) -> float | None:
    """The number; None if it is infinite or NaN."""
    return value if math.isfinite(value) else None


def losses_of(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """The losses among the numbers of a step or a validation; None for one that is not finite."""
    return {name: _finite_or_none(value) for name, value in metrics.items() if name in LOSSES}


def board_group(name: str) -> str:
    """The group of a number in TensorBoard: loss, model or speed."""
    if name.startswith("loss") and name != "loss_scale":
        return "loss"
    if name == "blank_share":  # the only share that is not one of time or computation
        return "model"
    is_speed = name.endswith(("seconds", "_second", "_share", "_mb")) or name == "num_targets"
    return "speed" if is_speed else "model"


def _log_skipped_step(step: int, stats: StepStats) -> None:
    """Log that a step was skipped: a warning, unless fp16 overflowed because of its loss scale."""
    is_fp16_overflow = stats.loss_scale > SMALLEST_SCALE and math.isfinite(stats.loss)
    if is_fp16_overflow:
        message = "step %d: skipped: fp16 overflow at loss scale %g, now halved"
        logger.info(message, step, stats.loss_scale)
        return
    message = "step %d: skipped: loss or gradient not finite; with %s"
    suspects = ", ".join(stats.suspects)
    logger.warning(message, step, suspects, extra={"code": "step_skipped"})


def _count_without_fall(newest_first: Sequence[float]) -> int:
    """At how many of the latest validations in a row a value did not fall.

    `newest_first`: the value at each validation. For [3, 3, 2, 5] it is 2: the value was 5, fell to
    2, and did not fall since.
    """
    count = 0
    for value, value_before in pairwise(newest_first):
        if value < value_before:
            break
        count += 1
    return count


def _describe_trend(share_before: float, num_steady: int) -> str:
    """The part of a message about the share of blank: what it was before, and whether it falls.

    `num_steady`: at how many of the latest validations it did not fall.
    """
    trend = f"does not fall (validations: {num_steady})" if num_steady else "falls"
    return f", {100 * share_before:.1f} % at the validation before: it {trend}"


def _advise_on_plateau(*, is_blank: bool, num_steady: int) -> str:
    """The end of the message that CTC has not taken off: what to do, or why to wait; or empty.

    Other settings are advised if the share of blank has not fallen for long enough: for
    BLANK_VALIDATIONS validations if the output is blank nearly everywhere (`is_blank`), otherwise
    for one.

    `num_steady`: at how many of the latest validations the share did not fall.
    """
    long_enough = BLANK_VALIDATIONS if is_blank else 1
    if num_steady >= long_enough:
        return (
            "; train with a lower optim_conf.lr or longer scheduler_conf.warmup_steps "
            "(docs/training.md)"
        )
    if is_blank:
        return "; a fine-tuned pretrained encoder often stays there for hundreds of steps"
    return ""


class EventFile:
    """A new event file of TensorBoard in a folder.

    A resumed run adds a file to those of the earlier runs.

    torch's SummaryWriter writes in a thread: a kill loses what it has not written, a full disk
    gives a traceback, and the processes that load data are forked while it runs. This class writes
    at once, in the calling thread.
    """

    def __init__(self, folder: Path, *, step: int) -> None:
        """`step`: the first one that will be written; TensorBoard hides records of it and later
        steps in older files.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"events.out.tfevents.{time.time_ns()}.{platform.node()}"
        self._records = RecordWriter(path.open("xb"))
        self._write(file_version="brain.Event:2")
        self._write(step=step, session_log=SessionLog(status=SessionLog.START))
        self.flush = self._records.flush
        self.close = self._records.close

    def add(self, tag: str, value: float, step: int) -> None:
        """Write a number of an optimizer step. `tag`: its group and name, separated by `/`."""
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        self._write(step=step, summary=summary)

    def _write(self, **fields: object) -> None:
        """Write an event with the time of now and these fields."""
        event = Event(wall_time=time.time(), **fields)
        self._records.write(event.SerializeToString())


def _describe_losses(metrics: Mapping[str, float]) -> str:
    """The losses of a step or a validation as a part of the log line, in nats per target.

    A language model has one loss and its bits per unit. A recogniser also has the losses of its
    branches, and the accuracy; what is of the decoder is left out if it was not computed.
    """
    loss = f"loss {metrics['loss']:.3f}"
    bits = f"{metrics['bits_per_unit']:.2f} bits/unit"
    is_language_model = "loss_att" not in metrics
    if is_language_model:
        return f"{loss} | {bits}"
    has_decoder_values = not math.isnan(metrics["bits_per_unit"])
    if not has_decoder_values:
        return f"{loss} (ctc {metrics['loss_ctc']:.3f})"
    branches = f"att {metrics['loss_att']:.3f} ctc {metrics['loss_ctc']:.3f}"
    return f"{loss} ({branches}) | {bits} | acc {100 * metrics['accuracy']:.1f} %"


def _open_truncated(path: Path, length: int) -> IO[bytes]:
    """Open a file for appending, after its first `length` bytes; what follows them is deleted.

    A file that is missing is created. If the file is shorter, a warning is logged.
    """
    file = path.open("ab")
    missing = length - os.fstat(file.fileno()).st_size
    if missing > 0:  # truncate() would fill the missing part with zeros
        message = (
            "%s: %d bytes of its earlier part are missing; "
            "new records are appended to what is there"
        )
        logger.warning(message, path, missing, extra={"code": "records_missing"})
    else:
        file.truncate(length)
    return file


@contextmanager
def _logging_above_the_bar() -> Iterator[None]:
    """Inside the block, log handlers that write to stderr print their lines above the progress bar.

    While a bar is shown, rich replaces sys.stderr. A handler that was made before still writes to
    the original, which would break the bar, so it gets the replacement.
    """
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler)
    ]
    redirected = [handler for handler in handlers if handler.stream is sys.__stderr__]
    for handler in redirected:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler in redirected:
            handler.setStream(sys.__stderr__)
