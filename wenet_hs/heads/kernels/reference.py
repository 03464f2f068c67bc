# SPDX-License-Identifier: Apache-2.0
"""The tree head's costs in plain PyTorch, for any device and precision: the reference of the CPU's kernels.

`F.logsigmoid` spends 12 ns an element on a CPU (its log1p has no fast kernel), `exp` and `log` one each (one thread,
V = 150): so the functions of all node scores have gradients of their own. They use σ(|z|) or exp(-|z|) only, which
never underflow into a logarithm, so nothing is clipped and every gradient is finite and right.

Dimension key: N rows, D width, V units, I = V-1 inner nodes, P longest path,
A = 2I+1 all left turns, all right turns and a zero.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class CostWeights(NamedTuple):
    """target · -log P(its unit) + every · -Σ_v log P(v) + turn · Σ of the scores of the turns to its unit.

    With the last a decision costs -(1-ε)·log σ(s) - ε·log σ(-s), s being the score of the right turn: log σ(-s) is
    log σ(s) - s, so ε smooths it by ε·s.
    """

    target: float
    every: float
    turn: float


class _BothLogSigmoids(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(z)
        small = torch.exp(-z.abs())
        rounded = 1 + small
        kept = rounded - 1  # what of `small` the sum has kept; Kahan's log1p corrects by what it has lost
        log1p = torch.where(kept == 0, small, torch.log(rounded) * (small / kept))
        return z.clamp(max=0) - log1p, -z.clamp(min=0) - log1p

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return grads[0] * torch.sigmoid(-z) - grads[1] * torch.sigmoid(z)


def both_log_sigmoids(z: Tensor) -> tuple[Tensor, Tensor]:
    """log σ(z) and log σ(-z), elementwise, any shape: the costs of turning left and right. Differentiable once."""
    left, right = _BothLogSigmoids.apply(z)  # type: ignore[no-untyped-call]
    return left, right


class _SmoothedPathCost(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z_NI: Tensor, nodes_NP: Tensor, turns_NP: Tensor, leaves_2I: Tensor, weights: CostWeights
    ) -> Tensor:
        target, every, turn = weights
        left_I, all_I = leaves_2I[0], leaves_2I.sum(0)
        sigmoid_NI, size_NI = torch.sigmoid(z_NI), z_NI.abs()
        log_larger_NI = torch.sigmoid(size_NI).log_()  # of the likelier turn; log σ(z) = min(z, 0) + it
        # Σ_v log P(v) = Σ_n L·log σ(z) + R·log σ(-z), with min(z, 0) = (z - |z|) / 2.
        total_N = log_larger_NI @ all_I + z_NI @ (left_I - all_I / 2) - size_NI @ (all_I / 2)
        turns_NP = turns_NP.to(z_NI.dtype)
        scores_NP = turns_NP * z_NI.gather(1, nodes_NP)
        path_NP = turns_NP.abs() * (torch.sigmoid(scores_NP.abs()).log_() + scores_NP.clamp(max=0))
        if ctx.needs_input_grad[0]:
            # The derivatives of log σ(z) and log σ(-z) are 1 - σ(z) and -σ(z), so of the sum over v L - (L + R)·σ(z).
            grad_NI = torch.addcmul(-every * left_I, sigmoid_NI, all_I, value=every)
            slopes_NP = torch.sigmoid(-scores_NP).mul_(-target).add_(turn).mul_(turns_NP)
            grad_NI.scatter_add_(1, nodes_NP, slopes_NP)
            ctx.save_for_backward(grad_NI)
        return turn * scores_NP.sum(-1) - target * path_NP.sum(-1) - every * total_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad_NI,) = ctx.saved_tensors
        return grad_NI * grads[0][:, None], None, None, None, None


def smoothed_path_cost(z: Tensor, nodes: Tensor, turns: Tensor, leaves: Tensor, weights: CostWeights) -> Tensor:
    """The cost that `weights` says from the node scores alone, without a distribution over the units.

    Args:
        z: (N, V-1) node scores, float32 or float64.
        nodes: (N, P) int64, the path of each row's target unit in any order, 0 where padded.
        turns: (N, P), +1 left, -1 right, 0 padding.
        leaves: (2, V-1) of the dtype of z: how many leaves are under the left and the right child.
    Returns:
        (N,) nats; differentiable once, in z.
    """
    cost: Tensor = _SmoothedPathCost.apply(z, nodes, turns, leaves, weights)  # type: ignore[no-untyped-call]
    return cost


def path_scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, nodes: Tensor, turns: Tensor, *, sparse: bool
) -> Tensor:
    """The score of each turn on the paths of the rows' targets (N, P), 0 where padded; touches their vectors alone.

    Args:
        hidden: (N, D). weight: (V-1, D). bias: (V-1,) or none. nodes, turns: as in `smoothed_path_cost`.
        sparse: whether the weight's gradient is a sparse tensor of the touched rows.
    """
    if not len(weight):  # a tree of one unit: no node to gather
        return F.linear(hidden, with_sparse_gradient(weight) if sparse else weight, bias)
    scores_NP = torch.bmm(F.embedding(nodes, weight, sparse=sparse), hidden[:, :, None])[..., 0]
    if bias is not None:
        scores_NP = scores_NP + bias[nodes]
    return turns.to(hidden.dtype) * scores_NP


def path_cost(scores: Tensor, turns: Tensor, turn_smoothing: float) -> Tensor:
    """-log P of each row's target from `path_scores`, smoothed at each turn as `CostWeights` says: (N,) nats."""
    cost_N = -(F.logsigmoid(scores) * turns.abs()).sum(-1)
    return cost_N + turn_smoothing * scores.sum(-1) if turn_smoothing else cost_N


def prefix_log_probs(z: Tensor, tables: "PrefixTables") -> Tensor:
    """All leaves' log-probabilities (N, V) from the node scores (N, V-1), whatever the depth in log2(depth) steps.

    Each step adds to a node what its 2^s-th ancestor has gathered. From V = 150 on it is faster than a product with a
    0/1 matrix of paths, and than a loop over the levels everywhere (10 to 1,000 rows, one CPU thread).
    """
    turns_NA = F.pad(torch.cat(both_log_sigmoids(z), dim=-1), (0, 1))
    sums_NV = turns_NA.index_select(-1, tables.inner_source)
    for jump_V in tables.jumps:
        sums_NV = sums_NV + sums_NV.index_select(-1, jump_V)
    return sums_NV.index_select(-1, tables.leaf_parent) + turns_NA.index_select(-1, tables.leaf_source)


class PrefixTables(NamedTuple):
    """Where each node's own term stands among [left turns (I), right turns (I), 0], and whose sum each adds.

    `leaf_parent` and `jumps` name inner nodes, I being a zero: the 1st, 2nd, 4th, … ancestor, or I above the root.
    """

    inner_source: Tensor
    """(I+1,) int64, as all of them."""
    leaf_source: Tensor
    """(V,)."""
    leaf_parent: Tensor
    """(V,)."""
    jumps: Tensor
    """(steps, I+1)."""


def sparse_rows(rows: Tensor, values: Tensor, shape: torch.Size) -> Tensor:
    """A coalesced sparse tensor of some rows (U,), ascending, with their values (U, …); shape is that of the whole."""
    # Not the argument check_invariants: beside it PyTorch 2.11 still warns that no one has decided about the checks.
    with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
        return torch.sparse_coo_tensor(rows[None], values, shape, is_coalesced=True)


class _SparseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return weight.view_as(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        rows_I = torch.arange(len(grads[0]), device=grads[0].device)
        return sparse_rows(rows_I, grads[0], grads[0].shape)


def with_sparse_gradient(weight: Tensor) -> Tensor:
    """The same (I, D), whose gradient is a sparse tensor of all its rows: for an optimiser that takes no other."""
    same: Tensor = _SparseGradient.apply(weight)  # type: ignore[no-untyped-call]
    return same
