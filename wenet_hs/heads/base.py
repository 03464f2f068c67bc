# SPDX-License-Identifier: Apache-2.0
"""The contract of the output heads and their shared code: checks, float32 computation, label
smoothing, the k best.

Dimension key: N rows (all leading dimensions of `hidden` as one), D width, V units, K best, B
batch, T time, L labels.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from wenet_hs.heads.kernels.search import topk_lowest_id_first

SmoothingKind = Literal["leaf", "node"]
"""What label smoothing gives its mass to: all other units equally, or the other children of each
node on the path.
"""

TOPK_MAX_SCORES = 2**25
"""Log-probabilities that `topk` and `eval_metrics` compute at a time; more rows are cut into parts
for the memory.
"""


class SmoothingWeights(NamedTuple):
    """KL(q ‖ p) of WeNet's smoothed target q as `constant - on_target·log p(target) - on_all·Σ_v
    log p(v)`.
    """

    on_target: float
    on_all: float
    constant: float


class OutputHead(nn.Module, ABC):
    """Log-probabilities of the units from the hidden states of a model. It has no `forward`.

    `hidden` is (..., D) of any float dtype. All computation is in float32, also under autocast;
    float64 stays float64. Results have the leading shape of `hidden`. `targets` are unit ids in
    0…V-1 with that leading shape. Their range is checked on a CPU; on a GPU the check would wait
    for the device. There is no id for padding: leave it out before.

    A head implements `_log_probs` and `_cross_entropy`. It overrides `_node_smoothed_loss`,
    `_topk`, `_eval_metrics` and `_label_log_probs` if it can compute them without all
    log-probabilities.
    """

    has_partial_log_probs: ClassVar[bool] = False
    """Whether `label_log_probs` is cheaper than `log_probs`."""

    def __init__(self, dim: int, num_units: int) -> None:
        super().__init__()
        if dim < 1 or num_units < 2:
            raise ValueError(
                f"head: dim {dim} must be at least 1, and num_units {num_units} at least 2"
            )
        self.dim = dim
        self.num_units = num_units

    @abstractmethod
    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) float32 or float64 → (N, V) natural logarithms."""

    @abstractmethod
    def _cross_entropy(
        self, hidden_ND: Tensor, targets_N: Tensor, on_target: float, on_all: float
    ) -> Tensor:
        """(N, D), (N,) → (N,) nats: -on_target·log p(target) - on_all·Σ_v log p(v); on_target is 1
        if on_all is 0.
        """

    def log_probs(self, hidden: Tensor) -> Tensor:
        """All log-probabilities: hidden (..., D) → (..., V) natural logarithms; each row sums to
        one.
        """
        rows_ND = self._rows(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            return self._log_probs(rows_ND).reshape(*hidden.shape[:-1], self.num_units)

    def plain_log_probs(self, hidden: Tensor) -> Tensor:
        """`log_probs` by PyTorch's operations alone, without kernels of ours: for export, and as
        the reference.
        """
        rows_ND = self._rows(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            return self._plain_log_probs(rows_ND).reshape(*hidden.shape[:-1], self.num_units)

    def _plain_log_probs(self, hidden_ND: Tensor) -> Tensor:
        return self._log_probs(hidden_ND)

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The negative log-likelihood of each target: hidden (..., D), targets (...) → (...) nats,
        ≥ 0.
        """
        return self.loss(hidden, targets, 0.0)

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, kind: SmoothingKind = "leaf"
    ) -> Tensor:
        """The label-smoothing loss of each target: KL(q ‖ p) with its entropy constant, so it is ≥
        0.

        "leaf" is WeNet's: q is 1-smoothing on the target and smoothing/(V-1) on every other unit.
        "node" smooths each decision on the target's path: 1-smoothing on the right child, the other
        children share the rest. The loss is the sum of the divergences on the path. For a flat
        softmax, which is one decision, both kinds are equal.

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
                return self._node_smoothed_loss(rows_ND, targets_N, smoothing).reshape(
                    targets.shape
                )
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
        """`loss` and both results of `eval_metrics`.

        A head overrides it if they share computation.
        """
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
            raise ValueError(
                f"label_log_probs: expected hidden (B, T, D) and labels (B, L), got {found}"
            )
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
            raise ValueError(
                f"topk: k is {k}; with {self.num_units} units it must be 1…{self.num_units}"
            )
        rows_ND = self._rows(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            values_NK, ids_NK = self._topk(rows_ND, k)
        return values_NK.reshape(*hidden.shape[:-1], k), ids_NK.reshape(*hidden.shape[:-1], k)

    def sparse_parameters(self) -> list[nn.Parameter]:
        """Parameters with sparse gradients.

        Training gives them an optimizer that updates the touched rows only.
        """
        return []

    # The defaults, from all log-probabilities; shapes as in `_log_probs`.

    def _node_smoothed_loss(self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        """(N,) the loss of kind "node" with its constants; here that of a head with one decision."""
        weights = smoothing_weights(smoothing, self.num_units)
        return (
            self._cross_entropy(hidden_ND, targets_N, weights.on_target, weights.on_all)
            + weights.constant
        )

    def _eval_metrics(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        num_rows = max(1, TOPK_MAX_SCORES // self.num_units)
        if len(hidden_ND) > num_rows:
            pairs = zip(hidden_ND.split(num_rows), targets_N.split(num_rows), strict=True)  # type: ignore[no-untyped-call]
            parts = [self._eval_metrics(*pair) for pair in pairs]
            return torch.cat([nll for nll, _ in parts]), torch.cat(
                [is_best for _, is_best in parts]
            )
        log_probs_NV = self._log_probs(hidden_ND)
        return -log_probs_NV.gather(-1, targets_N[:, None])[:, 0], log_probs_NV.argmax(
            -1
        ) == targets_N

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
        log_probs_BTV = self._log_probs(hidden_BTD.reshape(-1, self.dim)).reshape(
            *hidden_BTD.shape[:2], self.num_units
        )
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
            raise ValueError(
                f"targets: expected integers of shape {tuple(shape)}, one per row of hidden, got {found}"
            )
        if targets.device.type == "cpu" and targets.numel():
            low, high = (int(limit) for limit in targets.aminmax())
            if low < 0 or high >= self.num_units:
                found = f"values from {low} to {high}"
                raise ValueError(
                    f"targets: {found}, expected 0…{self.num_units - 1}; remove padding before the head"
                )
        return targets.reshape(-1).long()


def smoothing_weights(smoothing: float, num_choices: int) -> SmoothingWeights:
    """The weights for 1-smoothing on one of `num_choices` and an equal share of the rest on each
    other one.

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
