# SPDX-License-Identifier: Apache-2.0
"""The contract of the output heads and their shared code: checks, float32 computation, label smoothing, the k best.

Dimension key: N rows (all leading dimensions of `hidden` as one), D width, V units, K best, B batch, T time, L labels,
I inner nodes and E edges of a tree, M edges on the paths of some units.
"""

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from wenet_hs.heads.kernels.search import Found, can_use_kernels, topk_lowest_id_first
from wenet_hs.nn.cpu import linear

if TYPE_CHECKING:
    from wenet_hs.tree.unit_tree import UnitTree

Route = Literal["auto", "path", "all"]
"""How a cost without leaf smoothing is computed: from the nodes on the targets' paths, or from all nodes; "auto": the
faster way."""
Search = Literal["auto", "best_first", "all"]
"""How the k best units are found: by a search from the root, or from all log-probabilities; "auto": the faster way."""
SmoothingKind = Literal["leaf", "node"]
"""What label smoothing gives its mass to: all other units equally, or the other children of each node on the path."""

TOPK_MAX_SCORES = 2**25
"""Log-probabilities of which `topk` computes the best at a time. More rows are cut into parts to limit the memory."""


class SmoothingWeights(NamedTuple):
    """KL(q ‖ p) of WeNet's smoothed target q as `constant - on_target·log p(target) - on_all·Σ_v log p(v)`."""

    on_target: float
    on_all: float
    constant: float


class CostWeights(NamedTuple):
    """What the cost of a row over a tree consists of: plain, leaf-smoothed (`on_all` > 0) or node-smoothed."""

    on_target: float
    """The weight of -log P(target): the sum over the decisions on the target's path."""
    on_all: float
    """The weight of -Σ_v log P(v) over all units."""
    per_decision: float
    """ε > 0: each decision on the path has 1-ε for the right child and shares ε among the others. Then `on_target` is 1
    and `on_all` 0. For two children and the right child's score s: -(1-ε)·log σ(s) - ε·log σ(-s) = -log σ(s) + ε·s."""


class OutputHead(nn.Module, ABC):
    """Log-probabilities of the units from decoder states.

    `hidden` is (..., D) of any float dtype. All computation is in float32, also under autocast; float64 stays float64.
    Results have the leading shape of `hidden`. `targets` are unit ids in 0…V-1 with that leading shape. Their range is
    checked on a CPU; on a GPU the check would wait for the device.

    A head implements `_log_probs` and `_cross_entropy`. It overrides `_node_smoothed_loss`, `_topk`, `_eval_metrics`
    and `_label_log_probs` if it can compute them without all log-probabilities.
    """

    has_partial_log_probs: ClassVar[bool] = False
    """Whether `label_log_probs` is cheaper than `log_probs`."""

    def __init__(self, dim: int, num_units: int) -> None:
        super().__init__()
        if dim < 1 or num_units < 2:
            raise ValueError(f"head: dim {dim} must be at least 1, and num_units {num_units} at least 2")
        self.dim = dim
        self.num_units = num_units

    @abstractmethod
    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) float32 or float64 → (N, V) natural logarithms."""

    @abstractmethod
    def _cross_entropy(self, hidden_ND: Tensor, targets_N: Tensor, on_target: float, on_all: float) -> Tensor:
        """(N, D), (N,) → (N,) nats: -on_target·log p(target) - on_all·Σ_v log p(v); on_target is 1 if on_all is 0."""

    def log_probs(self, hidden: Tensor) -> Tensor:
        """All log-probabilities: hidden (..., D) → (..., V) natural logarithms; each row sums to one."""
        rows_ND = self._rows(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            return self._log_probs(rows_ND).reshape(*hidden.shape[:-1], self.num_units)

    def plain_log_probs(self, hidden: Tensor) -> Tensor:
        """`log_probs` by PyTorch's operations alone, without kernels of ours: for export, and as the reference."""
        rows_ND = self._rows(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            return self._plain_log_probs(rows_ND).reshape(*hidden.shape[:-1], self.num_units)

    def _plain_log_probs(self, hidden_ND: Tensor) -> Tensor:
        return self._log_probs(hidden_ND)

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The negative log-likelihood of each target: hidden (..., D), targets (...) → (...) nats, ≥ 0."""
        return self.loss(hidden, targets, 0.0)

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, kind: SmoothingKind = "leaf") -> Tensor:
        """The label-smoothing loss of each target: KL(q ‖ p) with its entropy constant, so it is ≥ 0.

        "leaf" is WeNet's: q is 1-smoothing on the target and smoothing/(V-1) on every other unit. "node" smooths each
        decision on the target's path: 1-smoothing on the right child, the other children share the rest. The loss is
        the sum of the divergences on the path. For a flat softmax, which is one decision, both kinds are equal.

        Args:
            hidden: (..., D).
            targets: (...) unit ids, without padding.
            smoothing: ε in [0, 1).
        Returns: (...) nats, not averaged; `nll` when smoothing is 0.
        """
        rows_ND = self._rows(hidden)
        targets_N = self._targets(targets, hidden.shape[:-1])
        if kind not in get_args(SmoothingKind):
            raise ValueError(f'kind: must be "leaf" or "node", got {kind!r}')
        weights = smoothing_weights(smoothing, self.num_units)
        with torch.autocast(hidden.device.type, enabled=False):
            if kind == "node" and smoothing:
                return self._node_smoothed_loss(rows_ND, targets_N, smoothing).reshape(targets.shape)
            cost_N = self._cross_entropy(rows_ND, targets_N, weights.on_target, weights.on_all)
        return (cost_N + weights.constant if weights.constant else cost_N).reshape(targets.shape)

    @torch.no_grad()
    def eval_metrics(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Without gradients: nll (...) in nats, and whether the head ranks each target first (...).

        Of equally probable units the lowest id is the first, as in `topk`.
        """
        rows_ND = self._rows(hidden)
        targets_N = self._targets(targets, hidden.shape[:-1])
        with torch.autocast(hidden.device.type, enabled=False):
            nll_N, is_best_N = self._eval_metrics(rows_ND, targets_N)
        return nll_N.reshape(targets.shape), is_best_N.reshape(targets.shape)

    def loss_and_metrics(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, kind: SmoothingKind = "leaf"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`loss` and both results of `eval_metrics`. A head overrides it if they share computation."""
        return self.loss(hidden, targets, smoothing, kind), *self.eval_metrics(hidden, targets)

    def label_log_probs(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """The log-probabilities of an utterance's labels at each of its frames, for a CTC loss.

        Args:
            hidden: (B, T, D).
            labels: (B, L) unit ids, for all frames of the utterance.
        Returns: (B, T, L) natural logarithms; differentiable.
        """
        if hidden.dim() != 3 or labels.dim() != 2 or len(hidden) != len(labels):
            found = f"{tuple(hidden.shape)} and {tuple(labels.shape)}"
            raise ValueError(f"label_log_probs: expected hidden (B, T, D) and labels (B, L), got {found}")
        labels_BL = self._targets(labels, labels.shape).reshape(labels.shape)
        rows_BTD = self._rows(hidden).reshape(hidden.shape)
        with torch.autocast(hidden.device.type, enabled=False):
            return self._label_log_probs(rows_BTD, labels_BL)

    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The exact k most probable units, best first; of equal ones the lower id comes first.

        Args:
            hidden: (..., D).
            k: 1…V.
        Returns: log-probabilities (..., K) and unit ids (..., K) int64.
        """
        if not 1 <= k <= self.num_units:
            raise ValueError(f"topk: k is {k}; with {self.num_units} units it must be 1…{self.num_units}")
        rows_ND = self._rows(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            values_NK, ids_NK = self._topk(rows_ND, k)
        return values_NK.reshape(*hidden.shape[:-1], k), ids_NK.reshape(*hidden.shape[:-1], k)

    def sparse_parameters(self) -> list[nn.Parameter]:
        """Parameters with sparse gradients. Training gives them an optimizer that updates the touched rows only."""
        return []

    # The defaults, from all log-probabilities; shapes as in `_log_probs`.

    def _node_smoothed_loss(self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        """(N,) the loss of kind "node" with its constants; here that of a head with one decision."""
        weights = smoothing_weights(smoothing, self.num_units)
        return self._cross_entropy(hidden_ND, targets_N, weights.on_target, weights.on_all) + weights.constant

    def _eval_metrics(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        log_probs_NV = self._log_probs(hidden_ND)
        return -log_probs_NV.gather(-1, targets_N[:, None])[:, 0], log_probs_NV.argmax(-1) == targets_N

    def _topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        num_rows = max(1, TOPK_MAX_SCORES // self.num_units)
        if len(hidden_ND) <= num_rows:
            return self._dense_topk(hidden_ND, k)
        parts = [self._dense_topk(rows_ND, k) for rows_ND in hidden_ND.split(num_rows)]  # type: ignore[no-untyped-call]
        return torch.cat([values for values, _ in parts]), torch.cat([ids for _, ids in parts])

    def _dense_topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return topk_lowest_id_first(self._log_probs(hidden_ND), k)

    def _wants_gradient(self, hidden_ND: Tensor) -> bool:
        tensors = (hidden_ND, *self.parameters()) if torch.is_grad_enabled() else ()
        return any(tensor.requires_grad for tensor in tensors)

    def _label_log_probs(self, hidden_BTD: Tensor, labels_BL: Tensor) -> Tensor:
        log_probs_BTV = self._log_probs(hidden_BTD.reshape(-1, self.dim)).reshape(*hidden_BTD.shape[:2], self.num_units)
        return log_probs_BTV.gather(-1, labels_BL[:, None, :].expand(-1, hidden_BTD.size(1), -1))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_units={self.num_units}"

    def _rows(self, hidden: Tensor) -> Tensor:
        if hidden.dim() < 1 or hidden.shape[-1] != self.dim or not hidden.is_floating_point():
            found = f"{tuple(hidden.shape)} {hidden.dtype}"
            raise ValueError(f"hidden: expected (..., {self.dim}) of a float dtype, got {found}")
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        return hidden.reshape(-1, self.dim).to(dtype)

    def _targets(self, targets: Tensor, shape: torch.Size) -> Tensor:
        if targets.dtype not in (torch.int64, torch.int32) or targets.shape != shape:
            found = f"{tuple(targets.shape)} {targets.dtype}"
            raise ValueError(f"targets: expected integers of shape {tuple(shape)}, one per row of hidden, got {found}")
        if targets.device.type == "cpu" and targets.numel():
            low, high = (int(limit) for limit in targets.aminmax())
            if low < 0 or high >= self.num_units:
                found = f"values from {low} to {high}"
                raise ValueError(f"targets: {found}, expected 0…{self.num_units - 1}; remove padding before the head")
        return targets.reshape(-1).long()


def smoothing_weights(smoothing: float, num_choices: int) -> SmoothingWeights:
    """The weights for 1-smoothing on one of `num_choices` and an equal share of the rest on each other one.

    Raises ValueError unless smoothing is in [0, 1).
    """
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"smoothing: must be in [0, 1), got {smoothing}")
    if smoothing == 0.0 or num_choices == 1:
        return SmoothingWeights(1.0, 0.0, 0.0)
    other = smoothing / (num_choices - 1)
    constant = (1.0 - smoothing) * math.log(1.0 - smoothing) + smoothing * math.log(other)
    return SmoothingWeights(1.0 - smoothing - other, other, constant)


def weighted_cost(log_probs: Tensor, targets: Tensor, on_target: float, on_all: float) -> Tensor:
    """(N,): -on_target·log p(its target) - on_all·Σ_v log p(v) from all log-probabilities (N, V)."""
    cost_N = -on_target * log_probs.gather(-1, targets[:, None])[:, 0]
    return cost_N - on_all * log_probs.sum(-1) if on_all else cost_N


def divergence(log_probs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """(N,): KL(q ‖ p) of the smoothed target q, from all log-probabilities (N, V)."""
    weights = smoothing_weights(smoothing, log_probs.size(-1))
    return weighted_cost(log_probs, targets, weights.on_target, weights.on_all) + weights.constant


# ---- for the heads over trees


class NodeHead(OutputHead):
    """A head with one linear layer over the nodes or edges of a tree, whose gradient may be sparse.

    It implements everything twice: by PyTorch's operations, and by Numba kernels where `can_use_kernels` holds.
    """

    has_partial_log_probs = True
    layer_name: ClassVar[str]
    tree: "UnitTree"

    def __init__(self, dim: int, num_units: int, *, sparse_grad: bool, route: Route, search: Search) -> None:
        super().__init__(dim, num_units)
        for name, value, options in (("route", route, Route), ("search", search, Search)):
            if value not in get_args(options):
                raise ValueError(f"{name}: must be one of {', '.join(get_args(options))}, got {value!r}")
        self.sparse_grad, self.route, self.search = sparse_grad, route, search

    @abstractmethod
    def _plain_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """`_log_probs` by PyTorch's operations."""

    @abstractmethod
    def _kernel_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """`_log_probs` by kernels."""

    @abstractmethod
    def _plain_cost(self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, is_path: bool) -> Tensor:
        """`_cost` by PyTorch's operations, from the nodes on the targets' paths only if `is_path`."""

    @abstractmethod
    def _kernel_cost(self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights, is_path: bool) -> Tensor:
        """`_cost` by kernels, from the nodes on the targets' paths only if `is_path`."""

    @abstractmethod
    def _is_path_faster(self, hidden: Tensor) -> bool:
        """Whether the nodes on the targets' paths are faster than all nodes, on the device and in the dtype given."""

    def _can_search(self, hidden: Tensor, k: int) -> bool:
        """Whether `_best_first` can run on the device and in the dtype given."""
        return can_use_kernels(hidden)

    @abstractmethod
    def _is_search_faster(self, hidden: Tensor, k: int) -> bool:
        """Whether `_best_first`, which can run, is faster than all log-probabilities."""

    @abstractmethod
    def _best_first(self, hidden_ND: Tensor, k: int) -> Found:
        """The k best units without gradients."""

    def uses_paths(self, hidden: Tensor) -> bool:
        """Whether a cost without leaf smoothing is computed from the nodes on the targets' paths.

        `hidden` is a tensor of the device and dtype of the computation. The choice does not depend on its shape.
        """
        return self._is_path_faster(hidden) if self.route == "auto" else self.route == "path"

    def uses_search(self, hidden: Tensor, k: int) -> bool:
        """Whether the k best units of hidden (N, D) are searched, if no gradient is wanted.

        Raises ValueError if the head has to search, and cannot.
        """
        if self.search == "all":
            return False
        can_search = self._can_search(hidden, k)
        if self.search == "best_first" and not can_search:
            raise ValueError(f'search: "best_first" cannot run for {hidden.dtype} on {hidden.device.type} and k = {k}')
        return can_search and (self.search == "best_first" or self._is_search_faster(hidden, k))

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        return (self._kernel_log_probs if can_use_kernels(hidden_ND) else self._plain_log_probs)(hidden_ND)

    def _cross_entropy(self, hidden_ND: Tensor, targets_N: Tensor, on_target: float, on_all: float) -> Tensor:
        return self._cost(hidden_ND, targets_N, CostWeights(on_target, on_all, 0.0))

    def _cost(self, hidden_ND: Tensor, targets_N: Tensor, weights: CostWeights) -> Tensor:
        """The cost of each row (N,), without the constants of smoothing."""
        is_path = not weights.on_all and self.uses_paths(hidden_ND)
        compute = self._kernel_cost if can_use_kernels(hidden_ND) else self._plain_cost
        return compute(hidden_ND, targets_N, weights, is_path)

    def _topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if not self.uses_search(hidden_ND, k) or self._wants_gradient(hidden_ND):
            return super()._topk(hidden_ND, k)
        values_NK, ids_NK, given_up_G = self._best_first(hidden_ND.contiguous(), k)
        if given_up_G is not None and len(given_up_G):
            values_NK[given_up_G], ids_NK[given_up_G] = super()._topk(hidden_ND.index_select(0, given_up_G), k)
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
            weight = F.embedding(torch.arange(len(weight), device=weight.device), weight, sparse=True)
        return weight, bias

    def _scores(self, hidden_ND: Tensor) -> Tensor:
        """Those of all nodes or edges, (N, …)."""
        return linear(hidden_ND, *self._all_vectors(hidden_ND.dtype))

    def _is_sparse(self, weight: Tensor) -> bool:
        """Whether the gradient is sparse. It is dense after a conversion of half-precision weights."""
        return self.sparse_grad and weight is self._layer.weight


def leaf_sums(values_NE: Tensor, edges: Tensor, parents: Tensor, level_starts: NDArray[np.int64]) -> Tensor:
    """The sums (N, V) of the edges' values on the paths to all leaves, level by level from the root.

    Args:
        edges, parents: (I+V,) the edge that leads to each node, and the inner node above it; any value for the root.
        level_starts: of the tree.
    """
    above = [values_NE.new_zeros(len(values_NE), 1)]  # of the inner nodes of each level
    for start, end, previous in zip(level_starts[1:], level_starts[2:], level_starts, strict=False):
        last = above[-1].index_select(1, parents[start:end] - int(previous))
        above.append(last + values_NE.index_select(1, edges[start:end]))
    leaves = slice(int(level_starts[-1]), None)
    return torch.cat(above, dim=1).index_select(1, parents[leaves]) + values_NE.index_select(1, edges[leaves])


def sparse_rows(rows: Tensor, values: Tensor, shape: torch.Size) -> Tensor:
    """A coalesced sparse tensor of this shape from ascending rows (U,) and their values (U, …)."""
    # Not the argument check_invariants: PyTorch 2.11 then still warns that the checks are neither on nor off.
    with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
        return torch.sparse_coo_tensor(rows[None], values, shape, is_coalesced=True)
