# SPDX-License-Identifier: Apache-2.0
"""The common part of the heads over trees: how their costs and best units are computed, sparse
gradients.

Dimension key: N rows, D width, V units, K best, I inner nodes, E edges.
"""

from abc import abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.kernels.search import Found, can_use_kernels
from wenet_hs.heads.products import linear
from wenet_hs.tree.unit_tree import UnitTree

Route = Literal["auto", "path", "all"]
"""How a cost without leaf smoothing is computed: from the nodes on the targets' paths, or from all
nodes; "auto": the faster way.
"""
SearchMethod = Literal["auto", "best_first", "all"]
"""How the k best units are found: by a search from the root, or from all log-probabilities; "auto":
the faster way.
"""


class CostWeights(NamedTuple):
    """What the cost of a row over a tree consists of: plain, leaf-smoothed (`on_all` > 0) or
    node-smoothed.
    """

    on_target: float
    """The weight of -log P(target): the sum over the decisions on the target's path."""
    on_all: float
    """The weight of -Σ_v log P(v) over all units."""
    per_decision: float
    """ε > 0: each decision on the path has 1-ε for the right child and shares ε among the others.

    Then `on_target` is 1 and `on_all` 0. For two children and the right child's score s: -(1-ε)·log
    σ(s) - ε·log σ(-s) = -log σ(s) + ε·s.
    """


class NodeHead(OutputHead):
    """A head with one linear layer over the nodes or edges of a tree, whose gradient may be sparse.

    It implements everything twice: by PyTorch's operations, and by kernels.
    """

    has_partial_log_probs = True
    layer_name: ClassVar[str]
    tree: UnitTree

    def __init__(
        self, dim: int, num_units: int, *, sparse_grad: bool, route: Route, search: SearchMethod
    ) -> None:
        super().__init__(dim, num_units)
        for name, value, options in (("route", route, Route), ("search", search, SearchMethod)):
            if value not in get_args(options):
                raise ValueError(
                    f"{name}: must be one of {', '.join(get_args(options))}, got {value!r}"
                )
        self.sparse_grad, self.route, self.search = sparse_grad, route, search

    @abstractmethod
    def _plain_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """`_log_probs` by PyTorch's operations."""

    @abstractmethod
    def _kernel_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """`_log_probs` by kernels."""

    @abstractmethod
    def _plain_cost(
        self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, is_path: bool
    ) -> Tensor:
        """`_cost` by PyTorch's operations, from the nodes on the targets' paths only if `is_path`."""

    @abstractmethod
    def _kernel_cost(
        self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, is_path: bool
    ) -> Tensor:
        """`_cost` by kernels, from the nodes on the targets' paths only if `is_path`."""

    @abstractmethod
    def _is_path_faster(self, hidden: Tensor) -> bool:
        """Whether the nodes on the targets' paths are faster than all nodes, on the device and in
        the dtype given.
        """

    def _has_cost_kernel(self, hidden: Tensor) -> bool:
        """Whether `_kernel_cost` can run on the device and in the dtype given."""
        return can_use_kernels(hidden)

    @abstractmethod
    def _is_search_faster(self, hidden: Tensor, k: int) -> bool:
        """Whether `_best_first`, which can run, is faster than all log-probabilities."""

    @abstractmethod
    def _best_first(self, hidden_ND: Tensor, k: int) -> Found:
        """The k best units without gradients."""

    def uses_paths(self, hidden: Tensor) -> bool:
        """Whether a cost without leaf smoothing is computed from the nodes on the targets' paths.

        `hidden` is a tensor of the device and dtype of the computation. The choice does not depend
        on its shape.
        """
        return self._is_path_faster(hidden) if self.route == "auto" else self.route == "path"

    def uses_search(self, hidden: Tensor, k: int) -> bool:
        """Whether the k best units of hidden (N, D) are searched, if no gradient is wanted.

        Raises ValueError if the head has to search, and cannot.
        """
        if self.search == "all":
            return False
        can_search = can_use_kernels(hidden)
        if self.search == "best_first" and not can_search:
            raise ValueError(
                f'search: "best_first" cannot run for {hidden.dtype} on {hidden.device.type}'
            )
        return can_search and (self.search == "best_first" or self._is_search_faster(hidden, k))

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        return (self._kernel_log_probs if can_use_kernels(hidden_ND) else self._plain_log_probs)(
            hidden_ND
        )

    def _cross_entropy(
        self, hidden_ND: Tensor, targets_N: Tensor, on_target: float, on_all: float
    ) -> Tensor:
        return self._cost(hidden_ND, targets_N, CostWeights(on_target, on_all, 0.0))

    def _cost(self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights) -> Tensor:
        """The cost of each row (N,), without the constants of smoothing."""
        is_path = not weights.on_all and self.uses_paths(hidden_ND)
        compute = self._kernel_cost if self._has_cost_kernel(hidden_ND) else self._plain_cost
        return compute(hidden_ND, targets_N, weights, is_path)

    def _topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if not self.uses_search(hidden_ND, k) or self._wants_gradient(hidden_ND):
            return super()._topk(hidden_ND, k)
        values_NK, ids_NK, given_up_G = self._best_first(hidden_ND.contiguous(), k)
        if given_up_G is not None and len(given_up_G):
            values_NK[given_up_G], ids_NK[given_up_G] = super()._topk(
                hidden_ND.index_select(0, given_up_G), k
            )
        return values_NK, ids_NK

    def extra_repr(self) -> str:
        """With how a cost without leaf smoothing is computed."""
        chosen = "path" if self.uses_paths(self._rows(self._layer.weight[:1])) else "all"
        return f"{super().extra_repr()}, depth={self.tree.depth}, route={self.route}: {chosen}, search={self.search}"

    @property
    def _layer(self) -> nn.Linear:
        return cast(nn.Linear, getattr(self, self.layer_name))

    def sparse_parameters(self) -> list[nn.Parameter]:
        """The weight, if its gradient is sparse."""
        return [cast(nn.Parameter, self._layer.weight)] if self.sparse_grad else []

    def _vectors(self, dtype: torch.dtype) -> tuple[Tensor, Any]:
        """Weight, and bias or None."""
        bias = self._layer.bias
        return self._layer.weight.to(dtype), None if bias is None else bias.to(dtype)

    def _all_vectors(self, dtype: torch.dtype) -> tuple[Tensor, Any]:
        """`_vectors`; with `sparse_grad` the gradient of the weight is a sparse tensor of all rows."""
        weight, bias = self._vectors(dtype)
        if self._is_sparse(weight) and torch.is_grad_enabled():
            weight = F.embedding(
                torch.arange(len(weight), device=weight.device), weight, sparse=True
            )
        return weight, bias

    def _scores(self, hidden_ND: Tensor) -> Tensor:
        """Those of all nodes or edges, (N, …)."""
        return linear(hidden_ND, *self._all_vectors(hidden_ND.dtype))

    def _is_sparse(self, weight: Tensor) -> bool:
        """Whether the gradient is sparse.

        It is dense after a conversion of half-precision weights.
        """
        return self.sparse_grad and weight is self._layer.weight


def leaf_sums(values_NE: Tensor, edges: Tensor, parents: Tensor, level_starts: list[int]) -> Tensor:
    """The sums (N, V) of the edges' values on the paths to all leaves, level by level from the
    root.

    Args:
        edges, parents: (I+V,) the edge that leads to each node, and the inner node above it; any
            value for the root.
        level_starts: of the tree.
    """
    above = [values_NE.new_zeros(values_NE.size(0), 1)]  # of the inner nodes of each level
    for start, end, previous in zip(level_starts[1:], level_starts[2:], level_starts, strict=False):
        last = above[-1].index_select(1, parents[start:end] - previous)
        above.append(last + values_NE.index_select(1, edges[start:end]))
    leaves = slice(level_starts[-1], None)
    return torch.cat(above, dim=1).index_select(1, parents[leaves]) + values_NE.index_select(
        1, edges[leaves]
    )


def sparse_rows(rows: Tensor, values: Tensor, shape: torch.Size) -> Tensor:
    """A coalesced sparse tensor of this shape from ascending rows (U,) and their values (U, …)."""
    # Not the argument check_invariants: PyTorch 2.11 then still warns that the checks are neither
    # on nor off.
    with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
        return torch.sparse_coo_tensor(rows[None], values, shape, is_coalesced=True)
