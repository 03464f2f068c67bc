# SPDX-License-Identifier: Apache-2.0
"""The model on several ranks: equal weights on every rank, gradients summed over the ranks once per step.

Dimension key: M rows on this rank, N rows of all ranks, D width.
"""

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
    """The model of this rank; with a single process it is the model itself.

    DistributedDataParallel averages the dense gradients. It always searches for parameters that a pass has not used (a
    branch of weight 0, a cluster without a target). It then never rebuilds its buckets, so a resumed run sums in the
    same order. It supports sparse gradients of embeddings only, so `_mean_over_ranks` averages those of heads.
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
        sparse = {
            id(value) for head in model.modules() if isinstance(head, OutputHead) for value in head.sparse_parameters()
        }
        named = [(name, value) for name, value in model.named_parameters() if id(value) in sparse]
        self._sparse = [value for _, value in named if value.requires_grad]
        for value in self._sparse:
            dist.broadcast(value.data, 0)
        wrapped = _WithUnusedParameter(model)
        ignored = [f"model.{name}" for name, _ in named]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(wrapped, ignored)  # type: ignore[no-untyped-call]
        # This warning is about a copy of the depthwise kernels, a few kilobytes.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        self._parallel = DistributedDataParallel(
            wrapped, broadcast_buffers=False, find_unused_parameters=True, gradient_as_bucket_view=True
        )

    def __call__(self, batch: Batch) -> Losses:
        """The losses of this rank's batch."""
        losses: Losses = self._model(batch) if self._parallel is None else self._parallel(batch)
        return losses

    @contextlib.contextmanager
    def micro_batch(self, *, is_last: bool) -> Iterator[None]:
        """Enclose the forward and backward pass of a micro batch; the last one averages the gradients of all ranks."""
        if self._parallel is None:
            yield
            return
        with contextlib.nullcontext() if is_last else self._parallel.no_sync():
            yield
        if is_last:
            for parameter in self._sparse:
                parameter.grad = self._mean_over_ranks(parameter)

    def loss_divisor(self, num_targets: int) -> float:
        """The divisor of the summed loss of a rank, for `num_targets` on all ranks: their gradients are averaged."""
        return num_targets / self._world.size

    def _mean_over_ranks(self, parameter: nn.Parameter) -> Tensor | None:
        """The mean over the ranks of a row-sparse gradient, each row once; None where no rank has a gradient."""
        grad = parameter.grad
        if not self._world.any(grad is not None):
            return None
        if grad is None:
            no_rows = torch.zeros(1, 0, dtype=torch.int64, device=parameter.device)
            grad = torch.sparse_coo_tensor(no_rows, parameter.new_zeros(0, *parameter.shape[1:]), parameter.shape)
        grad = (grad if grad.is_sparse else grad.to_sparse(1)).coalesce()
        counts = self._world.all_gather(len(grad.values()))
        rows_M = grad.indices().new_zeros(max(1, *counts))
        rows_M[: len(grad.values())] = grad.indices()[0]
        values_MD = grad.values().new_zeros(len(rows_M), *parameter.shape[1:])
        values_MD[: len(grad.values())] = grad.values() / self._world.size
        all_rows = [torch.empty_like(rows_M) for _ in counts]
        all_values = [torch.empty_like(values_MD) for _ in counts]
        dist.all_gather(all_rows, rows_M)
        dist.all_gather(all_values, values_MD)
        rows_N = torch.cat([rows[:count] for rows, count in zip(all_rows, counts, strict=True)])
        values_ND = torch.cat([values[:count] for values, count in zip(all_values, counts, strict=True)])
        return torch.sparse_coo_tensor(rows_N[None], values_ND, parameter.shape).coalesce()


class _WithUnusedParameter(nn.Module):
    """The model with a parameter that nothing uses: without any, DistributedDataParallel warns about its search."""

    def __init__(self, model: AsrModel) -> None:
        super().__init__()
        self.model = model
        self.unused = nn.Parameter(torch.zeros(1, device=next(model.parameters()).device))

    def forward(self, batch: Batch) -> Losses:
        losses: Losses = self.model(batch)
        return losses
