# SPDX-License-Identifier: Apache-2.0
"""The acoustic model: encoder, CTC and an optional decoder, and the losses of a batch.

Dimension key: B batch, T encoder frames, F features, L labels, M = L + 1 positions of the decoder,
N positions without padding, D width.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from wenet_hs.heads.base import OutputHead, SmoothingKind
from wenet_hs.heads.ctc import Ctc
from wenet_hs.heads.masks import length_mask
from wenet_hs.heads.restricted import restrict_head
from wenet_hs.model.encoders.base import SpeechEncoder
from wenet_hs.model.modes import (
    Branch,
    branches_of,
    find_mode,
    modes_with,
    recommended_modes,
    trained_branches,
    usual_mode,
)
from wenet_hs.nn.layers import Chunk
from wenet_hs.nn.transformer import BiTransformerDecoder, TransformerDecoder, guided_attention_loss
from wenet_hs.text.units import SpecialIds

if TYPE_CHECKING:
    from wenet_hs.data.batching import Batch


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """The weights of the losses. ctc, reverse, smoothing and interctc are from 0 to 1.

    Training replaces the value at each step.
    """

    ctc: float = 0.5
    """Weight of the CTC loss; the attention loss has the rest."""
    reverse: float = 0.0
    """Weight of the right-to-left decoder in the attention loss; the left-to-right one has the rest."""
    smoothing: float = 0.0
    """Label smoothing, of the kind `smoothing_kind`."""
    smoothing_kind: SmoothingKind = "leaf"
    guide: float = 0.0
    """Weight of the guided attention penalty on the left-to-right decoder; 0: it is off."""
    guide_width: float = 0.1
    """Width of the diagonal, as a fraction of the utterance.

    The penalty of attention to a frame is 1 - exp(-x² / 2), where x is its distance from the
    diagonal divided by this width: 0 on the diagonal, 0.39 at this distance, 1 far from it.
    """
    with_metrics: bool = True
    """Whether training computes `nll` and `num_correct` too; evaluation always does."""
    interctc: float = 0.0
    """Share that the output of an inner encoder layer has in the CTC loss of training (Lee and
    Watanabe 2021); 0: none.
    """
    interctc_layer: int = 0
    """The number of that layer, from 1; 0 if `interctc` is 0."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Sums over a batch, in nats: 0-dim float32 tensors.

    Training divides them by the number of targets of an optimizer step.
    """

    total: Tensor
    """The loss of training: w.ctc · ctc + (1 - w.ctc) · attention + w.guide · guide, where w are
    the LossWeights. In training with `interctc`, `ctc` in this sum is a mean over two layers.
    """
    attention: Tensor
    """Weighted sum of the losses of both decoder directions; 0 if CTC has all weight, because the
    decoder is not computed then.
    """
    ctc: Tensor
    """The CTC loss of the last encoder layer; 0 if its weight is 0, because it is not computed."""
    guide: Tensor
    """The guided attention penalty without its weight; 0 if it is off."""
    num_targets: int
    """The number of labels, and one <eos> per utterance."""
    num_correct: Tensor
    """Number of targets that the head ranks first, 0-dim int64; 0 where `nll` is NaN."""
    nll: Tensor
    """Negative log-likelihood of the targets without label smoothing, 0-dim, detached; NaN if the
    decoder or the metrics are not computed.
    """
    num_blank: Tensor
    """Number of encoder frames, without padding, whose most probable CTC unit is blank; 0-dim int64.
    0 in training.
    """
    num_frames: Tensor
    """The number of frames among which `num_blank` counts, 0-dim int64; 0 in training and without
    CTC.
    """
    best_units: Tensor | None = None
    """(B, T) int64: the most probable unit of CTC per frame, -1 in the padding; None in training
    and without CTC.
    """


@dataclass(frozen=True, kw_only=True)
class _AttentionLosses:
    """The fields of `Losses` that the decoder computes."""

    attention: Tensor
    guide: Tensor
    num_correct: Tensor
    nll: Tensor


@dataclass(frozen=True, kw_only=True)
class _CtcLosses:
    """The fields of `Losses` that CTC computes, and its term of the total."""

    ctc: Tensor
    weighted: Tensor
    """`ctc`, or its mean with the loss of an inner encoder layer, by the share `interctc`."""
    num_blank: Tensor
    num_frames: Tensor
    best_units: Tensor | None


class AsrModel(nn.Module):
    """A joint CTC and attention model (Watanabe et al. 2017), or a CTC model without a decoder.

    Padding never changes the loss of an utterance.
    """

    def __init__(
        self,
        encoder: SpeechEncoder,
        decoder: TransformerDecoder | BiTransformerDecoder | None,
        *,
        head: OutputHead | None,
        ctc: Ctc,
        special: SpecialIds,
        right_head: OutputHead | None = None,
    ) -> None:
        """
        Args:
            decoder: None for a model without a decoder, whose `loss_weights.ctc` must be 1.
            head: the head of the left-to-right decoder; None without a decoder.
            right_head: the head of the right-to-left decoder, if `decoder` is a
                BiTransformerDecoder.

        Attributes:
            loss_weights: the weights of the losses; training replaces it at each step.
            frozen: names of the modules that stay in evaluation mode during training.
        """
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.head = head
        self.right_head = right_head
        self.ctc = ctc
        self.special = special
        self.loss_weights = LossWeights()
        self.frozen: tuple[str, ...] = ()

    def train(self, mode: bool = True) -> "AsrModel":
        """Sets training mode, or evaluation mode if `mode` is False.

        The modules named in `frozen` are in evaluation mode in both cases.
        """
        super().train(mode)
        for name in self.frozen:
            self.get_submodule(name).eval()
        return self

    @property
    def left(self) -> tuple[TransformerDecoder, OutputHead]:
        """The left-to-right decoder and its head.

        Raises ValueError for a model without a decoder.
        """
        if self.decoder is None or self.head is None:
            raise ValueError("this model has no decoder")
        if isinstance(self.decoder, BiTransformerDecoder):
            return self.decoder.left_decoder, self.head
        return self.decoder, self.head

    @property
    def right(self) -> tuple[TransformerDecoder, OutputHead] | None:
        """The right-to-left decoder and its head; None for a model without them."""
        if isinstance(self.decoder, BiTransformerDecoder) and self.right_head is not None:
            return self.decoder.right_decoder, self.right_head
        return None

    @property
    def num_units(self) -> int:
        return self.ctc.head.num_units

    @property
    def branches(self) -> frozenset[Branch]:
        """The branches that this model has, trained or not."""
        return branches_of(has_decoder=self.decoder is not None)

    @property
    def trained_branches(self) -> frozenset[Branch]:
        """The branches of this model whose loss has a weight above 0 in `loss_weights`."""
        return trained_branches(self.branches, self.loss_weights.ctc)

    def supports(self, mode: str) -> bool:
        """Whether all branches that a decoding mode uses are trained.

        The texts of an untrained branch are random. Raises what `find_mode` raises.
        """
        return find_mode(mode).branches <= self.trained_branches

    def supported_modes(self) -> list[str]:
        """The names of the decoding modes that the model supports, in the order of `MODES`."""
        return modes_with(self.trained_branches)

    def recommended_modes(self) -> list[str]:
        """The names of the modes that `--modes auto` selects."""
        return recommended_modes(self.supported_modes())

    def default_mode(self) -> str:
        """The name of the mode to use if the user chose none."""
        return usual_mode(self.supported_modes())

    def restrict(self, source_of: Mapping[int, int], num_units: int | None = None) -> "AsrModel":
        """A model for decoding whose heads give probability 0 to all but some units.

        It shares its encoder and decoder with this model, and is in evaluation mode. <eos> is
        always kept in the heads of the decoder, and blank in that of CTC. Other special units are
        kept only if `source_of` has them.

        Args:
            source_of: each kept unit → the unit whose probability it gets (`restrict_head`).
            num_units: the number of units of the new heads; None: that of the old ones.
        """
        eos = self.special.eos
        blank = self.ctc.blank
        source_with_eos = {**source_of, eos: eos}
        source_with_blank = {**source_of, blank: blank}
        head = None
        if self.head is not None:
            head = restrict_head(self.head, source_with_eos, num_units)
        right_head = None
        if self.right_head is not None:
            right_head = restrict_head(self.right_head, source_with_eos, num_units)
        ctc_head = restrict_head(self.ctc.head, source_with_blank, num_units)
        restricted = AsrModel(
            self.encoder,
            self.decoder,
            head=head,
            ctc=Ctc(ctc_head, blank=blank),
            special=self.special,
            right_head=right_head,
        )
        restricted.loss_weights = self.loss_weights
        return restricted.eval()

    def encode(
        self,
        features: Tensor,
        lengths: Tensor,
        decoding_chunk_size: int = -1,
        num_decoding_left_chunks: int = -1,
    ) -> tuple[Tensor, Tensor]:
        """features (B, T, F), lengths (B,) → memory (B, T', D), lengths (B,) in T'.

        Args:
            decoding_chunk_size: encoder frames per chunk, for an encoder with a `chunk_rule`; -1:
                that of the training if it had one size, otherwise the whole utterance.
            num_decoding_left_chunks: how many chunks before its own a frame sees; -1: all. It is
                ignored if the chunk size is -1.
        """
        chunk = None
        if decoding_chunk_size != -1:
            chunk = Chunk(decoding_chunk_size, num_decoding_left_chunks)
        memory, memory_lengths, _ = self.encoder(features, lengths, (), chunk)
        return memory, memory_lengths

    def forward(self, batch: "Batch") -> Losses:
        """The losses of a batch; `total` is the one to train with.

        A branch of weight 0 is not computed. In training with `interctc`, the output of an inner
        encoder layer has a CTC loss too.
        """
        weights = self.loss_weights
        asked_layers: tuple[int, ...] = ()
        if self.training and weights.interctc:
            asked_layers = (weights.interctc_layer,)
        memory, memory_lengths, layer_outputs = self.encoder(
            batch.features, batch.feature_lengths, asked_layers
        )
        attention_losses = self._attention_losses(memory, memory_lengths, batch)
        ctc_losses = self._ctc_losses(memory, memory_lengths, layer_outputs, batch)
        total = (
            weights.ctc * ctc_losses.weighted
            + (1 - weights.ctc) * attention_losses.attention
            + weights.guide * attention_losses.guide
        )
        return Losses(
            total=total,
            attention=attention_losses.attention,
            ctc=ctc_losses.ctc,
            guide=attention_losses.guide,
            num_targets=batch.num_targets,
            num_correct=attention_losses.num_correct,
            nll=attention_losses.nll,
            num_blank=ctc_losses.num_blank,
            num_frames=ctc_losses.num_frames,
            best_units=ctc_losses.best_units,
        )

    def _attention_losses(
        self, memory: Tensor, memory_lengths: Tensor, batch: "Batch"
    ) -> _AttentionLosses:
        """The losses of the decoder, and metrics of its left-to-right direction.

        If CTC has all weight, the decoder is not computed: nll is NaN, the other values are 0.
        Otherwise:
            attention: the loss; if `reverse` is not 0 and there is a right-to-left decoder, the
                mean of both losses, in which that of the right-to-left decoder has this weight.
            nll, num_correct: computed in evaluation, and in training if `with_metrics`; otherwise
                NaN and 0.
            guide: the guided attention penalty in training, if it has a weight; otherwise 0.

        Args:
            memory: (B, T', D), the output of the encoder.
            memory_lengths: (B,) in T'.
        """
        weights = self.loss_weights
        if weights.ctc >= 1:
            zero_loss = _zero_loss(memory)
            return _AttentionLosses(
                attention=zero_loss,
                guide=zero_loss,
                num_correct=_zero_count(memory),
                nll=torch.full((), math.nan, device=memory.device),
            )
        decoder, head = self.left
        smoothing = (weights.smoothing, weights.smoothing_kind)
        is_guided = bool(self.training and weights.guide)
        attention_weights: list[Tensor] | None = [] if is_guided else None
        hidden_ND, targets_N = self._run_decoder(
            decoder, batch.targets, memory, memory_lengths, batch, attention_weights
        )
        if weights.with_metrics or not self.training:
            loss_N, nll_N, is_best_N = head.loss_and_metrics(hidden_ND, targets_N, *smoothing)
            attention = loss_N.sum()
            nll = nll_N.sum()
            num_correct = is_best_N.sum()
        else:
            attention = head.loss(hidden_ND, targets_N, *smoothing).sum()
            nll = torch.full_like(attention.detach(), math.nan)
            num_correct = _zero_count(memory)
        if weights.reverse and self.right is not None:
            right_decoder, right_head = self.right
            reversed_labels = reverse_labels(batch.targets, batch.target_lengths)
            hidden_ND, targets_N = self._run_decoder(
                right_decoder, reversed_labels, memory, memory_lengths, batch
            )
            right_loss = right_head.loss(hidden_ND, targets_N, *smoothing).sum()
            attention = attention * (1 - weights.reverse) + right_loss * weights.reverse
        guide = _zero_loss(memory)
        if attention_weights:
            unit_lengths = batch.target_lengths + 1  # with <sos>
            guide = guided_attention_loss(
                attention_weights, memory_lengths, unit_lengths, width=weights.guide_width
            )
        return _AttentionLosses(attention=attention, guide=guide, num_correct=num_correct, nll=nll)

    def _run_decoder(
        self,
        decoder: TransformerDecoder,
        labels: Tensor,
        memory: Tensor,
        memory_lengths: Tensor,
        batch: "Batch",
        attention_weights: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The hidden states (N, D) and the targets (N,) at the N positions without padding.

        Args:
            labels: (B, L), those of the batch or those of its utterances reversed.
            memory: (B, T', D), and memory_lengths: (B,) in T'.
            attention_weights: a list to which the decoder appends its weights per layer; or None.
        """
        units_in, targets = with_sos_eos(labels, batch.target_lengths, self.special)
        input_lengths = batch.target_lengths + 1  # with <sos>
        hidden = decoder(memory, memory_lengths, units_in, input_lengths, weights=attention_weights)
        return _select(hidden, batch.target_rows), _select(targets, batch.target_rows)

    def _ctc_losses(
        self,
        memory: Tensor,
        memory_lengths: Tensor,
        layer_outputs: Mapping[int, Tensor],
        batch: "Batch",
    ) -> _CtcLosses:
        """The CTC losses of the memory, and in training perhaps of an inner encoder layer.

        `weighted` is the mean of both losses, in which that of the inner layer has the weight
        `interctc`; without an inner layer it is the loss of the memory.

        In evaluation the best unit of each frame is returned too, and how many frames are blank. In
        training there are no best units, and both numbers of frames are 0. If the decoder has all
        weight, CTC is not computed, and all values are 0.

        Args:
            memory: (B, T', D), and memory_lengths: (B,) in T'.
            layer_outputs: the output of the inner layer, (B, T', D), by its number; or empty.
        """
        if self.loss_weights.ctc <= 0:
            zero_loss = _zero_loss(memory)
            zero_count = _zero_count(memory)
            return _CtcLosses(
                ctc=zero_loss,
                weighted=zero_loss,
                num_blank=zero_count,
                num_frames=zero_count,
                best_units=None,
            )
        share = self.loss_weights.interctc
        labels = batch.targets, batch.target_lengths
        ctc = self.ctc.loss(memory, memory_lengths, *labels)
        weighted = ctc
        for output in layer_outputs.values():  # at most one
            inner_ctc = self.ctc.loss(output, memory_lengths, *labels)
            weighted = (1 - share) * ctc + share * inner_ctc
        if self.training:
            zero_count = _zero_count(memory)
            return _CtcLosses(
                ctc=ctc,
                weighted=weighted,
                num_blank=zero_count,
                num_frames=zero_count,
                best_units=None,
            )
        best_units = self.ctc.best_units(memory, memory_lengths)
        is_blank = best_units == self.ctc.blank
        return _CtcLosses(
            ctc=ctc,
            weighted=weighted,
            num_blank=is_blank.sum(),
            num_frames=memory_lengths.sum(),
            best_units=best_units,
        )


def _zero_loss(memory: Tensor) -> Tensor:
    """The value of a loss that is not computed: 0-dim float32, on the device of the memory.

    A GPU starts a kernel for it, so several losses of a function share one.
    """
    return memory.new_zeros((), dtype=torch.float32)


def _zero_count(memory: Tensor) -> Tensor:
    """The value of a number that is not counted: 0-dim int64, on the device of the memory.

    Several numbers of a function share one, as for `_zero_loss`.
    """
    return torch.zeros((), dtype=torch.int64, device=memory.device)


def _select(values_BM: Tensor, rows_N: Tensor) -> Tensor:
    """The values (B, M, …) at some of the B · M positions, in one row each: (N, …).

    rows_N: indices into the positions of all utterances, one utterance after the other.
    """
    return values_BM.flatten(0, 1).index_select(0, rows_N)


def with_sos_eos(labels: Tensor, lengths: Tensor, special: SpecialIds) -> tuple[Tensor, Tensor]:
    """Input and targets of the decoder: labels (B, L), lengths (B,) → two (B, L + 1).

    The input is <sos> and the labels, the targets are the labels and <eos>; both are padded with
    <eos>.
    """
    valid_BL = length_mask(lengths, labels.size(1))
    labels_BL = labels.masked_fill(~valid_BL, special.eos)
    sos_B1 = labels.new_full((len(labels), 1), special.sos)
    eos_B1 = labels.new_full((len(labels), 1), special.eos)
    units_in = torch.cat([sos_B1, labels_BL], dim=1)
    targets = torch.cat([labels_BL, eos_B1], dim=1)
    return units_in, targets


def reverse_labels(labels: Tensor, lengths: Tensor) -> Tensor:
    """Reverses each row of labels (B, L) within its own length (B,); padding is not moved.

    Example: [5, 6, 7, 0] of length 3 becomes [7, 6, 5, 0].
    """
    positions_L = torch.arange(labels.size(1), device=labels.device)
    valid_BL = length_mask(lengths, labels.size(1))
    mirrored_BL = lengths[:, None] - 1 - positions_L
    source_BL = torch.where(valid_BL, mirrored_BL, positions_L)
    return labels.gather(1, source_BL)
