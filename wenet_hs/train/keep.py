# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints stay on disk: the newest ones, and the best ones by what their validations measured."""

from collections.abc import Mapping
from pathlib import Path

from wenet_hs.checkpoint import list_checkpoints
from wenet_hs.config.schema import ExperimentConfig
from wenet_hs.errors import CheckpointError
from wenet_hs.train.state import Progress, progress_of

HIGHER_IS_BETTER = frozenset({"accuracy"})


def cost_of(facts: Mapping[str, float], metric: str) -> float | None:
    """What a validation says by `metric`, the lowest being the best; None where it was not measured, or not finite."""
    value = facts.get(metric)
    return None if value is None else -value if metric in HIGHER_IS_BETTER else value


def worth_keeping(folder: Path, config: ExperimentConfig) -> set[Path]:
    """The checkpoints that the config keeps: `keep_checkpoints`, `keep_best` by `keep_best_by`, and the best one by
    the metric of `early_stopping`, which is to become `final.pt`.

    One that a signal had written is kept while it is the newest, and then no longer: a run that was interrupted ends
    with the same checkpoints as one that was not. One that cannot be read is not among the best, and no reason to stop.
    """
    known = {path: _progress_or_none(path) for path in list_checkpoints(folder)}
    newest = list(known)[-1:]
    regular = [path for path, progress in known.items() if progress is None or not progress.interim]
    num_best = config.keep_checkpoints if config.keep_best is None else config.keep_best
    kept = {*newest, *regular[-config.keep_checkpoints :], *_best(known, config.keep_best_by, num_best)}
    return kept if config.early_stopping is None else {*kept, *_best(known, config.early_stopping.metric, 1)}


def _best(known: Mapping[Path, Progress | None], metric: str, num: int) -> list[Path]:
    costs = {path: cost_of(progress.measured(), metric) for path, progress in known.items() if progress is not None}
    return [path for _, path in sorted((cost, path) for path, cost in costs.items() if cost is not None)[:num]]


def _progress_or_none(path: Path) -> Progress | None:
    try:
        return progress_of(path)
    except CheckpointError:
        return None
