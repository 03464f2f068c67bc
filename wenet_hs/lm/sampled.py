# SPDX-License-Identifier: Apache-2.0
"""Losses of a flat softmax estimated from noise units: NCE and BlackOut.

One draw of noise serves a whole batch.

NCE: Gutmann and Hyvärinen 2010, Mnih and Teh 2012, with the constant of normalization fixed at 1.
BlackOut: Ji et al. 2016, equations 4 to 6.

Dimension key: N targets, D width, V units, K noise units.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wenet_hs.heads.softmax import SoftmaxHead

SampledLossKind = Literal["nce", "blackout"]


class SampledLoss(nn.Module):
    """The loss in training of a SoftmaxHead, from its scores of the targets and of K noise units."""

    log_noise: Tensor
    """(V,) log-probability of each unit as noise."""

    def __init__(
        self, kind: SampledLossKind, frequencies: Tensor, num_samples: int, power: float
    ) -> None:
        """
        Args:
            frequencies: (V,) how often each unit is a target, ≥ 0. A unit that never is cannot be
                noise.
            num_samples: K.
            power: blackout: noise is proportional to the frequencies to this power, 0…1.
        """
        super().__init__()
        weights = frequencies.double()
        if kind == "blackout":
            weights = torch.where(weights > 0, weights**power, 0.0)
        self.kind, self.num_samples = kind, num_samples
        self.register_buffer("log_noise", (weights / weights.sum()).log().float(), persistent=False)

    def forward(self, head: SoftmaxHead, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """(N,) the loss of each target. Draws noise from torch's random state."""
        noise_K = torch.multinomial(self.log_noise.exp(), self.num_samples, replacement=True)
        weight, bias = head.output.weight, head.output.bias
        of_targets_N = (
            (weight[targets_N] * hidden_ND).sum(-1) + bias[targets_N] - self.log_noise[targets_N]
        )
        of_noise_NK = F.linear(hidden_ND, weight[noise_K], bias[noise_K]) - self.log_noise[noise_K]
        if self.kind == "nce":
            log_k = torch.tensor(float(self.num_samples)).log()
            return -F.logsigmoid(of_targets_N - log_k) - F.logsigmoid(log_k - of_noise_NK).sum(-1)
        # Noise that is the target would be both right and wrong.
        of_noise_NK = of_noise_NK.masked_fill(noise_K == targets_N[:, None], -torch.inf)
        log_p = torch.cat([of_targets_N[:, None], of_noise_NK], dim=1).log_softmax(-1)
        wrong_NK = log_p[:, 1:].clamp(max=-1e-6)  # log(1 - p) of p = 1 has no gradient
        return -log_p[:, 0] - torch.log1p(-wrong_NK.exp()).sum(-1)
