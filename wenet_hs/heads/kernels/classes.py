# SPDX-License-Identifier: Apache-2.0
"""Numba kernels of the class head, for float32 on a CPU: log-softmax per node, costs, and the
search for the k best.

Import it inside the function that runs a kernel, because it imports numba.

Dimension key: N rows, D width, V units, I inner nodes, E edges (the children of all nodes), C
children of one node, K best units, M decisions (pairs of a row and a node on its path, node by
node), G groups (all decisions at one node), R decisions of one group, S scores of all decisions
(one per child of the decision's node, decision by decision), T rows of the weight's gradient: E, or
for a sparse gradient the edges of the nodes that have a group.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from wenet_hs.heads.kernels import search_numba as keys
from wenet_hs.heads.kernels.numba_common import SUMS, exp_minus, on_arrays, use_torch_threads
from wenet_hs.heads.kernels.scores import cost_of_scores
from wenet_hs.heads.node_head import CostWeights, sparse_rows
from wenet_hs.tree.compiled import njit, prange
from wenet_hs.tree.tree import NaryTree

MIN_PRODUCT_ROWS, MIN_PRODUCT_SCORES = 6, 4096
"""A node with at least this many rows, and this many scores of all its rows, is computed by matrix
products. For the other nodes the overhead of a product would be larger than its gain.
"""
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_NO_KEY, _NUMBER, _HALF = keys.NO_KEY, keys.NUMBER, keys.HALF


@njit(fastmath=SUMS)
def _max_and_log_sum(scores):  # type: ignore[no-untyped-def]
    """The greatest score, and log Σ exp(score - greatest)."""
    top = scores[0]
    for i in range(1, len(scores)):
        top = max(top, scores[i])
    total = _ZERO
    for i in range(len(scores)):
        total += exp_minus(top - scores[i])
    return top, np.float32(math.log(total))


@njit(parallel=True, fastmath=SUMS)
def _log_softmax(scores_NE, offsets):  # type: ignore[no-untyped-def]
    for row in prange(len(scores_NE)):
        for node in range(len(offsets) - 1):
            scores = scores_NE[row, offsets[node] : offsets[node + 1]]
            top, log_sum = _max_and_log_sum(scores)
            for i in range(len(scores)):
                scores[i] = (scores[i] - top) - log_sum


@njit(parallel=True, fastmath=SUMS)
def _log_softmax_gradient(log_probs_NE, grad_NE, offsets):  # type: ignore[no-untyped-def]
    out_NE = np.empty_like(log_probs_NE)
    for row in prange(len(out_NE)):
        for node in range(len(offsets) - 1):
            start, end = offsets[node], offsets[node + 1]
            total = _ZERO
            for edge in range(start, end):
                total += grad_NE[row, edge]
            for edge in range(start, end):
                out_NE[row, edge] = grad_NE[row, edge] - total * exp_minus(-log_probs_NE[row, edge])
    return out_NE


class _LogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores_NE: Tensor, offsets: NDArray[np.int64]) -> Tensor:
        use_torch_threads()
        _log_softmax(scores_NE.detach().numpy(), offsets)
        ctx.mark_dirty(scores_NE)
        ctx.save_for_backward(scores_NE)
        ctx.offsets = offsets
        return scores_NE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (log_probs_NE,) = ctx.saved_tensors
        use_torch_threads()
        found = _log_softmax_gradient(
            log_probs_NE.numpy(), grads[0].contiguous().numpy(), ctx.offsets
        )
        return torch.from_numpy(found), None


def log_softmax_in_place(scores: Tensor, offsets: Tensor) -> Tensor:
    """Scores (N, E) to log-probabilities of the children given their node (N, E), in place;
    differentiable once.
    """
    log_probs: Tensor = _LogSoftmax.apply(scores, offsets.numpy())  # type: ignore[no-untyped-call]
    return log_probs


@njit(fastmath=SUMS)
def _node_cost(scores, weights):  # type: ignore[no-untyped-def]
    """-Σ weights·log p over the children of one node; the scores become its derivatives."""
    top, log_sum = _max_and_log_sum(scores)
    cost, total = _ZERO, _ZERO
    for i in range(len(scores)):
        cost += weights[i] * (top - scores[i])
        total += weights[i]
    scale = total * np.float32(math.exp(-log_sum))
    for i in range(len(scores)):
        scores[i] = scale * exp_minus(top - scores[i]) - weights[i]
    return cost + total * log_sum


@njit(parallel=True, fastmath=SUMS)
def _costs_of_all_edges(scores_NE, tables, targets_N, weights):  # type: ignore[no-untyped-def]
    """The costs (N,) of `cost_of_all_edges`. The scores become their derivatives."""
    offsets, edge_nodes, node_edges, leaves = tables
    target, every, smoothing = (
        weights  # of CostWeights. The compiler orders sums by these names: others change the last bits
    )
    num_inner, num_edges = len(offsets) - 1, len(leaves)
    costs = np.empty(len(scores_NE), np.float32)
    for row in prange(len(scores_NE)):
        weights_E = np.empty(num_edges, np.float32)
        for edge in range(num_edges):
            weights_E[edge] = every * np.float32(leaves[edge])
        edge = node_edges[num_inner + targets_N[row]]
        while edge >= 0:
            node = edge_nodes[edge]
            other = smoothing / np.float32(offsets[node + 1] - offsets[node] - 1)
            for child in range(offsets[node], offsets[node + 1]):
                weights_E[child] += other
            weights_E[edge] += target - smoothing - other
            edge = node_edges[node]
        cost = 0.0
        for node in range(num_inner):
            start, end = offsets[node], offsets[node + 1]
            cost += _node_cost(scores_NE[row, start:end], weights_E[start:end])
        costs[row] = cost
    return costs


def cost_of_all_edges(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    tables: Iterable[Tensor],
    weights: CostWeights,
) -> Tensor:
    """(N,) nats from the scores of all edges.

    Args:
        hidden, weight, bias: (N, D), (E, D), (E,) float32 on a CPU.
        tables: offsets, edge_nodes, node_edges and leaves of the head.
    """
    arrays, targets_N = tuple(table.numpy() for table in tables), targets.contiguous().numpy()
    numbers = tuple(map(np.float32, weights))
    return cost_of_scores(
        hidden,
        weight,
        bias,
        on_arrays(lambda z_NE: _costs_of_all_edges(z_NE, arrays, targets_N, numbers)),
    )


@njit(parallel=True, fastmath=SUMS)
def _costs_of_decisions(hidden_MD, weight_ED, bias_E, decisions_M5, scores_S, grad_MD, smoothing):  # type: ignore[no-untyped-def]
    """The cost of each decision (M,). Its scores become their derivatives in place.

    Where there is no matrix product, the scores and the derivatives by the row are computed here.

    Args:
        decisions_M5: where the scores start, first edge of the node, number of its edges, choice,
            and whether a matrix product computes the node.
    """
    costs, dim = np.empty(len(decisions_M5), np.float32), hidden_MD.shape[1]
    for index in prange(len(decisions_M5)):
        start, edge, degree, choice, is_product = decisions_M5[index]
        scores, hidden_D, grad_D = (
            scores_S[start : start + degree],
            hidden_MD[index],
            grad_MD[index],
        )
        if not is_product:
            for child in range(degree):
                vector_D = weight_ED[edge + child]
                score = _ZERO
                for d in range(dim):
                    score += hidden_D[d] * vector_D[d]
                scores[child] = score + bias_E[edge + child]
        weights = np.empty(degree, np.float32)
        weights[:] = np.float32(smoothing / (degree - 1))
        weights[choice] = _ONE - smoothing
        costs[index] = _node_cost(scores, weights)
        if not is_product:
            grad_D[:] = _ZERO
            for child in range(degree):
                score_grad, vector_D = scores[child], weight_ED[edge + child]
                for d in range(dim):
                    grad_D[d] += score_grad * vector_D[d]
    return costs


@njit(parallel=True, fastmath=SUMS)
def _vector_gradients(grad_TD, grad_E, scaled_MD, upstream_M, groups_G6, score_grads_S):  # type: ignore[no-untyped-def]
    """Add the gradients of the nodes' vectors to `grad_TD` and those of their biases to `grad_E`,
    which are zeros.

    Args:
        scaled_MD: the hidden states of the decisions, times `upstream_M`.
        upstream_M: the derivative of the loss by the cost of each decision.
        groups_G6: first decision, number of decisions, first edge, number of edges, the first of
            the group's `score_grads_S`, and its first row in `grad_TD`.
        score_grads_S: the derivative of a decision's cost by each of its scores.
    """
    dim = scaled_MD.shape[1]
    for group in prange(len(groups_G6)):
        first, size, edge, degree, start, out = groups_G6[group]
        for child in range(degree):
            grad_D = grad_TD[out + child]
            for index in range(size):
                score_grad, scaled_D = (
                    score_grads_S[start + index * degree + child],
                    scaled_MD[first + index],
                )
                grad_E[edge + child] += score_grad * upstream_M[first + index]
                for d in range(dim):
                    grad_D[d] += score_grad * scaled_D[d]


class _CostOfDecisions(torch.autograd.Function):
    """A matrix product per node with many rows, a kernel for all other nodes.

    The forward pass computes the derivatives by the rows too, while the vectors are in the cache.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_ED: Tensor, bias_E: Tensor, *plan: Any
    ) -> Tensor:
        groups, smoothing, ctx.sparse = plan
        weight_ED, bias_E = weight_ED.contiguous(), bias_E.contiguous()
        ctx.groups, ctx.rows_M, ctx.num_edges = (
            groups,
            torch.from_numpy(groups.rows),
            len(weight_ED),
        )
        hidden_MD = hidden_ND.index_select(0, ctx.rows_M)
        num_scores_G = groups.sizes * groups.degrees
        starts_G = np.cumsum(num_scores_G) - num_scores_G
        score_grads_S, grad_MD = (
            hidden_ND.new_empty(int(num_scores_G.sum())),
            torch.empty_like(hidden_MD),
        )
        is_product_G = (groups.sizes >= MIN_PRODUCT_ROWS) & (num_scores_G >= MIN_PRODUCT_SCORES)
        # The first row of a group in the weight's gradient: its first edge; in a sparse gradient,
        # which has only the edges of the groups, the number of the edges of all groups before.
        outs_G = np.cumsum(groups.degrees) - groups.degrees if ctx.sparse else groups.edges
        ctx.groups_G6 = np.column_stack([*groups[2:], starts_G, outs_G])
        ctx.is_product_G, ctx.score_grads_S, ctx.products = is_product_G, score_grads_S, []
        for first, size, edge, degree, start, out in ctx.groups_G6[is_product_G].tolist():
            decisions, edges, outs = (
                slice(first, first + size),
                slice(edge, edge + degree),
                slice(out, out + degree),
            )
            # It contains the scores until `_costs_of_decisions` replaces them by the derivatives.
            score_grads_RC = score_grads_S[start : start + size * degree].view(size, degree)
            torch.addmm(bias_E[edges], hidden_MD[decisions], weight_ED[edges].T, out=score_grads_RC)
            ctx.products.append((decisions, edges, outs, score_grads_RC))

        costs_N, grad_ND = hidden_ND.new_zeros(len(hidden_ND)), torch.zeros_like(hidden_ND)
        if len(groups.rows):
            group_M = np.repeat(np.arange(len(groups.sizes)), groups.sizes)
            degrees_M = groups.degrees[group_M]
            columns = (
                np.cumsum(degrees_M) - degrees_M,
                groups.edges[group_M],
                degrees_M,
                groups.choices,
            )
            decisions_M5 = np.column_stack([*columns, is_product_G[group_M]])
            use_torch_threads()
            arrays = (tensor.numpy() for tensor in (hidden_MD, weight_ED, bias_E))
            results = score_grads_S.numpy(), grad_MD.numpy()
            costs_M = torch.from_numpy(
                _costs_of_decisions(*arrays, decisions_M5, *results, np.float32(smoothing))
            )
            for decisions, edges, _, score_grads_RC in ctx.products:
                torch.mm(score_grads_RC, weight_ED[edges], out=grad_MD[decisions])
            costs_N.index_add_(0, ctx.rows_M, costs_M)
            grad_ND.index_add_(0, ctx.rows_M, grad_MD)
        ctx.save_for_backward(hidden_MD, grad_ND)
        return costs_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_MD, grad_ND = ctx.saved_tensors
        grad_hidden = grads[0][:, None] * grad_ND if ctx.needs_input_grad[0] else None
        if not any(ctx.needs_input_grad[1:3]):
            return grad_hidden, None, None, None, None, None
        num_rows = int(ctx.groups.degrees.sum()) if ctx.sparse else ctx.num_edges
        # np.zeros, because torch.zeros writes all of the memory here. For np.zeros the operating
        # system clears a page when it is first used.
        grad_TD = torch.from_numpy(np.zeros((num_rows, hidden_MD.size(1)), np.float32))
        grad_E = torch.from_numpy(np.zeros(ctx.num_edges, np.float32))
        upstream_M = grads[0].index_select(0, ctx.rows_M)
        scaled_MD = upstream_M[:, None] * hidden_MD
        for decisions, edges, outs, score_grads_RC in ctx.products:
            torch.mm(score_grads_RC.T, scaled_MD[decisions], out=grad_TD[outs])
            torch.mv(score_grads_RC.T, upstream_M[decisions], out=grad_E[edges])
        use_torch_threads()
        arrays = (tensor.numpy() for tensor in (grad_TD, grad_E, scaled_MD, upstream_M))
        _vector_gradients(*arrays, ctx.groups_G6[~ctx.is_product_G], ctx.score_grads_S.numpy())
        if ctx.sparse:
            ranges = zip(ctx.groups.edges.tolist(), ctx.groups.degrees.tolist(), strict=True)
            edges = [np.arange(edge, edge + degree) for edge, degree in ranges]
            edges_T = torch.from_numpy(np.concatenate([np.empty(0, np.int64), *edges]))
            grad_TD = sparse_rows(edges_T, grad_TD, torch.Size((ctx.num_edges, hidden_MD.size(1))))
        return grad_hidden, grad_TD, grad_E, None, None, None


def cost_of_decisions(
    hidden: Tensor, weight: Tensor, bias: Tensor, groups: Any, smoothing: float, sparse: bool
) -> Tensor:
    """The cross-entropies of the decisions on each row's path, added up, from the nodes on the
    paths only.

    Args:
        hidden, weight, bias: (N, D), (E, D), (E,) float32 on a CPU.
        groups: the `DecisionGroups` of the targets.
        smoothing: ε; at each node the right child has 1-ε, the other children share ε.
        sparse: whether the weight's gradient is a sparse tensor of the edges of the nodes on the
            paths.
    Returns: (N,) nats; differentiable once.
    """
    cost: Tensor = _CostOfDecisions.apply(hidden, weight, bias, groups, smoothing, sparse)  # type: ignore[no-untyped-call]
    return cost


@njit
def _search_class_row(hidden_D, edges, root_C, best_K, budget):  # type: ignore[no-untyped-def]
    """Fill `best_K` with sorted keys. False if the row was given up."""
    weight_ED, bias_E, offsets, children, max_degree = edges
    num_inner, last, opened, size = len(offsets) - 1, len(best_K) - 1, 0, 1
    heap, scratch = np.empty(num_inner, np.int64), np.empty(max_degree, np.float32)
    best_K[:] = _NO_KEY
    heap[0] = 0
    # A node of the same cost as the last leaf is opened too: it may hold an equal leaf of a lower
    # id.
    while size and heap[0] >> _HALF <= best_K[last] >> _HALF:
        here = heap[0]
        size -= 1
        keys.replace_first(heap, size, heap[size])
        node = here & _NUMBER
        start, degree = offsets[node], offsets[node + 1] - offsets[node]
        scores = root_C
        if node > 0:
            opened += degree
            if opened > budget:
                return False
            scores = scratch[:degree]
            for child in range(degree):
                scores[child] = (
                    keys.dot_product(hidden_D, weight_ED[start + child]) + bias_E[start + child]
                )
        top, log_sum = _max_and_log_sum(scores)
        if log_sum != log_sum:
            return False
        for child in range(degree):
            key = keys.make_key(
                keys.cost_of(here) + (log_sum - (scores[child] - top)), children[start + child]
            )
            if key & _NUMBER >= num_inner:
                keys.keep_best(best_K, key)
            elif key >> _HALF <= best_K[last] >> _HALF:
                keys.push(heap, size, key)
                size += 1
    return True


@njit(parallel=True)
def _search_class_rows(hidden_ND, edges, root_NC, found, budget):  # type: ignore[no-untyped-def]
    """Returns how many rows were given up."""
    values_NK, ids_NK, is_done_N = found
    given_up = 0
    for row in prange(len(hidden_ND)):
        is_done_N[row] = _search_class_row(hidden_ND[row], edges, root_NC[row], ids_NK[row], budget)
        keys.decode_keys(ids_NK[row], values_NK[row], len(edges[2]) - 1)
        given_up += not is_done_N[row]
    return given_up


def best_units(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    root_scores: Tensor,
    *,
    tree: NaryTree,
    k: int,
    budget: int,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Best-first search for the k most probable units; a node's log-probability is a bound for its
    leaves.

    Args:
        hidden, weight, bias: (N, D), (E, D), (E,) float32 on a CPU, contiguous, without gradient.
        root_scores: (N, C) of the root's children.
        budget: a row that needs the scores of more edges than this is given up, as is a row with a
            NaN.
    Returns: log-probabilities (N, K), unit ids (N, K) int64, and the rows given up or None, whose
        results have no meaning.
    """
    use_torch_threads()
    shape = len(hidden), k
    found = np.empty(shape, np.float32), np.empty(shape, np.int64), np.empty(len(hidden), np.bool_)
    max_degree = int(np.diff(tree.offsets).max())
    edges = weight.numpy(), bias.numpy(), tree.offsets, tree.children, max_degree
    given_up = _search_class_rows(hidden.numpy(), edges, root_scores.numpy(), found, budget)
    values_NK, ids_NK, is_done_N = (torch.from_numpy(array) for array in found)
    return values_NK, ids_NK, (~is_done_N).nonzero()[:, 0] if given_up else None
