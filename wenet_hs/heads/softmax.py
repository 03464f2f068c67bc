# SPDX-License-Identifier: Apache-2.0
"""The flat softmax, WeNet's output layer and the baseline of the other heads.

Dimension key: N rows, D width, V units.
"""

import torch.nn.functional as F
from torch import Tensor

from wenet_hs.heads.base import OutputHead, SmoothingKind, smoothing_weights, weighted_cost
from wenet_hs.nn.cpu import Linear
from wenet_hs.nn.layers import select_rows


class SoftmaxHead(OutputHead):
    """p = softmax(W·h + b). Parameters: `output.weight` (V, D), `output.bias` (V,)."""

    def __init__(self, dim: int, num_units: int) -> None:
        super().__init__(dim, num_units)
        self.output = Linear(dim, num_units)

    def _select(self, unit_ids: list[int]) -> OutputHead:
        head = SoftmaxHead(self.dim, len(unit_ids))
        head.output = select_rows(self.output, unit_ids)
        return head

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        dtype = hidden_ND.dtype
        if self.output.weight.dtype == dtype:
            scores_NV = self.output(hidden_ND)
        else:
            scores_NV = F.linear(hidden_ND, self.output.weight.to(dtype), self.output.bias.to(dtype))
        return F.log_softmax(scores_NV, dim=-1)

    def _cross_entropy(self, hidden_ND: Tensor, targets_N: Tensor, on_target: float, on_all: float) -> Tensor:
        return weighted_cost(self._log_probs(hidden_ND), targets_N, on_target, on_all)

    def loss_and_metrics(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, kind: SmoothingKind = "leaf"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All three results from one distribution; both kinds of smoothing are the same here."""
        weights = smoothing_weights(smoothing, self.num_units)
        targets_N = self._targets(targets, hidden.shape[:-1])
        log_probs_NV = self.log_probs(hidden).reshape(-1, self.num_units)
        loss_N = weighted_cost(log_probs_NV, targets_N, weights.on_target, weights.on_all) + weights.constant
        fixed_NV = log_probs_NV.detach()
        nll_N, is_best_N = weighted_cost(fixed_NV, targets_N, 1.0, 0.0), fixed_NV.argmax(-1) == targets_N
        return loss_N.reshape(targets.shape), nll_N.reshape(targets.shape), is_best_N.reshape(targets.shape)
