# SPDX-License-Identifier: Apache-2.0
"""The tree head's cost along the targets' paths on a CPU: dot products with the vectors on the path and nothing else.

A row climbs from its leaf to the root, so no table of paths is needed. Import this module, and with it numba, only
where a kernel is about to run.

Dimension key: N rows, D width, I inner nodes, V = I+1 units, M decisions on the paths of N targets together,
U inner nodes that are on a path.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from wenet_hs.heads.kernels.numba_math import SUMS, exp_minus, log1p_unit, use_torch_threads
from wenet_hs.heads.kernels.reference import sparse_rows

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_TASKS = 16  # of the weight's gradient: enough to share among cores, and few rows of zeros
_BITS = 11  # a digit of the radix sort: its counters lie in the first cache
_DIGITS = 1 << _BITS


class Climb(NamedTuple):
    """The tree as a leaf sees it."""

    up: NDArray[np.int32]
    """(2V-1,) twice the inner node above a node, plus 1 where it is that node's right child; -1 above the root."""
    depths: NDArray[np.int64]
    """(V,) how many decisions are above each leaf."""


@njit(cache=True, parallel=True, fastmath=SUMS)
def _forward(hidden_ND, weight_ID, bias_I, targets_N, up, depths_V, turn_smoothing):  # type: ignore[no-untyped-def]
    """Costs (N,), where each row's decisions start (N+1,), and of each decision node, row and d cost / d score."""
    num_rows, dim = hidden_ND.shape
    num_inner = len(weight_ID)
    starts = np.empty(num_rows + 1, np.int64)
    starts[0] = 0
    for row in range(num_rows):
        starts[row + 1] = starts[row] + depths_V[targets_N[row]]
    costs = np.empty(num_rows, np.float32)
    nodes, rows = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.int32)
    slopes = np.empty(starts[-1], np.float32)
    for row in prange(num_rows):
        hidden_D = hidden_ND[row]
        cost = _ZERO
        above = up[num_inner + targets_N[row]]
        for place in range(starts[row], starts[row + 1]):
            node = above >> 1
            vector_D = weight_ID[node]
            score = _ZERO
            for d in range(dim):
                score += hidden_D[d] * vector_D[d]
            if len(bias_I):
                score += bias_I[node]
            turn = -_ONE if above & 1 else _ONE
            score *= turn
            small = exp_minus(abs(score))
            wrong = (small if score > _ZERO else _ONE) / (_ONE + small)  # σ(-score)
            cost += log1p_unit(small) - min(score, _ZERO)
            if turn_smoothing:
                cost += turn_smoothing * score
            nodes[place], rows[place] = node, row
            slopes[place] = turn * (turn_smoothing - wrong)
            above = up[node]
        costs[row] = cost
    return costs, starts, nodes, rows, slopes


@njit(cache=True, parallel=True, fastmath=SUMS)
def _hidden_gradient(grad_N, weight_ID, starts, nodes, slopes):  # type: ignore[no-untyped-def]
    num_rows, dim = len(grad_N), weight_ID.shape[1]
    grad_ND = np.empty((num_rows, dim), np.float32)
    for row in prange(num_rows):
        out_D = grad_ND[row]
        for d in range(dim):
            out_D[d] = _ZERO
        for place in range(starts[row], starts[row + 1]):
            slope = grad_N[row] * slopes[place]
            vector_D = weight_ID[nodes[place]]
            for d in range(dim):
                out_D[d] += slope * vector_D[d]
    return grad_ND


@njit(cache=True)
def _by_node(nodes, num_inner):  # type: ignore[no-untyped-def]
    """The decisions in the order of their nodes, first those of the lower rows (M,); where each node's start (U+1,).

    A radix sort: its time does not depend on the number of nodes, as that of one counter a node would.
    """
    num = len(nodes)
    order, other = np.empty(num, np.int32), np.empty(num, np.int32)
    for place in range(num):
        order[place] = place
    counts = np.empty(_DIGITS, np.int64)
    shift = 0
    while num_inner >> shift:
        for digit in range(_DIGITS):
            counts[digit] = 0
        for place in range(num):
            counts[(nodes[place] >> shift) & (_DIGITS - 1)] += 1
        before = 0
        for digit in range(_DIGITS):
            before, counts[digit] = before + counts[digit], before
        for index in range(num):
            digit = (nodes[order[index]] >> shift) & (_DIGITS - 1)
            other[counts[digit]] = order[index]
            counts[digit] += 1
        order, other = other, order
        shift += _BITS
    starts = np.empty(num + 1, np.int64)
    size = 0
    for index in range(num):
        if index == 0 or nodes[order[index]] != nodes[order[index - 1]]:
            starts[size] = index
            size += 1
    starts[size] = num
    return order, starts[: size + 1]


@njit(cache=True, parallel=True, fastmath=SUMS)
def _weight_gradient(hidden_ND, grad_N, decisions, order, starts, places_U, grad_KD, grad_K):  # type: ignore[no-untyped-def]
    """Add each touched node's sum to its row of grad_KD, and to grad_K, the bias's, unless it is empty.

    Each node's sum is made by one thread and in the order of the rows, so its bits depend on no number of threads.
    """
    rows, slopes = decisions
    num_touched, dim = len(places_U), hidden_ND.shape[1]
    share = (len(order) + _TASKS - 1) // _TASKS
    bounds = np.empty(_TASKS + 1, np.int64)  # the nodes of each task: those whose decisions start in its share
    bounds[0] = task = 0
    for index in range(num_touched):
        while starts[index] >= (task + 1) * share:
            task += 1
            bounds[task] = index
    for rest in range(task + 1, _TASKS + 1):
        bounds[rest] = num_touched
    for task in prange(_TASKS):
        for index in range(bounds[task], bounds[task + 1]):
            out_D = grad_KD[places_U[index]]
            total = _ZERO
            for place in range(starts[index], starts[index + 1]):
                row = rows[order[place]]
                slope = grad_N[row] * slopes[order[place]]
                total += slope
                hidden_D = hidden_ND[row]
                for d in range(dim):
                    out_D[d] += slope * hidden_D[d]
            if len(grad_K):
                grad_K[places_U[index]] += total


class _PathCost(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *rest: Any) -> Tensor:
        climb, turn_smoothing, ctx.sparse = rest
        hidden, weight = hidden.contiguous(), weight.contiguous()
        bias_I = np.empty(0, np.float32) if bias is None else bias.contiguous().numpy()
        use_torch_threads()
        costs, *ctx.decisions = _forward(
            hidden.numpy(),
            weight.numpy(),
            bias_I,
            targets.contiguous().numpy(),
            climb.up,
            climb.depths,
            np.float32(turn_smoothing),
        )
        ctx.save_for_backward(hidden, weight)
        return torch.from_numpy(costs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        starts, nodes, rows, slopes = ctx.decisions
        grad_N = grads[0].contiguous().numpy()
        grad_hidden = grad_weight = grad_bias = None
        use_torch_threads()
        if ctx.needs_input_grad[0]:
            grad_hidden = torch.from_numpy(_hidden_gradient(grad_N, weight.numpy(), starts, nodes, slopes))
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            grad_weight, grad_bias = _vector_gradients(ctx, grad_N)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _vector_gradients(ctx: Any, grad_N: NDArray[np.float32]) -> tuple[Tensor | None, Tensor | None]:
    """Of the weight, sparse if wanted, and of the bias, always dense."""
    hidden, weight = ctx.saved_tensors
    _, nodes, rows, slopes = ctx.decisions
    order, starts = _by_node(nodes, len(weight))
    touched_U = nodes[order[starts[:-1]]].astype(np.int64)
    places_U = np.arange(len(touched_U)) if ctx.sparse else touched_U
    # Zeros that no one touches cost nothing: the system hands out their pages when they are first read.
    grad_KD = np.zeros((len(touched_U) if ctx.sparse else len(weight), weight.shape[1]), np.float32)
    grad_K = np.zeros(len(grad_KD) if ctx.needs_input_grad[2] else 0, np.float32)
    _weight_gradient(hidden.numpy(), grad_N, (rows, slopes), order, starts, places_U, grad_KD, grad_K)
    grad_weight, grad_bias = torch.from_numpy(grad_KD), torch.from_numpy(grad_K)
    if ctx.sparse:
        touched = torch.from_numpy(touched_U)
        grad_weight = sparse_rows(touched, grad_weight, weight.shape)
        if ctx.needs_input_grad[2]:
            grad_bias = grad_bias.new_zeros(len(weight)).index_copy_(0, touched, grad_bias)
    return grad_weight if ctx.needs_input_grad[1] else None, grad_bias if ctx.needs_input_grad[2] else None


def path_cost(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *, climb: Climb, turn_smoothing: float,
    sparse: bool,
) -> Tensor:  # fmt: skip
    """-log P of each row's target, plus turn_smoothing times the score of each turn it takes.

    Args:
        hidden: (N, D) float32 on the CPU, as all others. weight: (V-1, D). bias: (V-1,) or none. targets: (N,) int64.
        sparse: whether the weight's gradient is a coalesced sparse tensor of the touched rows; the bias's never is.
    Returns:
        (N,) nats; differentiable once, in hidden, weight and bias, with the same bits on any number of threads.
    """
    cost: Tensor = _PathCost.apply(hidden, weight, bias, targets, climb, turn_smoothing, sparse)  # type: ignore[no-untyped-call]
    return cost
