# SPDX-License-Identifier: Apache-2.0
"""The contract of every output head, and what all of them share: checks, exact float32, smoothing, the k best.

Dimension key: N rows (all leading dimensions of `hidden` in one), D width, V units, K best.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from wenet_hs.heads.topk import topk_lowest_id_first


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

    A head has to say how it gets log-probabilities and a weighted sum of them; the rest is here.
    """

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
        with torch.autocast(hidden.device.type, enabled=False):
            return self._log_probs(rows_ND).reshape(*hidden.shape[:-1], self.num_units)

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The cost of each target: hidden (..., D), targets (...) → (...) nats, ≥ 0, not averaged."""
        return self.loss(hidden, targets, 0.0)

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """WeNet's label-smoothing loss of each target: KL(q ‖ p), its entropy constant included, so it is ≥ 0.

        q is 1-smoothing on the target and smoothing/(V-1) on every other unit. One unit alone has nothing to smooth.

        Args:
            hidden: (..., D).
            targets: (...) unit ids, padding already removed by the caller.
            smoothing: ε in [0, 1).
        Returns:
            (...) nats, not averaged; `nll` when smoothing is 0.
        """
        rows_ND = self._rows(hidden)
        targets_N = self._targets(targets, hidden.shape[:-1])
        weights = self._smoothing_weights(smoothing)
        with torch.autocast(hidden.device.type, enabled=False):
            cost_N = self._cross_entropy(rows_ND, targets_N, weights.target, weights.every)
        return (cost_N + weights.constant if weights.constant else cost_N).reshape(targets.shape)

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
        return topk_lowest_id_first(self.log_probs(hidden), k)

    def extra_repr(self) -> str:
        """What `print(head)` says besides its parameters."""
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
            raise ValueError(f"targets: expected integers of shape {tuple(shape)}, one a row of hidden, got {found}")
        if targets.device.type == "cpu" and targets.numel():
            low, high = (int(limit) for limit in targets.aminmax())
            if low < 0 or high >= self.num_units:
                found = f"values from {low} to {high}"
                raise ValueError(f"targets: {found}, expected 0…{self.num_units - 1}; remove padding before the head")
        return targets.reshape(-1).long()

    def _smoothing_weights(self, smoothing: float) -> SmoothingWeights:
        if not 0.0 <= smoothing < 1.0:
            raise ValueError(f"smoothing: must be in [0, 1), got {smoothing}")
        if smoothing == 0.0 or self.num_units == 1:
            return SmoothingWeights(1.0, 0.0, 0.0)
        other = smoothing / (self.num_units - 1)
        constant = (1.0 - smoothing) * math.log(1.0 - smoothing) + smoothing * math.log(other)
        return SmoothingWeights(1.0 - smoothing - other, other, constant)
