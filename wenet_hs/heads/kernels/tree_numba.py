# SPDX-License-Identifier: Apache-2.0
"""Numba kernels of the tree head's costs and log-probabilities, for float32 on a CPU.

Along the paths: dot products with the vectors on the targets' paths only. A row follows the tree
from its leaf up to the root, so no table of paths is needed. Over all nodes: one pass over the
product with all node vectors.

An edge is a number, as in `HSoftmaxHead.edges`: twice the inner node above it, plus 1 if it leads
to the right child. -1 is the edge to the root. The turn of a decision is +1 to the left and -1 to
the right. With z the score of the node and s = turn · z, the probability of the turn is σ(s) and
its cost is -log σ(s) = log1p(exp(-|s|)) - min(s, 0).

Import it inside the function that runs a kernel, because it imports numba.

Dimension key: N rows, D width, I inner nodes, V = I+1 units, M decisions on the paths of all N
targets, U inner nodes that are on a path, K rows of the weight's gradient: I, or U if it is sparse.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

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

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_TASKS = 16  # into which the weight's gradient is divided, for the threads
_ROWS = 16  # how many rows a thread takes at a time if they need all nodes

# ---- along the paths


class PathDecisions(NamedTuple):
    """The decisions on the paths of all targets: row by row, and from the leaf up within a row."""

    starts: NDArray[np.int64]
    """(N+1,) the first decision of each row, then M."""
    nodes: NDArray[np.int32]
    """(M,) the inner node of each decision."""
    rows: NDArray[np.int32]
    """(M,) the row of each decision."""
    slopes: NDArray[np.float32]
    """(M,) the derivative of the row's cost by the score of the node."""


@njit(parallel=True, fastmath=SUMS)
def _costs_of_paths(hidden_ND, weight_ID, bias_I, targets_N, up, depths_V, per_decision):  # type: ignore[no-untyped-def]
    """The costs (N,), then the arrays of `PathDecisions`.

    Args:
        bias_I: empty if there is none.
        up: (2V-1,) the edge to each node.
        depths_V: the number of decisions on each unit's path.
        per_decision: ε of node smoothing, which adds ε · s to the cost of each decision.
    """
    num_rows, dim = hidden_ND.shape
    num_inner = len(weight_ID)
    starts = np.empty(num_rows + 1, np.int64)
    starts[0] = 0
    for row in range(num_rows):
        starts[row + 1] = starts[row] + depths_V[targets_N[row]]
    costs = np.empty(num_rows, np.float32)
    nodes = np.empty(starts[-1], np.int32)
    rows = np.empty(starts[-1], np.int32)
    slopes = np.empty(starts[-1], np.float32)
    for row in prange(num_rows):
        hidden_D = hidden_ND[row]
        cost = _ZERO
        # The edge to the leaf: twice the node above it, plus 1 if the leaf is its right child.
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
            nodes[index] = node
            rows[index] = row
            slopes[index] = turn * (per_decision - wrong)
            above = up[node]
        costs[row] = cost
    return costs, starts, nodes, rows, slopes


@njit(parallel=True, fastmath=SUMS)
def _hidden_gradient(grad_N, weight_ID, starts, nodes, slopes):  # type: ignore[no-untyped-def]
    """The gradient of hidden (N, D): per row the sum of its nodes' vectors, times their slopes.

    `grad_N` is the gradient of the costs; the others are of `PathDecisions`.
    """
    num_rows = len(grad_N)
    dim = weight_ID.shape[1]
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
    """Sort decisions by their nodes (M,); those of one node keep their order.

    Returns: the indices (M,) of the decisions in the new order, and (U+1,) the start of each node's
        decisions in it, then M.
    """
    # NumPy has a radix sort for 16 bits and none for 32: sort by the lower half, then by the upper.
    order = np.argsort(nodes.astype(np.uint16), kind="stable")
    has_upper_half = num_inner > 1 << 16
    if has_upper_half:
        upper_half = (nodes >> 16).astype(np.uint16)
        order = order[np.argsort(upper_half[order], kind="stable")]
    sorted_nodes = nodes[order]
    is_first = np.ones(len(sorted_nodes), np.bool_)
    is_first[1:] = sorted_nodes[1:] != sorted_nodes[:-1]
    return order, np.append(np.flatnonzero(is_first), len(sorted_nodes))


@njit(parallel=True, fastmath=SUMS)
def _weight_gradient(hidden_ND, grad_N, decisions, order, starts, out_U, grad_KD, grad_K):  # type: ignore[no-untyped-def]
    """Add each touched node's sum to its row of grad_KD, and to grad_K of the bias.

    One thread computes the sum of a node, in the order of the rows: the bits do not depend on the
    number of threads.

    Args:
        grad_N: the gradient of the costs.
        decisions: the rows and the slopes of `PathDecisions`.
        order, starts: of `sort_by_node`.
        out_U: the row of each touched node in grad_KD and grad_K.
        grad_K: empty if the gradient of the bias is not needed.
    """
    rows, slopes = decisions
    num_touched = len(out_U)
    dim = hidden_ND.shape[1]
    # The nodes of a task are those whose decisions start in its share of all decisions.
    share = (len(order) + _TASKS - 1) // _TASKS
    bounds = np.empty(_TASKS + 1, np.int64)
    bounds[0] = 0
    task = 0
    for node in range(num_touched):
        while starts[node] >= (task + 1) * share:
            task += 1
            bounds[task] = node
    # The last task with nodes ends after all nodes; those after it have none.
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
    """`cost_of_paths`; keeps the decisions with the derivatives of the costs by their scores."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        tables: tuple[Tensor, Tensor],
        per_decision: float,
        sparse: bool,
    ) -> Tensor:
        hidden = hidden.contiguous()
        weight = weight.contiguous()
        bias_I = np.empty(0, np.float32) if bias is None else bias.contiguous().numpy()
        targets_N = targets.contiguous().numpy()
        edges, path_lengths = tables
        use_torch_threads()
        costs, *decisions = _costs_of_paths(
            hidden.numpy(),
            weight.numpy(),
            bias_I,
            targets_N,
            edges.numpy(),
            path_lengths.numpy(),
            np.float32(per_decision),
        )
        ctx.decisions = PathDecisions(*decisions)
        ctx.sparse = sparse
        ctx.save_for_backward(hidden, weight)
        return torch.from_numpy(costs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of hidden, weight and bias, as far as they are needed."""
        _, weight = ctx.saved_tensors
        starts, nodes, _, slopes = ctx.decisions
        grad_N = grads[0].contiguous().numpy()
        grad_hidden = grad_weight = grad_bias = None
        use_torch_threads()
        if ctx.needs_input_grad[0]:
            grad_ND = _hidden_gradient(grad_N, weight.numpy(), starts, nodes, slopes)
            grad_hidden = torch.from_numpy(grad_ND)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            grad_weight, grad_bias = _vector_gradients(ctx, grad_N)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _vector_gradients(ctx: Any, grad_N: NDArray[np.float32]) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of weight and bias, each None if it is not needed.

    That of the weight is sparse if `ctx.sparse`; that of the bias is always dense. `ctx` is of
    `_CostOfPaths`, and `grad_N` is the gradient of the costs.
    """
    hidden, weight = ctx.saved_tensors
    _, nodes, rows, slopes = ctx.decisions
    _, needs_weight, needs_bias, *_ = ctx.needs_input_grad
    num_inner, dim = weight.shape
    order, starts = sort_by_node(nodes, num_inner)
    touched_U = nodes[order[starts[:-1]]].astype(np.int64)
    if ctx.sparse:  # only the rows of touched nodes
        num_rows = len(touched_U)
        out_U = np.arange(num_rows)
    else:
        num_rows = num_inner
        out_U = touched_U
    # Zeros of NumPy, because the system clears their pages only when they are touched.
    grad_KD = np.zeros((num_rows, dim), np.float32)
    grad_K = np.zeros(num_rows if needs_bias else 0, np.float32)
    _weight_gradient(hidden.numpy(), grad_N, (rows, slopes), order, starts, out_U, grad_KD, grad_K)
    grad_weight = torch.from_numpy(grad_KD)
    grad_bias = torch.from_numpy(grad_K)
    if ctx.sparse:
        touched = torch.from_numpy(touched_U)
        grad_weight = sparse_rows(touched, grad_weight, weight.shape)
        if needs_bias:
            grad_bias = grad_bias.new_zeros(num_inner).index_copy_(0, touched, grad_bias)
    return grad_weight if needs_weight else None, grad_bias if needs_bias else None


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
    """The cost of each row, from the nodes on its target's path only.

    It is -log P(target), plus `per_decision` times the score of each turn on the path.

    Args:
        hidden: (N, D), weight: (V-1, D), bias: (V-1,) or None; float32 on a CPU.
        targets: (N,) int64 unit ids.
        tables: `edges` and `path_lengths` of the `HSoftmaxHead`.
        per_decision: as in `CostWeights`; 0 without node smoothing.
        sparse: whether the weight's gradient is a coalesced sparse tensor of the rows that are on a
            path. The bias's gradient is always dense.
    Returns: (N,) nats; differentiable once in hidden, weight and bias, with the same bits for any
        number of threads.
    """
    cost: Tensor = _CostOfPaths.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, tables, per_decision, sparse
    )
    return cost


# ---- over all nodes


@njit(parallel=True, fastmath=SUMS)
def _costs_of_all_nodes(z_NI, targets_N, up, depths_V, leaves_2I, weights):  # type: ignore[no-untyped-def]
    """The costs (N,); each score in z_NI becomes the derivative of its row's cost by it.

    Args:
        up: (2V-1,) the edge to each node.
        depths_V: the number of decisions on each unit's path.
        leaves_2I: the number of leaves under the left and the right child of each node.
        weights: a CostWeights.
    """
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
            # The decisions on the path, from the leaf up. Their slopes are kept, because the scores
            # are still needed. An edge is twice the node above it, plus 1 to its right child; -1 is
            # the edge to the root.
            path = _ZERO
            depth = 0
            above = up[num_inner + targets_N[row]]
            while above >= 0:
                turn = -_ONE if above & 1 else _ONE
                score = turn * z_I[above >> 1]
                small = exp_minus(abs(score))
                wrong = (small if score > _ZERO else _ONE) / (_ONE + small)  # σ(-score)
                path += on_target * (log1p_unit(small) - min(score, _ZERO))
                if per_decision:
                    path += per_decision * score
                slopes[depth] = turn * (per_decision - on_target * wrong)
                depth += 1
                above = up[above >> 1]
            # The term of all units: each node counts with the leaves under its children, because so
            # many units turn left and right there. Its cost is -left · log σ(z) - right · log σ(-z),
            # with the derivative (left + right) · σ(z) - left.
            if on_all:
                total = _ZERO
                for i in range(num_inner):
                    z = z_I[i]
                    small = exp_minus(abs(z))
                    left, right = np.float32(leaves_2I[0, i]), np.float32(leaves_2I[1, i])
                    both = left + right
                    total += both * log1p_unit(small) + right * max(z, _ZERO) - left * min(z, _ZERO)
                    larger = _ONE / (_ONE + small)  # σ(|z|)
                    z_I[i] = on_all * (both * (larger if z > _ZERO else small * larger) - left)
                path += on_all * total
            else:
                for i in range(num_inner):
                    z_I[i] = _ZERO
            costs[row] = path
            # The slopes of the path, in the same order as above.
            depth = 0
            above = up[num_inner + targets_N[row]]
            while above >= 0:
                z_I[above >> 1] += slopes[depth]
                depth += 1
                above = up[above >> 1]
    return costs


@njit(parallel=True, fastmath=SUMS)
def _leaf_log_probs(z_NI, children_I2):  # type: ignore[no-untyped-def]
    """The log-probabilities of all leaves (N, V), from the root down.

    The log-probability of a child is that of its parent plus that of the turn. A child comes after
    its parent, so one pass in the order of the nodes is enough.
    """
    num_rows, num_inner = z_NI.shape
    out_NV = np.empty((num_rows, num_inner + 1), np.float32)
    for block in prange((num_rows + _ROWS - 1) // _ROWS):
        logs_I = np.empty(num_inner, np.float32)
        sums = np.empty(2 * num_inner + 1, np.float32)  # of all nodes, inner ones first
        for row in range(block * _ROWS, min((block + 1) * _ROWS, num_rows)):
            z_I = z_NI[row]
            for i in range(num_inner):  # a loop of its own, which the compiler vectorises
                logs_I[i] = log1p_unit(exp_minus(abs(z_I[i])))
            sums[0] = _ZERO
            for i in range(num_inner):
                # log σ(z) = min(z, 0) - log1p(exp(-|z|)), and log σ(-z) has -max(z, 0).
                own = sums[i] - logs_I[i]
                sums[children_I2[i, 0]] = own + min(z_I[i], _ZERO)
                sums[children_I2[i, 1]] = own - max(z_I[i], _ZERO)
            for unit in range(num_inner + 1):
                out_NV[row, unit] = sums[num_inner + unit]
    return out_NV


@njit(parallel=True, fastmath=SUMS)
def _leaf_log_probs_gradient(z_NI, grad_NV, children_I2):  # type: ignore[no-untyped-def]
    """The gradient of the scores (N, I), from that of the leaves' log-probabilities.

    From the leaves up, each node gets the sum of the gradients of the leaves below it. With `left`
    and `right` the sums of its children, the gradient of its score z is left - σ(z)·(left + right).
    """
    num_rows, num_inner = z_NI.shape
    grad_NI = np.empty((num_rows, num_inner), np.float32)
    for block in prange((num_rows + _ROWS - 1) // _ROWS):
        sums = np.empty(2 * num_inner + 1, np.float32)  # of all nodes, inner ones first
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
    """The cost of each row (N,) in nats, from the scores of all nodes; differentiable once.

    The constants of smoothing are not included.

    Args:
        hidden: (N, D), weight: (V-1, D), bias: (V-1,) or None; float32 on a CPU.
        targets: (N,) int64 unit ids.
        tables: `edges`, `path_lengths` and `leaf_counts` of the `HSoftmaxHead`.
        weights: of the terms of the cost.
    """
    targets_N = targets.contiguous().numpy()
    edges, path_lengths, leaf_counts = (table.numpy() for table in tables)
    float32_weights = tuple(np.float32(value) for value in weights)

    def compute(scores_NI: NDArray[np.float32]) -> Any:
        return _costs_of_all_nodes(
            scores_NI, targets_N, edges, path_lengths, leaf_counts, float32_weights
        )

    return cost_of_scores(hidden, weight, bias, on_arrays(compute))


class _TreeLogProbs(torch.autograd.Function):
    """`tree_log_probs`; keeps the scores for the gradient."""

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
        grad_NV = grads[0].contiguous()
        use_torch_threads()
        grad_NI = _leaf_log_probs_gradient(z_NI.numpy(), grad_NV.numpy(), ctx.children)
        return torch.from_numpy(grad_NI), None


def tree_log_probs(scores: Tensor, children: Tensor) -> Tensor:
    """The log-probabilities of all leaves from the scores of all nodes, in O(V) per row.

    Args:
        scores: (N, V-1) float32 on a CPU.
        children: (V-1, 2) int32: as a Tree's, or of any binary tree whose nodes come after their
            parents.
    Returns: (N, V); differentiable once.
    """
    log_probs: Tensor = _TreeLogProbs.apply(scores, children.numpy())  # type: ignore[no-untyped-call]
    return log_probs
