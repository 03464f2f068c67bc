# SPDX-License-Identifier: Apache-2.0
"""The outputs of a running training: log lines, a progress bar, metrics.jsonl and TensorBoard, with
the same values.

The event files are in the model folder, so `tensorboard --logdir exp` shows one run per folder in
exp, with its name.

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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path
from statistics import median
from typing import IO, ClassVar

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
LOSSES = ("loss", "loss_att", "loss_ctc", "bits_per_unit")
"""Losses in the record of a training."""
X_VALUES = ("step", "epoch", "plateau_ctc")
"""Numbers that TensorBoard does not show: the axis of its charts, and the constant of a run."""
CONSTANTS = {
    "loss_scale": SMALLEST_SCALE,
    "guide": 0,
    "skipped_steps": 0,
    "bad_clips": 0,
    "incomplete_clips": 0,
}
"""Values of numbers that most runs never change; TensorBoard shows only other values."""
EXPECTED_AFTER = 50
"""The log states the remaining time after this many steps, from their median time.

The first steps are slow because they compile.
"""
TAKE_OFF_SHARE, TAKE_OFF_WARMUPS = 0.2, 1.5
"""CTC should be TAKE_OFF_NATS below its plateau after this share of the steps and this many times
the warm-up steps.

The nats are per target, the unit of `loss_ctc`. This is stricter than 0.5 nats per label.
"""
BLANK_SHARE, BLANK_VALIDATIONS = 0.99, 3
"""A CTC that has not taken off is a warning if blank is its best unit at this share of the frames
or more, and if this share, rounded to 0.1 %, fell at none of the last BLANK_VALIDATIONS
validations. Otherwise it is a line of the log.
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


class Monitor:
    """Writes the records of a run.

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
            steps: the planned steps and the limit of time: whichever comes first ends the training.
            plateau_ctc: `constant_output_loss` of the validation list, in the unit of `loss_ctc`.
            recorder: gets how far the training is at each log interval and each validation.
        """
        self.steps = steps
        self._recorder = recorder
        self._progress = progress
        self._metrics_path = model_dir / CURVES_FILE
        self._metrics = _open_truncated(self._metrics_path, progress.metrics_bytes)
        self._board = EventFile(model_dir, step=progress.step + 1)
        self._log_interval = config.log_interval
        self._device = device
        self._num_steps = 0
        self._max_seconds = math.inf if steps.max_minutes is None else 60 * steps.max_minutes
        self._last_seconds = deque[float](maxlen=EXPECTED_AFTER)
        self._plateau_ctc, self._has_warned = plateau_ctc, False
        self._take_off_step = max(TAKE_OFF_SHARE * steps.planned, TAKE_OFF_WARMUPS * steps.warmup)
        console = Console(stderr=True)
        self._bar = ProgressBar(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("step {task.completed}/{task.total} {task.fields[facts]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(
            "train", total=steps.planned, completed=progress.step, epoch=0, facts=""
        )
        self._recent: list[StepStats] = []
        self._closing = ExitStack()

    def __enter__(self) -> "Monitor":
        self._closing.callback(self._metrics.close)
        self._closing.callback(self._board.close)
        self._closing.enter_context(self._bar)
        self._closing.enter_context(_logging_above_the_bar())
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.close()

    def step(self, stats: StepStats) -> None:
        """Record the optimizer step just done; every `log_interval` steps it is written out."""
        self._recent.append(stats)
        step = self._progress.step
        self._last_seconds.append(stats.seconds)
        self._num_steps += 1
        if self._num_steps == EXPECTED_AFTER:
            self._log_duration()
        if stats.suspects and stats.loss_scale > SMALLEST_SCALE and math.isfinite(stats.loss):
            logger.info(
                "step %d: skipped: fp16 overflow at loss scale %g, now halved",
                step,
                stats.loss_scale,
            )
        elif stats.suspects:
            suspects = ", ".join(stats.suspects)
            message = "step %d: skipped: loss or gradient not finite; with %s"
            logger.warning(message, step, suspects, extra={"code": "step_skipped"})
        seconds = max(1e-9, sum(one.seconds for one in self._recent))
        throughput = sum(getattr(one, stats.throughput) for one in self._recent) / seconds
        speed = {
            f"{stats.throughput}_per_second": throughput,
            "wait_share": sum(one.wait_seconds for one in self._recent) / seconds,
            "outside_share": 1 - sum(one.compute_seconds for one in self._recent) / seconds,
        }
        per_second = "units/s" if stats.throughput == "num_targets" else "audio s/s"
        facts = f"loss {stats.loss:.3f} | {throughput:.0f} {per_second} | wait {speed['wait_share']:.0%}"
        self._bar.update(self._task, completed=step, epoch=self._progress.epoch, facts=facts)
        if step % self._log_interval == 0:
            record = (
                {name: getattr(self._progress, name) for name in PROGRESS_FIELDS}
                | asdict(stats)
                | speed
            )
            record |= {f"lr.{part}": rate for part, rate in record.pop("lr_of").items()}
            for named_in_warnings in ("suspects", "quarantined"):
                record.pop(named_in_warnings, None)
            logger.info(
                "step %d of %s | %s | lr %.2e%s | grad %.2f | %.0f %s | wait %.0f %%%s",
                *(step, describe_limit(self.steps), _losses(record)),
                *(stats.lr, "".join(f", {part} {rate:.2e}" for part, rate in stats.lr_of.items())),
                *(stats.grad_norm, throughput, per_second),
                *(100 * speed["wait_share"], self._time_left()),
            )
            self._write("train", record | {"peak_memory_mb": peak_memory_bytes(self._device) / 1e6})
            self._record_progress(
                losses=losses_of(record),
                seconds_per_step=self._seconds_per_step(),
                seconds_left=self._seconds_left(),
                speed=throughput,
                speed_unit=per_second,
            )
            self._recent.clear()

    def _log_duration(self) -> None:
        """State the expected time of an epoch and of all steps, once per run."""
        seconds_per_step = median(self._last_seconds)
        logger.info("%s", describe_duration(self.steps, seconds_per_step))
        self._record_progress(first_seconds_per_step=seconds_per_step)

    def _seconds_per_step(self) -> float | None:
        """None before it is known: the first steps are slow."""
        return median(self._last_seconds) if len(self._last_seconds) == EXPECTED_AFTER else None

    def _seconds_left(self) -> float | None:
        """The time without validations; None before it is known."""
        per_step = self._seconds_per_step()
        if per_step is None:
            return None
        of_steps = per_step * (self.steps.planned - self._progress.step)
        of_limit = self._max_seconds - self._progress.seconds
        return max(0.0, min(of_steps, of_limit))

    def _time_left(self) -> str:
        """The time that is left, as a field of the log line; empty before it is known."""
        seconds = self._seconds_left()
        return "" if seconds is None else f" | {seconds / 60:.1f} min left"

    def _record_progress(self, **changes: object) -> None:
        """Write how far the training is into its record, on rank 0."""
        if self._recorder is not None:
            self._recorder.record_progress(**changes)

    def valid(self, facts: Mapping[str, float]) -> None:
        step, epoch, seconds = self._progress.step, self._progress.epoch, self._progress.seconds
        blank = f" | blank {100 * facts['blank_share']:.1f} %" if "blank_share" in facts else ""
        rate = (
            f" | ctc errors {100 * facts['ctc_error_rate']:.1f} %"
            if "ctc_error_rate" in facts
            else ""
        )
        values = (epoch, step, _losses(facts), blank, rate, seconds)
        logger.info("epoch %d | step %d | validation %s%s%s | %.0f s of training", *values)
        record = {"step": step, "epoch": epoch, "seconds": seconds, **facts}
        if self._plateau_ctc is not None:
            record["plateau_ctc"] = self._plateau_ctc
        self._write("valid", record)
        self._diagnose(step, facts)
        self._record_progress(
            dev_step=step,
            dev_losses=losses_of(facts),
            dev_error_rate=facts.get("ctc_error_rate"),
        )

    def _diagnose(self, step: int, facts: Mapping[str, float]) -> None:
        """Warn if the model over-fits, once, or report that CTC has not taken off although it
        should have.
        """
        curves = {}
        with suppress(DataError):  # a damaged record of an earlier run must not end the training
            curves = read_curves(self._metrics_path)
        train, valid = losses_by_validation(curves)
        bound = -math.inf if self._plateau_ctc is None else self._plateau_ctc - TAKE_OFF_NATS
        is_late = step >= self._take_off_step and facts.get("loss_ctc", -math.inf) > bound > 0
        if is_overfitted(train, valid) or (is_late and train and train[-1] < bound):
            if not self._has_warned:
                logger.warning(
                    "step %d: the model over-fits: training loss %.2f, validation loss %.2f (lowest: %.2f); "
                    "add training data or use a smaller model; early_stopping keeps the best checkpoint",
                    *(step, train[-1], valid[-1], min(valid)),
                    extra={"code": "overfitted"},
                )
            self._has_warned = True
        elif is_late:
            self._report_plateau(step, facts)

    def _report_plateau(self, step: int, facts: Mapping[str, float]) -> None:
        """State the loss of CTC and the trend of its blank share; BLANK_SHARE has the rule for a
        warning.
        """
        newest_first = [facts, *reversed(self._progress.validations)]
        shares = [round(validation["blank_share"], 3) for validation in newest_first]
        num_steady = sum(1 for _ in takewhile(lambda pair: pair[0] >= pair[1], pairwise(shares)))
        is_blank, trend, to_do = shares[0] >= BLANK_SHARE, "", ""
        level = logging.WARNING if is_blank and num_steady >= BLANK_VALIDATIONS else logging.INFO
        if len(shares) > 1:
            before = f", {100 * shares[1]:.1f} % at the validation before"
            trend = f"{before}: it {f'does not fall (validations: {num_steady})' if num_steady else 'falls'}"
        if level == logging.WARNING or (num_steady and not is_blank):
            to_do = "; train with a lower optim_conf.lr or longer scheduler_conf.warmup_steps (docs/training.md)"
        elif is_blank:
            to_do = "; a fine-tuned pretrained encoder often stays there for hundreds of steps"
        message = "step %d: CTC has not taken off: its validation loss is %.2f, that of a constant output is %.2f"
        blank = f"{100 * shares[0]:.1f} % of the frames{trend}{to_do}"
        values = (step, facts["loss_ctc"], self._plateau_ctc, blank)
        logger.log(level, f"{message}; blank: %s", *values, extra={"code": "ctc_on_plateau"})

    def sync(self) -> int:
        """Fsync metrics.jsonl. Returns its length in bytes, for the checkpoint."""
        self._metrics.flush()
        os.fsync(self._metrics.fileno())
        return os.fstat(self._metrics.fileno()).st_size

    def _write(self, kind: str, record: Mapping[str, float]) -> None:
        facts = {
            name: value if math.isfinite(value) else None for name, value in record.items()
        }  # JSON has no NaN
        self._metrics.write(json.dumps({"kind": kind, **facts}, allow_nan=False).encode() + b"\n")
        self._metrics.flush()
        for name, value in facts.items():
            if value is not None and value != CONSTANTS.get(name) and name not in X_VALUES:
                self._board.add(f"{board_group(name)}/{name}/{kind}", value, int(record["step"]))
        self._board.flush()


def losses_of(facts: Mapping[str, float]) -> dict[str, float | None]:
    """The losses among the numbers of a step or a validation; None for one that is not finite."""
    losses = {name: value for name, value in facts.items() if name in LOSSES}
    return {name: value if math.isfinite(value) else None for name, value in losses.items()}


def board_group(name: str) -> str:
    """The group of a number in TensorBoard, which sorts groups by name: losses first."""
    if name.startswith("loss") and name != "loss_scale":
        return "loss"
    if name == "blank_share":
        return "model"
    is_cost = name.endswith(("seconds", "_second", "_share", "_mb")) or name == "num_targets"
    return "speed" if is_cost else "model"


class EventFile:
    """An event file of TensorBoard.

    A resumed run adds a file, and TensorBoard hides earlier records from `step` on.

    torch's SummaryWriter writes in a thread: a kill loses what it has not written, a full disk
    gives a traceback, and the processes that load data are forked while it runs. This class writes
    at once, in the calling thread.
    """

    def __init__(self, folder: Path, *, step: int) -> None:
        """`step` is the first that will be written."""
        folder.mkdir(parents=True, exist_ok=True)
        self._records = RecordWriter(
            (folder / f"events.out.tfevents.{time.time_ns()}.{platform.node()}").open("xb")
        )
        self._write(file_version="brain.Event:2")
        self._write(step=step, session_log=SessionLog(status=SessionLog.START))
        self.flush, self.close = self._records.flush, self._records.close

    def add(self, tag: str, value: float, step: int) -> None:
        """Write a number of an optimizer step."""
        self._write(step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))

    def _write(self, **facts: object) -> None:
        self._records.write(Event(wall_time=time.time(), **facts).SerializeToString())


def _losses(facts: Mapping[str, float]) -> str:
    """Losses in nats per target; loss, bits and accuracy of the decoder only if it ran."""
    if "loss_att" not in facts:
        return f"loss {facts['loss']:.3f} | {facts['bits_per_unit']:.2f} bits/unit"
    if math.isnan(facts["bits_per_unit"]):
        return f"loss {facts['loss']:.3f} (ctc {facts['loss_ctc']:.3f})"
    text = f"loss {facts['loss']:.3f} (att {facts['loss_att']:.3f} ctc {facts['loss_ctc']:.3f})"
    return f"{text} | {facts['bits_per_unit']:.2f} bits/unit | acc {100 * facts['accuracy']:.1f} %"


def _open_truncated(path: Path, length: int) -> IO[bytes]:
    """The file, truncated to `length` bytes, open for appending."""
    file = path.open("ab")
    missing = length - os.fstat(file.fileno()).st_size
    if missing > 0:  # truncate() would fill them with zeros
        message = "%s: %d bytes of its earlier part are missing; new records are appended to what is there"
        logger.warning(message, path, missing, extra={"code": "records_missing"})
    else:
        file.truncate(length)
    return file


@contextmanager
def _logging_above_the_bar() -> Iterator[None]:
    """While a bar is shown, rich replaces sys.stderr; log handlers must use the replacement, or
    they break the bar.
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
