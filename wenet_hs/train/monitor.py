# SPDX-License-Identifier: Apache-2.0
"""What a person sees of a training: log lines, a progress bar, metrics.jsonl and TensorBoard, with the same facts."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch.utils.tensorboard import SummaryWriter

from wenet_hs.train.loop import StepStats

logger = logging.getLogger(__name__)


class Monitor:
    """Writes the facts of a run. A resumed run goes on at `metrics_bytes` and `step`; what came after is cut."""

    def __init__(self, model_dir: Path, *, step: int, metrics_bytes: int, log_interval: int, total_steps: int) -> None:
        self._metrics = (model_dir / "metrics.jsonl").open("ab")
        self._metrics.truncate(metrics_bytes)
        self._board = SummaryWriter(str(model_dir / "tensorboard"), purge_step=step + 1 if step else None)
        self._log_interval = log_interval
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("step {task.completed}/{task.total} {task.fields[facts]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("train", total=total_steps, completed=step, epoch=0, facts="")
        self._recent: list[StepStats] = []

    def __enter__(self) -> "Monitor":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        self._board.close()
        self._metrics.close()

    def step(self, stats: StepStats) -> None:
        """Take in one optimizer step; every `log_interval` steps it is written out."""
        self._recent.append(stats)
        speed = _speed(self._recent)
        facts = f"loss {stats.loss:.3f} | {speed['audio_seconds_per_second']:.0f} s/s | wait {speed['wait_share']:.0%}"
        self._bar.update(self._task, completed=stats.step, epoch=stats.epoch, facts=facts)
        if stats.step % self._log_interval == 0:
            record = asdict(stats) | speed
            logger.info(
                "step %d | loss %.3f (att %.3f ctc %.3f) | acc %.1f %% | lr %.2e | grad %.2f "
                "| %.0f audio s/s | wait %.0f %%",
                *(record[name] for name in ("step", "loss", "loss_att", "loss_ctc")),
                100 * stats.accuracy,
                *(record[name] for name in ("lr", "grad_norm", "audio_seconds_per_second")),
                100 * speed["wait_share"],
            )
            self._write("train", record)
            self._recent.clear()

    def valid(self, step: int, epoch: int, seconds: float, facts: Mapping[str, float]) -> None:
        """Take in a validation; `seconds` is the training time so far."""
        logger.info(
            "epoch %d | step %d | validation loss %.3f (att %.3f ctc %.3f) | acc %.1f %% | %.0f s of training",
            *(epoch, step, facts["loss"], facts["loss_att"], facts["loss_ctc"], 100 * facts["accuracy"], seconds),
        )
        self._write("valid", {"step": step, "epoch": epoch, "seconds": seconds, **facts})

    def sync(self) -> int:
        """Bring metrics.jsonl onto the disk; returns its length in bytes, for the checkpoint."""
        self._metrics.flush()
        os.fsync(self._metrics.fileno())
        return os.fstat(self._metrics.fileno()).st_size

    def _write(self, kind: str, record: Mapping[str, float]) -> None:
        self._metrics.write(json.dumps({"kind": kind, **record}).encode() + b"\n")
        self._metrics.flush()
        for name, value in record.items():
            if name not in ("step", "epoch"):
                self._board.add_scalar(f"{kind}/{name}", value, int(record["step"]))


def _speed(recent: list[StepStats]) -> dict[str, float]:
    seconds = max(1e-9, sum(stats.seconds for stats in recent))
    return {
        "audio_seconds_per_second": sum(stats.audio_seconds for stats in recent) / seconds,
        "wait_share": sum(stats.wait_seconds for stats in recent) / seconds,
    }
