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
    OutputHead,
    SmoothingKind,
    divergence,
    metrics_of_log_probs,
    weighted_cost,
)
from wenet_hs.heads.gpu import is_gpu
from wenet_hs.heads.kernels.triton_launch import can_use_triton
from wenet_hs.heads.products import Linear, linear

MANY_UNITS = 4096
"""From this number of units on, a training computes the loss by `_SoftmaxCost`.

On a GPU with Triton a kernel computes it.
"""
BLOCK_VALUES = 2**20
"""How many scores `_SoftmaxCost` turns into probabilities at a time on a CPU.

They then stay in the cache of the CPU.
"""


class SoftmaxHead(OutputHead):
    """A linear layer and a softmax over all units.

    Parameters: `output.weight` (V, D), `output.bias` (V,).
    """

    def __init__(self, dim: int, num_units: int) -> None:
        super().__init__(dim, num_units)
        self.output = Linear(dim, num_units)

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) → (N, V) natural logarithms, in the dtype of hidden."""
        weight_VD = self.output.weight.to(hidden_ND.dtype)
        bias_V = self.output.bias.to(hidden_ND.dtype)
        return F.log_softmax(linear(hidden_ND, weight_VD, bias_V), dim=-1)

    def _cross_entropy(
        self, hidden_ND: Tensor, targets_N: Tensor, on_target: float, on_all: float
    ) -> Tensor:
        """(N,) nats: without gradients in parts of the rows, with gradients by the fastest way.

        That is PyTorch's softmax for few units or half-precision weights, a Triton kernel on a GPU,
        and `_SoftmaxCost` otherwise.
        """
        if not self._wants_gradient(hidden_ND):
            return self._cost_in_parts(hidden_ND, targets_N, on_target, on_all)
        weight_VD = self.output.weight
        bias_V = self.output.bias
        if self.num_units < MANY_UNITS or weight_VD.dtype != hidden_ND.dtype:
            return weighted_cost(self._log_probs(hidden_ND), targets_N, on_target, on_all)
        if can_use_triton(hidden_ND):
            from wenet_hs.heads.kernels.softmax_triton import softmax_cost

            return softmax_cost(hidden_ND, weight_VD, bias_V, targets_N, on_target, on_all)
        cost_N: Tensor = _SoftmaxCost.apply(  # type: ignore[no-untyped-call]
            hidden_ND, weight_VD, bias_V, targets_N, on_target, on_all
        )
        return cost_N

    def _cost_in_parts(
        self, hidden_ND: Tensor, targets_N: Tensor, on_target: float, on_all: float
    ) -> Tensor:
        """`_cross_entropy` without gradients; many rows are computed in parts, to save memory."""
        max_rows = self._max_rows()
        if len(hidden_ND) <= max_rows:
            return weighted_cost(self._log_probs(hidden_ND), targets_N, on_target, on_all)
        costs = []
        parts = zip(torch.split(hidden_ND, max_rows), torch.split(targets_N, max_rows), strict=True)
        for part_ND, part_targets_N in parts:
            log_probs_NV = self._log_probs(part_ND)
            costs.append(weighted_cost(log_probs_NV, part_targets_N, on_target, on_all))
        return torch.cat(costs)

    def loss_and_metrics(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, kind: SmoothingKind = "leaf"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All three results from one distribution; both kinds of smoothing are the same here.

        In a training with many units the loss is computed by `loss` instead. Its bits then do not
        depend on whether metrics are computed.
        """
        if self.num_units >= MANY_UNITS and self._wants_gradient(hidden):
            return super().loss_and_metrics(hidden, targets, smoothing, kind)
        targets_N = self._flatten_targets(targets, hidden.shape[:-1])
        log_probs_NV = self.log_probs(hidden).reshape(-1, self.num_units)
        loss_N = divergence(log_probs_NV, targets_N, smoothing)
        nll_N, is_best_N = metrics_of_log_probs(log_probs_NV.detach(), targets_N)
        shape = targets.shape
        return loss_N.reshape(shape), nll_N.reshape(shape), is_best_N.reshape(shape)


class _SoftmaxCost(torch.autograd.Function):
    """`weighted_cost` of softmax(W·h + b), which keeps one (N, V) matrix for the gradient.

    The matrix is e = exp(score - best score of the row). The derivative of the cost by the scores
    is (on_target + on_all·V)·p - on_target·1[target] - on_all, with p = e / Σe. The matrix p is
    never computed: the factors of the rows are applied to matrices of width D.
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
        """The costs (N,); keeps e and its sums in `ctx`."""
        exp_NV = linear(hidden_ND, weight_VD, bias_V)  # contains the scores until the loop ends
        cost_N = hidden_ND.new_empty(len(hidden_ND))
        sum_N = hidden_ND.new_empty(len(hidden_ND))
        if is_gpu(hidden_ND.device):  # all rows at once: a GPU would be idle between blocks
            rows_per_block = max(1, len(hidden_ND))
        else:
            rows_per_block = max(1, BLOCK_VALUES // len(weight_VD))
        tensors = (exp_NV, targets_N, cost_N, sum_N)
        blocks_of_tensors = [torch.split(tensor, rows_per_block) for tensor in tensors]
        blocks = zip(*blocks_of_tensors, strict=True)
        for scores, targets, cost, total in blocks:  # views, filled in place
            scores -= scores.amax(-1, keepdim=True)
            torch.mul(scores.gather(-1, targets[:, None])[:, 0], -on_target, out=cost)
            if on_all:
                cost -= on_all * scores.sum(-1)
            torch.sum(scores.exp_(), dim=-1, out=total)
        cost_N += (on_target + on_all * len(weight_VD)) * sum_N.log()
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, exp_NV, sum_N)
        ctx.on_target = on_target
        ctx.on_all = on_all
        return cost_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of hidden, weight and bias, as far as they are needed.

        Each has three terms: of p at all units, of the target, and of `on_all` at all units.
        """
        hidden_ND, weight_VD, targets_N, exp_NV, sum_N = ctx.saved_tensors
        scale_N = grad_N * (ctx.on_target + ctx.on_all * len(weight_VD)) / sum_N  # the factor of e
        target_N1 = ctx.on_target * grad_N[:, None]
        all_N1 = ctx.on_all * grad_N[:, None]
        hidden_grad = weight_grad = bias_grad = None
        if ctx.needs_input_grad[0]:
            of_probs_ND = linear(exp_NV, weight_VD.t()) * scale_N[:, None]
            hidden_grad = of_probs_ND - target_N1 * weight_VD[targets_N]
            if ctx.on_all:
                hidden_grad -= all_N1 * weight_VD.sum(0)
        if ctx.needs_input_grad[1]:
            scaled_ND = hidden_ND * scale_N[:, None]
            if torch.get_float32_matmul_precision() == "medium":
                weight_grad = exp_NV.t() @ scaled_ND
            else:  # oneDNN is faster in this order
                weight_grad = linear(scaled_ND.t(), exp_NV.t()).t()
            weight_grad.index_add_(0, targets_N, hidden_ND * -target_N1)
            if ctx.on_all:
                weight_grad -= (all_N1 * hidden_ND).sum(0)
        if ctx.needs_input_grad[2]:
            bias_grad = (scale_N[None] @ exp_NV)[0]
            bias_grad.index_add_(0, targets_N, -target_N1[:, 0])
            bias_grad = bias_grad - all_N1.sum()
        return hidden_grad, weight_grad, bias_grad, None, None, None
