# SPDX-License-Identifier: Apache-2.0
"""The class head: a softmax at each inner node of a tree over its children (Goodman 2001; p-tHSM's cHSM).

A unit's probability is the product of the choices on its path from the root. The common form has two levels of about
√V classes of √V units each. Trees with any number of children are allowed.

Dimension key: N rows, D width, V units, I inner nodes, E = I+V-1 edges (children of all nodes, node by node),
B batch, T frames, L labels, K best, M decisions on the paths of N targets, G groups of decisions at one node,
U edges of some nodes; in the padded reference: B nodes, R rows at a node, C its children.
"""

import functools
import math
import warnings
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from wenet_hs.heads.base import OutputHead, compile_disable, weighted_cost
from wenet_hs.nn.cpu import linear
from wenet_hs.tree.tree import NaryTree, Tree

Ints = NDArray[np.int64]

Route = Literal["auto", "path", "all"]
"""How a cost without leaf smoothing is computed: from the nodes on the targets' paths, or from all edges' scores."""
Search = Literal["auto", "best_first", "all"]
"""How the k best are found: from the most probable nodes, on a CPU in float32, or from all log-probabilities."""

ALL_EDGES_BELOW = 128
"""With fewer edges than this on a CPU, all scores are as fast as a product per node."""
ALL_EDGES_BELOW_GPU = 20_000
"""The same on a GPU, where the path route has to wait for the targets."""
SEARCH_FROM_EDGES = 4_000
"""From this number of edges on, a search from the root is faster than the product with all edges."""
SEARCH_BEST = 128
"""A larger k is taken from all log-probabilities."""
SEARCH_BUDGET = 16
"""A row whose search needs more than 1/16 of all edges is computed by the product with all of them."""
LABELS_FROM_EDGES = 2_000
"""From this number of edges on, `label_log_probs` computes only the nodes above the labels."""


class EdgeTables(NamedTuple):
    """The tree as writeable int64 arrays (kernels are compiled for these). Edge e leads to the node children[e]."""

    offsets: Ints
    """(I+1,) the first edge of each node."""
    children: Ints
    """(E,)"""
    edge_nodes: Ints
    """(E,) the node that each edge leaves."""
    node_edges: Ints
    """(I+V,) the edge that leads to each node; -1 for the root."""

    @property
    def num_inner(self) -> int:
        """I."""
        return len(self.offsets) - 1

    def paths(self, units: Ints) -> tuple[Ints, Ints]:
        """The decisions on the paths to `units` (N,): the index into `units` and the edge of each, (M,) each."""
        rows = np.arange(len(units))
        edges = self.node_edges[self.num_inner + units]
        found = [(rows[:0], edges[:0])]
        while len(edges):
            rows, edges = rows[edges >= 0], edges[edges >= 0]
            found.append((rows, edges))
            edges = self.node_edges[self.edge_nodes[edges]]
        all_rows, all_edges = zip(*found, strict=True)
        return np.concatenate(all_rows), np.concatenate(all_edges)


class ClassHead(OutputHead):
    """Parameters: `output.weight` (E, D) and `output.bias` (E,), the edges in the order of `tree.children`.

    The tables derived from the tree are not in the state_dict: the tree has its own file.
    """

    has_partial_log_probs = True
    edge_nodes: Tensor
    node_edges: Tensor
    leaves: Tensor

    def __init__(
        self,
        dim: int,
        tree: NaryTree | Tree,
        *,
        sparse_grad: bool = False,
        route: Route = "auto",
        search: Search = "auto",
    ) -> None:
        """
        Args:
            tree: over the V units; a binary one becomes two levels by `NaryTree.from_binary(tree)`.
            sparse_grad: whether the path route gives the weight a sparse gradient of the edges of the nodes on the
                targets' paths; for `torch.optim.SparseAdam`.
            route, search: "auto" chooses by size and device.
        """
        super().__init__(dim, tree.num_units)
        tree = NaryTree.from_binary(tree) if isinstance(tree, Tree) else tree
        if route not in get_args(Route) or search not in get_args(Search):
            known = f"route {', '.join(get_args(Route))}; search {', '.join(get_args(Search))}"
            raise ValueError(f"class head: route {route!r} and search {search!r} must be among: {known}")
        self.sparse_grad, self.route, self.search = sparse_grad, route, search
        with warnings.catch_warnings():  # a tree of one unit has no edge
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            self.output = nn.Linear(dim, tree.num_edges)
        self.edges = EdgeTables(tree.offsets.copy(), tree.children.copy(), tree.edge_nodes.copy(), tree.edges.copy())
        self._levels = [int(start) for start in tree.level_starts]
        self._path_lengths = tree.depths()  # (V,)
        self._path_log_others = tree.path_sums(np.log(np.diff(tree.offsets) - 1))  # (V,) Σ log(c - 1) over the path
        # Integers, because .half() does not change them.
        self.register_buffer("edge_nodes", torch.tensor(tree.edge_nodes), persistent=False)
        self.register_buffer("node_edges", torch.tensor(tree.edges), persistent=False)
        self.register_buffer("leaves", torch.tensor(tree.num_leaves()[tree.children]), persistent=False)

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.edges.children)

    def sparse_parameters(self) -> list[nn.Parameter]:
        return [self.get_parameter("output.weight")] if self.sparse_grad else []

    def extra_repr(self) -> str:
        """With the chosen route of an unsmoothed cost and the chosen search for the best unit."""
        shape = f"nodes={self.edges.num_inner}, depth={len(self._levels) - 1}"
        kind, dtype = self.output.weight.device.type, self.output.weight.dtype
        search: str = self.search
        if search == "auto":
            search = self.search_route(kind, dtype if dtype == torch.float64 else torch.float32, 1)
        chosen = f"route={self.cost_route(kind)}, search={search}"
        return f"{super().extra_repr()}, {shape}, {chosen}, sparse_grad={self.sparse_grad}"

    def cost_route(self, device_type: str) -> Literal["path", "all"]:
        """How a cost without leaf smoothing is computed: `route`, or the choice of "auto" for the size and device."""
        if self.route == "auto":
            below = ALL_EDGES_BELOW if device_type == "cpu" else ALL_EDGES_BELOW_GPU
            return "all" if self.num_edges < below else "path"
        return self.route

    def search_route(self, device_type: str, dtype: torch.dtype, k: int) -> Literal["best_first", "all"]:
        """How the k best are found if no gradient is wanted. Raises ValueError if the wanted search cannot run."""
        can_run = device_type == "cpu" and dtype == torch.float32
        if self.search == "best_first" and not can_run:
            where = f"{dtype} on {device_type}"
            raise ValueError(f'search: "best_first" is a Numba kernel for float32 on a CPU, here is {where}')
        if not can_run or self.search == "all" or not self.num_edges:
            return "all"
        large = self.num_edges >= SEARCH_FROM_EDGES and k <= SEARCH_BEST
        return "best_first" if large or self.search == "best_first" else "all"

    def _vectors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.output.weight.to(dtype), self.output.bias.to(dtype)

    @compile_disable
    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        scores_NE = linear(hidden_ND, *self._vectors(hidden_ND.dtype))
        if not self.num_edges:
            return scores_NE.sum(-1, keepdim=True)
        edges_NE = log_softmax_of_nodes(scores_NE, self.edges.offsets, self.edge_nodes)
        above = [edges_NE.new_zeros(len(hidden_ND), 1)]  # of the inner nodes, level by level
        for start, end, previous in zip(self._levels[1:], self._levels[2:], self._levels, strict=False):
            edges = self.node_edges[start:end]
            parents = self.edge_nodes[edges] - previous
            above.append(above[-1].index_select(1, parents) + edges_NE.index_select(1, edges))
        edges = self.node_edges[self.edges.num_inner :]
        return torch.cat(above, dim=1).index_select(1, self.edge_nodes[edges]) + edges_NE.index_select(1, edges)

    @compile_disable
    def _cross_entropy(self, hidden_ND: Tensor, targets_N: Tensor, target: float, every: float) -> Tensor:
        if not every and self.cost_route(hidden_ND.device.type) == "path":
            return target * self._path_cost(hidden_ND, targets_N, 0.0)
        if _has_kernel(hidden_ND):
            return self._cost_of_all_edges(hidden_ND, targets_N, (target, every, 0.0))
        return weighted_cost(self._log_probs(hidden_ND), targets_N, target, every)

    @compile_disable
    def _node_cost(self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        targets = targets_N.cpu().numpy()
        share = (1.0 - smoothing) * math.log(1.0 - smoothing) + smoothing * math.log(smoothing)
        constants = share * self._path_lengths[targets] - smoothing * self._path_log_others[targets]
        if _has_kernel(hidden_ND) and self.cost_route("cpu") == "all":
            cost_N = self._cost_of_all_edges(hidden_ND, targets_N, (1.0, 0.0, smoothing))
        else:
            cost_N = self._path_cost(hidden_ND, targets_N, smoothing)
        return cost_N + torch.from_numpy(constants).to(cost_N)

    def _path_cost(self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        weight_ED, bias_E = self._vectors(hidden_ND.dtype)
        sparse = self.sparse_grad and weight_ED is self.output.weight
        groups = group_decisions(self.edges, targets_N.cpu().numpy())
        if not _has_kernel(hidden_ND):
            return padded_path_cost(hidden_ND, weight_ED, bias_E, groups, smoothing=smoothing, sparse=sparse)
        from wenet_hs.heads.kernels.classes import path_cost

        return path_cost(hidden_ND, weight_ED, bias_E, groups, smoothing=smoothing, sparse=sparse)

    def _cost_of_all_edges(self, hidden_ND: Tensor, targets_N: Tensor, weights: tuple[float, float, float]) -> Tensor:
        """The cost of `kernels.classes.costs_of_edges`."""
        from wenet_hs.heads.kernels.classes import costs_of_edges
        from wenet_hs.heads.kernels.nodes import cost_of_scores

        tree = self.edges.offsets, self.edges.edge_nodes, self.edges.node_edges
        numbers = self.leaves.to(torch.float32).numpy(), targets_N.contiguous().numpy(), tuple(map(np.float32, weights))
        weight_ED, bias_E = self._vectors(hidden_ND.dtype)
        return cost_of_scores(hidden_ND, weight_ED, bias_E, lambda scores_NE: costs_of_edges(scores_NE, tree, *numbers))

    @compile_disable
    def _eval_metrics(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        if self.search_route(hidden_ND.device.type, hidden_ND.dtype, 1) == "all":
            return super()._eval_metrics(hidden_ND, targets_N)
        return self._cross_entropy(hidden_ND, targets_N, 1.0, 0.0), self._topk(hidden_ND, 1)[1][:, 0] == targets_N

    @compile_disable
    def _topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        wants_gradient = any(tensor.requires_grad for tensor in (hidden_ND, *self.parameters()))
        route = self.search_route(hidden_ND.device.type, hidden_ND.dtype, k)
        if route == "all" or (wants_gradient and torch.is_grad_enabled()):
            return super()._topk(hidden_ND, k)
        from wenet_hs.heads.kernels.classes import best_units

        weight_ED, bias_E = (tensor.detach().contiguous() for tensor in self._vectors(hidden_ND.dtype))
        hidden_ND = hidden_ND.detach().contiguous()
        at_root = int(self.edges.offsets[1])
        root_NC = linear(hidden_ND, weight_ED[:at_root], bias_E[:at_root])
        budget = self.num_edges if self.search == "best_first" else self.num_edges // SEARCH_BUDGET
        tree = self.edges.offsets, self.edges.children
        values_NK, ids_NK, is_done_N = best_units(hidden_ND, weight_ED, bias_E, root_NC, tree=tree, k=k, budget=budget)
        if not bool(is_done_N.all()):
            left = torch.nonzero(~is_done_N)[:, 0]
            values_NK[left], ids_NK[left] = super()._topk(hidden_ND.index_select(0, left), k)
        return values_NK, ids_NK

    @compile_disable
    def _label_log_probs(self, hidden_BTD: Tensor, labels_BL: Tensor) -> Tensor:
        if self.num_edges < LABELS_FROM_EDGES or not labels_BL.numel():
            return super()._label_log_probs(hidden_BTD, labels_BL)
        units, label_units = np.unique(labels_BL.cpu().numpy(), return_inverse=True)
        rows_M, path_M = self.edges.paths(units)
        nodes, first = np.unique(self.edges.edge_nodes[path_M]), self.edges.offsets
        edges_U = ranges(first[nodes], first[nodes + 1])
        if 2 * len(edges_U) > self.num_edges:
            return super()._label_log_probs(hidden_BTD, labels_BL)
        weight_ED, bias_E = self._vectors(hidden_BTD.dtype)
        to_device = functools.partial(torch.tensor, device=hidden_BTD.device)
        index_U = to_device(edges_U)
        sparse = self.sparse_grad and weight_ED is self.output.weight
        weight_UD = F.embedding(index_U, weight_ED, sparse=sparse)
        scores_NU = F.linear(hidden_BTD.flatten(0, 1), weight_UD, bias_E.index_select(0, index_U))
        degrees = first[nodes + 1] - first[nodes]
        node_of_U = to_device(np.repeat(np.arange(len(nodes)), degrees))
        choices_NU = log_softmax_of_nodes(scores_NU, np.append(0, np.cumsum(degrees)), node_of_U)
        path_NM = choices_NU.index_select(1, to_device(np.searchsorted(edges_U, path_M)))
        sums = path_NM.new_zeros(len(path_NM), len(units)).index_add(1, to_device(rows_M), path_NM)
        units_BL = to_device(label_units.reshape(labels_BL.shape))
        sums = sums.view(*hidden_BTD.shape[:2], -1)
        return sums.gather(2, units_BL[:, None].expand(-1, hidden_BTD.size(1), -1))


def _has_kernel(hidden_ND: Tensor) -> bool:
    return hidden_ND.device.type == "cpu" and hidden_ND.dtype == torch.float32


def ranges(starts: Ints, ends: Ints) -> Ints:
    """start, start + 1, …, end - 1 of each pair, one after the other."""
    sizes = ends - starts
    return np.repeat(ends - np.cumsum(sizes), sizes) + np.arange(int(sizes.sum()))


def log_softmax_of_nodes(scores: Tensor, offsets: Ints, edge_nodes: Tensor) -> Tensor:
    """Scores of edges (N, E) to log-probabilities of the children given their node (N, E); may overwrite the scores.

    Args:
        offsets: (I+1,) the first edge of each node, for the kernel.
        edge_nodes: (E,) the node that each edge leaves, on the device of the scores.
    """
    if _has_kernel(scores):
        from wenet_hs.heads.kernels import classes

        return classes.log_softmax_of_nodes(scores, offsets)
    tops_NI = scores.new_full((len(scores), len(offsets) - 1), -torch.inf)
    tops_NI = tops_NI.scatter_reduce(1, edge_nodes.expand_as(scores), scores.detach(), "amax")
    scores = scores - tops_NI.index_select(1, edge_nodes)
    sums_NI = torch.zeros_like(tops_NI).index_add(1, edge_nodes, scores.exp())
    return scores - sums_NI.log().index_select(1, edge_nodes)


class DecisionGroups(NamedTuple):
    """The M decisions on the paths of some targets in G groups, one per node; nodes ascend, and rows within a node."""

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


def group_decisions(edges: EdgeTables, targets: Ints) -> DecisionGroups:
    """The decisions on the paths to `targets` (N,)."""
    rows, path_edges = edges.paths(targets)
    nodes = edges.edge_nodes[path_edges]
    order = np.lexsort((rows, nodes))
    rows, path_edges, nodes = rows[order], path_edges[order], nodes[order]
    present, first, sizes = np.unique(nodes, return_index=True, return_counts=True)
    starts = edges.offsets[present]
    choices = path_edges - edges.offsets[nodes]
    return DecisionGroups(rows, choices, first, sizes, starts, edges.offsets[present + 1] - starts)


def padded_path_cost(
    hidden: Tensor, weight: Tensor, bias: Tensor, groups: DecisionGroups, *, smoothing: float, sparse: bool
) -> Tensor:
    """`kernels.classes.path_cost` in plain PyTorch: nodes of similar size are padded to one batched product."""
    to_device = functools.partial(torch.tensor, device=hidden.device)
    # Within a factor of 2 in the number of children, and of 8 in the number of rows.
    shapes_G = 64 * np.ceil(np.log2(groups.degrees)).astype(np.int64) + np.log2(groups.sizes).astype(np.int64) // 3
    nodes = [np.flatnonzero(shapes_G == shape)[:, None] for shape in np.unique(shapes_G)]
    children = [np.arange(groups.degrees[node_B1].max()) for node_B1 in nodes]
    tables = [
        groups.edges[node_B1] + np.minimum(child_C, groups.degrees[node_B1] - 1)
        for node_B1, child_C in zip(nodes, children, strict=True)
    ]
    edges_U = to_device(np.concatenate([np.empty(0, np.int64), *(table.reshape(-1) for table in tables)]))
    # One gather for all, because the gradient of each is as large as the weight.
    vectors = F.embedding(edges_U, weight, sparse=sparse).split([table.size for table in tables])  # type: ignore[no-untyped-call]
    biases = bias[edges_U].split([table.size for table in tables])  # type: ignore[no-untyped-call]
    cost_N = hidden.sum(-1) * 0.0  # on the graph, also without a decision
    for node_B1, child_C, vectors_XD, biases_X in zip(nodes, children, vectors, biases, strict=False):
        shape = len(node_B1), len(child_C)
        row_R = np.arange(groups.sizes[node_B1].max())
        decisions_BR = groups.first[node_B1] + np.minimum(row_R, groups.sizes[node_B1] - 1)
        rows_BR, choices_BR = to_device(groups.rows[decisions_BR]), to_device(groups.choices[decisions_BR])
        is_padding_B1C = to_device(child_C >= groups.degrees[node_B1])[:, None]
        vectors_BCD = vectors_XD.view(*shape, -1)
        scores_BRC = torch.baddbmm(biases_X.view(shape)[:, None], hidden[rows_BR], vectors_BCD.mT)
        log_probs_BRC = scores_BRC.masked_fill(is_padding_B1C, -torch.inf).log_softmax(-1)
        other_B1 = to_device(smoothing / (groups.degrees[node_B1] - 1), dtype=hidden.dtype)
        cost_BR = -(1.0 - smoothing - other_B1) * log_probs_BRC.gather(-1, choices_BR[..., None])[..., 0]
        if smoothing:
            cost_BR = cost_BR - other_B1 * log_probs_BRC.masked_fill(is_padding_B1C, 0.0).sum(-1)
        cost_BR = cost_BR * to_device(row_R < groups.sizes[node_B1])
        cost_N = cost_N.index_add(0, rows_BR.flatten(), cost_BR.flatten())
    return cost_N
