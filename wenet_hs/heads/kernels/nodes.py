# SPDX-License-Identifier: Apache-2.0
"""Numba kernels of the tree head that use the scores of all nodes, for float32 on a CPU.

Each is one pass over the product of the hidden states with all node vectors. Import it inside the function that runs a
kernel, because it imports numba.

Dimension key: N rows, D width, I inner nodes, V = I+1 units.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from wenet_hs.heads.kernels.numba_common import SUMS, exp_minus, log1p_unit, use_torch_threads
from wenet_hs.heads.kernels.tree import CostWeights

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_ROWS = 16  # that one thread takes at a time


@njit(cache=True, parallel=True, fastmath=SUMS)
def _costs(z_NI, targets_N, up, depths_V, leaves_2I, weights):  # type: ignore[no-untyped-def]
    """Costs (N,); each score in z_NI becomes the derivative of its row's cost by it."""
    num_rows, num_inner = z_NI.shape
    target, every, turn_smoothing = weights
    costs = np.empty(num_rows, np.float32)
    deepest = 0
    for row in range(num_rows):
        deepest = max(deepest, depths_V[targets_N[row]])
    for block in prange((num_rows + _ROWS - 1) // _ROWS):
        slopes = np.empty(deepest, np.float32)
        for row in range(block * _ROWS, min((block + 1) * _ROWS, num_rows)):
            z_I = z_NI[row]
            path, depth, above = _ZERO, 0, up[num_inner + targets_N[row]]
            while above >= 0:
                turn = -_ONE if above & 1 else _ONE
                score = turn * z_I[above >> 1]
                small = exp_minus(abs(score))
                wrong = (small if score > _ZERO else _ONE) / (_ONE + small)  # σ(-score)
                path += target * (log1p_unit(small) - min(score, _ZERO))
                if turn_smoothing:
                    path += turn_smoothing * score
                slopes[depth] = turn * (turn_smoothing - target * wrong)
                depth, above = depth + 1, up[above >> 1]
            if every:
                total = _ZERO  # of all units' costs: their leaves' counts times the nodes'
                for i in range(num_inner):
                    z = z_I[i]
                    small = exp_minus(abs(z))
                    left, right = np.float32(leaves_2I[0, i]), np.float32(leaves_2I[1, i])
                    both = left + right
                    total += both * log1p_unit(small) + right * max(z, _ZERO) - left * min(z, _ZERO)
                    larger = _ONE / (_ONE + small)
                    z_I[i] = every * (both * (larger if z > _ZERO else small * larger) - left)
                path += every * total
            else:
                for i in range(num_inner):
                    z_I[i] = _ZERO
            costs[row] = path
            depth, above = 0, up[num_inner + targets_N[row]]
            while above >= 0:
                z_I[above >> 1] += slopes[depth]
                depth, above = depth + 1, up[above >> 1]
    return costs


@njit(cache=True, parallel=True, fastmath=SUMS)
def _log_probs(z_NI, children_I2):  # type: ignore[no-untyped-def]
    """(N, V): from the root down each node gives its children its own sum and the cost of the turn."""
    num_rows, num_inner = z_NI.shape
    out_NV = np.empty((num_rows, num_inner + 1), np.float32)
    for block in prange((num_rows + _ROWS - 1) // _ROWS):
        logs_I, sums = np.empty(num_inner, np.float32), np.empty(2 * num_inner + 1, np.float32)
        for row in range(block * _ROWS, min((block + 1) * _ROWS, num_rows)):
            z_I = z_NI[row]
            for i in range(num_inner):
                logs_I[i] = log1p_unit(exp_minus(abs(z_I[i])))
            sums[0] = _ZERO
            for i in range(num_inner):
                own = sums[i] - logs_I[i]
                sums[children_I2[i, 0]] = own + min(z_I[i], _ZERO)
                sums[children_I2[i, 1]] = own - max(z_I[i], _ZERO)
            for unit in range(num_inner + 1):
                out_NV[row, unit] = sums[num_inner + unit]
    return out_NV


@njit(cache=True, parallel=True, fastmath=SUMS)
def _log_probs_gradient(z_NI, grad_NV, children_I2):  # type: ignore[no-untyped-def]
    """From the leaves up: a node's sum is its children's; its score pulls one up and the other down."""
    num_rows, num_inner = z_NI.shape
    grad_NI = np.empty((num_rows, num_inner), np.float32)
    for block in prange((num_rows + _ROWS - 1) // _ROWS):
        sums = np.empty(2 * num_inner + 1, np.float32)
        for row in range(block * _ROWS, min((block + 1) * _ROWS, num_rows)):
            z_I, grad_I = z_NI[row], grad_NI[row]
            for unit in range(num_inner + 1):
                sums[num_inner + unit] = grad_NV[row, unit]
            for i in range(num_inner):
                small = exp_minus(abs(z_I[i]))
                larger = _ONE / (_ONE + small)
                grad_I[i] = larger if z_I[i] > _ZERO else small * larger  # σ(z)
            for i in range(num_inner - 1, -1, -1):
                left, right = sums[children_I2[i, 0]], sums[children_I2[i, 1]]
                sums[i] = left + right
                grad_I[i] = left - grad_I[i] * sums[i]
    return grad_NI


class _CostOfScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, compute: Any) -> Tensor:
        slopes_NI = torch.nn.functional.linear(hidden, weight, bias).contiguous()
        use_torch_threads()
        costs = compute(slopes_NI.numpy())
        ctx.save_for_backward(hidden, weight, slopes_NI)
        return torch.from_numpy(costs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, slopes_NI = ctx.saved_tensors
        grad_hidden = grad_weight = grad_bias = None
        if slopes_NI.shape[1] <= hidden.shape[1]:  # of the two, scale the smaller
            slopes_NI, grad_N1 = slopes_NI * grads[0][:, None], None
        else:
            grad_N1 = grads[0][:, None]
        if ctx.needs_input_grad[0]:
            grad_hidden = slopes_NI @ weight if grad_N1 is None else (slopes_NI @ weight).mul_(grad_N1)
        if ctx.needs_input_grad[1]:
            grad_weight = slopes_NI.T @ (hidden if grad_N1 is None else hidden * grad_N1)
        if ctx.needs_input_grad[2]:
            grad_bias = slopes_NI.sum(0) if grad_N1 is None else grads[0] @ slopes_NI
        return grad_hidden, grad_weight, grad_bias, None


def cost_of_scores(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    compute: Callable[[NDArray[np.float32]], NDArray[np.float32]],
) -> Tensor:
    """(N,) costs from the scores of all nodes or edges; differentiable once in hidden, weight and bias.

    Args:
        hidden: (N, D), weight: (I, D), bias: (I,) or none; float32 on a CPU.
        compute: from the scores (N, I) to the costs (N,); it replaces each score by the derivative of its row's cost.
    """
    cost: Tensor = _CostOfScores.apply(hidden, weight, bias, compute)  # type: ignore[no-untyped-call]
    return cost


def node_cost(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    tables: tuple[Tensor, Tensor, Tensor],
    weights: CostWeights,
) -> Tensor:
    """(N,) nats, weighted by `weights`, from the scores of all nodes; arguments as in `path.path_cost`.

    `tables` are `edges`, `path_lengths` and `leaf_counts` of the head.
    """
    arrays = [tensor.numpy() for tensor in (targets.contiguous(), *tables)]
    numbers = tuple(np.float32(value) for value in weights)
    return cost_of_scores(hidden, weight, bias, lambda z_NI: _costs(z_NI, *arrays, numbers))


class _TreeLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z_NI: Tensor, children: NDArray[np.int32]) -> Tensor:
        z_NI = z_NI.contiguous()
        ctx.save_for_backward(z_NI)
        ctx.children = children
        use_torch_threads()
        return torch.from_numpy(_log_probs(z_NI.numpy(), children))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (z_NI,) = ctx.saved_tensors
        use_torch_threads()
        return torch.from_numpy(_log_probs_gradient(z_NI.numpy(), grads[0].contiguous().numpy(), ctx.children)), None


def tree_log_probs(scores: Tensor, children: Tensor) -> Tensor:
    """All leaves' log-probabilities from the node scores, each the sum from the root down, in O(V) a row.

    Args:
        scores: (N, V-1) float32 on the CPU.
        children: (V-1, 2) int32: as a Tree's, or of any binary tree whose nodes come after their parents.
    Returns:
        (N, V); differentiable once.
    """
    log_probs: Tensor = _TreeLogProbs.apply(scores, children.numpy())  # type: ignore[no-untyped-call]
    return log_probs
