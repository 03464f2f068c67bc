# SPDX-License-Identifier: Apache-2.0
"""The tree head: hierarchical softmax of the paper (equation 1, appendix B), computed without a V × depth tensor.

Each inner node n of a binary tree over the units decides left with probability σ(z_n), z_n = r_n·h. A unit's
probability is the product of the decisions on its path from the root (Morin & Bengio 2005).

Dimension key: N rows, B batch, T time, L labels, D width, V units, I = V-1 inner nodes, P longest path, K best.
"""

import math
import warnings
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wenet_hs.heads.base import OutputHead, compile_disable
from wenet_hs.heads.kernels import tree as reference
from wenet_hs.heads.kernels.search import SearchMethod, best_leaves
from wenet_hs.heads.kernels.tree import CostWeights, TreeTables
from wenet_hs.nn.cpu import linear
from wenet_hs.tree.tree import NaryTree, Tree

Route = Literal["path", "nodes", "torch-path", "torch-nodes"]
"""How a cost is computed: with the vectors on the targets' paths or with those of all nodes, by Numba kernels (float32
on a CPU) or by PyTorch (anywhere)."""

RouteOption = Literal["auto", "torch", "path", "nodes", "torch-path", "torch-nodes"]
"""The setting: "auto" chooses among all routes, "torch" among PyTorch's."""

NODES_PER_DECISION = 2
"""On a CPU the product with two nodes takes as long as one decision of the path kernels. So a path is slower only in a
tree like a comb, if its deep leaves are frequent."""
TORCH_NODES_PER_DECISION = 40
"""The same for PyTorch's two routes on a CPU: they are equal at V = 300 with 6.6 decisions per target."""
LABEL_PATHS_MIN_UNITS = 512
"""From this V on `label_log_probs` computes only the nodes on the labels' paths, if these are few enough."""
NODES_PER_LABEL_DECISION = 8
"""For `label_log_probs`: the kernel of all nodes computes this many in the time of one node of a label's path."""


class HSoftmaxHead(OutputHead):
    """The tree head. Parameters: `inner_vector.weight` (V-1, D) as in the original, with `bias` `inner_vector.bias`.

    `tree` is a plain attribute, outside the state_dict: it has its own file. float32 costs on a CPU are computed by
    Numba kernels, others by PyTorch. torch.compile does not trace either. Gradients are differentiable once.
    """

    has_partial_log_probs = True

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
        """
        Args:
            dim: D.
            tree: over V units; nodes of more than two children are split as `NaryTree.binary` does.
            bias: whether each node has a bias.
            sparse_grad: whether the gradient of the weight (never of the bias) is a sparse tensor, for large V with an
                optimizer like torch.optim.SparseAdam. It has only the rows on the targets' paths if the cost is
                computed along the paths. The gradient of half-precision weights is dense.
            route: how costs are computed; "auto" is the fastest.
            search: how the k best units are found; one of `search.SearchMethod`, "auto" is the fastest.
        """
        super().__init__(dim, tree.num_units)
        if route not in get_args(RouteOption):
            raise ValueError(f"route: must be one of {', '.join(get_args(RouteOption))}, got {route!r}")
        if search not in get_args(SearchMethod):
            raise ValueError(f"search: must be one of {', '.join(get_args(SearchMethod))}, got {search!r}")
        with warnings.catch_warnings():  # a tree of one unit has no inner node
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
        """(N,) the cost of `weights`, by the chosen route."""
        target, every, turn = weights
        route = self._choose_route(hidden_ND, every != 0)
        if route == "nodes":
            from wenet_hs.heads.kernels.nodes import node_cost

            weight_ID, bias_I = self._all_vectors(hidden_ND.dtype)
            return node_cost(hidden_ND, weight_ID, bias_I, targets_N, tables=self._tables, weights=weights)
        weight_ID, bias_I = self._vectors(hidden_ND.dtype)
        sparse = self._is_sparse(weight_ID)
        if route == "path":
            from wenet_hs.heads.kernels.path import path_cost

            vectors, turn_smoothing = (weight_ID, bias_I), turn / target
            cost_N = path_cost(
                hidden_ND, *vectors, targets_N, tables=self._tables, turn_smoothing=turn_smoothing, sparse=sparse
            )
            return cost_N if target == 1.0 else target * cost_N
        nodes_NP, turns_NP = self._tables.paths(targets_N)
        if route == "torch-nodes":
            leaves_2I = self._tables.leaf_counts_on(hidden_ND.device).to(hidden_ND.dtype)
            return reference.node_cost(self._node_scores(hidden_ND), nodes_NP, turns_NP, leaves_2I, weights)
        scores_NP = reference.path_scores(hidden_ND, weight_ID, bias_I, nodes_NP, turns_NP, sparse=sparse)
        return reference.path_cost(scores_NP, turns_NP, target, turn)

    @compile_disable
    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        scores_NI = self._node_scores(hidden_ND)
        if self._choose_route(hidden_ND, True) == "nodes":
            from wenet_hs.heads.kernels.nodes import tree_log_probs

            return tree_log_probs(scores_NI, self._tables.children)
        return reference.leaf_log_probs(scores_NI, self._tables.ancestors_on(hidden_ND.device))

    @compile_disable
    def _topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        weight_ID, bias_I = self._vectors(hidden_ND.dtype)
        values_NK, ids_NK = best_leaves(hidden_ND, weight_ID, bias_I, self._tables, k, method=self.search)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (hidden_ND, *self.parameters())):
            # The search has no graph: its values get the gradients of the same units' log-probabilities.
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
        """(B, T, L): each label along its own path, all in one batched product, without a synchronization of a GPU."""
        num_decisions = labels_BL.size(1) * self.tree.depth
        cost = num_decisions * (NODES_PER_LABEL_DECISION if self._choose_route(hidden_BTD, True) == "nodes" else 1)
        if self.num_units < LABEL_PATHS_MIN_UNITS or not labels_BL.numel() or cost > self.num_units:
            return super()._label_log_probs(hidden_BTD, labels_BL)
        nodes_MP, turns_MP = self._tables.paths(labels_BL.reshape(-1))
        nodes_BJ = nodes_MP.reshape(len(labels_BL), -1)  # J = L · P
        turns_B1J = turns_MP.reshape(len(labels_BL), 1, -1).to(hidden_BTD.dtype)
        weight_ID, bias_I = self._vectors(hidden_BTD.dtype)
        vectors_BJD = F.embedding(nodes_BJ, weight_ID, sparse=self._is_sparse(weight_ID))
        scores_BTJ = torch.bmm(hidden_BTD, vectors_BJD.transpose(1, 2))
        if bias_I is not None:
            scores_BTJ = scores_BTJ + bias_I[nodes_BJ][:, None, :]
        terms_BTJ = F.logsigmoid(scores_BTJ * turns_B1J) * turns_B1J.abs()
        return terms_BTJ.reshape(*hidden_BTD.shape[:2], labels_BL.size(1), -1).sum(-1)

    def _node_scores(self, hidden_ND: Tensor) -> Tensor:
        return linear(hidden_ND, *self._all_vectors(hidden_ND.dtype))

    def _all_vectors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """The weight, whose gradient is a sparse tensor of all rows with `sparse_grad`, and the bias."""
        weight_ID, bias_I = self._vectors(dtype)
        if not self._is_sparse(weight_ID) or not torch.is_grad_enabled():
            return weight_ID, bias_I
        return F.embedding(torch.arange(len(weight_ID), device=weight_ID.device), weight_ID, sparse=True), bias_I

    def _vectors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.inner_vector.weight, self.inner_vector.bias
        if weight.dtype == dtype:
            return weight, bias
        return weight.to(dtype), None if bias is None else bias.to(dtype)

    def _is_sparse(self, weight_ID: Tensor) -> bool:
        """Whether the gradient is sparse. It is dense after a conversion of half-precision weights."""
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
        """With the chosen routes of a path's cost and of a cost of all nodes."""
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
    """The fastest route to the cost of targets. The number of targets does not matter: all routes are linear in it.

    Args:
        num_units: V.
        mean_path, max_path: the number of decisions on a path, mean weighted by the units' frequencies, and maximum.
        dim: D, the width of the vectors.
        every_unit: whether the cost depends on all units, as with leaf smoothing. A path route cannot compute it.
        device, dtype: of the computation, float32 or float64.
        wanted: the setting. A path route becomes its route of all nodes where a path is not enough.
    Raises:
        ValueError: a kernel is wanted that cannot run here.
    """
    can_run = device.type == "cpu" and dtype == torch.float32
    if wanted in ("path", "nodes") and not can_run:
        raise ValueError(f'route: "{wanted}" is a Numba kernel for float32 on a CPU, here is {dtype} on {device.type}')
    uses_kernels = can_run and not wanted.startswith("torch")
    if every_unit or wanted.endswith("nodes"):
        is_path = False
    elif wanted.endswith("path"):
        is_path = True
    elif device.type != "cpu":
        # A GPU gathers P · D numbers per target for the path, and makes V for the product.
        is_path = num_units > max_path * dim
    else:
        is_path = num_units > (NODES_PER_DECISION if uses_kernels else TORCH_NODES_PER_DECISION) * mean_path
    if is_path:
        return "path" if uses_kernels else "torch-path"
    return "nodes" if uses_kernels else "torch-nodes"
