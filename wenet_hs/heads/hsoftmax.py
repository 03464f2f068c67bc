# SPDX-License-Identifier: Apache-2.0
"""`HSoftmaxHead`, the hierarchical softmax of Liu et al. 2023 (equation 1, appendix B).

Unlike the original code it never has a tensor of V × depth × D.

Each inner node n of a binary tree over the units decides left with probability σ(z_n), where
z_n = r_n·h. A unit's probability is the product of the decisions on its path from the root (Morin &
Bengio 2005).

Dimension key: N rows, B batch, T time, L labels, D width, V units, I = V-1 inner nodes, P longest
path, K best, M decisions on the paths of some labels, U inner nodes above them.
"""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from wenet_hs.heads.gpu import copy_to
from wenet_hs.heads.kernels.search import best_first, can_use_kernels, is_search_faster
from wenet_hs.heads.kernels.search_result import SearchResult
from wenet_hs.heads.kernels.triton_launch import can_use_triton
from wenet_hs.heads.node_head import CostWeights, NodeHead, Route, SearchMethod, leaf_sums
from wenet_hs.tree.tree import NaryTree, Tree

NODES_PER_DECISION = 2
"""Two nodes in the product with all nodes take a CPU as long as one decision of the path kernels.

So paths are slower only if they are longer than half the number of units on average: in a tree that
is almost a list, whose deep leaves are frequent.
"""
LABEL_NODES_MIN_UNITS = 512
"""From this V on `label_log_probs` computes only the nodes on the labels' paths."""
GPU_PATH_FROM = 2048
"""On a GPU with Triton the paths are used from this V on. An estimate, not a measurement."""
GPU_UNITS_PER_LEVEL = 8
"""There V must also be at least this many times the depth, because decisions are kept as (N, P)."""
SCAN_MAX_K = 64
"""Up to this k one pass over the node scores that keeps the best leaves is faster than `topk`."""


class HSoftmaxHead(NodeHead):
    """The head over a binary tree: one yes-or-no decision per inner node.

    Parameters: `inner_vector.weight` (V-1, D) as in the original code of the paper, and
    `inner_vector.bias` (V-1,) if `bias`.

    `tree` is a plain attribute, and the tables derived from it are not in the state_dict: the tree
    has its own file. float32 costs are computed by Numba kernels on a CPU and by Triton kernels on
    a GPU, others by PyTorch, which keeps a table of the paths (V, P). Gradients are differentiable
    once.
    """

    layer_name = "inner_vector"
    tree: Tree
    edges: Tensor
    """(2V-1,) the edge to each node: twice the inner node above it, plus 1 for its right child; -1
    for the root.
    """
    node_children: Tensor
    """(V-1, 2) the left and the right child: an inner node below V-1, or V-1 plus a unit id."""
    leaf_counts: Tensor
    """(2, V-1) how many leaves are under the left and the right child of each node."""
    path_lengths: Tensor
    """(V,) the number of decisions on each unit's path."""

    def __init__(
        self,
        dim: int,
        tree: Tree | NaryTree,
        bias: bool = False,
        *,
        sparse_grad: bool = False,
        route: Route = "auto",
        search: SearchMethod = "auto",
    ) -> None:
        """
        Args:
            dim: D.
            tree: over V units; nodes of more than two children are split as `NaryTree.binary` does.
            bias: whether each node has a bias.
            sparse_grad: whether the gradient of the weight (never of the bias) is a sparse tensor,
                for optimizers like torch.optim.SparseAdam. If a cost is computed from paths, the
                gradient has only the rows of their nodes. Half-precision weights get a dense one.
            route, search: how costs are computed and how the k best units are found; values other
                than "auto" are for tests and benchmarks.
        """
        super().__init__(dim, tree.num_units, sparse_grad=sparse_grad, route=route, search=search)
        self.inner_vector = nn.Linear(dim, tree.num_units - 1, bias=bias)
        tree = tree.binary() if isinstance(tree, NaryTree) else tree
        self.tree = tree
        self._level_starts = tree.level_starts.tolist()
        self._mean_path = tree.mean_code_length()
        tables = {
            "edges": tree.edges,
            "node_children": tree.children,
            "leaf_counts": tree.num_leaves()[tree.children].T,
            "path_lengths": tree.depths(),
        }
        for name, table in tables.items():
            int32_table = torch.from_numpy(table.astype(np.int32, order="C"))
            self.register_buffer(name, int32_table, persistent=False)
        self._path_tables: tuple[Tensor, Tensor] | None = None  # made by `_paths`

    def _plain_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) → (N, V): the sum of the log-probabilities of the turns on each unit's path."""
        scores_NI = self._scores(hidden_ND)
        turns_NI2 = torch.stack([_log_sigmoid(scores_NI), _log_sigmoid(-scores_NI)], dim=-1)
        turns_NE = turns_NI2.flatten(-2)  # in the order of `edges`: left 2n, right 2n + 1
        parents = self.edges >> 1
        return leaf_sums(turns_NE, self.edges, parents, self._level_starts)

    def _plain_cost(
        self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, is_path: bool
    ) -> Tensor:
        """(N,) nats by PyTorch's operations, from the nodes on the paths only if `is_path`."""
        nodes_NP, turns_NP = self._paths(targets_N)
        if not is_path:
            scores_NI = self._scores(hidden_ND)
            leaves_2I = self.leaf_counts.to(hidden_ND.dtype)
            return torch_cost_of_all_nodes(scores_NI, nodes_NP, turns_NP, leaves_2I, weights)
        weight_ID, bias_I = self._weight_and_bias(hidden_ND.dtype)
        vectors_NPD = F.embedding(nodes_NP, weight_ID, sparse=self._is_sparse(weight_ID))
        scores_NP = torch.bmm(vectors_NPD, hidden_ND[:, :, None])[..., 0]
        if bias_I is not None:
            scores_NP = scores_NP + bias_I[nodes_NP]
        return torch_cost_of_paths(scores_NP, turns_NP, weights)

    def _paths(self, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """The path of each target from the root, from tables that the first call makes.

        Returns: nodes (N, P) int64, 0 in the padding, and turns (N, P) int8: +1 left, -1 right, 0
            in the padding.
        """
        device = targets_N.device
        if self._path_tables is None or self._path_tables[0].device != device:
            nodes, turns = self.tree.paths()
            # A training may later use a table that recognition made in inference mode.
            with torch.inference_mode(False):
                nodes_VP = torch.from_numpy(nodes.astype(np.int32))
                turns_VP = torch.from_numpy(turns)
                self._path_tables = (copy_to(device, nodes_VP), copy_to(device, turns_VP))
        nodes_VP, turns_VP = self._path_tables
        return nodes_VP.index_select(0, targets_N).long(), turns_VP.index_select(0, targets_N)

    def _kernel_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) → (N, V) by a Numba kernel."""
        from wenet_hs.heads.kernels.tree_numba import tree_log_probs

        return tree_log_probs(self._scores(hidden_ND), self.node_children)

    def _kernel_cost(
        self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, is_path: bool
    ) -> Tensor:
        """`_plain_cost` by Triton kernels on a GPU, and by Numba kernels on a CPU."""
        if can_use_triton(hidden_ND):
            return self._triton_cost(hidden_ND, targets_N, weights, is_path)
        from wenet_hs.heads.kernels.tree_numba import cost_of_all_nodes, cost_of_paths

        if is_path:
            weight_ID, bias_I = self._weight_and_bias(hidden_ND.dtype)
            return cost_of_paths(
                hidden_ND,
                weight_ID,
                bias_I,
                targets_N,
                tables=(self.edges, self.path_lengths),
                per_decision=weights.per_decision,
                sparse=self._is_sparse(weight_ID),
            )
        weight_ID, bias_I = self._weight_and_bias_of_all(hidden_ND.dtype)
        tables = (self.edges, self.path_lengths, self.leaf_counts)
        return cost_of_all_nodes(hidden_ND, weight_ID, bias_I, targets_N, tables, weights)

    def _triton_cost(
        self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, is_path: bool
    ) -> Tensor:
        """`_plain_cost` by Triton kernels on a GPU."""
        from wenet_hs.heads.kernels.tree_triton import cost_of_all_nodes, cost_of_paths

        depth = self.tree.depth
        if is_path:
            weight_ID, bias_I = self._weight_and_bias(hidden_ND.dtype)
            return cost_of_paths(
                hidden_ND,
                weight_ID,
                bias_I,
                targets_N,
                tree=(self.edges, depth),
                weights=weights,
                sparse=self._is_sparse(weight_ID),
            )
        weight_ID, bias_I = self._weight_and_bias_of_all(hidden_ND.dtype)
        tables = (self.edges, self.leaf_counts, depth)
        return cost_of_all_nodes(hidden_ND, weight_ID, bias_I, targets_N, tables, weights)

    def _has_cost_kernel(self, hidden: Tensor) -> bool:
        return can_use_triton(hidden) or super()._has_cost_kernel(hidden)

    def _node_smoothed_loss(self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        """(N,) nats: the cost of node smoothing, plus one constant per decision on the path."""
        cost_N = self._node_smoothed_cost(hidden_ND, targets_N, smoothing)
        # Minus the entropy of one decision between 1-ε and ε.
        constant = (1.0 - smoothing) * math.log(1.0 - smoothing) + smoothing * math.log(smoothing)
        return cost_N + constant * self.path_lengths.index_select(0, targets_N).to(cost_N.dtype)

    def _eval_metrics(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """The nll of each target (N,), and whether it is the best unit (N,)."""
        nll_N = self._cross_entropy(hidden_ND, targets_N, on_target=1.0, on_all=0.0)
        _, best_N1 = self._topk(hidden_ND, 1)
        return nll_N, best_N1[:, 0] == targets_N

    def _is_search_faster(self, hidden: Tensor, k: int) -> bool:
        return is_search_faster(len(hidden), self.num_units, k)

    def _best_first(self, hidden_ND: Tensor, k: int) -> SearchResult:
        weight_ID, bias_I = self._weight_and_bias(hidden_ND.dtype)
        return best_first(hidden_ND, weight_ID.contiguous(), bias_I, self.node_children, k)

    def _dense_topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best units of each row (N, K), from the scores of all nodes.

        A Numba kernel finds them if k is small, no gradient is wanted and no score is a NaN.
        """
        if can_use_kernels(hidden_ND) and k <= SCAN_MAX_K and not self._wants_gradient(hidden_ND):
            from wenet_hs.heads.kernels.search_numba import scan

            best_units = scan(self._scores(hidden_ND).detach(), self.node_children, k)
            if best_units is not None:
                return best_units
        return super()._dense_topk(hidden_ND, k)

    def _label_log_probs(self, hidden_BTD: Tensor, labels_BL: Tensor) -> Tensor:
        """(B, T, L): the log-probabilities of the labels, from the nodes above them only.

        For each utterance these are other nodes. The logarithms of the turns to the left and to the
        right are added up by products with 0/1 masks of the labels' paths. With few units all
        log-probabilities are computed instead, which is faster.
        """
        if self.num_units < LABEL_NODES_MIN_UNITS or not labels_BL.numel():
            return super()._label_log_probs(hidden_BTD, labels_BL)
        nodes = []
        masks = []
        for labels_L in labels_BL.cpu().numpy():
            nodes_U, is_on_path_2UL = nodes_above(self.tree, labels_L)
            nodes.append(nodes_U)
            masks.append(torch.from_numpy(is_on_path_2UL).to(hidden_BTD))
        num_nodes = [len(nodes_U) for nodes_U in nodes]
        weight_ID, bias_I = self._weight_and_bias(hidden_BTD.dtype)
        all_nodes = torch.from_numpy(np.concatenate(nodes)).to(weight_ID.device)
        # One gather for all utterances: the gradient of each gather is as large as the weight.
        vectors = F.embedding(all_nodes, weight_ID, sparse=self._is_sparse(weight_ID))
        vectors_of = torch.split(vectors, num_nodes)
        biases_of: Any = [None] * len(num_nodes)
        if bias_I is not None:
            biases_of = torch.split(bias_I[all_nodes], num_nodes)
        log_probs = []
        for utterance, hidden_TD in enumerate(hidden_BTD):
            scores_TU = F.linear(hidden_TD, vectors_of[utterance], biases_of[utterance])
            left_UL, right_UL = masks[utterance]
            log_probs_TL = F.logsigmoid(scores_TU) @ left_UL + F.logsigmoid(-scores_TU) @ right_UL
            log_probs.append(log_probs_TL)
        return torch.stack(log_probs)

    def _is_path_faster(self, hidden: Tensor) -> bool:
        """Whether the nodes on the targets' paths are faster than all nodes, by the kernel used."""
        if can_use_kernels(hidden):
            return self.num_units > NODES_PER_DECISION * self._mean_path
        if can_use_triton(hidden):
            return self.num_units >= max(GPU_PATH_FROM, GPU_UNITS_PER_LEVEL * self.tree.depth)
        # Without Triton a GPU gathers depth · D numbers per target for the path. For all nodes it
        # computes about V scores. Float64 on a CPU, which only tests use, has the same rule.
        return self.num_units > self.tree.depth * self.dim


def nodes_above(tree: Tree, labels: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The inner nodes above some units (L,), and which of their turns lead to which unit.

    Returns: the nodes (U,) int64, ascending, and (2, U, L) bool: [0] whether the path to the unit
        turns left at the node, [1] whether it turns right there.
    """
    label_M, edge_M = tree.path_edges(labels)
    node_M = edge_M >> 1
    turn_M = edge_M & 1  # 0 left, 1 right
    nodes_U, index_M = np.unique(node_M, return_inverse=True)
    is_on_path_2UL = np.zeros((2, len(nodes_U), len(labels)), np.bool_)
    is_on_path_2UL[turn_M, index_M, label_M] = True
    return nodes_U, is_on_path_2UL


def _log_sigmoid(scores: Tensor) -> Tensor:
    """`F.logsigmoid`, also in an export to ONNX.

    ONNX has no such operator. The exporter would write log(sigmoid(z)), which is -inf for scores
    far below 0.
    """
    if torch.compiler.is_compiling():
        return -F.softplus(-scores)
    return F.logsigmoid(scores)


def torch_cost_of_paths(scores: Tensor, turns: Tensor, weights: CostWeights) -> Tensor:
    """The cost of each row (N,) in nats, without the term `on_all`.

    Args:
        scores: (N, P) of the nodes on the targets' paths, with any values in the padding.
        turns: (N, P) +1 left, -1 right, 0 padding.
    """
    turn_scores = turns.to(scores.dtype) * scores  # of the turn that was taken; 0 in the padding
    is_decision = turns.abs()  # 1, or 0 in the padding
    cost_N = -weights.on_target * (F.logsigmoid(turn_scores) * is_decision).sum(-1)
    if not weights.per_decision:
        return cost_N
    return cost_N + weights.per_decision * turn_scores.sum(-1)


def torch_cost_of_all_nodes(
    scores: Tensor, nodes: Tensor, turns: Tensor, leaves: Tensor, weights: CostWeights
) -> Tensor:
    """The cost of each row (N,) in nats, from all node scores, without a distribution over units.

    Σ_v log P(v) is the sum over the nodes of L·log σ(z) + R·log σ(-z). Here z is the score of the
    node, and L and R are the numbers of leaves under its left and its right child.

    Args:
        scores: (N, V-1) of all nodes.
        nodes, turns: (N, P) the inner nodes on the targets' paths, and the turns as in
            `torch_cost_of_paths`.
        leaves: (2, V-1) of the dtype of the scores: the number of leaves under the left and the
            right child of each node.
    """
    cost_N = torch_cost_of_paths(scores.gather(1, nodes), turns, weights)
    if not weights.on_all:
        return cost_N
    left_I, right_I = leaves
    all_units_N: Tensor = F.logsigmoid(scores) @ left_I + F.logsigmoid(-scores) @ right_I
    return cost_N - weights.on_all * all_units_N
