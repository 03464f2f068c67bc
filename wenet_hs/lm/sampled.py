# SPDX-License-Identifier: Apache-2.0
"""Losses of a flat softmax that are estimated from noise units: NCE and BlackOut.

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

_LARGEST_LOG_PROB = -1e-6
"""Of a noise unit in BlackOut: log(1 - p) has no finite gradient at p = 1."""


class SampledLoss(nn.Module):
    """The loss of a SoftmaxHead in training, from its scores of targets and of K noise units."""

    log_noise: Tensor
    """(V,) log-probability of each unit as noise."""

    def __init__(
        self, kind: SampledLossKind, frequencies: Tensor, num_samples: int, power: float
    ) -> None:
        """Choose the distribution from which noise units are drawn.

        For NCE it is proportional to the frequencies, for BlackOut to the frequencies to a power.

        Args:
            frequencies: (V,) how often each unit is a target, ≥ 0. A unit that never is one cannot
                be noise.
            num_samples: K.
            power: of BlackOut, 0…1. NCE does not use it.
        """
        super().__init__()
        weights_V = frequencies.double()
        if kind == "blackout":
            weights_V = torch.where(weights_V > 0, weights_V**power, 0.0)  # 0**0 would be 1
        log_noise_V = (weights_V / weights_V.sum()).log().float()
        self.kind = kind
        self.num_samples = num_samples
        self.register_buffer("log_noise", log_noise_V, persistent=False)

    def forward(self, head: SoftmaxHead, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """(N,) the loss of each target in nats. Draws noise from torch's random state.

        The scores of targets and noise are those of the softmax less the log-probability of the
        unit as noise.
        """
        noise_K = torch.multinomial(self.log_noise.exp(), self.num_samples, replacement=True)
        weight_VD = head.output.weight
        bias_V = head.output.bias
        target_logits_N = (weight_VD[targets_N] * hidden_ND).sum(-1) + bias_V[targets_N]
        target_scores_N = target_logits_N - self.log_noise[targets_N]
        noise_logits_NK = F.linear(hidden_ND, weight_VD[noise_K], bias_V[noise_K])
        noise_scores_NK = noise_logits_NK - self.log_noise[noise_K]
        if self.kind == "nce":
            return _nce(target_scores_N, noise_scores_NK)
        # A noise unit that is the target would be both right and wrong. It gets the probability 0.
        is_target_NK = noise_K == targets_N[:, None]
        return _blackout(target_scores_N, noise_scores_NK.masked_fill(is_target_NK, -torch.inf))


def _nce(target_scores_N: Tensor, noise_scores_NK: Tensor) -> Tensor:
    """(N,) the cost of telling each target from its K noise units, by one sigmoid per unit."""
    log_num_samples = torch.tensor(float(noise_scores_NK.size(1))).log()
    target_costs_N = -F.logsigmoid(target_scores_N - log_num_samples)
    return target_costs_N - F.logsigmoid(log_num_samples - noise_scores_NK).sum(-1)


def _blackout(target_scores_N: Tensor, noise_scores_NK: Tensor) -> Tensor:
    """(N,) -log p(target) - Σ log(1 - p(noise)), where p is a softmax over the K+1 scores."""
    scores = torch.cat([target_scores_N[:, None], noise_scores_NK], dim=1)
    log_probs = scores.log_softmax(-1)
    target_costs_N = -log_probs[:, 0]
    noise_log_probs_NK = log_probs[:, 1:].clamp(max=_LARGEST_LOG_PROB)
    return target_costs_N - torch.log1p(-noise_log_probs_NK.exp()).sum(-1)
