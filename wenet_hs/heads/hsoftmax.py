# SPDX-License-Identifier: Apache-2.0
"""The hierarchical softmax of the paper (equation 1, appendix B), computed without a V × depth tensor.

Every inner node n of a binary tree over the units decides left with probability σ(z_n), z_n = r_n·h; a unit's
probability is the product of the decisions on its way from the root (Morin & Bengio 2005).

Dimension key: N rows, D width, V units, I = V-1 inner nodes, P longest path,
A = 2I+1 all left turns, all right turns and a zero, M decisions on the paths of N targets together.
"""

import warnings

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.tree_functions import both_log_sigmoids, smoothed_path_cost
from wenet_hs.tree import Tree

PATH_ROUTE_MIN_UNITS = 256
"""From this V on the unsmoothed loss multiplies the vectors on the targets' paths alone, below it all of them: for
1,000 rows of width 256 (one CPU thread, forward and backward, Zipf targets) 2.9 against 4.9 ms at V = 300, 4.6 against
103 ms at V = 5,000."""


class HSoftmaxHead(OutputHead):
    """The tree head. Parameters: `inner_vector.weight` (V-1, D) as in the original, with `bias` `inner_vector.bias`.

    Everything derived from the tree is a buffer outside the state_dict: the tree has its own file.
    """

    nodes: Tensor
    turns: Tensor
    leaves: Tensor
    leaf_source: Tensor
    inner_source: Tensor
    leaf_parent: Tensor
    jumps: Tensor

    def __init__(self, dim: int, tree: Tree, bias: bool = False) -> None:
        super().__init__(dim, tree.num_units)
        with warnings.catch_warnings():  # a tree of one unit has no inner node: nothing to draw, nothing to warn about
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            self.inner_vector = nn.Linear(dim, tree.num_units - 1, bias=bias)
        nodes, turns = tree.paths()
        buffers: dict[str, NDArray[np.int64] | NDArray[np.int8]] = {
            "nodes": nodes,  # (V, P)
            "turns": turns,  # (V, P)
            "leaves": tree.leaf_counts().T,  # (2, I)
            **_prefix_tables(tree),
        }
        for name, values in buffers.items():
            # Integers, so that .half() leaves them alone.
            self.register_buffer(name, torch.tensor(values), persistent=False)

    def _node_scores(self, hidden_ND: Tensor) -> Tensor:
        weight_ID, bias_I = self._vectors(hidden_ND.dtype)
        return F.linear(hidden_ND, weight_ID, bias_I)

    def _vectors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        bias = self.inner_vector.bias
        return self.inner_vector.weight.to(dtype), None if bias is None else bias.to(dtype)

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        """A leaf's log-probability is the sum of the decisions above it.

        The sums over all inner nodes take log2(depth) steps, each adding to a node what its 2^s-th ancestor has
        gathered. From V = 150 on it is faster than a product with a 0/1 matrix of paths, and than a loop over the
        levels everywhere (10 to 1,000 rows, one CPU thread).
        """
        turns_NA = F.pad(torch.cat(both_log_sigmoids(self._node_scores(hidden_ND)), dim=-1), (0, 1))
        sums_NV = turns_NA.index_select(-1, self.inner_source)
        for jump_V in self.jumps:
            sums_NV = sums_NV + sums_NV.index_select(-1, jump_V)
        return sums_NV.index_select(-1, self.leaf_parent) + turns_NA.index_select(-1, self.leaf_source)

    def _cross_entropy(self, hidden_ND: Tensor, targets_N: Tensor, target: float, every: float) -> Tensor:
        nodes_NP = self.nodes.index_select(0, targets_N)
        turns_NP = self.turns.index_select(0, targets_N)
        if every:
            scores_NI = self._node_scores(hidden_ND)
            leaves_2I = self.leaves.to(scores_NI.dtype)
            return smoothed_path_cost(scores_NI, nodes_NP, turns_NP, leaves_2I, target=target, every=every)
        if self.num_units < PATH_ROUTE_MIN_UNITS:
            scores_NP = self._node_scores(hidden_ND).gather(1, nodes_NP)
            return -target * (F.logsigmoid(scores_NP * turns_NP) * turns_NP.abs()).sum(-1)
        return target * self._path_cost(hidden_ND, nodes_NP, turns_NP)

    def _path_cost(self, hidden_ND: Tensor, nodes_NP: Tensor, turns_NP: Tensor) -> Tensor:
        """-log P of each row's path (N,), touching only the vectors on the paths: O(depth · D) a row."""
        row_M, column_M = torch.nonzero(turns_NP, as_tuple=True)
        nodes_M, turns_M = nodes_NP[row_M, column_M], turns_NP[row_M, column_M]
        weight_ID, bias_I = self._vectors(hidden_ND.dtype)
        scores_M = (F.embedding(nodes_M, weight_ID) * hidden_ND.index_select(0, row_M)).sum(-1)
        if bias_I is not None:
            scores_M = scores_M + bias_I.index_select(0, nodes_M)
        cost_M = -F.logsigmoid(scores_M * turns_M)
        return hidden_ND.new_zeros(len(hidden_ND)).index_add(0, row_M, cost_M)


def _prefix_tables(tree: Tree) -> dict[str, NDArray[np.int64]]:
    """Where each node's own term stands among [left turns (I), right turns (I), 0], and whose sum each adds.

    inner_source (I+1,) and leaf_source (V,) are columns of that table; leaf_parent (V,) and each row of
    jumps (steps, I+1) are inner nodes, I being a zero: the 1st, 2nd, 4th, … ancestor, or I above the root.
    """
    num_inner = tree.num_units - 1
    source = np.full(2 * num_inner + 1, 2 * num_inner, dtype=np.int64)
    source[tree.children] = np.arange(2 * num_inner).reshape(2, num_inner).T
    parents = np.where(tree.parents < 0, num_inner, tree.parents)
    jump = np.append(parents[:num_inner], num_inner)
    jumps = []
    while (jump < num_inner).any():
        jumps.append(jump)
        jump = jump[jump]
    return {
        "inner_source": np.append(source[:num_inner], 2 * num_inner),
        "leaf_source": source[num_inner:],
        "leaf_parent": parents[num_inner:],
        "jumps": np.array(jumps, dtype=np.int64).reshape(-1, num_inner + 1),
    }
