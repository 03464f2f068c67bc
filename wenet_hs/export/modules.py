# SPDX-License-Identifier: Apache-2.0
"""The parts of a model as modules of tensors only, with the inputs and outputs of each runtime.

Dimension key: B batch, N samples or hypotheses, T input frames, F features, D width, L layers or labels, H heads,
S cached frames, K width of a head, V units.
"""

import torch
from torch import Tensor, nn

from wenet_hs.encoders.base import SpeechEncoder
from wenet_hs.encoders.stack import EncoderStack
from wenet_hs.heads.base import OutputHead
from wenet_hs.model import AsrModel, reverse_labels, with_sos_eos
from wenet_hs.nn.conformer import LayerMemory
from wenet_hs.nn.transformer import BiTransformerDecoder, TransformerDecoder
from wenet_hs.text.units import SpecialIds


class OfflineCtc(nn.Module):
    """Whole utterances, as sherpa-onnx's slots `wenet_ctc` and `fire_red_asr_ctc` call a model."""

    def __init__(self, model: AsrModel, with_memory: bool) -> None:
        """`with_memory`: whether the output of the encoder, which a decoder needs, is an output too."""
        super().__init__()
        self.encoder, self.head, self.with_memory = model.encoder, model.ctc.head, with_memory

    def forward(self, x: Tensor, x_lens: Tensor) -> tuple[Tensor, ...]:
        """x (B, T, F), x_lens (B,) → log_probs (B, T', V), log_probs_lens (B,), encoder_out (B, T', D)."""
        memory_BTD, lengths_B, _ = self.encoder(x, x_lens)
        outputs = self.head.plain_log_probs(memory_BTD), lengths_B
        return (*outputs, memory_BTD) if self.with_memory else outputs


class WaveformCtc(nn.Module):
    """Waveforms without padding, as sherpa-onnx's slot `omnilingual_asr_ctc` calls a model."""

    def __init__(self, model: AsrModel) -> None:
        super().__init__()
        self.encoder, self.head = model.encoder, model.ctc.head

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N) → log_probs (B, T', V)."""
        memory_BTD, _, _ = self.encoder(x, torch.full_like(x[:, 0], x.size(1), dtype=torch.int64))
        return self.head.plain_log_probs(memory_BTD)


class ChunkEncoder(nn.Module):
    """One chunk of one stream with all caches as tensors, as WeNet's exporter defines it."""

    def __init__(self, encoder: EncoderStack) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self,
        chunk: Tensor,
        offset: Tensor,
        required_cache_size: Tensor,
        att_cache: Tensor,
        cnn_cache: Tensor,
        att_mask: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The memory of a chunk.

        Args:
            chunk: (1, T, F).
            offset, required_cache_size: 0-dim or (1,) int64. The runtimes begin a stream at an offset of
                `required_cache_size`, the number S of cached frames; its positions begin at 0.
            att_cache: (L, H, S, 2 K); cnn_cache: (L, 1, D, kernel - 1); zeros at the beginning.
            att_mask: (1, 1, at least S + T') bool: the frames that exist.
        Returns: (1, T', D), and the caches for the next chunk.
        """
        inputs_LKD = cnn_cache[:, 0].transpose(1, 2)
        layers = zip(att_cache, inputs_LKD, strict=True)
        caches = [LayerMemory(attention[None], convolution[None]) for attention, convolution in layers]
        seen = att_cache.size(2) + self.encoder.output_length(chunk.size(1))
        position = (offset - required_cache_size).reshape(())
        memory_1TD = self.encoder.forward_chunk(chunk, caches, position, att_mask[:, :, :seen])
        kept_LHSK = torch.cat([cache.attention[:, :, -att_cache.size(2) :] for cache in caches])
        convolutions_LKD = torch.cat([cache.convolution for cache in caches])
        return memory_1TD, kept_LHSK, convolutions_LKD.transpose(1, 2)[:, None]


class OnlineCtc(nn.Module):
    """One chunk of one stream, as sherpa-onnx's streaming slot `wenet_ctc` calls a model: inputs by position."""

    def __init__(self, encoder: EncoderStack, head: OutputHead, with_memory: bool) -> None:
        """`with_memory`: as of `OfflineCtc`."""
        super().__init__()
        self.encoder, self.head, self.with_memory = ChunkEncoder(encoder), head, with_memory

    def forward(
        self,
        x: Tensor,
        offset: Tensor,
        required_cache_size: Tensor,
        attn_cache: Tensor,
        conv_cache: Tensor,
        attn_mask: Tensor,
    ) -> tuple[Tensor, ...]:
        """As `ChunkEncoder` → log_probs (1, T', V), next_att_cache, next_conv_cache, encoder_out (1, T', D)."""
        memory_1TD, *caches = self.encoder(x, offset, required_cache_size, attn_cache, conv_cache, attn_mask)
        outputs = self.head.plain_log_probs(memory_1TD), *caches
        return (*outputs, memory_1TD) if self.with_memory else outputs


class WholeEncoder(nn.Module):
    """One whole utterance in WeNet's form: the caches that its runtime takes from the outputs are not used."""

    def __init__(self, encoder: SpeechEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, chunk: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """chunk (1, T, F) → memory (1, T', D), and two empty caches."""
        memory_1TD, _, _ = self.encoder(chunk, torch.full_like(chunk[:, 0, 0], chunk.size(1), dtype=torch.int64))
        return memory_1TD, memory_1TD.new_zeros(1), memory_1TD.new_zeros(1)


class LogProbs(nn.Module):
    """WeNet's `ctc.onnx`."""

    def __init__(self, head: OutputHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (1, T', D) → probs (1, T', V), natural logarithms."""
        return self.head.plain_log_probs(hidden)


class _Decoders(nn.Module):
    """Both directions of a decoder over whole sequences; `right_decoder` is None in a decoder of one direction."""

    def __init__(self, model: AsrModel) -> None:
        super().__init__()
        self.special: SpecialIds = model.special
        self.left_decoder, self.left_head = model.left
        both = model.decoder if isinstance(model.decoder, BiTransformerDecoder) else None
        self.right_decoder: TransformerDecoder | None = None if both is None else both.right_decoder
        self.right_head = model.right_head

    def directions(
        self, labels_NL: Tensor, lengths_N: Tensor, memory_NTD: Tensor, memory_lengths_N: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """Per direction the log-probabilities (N, L + 1, V), and the targets (N, L + 1), which end with <eos>."""

        def decode(decoder: TransformerDecoder, head: OutputHead, labels_NL: Tensor) -> tuple[Tensor, Tensor]:
            units_in_NM, targets_NM = with_sos_eos(labels_NL, lengths_N, self.special)
            hidden_NMD = decoder(memory_NTD, memory_lengths_N, units_in_NM, lengths_N + 1)
            return head.plain_log_probs(hidden_NMD), targets_NM

        found = [decode(self.left_decoder, self.left_head, labels_NL)]
        if self.right_decoder is not None and self.right_head is not None:
            found.append(decode(self.right_decoder, self.right_head, reverse_labels(labels_NL, lengths_N)))
        return found


class Rescorer(_Decoders):
    """The scores of hypotheses by the decoder: what attention rescoring adds to the weighted CTC score."""

    def forward(
        self, encoder_out: Tensor, encoder_out_lens: Tensor, hyps: Tensor, hyps_lens: Tensor
    ) -> tuple[Tensor, ...]:
        """encoder_out (B, T', D), its lengths (B,), hyps (B, L) without <sos> and <eos>, their lengths (B,) → score
        (B,), and r_score (B,) of the right-to-left decoder if there is one: log-probabilities of units and end."""
        scores = []
        for log_probs_BMV, targets_BM in self.directions(hyps, hyps_lens, encoder_out, encoder_out_lens):
            of_targets_BM = log_probs_BMV.gather(-1, targets_BM[..., None])[..., 0]
            positions_M = torch.arange(targets_BM.size(1))
            scores.append(of_targets_BM.masked_fill(positions_M > hyps_lens[:, None], 0.0).sum(-1))
        return tuple(scores)


class WenetDecoder(_Decoders):
    """WeNet's `decoder.onnx`: the hypotheses of one utterance."""

    def forward(self, hyps: Tensor, hyps_lens: Tensor, encoder_out: Tensor) -> tuple[Tensor, Tensor]:
        """hyps (N, L + 1) that begin with <sos>, hyps_lens (N,) with it, encoder_out (1, T', D) → score and r_score,
        each (N, L + 1, V); without a right-to-left decoder r_score is one 0, which the runtime does not read."""
        memory_NTD = encoder_out.expand(hyps.size(0), -1, -1)
        lengths_N = torch.full_like(hyps_lens, encoder_out.size(1))
        found = self.directions(hyps[:, 1:], hyps_lens - 1, memory_NTD, lengths_N)
        score_NMV = found[0][0]
        return score_NMV, found[1][0] if len(found) == 2 else score_NMV.new_zeros(1)
