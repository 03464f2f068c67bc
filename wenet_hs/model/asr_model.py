# SPDX-License-Identifier: Apache-2.0
"""The acoustic model: encoder, decoder with its output head (if it has one), and CTC; the losses of
a batch.

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
    """Of the CTC loss; the attention loss has the rest."""
    reverse: float = 0.0
    """Of the right-to-left decoder in the attention loss."""
    smoothing: float = 0.0
    """Label smoothing, of the kind `smoothing_kind`."""
    smoothing_kind: SmoothingKind = "leaf"
    guide: float = 0.0
    """Of the guided attention penalty on the left-to-right decoder."""
    guide_width: float = 0.1
    with_metrics: bool = True
    """Whether training computes `nll` and `num_correct` too."""
    interctc: float = 0.0
    """Share of the output of encoder layer `interctc_layer` (from 1 on) in the CTC loss of training
    (Lee and Watanabe 2021).
    """
    interctc_layer: int = 0


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Sums over a batch, in nats: 0-dim float32 tensors.

    Training divides them by the targets of an optimizer step.
    """

    total: Tensor
    """With the weights w: w.ctc · ctc + (1 - w.ctc) · attention + w.guide · guide; the loss of
    training.
    """
    attention: Tensor
    """Weighted sum of both directions; 0 if the CTC loss has all weight, because the decoder is not
    computed.
    """
    ctc: Tensor
    """0 if its weight is 0, because CTC is not computed."""
    guide: Tensor
    """The guided attention penalty without its weight; 0 if it is off."""
    num_targets: int
    """Labels, and one <eos> per utterance."""
    num_correct: Tensor
    """Number of targets that the head ranks first, 0-dim int64; 0 where `nll` is NaN."""
    nll: Tensor
    """Negative log-likelihood of the targets without label smoothing, 0-dim, detached; NaN without
    the decoder or the metrics.
    """
    num_blank: Tensor
    """Encoder frames without padding at which blank is the most probable unit of CTC, 0-dim int64;
    0 in training.
    """
    num_frames: Tensor
    """The frames of which `num_blank` counts, 0-dim int64; 0 in training and without CTC."""
    best_units: Tensor | None = None
    """(B, T) int64: the most probable unit of CTC per frame, -1 in the padding; None in training
    and without CTC.
    """


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
        """`decoder` and `head` are None in a model without a decoder, whose `loss_weights.ctc` must
        be 1. `right_head` is the head of the right-to-left decoder, if `decoder` is a
        BiTransformerDecoder.

        Training replaces the attribute `loss_weights`. `frozen`: names of the modules that stay in
        evaluation mode during training.
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
        """Sets training or evaluation mode; `frozen` modules are always in evaluation mode."""
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
    def num_units(self) -> int:
        return self.ctc.head.num_units

    @property
    def branches(self) -> frozenset[Branch]:
        """The branches that this model has, trained or not."""
        return branches_of(has_decoder=self.decoder is not None)

    @property
    def trained_branches(self) -> frozenset[Branch]:
        """The branches whose loss has a weight: `loss_weights.ctc`, and the rest for the decoder."""
        return trained_branches(self.branches, self.loss_weights.ctc)

    def supports(self, mode: str) -> bool:
        """Whether the branches of a decoding mode are trained; the texts of others are random."""
        return find_mode(mode).branches <= self.trained_branches

    def supported_modes(self) -> list[str]:
        """The names of the decoding modes that the model supports, in the order of `MODES`."""
        return modes_with(self.trained_branches)

    def recommended_modes(self) -> list[str]:
        """The modes of `--modes auto`."""
        return recommended_modes(self.supported_modes())

    def default_mode(self) -> str:
        """The mode to use if none is asked for."""
        return usual_mode(self.supported_modes())

    def restrict(self, source_of: Mapping[int, int], num_units: int | None = None) -> "AsrModel":
        """A model for decoding with the same encoder and decoder, whose heads are limited to some
        units.

        The arguments are those of `restrict_head`. <eos> of the decoder and blank of CTC are always
        left. The other special units are left if they are given.
        """
        with_eos, with_blank = (
            {**source_of, unit: unit} for unit in (self.special.eos, self.ctc.blank)
        )
        of_decoder = (self.head, self.right_head)
        head, right = (
            None if one is None else restrict_head(one, with_eos, num_units) for one in of_decoder
        )
        restricted = AsrModel(
            self.encoder,
            self.decoder,
            head=head,
            ctc=Ctc(restrict_head(self.ctc.head, with_blank, num_units), blank=self.ctc.blank),
            special=self.special,
            right_head=right,
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

        decoding_chunk_size, num_decoding_left_chunks: for an encoder with a `chunk_rule`, as in
        `DecodeOptions`.
        """
        chunk = (
            None
            if decoding_chunk_size == -1
            else Chunk(decoding_chunk_size, num_decoding_left_chunks)
        )
        memory, memory_lengths, _ = self.encoder(features, lengths, (), chunk)
        return memory, memory_lengths

    def forward(self, batch: "Batch") -> Losses:
        """The losses of a batch. A branch of weight 0 is not computed."""
        weights = self.loss_weights
        layers = (weights.interctc_layer,) if self.training and weights.interctc else ()
        memory, memory_lengths, layer_outputs = self.encoder(
            batch.features, batch.feature_lengths, layers
        )
        attention = ctc = weighted_ctc = penalty = memory.new_zeros((), dtype=torch.float32)
        num_correct = num_blank = num_frames = torch.zeros(
            (), dtype=torch.int64, device=memory.device
        )
        nll, best_units = torch.full((), math.nan, device=memory.device), None
        if weights.ctc < 1:
            attention_weights: list[Tensor] | None = [] if self.training and weights.guide else None
            attention, nll, num_correct = self._attention(
                memory, memory_lengths, batch, attention_weights
            )
            if attention_weights:
                lengths = memory_lengths, batch.target_lengths + 1
                penalty = guided_attention_loss(
                    attention_weights, *lengths, width=weights.guide_width
                )
        if weights.ctc > 0:
            given = memory_lengths, batch.targets, batch.target_lengths
            ctc = weighted_ctc = self.ctc.loss(memory, *given)
            for output in layer_outputs.values():
                inter = self.ctc.loss(output, *given)
                weighted_ctc = (1 - weights.interctc) * ctc + weights.interctc * inter
            if not self.training:
                best_units = self.ctc.best_units(memory, memory_lengths)
                num_blank, num_frames = (best_units == self.ctc.blank).sum(), memory_lengths.sum()
        return Losses(
            total=weights.ctc * weighted_ctc
            + (1 - weights.ctc) * attention
            + weights.guide * penalty,
            attention=attention,
            ctc=ctc,
            guide=penalty,
            num_targets=batch.num_targets,
            num_correct=num_correct,
            nll=nll,
            num_blank=num_blank,
            num_frames=num_frames,
            best_units=best_units,
        )

    def _attention(
        self,
        memory: Tensor,
        memory_lengths: Tensor,
        batch: "Batch",
        attention_weights: list[Tensor] | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The loss of both directions, and the nll and number of first-ranked targets of the
        left-to-right decoder.
        """
        weights, (decoder, head) = self.loss_weights, self.left
        units_in, targets = with_sos_eos(batch.targets, batch.target_lengths, self.special)
        hidden = decoder(
            memory, memory_lengths, units_in, batch.target_lengths + 1, weights=attention_weights
        )
        rows = _select(hidden, batch.target_rows), _select(targets, batch.target_rows)
        if weights.with_metrics or not self.training:
            loss_N, nll_N, is_best_N = head.loss_and_metrics(
                *rows, weights.smoothing, weights.smoothing_kind
            )
            loss, nll, num_correct = loss_N.sum(), nll_N.sum(), is_best_N.sum()
        else:
            loss = head.loss(*rows, weights.smoothing, weights.smoothing_kind).sum()
            nll, num_correct = (
                torch.full_like(loss.detach(), math.nan),
                torch.zeros_like(rows[1][:1]).sum(),
            )
        if (
            weights.reverse
            and self.right_head is not None
            and isinstance(self.decoder, BiTransformerDecoder)
        ):
            labels = reverse_labels(batch.targets, batch.target_lengths)
            units_in, targets = with_sos_eos(labels, batch.target_lengths, self.special)
            hidden = self.decoder.right_decoder(
                memory, memory_lengths, units_in, batch.target_lengths + 1
            )
            rows = _select(hidden, batch.target_rows), _select(targets, batch.target_rows)
            right = self.right_head.loss(*rows, weights.smoothing, weights.smoothing_kind).sum()
            loss = loss * (1 - weights.reverse) + right * weights.reverse
        return loss, nll, num_correct


def _select(values_BM: Tensor, rows_N: Tensor) -> Tensor:
    """The values (B, M, …) of some positions, (N, …)."""
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
    return torch.cat([sos_B1, labels_BL], dim=1), torch.cat([labels_BL, eos_B1], dim=1)


def reverse_labels(labels: Tensor, lengths: Tensor) -> Tensor:
    """Reverses each row of labels (B, L) within its own length (B,); padding is not moved."""
    positions_L = torch.arange(labels.size(1), device=labels.device)
    valid_BL = length_mask(lengths, labels.size(1))
    source_BL = torch.where(valid_BL, lengths[:, None] - 1 - positions_L, positions_L)
    return labels.gather(1, source_BL)
