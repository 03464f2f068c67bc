# SPDX-License-Identifier: Apache-2.0
"""Checkpoints chosen by validation metrics: which to keep, when to stop early, and their average as
`final.pt`.
"""

import itertools
import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from wenet_hs.config.optim import EarlyStoppingConf
from wenet_hs.config.schema import TrainingConfig
from wenet_hs.model.checkpoint import (
    check_intact,
    list_checkpoints,
    load_dict,
    read_frozen,
    verification_error,
)
from wenet_hs.train.state import Progress, read_checkpoint_progress
from wenet_hs.tree.errors import CheckpointError

logger = logging.getLogger(__name__)


def _cost(metrics: Mapping[str, float], metric: str) -> float:
    """The metric, negated if higher is better; infinite if it was not measured or not finite."""
    value = metrics.get(metric, math.inf)
    return -value if metric == "accuracy" and value != math.inf else value


def _sorted_by_cost(known: Mapping[Path, Progress], metric: str) -> list[Path]:
    """The checkpoints whose validation measured the metric, the best one first."""
    costs = sorted((_cost(progress.measured(), metric), path) for path, progress in known.items())
    return [path for cost, path in costs if cost != math.inf]


def is_out_of_patience(
    validations: Sequence[Mapping[str, float]], conf: EarlyStoppingConf | None
) -> bool:
    """Whether the last `patience` validations, or more, brought no improvement.

    It depends only on the recorded validations, so a resumed run stops at the same step. A value
    that was not finite is no improvement.
    """
    if conf is None:
        return False
    best, since_best = math.inf, 0
    for metrics in validations:
        cost = _cost(metrics, conf.metric)
        if cost < best - conf.min_delta:
            best, since_best = cost, 0
        else:
            since_best += 1
    return since_best >= conf.patience


def kept_checkpoint_bytes(config: TrainingConfig, checkpoint_bytes: int, num_saves: int) -> int:
    """The size of all checkpoints that the config keeps, at most.

    Args:
        checkpoint_bytes: of one of them.
        num_saves: checkpoints that are written in the whole training.
    """
    num_best = config.keep_checkpoints if config.keep_best is None else config.keep_best
    kept = checkpoint_bytes * min(num_saves, config.keep_checkpoints + num_best)
    if config.keep_checkpoints_gb is None:
        return kept
    limit = round(1e9 * config.keep_checkpoints_gb)
    return min(kept, max(checkpoint_bytes, limit))


def checkpoints_to_keep(folder: Path, config: TrainingConfig) -> set[Path]:
    """The checkpoints that the config keeps: `keep_checkpoints`, `keep_best` by `keep_best_by`, and
    the best one by the metric of `early_stopping`, which becomes `final.pt`; of these what
    `keep_checkpoints_gb` has space for.

    A checkpoint written for a signal is kept only while it is the newest one: an interrupted run
    ends with the same checkpoints as an uninterrupted one. A checkpoint whose progress cannot be
    read is not among the best.
    """
    known: dict[Path, Progress] = {}
    for path in list_checkpoints(folder):
        try:
            known[path] = read_checkpoint_progress(path)
        except CheckpointError:
            known[path] = Progress()
    regular = [path for path, progress in known.items() if not progress.interim]
    num_best = config.keep_checkpoints if config.keep_best is None else config.keep_best
    always = list(known)[-1:]
    if config.early_stopping is not None:
        always += _sorted_by_cost(known, config.early_stopping.metric)[:1]
    best = _sorted_by_cost(known, config.keep_best_by)[:num_best]
    kept = list(dict.fromkeys([*always, *best, *regular[: -config.keep_checkpoints - 1 : -1]]))
    if (limit_gb := config.keep_checkpoints_gb) is None:
        return {*kept}
    totals = itertools.accumulate(
        sum(file.stat().st_size for file in path.iterdir()) for path in kept
    )
    return {
        *always,
        *(path for path, total in zip(kept, totals, strict=True) if total <= 1e9 * limit_gb),
    }


def choose_checkpoints(model_dir: Path, num: int, by: str) -> list[Path]:
    """The `num` checkpoints to average: the newest ones (`last`), or the best ones by a validation
    metric.

    `by`: `last`, a metric such as `accuracy`, or `cv_loss`, WeNet's name of `loss`.

    Damaged checkpoints are skipped with a warning. `last` skips checkpoints written for a signal.
    If there are fewer than `num`, all are chosen, with a warning. Raises CheckpointError if there
    is none.
    """
    folder = model_dir / "checkpoints"
    known: dict[Path, Progress] = {}
    for path in list_checkpoints(folder):
        fault = verification_error(path)
        if fault is None:
            known[path] = read_checkpoint_progress(path)
        else:
            logger.warning("checkpoint %s: %s; not averaged", path, fault)
    if not known and any(model_dir.glob("epoch_*.pt")):
        raise CheckpointError(
            model_dir,
            "has checkpoints of WeNet, which are not averaged here",
            "average them by WeNet",
        )
    if not known:
        raise CheckpointError(
            folder, "no intact checkpoint to average", "run `wenet-hs train` first"
        )
    if by == "last":
        candidates = [path for path, progress in known.items() if not progress.interim] or list(
            known
        )[-1:]
    else:
        candidates = _sorted_by_cost(known, "loss" if by == "cv_loss" else by)[::-1]
    if not candidates:
        raise CheckpointError(
            folder, f"no checkpoint whose validation measured {by}", "use --by last"
        )
    if len(candidates) < num:
        logger.warning(
            "%s: checkpoints to average: %d instead of %d", model_dir, len(candidates), num
        )
    return candidates[-num:]


def average_weights(paths: Sequence[Path]) -> dict[str, torch.Tensor]:
    """The mean of the floating-point weights, summed in float64; integer buffers are those of the
    last checkpoint.

    Raises CheckpointError if a checkpoint is damaged, if they are of trainings with other settings,
    units or data, or if weights are not finite.
    """
    total: dict[str, torch.Tensor] = {}
    last: dict[str, torch.Tensor] = {}
    frozen: dict[str, torch.Tensor] = {}
    fingerprint: dict[str, str] = {}
    frozen_file = None
    for path in paths:
        check_intact(path)
        record = json.loads((path / "state.json").read_text("utf-8"))
        this = record["fingerprint"]
        fingerprint = fingerprint or this
        for name in fingerprint:  # models of equal shapes may still have different units
            if this.get(name) != fingerprint[name]:
                found = f"was trained with another {name} than {paths[0]}"
                raise CheckpointError(path, found, "average one training's checkpoints only")
        if record.get("frozen") != frozen_file:
            frozen_file = record["frozen"]
            frozen = read_frozen(path)
        last = frozen | load_dict(path / "model.pt")
        for name, value in last.items():
            if not torch.isfinite(value).all():
                raise CheckpointError(
                    path, f"{name} holds values that are not finite", "leave this checkpoint out"
                )
            total[name] = value.double() + total[name] if name in total else value.double()
    return {
        name: (total[name] / len(paths)).to(value.dtype) if value.is_floating_point() else value
        for name, value in last.items()
    }


def read_validations(checkpoints: Sequence[Path]) -> dict[Path, Mapping[str, float]]:
    """Each checkpoint with the metrics that its validation measured."""
    return {path: read_checkpoint_progress(path).measured() for path in checkpoints}
