# SPDX-License-Identifier: Apache-2.0
"""The tables that the tree head derives from its tree, and its costs in plain PyTorch.

The PyTorch functions run on any device and in any precision. They are the reference of the Numba kernels.

Dimension key: N rows, D width, V units, I = V-1 inner nodes, P longest path, A = 2I+1 all left turns, all right turns
and a zero.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from wenet_hs.tree.tree import Tree


class CostWeights(NamedTuple):
    """Weights of the cost target · -log P(target unit) + every · -Σ_v log P(v) + turn · Σ scores of the path's turns.

    The last term smooths each decision: -(1-ε)·log σ(s) - ε·log σ(-s) = -log σ(s) + ε·s, where s is the score of the
    turn on the path.
    """

    target: float
    every: float
    turn: float


class AncestorTables(NamedTuple):
    """Indices for the sums along all paths. An inner node adds its own turn, then the sum of its 1st, 2nd, 4th, …
    ancestor; the index I stands for a zero above the root.
    """

    inner_turns: Tensor
    """(I+1,) int64, as all of them: each inner node's own turn among the A."""
    leaf_turns: Tensor
    """(V,) each leaf's own turn among the A."""
    leaf_parents: Tensor
    """(V,) the inner node above each leaf."""
    jumps: Tensor
    """(steps, I+1) the 2^step-th ancestor."""


class TreeTables:
    """Arrays and tensors derived from a tree. Each is made when it is first used, tensors once per device.

    Copies and pickles hold the tree only.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._tensors: dict[tuple[torch.device, str], Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"tree": self.tree}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["tree"])  # type: ignore[misc]

    @cached_property
    def up(self) -> NDArray[np.int32]:
        """(2V-1,) twice the inner node above each node, plus 1 for its right child; -1 above the root."""
        children = self.tree.children
        up = np.full(2 * len(children) + 1, -1, dtype=np.int32)
        up[children.reshape(-1)] = np.arange(children.size)
        return up

    @cached_property
    def depths(self) -> NDArray[np.int64]:
        """(V,) the number of decisions above each leaf."""
        return self.tree.depths()

    @cached_property
    def children(self) -> NDArray[np.int32]:
        """(V-1, 2), writeable and half the size of the tree's."""
        return self.tree.children.astype(np.int32)

    @cached_property
    def num_leaves(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(V-1,), (V-1,): how many leaves are under each node's left and right child."""
        left, right = (np.ascontiguousarray(counts) for counts in self.tree.leaf_counts().T.astype(np.float32))
        return left, right

    def paths(self, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes (N, P) int64, 0 where padded, and turns (N, P) int8 of each path: +1 left, -1 right, 0 padding."""
        device = targets_N.device
        nodes_VP = self._tensor("nodes", device, lambda: self.tree.paths()[0].astype(np.int32))
        turns_VP = self._tensor("turns", device, lambda: self.tree.paths()[1])
        return nodes_VP.index_select(0, targets_N).long(), turns_VP.index_select(0, targets_N)

    def leaf_counts_on(self, device: torch.device) -> Tensor:
        """(2, V-1) int64: how many leaves are under the left and the right child."""
        return self._tensor("leaf_counts", device, lambda: self.tree.leaf_counts().T)

    def children_on(self, device: torch.device) -> Tensor:
        """(V-1, 2) int64, for the search."""
        return self._tensor("children", device, lambda: self.tree.children)

    def path_lengths(self, targets_N: Tensor) -> Tensor:
        """(N,) int64: the number of decisions on each target's path."""
        return self._tensor("depths", targets_N.device, lambda: self.depths).index_select(0, targets_N)

    def ancestors_on(self, device: torch.device) -> AncestorTables:
        """For the log-probabilities of all units."""
        if (device, AncestorTables._fields[0]) not in self._tensors:
            for name, values in zip(AncestorTables._fields, _ancestor_tables(self.tree), strict=True):
                self._tensor(name, device, lambda values=values: values)  # type: ignore[misc]
        return AncestorTables(*(self._tensors[device, name] for name in AncestorTables._fields))

    def _tensor(self, name: str, device: torch.device, make: Callable[[], NDArray[Any]]) -> Tensor:
        if (device, name) not in self._tensors:
            with torch.inference_mode(False):  # a table that recognition made may be used by a training later
                self._tensors[device, name] = torch.tensor(make(), device=device)
        return self._tensors[device, name]


def _ancestor_tables(tree: Tree) -> tuple[NDArray[np.int64], ...]:
    num_inner = tree.num_units - 1
    turns = np.full(2 * num_inner + 1, 2 * num_inner, dtype=np.int64)
    turns[tree.children] = np.arange(2 * num_inner).reshape(2, num_inner).T
    parents = np.where(tree.parents < 0, num_inner, tree.parents)
    jump = np.append(parents[:num_inner], num_inner)
    jumps = []
    while (jump < num_inner).any():
        jumps.append(jump)
        jump = jump[jump]
    return (
        np.append(turns[:num_inner], 2 * num_inner),
        turns[num_inner:],
        parents[num_inner:],
        np.array(jumps, dtype=np.int64).reshape(-1, num_inner + 1),
    )


def path_scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, nodes: Tensor, turns: Tensor, *, sparse: bool
) -> Tensor:
    """The score of each turn on the paths of the rows' targets (N, P), 0 where padded, from their vectors only.

    Args:
        hidden: (N, D). weight: (V-1, D). bias: (V-1,) or none. nodes, turns: as `TreeTables.paths` gives them.
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
        z: (N, V-1) node scores, float32 or float64.
        nodes, turns: as `TreeTables.paths` gives them.
        leaves: (2, V-1) of the dtype of z: the number of leaves under the left and the right child.
    """
    target, every, turn = weights
    cost_N = path_cost(turns.to(z.dtype) * z.gather(1, nodes), turns, target, turn)
    if not every:
        return cost_N
    return cost_N - every * (F.logsigmoid(z) @ leaves[0] + F.logsigmoid(-z) @ leaves[1])


def leaf_log_probs(z: Tensor, tables: AncestorTables) -> Tensor:
    """All leaves' log-probabilities (N, V) from the node scores (N, V-1), in log2(depth) steps.

    Each step adds to a node the sum that its 2^step-th ancestor has so far.
    """
    turns_NA = F.pad(torch.cat([F.logsigmoid(z), F.logsigmoid(-z)], dim=-1), (0, 1))
    sums_NI = turns_NA.index_select(-1, tables.inner_turns)
    for jump_I in tables.jumps:
        sums_NI = sums_NI + sums_NI.index_select(-1, jump_I)
    return sums_NI.index_select(-1, tables.leaf_parents) + turns_NA.index_select(-1, tables.leaf_turns)


def sparse_rows(rows: Tensor, values: Tensor, shape: torch.Size) -> Tensor:
    """A coalesced sparse tensor of this shape from ascending rows (U,) and their values (U, …)."""
    # Not the argument check_invariants: PyTorch 2.11 then still warns that the checks are neither on nor off.
    with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
        return torch.sparse_coo_tensor(rows[None], values, shape, is_coalesced=True)
