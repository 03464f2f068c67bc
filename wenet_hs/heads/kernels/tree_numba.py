# SPDX-License-Identifier: Apache-2.0
"""Numba kernels of the tree head's costs and log-probabilities, for float32 on a CPU.

Along the paths: dot products with the vectors on the targets' paths only. A row follows the tree
from its leaf up to the root, so no table of paths is needed. Over all nodes: one pass over the
product with all node vectors.

Import it inside the function that runs a kernel, because it imports numba.

Dimension key: N rows, D width, I inner nodes, V = I+1 units, M decisions on the paths of all N
targets, U inner nodes that are on a path, K rows of the weight's gradient: I, or U if it is sparse.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from wenet_hs.heads.kernels.numba_common import (
    SUMS,
    exp_minus,
    log1p_unit,
    on_arrays,
    use_torch_threads,
)
from wenet_hs.heads.kernels.scores import cost_of_scores
from wenet_hs.heads.node_head import CostWeights, sparse_rows
from wenet_hs.tree.compiled import njit, prange

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_TASKS = 16  # of the weight's gradient, shared by the threads
_ROWS = 16  # that one thread takes at a time, of those that need all nodes

# ---- along the paths


@njit(parallel=True, fastmath=SUMS)
def _costs_of_paths(hidden_ND, weight_ID, bias_I, targets_N, up, depths_V, per_decision):  # type: ignore[no-untyped-def]
    """Costs (N,), the start of each row's decisions (N+1,), and node, row, d cost / d score of each
    decision (M,).
    """
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
        for index in range(starts[row], starts[row + 1]):
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
            if per_decision:
                cost += per_decision * score
            nodes[index], rows[index] = node, row
            slopes[index] = turn * (per_decision - wrong)
            above = up[node]
        costs[row] = cost
    return costs, starts, nodes, rows, slopes


@njit(parallel=True, fastmath=SUMS)
def _hidden_gradient(grad_N, weight_ID, starts, nodes, slopes):  # type: ignore[no-untyped-def]
    num_rows, dim = len(grad_N), weight_ID.shape[1]
    grad_ND = np.empty((num_rows, dim), np.float32)
    for row in prange(num_rows):
        out_D = grad_ND[row]
        for d in range(dim):
            out_D[d] = _ZERO
        for index in range(starts[row], starts[row + 1]):
            slope = grad_N[row] * slopes[index]
            vector_D = weight_ID[nodes[index]]
            for d in range(dim):
                out_D[d] += slope * vector_D[d]
    return grad_ND


def sort_by_node(
    nodes: NDArray[np.int32], num_inner: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The decisions (M,) sorted by node, then by row, and the start of each node's decisions
    (U+1,).
    """
    order = np.argsort(
        nodes.astype(np.uint16), kind="stable"
    )  # a radix sort; NumPy has none for 32 bits
    if num_inner > 1 << 16:
        order = order[np.argsort((nodes >> 16).astype(np.uint16)[order], kind="stable")]
    nodes = nodes[order]
    is_first = np.ones(len(nodes), np.bool_)
    is_first[1:] = nodes[1:] != nodes[:-1]
    return order, np.append(np.flatnonzero(is_first), len(nodes))


@njit(parallel=True, fastmath=SUMS)
def _weight_gradient(hidden_ND, grad_N, decisions, order, starts, out_U, grad_KD, grad_K):  # type: ignore[no-untyped-def]
    """Add each touched node's sum to its row of grad_KD, and to the bias's grad_K unless that is
    empty.

    One thread computes the sum of a node, in the order of the rows: the bits do not depend on the
    number of threads.
    """
    rows, slopes = decisions
    num_touched, dim = len(out_U), hidden_ND.shape[1]
    share = (len(order) + _TASKS - 1) // _TASKS
    bounds = np.empty(
        _TASKS + 1, np.int64
    )  # the nodes of each task: those whose decisions start in its share
    bounds[0] = task = 0
    for node in range(num_touched):
        while starts[node] >= (task + 1) * share:
            task += 1
            bounds[task] = node
    for rest in range(task + 1, _TASKS + 1):
        bounds[rest] = num_touched
    for task in prange(_TASKS):
        for node in range(bounds[task], bounds[task + 1]):
            out_D = grad_KD[out_U[node]]
            total = _ZERO
            for index in range(starts[node], starts[node + 1]):
                row = rows[order[index]]
                slope = grad_N[row] * slopes[order[index]]
                total += slope
                hidden_D = hidden_ND[row]
                for d in range(dim):
                    out_D[d] += slope * hidden_D[d]
            if len(grad_K):
                grad_K[out_U[node]] += total


class _CostOfPaths(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *rest: Any
    ) -> Tensor:
        tables, per_decision, ctx.sparse = rest
        hidden, weight = hidden.contiguous(), weight.contiguous()
        bias_I = np.empty(0, np.float32) if bias is None else bias.contiguous().numpy()
        arrays = hidden.numpy(), weight.numpy(), bias_I, targets.contiguous().numpy()
        use_torch_threads()
        costs, *ctx.decisions = _costs_of_paths(
            *arrays, *(table.numpy() for table in tables), np.float32(per_decision)
        )
        ctx.save_for_backward(hidden, weight)
        return torch.from_numpy(costs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        starts, nodes, _, slopes = ctx.decisions
        grad_N = grads[0].contiguous().numpy()
        grad_hidden = grad_weight = grad_bias = None
        use_torch_threads()
        if ctx.needs_input_grad[0]:
            grad_hidden = torch.from_numpy(
                _hidden_gradient(grad_N, weight.numpy(), starts, nodes, slopes)
            )
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            grad_weight, grad_bias = _vector_gradients(ctx, grad_N)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _vector_gradients(ctx: Any, grad_N: NDArray[np.float32]) -> tuple[Tensor | None, Tensor | None]:
    """The gradient of the weight, sparse if wanted, and that of the bias, always dense."""
    hidden, weight = ctx.saved_tensors
    _, nodes, rows, slopes = ctx.decisions
    order, starts = sort_by_node(nodes, len(weight))
    touched_U = nodes[order[starts[:-1]]].astype(np.int64)
    out_U = np.arange(len(touched_U)) if ctx.sparse else touched_U
    # Zeros of NumPy, because the system clears their pages only when they are touched.
    grad_KD = np.zeros((len(touched_U) if ctx.sparse else len(weight), weight.shape[1]), np.float32)
    grad_K = np.zeros(len(grad_KD) if ctx.needs_input_grad[2] else 0, np.float32)
    _weight_gradient(hidden.numpy(), grad_N, (rows, slopes), order, starts, out_U, grad_KD, grad_K)
    grad_weight, grad_bias = torch.from_numpy(grad_KD), torch.from_numpy(grad_K)
    if ctx.sparse:
        touched = torch.from_numpy(touched_U)
        grad_weight = sparse_rows(touched, grad_weight, weight.shape)
        if ctx.needs_input_grad[2]:
            grad_bias = grad_bias.new_zeros(len(weight)).index_copy_(0, touched, grad_bias)
    return grad_weight if ctx.needs_input_grad[1] else None, grad_bias if ctx.needs_input_grad[
        2
    ] else None


def cost_of_paths(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    tables: tuple[Tensor, Tensor],
    per_decision: float,
    *,
    sparse: bool,
) -> Tensor:
    """-log P of each row's target, plus `per_decision` times the score of each turn on its path
    (see CostWeights).

    Args:
        hidden: (N, D), weight: (V-1, D), bias: (V-1,) or none; float32 on a CPU. targets: (N,)
            int64.
        tables: `edges` and `path_lengths` of the head.
        sparse: whether the weight's gradient is a coalesced sparse tensor of the touched rows. The
            bias's never is.
    Returns: (N,) nats; differentiable once in hidden, weight and bias, with the same bits for any
        number of threads.
    """
    rest = targets, tables, per_decision, sparse
    cost: Tensor = _CostOfPaths.apply(hidden, weight, bias, *rest)  # type: ignore[no-untyped-call]
    return cost


# ---- over all nodes


@njit(parallel=True, fastmath=SUMS)
def _costs_of_all_nodes(z_NI, targets_N, up, depths_V, leaves_2I, weights):  # type: ignore[no-untyped-def]
    """Costs (N,); each score in z_NI becomes the derivative of its row's cost by it."""
    num_rows, num_inner = z_NI.shape
    on_target, on_all, per_decision = weights
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
                path += on_target * (log1p_unit(small) - min(score, _ZERO))
                if per_decision:
                    path += per_decision * score
                slopes[depth] = turn * (per_decision - on_target * wrong)
                depth, above = depth + 1, up[above >> 1]
            if on_all:
                total = _ZERO  # of all units' costs: their leaves' counts times the nodes'
                for i in range(num_inner):
                    z = z_I[i]
                    small = exp_minus(abs(z))
                    left, right = np.float32(leaves_2I[0, i]), np.float32(leaves_2I[1, i])
                    both = left + right
                    total += both * log1p_unit(small) + right * max(z, _ZERO) - left * min(z, _ZERO)
                    larger = _ONE / (_ONE + small)
                    z_I[i] = on_all * (both * (larger if z > _ZERO else small * larger) - left)
                path += on_all * total
            else:
                for i in range(num_inner):
                    z_I[i] = _ZERO
            costs[row] = path
            depth, above = 0, up[num_inner + targets_N[row]]
            while above >= 0:
                z_I[above >> 1] += slopes[depth]
                depth, above = depth + 1, up[above >> 1]
    return costs


@njit(parallel=True, fastmath=SUMS)
def _leaf_log_probs(z_NI, children_I2):  # type: ignore[no-untyped-def]
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


@njit(parallel=True, fastmath=SUMS)
def _leaf_log_probs_gradient(z_NI, grad_NV, children_I2):  # type: ignore[no-untyped-def]
    """From the leaves up: a node's sum is its children's; its score pulls one up and the other
    down.
    """
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


def cost_of_all_nodes(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    tables: Iterable[Tensor],
    weights: CostWeights,
) -> Tensor:
    """(N,) nats from the scores of all nodes; arguments as in `cost_of_paths`.

    `tables` are `edges`, `path_lengths` and `leaf_counts` of the head.
    """
    arrays = [tensor.numpy() for tensor in (targets.contiguous(), *tables)]
    numbers = tuple(np.float32(value) for value in weights)
    return cost_of_scores(
        hidden, weight, bias, on_arrays(lambda z_NI: _costs_of_all_nodes(z_NI, *arrays, numbers))
    )


class _TreeLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z_NI: Tensor, children: NDArray[np.int32]) -> Tensor:
        z_NI = z_NI.contiguous()
        ctx.save_for_backward(z_NI)
        ctx.children = children
        use_torch_threads()
        return torch.from_numpy(_leaf_log_probs(z_NI.numpy(), children))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (z_NI,) = ctx.saved_tensors
        use_torch_threads()
        return torch.from_numpy(
            _leaf_log_probs_gradient(z_NI.numpy(), grads[0].contiguous().numpy(), ctx.children)
        ), None


def tree_log_probs(scores: Tensor, children: Tensor) -> Tensor:
    """All leaves' log-probabilities from the node scores, each the sum from the root down, in O(V)
    a row.

    Args:
        scores: (N, V-1) float32 on the CPU.
        children: (V-1, 2) int32: as a Tree's, or of any binary tree whose nodes come after their
            parents.
    Returns: (N, V); differentiable once.
    """
    log_probs: Tensor = _TreeLogProbs.apply(scores, children.numpy())  # type: ignore[no-untyped-call]
    return log_probs
