# SPDX-License-Identifier: Apache-2.0
"""Connectionist temporal classification (Graves et al. 2006) over any output head.

The loss of an utterance needs only the probabilities of blank and of its own labels. Heads that
compute these faster than those of all units are asked for them only.

`memory` is the encoder output, as in torch.nn.TransformerDecoder.

Dimension key: B batch, T time, L label, D width, V units, K best, C classes of an utterance: blank
(0), then its distinct labels.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.gpu import is_gpu
from wenet_hs.heads.kernels.triton_launch import can_use_triton
from wenet_hs.heads.masks import length_mask

PLATEAU_TOLERANCE = 1e-4
"""`constant_output_loss` ends when an iteration gains less, in nats per target."""
UNUSED_LOG_PROB = -1e30
"""The log-probability of the padding classes of an utterance.

No alignment contains them, and their exp is 0.
"""


class Ctc(nn.Module):
    """The CTC branch: an output head on the encoder output (memory).

    It computes in float32, also under autocast.
    """

    def __init__(self, head: OutputHead, *, blank: int = 0) -> None:
        super().__init__()
        self.blank = blank
        self.head = head

    def log_probs(self, memory: Tensor) -> Tensor:
        """memory (B, T, D) → (B, T, V) float32, natural log; each row sums to one."""
        return self.head.log_probs(memory)

    def loss(
        self, memory: Tensor, memory_lengths: Tensor, targets: Tensor, target_lengths: Tensor
    ) -> Tensor:
        """The sum of the batch's losses in nats, 0-dim float32.

        An utterance with fewer frames than labels and blanks between equal labels has loss and
        gradient 0. On a GPU a kernel of ours computes it, because torch's loss waits for the
        device.

        Args:
            memory: (B, T, D); memory_lengths: (B,) in T.
            targets: (B, L), with any values in the padding; target_lengths: (B,) in L.
        """
        has_kernel = memory.dtype != torch.float64 and can_use_triton(memory[:0].float())
        if not has_kernel and not self.head.has_partial_log_probs:
            log_probs_BTV = self.log_probs(memory)
            return _ctc_loss(
                log_probs_BTV, memory_lengths, targets.clamp(min=0), target_lengths, self.blank
            )
        # From the log-probabilities of blank and the labels only: the same loss and gradients.
        alphabet = compact_alphabet(targets, target_lengths, self.blank)
        valid_BT = length_mask(memory_lengths, memory.size(1))
        frames_BTD = memory.masked_fill(~valid_BT[..., None], 0.0)
        log_probs_BTC = self.head.label_log_probs(frames_BTD, alphabet.unit_ids)
        if has_kernel:
            from wenet_hs.heads.kernels.ctc_triton import ctc_cost

            return ctc_cost(
                log_probs_BTC, memory_lengths, alphabet.target_classes, target_lengths
            ).sum()
        log_probs_BTC = log_probs_BTC.masked_fill(~alphabet.is_used[:, None], UNUSED_LOG_PROB)
        cost = _ctc_loss(log_probs_BTC, memory_lengths, alphabet.target_classes, target_lengths, 0)
        # Let p be the probability of a class in a frame, and q its posterior given the transcript.
        # The derivative of the loss by log p is -q, but F.ctc_loss returns p - q. After a
        # log-softmax both give the same gradient of the scores, because the p of a frame sum to
        # one. Here they do not, because the classes are not all units. So p, the derivative of Σ p
        # by log p, is subtracted. `surplus - surplus.detach()` is 0: the loss keeps its value.
        counted_BT = valid_BT & (alphabet.min_frames <= memory_lengths)[:, None]
        surplus = log_probs_BTC.masked_fill(~counted_BT[..., None], UNUSED_LOG_PROB).exp().sum()
        return cost - (surplus - surplus.detach())

    @torch.no_grad()
    def best_units(self, memory: Tensor, memory_lengths: Tensor) -> Tensor:
        """The most probable unit of each frame: memory (B, T, D), lengths (B,) → (B, T) int64, -1
        in the padding.
        """
        valid_BT = length_mask(memory_lengths, memory.size(1))
        best_N = self.head.topk(memory[valid_BT], 1)[1].squeeze(1)
        return torch.full_like(valid_BT, -1, dtype=torch.int64).masked_scatter(valid_BT, best_N)


def begins_unit(best_units: Tensor, blank: int) -> Tensor:
    """The frames at which greedy search writes a unit: (B, T) best units → (B, T) bool, also True
    in the padding.
    """
    previous_BT = F.pad(best_units[:, :-1], (1, 0), value=blank)  # before the first frame: no unit
    return (best_units != blank) & (best_units != previous_BT)


def _ctc_loss(
    log_probs: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor, blank: int
) -> Tensor:
    """The sum of the batch's losses from log-probabilities (B, T, C)."""
    sizes = lengths, target_lengths
    return F.ctc_loss(
        log_probs.transpose(0, 1), targets, *sizes, blank, reduction="sum", zero_infinity=True
    )


class Alphabet(NamedTuple):
    """The classes of each utterance in a batch: class 0 is blank, the others are its distinct
    labels.
    """

    unit_ids: Tensor
    """(B, C) int64: the unit of each class; blank where `is_used` is False."""
    is_used: Tensor
    """(B, C) bool: False for the padding of utterances with fewer classes."""
    target_classes: Tensor
    """(B, L) int64: the transcripts as classes, 0 in the padding."""
    min_frames: Tensor
    """(B,) int64: the fewest frames for the transcript: one per label, and a blank between equal
    labels.
    """


def compact_alphabet(targets: Tensor, target_lengths: Tensor, blank: int) -> Alphabet:
    """The distinct labels of each transcript, in the order of their ids after blank.

    Args:
        targets: (B, L) unit ids, with any values in the padding; target_lengths: (B,) in L.
        blank: its unit id, which no transcript contains.
    """
    valid_BL = length_mask(target_lengths, targets.size(1))
    padding = torch.iinfo(torch.int64).max  # sorts after all labels
    sorted_BL, order_BL = targets.long().masked_fill(~valid_BL, padding).sort(dim=1)
    before_first_B1 = sorted_BL.new_full((len(targets), 1), -1)
    is_new_BL = torch.diff(sorted_BL, dim=1, prepend=before_first_B1) != 0
    real_BL = sorted_BL < padding
    class_of_sorted_BL = is_new_BL.cumsum(dim=1).masked_fill(~real_BL, 0)
    num_classes_B = 1 + (is_new_BL & real_BL).sum(dim=1)
    # On a GPU as many classes as there may be: to read their number would wait for it.
    num_classes = 1 + targets.size(1) if is_gpu(targets.device) else int(num_classes_B.max())
    labels_BC = sorted_BL.new_full((len(targets), num_classes), blank)
    labels_BC.scatter_(1, class_of_sorted_BL, sorted_BL.masked_fill(~real_BL, blank))
    repeats_B = ((targets[:, 1:] == targets[:, :-1]) & valid_BL[:, 1:]).sum(dim=1)
    return Alphabet(
        unit_ids=labels_BC,
        is_used=length_mask(num_classes_B, labels_BC.size(1)),
        target_classes=torch.zeros_like(sorted_BL).scatter(1, order_BL, class_of_sorted_BL),
        min_frames=target_lengths + repeats_B,
    )


def constant_output_loss(
    targets: Sequence[Sequence[int]], num_frames: Sequence[int], blank: int
) -> float:
    """The lowest CTC loss that an output can have which is the same in every frame, in nats per
    target.

    The targets that it is divided by are the labels, and one end of sentence per utterance.

    This is the loss of the plateau on which a training starts: the output has learned how frequent
    the units and blank are, and nothing of the speech. It is computed by expectation maximization:
    the new probability of a unit is its share of the frames of all alignments.

    Args:
        targets: the unit ids of each utterance, not empty, and not longer than CTC can align.
        num_frames: encoder frames of each utterance.
    """
    lengths_B = torch.tensor([len(ids) for ids in targets])
    targets_BL = pad_sequence([torch.tensor(ids) for ids in targets], batch_first=True)
    frames_B = torch.tensor(num_frames)
    alphabet = compact_alphabet(targets_BL, lengths_B, blank)
    counts_V = torch.bincount(
        targets_BL[length_mask(lengths_B, targets_BL.size(1))], minlength=blank + 1
    ).double()
    losses = []
    for blank_share in (0.05, 0.5, 0.95):  # the loss may have several minima
        probs_V = (1 - blank_share) * counts_V / counts_V.sum()
        probs_V[blank] = blank_share
        loss, before = math.inf, math.inf
        while math.isinf(loss) or before - loss > PLATEAU_TOLERANCE:
            before = loss
            loss, probs_V = _reestimate(probs_V, alphabet, frames_B, lengths_B)
        losses.append(loss)
    return min(losses)


def _reestimate(
    probs_V: Tensor, alphabet: Alphabet, frames_B: Tensor, lengths_B: Tensor
) -> tuple[float, Tensor]:
    """The loss per target of constant probabilities (V,), and the share (V,) of each in the frames
    of alignments.
    """
    valid_BT1 = length_mask(frames_B, int(frames_B.max()))[..., None]
    log_probs_V = probs_V.clamp(min=1e-12).log()  # -inf has no gradient
    log_probs_BC = log_probs_V[alphabet.unit_ids].masked_fill(~alphabet.is_used, UNUSED_LOG_PROB)
    log_probs_BTC = log_probs_BC[:, None].repeat(1, valid_BT1.size(1), 1).requires_grad_()
    cost = _ctc_loss(log_probs_BTC, frames_B, alphabet.target_classes, lengths_B, 0)
    (gradient_BTC,) = torch.autograd.grad(cost, log_probs_BTC)
    shares_BTC = (
        log_probs_BTC.detach().exp() - gradient_BTC
    ) * valid_BT1  # F.ctc_loss returns p - q
    shares_V = torch.zeros_like(probs_V).index_add(
        0, alphabet.unit_ids.flatten(), shares_BTC.sum(1).flatten()
    )
    return cost.item() / int((lengths_B + 1).sum()), shares_V / shares_V.sum()
