# SPDX-License-Identifier: Apache-2.0
"""The state of a training, saved and restored bit for bit, and the model on several ranks.

Dimension key: R rows of a parameter, X its other dimensions.
"""

import contextlib
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""The share of a parameter's rows up to which the ranks exchange rows of a sparse gradient.

If the ranks together have more rows, exchanging all rows of the parameter is faster.
"""
NO_GRADIENT = -1
"""Number of rows of a sparse gradient on a rank where the parameter has no gradient at all."""


class Replica:
    """The recogniser of this rank; with a single process it is the model itself.

    DistributedDataParallel averages the dense gradients. It always searches for parameters that a
    pass has not used (a branch of weight 0, a cluster without a target). It then never rebuilds its
    buckets, so a resumed run sums in the same order. It does not know row-sparse gradients of
    heads: this class averages them.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        """Prepares the model for several ranks; with a single process nothing is done.

        All ranks get the weights of rank 0, so every rank must call it. Batch normalization then
        uses the statistics of all ranks.
        """
        self._model = model
        self._world = world
        self._parallel: DistributedDataParallel | None = None
        """None with a single process."""
        self._sparse: list[nn.Parameter] = []
        """The trained parameters with row-sparse gradients; empty with a single process."""
        if world.size == 1:
            return
        for module in model.modules():
            if isinstance(module, MaskedBatchNorm):
                # torch's compiler must not compile a collective.
                module.across_ranks = torch.compiler.disable(world.stack)  # type: ignore[no-untyped-call]
        sparse_names = _names_of_sparse_parameters(model)
        sparse_parameters = [model.get_parameter(name) for name in sparse_names]
        self._sparse = [parameter for parameter in sparse_parameters if parameter.requires_grad]
        for parameter in self._sparse:
            dist.broadcast(parameter.data, 0)
        self._parallel = _make_parallel(model, world, ignored_names=sparse_names)

    def __call__(self, batch: Batch) -> Losses:
        """The losses of a batch of this rank."""
        losses: Losses = self._model(batch) if self._parallel is None else self._parallel(batch)
        return losses

    @contextlib.contextmanager
    def micro_batch(self, *, is_last: bool) -> Iterator[None]:
        """Enclose the forward and backward pass of one batch of a step.

        The gradients of the batches of a rank add up. At the last batch (`is_last`) they are
        replaced by the mean over the ranks, which wait for each other.
        """
        if self._parallel is None:
            yield
            return
        with contextlib.nullcontext() if is_last else self._parallel.no_sync():
            yield
        if is_last and self._sparse:
            self._average_sparse_gradients()

    def _average_sparse_gradients(self) -> None:
        """Replace each row-sparse gradient by its mean over the ranks; every rank must call it.

        The ranks first tell each other how many rows each of their gradients has.
        """
        own_counts: list[int] = []
        for parameter in self._sparse:
            if parameter.grad is None:
                own_counts.append(NO_GRADIENT)
                continue
            # A head may return a dense gradient in some steps. (1: only the rows are sparse.)
            grad = parameter.grad if parameter.grad.is_sparse else parameter.grad.to_sparse(1)
            parameter.grad = grad.coalesce()
            own_counts.append(parameter.grad._nnz())
        counts_by_rank = np.array(self._world.gather_numbers(own_counts), np.int64)
        counts_by_parameter = counts_by_rank.T.tolist()
        for parameter, counts in zip(self._sparse, counts_by_parameter, strict=True):
            parameter.grad = self._mean_over_ranks(parameter, counts)

    def _mean_over_ranks(self, parameter: nn.Parameter, counts: list[int]) -> Tensor | None:
        """The mean over the ranks of a row-sparse gradient, with each row once.

        None if no rank has a gradient. Every rank must call it for the same parameter.

        `counts`: the number of rows in the gradient of each rank, or NO_GRADIENT.
        """
        most_rows = max(counts)
        if most_rows == NO_GRADIENT:
            return None
        # A collective needs equal shapes, so each rank pads its rows with zeros to `most_rows`.
        rows_R = torch.zeros(most_rows, dtype=torch.int64, device=parameter.device)
        values_RX = parameter.new_zeros(most_rows, *parameter.shape[1:])
        if parameter.grad is not None:
            num_own_rows = counts[self._world.rank]
            rows_R[:num_own_rows] = parameter.grad.indices()[0]
            values_RX[:num_own_rows] = parameter.grad.values() / self._world.size
        # A collective returns `most_rows` positions per rank: its rows, then its padding. A rank
        # without a gradient (NO_GRADIENT, below 0) has no rows.
        unpadded_by_rank = [
            torch.arange(max(0, count)) + rank * most_rows for rank, count in enumerate(counts)
        ]
        unpadded = copy_to(parameter.device, torch.cat(unpadded_by_rank))
        rows_of_ranks = self._world.gather_rows(rows_R)[unpadded]
        # The sum of all rows of the parameter costs less than the exchange of so many rows.
        if most_rows * self._world.size >= GATHER_SHARE * len(parameter):
            dense = torch.zeros_like(parameter).index_add_(0, rows_R, values_RX)
            dist.all_reduce(dense)
            rows = torch.unique(rows_of_ranks)
            return sparse_rows(rows, dense[rows], parameter.shape)
        values = self._world.gather_rows(values_RX)[unpadded]
        return torch.sparse_coo_tensor(rows_of_ranks[None], values, parameter.shape).coalesce()


def _names_of_sparse_parameters(model: nn.Module) -> list[str]:
    """The names of the head parameters with row-sparse gradients, in the order of the model."""
    ids = set[int]()
    for module in model.modules():
        if isinstance(module, OutputHead):
            ids.update(id(parameter) for parameter in module.sparse_parameters())
    return [name for name, parameter in model.named_parameters() if id(parameter) in ids]


def _make_parallel(
    model: nn.Module, world: World, *, ignored_names: Sequence[str]
) -> DistributedDataParallel:
    """The model in DistributedDataParallel, which leaves out the parameters of these names.

    A warning of torch about the layout of gradients is switched off for the whole process.
    """
    wrapped = nn.Sequential(model)
    # DistributedDataParallel warns if it searches for unused parameters and finds none. This one is
    # never used.
    wrapped.register_parameter("unused", nn.Parameter(torch.zeros(1, device=world.device)))
    ignored = [f"0.{name}" for name in ignored_names]  # 0 is the model in `wrapped`
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(wrapped, ignored)  # type: ignore[no-untyped-call]
    # The warning is about a copy of the depthwise kernels, which are a few kilobytes.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    return DistributedDataParallel(
        wrapped,
        broadcast_buffers=False,  # batch normalization has the same statistics on all ranks
        find_unused_parameters=True,  # then it never rebuilds its buckets: sums have one order
        gradient_as_bucket_view=True,  # no second copy of the gradients in memory
    )


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
    """Whether this checkpoint was written for a signal, at a step where no checkpoint was due."""
    validation_due: bool = False
    """Whether a signal interrupted the validation at this step; it is done before the next step."""

    def metrics_of_step(self) -> dict[str, float]:
        """The metrics of the validation at this step; empty if there was none."""
        if not self.validations or self.validations[-1].get("step") != self.step:
            return {}
        return self.validations[-1]


@dataclass
class TrainState(Generic[Model]):
    """Model, optimizer, progress, and all else that the next step depends on."""

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
    """Whether a rank was asked to end, when the ranks last told each other in a step."""
    uncounted_seconds: float = 0.0
    """The time of the last step on this rank, if `progress.seconds` does not contain it yet."""

    @cached_property
    def replica(self) -> Replica:
        """The model as the training runs it, on one rank or on several.

        It is made at the first use, which must be after the first weights are in the model.
        """
        return Replica(self.model, self.world)

    def _frozen_names(self) -> list[str]:
        """The names of the parameters that are not trained."""
        # Without keep_vars the values would be detached: none would require a gradient.
        values = self.model.state_dict(keep_vars=True)
        parameters = {
            name: value for name, value in values.items() if isinstance(value, nn.Parameter)
        }
        return [name for name, parameter in parameters.items() if not parameter.requires_grad]

    def leave_out_frozen(self, folder: Path) -> None:
        """Write the weights that are not trained to a file, so that checkpoints leave them out.

        The file is in `folder`, in which the checkpoints are. It is recorded in `frozen`. Nothing
        is written if all weights are trained, or if `frozen` has a file already: a resumed run uses
        the file of its checkpoint.
        Raises CheckpointError if the disk is full.
        """
        if self.frozen:
            return
        weights = self.model.state_dict()
        frozen = {name: weights[name] for name in self._frozen_names()}
        if not frozen:
            return
        target = folder / FROZEN
        with report_full_disk(target, folder, count_bytes(frozen)), open_atomic(target) as file:
            self.frozen = {"file": FROZEN, **write_hashed(file, frozen)}

    def checkpoint_bytes(self) -> int:
        """About how many bytes a checkpoint has.

        Counted are the weights in it, and two moments of Adam for each trained weight.
        """
        frozen_names = {*self._frozen_names()}
        weights = self.model.state_dict()
        saved_weights = {name: value for name, value in weights.items() if name not in frozen_names}
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return count_bytes(saved_weights) + 2 * count_bytes(trained)

    def to_files(self) -> dict[str, Content]:
        """The files of a checkpoint, name → content, on rank 0; nothing on other ranks.

        Every rank must call it, because rank 0 saves the random states of all.
        Weights and moments are the tensors themselves: write the files before the next step.
        """
        random_state: dict[str, Any] = {"torch": torch.get_rng_state()}
        if is_gpu(self.device):
            device_module = torch.get_device_module(self.device)
            random_state[self.device.type] = device_module.get_rng_state(self.device)
        first_random_state, *other_random_states = self.world.all_gather(random_state)
        if not self.world.is_first:
            return {}
        progress = asdict(self.progress)
        progress["seconds"] += self.uncounted_seconds  # the next step would have added them
        record = {
            "progress": progress,
            "fingerprint": self.fingerprint,
            "environment": self._environment(),
            "loss_scale": self.precision.state_dict(),
        }
        weights = self.model.state_dict()
        if self.frozen:  # these weights are in a file of their own
            record["frozen"] = self.frozen
            for name in self._frozen_names():
                del weights[name]
        saved_random_state = first_random_state
        if other_random_states:
            saved_random_state = {**first_random_state, "ranks": other_random_states}
        files: dict[str, Content] = {}
        if self.carried:
            files["carried.pt"] = self.carried
        files["model.pt"] = weights
        files["optimizer.pt"] = self.optimizer.state_dict()
        files["rng.pt"] = saved_random_state
        files["state.json"] = json.dumps(record, indent=1).encode()
        return files

    def restore(self, path: Path) -> None:
        """Load the state from the checkpoint folder `path`.

        It restores the progress, the weights, the optimizer, the loss scale and the random state of
        this rank. Rank 0 warns if another version of torch, number of threads or kind of device may
        change the last bits of the results.
        Raises CheckpointError if it is damaged, does not fit the model, or is of a training with
            other settings, units or data.
        """
        check_intact(path)
        progress = read_checkpoint_progress(path)
        record = json.loads((path / "state.json").read_text("utf-8"))
        self._check_fingerprint(record["fingerprint"], path)
        self.progress = progress
        try:
            weights = load_dict(path / "model.pt", self.device) | read_frozen(path, self.device)
            self.model.load_state_dict(weights)
            self.frozen = record.get("frozen", {})
            optimizer_state = load_dict(path / "optimizer.pt", self.device)
            self.optimizer.load_state_dict(_intern_names(optimizer_state))
            self.precision.load_state_dict(record["loss_scale"])
            if (path / "carried.pt").exists():
                self.carried.update(load_dict(path / "carried.pt", self.device))
            self._restore_random(load_dict(path / "rng.pt"), path)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            found = f"does not fit this training ({one_line(error)})"
            to_do = "use an earlier checkpoint, or another --model_dir"
            raise CheckpointError(path, found, to_do) from error
        if self.world.is_first:
            self._warn_of_other_environment(record["environment"], path)

    def _check_fingerprint(self, saved: Mapping[str, str], path: Path) -> None:
        """Raise CheckpointError if the checkpoint `path` is of other settings, units or data.

        `saved`: its fingerprint.
        """
        for name, sha256 in self.fingerprint.items():
            if saved.get(name) != sha256:
                found = f"was trained with another {name}"
                raise CheckpointError(path, found, "use another --model_dir to start anew")

    def _warn_of_other_environment(self, saved: Mapping[str, str], path: Path) -> None:
        """Warn if the environment of the checkpoint `path`, `saved`, is not the one of now."""
        environment = self._environment()
        changes = [
            f"{name} {saved[name]} then, {now} now"
            for name, now in environment.items()
            if saved[name] != now
        ]
        if changes:
            text = "; ".join(changes)
            logger.warning("%s: %s; the result may differ in its last bits", path, text)

    def seed_new_rank(self) -> None:
        """Seed torch on this rank, which has no saved random state.

        The seed depends on that of the experiment, the step and the rank.
        """
        sequence = np.random.SeedSequence([self.seed, self.progress.step, self.world.rank])
        seed_of_rank = sequence.generate_state(1, np.uint64)[0]
        torch.manual_seed(int(seed_of_rank >> 1))  # 63 bits, which fit into an int64

    def _restore_random(self, saved: dict[str, Any], path: Path) -> None:
        """Restore the random state of this rank from `saved`, the rng.pt of the checkpoint `path`.

        A rank that the earlier run did not have is seeded anew. Rank 0 warns if the number of ranks
        is another one.
        """
        state_of_each_rank = [saved, *saved.get("ranks", [])]  # that of rank 0 is at the top level
        if self.world.rank < len(state_of_each_rank):
            own_state = state_of_each_rank[self.world.rank]
            torch.set_rng_state(own_state["torch"])
            if is_gpu(self.device) and self.device.type in own_state:
                device_module = torch.get_device_module(self.device)
                device_module.set_rng_state(own_state[self.device.type], self.device)
        else:
            self.seed_new_rank()
        num_saved = len(state_of_each_rank)
        if num_saved != self.world.size and self.world.is_first:
            message = (
                "%s: number of ranks was %d, is now %d: the order of batches is the same, "
                "batches per step and random numbers "
                "(of new ranks: from seed, step and rank) are not"
            )
            logger.warning(message, path, num_saved, self.world.size)

    def _environment(self) -> dict[str, str]:
        """What the last bits of a result depend on, besides code and data, by name."""
        return {
            "torch": torch.__version__,
            "threads": str(torch.get_num_threads()),
            "device": self.device.type,
        }


def _intern_names(value: Any) -> Any:
    """A copy of nested dicts and lists in which equal keys of type str are one object.

    A pickle writes an object once, and refers to it later. The keys that torch adds in later steps
    are interned too, so the bytes of a checkpoint do not depend on whether the run was resumed.
    """
    if isinstance(value, dict):
        interned: dict[Any, Any] = {}
        for key, inner in value.items():
            key = sys.intern(key) if isinstance(key, str) else key
            interned[key] = _intern_names(inner)
        return interned
    if isinstance(value, list):
        return [_intern_names(inner) for inner in value]
    return value


def read_checkpoint_progress(path: Path) -> Progress:
    """The progress stored in the checkpoint folder `path`, without reading the weights.

    Raises CheckpointError if its state.json is missing or damaged.
    """
    try:
        record = json.loads((path / "state.json").read_text("utf-8"))
        return Progress(**record["progress"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        found = "state.json cannot be read"
        raise CheckpointError(path, found, "use an earlier checkpoint") from error
