# SPDX-License-Identifier: Apache-2.0
"""Costs computed by a kernel from the scores of a linear layer, with the gradients of the layer.

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
"""For at most this many scores (2 GiB) `cost_in_parts` keeps derivatives for the backward pass.

More rows are computed in parts, whose scores are computed again in the backward pass.
"""


def cost_of_scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, compute: Callable[[Tensor], Tensor]
) -> Tensor:
    """The costs (N,) that `compute` makes of the scores of a linear layer.

    The scores are of all nodes, edges or units. The costs are differentiable once in hidden, weight
    and bias.

    Args:
        hidden: (N, D), weight: (I, D), bias: (I,) or None; of one dtype, in which the products are
            computed.
        compute: from the scores (N, I) to the costs (N,), in float32 or that dtype. It replaces
            each score, in place, by the derivative of its row's cost by that score.
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
    """As `cost_of_scores`, for at most MAX_SCORES scores at a time.

    `compute` has the targets (N,) of the same rows as its second argument.
    """

    def cost_of_part(hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return cost_of_scores(
            hidden_ND, weight, bias, lambda scores_NI: compute(scores_NI, targets_N)
        )

    targets = targets.contiguous()
    max_rows = max(1, MAX_SCORES // len(weight))  # a part has at least one row
    if len(hidden) <= max_rows:
        return cost_of_part(hidden, targets)
    costs = []
    parts = zip(torch.split(hidden, max_rows), torch.split(targets, max_rows), strict=True)
    for part_ND, part_targets_N in parts:
        cost_N = checkpoint(cost_of_part, part_ND, part_targets_N, use_reentrant=False)
        costs.append(cost_N)
    return torch.cat(costs)


class _CostOfScores(torch.autograd.Function):
    """`cost_of_scores`; keeps the derivatives of the costs by the scores."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, compute: Any
    ) -> Tensor:
        scores_NI = linear(hidden, weight, bias).contiguous()
        costs: Tensor = compute(scores_NI)
        slopes_NI = scores_NI  # `compute` has replaced the scores by the derivatives
        ctx.save_for_backward(hidden, weight, slopes_NI)
        return costs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of hidden, weight and bias, as far as they are needed.

        All are products with the derivatives, whose rows are scaled by the gradients of the costs.
        The smaller matrix is scaled: the derivatives (N, I), or hidden and its gradient (N, D).
        """
        hidden, weight, slopes_NI = ctx.saved_tensors
        grad_hidden = grad_weight = grad_bias = None
        grad_N = grads[0].to(slopes_NI.dtype)
        are_slopes_scaled = slopes_NI.shape[1] <= hidden.shape[1]
        if are_slopes_scaled:
            slopes_NI = slopes_NI * grad_N[:, None]
        if ctx.needs_input_grad[0]:
            grad_hidden = linear(slopes_NI, weight.t())
            if not are_slopes_scaled:
                grad_hidden.mul_(grad_N[:, None])
        if ctx.needs_input_grad[1]:
            scaled_ND = hidden if are_slopes_scaled else hidden * grad_N[:, None]
            if is_gpu(hidden.device):
                grad_weight = slopes_NI.t() @ scaled_ND
            else:  # oneDNN is faster in this order
                grad_weight = linear(scaled_ND.t(), slopes_NI.t()).t()
        if ctx.needs_input_grad[2]:
            if are_slopes_scaled:
                grad_bias = slopes_NI.sum(0)
            else:
                grad_bias = (grad_N[None] @ slopes_NI)[0]
        return grad_hidden, grad_weight, grad_bias, None
