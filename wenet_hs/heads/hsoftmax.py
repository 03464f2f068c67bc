# SPDX-License-Identifier: Apache-2.0
"""The tree head: hierarchical softmax of the paper (equation 1, appendix B), computed without
vectors of V × depth × D.

Each inner node n of a binary tree over the units decides left with probability σ(z_n), z_n = r_n·h.
A unit's probability is the product of the decisions on its path from the root (Morin & Bengio
2005).

Dimension key: N rows, B batch, T time, L labels, D width, V units, I = V-1 inner nodes, P longest
path, K best, M decisions on the paths of some labels, U inner nodes above them.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wenet_hs.heads.gpu import copy_to
from wenet_hs.heads.kernels.search import Found, best_first, can_use_kernels, is_search_faster
from wenet_hs.heads.kernels.triton_launch import can_use_triton
from wenet_hs.heads.node_head import CostWeights, NodeHead, Route, SearchMethod, leaf_sums
from wenet_hs.tree.tree import NaryTree, Tree

NODES_PER_DECISION = 2
"""On a CPU the product with two nodes takes as long as one decision of the path kernels.

So a path is slower only in a tree like a comb, if its deep leaves are frequent.
"""
LABEL_NODES_MIN_UNITS = 512
"""From this V on `label_log_probs` computes only the nodes on the labels' paths."""
GPU_PATH_FROM = 2048
"""On a GPU with Triton the paths are used from this V on. An estimate, not a measurement."""
SCAN_MAX_K = 64
"""Up to this k one pass over the node scores keeps the best leaves.

For more, `torch.topk` is faster.
"""


class HSoftmaxHead(NodeHead):
    """The tree head.

    Parameters: `inner_vector.weight` (V-1, D) as in the original, with `bias` `inner_vector.bias`.

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
    """(V-1, 2)"""
    leaf_counts: Tensor
    """(2, V-1) how many leaves are under the left and the right child of each node."""
    path_lengths: Tensor
    """(V,)"""

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
                for optimizers like torch.optim.SparseAdam. Along the paths it has only their rows.
                Half-precision weights get a dense one.
            route, search: how costs are computed and how the k best units are found; others than
                "auto" are for tests and benchmarks.
        """
        super().__init__(dim, tree.num_units, sparse_grad=sparse_grad, route=route, search=search)
        self.inner_vector = nn.Linear(dim, tree.num_units - 1, bias=bias)
        self.tree = tree = tree.binary() if isinstance(tree, NaryTree) else tree
        self._level_starts = tree.level_starts.tolist()
        self._mean_path = tree.mean_code_length()
        tables = {
            "edges": tree.edges,
            "node_children": tree.children,
            "leaf_counts": tree.num_leaves()[tree.children].T,
        }
        for name, table in (tables | {"path_lengths": tree.depths()}).items():
            self.register_buffer(
                name, torch.from_numpy(table.astype(np.int32, order="C")), persistent=False
            )
        self._path_tables: tuple[Tensor, Tensor] | None = None

    def _plain_log_probs(self, hidden_ND: Tensor) -> Tensor:
        scores_NI = self._scores(hidden_ND)
        turns_NE = torch.stack([_log_sigmoid(scores_NI), _log_sigmoid(-scores_NI)], dim=-1).flatten(
            -2
        )
        return leaf_sums(turns_NE, self.edges, self.edges >> 1, self._level_starts)

    def _plain_cost(
        self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, is_path: bool
    ) -> Tensor:
        nodes_NP, turns_NP = self._paths(targets_N)
        if not is_path:
            leaves_2I = self.leaf_counts.to(hidden_ND.dtype)
            return torch_cost_of_all_nodes(
                self._scores(hidden_ND), nodes_NP, turns_NP, leaves_2I, weights
            )
        weight_ID, bias_I = self._vectors(hidden_ND.dtype)
        vectors_NPD = F.embedding(nodes_NP, weight_ID, sparse=self._is_sparse(weight_ID))
        scores_NP = torch.bmm(vectors_NPD, hidden_ND[:, :, None])[..., 0]
        if bias_I is not None:
            scores_NP = scores_NP + bias_I[nodes_NP]
        return torch_cost_of_paths(scores_NP, turns_NP, weights)

    def _paths(self, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes (N, P) int64, 0 where padded, and turns (N, P) int8 of each path: +1 left, -1
        right, 0 padding.
        """
        if self._path_tables is None or self._path_tables[0].device != targets_N.device:
            nodes, turns = self.tree.paths()
            with torch.inference_mode(
                False
            ):  # a table made by recognition may be used by a training later
                tables = torch.from_numpy(nodes.astype(np.int32)), torch.from_numpy(turns)
                self._path_tables = (
                    copy_to(targets_N.device, tables[0]),
                    copy_to(targets_N.device, tables[1]),
                )
        nodes_VP, turns_VP = self._path_tables
        return nodes_VP.index_select(0, targets_N).long(), turns_VP.index_select(0, targets_N)

    def _kernel_log_probs(self, hidden_ND: Tensor) -> Tensor:
        from wenet_hs.heads.kernels.tree_numba import tree_log_probs

        return tree_log_probs(self._scores(hidden_ND), self.node_children)

    def _kernel_cost(
        self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, is_path: bool
    ) -> Tensor:
        if can_use_triton(hidden_ND):
            return self._triton_cost(hidden_ND, targets_N, weights, is_path)
        from wenet_hs.heads.kernels.tree_numba import cost_of_all_nodes, cost_of_paths

        if not is_path:
            inputs = hidden_ND, *self._all_vectors(hidden_ND.dtype), targets_N
            return cost_of_all_nodes(
                *inputs, (self.edges, self.path_lengths, self.leaf_counts), weights
            )
        weight_ID, bias_I = self._vectors(hidden_ND.dtype)
        inputs, tables = (hidden_ND, weight_ID, bias_I, targets_N), (self.edges, self.path_lengths)
        return cost_of_paths(
            *inputs, tables, weights.per_decision, sparse=self._is_sparse(weight_ID)
        )

    def _triton_cost(
        self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, is_path: bool
    ) -> Tensor:
        from wenet_hs.heads.kernels.tree_triton import cost_of_all_nodes, cost_of_paths

        if not is_path:
            tables = self.edges, self.leaf_counts, self.tree.depth
            return cost_of_all_nodes(
                hidden_ND, *self._all_vectors(hidden_ND.dtype), targets_N, tables, weights
            )
        weight_ID, bias_I = self._vectors(hidden_ND.dtype)
        tree, sparse = (self.edges, self.tree.depth), self._is_sparse(weight_ID)
        return cost_of_paths(hidden_ND, weight_ID, bias_I, targets_N, tree, weights, sparse=sparse)

    def _has_cost_kernel(self, hidden: Tensor) -> bool:
        return can_use_triton(hidden) or super()._has_cost_kernel(hidden)

    def _node_smoothed_loss(self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        cost_N = self._cost(hidden_ND, targets_N, CostWeights(1.0, 0.0, smoothing))
        constant = (1.0 - smoothing) * math.log(1.0 - smoothing) + smoothing * math.log(smoothing)
        return cost_N + constant * self.path_lengths.index_select(0, targets_N).to(cost_N.dtype)

    def _eval_metrics(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        return self._cross_entropy(hidden_ND, targets_N, 1.0, 0.0), self._topk(hidden_ND, 1)[1][
            :, 0
        ] == targets_N

    def _is_search_faster(self, hidden: Tensor, k: int) -> bool:
        return is_search_faster(len(hidden), self.num_units, k)

    def _best_first(self, hidden_ND: Tensor, k: int) -> Found:
        weight_ID, bias_I = self._vectors(hidden_ND.dtype)
        return best_first(hidden_ND, weight_ID.contiguous(), bias_I, self.node_children, k)

    def _dense_topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if can_use_kernels(hidden_ND) and k <= SCAN_MAX_K and not self._wants_gradient(hidden_ND):
            from wenet_hs.heads.kernels.search_numba import scan

            found = scan(self._scores(hidden_ND).detach(), self.node_children, k)
            if found is not None:
                return found
        return super()._dense_topk(hidden_ND, k)

    def _label_log_probs(self, hidden_BTD: Tensor, labels_BL: Tensor) -> Tensor:
        """(B, T, L): each utterance from the nodes above its labels only."""
        if self.num_units < LABEL_NODES_MIN_UNITS or not labels_BL.numel():
            return super()._label_log_probs(hidden_BTD, labels_BL)
        weight_ID, bias_I = self._vectors(hidden_BTD.dtype)
        nodes, masks = [], []
        for labels_L in labels_BL.cpu().numpy():
            label_M, edge_M = self.tree.path_edges(labels_L)
            nodes_U, node_M = np.unique(edge_M >> 1, return_inverse=True)
            is_on_path = np.zeros(
                (2, len(nodes_U), len(labels_L)), np.bool_
            )  # by a left and by a right turn
            is_on_path[edge_M & 1, node_M, label_M] = True
            nodes.append(nodes_U)
            masks.append(torch.from_numpy(is_on_path).to(hidden_BTD))
        sizes, index = (
            [len(nodes_U) for nodes_U in nodes],
            torch.from_numpy(np.concatenate(nodes)).to(weight_ID.device),
        )
        # One gather for all utterances, because the gradient of each is as large as the weight.
        vectors = F.embedding(index, weight_ID, sparse=self._is_sparse(weight_ID)).split(sizes)  # type: ignore[no-untyped-call]
        biases = [None] * len(sizes) if bias_I is None else bias_I[index].split(sizes)
        found = []
        for hidden_TD, vectors_UD, bias_U, (left_UL, right_UL) in zip(
            hidden_BTD, vectors, biases, masks, strict=True
        ):
            scores_TU = F.linear(hidden_TD, vectors_UD, bias_U)
            found.append(F.logsigmoid(scores_TU) @ left_UL + F.logsigmoid(-scores_TU) @ right_UL)
        return torch.stack(found)

    def _is_path_faster(self, hidden: Tensor) -> bool:
        if can_use_kernels(hidden):
            return self.num_units > NODES_PER_DECISION * self._mean_path
        if can_use_triton(hidden):
            return self.num_units >= max(
                GPU_PATH_FROM, 8 * self.tree.depth
            )  # decisions are kept as (N, P)
        # Without Triton a GPU gathers P · D numbers per target for the path, and makes V for the
        # product. Float64 on a CPU, which only tests use, has the same rule.
        return self.num_units > self.tree.depth * self.dim


def _log_sigmoid(z: Tensor) -> Tensor:
    """`F.logsigmoid`.

    ONNX has none: the exporter would write log(sigmoid(z)), which loses all digits far below 0.
    """
    return -F.softplus(-z) if torch.compiler.is_compiling() else F.logsigmoid(z)


def torch_cost_of_paths(scores: Tensor, turns: Tensor, weights: CostWeights) -> Tensor:
    """(N,) nats, without the term `on_all`.

    Args:
        scores: (N, P) of the nodes on the targets' paths, with any values in the padding.
        turns: (N, P) +1 left, -1 right, 0 padding.
    """
    scores = turns.to(scores.dtype) * scores
    cost_N = -weights.on_target * (F.logsigmoid(scores) * turns.abs()).sum(-1)
    return cost_N + weights.per_decision * scores.sum(-1) if weights.per_decision else cost_N


def torch_cost_of_all_nodes(
    z: Tensor, nodes: Tensor, turns: Tensor, leaves: Tensor, weights: CostWeights
) -> Tensor:
    """(N,) nats, without a distribution over the units.

    Σ_v log P(v) is the sum over the nodes of L·log σ(z) + R·log σ(-z), with L and R the leaves
    under the children.

    Args:
        z: (N, V-1) node scores.
        nodes, turns: (N, P) the inner nodes on the targets' paths, and the turns as in
            `torch_cost_of_paths`.
        leaves: (2, V-1) of the dtype of z: the number of leaves under the left and the right child.
    """
    cost_N = torch_cost_of_paths(z.gather(1, nodes), turns, weights)
    if not weights.on_all:
        return cost_N
    return cost_N - weights.on_all * (F.logsigmoid(z) @ leaves[0] + F.logsigmoid(-z) @ leaves[1])
