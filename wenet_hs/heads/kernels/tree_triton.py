# SPDX-License-Identifier: Apache-2.0
"""Triton kernels of the tree head's costs on a GPU.

Along the paths: one program per row walks from the target's leaf to the root, without a table of
paths. In one pass it computes the cost, its derivative by each score on the path, and its gradient
by the hidden vector. The gradient of the weight is a sum over the decisions at each node. They are
sorted by node, and one program sums those of a node in the order of the rows. So the bits are the
same in each run.

An edge is a number, as in `HSoftmaxHead.edges`: twice the inner node above it, plus 1 if it leads
to the right child. -1 is the edge to the root. The decisions of a row have as many places as the
longest path has. The places after its last decision are padding: there the node is I.

Over all nodes, for leaf smoothing: a matrix product, and one pass over the scores.

Tested with Triton's interpreter and by compilation for sm_80, sm_90 and sm_100. They have not run
on a GPU.

Dimension key: N rows, D width, I inner nodes, P longest path, M = N · P places of decisions, U
nodes on some path, R decisions summed at once, B width of a block.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from wenet_hs.heads.kernels.scores import cost_in_parts
from wenet_hs.heads.kernels.triton_launch import launch
from wenet_hs.heads.node_head import CostWeights, sparse_rows

SCORES_BLOCK = 1024
"""How many scores of a row a program of `all_leaves_kernel` computes."""
ROWS_AT_ONCE = 32
"""How many decisions a program of `sum_by_node_kernel` sums at a time."""
MAX_BLOCK_D = 128
"""The most columns of the weight's gradient that one of its programs computes."""
MAX_PATH_BLOCK = 128
"""The most places of a path that `add_path_kernel` adds at a time."""


@triton.jit
def _softplus(size):  # type: ignore[no-untyped-def]
    """log(1 + exp(-size)) of a size ≥ 0.

    By Kahan's log1p: the logarithm of the rounded sum 1 + x, times x / (rounded sum - 1).
    """
    small = tl.exp(-size)
    rounded = 1.0 + small
    kept = rounded - 1.0
    ratio = small / tl.where(kept == 0.0, 1.0, kept)
    return tl.where(kept == 0.0, small, tl.log(rounded) * ratio)


@triton.jit
def _decision(score, edge, on_target, per_decision):  # type: ignore[no-untyped-def]
    """The cost of a decision, and the derivative of the cost by the score of the node.

    With s the score, negated for a turn to the right, the cost is -on_target · log σ(s) +
    per_decision · s. `edge` is the edge that the path takes from the node.
    """
    turn = (1 - 2 * (edge & 1)).to(tl.float32)  # +1 left, -1 right
    score = turn * score
    small = tl.exp(-tl.abs(score))
    wrong = tl.where(score > 0, small, 1.0) / (1.0 + small)  # σ(-score)
    cost = on_target * (tl.maximum(-score, 0.0) + _softplus(tl.abs(score))) + per_decision * score
    return cost, turn * (per_decision - on_target * wrong)


@triton.jit
def walk_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    hidden,
    weight,
    bias,
    targets,
    up,
    costs,
    slopes,
    nodes,
    grad_hidden,
    num_inner,
    depth,
    on_target,
    per_decision,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """A row's path: fills its cost, the gradient of the cost by hidden, and its decisions.

    Per decision it stores the node and the derivative of the cost by the node's score (`slopes`).
    """
    row = tl.program_id(0).to(tl.int64)
    column_D = tl.arange(0, BLOCK_D)
    inside_D = column_D < DIM
    hidden_D = tl.load(hidden + row * DIM + column_D, mask=inside_D, other=0.0)
    grad_D = tl.zeros((BLOCK_D,), tl.float32)
    cost = 0.0
    place = row * depth
    # An edge is twice the node above it, plus 1 to its right child; -1 is the edge to the root.
    edge = tl.load(up + num_inner + tl.load(targets + row))
    while edge >= 0:
        node = (edge >> 1).to(tl.int64)
        vector_D = tl.load(weight + node * DIM + column_D, mask=inside_D, other=0.0)
        score = tl.sum(hidden_D * vector_D, axis=0)
        if HAS_BIAS:
            score += tl.load(bias + node)
        added, slope = _decision(score, edge, on_target, per_decision)
        cost += added
        grad_D += slope * vector_D
        tl.store(slopes + place, slope)
        tl.store(nodes + place, node.to(tl.int32))
        place += 1
        edge = tl.load(up + node)
    tl.store(costs + row, cost)
    tl.store(grad_hidden + row * DIM + column_D, grad_D, mask=inside_D)


@triton.jit
def sum_by_node_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    hidden,
    grad,
    slopes,
    order,
    nodes,
    places,
    out,
    out_bias,
    num_decisions,
    num_inner,
    depth,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """The gradients of the nodes' vectors (`out`) and biases (`out_bias`).

    A program computes a block of columns for one node: the program whose decision is the first one
    of the node sums all of them, and the programs of the other decisions do nothing.

    Args, of the M decisions: `order`, sorted by node; in that order `nodes`, which is num_inner in
    the padding, and `places`, the row of the node in `out`.
    """
    first = tl.program_id(0)
    node = tl.load(nodes + first)
    before = tl.load(nodes + first - 1, mask=first > 0, other=-1)
    if (node != before) & (node < num_inner):
        column_B = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
        total_B = tl.zeros((BLOCK_D,), tl.float32)
        total = 0.0
        start = first
        running = 1
        while running != 0:
            index_R = start + tl.arange(0, ROWS)
            same_R = tl.load(nodes + index_R, mask=index_R < num_decisions, other=-1) == node
            decision_R = tl.load(order + index_R, mask=same_R, other=0)
            row_R = decision_R // depth
            slope_R = tl.load(slopes + decision_R, mask=same_R, other=0.0)
            slope_R *= tl.load(grad + row_R, mask=same_R, other=0.0)
            mask_RB = same_R[:, None] & (column_B < DIM)[None, :]
            hidden_RB = tl.load(
                hidden + row_R[:, None] * DIM + column_B[None, :], mask=mask_RB, other=0.0
            )
            total_B += tl.sum(slope_R[:, None] * hidden_RB, axis=0)
            total += tl.sum(slope_R, axis=0)
            start += ROWS
            running = tl.min(same_R.to(tl.int32), axis=0)  # 0 if a decision is of another node
        place = tl.load(places + first).to(tl.int64)
        tl.store(out + place * DIM + column_B, total_B, mask=column_B < DIM)
        if HAS_BIAS:
            tl.store(out_bias + node, total, mask=tl.program_id(1) == 0)


@triton.jit
def walk_scores_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    scores, targets, up, costs, slopes, nodes, num_inner, depth, on_target, per_decision
):
    """A row's path as in `walk_kernel`, from the scores of all nodes; no gradient by hidden."""
    row = tl.program_id(0).to(tl.int64)
    cost = 0.0
    place = row * depth
    # An edge is twice the node above it, plus 1 to its right child; -1 is the edge to the root.
    edge = tl.load(up + num_inner + tl.load(targets + row))
    while edge >= 0:
        node = edge >> 1
        added, slope = _decision(
            tl.load(scores + row * num_inner + node), edge, on_target, per_decision
        )
        cost += added
        tl.store(slopes + place, slope)
        tl.store(nodes + place, node)
        place += 1
        edge = tl.load(up + node)
    tl.store(costs + row, cost)


@triton.jit
def all_leaves_kernel(scores, leaves, parts, num_inner, num_blocks, on_all, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A block of a row: its part of -on_all · Σ_v log P(v), and the derivatives by its scores.

    The parts are stored in `parts`, and the derivatives replace the scores. Each node counts with
    the numbers of leaves under its children (`leaves`), because so many units turn left and right
    there.
    """
    row = tl.program_id(0).to(tl.int64)
    node_B = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside_B = node_B < num_inner
    score_B = tl.load(scores + row * num_inner + node_B, mask=inside_B, other=0.0)
    left_B = tl.load(leaves + node_B, mask=inside_B, other=0).to(tl.float32)
    right_B = tl.load(leaves + num_inner + node_B, mask=inside_B, other=0).to(tl.float32)
    # The cost of a node with score z is -left · log σ(z) - right · log σ(-z). Its derivative by z is
    # (left + right) · σ(z) - left.
    both_B = left_B + right_B
    cost_B = both_B * _softplus(tl.abs(score_B))
    cost_B += right_B * tl.maximum(score_B, 0.0) - left_B * tl.minimum(score_B, 0.0)
    tl.store(parts + row * num_blocks + tl.program_id(1), on_all * tl.sum(cost_B, axis=0))
    small_B = tl.exp(-tl.abs(score_B))
    chance_B = tl.where(score_B > 0, 1.0, small_B) / (1.0 + small_B)  # σ(score)
    tl.store(
        scores + row * num_inner + node_B, on_all * (both_B * chance_B - left_B), mask=inside_B
    )


@triton.jit
def add_path_kernel(slopes_of_all, slopes, nodes, num_inner, depth, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add the derivatives of a row's path to those of all nodes; no node is twice on a path."""
    row = tl.program_id(0).to(tl.int64)
    start = 0
    while start < depth:
        place_B = start + tl.arange(0, BLOCK)
        node_B = tl.load(nodes + row * depth + place_B, mask=place_B < depth, other=num_inner)
        on_path_B = node_B < num_inner
        slope_B = tl.load(slopes + row * depth + place_B, mask=on_path_B, other=0.0)
        pointer_B = slopes_of_all + row * num_inner + node_B
        tl.store(pointer_B, tl.load(pointer_B, mask=on_path_B, other=0.0) + slope_B, mask=on_path_B)
        start += BLOCK


class _CostOfPaths(torch.autograd.Function):
    """`cost_of_paths`; keeps the decisions, and the gradient of the costs by hidden."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        tree: tuple[Tensor, int],
        weights: CostWeights,
        sparse: bool,
    ) -> Tensor:
        edges, depth = tree
        hidden = hidden.contiguous()
        weight = weight.contiguous()
        num_rows, dim = hidden.shape
        num_inner = len(weight)
        costs_N = hidden.new_empty(num_rows)
        grad_ND = torch.empty_like(hidden)
        slopes_NP = hidden.new_empty(num_rows, depth)
        nodes_NP = _padding_nodes(num_rows, depth, num_inner, hidden.device)
        launch(
            walk_kernel,
            (num_rows,),
            hidden,
            weight,
            weight if bias is None else bias,  # not read without a bias
            targets.contiguous(),
            edges,
            costs_N,
            slopes_NP,
            nodes_NP,
            grad_ND,
            num_inner,
            depth,
            weights.on_target,
            weights.per_decision,
            **walk_constants(dim, has_bias=bias is not None),
        )
        ctx.save_for_backward(hidden, weight, slopes_NP, nodes_NP, grad_ND)
        ctx.sparse = sparse
        return costs_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of hidden, weight and bias, as far as they are needed."""
        grad_ND = ctx.saved_tensors[-1]
        grad_N = grads[0].contiguous()
        grad_hidden = grad_ND * grad_N[:, None] if ctx.needs_input_grad[0] else None
        grad_weight = grad_bias = None
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            grad_weight, grad_bias = _vector_gradients(ctx, grad_N)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _padding_nodes(num_rows: int, depth: int, num_inner: int, device: torch.device) -> Tensor:
    """The nodes of all decisions (N, P) int32, as if all were padding; a kernel fills the paths."""
    return torch.full((num_rows, depth), num_inner, dtype=torch.int32, device=device)


def _vector_gradients(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of weight and bias, each None if it is not needed.

    That of the weight is sparse if `ctx.sparse`; that of the bias is always dense. `ctx` is of
    `_CostOfPaths`, and `grad_N` is the gradient of the costs.
    """
    hidden, weight, slopes_NP, nodes_NP, _ = ctx.saved_tensors
    _, needs_weight, needs_bias, *_ = ctx.needs_input_grad
    num_inner, dim = weight.shape
    nodes_M, order_M = nodes_NP.flatten().sort(stable=True)
    if ctx.sparse:  # the gradient has one row per node on a path
        is_first_M = torch.diff(nodes_M, prepend=nodes_M.new_full((1,), -1)) != 0
        is_first_M &= nodes_M < num_inner  # not the padding
        places_M = is_first_M.cumsum(0) - 1
        touched_U = nodes_M[is_first_M].long()  # the program waits for its size
        num_rows = len(touched_U)
    else:
        places_M = nodes_M
        touched_U = None
        num_rows = num_inner
    grad_UD = weight.new_zeros(num_rows, dim)
    grad_I = weight.new_zeros(num_inner if needs_bias else 1)
    constants = sum_constants(dim, has_bias=needs_bias)
    launch(
        sum_by_node_kernel,
        (len(nodes_M), triton.cdiv(dim, constants["BLOCK_D"])),
        hidden,
        grad_N,
        slopes_NP,
        order_M,
        nodes_M,
        places_M,
        grad_UD,
        grad_I,
        len(nodes_M),
        num_inner,
        slopes_NP.size(1),
        **constants,
    )
    grad_weight = grad_UD
    if touched_U is not None:
        grad_weight = sparse_rows(touched_U, grad_UD, weight.shape)
    return grad_weight if needs_weight else None, grad_I if needs_bias else None


def walk_constants(dim: int, *, has_bias: bool) -> dict[str, Any]:
    """The compile-time arguments of `walk_kernel`."""
    return {"DIM": dim, "BLOCK_D": triton.next_power_of_2(dim), "HAS_BIAS": has_bias}


def sum_constants(dim: int, *, has_bias: bool) -> dict[str, Any]:
    """The compile-time arguments of `sum_by_node_kernel`."""
    block = min(MAX_BLOCK_D, triton.next_power_of_2(dim))
    return {"DIM": dim, "BLOCK_D": block, "ROWS": ROWS_AT_ONCE, "HAS_BIAS": has_bias}


def cost_of_paths(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    tree: tuple[Tensor, int],
    weights: CostWeights,
    *,
    sparse: bool,
) -> Tensor:
    """The cost of each row (N,) in nats, from the nodes on its target's path only.

    It has no term `on_all`. It is differentiable once in hidden, weight and bias.

    Args:
        hidden: (N, D), weight: (V-1, D), bias: (V-1,) or None; float32 on a GPU.
        targets: (N,) int64 unit ids.
        tree: `edges` of the `HSoftmaxHead`, and the length of the longest path.
        weights: of the terms of the cost.
        sparse: whether the weight's gradient is a sparse tensor of the rows that are on a path. The
            program then waits for the device once.
    """
    cost: Tensor = _CostOfPaths.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, tree, weights, sparse
    )
    return cost


def cost_of_all_nodes(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    tables: tuple[Tensor, Tensor, int],
    weights: CostWeights,
) -> Tensor:
    """The cost of each row (N,) in nats, from the scores of all nodes.

    It is differentiable once in hidden, weight and bias.

    Args:
        hidden: (N, D), weight: (V-1, D), bias: (V-1,) or None; float32 on a GPU.
        targets: (N,) int64 unit ids.
        tables: `edges` and `leaf_counts` of the `HSoftmaxHead`, and the length of the longest path.
        weights: of the terms of the cost.
    """
    edges, leaves_2I, depth = tables

    def compute(scores_NI: Tensor, targets_N: Tensor) -> Tensor:
        num_rows, num_inner = scores_NI.shape
        costs_N = scores_NI.new_empty(num_rows)
        slopes_NP = scores_NI.new_empty(num_rows, depth)
        nodes_NP = _padding_nodes(num_rows, depth, num_inner, scores_NI.device)
        launch(
            walk_scores_kernel,
            (num_rows,),
            scores_NI,
            targets_N,
            edges,
            costs_N,
            slopes_NP,
            nodes_NP,
            num_inner,
            depth,
            weights.on_target,
            weights.per_decision,
            num_warps=1,
        )
        # Now the path has been read: the scores become derivatives, first those of all units.
        if weights.on_all:
            num_blocks = triton.cdiv(num_inner, SCORES_BLOCK)
            parts_NB = scores_NI.new_empty(num_rows, num_blocks)
            launch(
                all_leaves_kernel,
                (num_rows, num_blocks),
                scores_NI,
                leaves_2I,
                parts_NB,
                num_inner,
                num_blocks,
                weights.on_all,
                BLOCK=SCORES_BLOCK,
            )
            costs_N += parts_NB.sum(1)
        else:
            scores_NI.zero_()
        launch(
            add_path_kernel,
            (num_rows,),
            scores_NI,
            slopes_NP,
            nodes_NP,
            num_inner,
            depth,
            BLOCK=triton.next_power_of_2(min(depth, MAX_PATH_BLOCK)),
            num_warps=1,
        )
        return costs_N

    return cost_in_parts(hidden, weight, bias, targets, compute)
