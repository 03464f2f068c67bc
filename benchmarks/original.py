# SPDX-License-Identifier: Apache-2.0
"""The algorithm that the paper's code trains with, as a baseline: every unit's path multiplied out
at once.

Written from its description: σ of all node scores, gathered into a table of N × V × P, turned by
the signs, clipped to [1e-9, 1-1e-9], logarithms summed along P. Its cost is what `HSoftmaxHead`
does without.

Dimension key: N rows, D width, V units, I = V-1 inner nodes, P longest path.
"""

import torch
from torch import Tensor, nn

from wenet_hs.tree import Tree


class OriginalHead(nn.Module):
    """log-probabilities (N, V) by the V × depth table, and WeNet's smoothed loss of them."""

    def __init__(self, dim: int, tree: Tree) -> None:
        super().__init__()
        nodes, turns = tree.paths()
        self.num_units = tree.num_units
        self.inner_vector = nn.Linear(dim, tree.num_units - 1, bias=False)
        self.register_buffer("index", torch.from_numpy(nodes).reshape(-1))
        self.register_buffer("sign", torch.from_numpy(turns).reshape(-1).float())
        self.register_buffer("offset", torch.from_numpy(turns <= 0).reshape(-1).float())

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) → (N, V)."""
        decisions = torch.sigmoid(self.inner_vector(hidden_ND)).index_select(-1, self.index)
        likelihoods = (decisions * self.sign + self.offset).clamp(1e-9, 1 - 1e-9)
        return likelihoods.log().reshape(len(hidden_ND), self.num_units, -1).sum(-1)

    def loss(
        self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float = 0.0, kind: str = "leaf"
    ) -> Tensor:
        """(N,) -(1-ε-c)·log p(target) - c·Σ_v log p(v), c = ε/(V-1): the smoothed loss up to its
        constant.
        """
        if kind != "leaf":
            raise ValueError("the original smooths over leaves only")
        other = smoothing / (self.num_units - 1)
        log_probs_NV = self.log_probs(hidden_ND)
        chosen_N = log_probs_NV.gather(-1, targets_N[:, None])[:, 0]
        return -(1 - smoothing - other) * chosen_N - other * log_probs_NV.sum(-1)


def bytes_needed(num_rows: int, tree: Tree) -> int:
    """About what a training step holds at once: five float32 tables of N × V × P."""
    return 5 * 4 * num_rows * tree.num_units * tree.depth
