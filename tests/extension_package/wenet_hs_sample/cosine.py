# SPDX-License-Identifier: Apache-2.0
"""A softmax over the cosines between the state and the vectors of the units (Wang et al.

2017, NormFace).

Dimension key: N rows, D width, V units.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from wenet_hs.config.section import Positive, Section
from wenet_hs.heads.base import OutputHead, weighted_cost
from wenet_hs.tree import NaryTree, Tree


class CosineHead(OutputHead):
    """p = softmax(scale · cos(W, h)). Parameter: `weight` (V, D)."""

    def __init__(self, dim: int, num_units: int, scale: float) -> None:
        super().__init__(dim, num_units)
        self.scale = scale
        self.weight = torch.nn.Parameter(torch.randn(num_units, dim))

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        units_VD = F.normalize(self.weight.to(hidden_ND.dtype), dim=-1)
        cosines_NV = F.linear(F.normalize(hidden_ND, dim=-1), units_VD)
        return F.log_softmax(self.scale * cosines_NV, dim=-1)

    def _cross_entropy(
        self, hidden_ND: Tensor, targets_N: Tensor, on_target: float, on_all: float
    ) -> Tensor:
        return weighted_cost(self._log_probs(hidden_ND), targets_N, on_target, on_all)


class CosineHeadConf(Section):
    """`head: cosine`: a softmax over cosines."""

    scale: Positive = 16.0
    """Factor of the cosines."""

    def build(self, dim: int, num_units: int, tree: Tree | NaryTree | None) -> CosineHead:
        """A head with new weights; it has no tree."""
        return CosineHead(dim, num_units, self.scale)
