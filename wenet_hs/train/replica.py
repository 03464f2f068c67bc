# SPDX-License-Identifier: Apache-2.0
"""One model on several ranks: the same weights everywhere, and gradients that are summed once a step."""

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from wenet_hs.data.batching import Batch
from wenet_hs.distributed import World
from wenet_hs.heads.base import OutputHead
from wenet_hs.model import AsrModel, Losses
from wenet_hs.nn.convolution import MaskedBatchNorm


class Replica:
    """The model of this rank. Alone it is the model itself.

    DistributedDataParallel joins the dense gradients. It always looks for parameters that a pass has not used (a branch
    of weight 0, a cluster without a target): and as it then never deals its buckets anew, a resumed run adds up in the
    same order. Sparse gradients are joined here, for it takes those of embeddings alone.
    """

    def __init__(self, model: AsrModel, world: World) -> None:
        self._model, self._world = model, world
        self._parallel: DistributedDataParallel | None = None
        self._sparse: list[nn.Parameter] = []
        if world.size == 1:
            return
        for module in model.modules():
            if isinstance(module, MaskedBatchNorm):
                module.across_ranks = torch.compiler.disable(world.stack)  # type: ignore[no-untyped-call]
        heads = [module for module in model.modules() if isinstance(module, OutputHead)]
        wanted = {id(parameter) for head in heads for parameter in head.sparse_parameters()}
        named = [(name, value) for name, value in model.named_parameters() if id(value) in wanted]
        self._sparse = [value for _, value in named if value.requires_grad]
        for value in self._sparse:
            dist.broadcast(value.data, 0)
        wrapped = _WithUnused(model)
        ignored = [f"model.{name}" for name, _ in named]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(wrapped, ignored)  # type: ignore[no-untyped-call]
        # Of the depthwise kernels: a note on a copy of a few kilobytes.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        self._parallel = DistributedDataParallel(
            wrapped, broadcast_buffers=False, find_unused_parameters=True, gradient_as_bucket_view=True
        )

    def __call__(self, batch: Batch) -> Losses:
        """The losses of this rank's batch."""
        losses: Losses = self._model(batch) if self._parallel is None else self._parallel(batch)
        return losses

    @contextlib.contextmanager
    def pass_of(self, *, is_last: bool) -> Iterator[None]:
        """Around the forward and backward pass of a micro batch; that of the last one sums the gradients of all."""
        joins = self._parallel is None or is_last
        with contextlib.nullcontext() if joins or self._parallel is None else self._parallel.no_sync():
            yield
        if is_last and self._parallel is not None:
            for parameter in self._sparse:
                parameter.grad = self._joined(parameter)

    def loss_divisor(self, num_targets: int) -> float:
        """What a rank divides its loss by, of a step with so many targets on all ranks: they average gradients."""
        return num_targets / self._world.size

    def _joined(self, parameter: nn.Parameter) -> Tensor | None:
        """The mean over the ranks of a gradient of rows, each touched row once; None where no rank has any."""
        grad = parameter.grad
        if not self._world.any(grad is not None):
            return None
        rows = (
            _rows_of(parameter) if grad is None else grad.coalesce() if grad.is_sparse else grad.to_sparse(1).coalesce()
        )
        counts = [int(n) for n in self._world.sum([len(rows.values()) * (r == self._world.rank) for r in self._ranks])]
        numbers_M = rows.indices().new_zeros(max(1, *counts))
        numbers_M[: len(rows.values())] = rows.indices()[0]
        values_MD = rows.values().new_zeros(len(numbers_M), *rows.values().shape[1:])
        values_MD[: len(rows.values())] = rows.values() / self._world.size
        all_numbers = [torch.empty_like(numbers_M) for _ in counts]
        all_values = [torch.empty_like(values_MD) for _ in counts]
        dist.all_gather(all_numbers, numbers_M)
        dist.all_gather(all_values, values_MD)
        chosen_N = torch.cat([part[:count] for part, count in zip(all_numbers, counts, strict=True)])
        chosen_ND = torch.cat([part[:count] for part, count in zip(all_values, counts, strict=True)])
        return torch.sparse_coo_tensor(chosen_N[None], chosen_ND, parameter.shape).coalesce()

    @property
    def _ranks(self) -> range:
        return range(self._world.size)


class _WithUnused(nn.Module):
    """The model beside a parameter that nothing uses: without any, DistributedDataParallel warns of its search."""

    def __init__(self, model: AsrModel) -> None:
        super().__init__()
        self.model = model
        self.unused = nn.Parameter(torch.zeros(1, device=next(model.parameters()).device))

    def forward(self, batch: Batch) -> Losses:
        losses: Losses = self.model(batch)
        return losses


def _rows_of(parameter: nn.Parameter) -> Tensor:
    """No row at all."""
    none = torch.zeros(1, 0, dtype=torch.int64, device=parameter.device)
    return torch.sparse_coo_tensor(none, parameter.new_zeros(0, *parameter.shape[1:]), parameter.shape).coalesce()
