# SPDX-License-Identifier: Apache-2.0
"""Adam where the gradients of some parameters are sparse, holding the rows that a step has touched and no others.

With 267,735 units a dense gradient of the output layer, its norm and Adam's update of every row are most of a step.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_


class AdamBesideSparseAdam:
    """Fused Adam for the dense parameters and SparseAdam for the sparse ones, as one optimizer.

    SparseAdam leaves a row that a step did not touch as it is, its running means included, where Adam would move it on
    by what it remembers. It counts steps for all rows together.
    """

    def __init__(
        self,
        dense: Sequence[nn.Parameter],
        sparse: Sequence[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        checks = torch.sparse.check_sparse_tensor_invariants
        if not checks.is_enabled():  # type: ignore[no-untyped-call]
            # As they are, but said: otherwise torch warns at the first sparse tensor.
            checks.disable()  # type: ignore[no-untyped-call]
        # As a group, which may be empty: all but the sparse parameters may be frozen.
        self._dense = torch.optim.Adam([{"params": list(dense)}], lr=lr, betas=betas, eps=eps, fused=True)
        self._sparse = torch.optim.SparseAdam(sparse, lr=lr, betas=betas, eps=eps)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of both, whose "lr" the schedule sets."""
        return [*self._dense.param_groups, *self._sparse.param_groups]

    def step(self) -> None:
        """Update every dense parameter, and the touched rows of the sparse ones."""
        for group in self._sparse.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad = _in_rows(parameter.grad)
        self._dense.step()
        self._sparse.step()  # type: ignore[no-untyped-call]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        self._dense.zero_grad(set_to_none)
        self._sparse.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The state of both, for a checkpoint."""
        return {"dense": self._dense.state_dict(), "sparse": self._sparse.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the state that `state_dict` gave."""
        self._dense.load_state_dict(state["dense"])
        self._sparse.load_state_dict(state["sparse"])


def clip_gradient(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale all gradients, dense and sparse, so that their norm together is at most `max_norm`.

    Returns the norm before, 0-dim. Sparse gradients are left with each touched row once.
    """
    chosen = [parameter for parameter in parameters if parameter.grad is not None]
    if not any(parameter.grad.is_sparse for parameter in chosen if parameter.grad is not None):
        return clip_grad_norm_(chosen, max_norm)
    values = []
    for parameter in chosen:
        grad = parameter.grad
        if grad is not None and grad.is_sparse:
            grad = parameter.grad = grad.coalesce()
            grad = grad.values()  # they share their memory
        if grad is not None:
            values.append(grad)
    norm = torch.nn.utils.get_total_norm(values)
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for value in values:
        value.mul_(factor)
    return norm


def _in_rows(grad: Tensor) -> Tensor:
    """As SparseAdam takes it: a head may have found a dense gradient cheaper; then the rows that are not all zero."""
    return grad if grad.is_sparse else grad.to_sparse(1)
