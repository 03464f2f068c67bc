# SPDX-License-Identifier: Apache-2.0
"""The contract of every output head, and what all of them share: checks, exact float32, smoothing, the k best.

Dimension key: N rows (all leading dimensions of `hidden` in one), D width, V units, K best.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import ClassVar, Literal, NamedTuple, ParamSpec, TypeVar, get_args

import torch
from torch import Tensor, nn

from wenet_hs.heads.kernels.topk import topk_lowest_id_first

_P = ParamSpec("_P")
_R = TypeVar("_R")

SmoothingKind = Literal["leaf", "node"]
"""Where label smoothing puts its mass: on all other units alike, or on the other children of the target's path."""


class SmoothingWeights(NamedTuple):
    """KL(q ‖ p) of WeNet's smoothed target q as `constant - target·log p(target) - every·Σ_v log p(v)`."""

    target: float
    every: float
    constant: float


class OutputHead(nn.Module, ABC):
    """Decoder states to log-probabilities of units.

    `hidden` is (..., D) of any float dtype. Inside, everything is float32, whatever autocast says: log-probabilities
    summed along a path or over units do not survive half precision. float64 stays float64. Results have the leading
    shape of `hidden`. `targets` are unit ids in 0…V-1 with that leading shape; on CPU their range is checked, on a
    GPU, where a look at the values would stop the queue, the indexing kernels assert it.

    A head has to say how it gets log-probabilities and a weighted sum of them; the rest is here. What it can do for
    less than all log-probabilities it says in `_node_cost`, `_topk`, `_eval_metrics` and `_label_log_probs`.
    """

    partial: ClassVar[bool] = False
    """Whether `label_log_probs` costs less than `log_probs`."""

    def __init__(self, dim: int, num_units: int) -> None:
        super().__init__()
        if dim < 1 or num_units < 1:
            raise ValueError(f"head: dim {dim} and num_units {num_units} must be at least 1")
        self.dim = dim
        self.num_units = num_units

    @abstractmethod
    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) float32 or float64 → (N, V) natural logarithms; each row sums to one."""

    @abstractmethod
    def _cross_entropy(self, hidden_ND: Tensor, targets_N: Tensor, target: float, every: float) -> Tensor:
        """(N, D), (N,) → (N,): -target·log p(its target) - every·Σ_v log p(v), in nats."""

    def log_probs(self, hidden: Tensor) -> Tensor:
        """The whole distribution: hidden (..., D) → (..., V) natural logarithms, each row sums to one."""
        rows_ND = self._rows(hidden)
        with _without_autocast(hidden.device.type):
            return self._log_probs(rows_ND).reshape(*hidden.shape[:-1], self.num_units)

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The cost of each target: hidden (..., D), targets (...) → (...) nats, ≥ 0, not averaged."""
        return self.loss(hidden, targets, 0.0)

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, kind: SmoothingKind = "leaf") -> Tensor:
        """The label-smoothing loss of each target: KL(q ‖ p), its entropy constant included, so it is ≥ 0.

        "leaf" is WeNet's: q is 1-smoothing on the target and smoothing/(V-1) on every other unit. "node" smooths each
        decision on the target's path instead: 1-smoothing on the right child, the rest shared by the others, and the
        divergences of the path added up; it touches the path alone. A flat softmax is one decision: both are one there.
        One unit alone has nothing to smooth.

        Args:
            hidden: (..., D).
            targets: (...) unit ids, padding already removed by the caller.
            smoothing: ε in [0, 1).
        Returns:
            (...) nats, not averaged; `nll` when smoothing is 0.
        """
        rows_ND = self._rows(hidden)
        targets_N = self._targets(targets, hidden.shape[:-1])
        weights = self._weights(smoothing, kind)
        with _without_autocast(hidden.device.type):
            if kind == "node" and smoothing:
                return self._node_cost(rows_ND, targets_N, smoothing).reshape(targets.shape)
            cost_N = self._cross_entropy(rows_ND, targets_N, weights.target, weights.every)
        return (cost_N + weights.constant if weights.constant else cost_N).reshape(targets.shape)

    @torch.no_grad()
    def eval_metrics(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """What a monitor wants, without gradients: nll (...) in nats, and whether the head ranks each target first.

        Of equally probable units the one of the lowest id is the first, as in `topk`.
        """
        rows_ND = self._rows(hidden)
        targets_N = self._targets(targets, hidden.shape[:-1])
        with _without_autocast(hidden.device.type):
            nll_N, is_best_N = self._eval_metrics(rows_ND, targets_N)
        return nll_N.reshape(targets.shape), is_best_N.reshape(targets.shape)

    def loss_and_metrics(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, kind: SmoothingKind = "leaf"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`loss`, and the nll and the hits of `eval_metrics`. A head overrides it where the three share computation."""
        return self.loss(hidden, targets, smoothing, kind), *self.eval_metrics(hidden, targets)

    def label_log_probs(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """The log-probabilities of an utterance's labels alone, at each of its frames: what a CTC loss needs.

        Args:
            hidden: (B, T, D).
            labels: (B, L) unit ids, the same for all frames of an utterance.
        Returns:
            (B, T, L) natural logarithms; differentiable.
        """
        if hidden.dim() != 3 or labels.dim() != 2 or len(hidden) != len(labels):
            found = f"{tuple(hidden.shape)} and {tuple(labels.shape)}"
            raise ValueError(f"label_log_probs: expected hidden (B, T, D) and labels (B, L), got {found}")
        labels_BL = self._targets(labels, labels.shape).reshape(labels.shape)
        rows_BTD = self._rows(hidden).reshape(hidden.shape)
        with _without_autocast(hidden.device.type):
            return self._label_log_probs(rows_BTD, labels_BL)

    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable units, exactly, best first; of equal ones the lower id comes first.

        Args:
            hidden: (..., D).
            k: 1…V.
        Returns:
            log-probabilities (..., K) and unit ids (..., K) int64.
        """
        if not 1 <= k <= self.num_units:
            raise ValueError(f"topk: k is {k}; with {self.num_units} units it must be 1…{self.num_units}")
        rows_ND = self._rows(hidden)
        with _without_autocast(hidden.device.type):
            values_NK, ids_NK = self._topk(rows_ND, k)
        if hidden.dim() == 2:
            return values_NK, ids_NK
        return values_NK.reshape(*hidden.shape[:-1], k), ids_NK.reshape(*hidden.shape[:-1], k)

    def sparse_parameters(self) -> list[nn.Parameter]:
        """Parameters whose gradients may be sparse, with the touched rows alone: a head with `sparse_grad` lists its
        weights. Training gives them an optimizer that updates these rows and no others."""
        return []

    # What a head that knows a cheaper way overrides; shapes as in `_log_probs`.

    def _node_cost(self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        """(N,) the loss of kind "node", constants included. Here: of a head of one decision."""
        weights = smoothing_weights(smoothing, self.num_units)
        return self._cross_entropy(hidden_ND, targets_N, weights.target, weights.every) + weights.constant

    def _eval_metrics(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        log_probs_NV = self._log_probs(hidden_ND)
        return -log_probs_NV.gather(-1, targets_N[:, None])[:, 0], log_probs_NV.argmax(-1) == targets_N

    def _topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return topk_lowest_id_first(self._log_probs(hidden_ND), k)

    def _label_log_probs(self, hidden_BTD: Tensor, labels_BL: Tensor) -> Tensor:
        log_probs_NV = self._log_probs(hidden_BTD.reshape(-1, self.dim))
        log_probs_BTV = log_probs_NV.reshape(*hidden_BTD.shape[:2], self.num_units)
        return log_probs_BTV.gather(-1, labels_BL[:, None, :].expand(-1, hidden_BTD.size(1), -1))

    def extra_repr(self) -> str:
        """What `print(head)` says besides its parameters."""
        return f"dim={self.dim}, num_units={self.num_units}"

    def _rows(self, hidden: Tensor) -> Tensor:
        if hidden.dtype == torch.float32 and hidden.dim() == 2 and hidden.shape[1] == self.dim:
            return hidden  # the same as below, without its 2 µs: a search of one row takes 6
        if hidden.dim() < 1 or hidden.shape[-1] != self.dim or not hidden.is_floating_point():
            found = f"{tuple(hidden.shape)} {hidden.dtype}"
            raise ValueError(f"hidden: expected (..., {self.dim}) of a float dtype, got {found}")
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        return hidden.reshape(-1, self.dim).to(dtype)

    def _weights(self, smoothing: float, kind: SmoothingKind) -> SmoothingWeights:
        if kind not in get_args(SmoothingKind):
            raise ValueError(f'kind: must be "leaf" or "node", got {kind!r}')
        return smoothing_weights(smoothing, self.num_units)

    def _targets(self, targets: Tensor, shape: torch.Size) -> Tensor:
        if targets.dtype not in (torch.int64, torch.int32) or targets.shape != shape:
            found = f"{tuple(targets.shape)} {targets.dtype}"
            raise ValueError(f"targets: expected integers of shape {tuple(shape)}, one a row of hidden, got {found}")
        if targets.device.type == "cpu" and targets.numel():
            low, high = (int(limit) for limit in targets.aminmax())
            if low < 0 or high >= self.num_units:
                found = f"values from {low} to {high}"
                raise ValueError(f"targets: {found}, expected 0…{self.num_units - 1}; remove padding before the head")
        return targets.reshape(-1).long()


def _without_autocast(device_type: str) -> AbstractContextManager[object]:
    """A context where torch computes in the dtypes that it is given; to enter torch's own costs 3 µs."""
    if torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return _NOTHING_TO_DO


_NOTHING_TO_DO = nullcontext()


def smoothing_weights(smoothing: float, num_choices: int) -> SmoothingWeights:
    """The weights for 1-smoothing on one of `num_choices` and the rest shared by the others; one has nothing to smooth.

    Raises ValueError unless smoothing is in [0, 1).
    """
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"smoothing: must be in [0, 1), got {smoothing}")
    if smoothing == 0.0 or num_choices == 1:
        return SmoothingWeights(1.0, 0.0, 0.0)
    other = smoothing / (num_choices - 1)
    constant = (1.0 - smoothing) * math.log(1.0 - smoothing) + smoothing * math.log(other)
    return SmoothingWeights(1.0 - smoothing - other, other, constant)


def compile_disable(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, which a compiled graph calls as it is: `torch.compiler.disable` without its second of imports,
    which only a process that compiles pays."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if torch.compiler.is_compiling():
            disabled: Callable[_P, _R] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
            return disabled(*args, **kwargs)
        return function(*args, **kwargs)

    return call
