# SPDX-License-Identifier: Apache-2.0
"""The flat softmax, p = softmax(W·h + b): WeNet's output layer and the baseline of the other heads.

Dimension key: N rows, D width, V units.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from wenet_hs.heads.base import (
    TOPK_MAX_SCORES,
    OutputHead,
    SmoothingKind,
    divergence,
    weighted_cost,
)
from wenet_hs.heads.gpu import is_gpu
from wenet_hs.heads.kernels.triton_launch import can_use_triton
from wenet_hs.heads.products import Linear, linear

MANY_UNITS = 4096
"""From this number of units the loss and its gradient are computed by `_SoftmaxCost`."""
BLOCK_VALUES = 2**20
"""Scores that `_SoftmaxCost` turns into probabilities at a time on a CPU, so that they stay in its
cache.
"""


class SoftmaxHead(OutputHead):
    """Parameters: `output.weight` (V, D), `output.bias` (V,)."""

    def __init__(self, dim: int, num_units: int) -> None:
        super().__init__(dim, num_units)
        self.output = Linear(dim, num_units)

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        weight, bias = (
            parameter.to(hidden_ND.dtype) for parameter in (self.output.weight, self.output.bias)
        )
        return F.log_softmax(linear(hidden_ND, weight, bias), dim=-1)

    def _cross_entropy(
        self, hidden_ND: Tensor, targets_N: Tensor, on_target: float, on_all: float
    ) -> Tensor:
        weight, num_rows = self.output.weight, max(1, TOPK_MAX_SCORES // self.num_units)
        if len(hidden_ND) > num_rows and not self._wants_gradient(hidden_ND):
            pairs = zip(hidden_ND.split(num_rows), targets_N.split(num_rows), strict=True)  # type: ignore[no-untyped-call]
            return torch.cat([self._cross_entropy(*pair, on_target, on_all) for pair in pairs])
        if (
            self.num_units < MANY_UNITS
            or weight.dtype != hidden_ND.dtype
            or not self._wants_gradient(hidden_ND)
        ):
            return weighted_cost(self._log_probs(hidden_ND), targets_N, on_target, on_all)
        given = (hidden_ND, weight, self.output.bias, targets_N, on_target, on_all)
        if can_use_triton(hidden_ND):
            from wenet_hs.heads.kernels.softmax_triton import softmax_cost

            return softmax_cost(*given)
        cost_N: Tensor = _SoftmaxCost.apply(*given)  # type: ignore[no-untyped-call]
        return cost_N

    def loss_and_metrics(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, kind: SmoothingKind = "leaf"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All three results from one distribution; both kinds of smoothing are the same here.

        In training of many units the loss is computed as `loss` does, so that its bits do not
        depend on the metrics.
        """
        if self.num_units >= MANY_UNITS and self._wants_gradient(hidden):
            return super().loss_and_metrics(hidden, targets, smoothing, kind)
        targets_N = self._targets(targets, hidden.shape[:-1])
        log_probs_NV = self.log_probs(hidden).reshape(-1, self.num_units)
        loss_N = divergence(log_probs_NV, targets_N, smoothing)
        fixed_NV = log_probs_NV.detach()
        nll_N, is_best_N = (
            weighted_cost(fixed_NV, targets_N, 1.0, 0.0),
            fixed_NV.argmax(-1) == targets_N,
        )
        return (
            loss_N.reshape(targets.shape),
            nll_N.reshape(targets.shape),
            is_best_N.reshape(targets.shape),
        )


class _SoftmaxCost(torch.autograd.Function):
    """`weighted_cost` of softmax(W·h + b).

    Of all (N, V) values only exp(score - best score) is kept for the gradient.

    The gradient of the cost with respect to the scores is (on_target + on_all·V)·p -
    on_target·1[target] - on_all. Here p = e / Σe is never formed: row factors are applied to
    matrices of width D.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor,
        targets_N: Tensor,
        on_target: float,
        on_all: float,
    ) -> Tensor:
        exp_NV = linear(hidden_ND, weight_VD, bias_V)
        cost_N, sum_N = hidden_ND.new_empty(len(hidden_ND)), hidden_ND.new_empty(len(hidden_ND))
        block = len(hidden_ND) if is_gpu(hidden_ND.device) else BLOCK_VALUES // len(weight_VD)
        parts = (
            torch.split(tensor, max(1, block)) for tensor in (exp_NV, targets_N, cost_N, sum_N)
        )
        for scores, targets, cost, total in zip(*parts, strict=True):
            scores -= scores.amax(-1, keepdim=True)
            torch.mul(scores.gather(-1, targets[:, None])[:, 0], -on_target, out=cost)
            if on_all:
                cost -= on_all * scores.sum(-1)
            torch.sum(scores.exp_(), dim=-1, out=total)
        cost_N += (on_target + on_all * len(weight_VD)) * sum_N.log()
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, exp_NV, sum_N)
        ctx.on_target, ctx.on_all = on_target, on_all
        return cost_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, targets_N, exp_NV, sum_N = ctx.saved_tensors
        scale_N = grad_N * (ctx.on_target + ctx.on_all * len(weight_VD)) / sum_N
        target_N1, all_N1 = ctx.on_target * grad_N[:, None], ctx.on_all * grad_N[:, None]
        hidden_grad = weight_grad = bias_grad = None
        if ctx.needs_input_grad[0]:
            hidden_grad = (
                linear(exp_NV, weight_VD.t()) * scale_N[:, None] - target_N1 * weight_VD[targets_N]
            )
            if ctx.on_all:
                hidden_grad -= all_N1 * weight_VD.sum(0)
        if ctx.needs_input_grad[1]:
            scaled_ND = hidden_ND * scale_N[:, None]
            if torch.get_float32_matmul_precision() == "medium":
                weight_grad = exp_NV.t() @ scaled_ND
            else:
                weight_grad = linear(scaled_ND.t(), exp_NV.t()).t()
            weight_grad.index_add_(0, targets_N, hidden_ND * -target_N1)
            if ctx.on_all:
                weight_grad -= (all_N1 * hidden_ND).sum(0)
        if ctx.needs_input_grad[2]:
            bias_grad = (scale_N[None] @ exp_NV)[0].index_add_(
                0, targets_N, -target_N1[:, 0]
            ) - all_N1.sum()
        return hidden_grad, weight_grad, bias_grad, None, None, None
