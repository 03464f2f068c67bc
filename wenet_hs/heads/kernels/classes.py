# SPDX-License-Identifier: Apache-2.0
"""Numba kernels of the class head, for float32 on a CPU.

They compute the log-softmax of each node, the costs of targets, and the search for the k best.

Import it inside the function that runs a kernel, because it imports numba.

Dimension key: N rows, D width, V units, I inner nodes, E edges (the children of all nodes), C
children of one node, K best units, M decisions (pairs of a row and a node on its path, node by
node), G groups (all decisions at one node), R decisions of one group, S scores of all decisions
(one per child of the decision's node, decision by decision), T rows of the weight's gradient: E, or
for a sparse gradient the edges of the nodes that have a group.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from wenet_hs.heads.decisions import DecisionGroups
from wenet_hs.heads.kernels.numba_common import SUMS, exp_minus, on_arrays, use_torch_threads
from wenet_hs.heads.kernels.scores import cost_of_scores
from wenet_hs.heads.kernels.search_numba import (
    HALF,
    NO_KEY,
    NUMBER,
    cost_of,
    decode_keys,
    dot_product,
    keep_best,
    make_key,
    push,
    replace_first,
)
from wenet_hs.heads.kernels.search_result import SearchResult
from wenet_hs.heads.node_head import CostWeights, sparse_rows
from wenet_hs.tree.compiled import njit, prange
from wenet_hs.tree.tree import NaryTree

MIN_PRODUCT_ROWS = 6
"""A node with fewer rows is not computed by matrix products, whose overhead would be too large."""
MIN_PRODUCT_SCORES = 4096
"""The same for a node with fewer scores in all its rows."""

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)

# ---- log-softmax per node


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
    """Replace the scores of the edges by log-probabilities of the children given their node."""
    for row in prange(len(scores_NE)):
        for node in range(len(offsets) - 1):
            scores = scores_NE[row, offsets[node] : offsets[node + 1]]
            top, log_sum = _max_and_log_sum(scores)
            for i in range(len(scores)):
                scores[i] = (scores[i] - top) - log_sum


@njit(parallel=True, fastmath=SUMS)
def _log_softmax_gradient(log_probs_NE, grad_NE, offsets):  # type: ignore[no-untyped-def]
    """The gradient of the scores (N, E), from that of the log-probabilities."""
    out_NE = np.empty_like(log_probs_NE)
    for row in prange(len(out_NE)):
        for node in range(len(offsets) - 1):
            start = offsets[node]
            end = offsets[node + 1]
            total = _ZERO
            for edge in range(start, end):
                total += grad_NE[row, edge]
            for edge in range(start, end):
                out_NE[row, edge] = grad_NE[row, edge] - total * exp_minus(-log_probs_NE[row, edge])
    return out_NE


class _LogSoftmax(torch.autograd.Function):
    """`log_softmax_in_place`; keeps only the log-probabilities."""

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
        grad_NE = grads[0].contiguous()
        gradient = _log_softmax_gradient(log_probs_NE.numpy(), grad_NE.numpy(), ctx.offsets)
        return torch.from_numpy(gradient), None


def log_softmax_in_place(scores: Tensor, offsets: Tensor) -> Tensor:
    """Replace scores (N, E) by log-probabilities of the children given their node, in place.

    Args:
        scores: float32 on a CPU; the edges of one node follow each other.
        offsets: the first edge of each node, then E.
    Returns: the same tensor; differentiable once.
    """
    log_probs: Tensor = _LogSoftmax.apply(scores, offsets.numpy())  # type: ignore[no-untyped-call]
    return log_probs


# ---- costs from the scores of all edges


@njit(fastmath=SUMS)
def _node_cost(scores, weights):  # type: ignore[no-untyped-def]
    """-Σ weights·log p over the children of one node; the scores become its derivatives."""
    top, log_sum = _max_and_log_sum(scores)
    cost = _ZERO
    total = _ZERO
    for i in range(len(scores)):
        cost += weights[i] * (top - scores[i])
        total += weights[i]
    scale = total * np.float32(math.exp(-log_sum))
    for i in range(len(scores)):
        scores[i] = scale * exp_minus(top - scores[i]) - weights[i]
    return cost + total * log_sum


@njit(parallel=True, fastmath=SUMS)
def _costs_of_all_edges(scores_NE, tables, targets_N, weights):  # type: ignore[no-untyped-def]
    """The costs (N,) of `cost_of_all_edges`; the scores become their derivatives.

    The cost of a row is -Σ weight·log p over all edges, with p the probability of a child given its
    node. The weights are set first, in `weights_E`.
    """
    offsets, edge_nodes, node_edges, leaves = tables
    # `weights` is a CostWeights. The compiler orders sums by the names of these three: other names
    # change the last bits of the results.
    target, every, smoothing = weights
    num_inner = len(offsets) - 1
    num_edges = len(leaves)
    costs = np.empty(len(scores_NE), np.float32)
    for row in prange(len(scores_NE)):
        weights_E = np.empty(num_edges, np.float32)
        for edge in range(num_edges):  # each leaf below an edge has the edge on its path
            weights_E[edge] = every * np.float32(leaves[edge])
        edge = node_edges[num_inner + targets_N[row]]
        while edge >= 0:  # from the leaf up; the root has the edge -1
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
    """The cost of each row (N,) in nats, from the scores of all edges; differentiable once.

    The constants of smoothing are not included.

    Args:
        hidden, weight, bias: (N, D), (E, D), (E,) float32 on a CPU.
        targets: (N,) int64 unit ids.
        tables: `offsets`, `edge_nodes`, `node_edges` and `leaves` of the `ClassHead`.
        weights: of the terms of the cost.
    """
    arrays = tuple(table.numpy() for table in tables)
    targets_N = targets.contiguous().numpy()
    float32_weights = tuple(map(np.float32, weights))

    def compute(scores_NE: NDArray[np.float32]) -> Any:
        return _costs_of_all_edges(scores_NE, arrays, targets_N, float32_weights)

    return cost_of_scores(hidden, weight, bias, on_arrays(compute))


# ---- costs from the nodes on the targets' paths


@njit(parallel=True, fastmath=SUMS)
def _costs_of_decisions(hidden_MD, weight_ED, bias_E, decisions_M5, scores_S, grad_MD, smoothing):  # type: ignore[no-untyped-def]
    """The cost of each decision (M,); its scores become the derivatives of the cost by them.

    For a node that a matrix product computes, `scores_S` contains the scores. For all other nodes
    the scores are computed here, and so is the derivative of the cost by the row, in `grad_MD`.

    Args:
        decisions_M5: where the scores start, first edge of the node, number of its edges, number of
            the child on the path, and whether a matrix product computes the node.
        smoothing: shared by the children that are not on the path.
    """
    costs, dim = np.empty(len(decisions_M5), np.float32), hidden_MD.shape[1]
    for index in prange(len(decisions_M5)):
        start, edge, degree, choice, is_product = decisions_M5[index]
        scores = scores_S[start : start + degree]
        hidden_D = hidden_MD[index]
        grad_D = grad_MD[index]
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
                score_grad = scores[child]
                vector_D = weight_ED[edge + child]
                for d in range(dim):
                    grad_D[d] += score_grad * vector_D[d]
    return costs


@njit(parallel=True, fastmath=SUMS)
def _vector_gradients(grad_TD, grad_E, scaled_MD, upstream_M, groups_G6, score_grads_S):  # type: ignore[no-untyped-def]
    """Add the gradients of the edges' vectors to `grad_TD`, and of their biases to `grad_E`.

    Both contain zeros before, in the rows of these groups.

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
                score_grad = score_grads_S[start + index * degree + child]
                scaled_D = scaled_MD[first + index]
                grad_E[edge + child] += score_grad * upstream_M[first + index]
                for d in range(dim):
                    grad_D[d] += score_grad * scaled_D[d]


@dataclass(frozen=True)
class _Product:
    """One group of decisions whose node is computed by matrix products."""

    decisions: slice
    """Of the M decisions."""
    edges: slice
    """Of the E edges."""
    out_rows: slice
    """Of the T rows of the weight's gradient."""
    score_grads_RC: Tensor
    """A view of `score_grads_S`: the scores first, then the derivatives of the costs by them."""


class _CostOfDecisions(torch.autograd.Function):
    """The costs of decisions: by matrix products for nodes with many rows, by a kernel for others.

    The forward pass also computes the derivatives of the costs by the rows, while the vectors are
    in the cache.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_ED: Tensor,
        bias_E: Tensor,
        groups: DecisionGroups,
        smoothing: float,
        sparse: bool,
    ) -> Tensor:
        """The costs (N,), those of a row's decisions added up."""
        weight_ED = weight_ED.contiguous()
        bias_E = bias_E.contiguous()
        rows_M = torch.from_numpy(groups.rows)
        hidden_MD = hidden_ND.index_select(0, rows_M)
        num_scores_G = groups.sizes * groups.degrees
        starts_G = np.cumsum(num_scores_G) - num_scores_G
        is_product_G = (groups.sizes >= MIN_PRODUCT_ROWS) & (num_scores_G >= MIN_PRODUCT_SCORES)
        # The first row of each group in the weight's gradient. A dense gradient has all edges; a
        # sparse one has only those of the groups, one group after the other.
        out_rows_G = groups.edges
        if sparse:
            out_rows_G = np.cumsum(groups.degrees) - groups.degrees
        groups_G6 = np.column_stack(
            [groups.first, groups.sizes, groups.edges, groups.degrees, starts_G, out_rows_G]
        )
        # First the scores are written there: by the products here, or else by the kernel. Then the
        # kernel replaces all scores by the derivatives.
        score_grads_S = hidden_ND.new_empty(int(num_scores_G.sum()))
        products = _products(groups_G6[is_product_G], score_grads_S)
        for product in products:
            edges = product.edges
            hidden_RD = hidden_MD[product.decisions]
            torch.addmm(bias_E[edges], hidden_RD, weight_ED[edges].T, out=product.score_grads_RC)
        costs_N = hidden_ND.new_zeros(len(hidden_ND))
        grad_ND = torch.zeros_like(hidden_ND)
        if len(groups.rows):
            grad_MD = torch.empty_like(hidden_MD)
            use_torch_threads()
            costs_M = _costs_of_decisions(
                hidden_MD.numpy(),
                weight_ED.numpy(),
                bias_E.numpy(),
                _decision_table(groups, is_product_G),
                score_grads_S.numpy(),
                grad_MD.numpy(),
                np.float32(smoothing),
            )
            for product in products:
                vectors_CD = weight_ED[product.edges]
                torch.mm(product.score_grads_RC, vectors_CD, out=grad_MD[product.decisions])
            costs_N.index_add_(0, rows_M, torch.from_numpy(costs_M))
            grad_ND.index_add_(0, rows_M, grad_MD)
        ctx.save_for_backward(hidden_MD, grad_ND)
        ctx.groups = groups
        ctx.rows_M = rows_M
        ctx.kernel_groups = groups_G6[~is_product_G]
        ctx.products = products
        ctx.score_grads_S = score_grads_S
        ctx.num_edges = len(weight_ED)
        ctx.sparse = sparse
        return costs_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of hidden, weight (sparse if `ctx.sparse`) and bias, if they are needed."""
        hidden_MD, grad_ND = ctx.saved_tensors
        upstream_N = grads[0]
        grad_hidden = upstream_N[:, None] * grad_ND if ctx.needs_input_grad[0] else None
        if not any(ctx.needs_input_grad[1:3]):
            return grad_hidden, None, None, None, None, None
        dim = hidden_MD.size(1)
        # A sparse gradient of the weight has only the edges of the groups.
        num_rows = int(ctx.groups.degrees.sum()) if ctx.sparse else ctx.num_edges
        # np.zeros, because torch.zeros writes all of the memory here. For np.zeros the operating
        # system clears a page when it is first used.
        grad_TD = torch.from_numpy(np.zeros((num_rows, dim), np.float32))
        grad_E = torch.from_numpy(np.zeros(ctx.num_edges, np.float32))
        upstream_M = upstream_N.index_select(0, ctx.rows_M)
        scaled_MD = upstream_M[:, None] * hidden_MD
        for product in ctx.products:
            score_grads_CR = product.score_grads_RC.T
            torch.mm(score_grads_CR, scaled_MD[product.decisions], out=grad_TD[product.out_rows])
            torch.mv(score_grads_CR, upstream_M[product.decisions], out=grad_E[product.edges])
        use_torch_threads()
        arrays = (tensor.numpy() for tensor in (grad_TD, grad_E, scaled_MD, upstream_M))
        _vector_gradients(*arrays, ctx.kernel_groups, ctx.score_grads_S.numpy())
        grad_weight = grad_TD
        if ctx.sparse:
            edges_T = torch.from_numpy(_edges_of_groups(ctx.groups))
            grad_weight = sparse_rows(edges_T, grad_TD, torch.Size((ctx.num_edges, dim)))
        return grad_hidden, grad_weight, grad_E, None, None, None


def _products(groups_G6: NDArray[np.int64], score_grads_S: Tensor) -> list[_Product]:
    """The groups of a table as for `_vector_gradients`, all of which are matrix products."""
    products = []
    for first, size, edge, degree, start, out_row in groups_G6.tolist():
        scores_of_group = score_grads_S[start : start + size * degree]
        product = _Product(
            decisions=slice(first, first + size),
            edges=slice(edge, edge + degree),
            out_rows=slice(out_row, out_row + degree),
            score_grads_RC=scores_of_group.view(size, degree),
        )
        products.append(product)
    return products


def _decision_table(groups: DecisionGroups, is_product_G: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The table of `_costs_of_decisions`, (M, 5), from the groups."""
    group_M = np.repeat(np.arange(len(groups.sizes)), groups.sizes)
    degrees_M = groups.degrees[group_M]
    starts_M = np.cumsum(degrees_M) - degrees_M
    edges_M = groups.edges[group_M]
    columns = [starts_M, edges_M, degrees_M, groups.choices, is_product_G[group_M]]
    return np.column_stack(columns)


def _edges_of_groups(groups: DecisionGroups) -> NDArray[np.int64]:
    """The edges of all groups, group by group (T,); they ascend."""
    edges = [np.empty(0, np.int64)]
    for first_edge, degree in zip(groups.edges.tolist(), groups.degrees.tolist(), strict=True):
        edges.append(np.arange(first_edge, first_edge + degree))
    return np.concatenate(edges)


def cost_of_decisions(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: DecisionGroups,
    smoothing: float,
    sparse: bool,
) -> Tensor:
    """The cost of each row, from the nodes on its target's path only.

    It is the sum of the cross-entropies of the decisions on the path.

    Args:
        hidden, weight, bias: (N, D), (E, D), (E,) float32 on a CPU.
        groups: the decisions on the targets' paths.
        smoothing: ε; at each node the child on the path has 1-ε, and the other children share ε.
        sparse: whether the weight's gradient is a sparse tensor of the edges of the nodes on the
            paths.
    Returns: (N,) nats; differentiable once.
    """
    cost: Tensor = _CostOfDecisions.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, groups, smoothing, sparse
    )
    return cost


# ---- the k best units


@njit
def _search_class_row(hidden_D, edges, root_C, best_K, budget):  # type: ignore[no-untyped-def]
    """Fill `best_K` with the sorted keys of the k best leaves.

    A key contains a cost and the number of a node; from `num_inner` on it is the number of a leaf.
    Returns False if the row was given up: after a NaN, or if it needs the scores of more than
    `budget` edges. `root_C` are the scores of the root's children, which do not count.
    """
    weight_ED, bias_E, offsets, children, max_degree = edges
    num_inner = len(offsets) - 1
    last = len(best_K) - 1
    opened = 0
    heap = np.empty(num_inner, np.int64)
    scratch = np.empty(max_degree, np.float32)
    best_K[:] = NO_KEY
    heap[0] = 0  # the key of the root: cost 0, number 0
    size = 1
    # A node of the same cost as the last leaf is opened: an equal leaf may have a lower id.
    while size and heap[0] >> HALF <= best_K[last] >> HALF:
        here = heap[0]
        size -= 1
        replace_first(heap, size, heap[size])
        node = here & NUMBER
        start = offsets[node]
        degree = offsets[node + 1] - start
        scores = root_C
        if node > 0:
            opened += degree
            if opened > budget:
                return False
            scores = scratch[:degree]
            for child in range(degree):
                product = dot_product(hidden_D, weight_ED[start + child])
                scores[child] = product + bias_E[start + child]
        top, log_sum = _max_and_log_sum(scores)
        is_nan = log_sum != log_sum
        if is_nan:
            return False
        for child in range(degree):
            cost = cost_of(here) + (log_sum - (scores[child] - top))
            key = make_key(cost, children[start + child])
            if key & NUMBER >= num_inner:
                keep_best(best_K, key)
            elif key >> HALF <= best_K[last] >> HALF:
                push(heap, size, key)
                size += 1
    return True


@njit(parallel=True)
def _search_class_rows(hidden_ND, edges, root_NC, results, budget):  # type: ignore[no-untyped-def]
    """Search all rows and fill the results; returns how many rows were given up.

    The results are log-probabilities (N, K), unit ids (N, K), and whether the row was not given up.
    """
    values_NK, ids_NK, is_done_N = results
    num_inner = len(edges[2]) - 1
    num_given_up = 0
    for row in prange(len(hidden_ND)):
        keys_K = ids_NK[row]  # keys first, then ids in the same memory
        is_done_N[row] = _search_class_row(hidden_ND[row], edges, root_NC[row], keys_K, budget)
        decode_keys(keys_K, values_NK[row], num_inner)
        num_given_up += not is_done_N[row]
    return num_given_up


def best_units(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    root_scores: Tensor,
    *,
    tree: NaryTree,
    k: int,
    budget: int,
) -> SearchResult:
    """The k most probable units of each row, by best-first search.

    A node's log-probability is a bound for its leaves. A row is given up if it needs the scores of
    more than `budget` edges, or if it meets a NaN.

    Args:
        hidden, weight, bias: (N, D), (E, D), (E,) float32 on a CPU, contiguous, without gradient.
        root_scores: (N, C) of the root's children.
    """
    use_torch_threads()
    num_rows = len(hidden)
    values_NK = np.empty((num_rows, k), np.float32)
    ids_NK = np.empty((num_rows, k), np.int64)
    is_done_N = np.empty(num_rows, np.bool_)
    max_degree = int(np.diff(tree.offsets).max())
    num_given_up = _search_class_rows(
        hidden.numpy(),
        (weight.numpy(), bias.numpy(), tree.offsets, tree.children, max_degree),
        root_scores.numpy(),
        (values_NK, ids_NK, is_done_N),
        budget,
    )
    given_up = torch.from_numpy(np.flatnonzero(~is_done_N)) if num_given_up else None
    return SearchResult(torch.from_numpy(values_NK), torch.from_numpy(ids_NK), given_up)
