# SPDX-License-Identifier: Apache-2.0
"""The mean of several checkpoints' weights as `final.pt`."""

import io
import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from wenet_hs.errors import CheckpointError
from wenet_hs.files import write_atomic
from wenet_hs.train.checkpoint import damage, list_checkpoints, naming_full_disk, read_checkpoint
from wenet_hs.train.state import progress_of

logger = logging.getLogger(__name__)


def choose(model_dir: Path, num: int, by: str) -> list[Path]:
    """The `num` checkpoints to average: the last ones, or those of lowest validation loss (`cv_loss`).

    Damaged checkpoints are left out with a warning each; fewer than `num` are all taken, with a warning.
    Raises CheckpointError if there is none.
    """
    candidates = []
    for path in list_checkpoints(model_dir / "checkpoints"):
        fault = damage(path)
        if fault is None:
            candidates.append(path)
        else:
            logger.warning("checkpoint %s: %s; not averaged", path, fault)
    if by == "cv_loss":
        losses = {path: progress_of(path).cv_loss for path in candidates}
        candidates = sorted(
            (p for p in candidates if losses[p] is not None), key=lambda p: (losses[p], p), reverse=True
        )
    if not candidates:
        raise CheckpointError(
            f"{model_dir / 'checkpoints'}: no intact checkpoint to average; run `wenet-hs train` first"
        )
    if len(candidates) < num:
        logger.warning("%s: %d checkpoints to average, %d were asked for", model_dir, len(candidates), num)
    return candidates[-num:]


def average(paths: Sequence[Path]) -> dict[str, torch.Tensor]:
    """The mean of the floating-point weights, summed in float64; integer buffers are those of the last checkpoint.

    Raises CheckpointError if the checkpoints are of different models or hold values that are not finite.
    """
    total: dict[str, torch.Tensor] = {}
    last: dict[str, torch.Tensor] = {}
    for path in paths:
        last = torch.load(io.BytesIO(read_checkpoint(path)["model.pt"]), map_location="cpu", weights_only=True)
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


def write_model(path: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write a bare state_dict atomically. Raises CheckpointError when the disk is full."""
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    with naming_full_disk(path, path.parent / "checkpoints", len(buffer.getvalue())):
        write_atomic(path, buffer.getvalue())
