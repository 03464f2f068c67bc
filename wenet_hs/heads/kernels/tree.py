# SPDX-License-Identifier: Apache-2.0
"""Costs and log-probabilities over trees in plain PyTorch, for any device and for float32 or float64.

They are the reference of the Numba kernels.

Dimension key: N rows, D width, V units, I inner nodes, E edges (children of all nodes, node by node), P longest path,
M edges on the paths of some units.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from wenet_hs.tree.tree import UnitTree


class CostWeights(NamedTuple):
    """Weights of the cost target · -log P(target unit) + every · -Σ_v log P(v) + turn · Σ scores of the path's turns.

    The last term smooths each decision: -(1-ε)·log σ(s) - ε·log σ(-s) = -log σ(s) + ε·s, where s is the score of the
    turn on the path.
    """

    target: float
    every: float
    turn: float


def path_edges(tree: UnitTree, units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The edges on the paths to `units` (N,): the index into `units` and the edge of each, (M,) each."""
    rows, edges = np.arange(len(units)), tree.edges[tree.num_inner + units]
    found = [(rows[:0], edges[:0])]
    while len(edges):
        rows, edges = rows[edges >= 0], edges[edges >= 0]
        found.append((rows, edges))
        edges = tree.edges[tree.edge_nodes[edges]]
    all_rows, all_edges = zip(*found, strict=True)
    return np.concatenate(all_rows), np.concatenate(all_edges)


def leaf_sums(values_NE: Tensor, edges: Tensor, parents: Tensor, level_starts: NDArray[np.int64]) -> Tensor:
    """The sums (N, V) of the edges' values on the paths to all leaves, level by level from the root.

    Args:
        edges, parents: (I+V,) the edge that leads to each node, and the inner node above it; any value for the root.
        level_starts: of the tree.
    """
    if not values_NE.size(1):  # a tree of one unit
        return values_NE.sum(-1, keepdim=True)
    above = [values_NE.new_zeros(len(values_NE), 1)]  # of the inner nodes of each level
    for start, end, previous in zip(level_starts[1:], level_starts[2:], level_starts, strict=False):
        last = above[-1].index_select(1, parents[start:end] - int(previous))
        above.append(last + values_NE.index_select(1, edges[start:end]))
    leaves = slice(int(level_starts[-1]), None)
    return torch.cat(above, dim=1).index_select(1, parents[leaves]) + values_NE.index_select(1, edges[leaves])


def path_scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, nodes: Tensor, turns: Tensor, *, sparse: bool
) -> Tensor:
    """The score of each turn on the paths of the rows' targets (N, P), 0 where padded, from their vectors only.

    Args:
        hidden: (N, D). weight: (V-1, D). bias: (V-1,) or none.
        nodes, turns: (N, P) the inner nodes on the paths, and +1 left, -1 right, 0 padding.
        sparse: whether the weight's gradient is a sparse tensor of the touched rows.
    """
    scores_NP = torch.bmm(F.embedding(nodes, weight, sparse=sparse), hidden[:, :, None])[..., 0]
    if bias is not None:
        scores_NP = scores_NP + bias[nodes]
    return turns.to(hidden.dtype) * scores_NP


def path_cost(scores: Tensor, turns: Tensor, target: float, turn: float) -> Tensor:
    """(N,) nats: the terms `target` and `turn` of `CostWeights`, from the scores of `path_scores`."""
    cost_N = -target * (F.logsigmoid(scores) * turns.abs()).sum(-1)
    return cost_N + turn * scores.sum(-1) if turn else cost_N


def node_cost(z: Tensor, nodes: Tensor, turns: Tensor, leaves: Tensor, weights: CostWeights) -> Tensor:
    """The cost of `CostWeights` from the scores of all nodes, without a distribution over the units.

    Σ_v log P(v) is the sum over the nodes of L·log σ(z) + R·log σ(-z), with L and R the leaves under the children.

    Args:
        z: (N, V-1) node scores.
        nodes, turns: as in `path_scores`.
        leaves: (2, V-1) of the dtype of z: the number of leaves under the left and the right child.
    """
    target, every, turn = weights
    cost_N = path_cost(turns.to(z.dtype) * z.gather(1, nodes), turns, target, turn)
    if not every:
        return cost_N
    return cost_N - every * (F.logsigmoid(z) @ leaves[0] + F.logsigmoid(-z) @ leaves[1])


def leaf_log_probs(z: Tensor, edges: Tensor, level_starts: NDArray[np.int64]) -> Tensor:
    """All leaves' log-probabilities (N, V) of a binary tree from its node scores (N, V-1).

    Args:
        edges: (2V-1,) the edge that leads to each node: twice its parent, plus 1 for a right child.
    """
    turns_NE = torch.stack([F.logsigmoid(z), F.logsigmoid(-z)], dim=-1).flatten(-2)
    return leaf_sums(turns_NE, edges, edges >> 1, level_starts)


def sparse_rows(rows: Tensor, values: Tensor, shape: torch.Size) -> Tensor:
    """A coalesced sparse tensor of this shape from ascending rows (U,) and their values (U, …)."""
    # Not the argument check_invariants: PyTorch 2.11 then still warns that the checks are neither on nor off.
    with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
        return torch.sparse_coo_tensor(rows[None], values, shape, is_coalesced=True)
