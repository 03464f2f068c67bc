# SPDX-License-Identifier: Apache-2.0
"""The state of a training, saved to and restored from a checkpoint bit for bit, and the model on
several ranks.
"""

import contextlib
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from wenet_hs.compute.distributed import World
from wenet_hs.data.batching import Batch
from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.gpu import copy_to, is_gpu
from wenet_hs.heads.node_head import sparse_rows
from wenet_hs.model.asr_model import Losses
from wenet_hs.model.checkpoint import (
    FROZEN,
    Content,
    check_intact,
    count_bytes,
    load_dict,
    read_frozen,
    report_full_disk,
    write_hashed,
)
from wenet_hs.nn.conformer import MaskedBatchNorm
from wenet_hs.train.optim import Optimizer, Precision
from wenet_hs.tree.atomic import open_atomic
from wenet_hs.tree.errors import CheckpointError, one_line

logger = logging.getLogger(__name__)
Model = TypeVar("Model", bound=nn.Module)
GATHER_SHARE = 0.5
"""If the ranks together have more than this share of the rows of a sparse gradient, all rows are
summed instead.
"""


class Replica:
    """The recogniser of this rank; with a single process it is the model itself.

    DistributedDataParallel averages the dense gradients. It always searches for parameters that a
    pass has not used (a branch of weight 0, a cluster without a target). It then never rebuilds its
    buckets, so a resumed run sums in the same order. It has no sparse gradients of heads:
    `_mean_over_ranks` averages them.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        self._model, self._world = model, world
        self._parallel: DistributedDataParallel | None = None
        self._sparse: list[nn.Parameter] = []
        if world.size == 1:
            return
        for module in model.modules():
            if isinstance(module, MaskedBatchNorm):
                module.across_ranks = torch.compiler.disable(world.stack)  # type: ignore[no-untyped-call]
        sparse = {
            id(value)
            for head in model.modules()
            if isinstance(head, OutputHead)
            for value in head.sparse_parameters()
        }
        named = [(name, value) for name, value in model.named_parameters() if id(value) in sparse]
        self._sparse = [value for _, value in named if value.requires_grad]
        for value in self._sparse:
            dist.broadcast(value.data, 0)
        wrapped = nn.Sequential(model)
        # Nothing uses it: DistributedDataParallel would warn that it finds no unused parameter.
        wrapped.register_parameter("unused", nn.Parameter(torch.zeros(1, device=world.device)))
        ignored = [f"0.{name}" for name, _ in named]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(wrapped, ignored)  # type: ignore[no-untyped-call]
        # This warning is about a copy of the depthwise kernels, a few kilobytes.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        self._parallel = DistributedDataParallel(
            wrapped,
            broadcast_buffers=False,
            find_unused_parameters=True,
            gradient_as_bucket_view=True,
        )

    def __call__(self, batch: Batch) -> Losses:
        losses: Losses = self._model(batch) if self._parallel is None else self._parallel(batch)
        return losses

    @contextlib.contextmanager
    def micro_batch(self, *, is_last: bool) -> Iterator[None]:
        """Enclose the forward and backward pass of a micro batch; the last one averages the
        gradients of all ranks.
        """
        if self._parallel is None:
            yield
            return
        with contextlib.nullcontext() if is_last else self._parallel.no_sync():
            yield
        if is_last and self._sparse:
            for parameter in self._sparse:
                if parameter.grad is not None:
                    grad = parameter.grad
                    parameter.grad = (grad if grad.is_sparse else grad.to_sparse(1)).coalesce()
            own = [
                -1 if parameter.grad is None else parameter.grad._nnz()
                for parameter in self._sparse
            ]
            of_ranks = np.array(self._world.gather_numbers(own), np.int64)
            for parameter, counts in zip(self._sparse, of_ranks.T.tolist(), strict=True):
                parameter.grad = self._mean_over_ranks(parameter, counts)

    def _mean_over_ranks(self, parameter: nn.Parameter, counts: list[int]) -> Tensor | None:
        """The mean over the ranks of a row-sparse gradient, each row once; None where no rank has a
        gradient.

        counts: the rows of each rank; -1 where it has no gradient.
        """
        grad, own, most = parameter.grad, counts[self._world.rank], max(counts)
        if most < 0:
            return None
        rows_R = torch.zeros(most, dtype=torch.int64, device=parameter.device)
        values_RX = parameter.new_zeros(most, *parameter.shape[1:])
        if grad is not None:
            rows_R[:own], values_RX[:own] = grad.indices()[0], grad.values() / self._world.size
        kept = torch.cat(
            [torch.arange(max(0, count)) + rank * most for rank, count in enumerate(counts)]
        )
        kept = copy_to(parameter.device, kept)
        all_rows = self._world.gather_rows(rows_R)[kept]
        if most * self._world.size >= GATHER_SHARE * len(parameter):
            dense, touched = (
                torch.zeros_like(parameter).index_add_(0, rows_R, values_RX),
                torch.unique(all_rows),
            )
            dist.all_reduce(dense)
            return sparse_rows(touched, dense[touched], parameter.shape)
        all_values = self._world.gather_rows(values_RX)[kept]
        return torch.sparse_coo_tensor(all_rows[None], all_values, parameter.shape).coalesce()


@dataclass
class Progress:
    """The position of a training: plain numbers, stored as JSON."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """The current epoch, from 0."""
    batch: int = 0
    """Batches of that epoch already used, by all ranks together."""
    seconds: float = 0.0
    """Training time so far, over all resumes."""
    warmup_seconds: float = 0.0
    """Training time at the end of the learning rate's warm-up."""
    metrics_bytes: int = 0
    """Length of metrics.jsonl at this point; a resume truncates the file to it."""
    skipped_steps: int = 0
    """Steps skipped because a loss or a gradient was not finite."""
    skipped_in_a_row: int = 0
    """How many of the latest steps were skipped for another cause than the loss scale, over epochs
    and resumes.
    """
    clips_drawn: int = 0
    """Clips drawn from the training list so far, with those that could not be read."""
    bad_clips: int = 0
    """Clips that could not be read; one that is drawn in each epoch counts each time."""
    incomplete_clips: int = 0
    """Clips that lack a little of the length in their header and were used, counted likewise."""
    validations: list[dict[str, float]] = field(default_factory=list)
    """The finite metrics of each validation so far, with its `step`."""
    interim: bool = False
    """Whether this checkpoint was written for a signal, at a step where none was due."""
    validation_due: bool = False
    """Whether a signal interrupted the validation at this step; it is done before the next step."""

    def measured(self) -> dict[str, float]:
        """The metrics of the validation at this step; empty if there was none."""
        last = self.validations[-1] if self.validations else {}
        return last if last.get("step") == self.step else {}


@dataclass
class TrainState(Generic[Model]):
    """Model, optimizer and progress."""

    model: Model
    optimizer: Optimizer
    device: torch.device
    progress: Progress = field(default_factory=Progress)
    fingerprint: dict[str, str] = field(default_factory=dict)
    """SHA-256 of what a resumed run must share, by name: config, unit table, tree, statistics, data
    lists.
    """
    precision: Precision = field(default_factory=lambda: Precision("fp32", torch.device("cpu")))
    world: World = field(default_factory=World)
    """The ranks that train this model together."""
    carried: dict[str, Tensor] = field(default_factory=dict)
    """Other tensors that the next step depends on: the state of a recurrent network."""
    frozen: dict[str, Any] = field(default_factory=dict)
    """Name, size and SHA-256 of the file of the weights that checkpoints leave out; empty while
    they are complete.
    """
    seed: int = 0
    """The seed of the experiment: a rank without a saved random state starts from it."""
    wants_to_stop: Callable[[], bool] = lambda: False
    """Whether this process is asked to end."""
    is_asked_to_stop: bool = False
    """Whether a rank was, at the last step."""
    uncounted_seconds: float = 0.0
    """Of the last step, which `progress.seconds` does not contain yet."""

    @cached_property
    def replica(self) -> Replica:
        """The model as the loop runs it.

        Use it only after the weights of the first step are in the model.
        """
        return Replica(self.model, self.world)

    def _frozen_names(self) -> list[str]:
        values = self.model.state_dict(keep_vars=True).items()
        return [
            name
            for name, value in values
            if isinstance(value, nn.Parameter) and not value.requires_grad
        ]

    def leave_out_frozen(self, folder: Path) -> None:
        """Write the frozen weights, if any, into the folder of the checkpoints, which then leave
        them out.

        They are written once: a resumed run goes on with the file that its checkpoint names.
        """
        weights = self.model.state_dict()
        if not self.frozen and (frozen := {name: weights[name] for name in self._frozen_names()}):
            target = folder / FROZEN
            with report_full_disk(target, folder, count_bytes(frozen)), open_atomic(target) as file:
                self.frozen = {"file": FROZEN, **write_hashed(file, frozen)}

    def checkpoint_bytes(self) -> int:
        """The size of a checkpoint, about: its weights, and Adam's two moments of those that are
        trained.
        """
        frozen, trained = (
            {*self._frozen_names()},
            [one for one in self.model.parameters() if one.requires_grad],
        )
        weights = {
            name: value for name, value in self.model.state_dict().items() if name not in frozen
        }
        return count_bytes(weights) + 2 * count_bytes(trained)

    def to_files(self) -> dict[str, Content]:
        """The files of a checkpoint (name → content) on rank 0, nothing on other ranks.

        Every rank must call it.

        Weights and moments are the tensors themselves: write the files before the next step.
        """
        random_state: dict[str, Any] = {"torch": torch.get_rng_state()}
        if is_gpu(self.device):
            random_state[self.device.type] = torch.get_device_module(self.device).get_rng_state(
                self.device
            )
        first, *others = self.world.all_gather(random_state)
        if not self.world.is_first:
            return {}
        record = {
            "progress": {
                **asdict(self.progress),
                "seconds": self.progress.seconds + self.uncounted_seconds,
            },
            "fingerprint": self.fingerprint,
            "environment": self._environment(),
            "loss_scale": self.precision.state_dict(),
        }
        weights = self.model.state_dict()
        if self.frozen:
            record["frozen"] = self.frozen
            for name in self._frozen_names():
                del weights[name]
        carried = {"carried.pt": self.carried} if self.carried else {}
        return {
            **carried,
            "model.pt": weights,
            "optimizer.pt": self.optimizer.state_dict(),
            "rng.pt": {**first, "ranks": others} if others else first,
            "state.json": json.dumps(record, indent=1).encode(),
        }

    def restore(self, path: Path) -> None:
        """Load the state from the checkpoint folder `path`.

        Raises CheckpointError if it is damaged, does not fit the model, or is of a training with
            other units or data.
        """
        check_intact(path)
        progress = read_checkpoint_progress(path)
        record = json.loads((path / "state.json").read_text("utf-8"))
        for name, sha256 in self.fingerprint.items():
            if record["fingerprint"].get(name) != sha256:
                raise CheckpointError(
                    path,
                    f"was trained with another {name}",
                    "use another --model_dir to start anew",
                )
        self.progress = progress
        try:
            weights = load_dict(path / "model.pt", self.device) | read_frozen(path, self.device)
            self.model.load_state_dict(weights)
            self.frozen = record.get("frozen", {})
            self.optimizer.load_state_dict(
                _intern_names(load_dict(path / "optimizer.pt", self.device))
            )
            self.precision.load_state_dict(record["loss_scale"])
            if (path / "carried.pt").exists():
                self.carried.update(load_dict(path / "carried.pt", self.device))
            self._restore_random(load_dict(path / "rng.pt"), path)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            found = f"does not fit this training ({one_line(error)})"
            raise CheckpointError(
                path, found, "use an earlier checkpoint, or another --model_dir"
            ) from error
        now, saved = self._environment(), record["environment"]
        changes = [
            f"{name} {saved[name]} then, {now[name]} now"
            for name in now
            if saved[name] != now[name]
        ]
        if changes and self.world.is_first:
            logger.warning(
                "%s: %s; the result may differ in its last bits", path, "; ".join(changes)
            )

    def seed_new_rank(self) -> None:
        """Seed torch on a rank without a saved random state, from the seed of the experiment, the
        step and the rank.
        """
        sequence = np.random.SeedSequence([self.seed, self.progress.step, self.world.rank])
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))

    def _restore_random(self, saved: dict[str, Any], path: Path) -> None:
        ranks, rank = [saved, *saved.get("ranks", [])], self.world.rank
        if rank < len(ranks):
            torch.set_rng_state(ranks[rank]["torch"])
            if is_gpu(self.device) and self.device.type in ranks[rank]:
                torch.get_device_module(self.device).set_rng_state(
                    ranks[rank][self.device.type], self.device
                )
        else:
            self.seed_new_rank()
        if len(ranks) != self.world.size and self.world.is_first:
            logger.warning(
                "%s: number of ranks was %d, is now %d: the order of batches is the same, batches per step and random "
                "numbers (of new ranks: from seed, step and rank) are not",
                *(path, len(ranks), self.world.size),
            )

    def _environment(self) -> dict[str, str]:
        """What the last bits of a result depend on, besides code and data."""
        return {
            "torch": torch.__version__,
            "threads": str(torch.get_num_threads()),
            "device": self.device.type,
        }


def _intern_names(value: Any) -> Any:
    """Equal names as one object: a pickle has each object once, and the names of later steps are
    those in torch.
    """
    if isinstance(value, dict):
        return {
            sys.intern(key) if isinstance(key, str) else key: _intern_names(one)
            for key, one in value.items()
        }
    return [*map(_intern_names, value)] if isinstance(value, list) else value


def read_checkpoint_progress(path: Path) -> Progress:
    """The progress stored in a checkpoint folder, without reading the weights.

    Raises CheckpointError.
    """
    try:
        return Progress(**json.loads((path / "state.json").read_text("utf-8"))["progress"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            path, "state.json cannot be read", "use an earlier checkpoint"
        ) from error
