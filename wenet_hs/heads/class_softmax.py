# SPDX-License-Identifier: Apache-2.0
"""The class head: a softmax at each inner node of a tree over its children (Goodman 2001; p-tHSM's
cHSM).

P(v) is the product of softmax(W_n·h + b_n)[child on the path] over the nodes n on the path of v
from the root. The common form has two levels of about √V classes of √V units each. Trees with any
number of children are allowed.

Dimension key: N rows, D width, V units, I inner nodes, E = I+V-1 edges (children of all nodes, node
by node), B batch, T frames, L labels, K best, M decisions on the paths of N targets, G groups of
decisions at one node, U edges of some nodes; in the padded reference: B nodes, R rows at a node, C
its children.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from wenet_hs.heads.base import weighted_cost
from wenet_hs.heads.gpu import copy_to
from wenet_hs.heads.kernels.search import Found, can_use_kernels
from wenet_hs.heads.node_head import CostWeights, NodeHead, Route, SearchMethod, leaf_sums
from wenet_hs.heads.products import linear
from wenet_hs.tree.tree import NaryTree, Tree

Ints = NDArray[np.int64]

ALL_EDGES_BELOW = 128
"""With fewer edges than this on a CPU, all scores are faster than a product per node."""
ALL_EDGES_BELOW_GPU = 20_000
"""The same on a GPU, where the path route has to wait for the targets."""
SEARCH_FROM_EDGES = 4_000
"""From this number of edges on, a search from the root is faster than the product with all edges."""
SEARCH_BEST = 128
"""A larger k is taken from all log-probabilities."""
SEARCH_BUDGET = 16
"""A row whose search needs more than 1/16 of all edges is computed by the product with all of them."""


class ClassHead(NodeHead):
    """Parameters: `output.weight` (E, D) and `output.bias` (E,), the edges in the order of
    `tree.children`.

    The tables derived from the tree are not in the state_dict: the tree has its own file.
    """

    layer_name = "output"
    tree: NaryTree
    offsets: Tensor
    """(I+1,) the first edge of each node."""
    edge_nodes: Tensor
    """(E,) the node that each edge leaves."""
    node_edges: Tensor
    """(I+V,) the edge that leads to each node; -1 for the root."""
    leaves: Tensor
    """(E,) the number of leaves below each edge."""

    def __init__(
        self,
        dim: int,
        tree: NaryTree | Tree,
        *,
        sparse_grad: bool = False,
        route: Route = "auto",
        search: SearchMethod = "auto",
    ) -> None:
        """
        Args:
            tree: over the V units; a binary one becomes two levels by `NaryTree.from_binary(tree)`.
            sparse_grad: as of `HSoftmaxHead`; along the paths it has all edges of the nodes on
                them.
            route, search: as of `HSoftmaxHead`.
        """
        super().__init__(dim, tree.num_units, sparse_grad=sparse_grad, route=route, search=search)
        tree = NaryTree.from_binary(tree) if isinstance(tree, Tree) else tree
        self.output = nn.Linear(dim, tree.num_edges)
        self.tree = tree
        self._level_starts = tree.level_starts.tolist()
        # (2, V): the length of each path, and Σ log(c - 1) over its nodes of c children; float64 on
        # any device
        self._path_sums_2V = torch.from_numpy(
            np.stack([tree.depths(), tree.path_sums(np.log(np.diff(tree.offsets) - 1))])
        )
        tables = {"offsets": tree.offsets, "edge_nodes": tree.edge_nodes, "node_edges": tree.edges}
        for name, table in (tables | {"leaves": tree.num_leaves()[tree.children]}).items():
            self.register_buffer(
                name, torch.tensor(table), persistent=False
            )  # integers: .half() does not change them

    def _plain_log_probs(self, hidden_ND: Tensor) -> Tensor:
        return self._sum_choices(self._choices(hidden_ND))

    def _choices(self, hidden_ND: Tensor) -> Tensor:
        """The log-probabilities (N, E) of all children given their node, in plain PyTorch."""
        return log_softmax_of_nodes(self._scores(hidden_ND), self.tree.num_inner, self.edge_nodes)

    def _sum_choices(self, choices_NE: Tensor) -> Tensor:
        """The log-probabilities (N, V) of the units from those of the children given their node."""
        return leaf_sums(
            choices_NE, self.node_edges, self.edge_nodes[self.node_edges], self._level_starts
        )

    def _plain_cost(
        self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, is_path: bool
    ) -> Tensor:
        if is_path:
            return torch_cost_of_decisions(*self._decisions(hidden_ND, targets_N, weights))
        choices_NE, share = self._choices(hidden_ND), weights.per_decision
        if share:  # the cost of a decision: 1 - share of its own, the rest of the other children of its node
            other_E = share / (torch.diff(self.offsets) - 1).index_select(0, self.edge_nodes).to(
                choices_NE.dtype
            )
            sums_NI = choices_NE.new_zeros(len(choices_NE), self.tree.num_inner)
            sums_NI = sums_NI.index_add(1, self.edge_nodes, choices_NE)
            choices_NE = (1 - share - other_E) * choices_NE + other_E * sums_NI.index_select(
                1, self.edge_nodes
            )
        return weighted_cost(
            self._sum_choices(choices_NE), targets_N, weights.on_target, weights.on_all
        )

    def _decisions(
        self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights
    ) -> tuple[Any, ...]:
        """The arguments of both functions for the cost from the nodes on the targets' paths."""
        weight_ED, bias_E = self._vectors(hidden_ND.dtype)
        groups = group_decisions(self.tree, targets_N.cpu().numpy())
        return (
            hidden_ND,
            weight_ED,
            bias_E,
            groups,
            weights.per_decision,
            self._is_sparse(weight_ED),
        )

    def _kernel_log_probs(self, hidden_ND: Tensor) -> Tensor:
        from wenet_hs.heads.kernels.classes import log_softmax_in_place

        return self._sum_choices(log_softmax_in_place(self._scores(hidden_ND), self.offsets))

    def _kernel_cost(
        self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, is_path: bool
    ) -> Tensor:
        from wenet_hs.heads.kernels.classes import cost_of_all_edges, cost_of_decisions

        if is_path:
            return cost_of_decisions(*self._decisions(hidden_ND, targets_N, weights))
        tables = self.offsets, self.edge_nodes, self.node_edges, self.leaves
        return cost_of_all_edges(
            hidden_ND, *self._all_vectors(hidden_ND.dtype), targets_N, tables, weights
        )

    def _node_smoothed_loss(self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        share = (1.0 - smoothing) * math.log(1.0 - smoothing) + smoothing * math.log(smoothing)
        if self._path_sums_2V.device != targets_N.device:
            self._path_sums_2V = copy_to(targets_N.device, self._path_sums_2V)
        lengths_N, log_others_N = self._path_sums_2V[:, targets_N]
        cost_N = self._cost(hidden_ND, targets_N, CostWeights(1.0, 0.0, smoothing))
        constants_N: Tensor = (share * lengths_N - smoothing * log_others_N).to(cost_N.dtype)
        return cost_N + constants_N

    def _eval_metrics(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        if not self.uses_search(hidden_ND, 1):
            return super()._eval_metrics(hidden_ND, targets_N)
        return self._cross_entropy(hidden_ND, targets_N, 1.0, 0.0), self._topk(hidden_ND, 1)[1][
            :, 0
        ] == targets_N

    def _is_path_faster(self, hidden: Tensor) -> bool:
        below = ALL_EDGES_BELOW if hidden.device.type == "cpu" else ALL_EDGES_BELOW_GPU
        return self.tree.num_edges >= below

    def _is_search_faster(self, hidden: Tensor, k: int) -> bool:
        return self.tree.num_edges >= SEARCH_FROM_EDGES and k <= SEARCH_BEST

    def _best_first(self, hidden_ND: Tensor, k: int) -> Found:
        from wenet_hs.heads.kernels.classes import best_units

        weight_ED, bias_E = (
            tensor.detach().contiguous() for tensor in self._vectors(hidden_ND.dtype)
        )
        hidden_ND = hidden_ND.detach()
        at_root = int(self.tree.offsets[1])
        root_NC = linear(hidden_ND, weight_ED[:at_root], bias_E[:at_root])
        budget = (
            self.tree.num_edges
            if self.search == "best_first"
            else self.tree.num_edges // SEARCH_BUDGET
        )
        return best_units(hidden_ND, weight_ED, bias_E, root_NC, tree=self.tree, k=k, budget=budget)

    def _label_log_probs(self, hidden_BTD: Tensor, labels_BL: Tensor) -> Tensor:
        """(B, T, L): from the nodes above the labels of the batch, if they have less than half of
        all edges.
        """
        if not self.uses_paths(hidden_BTD):
            return super()._label_log_probs(hidden_BTD, labels_BL)
        units, unit_of_label = np.unique(labels_BL.cpu().numpy(), return_inverse=True)
        rows_M, path_M = self.tree.path_edges(units)
        is_above_I = np.zeros(self.tree.num_inner, np.bool_)
        is_above_I[self.tree.edge_nodes[path_M]] = True
        edges_U = np.flatnonzero(is_above_I[self.tree.edge_nodes])
        if 2 * len(edges_U) > self.tree.num_edges or not len(edges_U):
            return super()._label_log_probs(hidden_BTD, labels_BL)
        to_device = functools.partial(_to_device, hidden_BTD.device)
        weight_ED, bias_E = self._vectors(hidden_BTD.dtype)
        index_U = to_device(edges_U)
        weight_UD = F.embedding(index_U, weight_ED, sparse=self._is_sparse(weight_ED))
        scores_NU = F.linear(hidden_BTD.flatten(0, 1), weight_UD, bias_E.index_select(0, index_U))
        degrees = np.diff(self.tree.offsets)[is_above_I]
        offsets, node_of_U = (
            np.append(0, np.cumsum(degrees)),
            np.repeat(np.arange(len(degrees)), degrees),
        )
        if can_use_kernels(scores_NU):
            from wenet_hs.heads.kernels.classes import log_softmax_in_place

            choices_NU = log_softmax_in_place(scores_NU, torch.from_numpy(offsets))
        else:
            choices_NU = log_softmax_of_nodes(scores_NU, len(degrees), to_device(node_of_U))
        path_NM = choices_NU.index_select(1, to_device(np.searchsorted(edges_U, path_M)))
        sums = path_NM.new_zeros(len(path_NM), len(units)).index_add(1, to_device(rows_M), path_NM)
        index_BL = to_device(unit_of_label.reshape(labels_BL.shape))
        sums = sums.view(*hidden_BTD.shape[:2], -1)
        return sums.gather(2, index_BL[:, None].expand(-1, hidden_BTD.size(1), -1))


def log_softmax_of_nodes(scores: Tensor, num_nodes: int, edge_nodes: Tensor) -> Tensor:
    """Scores of edges (N, E) to log-probabilities of the children given their node (N, E), in plain
    PyTorch.

    `edge_nodes`: (E,) the node that each edge leaves, on the device of the scores.
    """
    tops_NI = scores.new_full((scores.size(0), num_nodes), -torch.inf)
    tops_NI = tops_NI.scatter_reduce(1, edge_nodes.expand_as(scores), scores.detach(), "amax")
    scores = scores - tops_NI.index_select(1, edge_nodes)
    sums_NI = torch.zeros_like(tops_NI).index_add(1, edge_nodes, scores.exp())
    return scores - sums_NI.log().index_select(1, edge_nodes)


def _to_device(device: torch.device, values: NDArray[Any]) -> Tensor:
    return copy_to(device, torch.from_numpy(values))


class DecisionGroups(NamedTuple):
    """The M decisions on the paths of some targets in G groups, one per node; nodes ascend, and
    rows within a node.
    """

    rows: Ints
    """(M,) the row of each decision."""
    choices: Ints
    """(M,) the number of the child on the path among its node's children."""
    first: Ints
    """(G,) the first decision of each group."""
    sizes: Ints
    """(G,) the number of its decisions."""
    edges: Ints
    """(G,) the first edge of its node."""
    degrees: Ints
    """(G,) the number of children of its node."""


def group_decisions(tree: NaryTree, targets: Ints) -> DecisionGroups:
    """The decisions on the paths to `targets` (N,)."""
    rows, path = tree.path_edges(targets)
    nodes = tree.edge_nodes[path]
    order = np.lexsort((rows, nodes))
    rows, path, nodes = rows[order], path[order], nodes[order]
    present, first, sizes = np.unique(nodes, return_index=True, return_counts=True)
    starts = tree.offsets[present]
    choices = path - tree.offsets[nodes]
    return DecisionGroups(rows, choices, first, sizes, starts, tree.offsets[present + 1] - starts)


def torch_cost_of_decisions(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: DecisionGroups,
    smoothing: float,
    sparse: bool,
) -> Tensor:
    """`kernels.classes.cost_of_decisions` in plain PyTorch: nodes of similar size are padded to one
    batched product.
    """
    to_device = functools.partial(_to_device, hidden.device)
    # Within a factor of 2 in the number of children, and of 8 in the number of rows.
    shapes_G = (
        64 * np.ceil(np.log2(groups.degrees)).astype(np.int64)
        + np.log2(groups.sizes).astype(np.int64) // 3
    )
    nodes = [np.flatnonzero(shapes_G == shape)[:, None] for shape in np.unique(shapes_G)]
    children = [np.arange(groups.degrees[node_B1].max()) for node_B1 in nodes]
    tables = [
        groups.edges[node_B1] + np.minimum(child_C, groups.degrees[node_B1] - 1)
        for node_B1, child_C in zip(nodes, children, strict=True)
    ]
    edges_U = to_device(
        np.concatenate([np.empty(0, np.int64), *(table.reshape(-1) for table in tables)])
    )
    # One gather for all, because the gradient of each is as large as the weight.
    vectors = F.embedding(edges_U, weight, sparse=sparse).split([table.size for table in tables])  # type: ignore[no-untyped-call]
    biases = bias[edges_U].split([table.size for table in tables])  # type: ignore[no-untyped-call]
    cost_N = hidden.sum(-1) * 0.0  # on the graph, also without a decision
    for node_B1, child_C, vectors_XD, biases_X in zip(
        nodes, children, vectors, biases, strict=False
    ):
        shape = len(node_B1), len(child_C)
        row_R = np.arange(groups.sizes[node_B1].max())
        decisions_BR = groups.first[node_B1] + np.minimum(row_R, groups.sizes[node_B1] - 1)
        rows_BR, choices_BR = (
            to_device(groups.rows[decisions_BR]),
            to_device(groups.choices[decisions_BR]),
        )
        is_padding_B1C = to_device(child_C >= groups.degrees[node_B1])[:, None]
        vectors_BCD = vectors_XD.view(*shape, -1)
        scores_BRC = torch.baddbmm(biases_X.view(shape)[:, None], hidden[rows_BR], vectors_BCD.mT)
        log_probs_BRC = scores_BRC.masked_fill(is_padding_B1C, -torch.inf).log_softmax(-1)
        other_B1 = to_device(smoothing / (groups.degrees[node_B1] - 1)).to(hidden.dtype)
        cost_BR = (
            -(1.0 - smoothing - other_B1) * log_probs_BRC.gather(-1, choices_BR[..., None])[..., 0]
        )
        if smoothing:
            cost_BR = cost_BR - other_B1 * log_probs_BRC.masked_fill(is_padding_B1C, 0.0).sum(-1)
        cost_BR = cost_BR * to_device(row_R < groups.sizes[node_B1])
        cost_N = cost_N.index_add(0, rows_BR.flatten(), cost_BR.flatten())
    return cost_N
