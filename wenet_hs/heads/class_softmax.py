# SPDX-License-Identifier: Apache-2.0
"""`ClassHead`: a softmax at each inner node of a tree over its children.

Sources: Goodman 2001; cHSM of p-tHSM. P(v) is the product of softmax(W_n·h + b_n)[child on the
path] over the nodes n on the path of v from the root. The common form has two levels of about √V
classes of √V units each. Trees with any number of children are allowed.

Dimension key: N rows, D width, V units, I inner nodes, E = I+V-1 edges (children of all nodes, node
by node), B batch, T frames, L labels, K best, M decisions on the paths of N targets, G groups of
decisions at one node, U edges of some nodes. In the padded reference: B nodes, R rows at a node, C
its children.
"""

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from wenet_hs.heads.base import weighted_cost
from wenet_hs.heads.decisions import (
    DecisionGroups,
    EdgesAbove,
    Ints,
    edges_above,
    group_decisions,
)
from wenet_hs.heads.gpu import copy_to
from wenet_hs.heads.kernels.search import can_use_kernels
from wenet_hs.heads.kernels.search_result import SearchResult
from wenet_hs.heads.node_head import CostWeights, NodeHead, Route, SearchMethod, leaf_sums
from wenet_hs.heads.products import linear
from wenet_hs.tree.tree import NaryTree, Tree

ALL_EDGES_BELOW = 128
"""With fewer edges than this on a CPU, all scores are faster than a product per node."""
ALL_EDGES_BELOW_GPU = 20_000
"""The same on a GPU, where the program has to wait for the targets to find their paths."""
SEARCH_FROM_EDGES = 4_000
"""From this number of edges on, a search from the root is faster than the product with all."""
SEARCH_MAX_K = 128
"""Up to this k the best units are searched; more are taken from all log-probabilities."""
SEARCH_BUDGET_DIVISOR = 16
"""A row whose search needs more than 1/16 of all edges is computed from all of them instead."""


class ClassHead(NodeHead):
    """A softmax at each inner node of a tree.

    Parameters: `output.weight` (E, D) and `output.bias` (E,), the edges in the order of
    `tree.children`. The tables derived from the tree are not in the state_dict: the tree has its
    own file.
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
            sparse_grad: as of `HSoftmaxHead`; if a cost is computed from paths, the gradient has
                all edges of the nodes on them.
            route, search: as of `HSoftmaxHead`.
        """
        super().__init__(dim, tree.num_units, sparse_grad=sparse_grad, route=route, search=search)
        tree = NaryTree.from_binary(tree) if isinstance(tree, Tree) else tree
        self.output = nn.Linear(dim, tree.num_edges)
        self.tree = tree
        self._level_starts = tree.level_starts.tolist()
        # (2, V): the length of each path, and Σ log(c - 1) over its nodes of c children. A plain
        # attribute in float64, because a conversion of the head would round a buffer.
        log_others_I = np.log(np.diff(tree.offsets) - 1)
        path_sums_2V = np.stack([tree.depths(), tree.path_sums(log_others_I)])
        self._path_sums_2V = torch.from_numpy(path_sums_2V)
        # The tables contain integers, because .half() does not change these.
        tables = {
            "offsets": tree.offsets,
            "edge_nodes": tree.edge_nodes,
            "node_edges": tree.edges,
            "leaves": tree.num_leaves()[tree.children],
        }
        for name, table in tables.items():
            self.register_buffer(name, torch.tensor(table), persistent=False)

    def _plain_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) → (N, V) natural logarithms, by PyTorch's operations."""
        return self._sum_on_paths(self._child_log_probs(hidden_ND))

    def _child_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """The log-probabilities (N, E) of all children given their node, in plain PyTorch."""
        return log_softmax_of_nodes(self._scores(hidden_ND), self.tree.num_inner, self.edge_nodes)

    def _sum_on_paths(self, log_probs_NE: Tensor) -> Tensor:
        """The log-probabilities (N, V) of the units from those of the children given their node."""
        # The root has the edge -1, whose value `leaf_sums` does not use.
        parents = self.edge_nodes[self.node_edges]
        return leaf_sums(log_probs_NE, self.node_edges, parents, self._level_starts)

    def _plain_cost(
        self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, is_path: bool
    ) -> Tensor:
        """(N,) nats by PyTorch's operations, from the nodes on the paths only if `is_path`."""
        if is_path:
            return torch_cost_of_decisions(*self._decisions(hidden_ND, targets_N, weights))
        log_probs_NE = self._child_log_probs(hidden_ND)
        if weights.per_decision:
            log_probs_NE = self._smooth_log_probs(log_probs_NE, weights.per_decision)
        log_probs_NV = self._sum_on_paths(log_probs_NE)
        return weighted_cost(log_probs_NV, targets_N, weights.on_target, weights.on_all)

    def _smooth_log_probs(self, log_probs_NE: Tensor, smoothing: float) -> Tensor:
        """Minus the smoothed cost (N, E) of the decision for each child.

        That is (1 - smoothing)·log p(child), plus smoothing / (c - 1) times the log p of each of
        the other c - 1 children of the node.
        """
        num_others_E = (torch.diff(self.offsets) - 1).index_select(0, self.edge_nodes)
        other_E = smoothing / num_others_E.to(log_probs_NE.dtype)
        sums_NI = log_probs_NE.new_zeros(len(log_probs_NE), self.tree.num_inner)
        sums_NI = sums_NI.index_add(1, self.edge_nodes, log_probs_NE)
        sums_NE = sums_NI.index_select(1, self.edge_nodes)
        return (1 - smoothing - other_E) * log_probs_NE + other_E * sums_NE

    def _decisions(
        self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights
    ) -> tuple[Any, ...]:
        """The arguments of `torch_cost_of_decisions` and of `kernels.classes.cost_of_decisions`.

        Returns: hidden, weight, bias, the decisions on the targets' paths, ε of node smoothing, and
            whether the gradient of the weight is sparse.
        """
        weight_ED, bias_E = self._weight_and_bias(hidden_ND.dtype)
        groups = group_decisions(self.tree, targets_N.cpu().numpy())
        is_sparse = self._is_sparse(weight_ED)
        return hidden_ND, weight_ED, bias_E, groups, weights.per_decision, is_sparse

    def _kernel_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) → (N, V) natural logarithms, with a kernel for the softmax of the nodes."""
        from wenet_hs.heads.kernels.classes import log_softmax_in_place

        return self._sum_on_paths(log_softmax_in_place(self._scores(hidden_ND), self.offsets))

    def _kernel_cost(
        self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, is_path: bool
    ) -> Tensor:
        """`_plain_cost` by Numba kernels."""
        from wenet_hs.heads.kernels.classes import cost_of_all_edges, cost_of_decisions

        if is_path:
            return cost_of_decisions(*self._decisions(hidden_ND, targets_N, weights))
        weight_ED, bias_E = self._weight_and_bias_of_all(hidden_ND.dtype)
        tables = (self.offsets, self.edge_nodes, self.node_edges, self.leaves)
        return cost_of_all_edges(hidden_ND, weight_ED, bias_E, targets_N, tables, weights)

    def _node_smoothed_loss(self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        """(N,) nats: the cost of node smoothing, plus the constants of the nodes on the path.

        The constant of a node with c children is minus the entropy of its smoothed target:
        (1-ε)·log(1-ε) + ε·log(ε / (c-1)).
        """
        if self._path_sums_2V.device != targets_N.device:
            self._path_sums_2V = copy_to(targets_N.device, self._path_sums_2V)
        lengths_N, log_others_N = self._path_sums_2V[:, targets_N]
        cost_N = self._node_smoothed_cost(hidden_ND, targets_N, smoothing)
        # The part of the constant that is the same at each node.
        per_node = (1.0 - smoothing) * math.log(1.0 - smoothing) + smoothing * math.log(smoothing)
        constants_N: Tensor = (per_node * lengths_N - smoothing * log_others_N).to(cost_N.dtype)
        return cost_N + constants_N

    def _eval_metrics(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """The nll of each target (N,), and whether it is the best unit (N,).

        The best unit is searched if that is faster.
        """
        if not self.uses_search(hidden_ND, 1):
            return super()._eval_metrics(hidden_ND, targets_N)
        nll_N = self._cross_entropy(hidden_ND, targets_N, on_target=1.0, on_all=0.0)
        _, best_N1 = self._topk(hidden_ND, 1)
        return nll_N, best_N1[:, 0] == targets_N

    def _is_path_faster(self, hidden: Tensor) -> bool:
        below = ALL_EDGES_BELOW if hidden.device.type == "cpu" else ALL_EDGES_BELOW_GPU
        return self.tree.num_edges >= below

    def _is_search_faster(self, hidden: Tensor, k: int) -> bool:
        return self.tree.num_edges >= SEARCH_FROM_EDGES and k <= SEARCH_MAX_K

    def _best_first(self, hidden_ND: Tensor, k: int) -> SearchResult:
        """The k best units of each row by Numba's best-first search, without gradients.

        One matrix product gives the scores of the root's children, which every row needs. A row is
        given up after a part of all edges (`SEARCH_BUDGET_DIVISOR`); if `search` is "best_first",
        it may need all of them.
        """
        from wenet_hs.heads.kernels.classes import best_units

        hidden_ND = hidden_ND.detach()
        weight_ED, bias_E = self._weight_and_bias(hidden_ND.dtype)
        weight_ED = weight_ED.detach().contiguous()
        bias_E = bias_E.detach().contiguous()
        root_degree = int(self.tree.offsets[1])
        root_NC = linear(hidden_ND, weight_ED[:root_degree], bias_E[:root_degree])
        budget = self.tree.num_edges
        if self.search == "auto":
            budget //= SEARCH_BUDGET_DIVISOR
        return best_units(hidden_ND, weight_ED, bias_E, root_NC, tree=self.tree, k=k, budget=budget)

    def _label_log_probs(self, hidden_BTD: Tensor, labels_BL: Tensor) -> Tensor:
        """(B, T, L): the log-probabilities of the labels, from the nodes above them only.

        The nodes are those above any label of any utterance. The log-probabilities of the children
        on the path to a unit are added up. If the nodes have more than half of all edges, or paths
        are slower here, the log-probabilities of all units are computed instead.
        """
        if not self.uses_paths(hidden_BTD):
            return super()._label_log_probs(hidden_BTD, labels_BL)
        units, unit_of_label = np.unique(labels_BL.cpu().numpy(), return_inverse=True)
        above = edges_above(self.tree, units)
        has_few_edges = 0 < len(above.edges) <= self.tree.num_edges / 2
        if not has_few_edges:
            return super()._label_log_probs(hidden_BTD, labels_BL)
        to_device = functools.partial(_to_device, hidden_BTD.device)
        log_probs_NU = self._child_log_probs_above(hidden_BTD.flatten(0, 1), above)
        # Each unit's log-probability is the sum of those of the children on its path.
        on_paths_NM = log_probs_NU.index_select(1, to_device(above.path_columns))
        sums = on_paths_NM.new_zeros(len(on_paths_NM), len(units))  # (N, number of units)
        sums = sums.index_add(1, to_device(above.path_units), on_paths_NM)
        batch_size, num_frames, _ = hidden_BTD.shape
        index_BL = to_device(unit_of_label.reshape(labels_BL.shape))
        index_BTL = index_BL[:, None].expand(-1, num_frames, -1)
        return sums.view(batch_size, num_frames, -1).gather(2, index_BTL)

    def _child_log_probs_above(self, hidden_ND: Tensor, above: EdgesAbove) -> Tensor:
        """The log-probabilities (N, U) of the children of some nodes given their node.

        They are computed by a kernel if it can run, and otherwise by PyTorch's operations.
        """
        edges_U = _to_device(hidden_ND.device, above.edges)
        weight_ED, bias_E = self._weight_and_bias(hidden_ND.dtype)
        weight_UD = F.embedding(edges_U, weight_ED, sparse=self._is_sparse(weight_ED))
        bias_U = bias_E.index_select(0, edges_U)
        scores_NU = F.linear(hidden_ND, weight_UD, bias_U)
        if can_use_kernels(scores_NU):
            from wenet_hs.heads.kernels.classes import log_softmax_in_place

            offsets = np.append(0, np.cumsum(above.degrees))
            return log_softmax_in_place(scores_NU, torch.from_numpy(offsets))
        num_nodes = len(above.degrees)
        node_of_U = np.repeat(np.arange(num_nodes), above.degrees)
        return log_softmax_of_nodes(scores_NU, num_nodes, _to_device(hidden_ND.device, node_of_U))


def log_softmax_of_nodes(scores: Tensor, num_nodes: int, edge_nodes: Tensor) -> Tensor:
    """The log-probabilities (N, E) of the children given their node, in plain PyTorch.

    Args:
        scores: (N, E) of the edges.
        num_nodes: the number of nodes that the edges leave.
        edge_nodes: (E,) the node that each edge leaves, on the device of the scores.
    """
    # The greatest score of each node is subtracted, so that exp does not overflow.
    greatest_NI = scores.new_full((scores.size(0), num_nodes), -torch.inf)
    greatest_NI = greatest_NI.scatter_reduce(
        1, edge_nodes.expand_as(scores), scores.detach(), "amax"
    )
    scores = scores - greatest_NI.index_select(1, edge_nodes)
    sums_NI = torch.zeros_like(greatest_NI).index_add(1, edge_nodes, scores.exp())
    return scores - sums_NI.log().index_select(1, edge_nodes)


def _to_device(device: torch.device, values: NDArray[Any]) -> Tensor:
    """Copy an array to the device as a tensor, without waiting for a GPU."""
    return copy_to(device, torch.from_numpy(values))


def torch_cost_of_decisions(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: DecisionGroups,
    smoothing: float,
    sparse: bool,
) -> Tensor:
    """The cost of each row (N,) in nats, from the nodes on its target's path only.

    It is the sum of the cross-entropies of the decisions on the path. Nodes of similar size are
    padded to one batched product. `kernels.classes.cost_of_decisions` has the same arguments.

    Args:
        hidden, weight, bias: (N, D), (E, D), (E,).
        groups: the decisions on the targets' paths.
        smoothing: ε; at each node the child on the path has 1-ε, and the other children share ε.
        sparse: whether the gradient of the weight is a sparse tensor.
    """
    padded_batches = list(_pad_groups(groups))
    edges_of_batches = [batch.edges_BC.reshape(-1) for batch in padded_batches]
    edges = np.concatenate([np.empty(0, np.int64), *edges_of_batches])
    edges_on_device = _to_device(hidden.device, edges)
    num_edges = [len(batch_edges) for batch_edges in edges_of_batches]
    # One gather for all batches: the gradient of each gather is as large as the weight.
    vectors = torch.split(F.embedding(edges_on_device, weight, sparse=sparse), num_edges)
    biases = torch.split(bias[edges_on_device], num_edges)
    cost_N = hidden.sum(-1) * 0.0  # 0, and differentiable also if there is no decision
    for index, batch in enumerate(padded_batches):
        rows_BR = _to_device(hidden.device, batch.rows_BR)
        cost_BR = _cost_of_batch(
            batch, hidden[rows_BR], vectors[index], biases[index], smoothing=smoothing
        )
        cost_N = cost_N.index_add(0, rows_BR.flatten(), cost_BR.flatten())
    return cost_N


@dataclass(frozen=True)
class PaddedGroups:
    """B groups of decisions, padded to R decisions and C children each.

    The padding repeats the last decision of the group, and the last child of the node.
    """

    edges_BC: Ints
    """The edge to each child."""
    is_child_BC: NDArray[np.bool_]
    """False in the padding of the children."""
    degrees_B1: Ints
    """The number of children of each node, at least 2."""
    rows_BR: Ints
    """The row of each decision."""
    choices_BR: Ints
    """The number of the child on the path."""
    is_decision_BR: NDArray[np.bool_]
    """False in the padding of the decisions."""


def _pad_groups(groups: DecisionGroups) -> Iterable[PaddedGroups]:
    """All groups, in batches of similar sizes.

    In a batch the greatest number of children is less than twice the smallest, and the greatest
    number of decisions is less than 8 times the smallest.
    """
    # The classes are powers of 2 for the children, and of 2^3 for the decisions.
    children_class_G = np.ceil(np.log2(groups.degrees)).astype(np.int64)
    decisions_class_G = np.log2(groups.sizes).astype(np.int64) // 3
    size_class_G = 64 * children_class_G + decisions_class_G  # both in one number: each is below 64
    for size_class in np.unique(size_class_G):
        group_B1 = np.flatnonzero(size_class_G == size_class)[:, None]
        degrees_B1 = groups.degrees[group_B1]
        sizes_B1 = groups.sizes[group_B1]
        child_C = np.arange(degrees_B1.max())
        decision_R = np.arange(sizes_B1.max())
        decisions_BR = groups.first[group_B1] + np.minimum(decision_R, sizes_B1 - 1)
        yield PaddedGroups(
            edges_BC=groups.edges[group_B1] + np.minimum(child_C, degrees_B1 - 1),
            is_child_BC=child_C < degrees_B1,
            degrees_B1=degrees_B1,
            rows_BR=groups.rows[decisions_BR],
            choices_BR=groups.choices[decisions_BR],
            is_decision_BR=decision_R < sizes_B1,
        )


def _cost_of_batch(
    batch: PaddedGroups, hidden_BRD: Tensor, vectors: Tensor, biases: Tensor, *, smoothing: float
) -> Tensor:
    """(B, R) nats: the cost of each decision, and 0 in the padding.

    Args:
        hidden_BRD: the hidden state of each decision.
        vectors, biases: (B·C, D) and (B·C,) of the edges of the batch.
    """
    to_device = functools.partial(_to_device, hidden_BRD.device)
    num_groups, num_children = batch.edges_BC.shape
    vectors_BCD = vectors.view(num_groups, num_children, -1)
    biases_B1C = biases.view(num_groups, num_children)[:, None]
    scores_BRC = torch.baddbmm(biases_B1C, hidden_BRD, vectors_BCD.mT)
    is_padding_B1C = to_device(~batch.is_child_BC)[:, None]
    log_probs_BRC = scores_BRC.masked_fill(is_padding_B1C, -torch.inf).log_softmax(-1)
    choices_BR1 = to_device(batch.choices_BR)[..., None]
    # As in `weighted_cost`: the child on the path has 1 - smoothing, each other child `other`.
    other_B1 = to_device(smoothing / (batch.degrees_B1 - 1)).to(hidden_BRD.dtype)
    cost_BR = -(1.0 - smoothing - other_B1) * log_probs_BRC.gather(-1, choices_BR1)[..., 0]
    if smoothing:
        sums_BR = log_probs_BRC.masked_fill(is_padding_B1C, 0.0).sum(-1)
        cost_BR = cost_BR - other_B1 * sums_BR
    return cost_BR * to_device(batch.is_decision_BR)
