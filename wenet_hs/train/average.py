# SPDX-License-Identifier: Apache-2.0
"""The mean of several checkpoints' weights as `final.pt`, and beside it `final.json`, which says what it is."""

import hashlib
import io
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from wenet_hs.checkpoint import damage, list_checkpoints, naming_full_disk, read_checkpoint, step_of
from wenet_hs.errors import CheckpointError
from wenet_hs.files import fsync_path, open_atomic, write_atomic
from wenet_hs.train.keep import cost_of
from wenet_hs.train.state import progress_of, saved

logger = logging.getLogger(__name__)


def choose(model_dir: Path, num: int, by: str) -> list[Path]:
    """The `num` checkpoints to average: the newest ones (`last`), or the best ones by what validation measured.

    Args:
        by: `last`, a metric such as `accuracy`, or `cv_loss`, WeNet's name of `loss`.

    Damaged checkpoints are left out with a warning each, and so are, by `last`, those that a signal had written;
    fewer than `num` are all taken, with a warning. Raises CheckpointError if there is none.
    """
    folder = model_dir / "checkpoints"
    candidates = []
    for path in list_checkpoints(folder):
        fault = damage(path)
        if fault is None:
            candidates.append(path)
        else:
            logger.warning("checkpoint %s: %s; not averaged", path, fault)
    if not candidates:
        raise CheckpointError(f"{folder}: no intact checkpoint to average; run `wenet-hs train` first")
    known = {path: progress_of(path) for path in candidates}
    if by == "last":
        candidates = [path for path in candidates if not known[path].interim] or candidates[-1:]
    else:
        costs = {path: cost_of(known[path].measured(), "loss" if by == "cv_loss" else by) for path in candidates}
        measured = [(cost, path) for path, cost in costs.items() if cost is not None]
        candidates = [path for _, path in sorted(measured, reverse=True)]
    if not candidates:
        raise CheckpointError(f"{folder}: no checkpoint whose validation measured {by}; use --by last")
    if len(candidates) < num:
        logger.warning("%s: %d checkpoints to average, %d were asked for", model_dir, len(candidates), num)
    return candidates[-num:]


def average(paths: Sequence[Path]) -> dict[str, torch.Tensor]:
    """The mean of the floating-point weights, summed in float64; integer buffers are those of the last checkpoint.

    Raises CheckpointError if one is damaged, if they are of different models, units, data or settings, or hold values
    that are not finite.
    """
    total: dict[str, torch.Tensor] = {}
    last: dict[str, torch.Tensor] = {}
    first: dict[str, str] = {}
    for path in paths:
        files = read_checkpoint(path)
        first = _of_one_training(first, json.loads(files["state.json"]).get("fingerprint", {}), path, paths[0])
        last = saved(files["model.pt"], path / "model.pt")
        if total and {k: v.shape for k, v in total.items()} != {k: v.shape for k, v in last.items()}:
            raise CheckpointError(f"{path}: is of another model than {paths[0]}; average one model's checkpoints only")
        for name, value in last.items():
            if not torch.isfinite(value).all():
                raise CheckpointError(f"{path}: {name} holds values that are not finite; leave this checkpoint out")
            total[name] = value.double() + total[name] if name in total else value.double()
    return {
        name: (total[name] / len(paths)).to(value.dtype) if value.is_floating_point() else value
        for name, value in last.items()
    }


def _of_one_training(first: dict[str, str], this: dict[str, str], path: Path, first_path: Path) -> dict[str, str]:
    """The first fingerprint, or this one where it is the first. Models of one shape may still be of other units."""
    for name in first:
        if this.get(name) != first[name]:
            raise CheckpointError(
                f"{path}: was trained with another {name} than {first_path}; average one training's checkpoints only"
            )
    return first or this


def write_final(target: Path, weights: dict[str, torch.Tensor], sources: Sequence[Path], *, by: str) -> None:
    """Write `final.pt` atomically, and beside it `final.json`: its SHA-256, the checkpoints and steps it comes from.

    The old `final.json` goes when the new weights are on the disk, and before they take their name: whenever this is
    killed, `final.pt` is a whole one, and the `final.json` beside it, if there is one, its own. Raises CheckpointError
    when the disk is full.
    """
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    content, beside = buffer.getvalue(), target.with_suffix(".json")
    facts = {
        "file": target.name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "by": by,
        "checkpoints": [
            {"name": path.name, "step": step_of(path), "validation": progress_of(path).measured()}
            for path in sorted(sources, key=step_of)
        ],
    }
    with naming_full_disk(target, target.parent / "checkpoints", len(content)):
        with open_atomic(target) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            beside.unlink(missing_ok=True)
            fsync_path(target.parent)
        write_atomic(beside, json.dumps(facts, indent=1) + "\n")
