# SPDX-License-Identifier: Apache-2.0
"""What depends on validations: checkpoints to keep, early stopping, checkpoints to average."""

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


BYTES_PER_GB = 1e9
UNMEASURED = math.inf
"""The cost of a metric that a validation did not measure, or that was not finite."""


def is_out_of_patience(
    validations: Sequence[Mapping[str, float]], conf: EarlyStoppingConf | None
) -> bool:
    """Whether at least the last `patience` validations brought no improvement by `min_delta`.

    False without `conf`, the section `early_stopping`. It depends only on the recorded validations,
    so a resumed run stops at the same step. A value that was not finite is no improvement.

    `validations`: the metrics of each validation, the oldest first.
    """
    if conf is None:
        return False
    best_cost = UNMEASURED
    num_since_best = 0
    for metrics in validations:
        cost = _cost(metrics, conf.metric)
        if cost < best_cost - conf.min_delta:
            best_cost = cost
            num_since_best = 0
        else:
            num_since_best += 1
    return num_since_best >= conf.patience


def kept_checkpoint_bytes(config: TrainingConfig, checkpoint_bytes: int, num_saves: int) -> int:
    """How many bytes the checkpoints that the config keeps have together, at most.

    Args:
        checkpoint_bytes: the size of one checkpoint.
        num_saves: how many checkpoints the whole training writes.
    """
    num_kept = min(num_saves, config.keep_checkpoints + _num_best_to_keep(config))
    kept_bytes = checkpoint_bytes * num_kept
    if config.keep_checkpoints_gb is None:
        return kept_bytes
    limit_bytes = round(BYTES_PER_GB * config.keep_checkpoints_gb)
    # The newest checkpoint is kept also if it is larger than the limit.
    return min(kept_bytes, max(checkpoint_bytes, limit_bytes))


def _num_best_to_keep(config: TrainingConfig) -> int:
    """How many of the best checkpoints the config keeps, besides the newest ones."""
    return config.keep_checkpoints if config.keep_best is None else config.keep_best


def checkpoints_to_keep(folder: Path, config: TrainingConfig) -> set[Path]:
    """The checkpoints in a folder that the config keeps; all others may be deleted.

    Always kept are the newest one, and with `early_stopping` the best one by its metric, which
    becomes `final.pt`. Then follow the `keep_best` best ones by `keep_best_by`, and the
    `keep_checkpoints` newest ones. With `keep_checkpoints_gb` each of these is kept only if it and
    all before it fit into that space together.

    A checkpoint written for a signal is kept only while it is the newest one: an interrupted run
    ends with the same checkpoints as an uninterrupted one. A checkpoint whose progress cannot be
    read is not among the best.
    """
    progress_of: dict[Path, Progress] = {}  # the oldest checkpoint first
    for path in list_checkpoints(folder):
        try:
            progress_of[path] = read_checkpoint_progress(path)
        except CheckpointError:
            progress_of[path] = Progress()
    always_kept = list(progress_of)[-1:]  # the newest one; empty for an empty folder
    if config.early_stopping is not None:
        always_kept += _sort_by_metric(progress_of, config.early_stopping.metric)[:1]
    best_first = _sort_by_metric(progress_of, config.keep_best_by)
    best = best_first[: _num_best_to_keep(config)]
    newest_first = _without_interim(progress_of)[::-1]
    newest = newest_first[: config.keep_checkpoints]
    # A dict keeps each checkpoint once, at its first place.
    kept = dict.fromkeys([*always_kept, *best, *newest])
    if config.keep_checkpoints_gb is None:
        return set(kept)
    limit_bytes = BYTES_PER_GB * config.keep_checkpoints_gb
    fitting = set(always_kept)  # also if they are larger than the limit
    total_bytes = 0
    for path in kept:
        total_bytes += sum(file.stat().st_size for file in path.iterdir())
        if total_bytes <= limit_bytes:
            fitting.add(path)
    return fitting


def choose_checkpoints(model_dir: Path, num: int, by: str) -> list[Path]:
    """The `num` checkpoints of a model folder to average: the newest ones, or the best ones.

    The newest or best one is the last. Damaged checkpoints are skipped with a warning. If there are
    fewer than `num`, all are chosen, with a warning.

    Args:
        by: `last` for the newest ones, or a metric of the validation, such as `accuracy`, for the
            best ones. `cv_loss` is WeNet's name of `loss`. Of the newest ones, those written for a
            signal are left out, unless there are no others.
    Raises: CheckpointError if there is no such checkpoint.
    """
    folder = model_dir / "checkpoints"
    progress_of: dict[Path, Progress] = {}  # the oldest checkpoint first
    for path in list_checkpoints(folder):
        fault = verification_error(path)
        if fault is None:
            progress_of[path] = read_checkpoint_progress(path)
        else:
            logger.warning("checkpoint %s: %s; not averaged", path, fault)
    if not progress_of:
        raise _no_checkpoint_error(model_dir)
    if by == "last":
        candidates = _without_interim(progress_of) or list(progress_of)[-1:]
    else:
        metric = "loss" if by == "cv_loss" else by
        best_first = _sort_by_metric(progress_of, metric)
        candidates = best_first[::-1]
    if not candidates:
        found = f"no checkpoint whose validation measured {by}"
        raise CheckpointError(folder, found, "use --by last")
    if len(candidates) < num:
        message = "%s: checkpoints to average: %d instead of %d"
        logger.warning(message, model_dir, len(candidates), num)
    return candidates[-num:]


def _no_checkpoint_error(model_dir: Path) -> CheckpointError:
    """The error of a model folder without an intact checkpoint; it may be one of WeNet."""
    if any(model_dir.glob("epoch_*.pt")):
        found = "has checkpoints of WeNet, which are not averaged here"
        return CheckpointError(model_dir, found, "average them by WeNet")
    found = "no intact checkpoint to average"
    return CheckpointError(model_dir / "checkpoints", found, "run `wenet-hs train` first")


def _without_interim(progress_of: Mapping[Path, Progress]) -> list[Path]:
    """The checkpoints in their order, without those that were written for a signal."""
    return [path for path, progress in progress_of.items() if not progress.interim]


def _sort_by_metric(progress_of: Mapping[Path, Progress], metric: str) -> list[Path]:
    """The checkpoints whose validation measured the metric, the best one first."""
    costs = [
        (_cost(progress.metrics_of_step(), metric), path) for path, progress in progress_of.items()
    ]
    return [path for cost, path in sorted(costs) if cost != UNMEASURED]


def _cost(metrics: Mapping[str, float], metric: str) -> float:
    """A number by which validations are compared: the lowest is the best one.

    It is the value of the metric, negated for the accuracy, of which the highest is the best one.
    UNMEASURED if the validation does not have the metric.
    """
    if metric not in metrics:
        return UNMEASURED
    is_higher_better = metric == "accuracy"
    return -metrics[metric] if is_higher_better else metrics[metric]


def average_weights(paths: Sequence[Path]) -> dict[str, torch.Tensor]:
    """The mean of the weights of checkpoints, by name; integers are those of the last checkpoint.

    Weights are summed in float64, in the order of the checkpoints.

    Raises CheckpointError if a checkpoint is damaged, if they are of trainings with other settings,
    units or data, or if weights are not finite.
    """
    totals: dict[str, torch.Tensor] = {}
    weights: dict[str, torch.Tensor] = {}  # of one checkpoint; after the loop of the last one
    frozen: dict[str, torch.Tensor] = {}  # the weights that the checkpoints leave out
    frozen_record = None  # what the checkpoint says of the file with `frozen`
    first_fingerprint: dict[str, str] = {}
    for path in paths:
        check_intact(path)
        record = json.loads((path / "state.json").read_text("utf-8"))
        first_fingerprint = first_fingerprint or record["fingerprint"]
        # Models with weights of equal shapes may still have different units.
        for name, sha256 in first_fingerprint.items():
            if record["fingerprint"].get(name) != sha256:
                found = f"was trained with another {name} than {paths[0]}"
                raise CheckpointError(path, found, "average one training's checkpoints only")
        # Most checkpoints of a training name the same file, which is read only once.
        if record.get("frozen") != frozen_record:
            frozen_record = record["frozen"]
            frozen = read_frozen(path)
        weights = frozen | load_dict(path / "model.pt")
        _check_finite(weights, path)
        for name, value in weights.items():
            as_double = value.double()
            totals[name] = as_double + totals[name] if name in totals else as_double
    averaged: dict[str, torch.Tensor] = {}
    for name, value in weights.items():
        averaged[name] = value
        if value.is_floating_point():
            averaged[name] = (totals[name] / len(paths)).to(value.dtype)
    return averaged


def _check_finite(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Raise CheckpointError if the checkpoint `path` has a weight that is infinite or NaN."""
    for name, value in weights.items():
        if not torch.isfinite(value).all():
            found = f"{name} holds values that are not finite"
            raise CheckpointError(path, found, "leave this checkpoint out")


def read_validations(checkpoints: Sequence[Path]) -> dict[Path, Mapping[str, float]]:
    """The metrics that the validation of each checkpoint measured; empty if it had none."""
    return {path: read_checkpoint_progress(path).metrics_of_step() for path in checkpoints}
