# SPDX-License-Identifier: Apache-2.0
"""The class head: a softmax at each inner node of a tree over its children (Goodman 2001; p-tHSM's cHSM; two levels of
about √V classes of √V units are its common form, any tree with any number of children is taken).

A unit's probability is the product of the choices on its way from the root.

Dimension key: N rows, D width, V units, I inner nodes, E = I+V-1 edges (children of all nodes, node by node),
B batch, T frames, L labels, K best, M decisions on the paths of N targets, U edges of the nodes on them.
"""

import math
import warnings
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wenet_hs.heads.base import OutputHead, compile_disable
from wenet_hs.heads.classes_all import (
    all_edges_cost_kernel,
    log_softmax_siblings,
    log_softmax_siblings_kernel,
    sibling_tables,
)
from wenet_hs.heads.classes_path import path_cost
from wenet_hs.heads.classes_plan import Edges, Groups, Ints, spread
from wenet_hs.nn.cpu import linear
from wenet_hs.tree import Tree
from wenet_hs.tree.nary import NaryTree

Route = Literal["auto", "path", "all"]
"""How a cost without leaf smoothing is found: from the nodes on the targets' paths, or from the scores of all edges."""
Search = Literal["auto", "best_first", "all"]
"""How the k best are found: from the likeliest nodes on, on a CPU in float32, or from all log-probabilities."""

ALL_EDGES_BELOW = 128
"""With fewer edges than that all scores are as fast as a product a node: for 2,000 rows of width 256, forward and
backward, 2.3 ms on the paths and 3.7 ms from all at E = 162, the same at E = 90."""
ALL_EDGES_BELOW_GPU = 20_000
"""The same where the path route has to wait for the targets."""
SEARCH_FROM_EDGES = 4_000
"""From here on a search from the root is faster than the product with all edges."""
SEARCH_BEST = 128
"""More of the best than that are taken from all log-probabilities."""
SEARCH_BUDGET = 16
"""A row whose search has looked at a 16th of all edges goes to the product with all of them."""
LABELS_FROM_EDGES = 2_000
"""From here on only the nodes above the labels are computed for `label_log_probs`."""


class ClassHead(OutputHead):
    """Parameters: `output.weight` (E, D) and `output.bias` (E,), the edges in the order of `tree.children`.

    Everything derived from the tree is outside the state_dict: the tree has its own file.
    """

    partial = True
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
            tree: over the V units; a binary one is opened from its top, `NaryTree.from_binary(tree)`.
            sparse_grad: the weight's gradient holds the edges of the nodes on the targets' paths alone, where only
                these are computed; for `torch.optim.SparseAdam`.
            route, search: "auto" chooses by size and device.
        """
        super().__init__(dim, tree.num_units)
        tree = NaryTree.from_binary(tree) if isinstance(tree, Tree) else tree
        if route not in get_args(Route) or search not in get_args(Search):
            known = f"route {', '.join(get_args(Route))}; search {', '.join(get_args(Search))}"
            raise ValueError(f"class head: route {route!r} and search {search!r} must be among: {known}")
        self.sparse_grad, self.route, self.search = sparse_grad, route, search
        with warnings.catch_warnings():  # a tree of one unit has no edge: nothing to draw, nothing to warn about
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            self.output = nn.Linear(dim, tree.num_edges)
        self.edges = Edges.of(tree)
        self._levels = [int(start) for start in tree.level_starts]
        self._path_lengths = tree.depths()  # (V,)
        self._path_log_others = tree.path_sums(np.log(np.diff(tree.offsets) - 1))  # (V,) Σ log(c - 1) over the path
        tables = sibling_tables(tree.offsets)
        self._num_tables = len(tables)
        buffers: dict[str, Ints] = {
            "edge_nodes": tree.edge_nodes,  # (E,)
            "node_edges": tree.edges,  # (I+V,)
            "leaves": tree.num_leaves()[tree.children],  # (E,)
            **{f"siblings_{index}": table for index, table in enumerate(tables)},
        }
        for name, values in buffers.items():
            # Integers, so that .half() leaves them alone.
            self.register_buffer(name, torch.tensor(values), persistent=False)

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.edges.children)

    def sparse_parameters(self) -> list[nn.Parameter]:
        return [self.get_parameter("output.weight")] if self.sparse_grad else []

    def extra_repr(self) -> str:
        """With the route of an unsmoothed cost and that of the best unit, where and as the parameters are."""
        shape = f"nodes={self.edges.num_inner}, depth={len(self._levels) - 1}"
        kind, dtype = self.output.weight.device.type, self.output.weight.dtype
        search: str = self.search
        if search == "auto":
            search = self.search_route(kind, dtype if dtype == torch.float64 else torch.float32, 1)
        chosen = f"route={self.cost_route(kind)}, search={search}"
        return f"{super().extra_repr()}, {shape}, {chosen}, sparse_grad={self.sparse_grad}"

    def cost_route(self, device_type: str) -> Literal["path", "all"]:
        """Where a cost without leaf smoothing comes from; `route`, or what "auto" makes of size and device."""
        if self.route == "auto":
            below = ALL_EDGES_BELOW if device_type == "cpu" else ALL_EDGES_BELOW_GPU
            return "all" if self.num_edges < below else "path"
        return self.route

    def search_route(self, device_type: str, dtype: torch.dtype, k: int) -> Literal["best_first", "all"]:
        """Where the k best come from where no gradient is wanted. Raises ValueError where that cannot run."""
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
        edges_NE = self._log_choices(scores_NE)
        above = [edges_NE.new_zeros(len(hidden_ND), 1)]  # of the inner nodes, level by level
        for start, end, previous in zip(self._levels[1:], self._levels[2:], self._levels, strict=False):
            edges = self.node_edges[start:end]
            parents = self.edge_nodes[edges] - previous
            above.append(above[-1].index_select(1, parents) + edges_NE.index_select(1, edges))
        edges = self.node_edges[self.edges.num_inner :]
        return torch.cat(above, dim=1).index_select(1, self.edge_nodes[edges]) + edges_NE.index_select(1, edges)

    def _log_choices(self, scores_NE: Tensor) -> Tensor:
        """log p(child | node) of all edges; may overwrite the scores."""
        wants_gradient = scores_NE.requires_grad and torch.is_grad_enabled()
        if scores_NE.device.type == "cpu" and scores_NE.dtype == torch.float32 and not wants_gradient:
            return log_softmax_siblings_kernel(scores_NE, self.edges.offsets)
        tables = [self.get_buffer(f"siblings_{index}") for index in range(self._num_tables)]
        return log_softmax_siblings(scores_NE, tables)

    @compile_disable
    def _cross_entropy(self, hidden_ND: Tensor, targets_N: Tensor, target: float, every: float) -> Tensor:
        if every or self.cost_route(hidden_ND.device.type) == "all":
            return self._all_edges_cost(hidden_ND, targets_N, (target, every, 0.0))
        return target * self._path_cost(hidden_ND, targets_N, 0.0)

    @compile_disable
    def _node_cost(self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        targets = targets_N.cpu().numpy()
        share = (1.0 - smoothing) * math.log(1.0 - smoothing) + smoothing * math.log(smoothing)
        constants = share * self._path_lengths[targets] - smoothing * self._path_log_others[targets]
        if _on_kernel(hidden_ND) and self.cost_route("cpu") == "all":
            cost_N = self._all_edges_cost(hidden_ND, targets_N, (1.0, 0.0, smoothing))
        else:
            cost_N = self._path_cost(hidden_ND, targets_N, smoothing)
        return cost_N + torch.from_numpy(constants).to(cost_N)

    def _path_cost(self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        weight_ED, bias_E = self._vectors(hidden_ND.dtype)
        sparse = self.sparse_grad and weight_ED is self.output.weight
        groups = Groups.on_paths(self.edges, targets_N.cpu().numpy(), compact=sparse)
        return path_cost(hidden_ND, weight_ED, bias_E, groups, smoothing=smoothing, sparse=sparse)

    def _all_edges_cost(self, hidden_ND: Tensor, targets_N: Tensor, weights: tuple[float, float, float]) -> Tensor:
        weight_ED, bias_E = self._vectors(hidden_ND.dtype)
        leaves_E = self.leaves.to(hidden_ND.dtype)
        if _on_kernel(hidden_ND):
            vectors = weight_ED, bias_E
            return all_edges_cost_kernel(
                hidden_ND, *vectors, targets_N, tree=self.edges, leaves=leaves_E, weights=weights
            )
        target, every, _ = weights
        edges_NE = self._log_choices(linear(hidden_ND, weight_ED, bias_E))
        return -every * (edges_NE @ leaves_E) - target * self._along_paths(edges_NE, targets_N)

    def _along_paths(self, edges_NE: Tensor, targets_N: Tensor) -> Tensor:
        """The log-probabilities of the choices on each row's path, added up (N,)."""
        total_N = edges_NE.sum(-1) * 0 if not self.num_edges else edges_NE.new_zeros(len(edges_NE))
        edges_N = self.node_edges[self.edges.num_inner + targets_N]
        for _ in range(len(self._levels) - 1):
            below_root_N, edges_N = edges_N >= 0, edges_N.clamp(min=0)
            total_N = total_N + below_root_N * edges_NE.gather(1, edges_N[:, None])[:, 0]
            edges_N = torch.where(below_root_N, self.node_edges[self.edge_nodes[edges_N]], -1)
        return total_N

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
        from wenet_hs.heads.kernels import classes as classes_kernels
        from wenet_hs.heads.kernels import numba_math as threads

        threads.use_torch_threads()
        weight_ED, bias_E = (tensor.detach().contiguous() for tensor in self._vectors(hidden_ND.dtype))
        hidden_ND = hidden_ND.detach().contiguous()
        at_root = int(self.edges.offsets[1])
        root_NC = linear(hidden_ND, weight_ED[:at_root], bias_E[:at_root])
        arrays = (tensor.numpy() for tensor in (hidden_ND, weight_ED, bias_E, root_NC))
        budget = self.num_edges if self.search == "best_first" else self.num_edges // SEARCH_BUDGET
        tree = self.edges.offsets, self.edges.children
        values_NK, ids_NK, within_N = map(torch.from_numpy, classes_kernels.best_leaves(*arrays, *tree, k, budget))
        if not bool(within_N.all()):
            left = torch.nonzero(~within_N)[:, 0]
            values_NK[left], ids_NK[left] = super()._topk(hidden_ND.index_select(0, left), k)
        return values_NK, ids_NK

    @compile_disable
    def _label_log_probs(self, hidden_BTD: Tensor, labels_BL: Tensor) -> Tensor:
        if self.num_edges < LABELS_FROM_EDGES or not labels_BL.numel():
            return super()._label_log_probs(hidden_BTD, labels_BL)
        units, label_units = np.unique(labels_BL.cpu().numpy(), return_inverse=True)
        at_M, path_M = self.edges.paths(units)
        nodes = np.unique(self.edges.edge_nodes[path_M])
        degrees = self.edges.offsets[nodes + 1] - self.edges.offsets[nodes]
        edges_U = spread(self.edges.offsets[nodes], degrees)
        if 2 * len(edges_U) > self.num_edges:
            return super()._label_log_probs(hidden_BTD, labels_BL)
        choices_BTU = self._some_log_choices(hidden_BTD, edges_U, np.append(0, np.cumsum(degrees)))
        index_M, into_M, units_BL = (
            torch.from_numpy(values).to(hidden_BTD.device)
            for values in (np.searchsorted(edges_U, path_M), at_M, label_units.reshape(labels_BL.shape))
        )
        sums: Tensor = choices_BTU.new_zeros(*hidden_BTD.shape[:2], len(units))
        sums = sums.index_add(2, into_M, choices_BTU.index_select(2, index_M))
        return sums.gather(2, units_BL[:, None].expand(-1, hidden_BTD.size(1), -1))

    def _some_log_choices(self, hidden_BTD: Tensor, edges_U: Ints, offsets: Ints) -> Tensor:
        """log p(child | node) (B, T, U) of the edges of some nodes alone, which begin at `offsets` among them."""
        weight_ED, bias_E = self._vectors(hidden_BTD.dtype)
        index_U = torch.from_numpy(edges_U).to(hidden_BTD.device)
        sparse = self.sparse_grad and weight_ED is self.output.weight
        weight_UD = F.embedding(index_U, weight_ED, sparse=sparse)
        scores_BTU = F.linear(hidden_BTD, weight_UD, bias_E.index_select(0, index_U))
        tables = [torch.from_numpy(table).to(hidden_BTD.device) for table in sibling_tables(offsets)]
        return log_softmax_siblings(scores_BTU.flatten(0, 1), tables).view_as(scores_BTU)


def _on_kernel(hidden_ND: Tensor) -> bool:
    return hidden_ND.device.type == "cpu" and hidden_ND.dtype == torch.float32
