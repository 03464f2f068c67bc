# SPDX-License-Identifier: Apache-2.0
"""Connectionist temporal classification (CTC, Graves et al. 2006) over any output head.

The loss of an utterance needs only the probabilities of blank and of its own labels. Some heads
compute these faster than those of all units, and then only these are computed.

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
"""The log-probability of an utterance's padding classes: its exp is 0, and it is finite.

No alignment contains these classes.
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

        An utterance whose transcript needs more frames than it has has loss and gradient 0. (It
        needs one frame per label, and one per blank between equal labels.)

        On a GPU a kernel of ours computes the loss, because torch's loss waits for the device. The
        kernel needs only the log-probabilities of blank and of the labels of each utterance.
        torch's loss gets those too if the head computes them faster than the ones of all units.

        Args:
            memory: (B, T, D); memory_lengths: (B,) in T.
            targets: (B, L), with any values in the padding; target_lengths: (B,) in L.
        """
        log_probs_like = memory[:0].float()  # empty: only the device and dtype of log-probabilities
        has_kernel = memory.dtype != torch.float64 and can_use_triton(log_probs_like)
        if not has_kernel and not self.head.has_partial_log_probs:
            log_probs_BTV = self.log_probs(memory)
            unit_ids = targets.clamp(min=0)  # the padding may be negative
            return _ctc_loss(log_probs_BTV, memory_lengths, unit_ids, target_lengths, self.blank)
        alphabet = compact_alphabet(targets, target_lengths, self.blank)
        is_frame_BT = length_mask(memory_lengths, memory.size(1))
        frames_BTD = memory.masked_fill(~is_frame_BT[..., None], 0.0)
        log_probs_BTC = self.head.label_log_probs(frames_BTD, alphabet.unit_ids)
        if has_kernel:
            from wenet_hs.heads.kernels.ctc_triton import ctc_cost

            return ctc_cost(
                log_probs_BTC, memory_lengths, alphabet.target_classes, target_lengths
            ).sum()
        return _loss_of_classes(log_probs_BTC, memory_lengths, alphabet, target_lengths)

    @torch.no_grad()
    def best_units(self, memory: Tensor, memory_lengths: Tensor) -> Tensor:
        """The most probable unit of each frame: (B, T) int64, -1 in the padding.

        memory (B, T, D), lengths (B,) in T.
        """
        is_frame_BT = length_mask(memory_lengths, memory.size(1))
        _, best_N1 = self.head.topk(memory[is_frame_BT], 1)
        padding_BT = torch.full_like(is_frame_BT, -1, dtype=torch.int64)
        return padding_BT.masked_scatter(is_frame_BT, best_N1.squeeze(1))


def begins_unit(best_units: Tensor, blank: int) -> Tensor:
    """The frames at which greedy search writes a unit: best units (B, T) → (B, T) bool.

    These are the frames whose unit is neither blank nor the unit of the frame before. The padding,
    where `best_units` is -1, may be True.
    """
    # The unit of the frame before; blank before the first frame.
    previous_BT = F.pad(best_units[:, :-1], (1, 0), value=blank)
    return (best_units != blank) & (best_units != previous_BT)


def _ctc_loss(
    log_probs: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor, blank: int
) -> Tensor:
    """torch's CTC loss, summed over the batch: log-probabilities (B, T, C) → 0-dim nats.

    It is 0 for an utterance that no alignment fits.
    """
    return F.ctc_loss(
        log_probs.transpose(0, 1),
        targets,
        lengths,
        target_lengths,
        blank,
        reduction="sum",
        zero_infinity=True,
    )


class Alphabet(NamedTuple):
    """The classes of each utterance in a batch: 0 is blank, the others are its distinct labels."""

    unit_ids: Tensor
    """(B, C) int64: the unit of each class; blank where `is_used` is False."""
    is_used: Tensor
    """(B, C) bool: False for the padding of utterances with fewer classes."""
    target_classes: Tensor
    """(B, L) int64: the transcripts as classes, 0 in the padding."""
    min_frames: Tensor
    """(B,) int64: the fewest frames that the transcript needs.

    That is one per label, and one for a blank between two equal labels.
    """


def _loss_of_classes(
    log_probs_BTC: Tensor, lengths_B: Tensor, alphabet: Alphabet, target_lengths_B: Tensor
) -> Tensor:
    """The sum of the batch's losses, 0-dim nats, from the classes of each utterance only.

    It has the value and the gradient of the loss from all units.
    """
    log_probs_BTC = log_probs_BTC.masked_fill(~alphabet.is_used[:, None], UNUSED_LOG_PROB)
    loss = _ctc_loss(log_probs_BTC, lengths_B, alphabet.target_classes, target_lengths_B, blank=0)
    # Let p be the probability of a class in a frame, and q its posterior given the transcript. The
    # derivative of the loss by log p is -q, but F.ctc_loss returns p - q. After a log-softmax both
    # give the same gradient of the scores, because the p of a frame sum to one. Here they do not,
    # because the classes are not all units. So p, the derivative of Σ p by log p, is subtracted.
    is_frame_BT = length_mask(lengths_B, log_probs_BTC.size(1))
    is_counted_BT = is_frame_BT & (alphabet.min_frames <= lengths_B)[:, None]
    counted_BTC = log_probs_BTC.masked_fill(~is_counted_BT[..., None], UNUSED_LOG_PROB)
    sum_of_probs = counted_BTC.exp().sum()
    return loss - (sum_of_probs - sum_of_probs.detach())  # 0, but it has a gradient


def compact_alphabet(targets: Tensor, target_lengths: Tensor, blank: int) -> Alphabet:
    """Number blank and the distinct labels of each transcript: blank is 0, then in order of id.

    Example: the labels 7 3 7 of an utterance become the classes 2 1 2, of the units blank, 3, 7.
    The labels are sorted, each new one gets the next class, and the classes are sorted back.

    Args:
        targets: (B, L) unit ids, with any values in the padding; target_lengths: (B,) in L.
        blank: its unit id, which no transcript contains.
    """
    is_label_BL = length_mask(target_lengths, targets.size(1))
    after_all_labels = torch.iinfo(torch.int64).max  # the padding is sorted to the end
    padded_BL = targets.long().masked_fill(~is_label_BL, after_all_labels)
    sorted_BL, order_BL = padded_BL.sort(dim=1)
    before_all_labels_B1 = sorted_BL.new_full((len(targets), 1), -1)  # so the first label is new
    is_new_BL = torch.diff(sorted_BL, dim=1, prepend=before_all_labels_B1) != 0
    is_sorted_label_BL = sorted_BL < after_all_labels
    class_of_sorted_BL = is_new_BL.cumsum(dim=1).masked_fill(~is_sorted_label_BL, 0)
    num_classes_B = 1 + (is_new_BL & is_sorted_label_BL).sum(dim=1)
    if is_gpu(targets.device):  # as many as there may be: the program would wait for their number
        num_classes = 1 + targets.size(1)
    else:
        num_classes = int(num_classes_B.max())
    unit_ids_BC = sorted_BL.new_full((len(targets), num_classes), blank)
    sorted_or_blank_BL = sorted_BL.masked_fill(~is_sorted_label_BL, blank)
    unit_ids_BC.scatter_(1, class_of_sorted_BL, sorted_or_blank_BL)
    repeats_previous = targets[:, 1:] == targets[:, :-1]
    num_repeats_B = (repeats_previous & is_label_BL[:, 1:]).sum(dim=1)
    return Alphabet(
        unit_ids=unit_ids_BC,
        is_used=length_mask(num_classes_B, num_classes),
        target_classes=torch.zeros_like(sorted_BL).scatter(1, order_BL, class_of_sorted_BL),
        min_frames=target_lengths + num_repeats_B,
    )


def constant_output_loss(
    targets: Sequence[Sequence[int]], num_frames: Sequence[int], blank: int
) -> float:
    """The lowest CTC loss of an output that is the same in every frame, in nats per target.

    Targets are the labels, and one end of sentence per utterance.

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
    labels = targets_BL[length_mask(lengths_B, targets_BL.size(1))]
    counts_V = torch.bincount(labels, minlength=blank + 1).double()
    losses = []
    for blank_share in (0.05, 0.5, 0.95):  # the loss may have several minima
        probs_V = (1 - blank_share) * counts_V / counts_V.sum()
        probs_V[blank] = blank_share
        previous_loss = math.inf
        loss, probs_V = _reestimate(probs_V, alphabet, frames_B, lengths_B)
        while previous_loss - loss > PLATEAU_TOLERANCE:
            previous_loss = loss
            loss, probs_V = _reestimate(probs_V, alphabet, frames_B, lengths_B)
        losses.append(loss)
    return min(losses)


def _reestimate(
    probs_V: Tensor, alphabet: Alphabet, frames_B: Tensor, lengths_B: Tensor
) -> tuple[float, Tensor]:
    """One iteration of expectation maximization for an output that is the same in every frame.

    Args:
        probs_V: the probability of each unit, in all frames.
        alphabet: of the transcripts; frames_B: their frames; lengths_B: their labels.
    Returns: the loss in nats per target, and the share (V,) of each unit in the frames of all
        alignments, which sum to one.
    """
    is_frame_BT1 = length_mask(frames_B, int(frames_B.max()))[..., None]
    log_probs_V = probs_V.clamp(min=1e-12).log()  # -inf has no gradient
    log_probs_BC = log_probs_V[alphabet.unit_ids].masked_fill(~alphabet.is_used, UNUSED_LOG_PROB)
    log_probs_BTC = log_probs_BC[:, None].repeat(1, is_frame_BT1.size(1), 1).requires_grad_()
    loss = _ctc_loss(log_probs_BTC, frames_B, alphabet.target_classes, lengths_B, blank=0)
    (gradient_BTC,) = torch.autograd.grad(loss, log_probs_BTC)
    # F.ctc_loss returns p - q, with q the posterior of the class (see `_loss_of_classes`).
    posteriors_BTC = (log_probs_BTC.detach().exp() - gradient_BTC) * is_frame_BT1
    counts_BC = posteriors_BTC.sum(1)
    counts_V = torch.zeros_like(probs_V).index_add(
        0, alphabet.unit_ids.flatten(), counts_BC.flatten()
    )
    num_targets = int((lengths_B + 1).sum())  # with an end of sentence per utterance
    return loss.item() / num_targets, counts_V / counts_V.sum()
