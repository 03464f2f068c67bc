# SPDX-License-Identifier: Apache-2.0
"""`NodeHead`, the common part of the heads over trees: how a cost and the k best are computed.

Dimension key: N rows, D width, V units, K best, I inner nodes, E edges.
"""

from abc import abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.kernels.search import can_use_kernels
from wenet_hs.heads.kernels.search_result import SearchResult
from wenet_hs.heads.products import linear
from wenet_hs.tree.unit_tree import UnitTree

Route = Literal["auto", "path", "all"]
"""How a cost without leaf smoothing is computed.

"path": from the nodes on the targets' paths. "all": from all nodes. "auto": the faster way.
"""
SearchMethod = Literal["auto", "best_first", "all"]
"""How the k best units are found.

"best_first": by a search from the root. "all": from all log-probabilities. "auto": the faster way.
"""


class CostWeights(NamedTuple):
    """The weights of the three terms in a row's cost over a tree.

    Without smoothing they are (1, 0, 0). Leaf smoothing has `on_all` > 0 and `per_decision` = 0.
    Node smoothing has (1, 0, ε).
    """

    on_target: float
    """The weight of -log P(target): the sum over the decisions on the target's path."""
    on_all: float
    """The weight of -Σ_v log P(v) over all units."""
    per_decision: float
    """ε of node smoothing.

    At each node on the path the child on the path has 1-ε, and the other children share ε. For two
    children, with s the score of the child on the path, the cost of the decision is
    -(1-ε)·log σ(s) - ε·log σ(-s) = -log σ(s) + ε·s.
    """


class NodeHead(OutputHead):
    """A head with one linear layer over the nodes or edges of a tree, whose gradient may be sparse.

    A head implements log-probabilities and costs twice: by PyTorch's operations, and by kernels.
    This class chooses between them, between paths and all nodes, and between the two ways to find
    the k best units.
    """

    has_partial_log_probs = True
    layer_name: ClassVar[str]
    """The attribute that contains the linear layer."""
    tree: UnitTree

    def __init__(
        self, dim: int, num_units: int, *, sparse_grad: bool, route: Route, search: SearchMethod
    ) -> None:
        super().__init__(dim, num_units)
        _check_option("route", route, get_args(Route))
        _check_option("search", search, get_args(SearchMethod))
        self.sparse_grad = sparse_grad
        self.route = route
        self.search = search

    @abstractmethod
    def _plain_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) → (N, V) natural logarithms, by PyTorch's operations."""

    @abstractmethod
    def _kernel_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) → (N, V) natural logarithms, by kernels."""

    @abstractmethod
    def _plain_cost(
        self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, is_path: bool
    ) -> Tensor:
        """The cost of each row (N,) by PyTorch's operations, without the constants of smoothing.

        It is computed from the nodes on the targets' paths if `is_path`, otherwise from all nodes.
        """

    @abstractmethod
    def _kernel_cost(
        self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, is_path: bool
    ) -> Tensor:
        """`_plain_cost` by kernels, with the same arguments."""

    @abstractmethod
    def _is_path_faster(self, hidden: Tensor) -> bool:
        """Whether the nodes on the targets' paths are faster than all nodes.

        `hidden` is a tensor of the device and dtype of the computation; its shape does not matter.
        """

    def _has_cost_kernel(self, hidden: Tensor) -> bool:
        """Whether `_kernel_cost` can run on the device and in the dtype of hidden."""
        return can_use_kernels(hidden)

    @abstractmethod
    def _is_search_faster(self, hidden: Tensor, k: int) -> bool:
        """Whether `_best_first` is faster for hidden (N, D) than all log-probabilities."""

    @abstractmethod
    def _best_first(self, hidden_ND: Tensor, k: int) -> SearchResult:
        """The k best units of each row, by a search from the root, without gradients."""

    def uses_paths(self, hidden: Tensor) -> bool:
        """Whether a cost without leaf smoothing is computed from the nodes on the targets' paths.

        `hidden` is a tensor of the device and dtype of the computation; its shape does not matter.
        """
        if self.route == "auto":
            return self._is_path_faster(hidden)
        return self.route == "path"

    def uses_search(self, hidden: Tensor, k: int) -> bool:
        """Whether the k best units of hidden (N, D) are searched, if no gradient is wanted.

        Raises ValueError if the head was built to search always, and cannot for this tensor.
        """
        if self.search == "all":
            return False
        can_search = can_use_kernels(hidden)
        if self.search == "auto":
            return can_search and self._is_search_faster(hidden, k)
        if not can_search:
            raise ValueError(
                f'search: "best_first" cannot run for {hidden.dtype} on {hidden.device.type}'
            )
        return True

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) → (N, V) natural logarithms, by kernels if they can run."""
        if can_use_kernels(hidden_ND):
            return self._kernel_log_probs(hidden_ND)
        return self._plain_log_probs(hidden_ND)

    def _cross_entropy(
        self, hidden_ND: Tensor, targets_N: Tensor, on_target: float, on_all: float
    ) -> Tensor:
        """(N,) nats: the cost without smoothing, or that of leaf smoothing without its constant."""
        weights = CostWeights(on_target=on_target, on_all=on_all, per_decision=0.0)
        return self._cost(hidden_ND, targets_N, weights)

    def _node_smoothed_cost(self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        """(N,) nats: the cost of node smoothing without its constants."""
        weights = CostWeights(on_target=1.0, on_all=0.0, per_decision=smoothing)
        return self._cost(hidden_ND, targets_N, weights)

    def _cost(self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights) -> Tensor:
        """The cost of each row (N,) in nats, without the constants of smoothing."""
        is_path = not weights.on_all and self.uses_paths(hidden_ND)
        if self._has_cost_kernel(hidden_ND):
            return self._kernel_cost(hidden_ND, targets_N, weights, is_path)
        return self._plain_cost(hidden_ND, targets_N, weights, is_path)

    def _topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best units of each row: log-probabilities (N, K) and unit ids (N, K) int64.

        They are searched if that is faster and no gradient is wanted. Rows that the search gives up
        are computed from all log-probabilities.
        """
        if not self.uses_search(hidden_ND, k) or self._wants_gradient(hidden_ND):
            return super()._topk(hidden_ND, k)
        values_NK, ids_NK, given_up_G = self._best_first(hidden_ND.contiguous(), k)
        if given_up_G is not None and len(given_up_G):
            values_GK, ids_GK = super()._topk(hidden_ND.index_select(0, given_up_G), k)
            values_NK[given_up_G] = values_GK
            ids_NK[given_up_G] = ids_GK
        return values_NK, ids_NK

    def extra_repr(self) -> str:
        """The sizes, the depth of the tree, the search, and the route with what it chooses."""
        hidden = self._flatten_hidden(self._layer.weight[:1])  # only for its device and dtype
        chosen_route = "path" if self.uses_paths(hidden) else "all"
        return (
            f"{super().extra_repr()}, depth={self.tree.depth}, "
            f"route={self.route}: {chosen_route}, search={self.search}"
        )

    @property
    def _layer(self) -> nn.Linear:
        """The linear layer over the nodes or edges."""
        return cast(nn.Linear, getattr(self, self.layer_name))

    def sparse_parameters(self) -> list[nn.Parameter]:
        """The weight if its gradient is sparse; otherwise no parameter."""
        if not self.sparse_grad:
            return []
        return [cast(nn.Parameter, self._layer.weight)]

    def _weight_and_bias(self, dtype: torch.dtype) -> tuple[Tensor, Any]:
        """The layer's weight, and its bias or None, in this dtype."""
        weight = self._layer.weight.to(dtype)
        bias = self._layer.bias
        return weight, None if bias is None else bias.to(dtype)

    def _weight_and_bias_of_all(self, dtype: torch.dtype) -> tuple[Tensor, Any]:
        """`_weight_and_bias` for a product with all rows of the weight.

        If the gradient of the weight has to be sparse, it becomes a sparse tensor of all rows.
        """
        weight, bias = self._weight_and_bias(dtype)
        if self._is_sparse(weight) and torch.is_grad_enabled():
            all_rows = torch.arange(len(weight), device=weight.device)
            weight = F.embedding(all_rows, weight, sparse=True)
        return weight, bias

    def _scores(self, hidden_ND: Tensor) -> Tensor:
        """The scores of all nodes or edges: (N, I) or (N, E)."""
        return linear(hidden_ND, *self._weight_and_bias_of_all(hidden_ND.dtype))

    def _is_sparse(self, weight: Tensor) -> bool:
        """Whether the gradient of this weight, as `_weight_and_bias` returned it, is sparse.

        It is dense if the weight was converted to another dtype.
        """
        return self.sparse_grad and weight is self._layer.weight


def _check_option(name: str, value: str, options: tuple[str, ...]) -> None:
    """Raises ValueError unless the value is one of the options."""
    if value not in options:
        raise ValueError(f"{name}: must be one of {', '.join(options)}, got {value!r}")


def leaf_sums(values_NE: Tensor, edges: Tensor, parents: Tensor, level_starts: list[int]) -> Tensor:
    """The sum of the edges' values on the path from the root to each leaf: (N, V).

    It is computed level by level: the sum at a node is that of its parent plus the value of the
    edge between them.

    Args:
        values_NE: (N, E), one per edge.
        edges: (I+V,) the edge that leads to each node; any value for the root.
        parents: (I+V,) the inner node above each node; any value for the root.
        level_starts: the first inner node of each level, then I. The nodes are in order of levels.
    """
    sums_at_root = values_NE.new_zeros(values_NE.size(0), 1)
    sums_of_levels = [sums_at_root]  # of the inner nodes of each level
    # For each level but the first: the start of the level above, its own start and its end.
    level_bounds = zip(level_starts, level_starts[1:], level_starts[2:], strict=False)
    for start_above, start, end in level_bounds:
        parents_in_level = parents[start:end] - start_above
        sums_above = sums_of_levels[-1].index_select(1, parents_in_level)
        sums_of_levels.append(sums_above + values_NE.index_select(1, edges[start:end]))
    sums_NI = torch.cat(sums_of_levels, dim=1)
    num_inner = level_starts[-1]
    sums_above_leaves_NV = sums_NI.index_select(1, parents[num_inner:])
    return sums_above_leaves_NV + values_NE.index_select(1, edges[num_inner:])


def sparse_rows(rows: Tensor, values: Tensor, shape: torch.Size) -> Tensor:
    """A coalesced sparse tensor of this shape from ascending rows (U,) and their values (U, …)."""
    # The argument check_invariants of sparse_coo_tensor is not used: with it PyTorch 2.11 still
    # warns that the checks are neither on nor off.
    with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
        return torch.sparse_coo_tensor(rows[None], values, shape, is_coalesced=True)
