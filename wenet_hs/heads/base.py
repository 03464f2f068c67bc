# SPDX-License-Identifier: Apache-2.0
"""`OutputHead`, the interface of all heads, and the code that they share.

Shared are the checks of the arguments, the computation in float32, label smoothing, and the k best
units from all log-probabilities.

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
"""Which choices share the probability ε of label smoothing equally.

"leaf": all units except the target. "node": at each node on the target's path, the other children.
"""

TOPK_MAX_SCORES = 2**25
"""The most log-probabilities that are computed at a time, if no gradient is wanted.

A batch with more of them is computed in parts of its rows, because all log-probabilities would need
too much memory.
"""


class SmoothingWeights(NamedTuple):
    """The weights of KL(q ‖ p), where q is the smoothed target distribution.

    KL(q ‖ p) = constant - on_target·log p(target) - on_all·Σ_v log p(v).
    """

    on_target: float
    """q(target), minus the q of any other unit."""
    on_all: float
    """q of each unit except the target; 0 without smoothing."""
    constant: float
    """Minus the entropy of q, Σ_v q(v)·log q(v), in nats; 0 without smoothing."""


class OutputHead(nn.Module, ABC):
    """Log-probabilities of the units from the hidden states of a model. It has no `forward`.

    `hidden` is (..., D) of any float dtype. All computation is in float32, also under autocast;
    float64 stays float64. Results have the leading shape of `hidden`. `targets` are unit ids in
    0…V-1 with that leading shape. Their range is checked on a CPU; on a GPU the check would wait
    for the device. There is no id for padding: the caller removes it.

    A head implements `_log_probs` and `_cross_entropy`. It overrides `_node_smoothed_loss`,
    `_topk`, `_eval_metrics` and `_label_log_probs` if it can compute them without all
    log-probabilities.
    """

    has_partial_log_probs: ClassVar[bool] = False
    """Whether `label_log_probs` is cheaper than `log_probs`."""

    def __init__(self, dim: int, num_units: int) -> None:
        """Keep the sizes. Raises ValueError if a state is empty, or for fewer than two units.

        Args:
            dim: size D of a hidden state.
            num_units: V.
        """
        super().__init__()
        if dim < 1 or num_units < 2:
            raise ValueError(
                f"head: dim {dim} must be at least 1, and num_units {num_units} at least 2"
            )
        self.dim = dim
        self.num_units = num_units

    @abstractmethod
    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        """All log-probabilities of rows: (N, D) float32 or float64 → (N, V) natural logarithms."""

    @abstractmethod
    def _cross_entropy(
        self, hidden_ND: Tensor, targets_N: Tensor, on_target: float, on_all: float
    ) -> Tensor:
        """The weighted cost of each row: (N, D) and (N,) unit ids → (N,) nats.

        It is -on_target·log p(target) - on_all·Σ_v log p(v). If on_all is 0, on_target is 1.
        """

    def log_probs(self, hidden: Tensor) -> Tensor:
        """The log-probabilities of all units: hidden (..., D) → (..., V) natural logarithms.

        The probabilities of a row sum to one.
        """
        rows_ND = self._flatten_hidden(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            log_probs_NV = self._log_probs(rows_ND)
        return log_probs_NV.reshape(*hidden.shape[:-1], self.num_units)

    def plain_log_probs(self, hidden: Tensor) -> Tensor:
        """`log_probs` computed by PyTorch's operations only, without kernels of this package.

        It can be exported, and it is the reference for the kernels.
        """
        rows_ND = self._flatten_hidden(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            log_probs_NV = self._plain_log_probs(rows_ND)
        return log_probs_NV.reshape(*hidden.shape[:-1], self.num_units)

    def _plain_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """`_log_probs` without kernels: (N, D) → (N, V). A head that has kernels overrides it."""
        return self._log_probs(hidden_ND)

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The negative log-likelihood of each target in nats, at least 0.

        hidden (..., D) and targets (...) → (...).
        """
        return self.loss(hidden, targets, smoothing=0.0)

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, kind: SmoothingKind = "leaf"
    ) -> Tensor:
        """The loss of each target with label smoothing: KL(q ‖ p) in nats, at least 0.

        p is the distribution of the head, and q is the smoothed target distribution.
        "leaf" is WeNet's smoothing: q is 1-smoothing on the target and smoothing/(V-1) on every
        other unit. "node" smooths each decision on the target's path: the child on the path has
        1-smoothing, and the other children share the rest. The loss is then the sum of the
        divergences on the path. A flat softmax is one decision, so both kinds are equal there.

        Args:
            hidden: (..., D).
            targets: (...) unit ids, without padding.
            smoothing: ε in [0, 1).
        Returns: (...) nats, not averaged; `nll` when smoothing is 0.
        Raises ValueError: an argument is invalid.
        """
        rows_ND = self._flatten_hidden(hidden)
        targets_N = self._flatten_targets(targets, hidden.shape[:-1])
        if kind not in get_args(SmoothingKind):
            raise ValueError(f'kind: must be "leaf" or "node", got {kind!r}')
        weights = smoothing_weights(smoothing, self.num_units)
        with torch.autocast(hidden.device.type, enabled=False):
            if kind == "node" and smoothing:
                loss_N = self._node_smoothed_loss(rows_ND, targets_N, smoothing)
            else:
                loss_N = self._cross_entropy(rows_ND, targets_N, weights.on_target, weights.on_all)
                if weights.constant:
                    loss_N = loss_N + weights.constant
        return loss_N.reshape(targets.shape)

    @torch.no_grad()
    def eval_metrics(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The nll of each target in nats (...), and whether the head ranks the target first (...).

        Of equally probable units the one with the lowest id is first, as in `topk`. The results
        have no gradients. Raises ValueError if an argument is invalid.
        """
        rows_ND = self._flatten_hidden(hidden)
        targets_N = self._flatten_targets(targets, hidden.shape[:-1])
        with torch.autocast(hidden.device.type, enabled=False):
            nll_N, is_best_N = self._eval_metrics(rows_ND, targets_N)
        return nll_N.reshape(targets.shape), is_best_N.reshape(targets.shape)

    def loss_and_metrics(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, kind: SmoothingKind = "leaf"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`loss` with gradients, then both results of `eval_metrics`; all three are (...).

        A head overrides it if it can compute the loss and the metrics together.
        """
        loss = self.loss(hidden, targets, smoothing, kind)
        nll, is_best = self.eval_metrics(hidden, targets)
        return loss, nll, is_best

    def label_log_probs(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """The log-probabilities of an utterance's labels at each of its frames, for a CTC loss.

        Args:
            hidden: (B, T, D).
            labels: (B, L) unit ids, for all frames of the utterance.
        Returns: (B, T, L) natural logarithms; differentiable.
        Raises ValueError: an argument is invalid.
        """
        if hidden.dim() != 3 or labels.dim() != 2 or len(hidden) != len(labels):
            raise ValueError(
                "label_log_probs: expected hidden (B, T, D) and labels (B, L), "
                f"got {tuple(hidden.shape)} and {tuple(labels.shape)}"
            )
        labels_BL = self._flatten_targets(labels, labels.shape).reshape(labels.shape)
        rows_BTD = self._flatten_hidden(hidden).reshape(hidden.shape)
        with torch.autocast(hidden.device.type, enabled=False):
            return self._label_log_probs(rows_BTD, labels_BL)

    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The exact k most probable units, best first; of equal ones the lower id comes first.

        Args:
            hidden: (..., D).
            k: 1…V.
        Returns: log-probabilities (..., K) and unit ids (..., K) int64.
        Raises ValueError: k is not in 1…V, or hidden is invalid.
        """
        if not 1 <= k <= self.num_units:
            raise ValueError(
                f"topk: k is {k}; with {self.num_units} units it must be 1…{self.num_units}"
            )
        rows_ND = self._flatten_hidden(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            values_NK, ids_NK = self._topk(rows_ND, k)
        result_shape = (*hidden.shape[:-1], k)
        return values_NK.reshape(result_shape), ids_NK.reshape(result_shape)

    def sparse_parameters(self) -> list[nn.Parameter]:
        """The parameters that have sparse gradients; here none.

        Training gives them an optimizer that updates only the rows in the gradient.
        """
        return []

    # The default computation, from all log-probabilities.

    def _node_smoothed_loss(self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        """The loss of kind "node" of each row (N,) in nats, including its constant.

        This default is for a head with one decision among all units. There the kinds "node" and
        "leaf" are equal.
        """
        weights = smoothing_weights(smoothing, self.num_units)
        cost_N = self._cross_entropy(hidden_ND, targets_N, weights.on_target, weights.on_all)
        return cost_N + weights.constant

    def _eval_metrics(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """The nll of each target (N,) in nats and whether it is ranked first (N,).

        Many rows are computed in parts, which saves memory.
        """
        max_rows = self._max_rows()
        if len(hidden_ND) <= max_rows:
            return metrics_of_log_probs(self._log_probs(hidden_ND), targets_N)
        nlls = []
        are_best = []
        parts = zip(torch.split(hidden_ND, max_rows), torch.split(targets_N, max_rows), strict=True)
        for part_ND, part_targets_N in parts:
            nll_N, is_best_N = metrics_of_log_probs(self._log_probs(part_ND), part_targets_N)
            nlls.append(nll_N)
            are_best.append(is_best_N)
        return torch.cat(nlls), torch.cat(are_best)

    def _topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best units of each row: log-probabilities (N, K) and unit ids (N, K) int64.

        Many rows are computed in parts, which saves memory.
        """
        max_rows = self._max_rows()
        if len(hidden_ND) <= max_rows:
            return self._dense_topk(hidden_ND, k)
        parts = [self._dense_topk(part_ND, k) for part_ND in torch.split(hidden_ND, max_rows)]
        values_NK = torch.cat([part_values for part_values, _ in parts])
        ids_NK = torch.cat([part_ids for _, part_ids in parts])
        return values_NK, ids_NK

    def _dense_topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """`_topk` of few rows, from their log-probabilities of all units at once."""
        return topk_lowest_id_first(self._log_probs(hidden_ND), k)

    def _max_rows(self) -> int:
        """How many rows have at most TOPK_MAX_SCORES log-probabilities together; at least 1."""
        return max(1, TOPK_MAX_SCORES // self.num_units)

    def _label_log_probs(self, hidden_BTD: Tensor, labels_BL: Tensor) -> Tensor:
        """(B, T, L): the log-probabilities of each utterance's labels in each of its frames."""
        batch_size, num_frames, _ = hidden_BTD.shape
        log_probs_NV = self._log_probs(hidden_BTD.reshape(-1, self.dim))
        log_probs_BTV = log_probs_NV.reshape(batch_size, num_frames, self.num_units)
        labels_BTL = labels_BL[:, None, :].expand(-1, num_frames, -1)
        return log_probs_BTV.gather(-1, labels_BTL)

    def extra_repr(self) -> str:
        """The sizes, as PyTorch's modules print them."""
        return f"dim={self.dim}, num_units={self.num_units}"

    # Checks of the arguments.

    def _wants_gradient(self, hidden_ND: Tensor) -> bool:
        """Whether gradients are enabled, and hidden or a parameter of the head requires one."""
        if not torch.is_grad_enabled():
            return False
        return hidden_ND.requires_grad or any(weight.requires_grad for weight in self.parameters())

    def _flatten_hidden(self, hidden: Tensor) -> Tensor:
        """hidden (..., D) as rows (N, D) in the dtype of the computation.

        float64 stays float64. All other float dtypes become float32.
        Raises ValueError if the last dimension is not D, or the dtype is not a float.
        """
        has_width = hidden.dim() >= 1 and hidden.shape[-1] == self.dim
        if not has_width or not hidden.is_floating_point():
            raise ValueError(
                f"hidden: expected (..., {self.dim}) of a float dtype, "
                f"got {tuple(hidden.shape)} {hidden.dtype}"
            )
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        return hidden.reshape(-1, self.dim).to(dtype)

    def _flatten_targets(self, targets: Tensor, shape: torch.Size) -> Tensor:
        """Unit ids of this shape as (N,) int64.

        Raises ValueError if the shape is another one, if the dtype is not int64 or int32, or if an
        id on the CPU is not in 0…V-1.
        """
        if targets.dtype not in (torch.int64, torch.int32) or targets.shape != shape:
            raise ValueError(
                f"targets: expected integers of shape {tuple(shape)}, one per row of hidden, "
                f"got {tuple(targets.shape)} {targets.dtype}"
            )
        if targets.device.type == "cpu" and targets.numel():
            self._check_range(targets)
        return targets.reshape(-1).long()

    def _check_range(self, targets: Tensor) -> None:
        """Raises ValueError unless all unit ids are in 0…V-1."""
        lowest, highest = targets.aminmax()
        lowest_id = int(lowest)
        highest_id = int(highest)
        if lowest_id < 0 or highest_id >= self.num_units:
            raise ValueError(
                f"targets: values from {lowest_id} to {highest_id}, "
                f"expected 0…{self.num_units - 1}; remove padding before the head"
            )


def smoothing_weights(smoothing: float, num_choices: int) -> SmoothingWeights:
    """The weights of KL(q ‖ p) where q is 1-smoothing on one of `num_choices` choices.

    All other choices share the rest equally. With one choice there is nothing to smooth.
    Raises ValueError unless smoothing is in [0, 1).
    """
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"smoothing: must be in [0, 1), got {smoothing}")
    if smoothing == 0.0 or num_choices == 1:
        return SmoothingWeights(on_target=1.0, on_all=0.0, constant=0.0)
    q_target = 1.0 - smoothing
    q_other = smoothing / (num_choices - 1)  # of each other choice
    return SmoothingWeights(
        on_target=q_target - q_other,  # on top of `on_all`, which the target has too
        on_all=q_other,
        # Σ q·log q. The others have q_other · (num_choices - 1) = smoothing together.
        constant=q_target * math.log(q_target) + smoothing * math.log(q_other),
    )


def weighted_cost(log_probs: Tensor, targets: Tensor, on_target: float, on_all: float) -> Tensor:
    """The weighted cost of each row (N,), from all log-probabilities (N, V).

    It is -on_target·log p(target) - on_all·Σ_v log p(v).
    """
    cost_N = -on_target * log_probs.gather(-1, targets[:, None])[:, 0]
    if not on_all:
        return cost_N
    return cost_N - on_all * log_probs.sum(-1)


def divergence(log_probs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """KL(q ‖ p) of each row (N,), from all log-probabilities (N, V).

    q is 1-smoothing on the target, and all other units share `smoothing` equally.
    """
    weights = smoothing_weights(smoothing, log_probs.size(-1))
    return weighted_cost(log_probs, targets, weights.on_target, weights.on_all) + weights.constant


def metrics_of_log_probs(log_probs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The nll of each target (N,) and whether it is ranked first (N,), from (N, V).

    Of equally probable units the one with the lowest id is first.
    """
    nll_N = -log_probs.gather(-1, targets[:, None])[:, 0]
    return nll_N, log_probs.argmax(-1) == targets
