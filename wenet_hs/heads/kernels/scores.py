# SPDX-License-Identifier: Apache-2.0
"""Costs from the scores of a linear layer, whose kernel also gives their derivatives by the scores.

Dimension key: N rows, D width, I scores of a row.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from wenet_hs.heads.gpu import is_gpu
from wenet_hs.heads.products import linear

MAX_SCORES = 2**29
"""Of so many scores (2 GiB) `cost_in_parts` keeps the derivatives for the backward pass; more rows
are computed in parts, whose scores are computed again there.
"""


class _CostOfScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, compute: Any
    ) -> Tensor:
        slopes_NI = linear(hidden, weight, bias).contiguous()
        costs: Tensor = compute(slopes_NI)
        ctx.save_for_backward(hidden, weight, slopes_NI)
        return costs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, slopes_NI = ctx.saved_tensors
        grad_hidden = grad_weight = grad_bias = None
        grad_N = grads[0].to(slopes_NI.dtype)
        if slopes_NI.shape[1] <= hidden.shape[1]:  # of the two, scale the smaller
            slopes_NI, grad_N1 = slopes_NI * grad_N[:, None], None
        else:
            grad_N1 = grad_N[:, None]
        if ctx.needs_input_grad[0]:
            grad_hidden = linear(slopes_NI, weight.t())
            if grad_N1 is not None:
                grad_hidden.mul_(grad_N1)
        if ctx.needs_input_grad[1]:
            scaled_ND = hidden if grad_N1 is None else hidden * grad_N1
            if is_gpu(hidden.device):
                grad_weight = slopes_NI.t() @ scaled_ND
            else:  # oneDNN is faster in this order
                grad_weight = linear(scaled_ND.t(), slopes_NI.t()).t()
        if ctx.needs_input_grad[2]:
            grad_bias = slopes_NI.sum(0) if grad_N1 is None else (grad_N[None] @ slopes_NI)[0]
        return grad_hidden, grad_weight, grad_bias, None


def cost_of_scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, compute: Callable[[Tensor], Tensor]
) -> Tensor:
    """(N,) costs from the scores of all nodes, edges or units; differentiable once in hidden,
    weight and bias.

    Args:
        hidden: (N, D), weight: (I, D), bias: (I,) or none; of one dtype, in which the
            products are computed.
        compute: from the scores (N, I) to the costs (N,), in float32 or that dtype; it replaces
            each score by the derivative of its row's cost.
    """
    cost: Tensor = _CostOfScores.apply(hidden, weight, bias, compute)  # type: ignore[no-untyped-call]
    return cost


def cost_in_parts(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    compute: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """As `cost_of_scores`, with targets (N,) as the second argument of `compute`, within
    MAX_SCORES.
    """

    def cost(hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return cost_of_scores(
            hidden_ND, weight, bias, lambda scores_NI: compute(scores_NI, targets_N)
        )

    num_rows, targets = max(1, MAX_SCORES // len(weight)), targets.contiguous()
    if len(hidden) <= num_rows:
        return cost(hidden, targets)
    parts = zip(hidden.split(num_rows), targets.split(num_rows), strict=True)  # type: ignore[no-untyped-call]
    return torch.cat([checkpoint(cost, *part, use_reentrant=False) for part in parts])
