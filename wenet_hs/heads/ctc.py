# SPDX-License-Identifier: Apache-2.0
"""Connectionist temporal classification (Graves et al. 2006).

Dimension key: B batch, T time, L label, D width, V units.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from wenet_hs.heads.base import OutputHead


def ctc_feasible(targets: Sequence[int], num_frames: int) -> bool:
    """Whether `num_frames` encoder frames can spell `targets`: one for each label and a blank between equal ones.

    The loss of an utterance for which this is False is 0, and so is its gradient: the caller reports it.
    """
    repeats = sum(left == right for left, right in zip(targets, targets[1:], strict=False))
    return len(targets) + repeats <= num_frames


class Ctc(nn.Module):
    """The CTC branch: an output head on the memory. What the head computes is float32, also under autocast."""

    def __init__(self, head: OutputHead, *, dropout_rate: float = 0.0, blank: int = 0) -> None:
        super().__init__()
        self.blank = blank
        self.dropout = nn.Dropout(dropout_rate)
        self.head = head

    def log_probs(self, memory: Tensor) -> Tensor:
        """memory (B, T, D) → (B, T, V) float32, natural log; each row sums to one."""
        return self.head.log_probs(self.dropout(memory))

    def topk(self, memory: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best units of each frame, of equal ones the lower id first: memory (B, T, D) → (B, T, K), (B, T, K)."""
        return self.head.topk(self.dropout(memory), k)

    def loss(self, memory: Tensor, memory_lengths: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
        """The sum of the batch's costs in nats, 0-dim float32; an infeasible utterance costs 0 (see ctc_feasible).

        Args:
            memory: (B, T, D); memory_lengths: (B,) in T.
            targets: (B, L), any number where padded; target_lengths: (B,) in L.
        """
        log_probs_TBV = self.log_probs(memory).transpose(0, 1)
        return F.ctc_loss(
            log_probs_TBV,
            targets.clamp(min=0),
            memory_lengths,
            target_lengths,
            blank=self.blank,
            reduction="sum",
            zero_infinity=True,
        )
