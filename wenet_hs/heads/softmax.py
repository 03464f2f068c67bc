# SPDX-License-Identifier: Apache-2.0
"""The flat softmax, WeNet's output layer: the baseline of every other head.

Dimension key: N rows, D width, V units.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from wenet_hs.heads.base import OutputHead


class SoftmaxHead(OutputHead):
    """p = softmax(W·h + b). Parameters: `output.weight` (V, D), `output.bias` (V,)."""

    def __init__(self, dim: int, num_units: int) -> None:
        super().__init__(dim, num_units)
        self.output = nn.Linear(dim, num_units)

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        dtype = hidden_ND.dtype
        if self.output.weight.dtype == dtype:
            scores_NV = self.output(hidden_ND)
        else:
            scores_NV = F.linear(hidden_ND, self.output.weight.to(dtype), self.output.bias.to(dtype))
        return F.log_softmax(scores_NV, dim=-1)

    def _cross_entropy(self, hidden_ND: Tensor, targets_N: Tensor, target: float, every: float) -> Tensor:
        log_probs_NV = self._log_probs(hidden_ND)
        cost_N = -target * log_probs_NV.gather(-1, targets_N[:, None])[:, 0]
        return cost_N - every * log_probs_NV.sum(-1) if every else cost_N
