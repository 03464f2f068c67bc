# SPDX-License-Identifier: Apache-2.0
"""The hierarchical softmax of the paper (equation 1, appendix B), computed without a V × depth tensor.

Every inner node n of a binary tree over the units decides left with probability σ(z_n), z_n = r_n·h; a unit's
probability is the product of the decisions on its way from the root (Morin & Bengio 2005).

Dimension key: N rows, B batch, T time, L labels, D width, V units, I = V-1 inner nodes, P longest path,
U inner nodes above the labels of a batch, K above those of one utterance.
"""

import math
import warnings
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wenet_hs.heads.base import OutputHead, compile_disable
from wenet_hs.heads.kernels import reference
from wenet_hs.heads.kernels.reference import CostWeights
from wenet_hs.heads.kernels.search import SearchMethod, best_leaves
from wenet_hs.heads.kernels.tables import TreeTables
from wenet_hs.heads.label_tree import label_tree
from wenet_hs.nn.cpu import linear
from wenet_hs.tree import Tree
from wenet_hs.tree.nary import NaryTree

Route = Literal["path", "nodes", "torch-path", "torch-nodes"]
"""How a cost is computed: with the vectors on the targets' paths, or with those of all nodes; by Numba's kernels on
a CPU in float32, or by PyTorch anywhere."""

RouteOption = Literal["auto", "torch", "path", "nodes", "torch-path", "torch-nodes"]
"""What a user may ask for: "auto" and "torch" choose, of all ways and of PyTorch's."""

ROUTE_OPTIONS = ("auto", "torch", "path", "nodes", "torch-path", "torch-nodes")

NODES_A_DECISION = 2
"""On a CPU all nodes' product takes as long for two nodes as the path kernels for a decision: a path is slower only in
a comb whose deep leaves occur often (1,000 rows of width 256, one thread: equal at V = 60 with 31 decisions a target,
path 1.5 times as fast at V = 10 with 3, 2 times at V = 30 with 4)."""
TORCH_NODES_A_DECISION = 40
"""The same of PyTorch's two ways on a CPU: at V = 300 with 6.6 decisions a target they are equal."""
LABEL_TREE_MIN_UNITS = 512
"""From this V on the labels of an utterance are scored on their own part of the tree, below it on all of it."""


class HSoftmaxHead(OutputHead):
    """The tree head. Parameters: `inner_vector.weight` (V-1, D) as in the original, with `bias` `inner_vector.bias`.

    `tree` is a plain attribute, outside the state_dict: it has its own file. On a CPU float32 costs are Numba's
    kernels, elsewhere plain PyTorch; torch.compile leaves both as they are. Gradients are differentiable once.
    """

    partial = True

    def __init__(
        self,
        dim: int,
        tree: Tree | NaryTree,
        bias: bool = False,
        *,
        sparse_grad: bool = False,
        route: RouteOption = "auto",
        search: SearchMethod = "auto",
    ) -> None:
        """Args:
        dim: D. tree: over V units; nodes of more than two children are split as `NaryTree.binary` does.
        bias: whether each node has one.
        sparse_grad: whether the gradient of the weight (never of the bias) is a sparse tensor, of the vectors on the
            targets' paths alone where the cost is theirs: for large V, with an optimiser as torch.optim.SparseAdam; of
            half weights it is dense.
        route: how costs are computed; one of `routes.ROUTE_OPTIONS`, "auto" being the cheapest.
        search: how the k best units are found; one of `search.SearchMethod`, "auto" being the fastest.
        """
        super().__init__(dim, tree.num_units)
        if route not in ROUTE_OPTIONS:
            raise ValueError(f"route: must be one of {', '.join(ROUTE_OPTIONS)}, got {route!r}")
        if search not in get_args(SearchMethod):
            raise ValueError(f"search: must be one of {', '.join(get_args(SearchMethod))}, got {search!r}")
        with warnings.catch_warnings():  # a tree of one unit has no inner node: nothing to draw, nothing to warn about
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            self.inner_vector = nn.Linear(dim, tree.num_units - 1, bias=bias)
        self.tree = tree = tree.binary() if isinstance(tree, NaryTree) else tree
        self.sparse_grad, self.route, self.search = sparse_grad, route, search
        self._tables = TreeTables(tree)
        self._mean_path = tree.mean_code_length()

    def sparse_parameters(self) -> list[nn.Parameter]:
        """The node vectors, if their gradient is sparse."""
        return list(self.inner_vector.parameters())[:1] if self.sparse_grad else []

    @compile_disable
    def _cross_entropy(self, hidden_ND: Tensor, targets_N: Tensor, target: float, every: float) -> Tensor:
        return self._cost(hidden_ND, targets_N, CostWeights(target, every, 0.0))

    @compile_disable
    def _node_cost(self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        cost_N = self._cost(hidden_ND, targets_N, CostWeights(1.0, 0.0, smoothing))
        constant = (1.0 - smoothing) * math.log(1.0 - smoothing) + smoothing * math.log(smoothing)
        return cost_N + constant * self._tables.path_lengths(targets_N).to(cost_N.dtype)

    @compile_disable
    def _eval_metrics(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        return self._cross_entropy(hidden_ND, targets_N, 1.0, 0.0), self._topk(hidden_ND, 1)[1][:, 0] == targets_N

    def _cost(self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights) -> Tensor:
        """(N,) what the weights say; where they name every unit or the chosen route does, from all node scores."""
        route = self._choose_route(hidden_ND, weights.every != 0)
        if route == "nodes":
            from wenet_hs.heads.kernels.nodes import node_cost

            weight_ID, bias_I = self._all_vectors(hidden_ND.dtype)
            return node_cost(hidden_ND, weight_ID, bias_I, targets_N, tables=self._tables.node_tables, weights=weights)
        if route == "torch-nodes":
            nodes_NP, turns_NP = self._tables.paths(targets_N)
            leaves_2I = self._tables.leaves(hidden_ND.device).to(hidden_ND.dtype)
            scores_NI = self._node_scores(hidden_ND)
            return reference.smoothed_path_cost(scores_NI, nodes_NP, turns_NP, leaves_2I, weights)
        return self._path_cost(hidden_ND, targets_N, weights, route)

    def _path_cost(self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, route: Route) -> Tensor:
        """(N,) touching only the vectors on the paths: O(depth · D) a row."""
        target, _, turn = weights
        weight_ID, bias_I = self._vectors(hidden_ND.dtype)
        if route == "path":
            from wenet_hs.heads.kernels.path import path_cost

            cost_N = path_cost(
                hidden_ND,
                weight_ID,
                bias_I,
                targets_N,
                climb=self._tables.climb,
                turn_smoothing=turn / target,
                sparse=self._is_sparse(weight_ID),
            )
        else:
            nodes_NP, turns_NP = self._tables.paths(targets_N)
            scores_NP = reference.path_scores(
                hidden_ND, weight_ID, bias_I, nodes_NP, turns_NP, sparse=self._is_sparse(weight_ID)
            )
            cost_N = reference.path_cost(scores_NP, turns_NP, turn / target)
        return cost_N if target == 1.0 else target * cost_N

    @compile_disable
    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        scores_NI = self._node_scores(hidden_ND)
        if self._choose_route(hidden_ND, True) == "nodes":
            from wenet_hs.heads.kernels.nodes import tree_log_probs

            return tree_log_probs(scores_NI, self._tables.children)
        return reference.prefix_log_probs(scores_NI, self._tables.prefix(hidden_ND.device))

    @compile_disable
    def _topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        weight_ID, bias_I = self._vectors(hidden_ND.dtype)
        children_I2 = self._tables.children_on(hidden_ND.device)
        values_NK, ids_NK = best_leaves(hidden_ND, weight_ID, bias_I, children_I2, k, method=self.search)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (hidden_ND, *self.parameters())):
            # The search keeps no graph: its values, with the gradients of the same units' log-probabilities.
            graph_NK = self._unit_log_probs(hidden_ND, ids_NK)
            values_NK = values_NK + (graph_NK - graph_NK.detach())
        return values_NK, ids_NK

    def _unit_log_probs(self, hidden_ND: Tensor, ids_NK: Tensor) -> Tensor:
        """(N, K): of each row's own few units, along their paths unless all nodes are cheaper."""
        if self._choose_route(hidden_ND, False).endswith("nodes"):
            return self._log_probs(hidden_ND).gather(-1, ids_NK)
        k = ids_NK.size(1)
        return -self._cross_entropy(hidden_ND.repeat_interleave(k, 0), ids_NK.reshape(-1), 1.0, 0.0).reshape(-1, k)

    @compile_disable
    def _label_log_probs(self, hidden_BTD: Tensor, labels_BL: Tensor) -> Tensor:
        if self.num_units < LABEL_TREE_MIN_UNITS or not labels_BL.numel():
            return super()._label_log_probs(hidden_BTD, labels_BL)
        if self._choose_route(hidden_BTD, True) == "nodes":
            return self._label_trees(hidden_BTD, labels_BL)
        if labels_BL.size(1) * self.tree.depth > self.num_units:  # more scores for the paths than there are nodes
            return super()._label_log_probs(hidden_BTD, labels_BL)
        return self._label_paths(hidden_BTD, labels_BL)

    def _label_trees(self, hidden_BTD: Tensor, labels_BL: Tensor) -> Tensor:
        """(B, T, L): each utterance on the part of the tree that leads to its labels."""
        from wenet_hs.heads.kernels.nodes import tree_log_probs

        trees = [label_tree(labels, self._tables.up, self._tables.children) for labels in labels_BL.numpy()]
        union_U = np.unique(np.concatenate([tree.nodes for tree in trees]))
        weight_ID, bias_I = self._vectors(hidden_BTD.dtype)
        vectors_UD = F.embedding(torch.from_numpy(union_U), weight_ID, sparse=self._is_sparse(weight_ID))
        bias_U = None if bias_I is None else bias_I[torch.from_numpy(union_U)]
        log_probs = []
        for hidden_TD, tree in zip(hidden_BTD, trees, strict=True):
            places_K = torch.from_numpy(np.searchsorted(union_U, tree.nodes))
            bias_K = None if bias_U is None else bias_U[places_K]
            scores_TK = F.linear(hidden_TD, vectors_UD.index_select(0, places_K), bias_K)
            leaves_L = torch.from_numpy(tree.leaves)
            log_probs.append(tree_log_probs(scores_TK, tree.children).index_select(-1, leaves_L))
        return torch.stack(log_probs)

    def _label_paths(self, hidden_BTD: Tensor, labels_BL: Tensor) -> Tensor:
        """(B, T, L): each label along its own path, all in one batched product; asks a GPU for nothing."""
        num_labels = labels_BL.size(1)
        nodes_MP, turns_MP = self._tables.paths(labels_BL.reshape(-1))
        nodes_BJ = nodes_MP.reshape(len(labels_BL), -1)  # J = L · P
        turns_B1J = turns_MP.reshape(len(labels_BL), 1, -1).to(hidden_BTD.dtype)
        weight_ID, bias_I = self._vectors(hidden_BTD.dtype)
        vectors_BJD = F.embedding(nodes_BJ, weight_ID, sparse=self._is_sparse(weight_ID))
        scores_BTJ = torch.bmm(hidden_BTD, vectors_BJD.transpose(1, 2))
        if bias_I is not None:
            scores_BTJ = scores_BTJ + bias_I[nodes_BJ][:, None, :]
        terms_BTJ = F.logsigmoid(scores_BTJ * turns_B1J) * turns_B1J.abs()
        return terms_BTJ.reshape(*hidden_BTD.shape[:2], num_labels, -1).sum(-1)

    def _node_scores(self, hidden_ND: Tensor) -> Tensor:
        return linear(hidden_ND, *self._all_vectors(hidden_ND.dtype))

    def _all_vectors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        weight_ID, bias_I = self._vectors(dtype)
        return reference.with_sparse_gradient(weight_ID) if self._is_sparse(weight_ID) else weight_ID, bias_I

    def _vectors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.inner_vector.weight, self.inner_vector.bias
        if weight.dtype == dtype:
            return weight, bias
        return weight.to(dtype), None if bias is None else bias.to(dtype)

    def _is_sparse(self, weight_ID: Tensor) -> bool:
        """A gradient goes through a conversion of half weights only as a dense tensor."""
        return self.sparse_grad and weight_ID is self.inner_vector.weight

    def _choose_route(self, hidden: Tensor, every_unit: bool) -> Route:
        return choose_route(
            self.num_units,
            mean_path=self._mean_path,
            max_path=self.tree.depth,
            dim=self.dim,
            every_unit=every_unit,
            device=hidden.device,
            dtype=hidden.dtype,
            wanted=self.route,
        )

    def extra_repr(self) -> str:
        """With the routes chosen for a cost of the path and one of all nodes, where and as the parameters are."""
        route: str = self.route
        if self.route in ("auto", "torch"):
            weight = self.inner_vector.weight
            like = weight.new_empty(0, dtype=torch.float64 if weight.dtype == torch.float64 else torch.float32)
            route += ": " + " and ".join(self._choose_route(like, every_unit) for every_unit in (False, True))
        return f"{super().extra_repr()}, depth={self.tree.depth}, route={route}, search={self.search}"


def choose_route(
    num_units: int,
    *,
    mean_path: float,
    max_path: int,
    dim: int,
    every_unit: bool,
    device: torch.device,
    dtype: torch.dtype,
    wanted: RouteOption = "auto",
) -> Route:
    """The way to the cost of targets; how many there are does not matter, for all ways are linear in it.

    Args:
        num_units: V.
        mean_path, max_path: decisions on the path of a unit, weighted by the units' frequencies, and the most.
        dim: D, the width of the vectors.
        every_unit: whether the cost touches all units, as leaf smoothing does; then a path is not enough.
        device, dtype: of the computation, float32 or float64.
        wanted: a way to be taken; its product of all nodes where a path is not enough.
    Raises:
        ValueError: a kernel is wanted where none can run.
    """
    can_run = device.type == "cpu" and dtype == torch.float32
    if wanted in ("path", "nodes") and not can_run:
        raise ValueError(f'route: "{wanted}" is a Numba kernel for float32 on a CPU, here is {dtype} on {device.type}')
    prefix = "" if can_run and not wanted.startswith("torch") else "torch-"
    if every_unit or wanted.endswith("nodes"):
        return "torch-nodes" if prefix else "nodes"
    if wanted.endswith("path"):
        return "torch-path" if prefix else "path"
    if not prefix:
        return "path" if num_units > NODES_A_DECISION * mean_path else "nodes"
    if device.type == "cpu":
        return "torch-path" if num_units > TORCH_NODES_A_DECISION * mean_path else "torch-nodes"
    # A GPU gathers P · D numbers a target for the path and makes V for the product: the smaller also needs less memory.
    return "torch-path" if num_units > max_path * dim else "torch-nodes"
