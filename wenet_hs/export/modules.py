# SPDX-License-Identifier: Apache-2.0
"""The parts of a model as modules of tensors only, with the inputs and outputs of each runtime.

Dimension key: B batch, N samples or hypotheses, T input frames, F features, D width, L layers or
labels, H heads, S cached frames, K width of a head, V units. T' are encoder frames.
"""

import torch
from torch import Tensor, nn

from wenet_hs.heads.base import OutputHead
from wenet_hs.model.asr_model import AsrModel, reverse_labels, with_sos_eos
from wenet_hs.model.encoders.base import SpeechEncoder
from wenet_hs.model.encoders.stack import EncoderStack
from wenet_hs.nn.conformer import LayerMemory
from wenet_hs.nn.transformer import BiTransformerDecoder, TransformerDecoder


class OfflineCtc(nn.Module):
    """Whole utterances, as sherpa-onnx's slots `wenet_ctc` and `fire_red_asr_ctc` call a model."""

    def __init__(self, model: AsrModel, with_memory: bool = False) -> None:
        """`with_memory`: whether the output of the encoder, which a decoder needs, is an output
        too.
        """
        super().__init__()
        self.encoder, self.head, self.with_memory = model.encoder, model.ctc.head, with_memory

    def forward(self, x: Tensor, x_lens: Tensor) -> tuple[Tensor, ...]:
        """x (B, T, F) or (B, N), x_lens (B,) → log_probs (B, T', V), log_probs_lens (B,),
        encoder_out (B, T', D).
        """
        memory_BTD, lengths_B, _ = self.encoder(x, x_lens)
        outputs = self.head.plain_log_probs(memory_BTD), lengths_B
        return (*outputs, memory_BTD) if self.with_memory else outputs


class WaveformCtc(nn.Module):
    """sherpa-onnx's slot `omnilingual_asr_ctc`: x (1, N) → log_probs (1, T', V)."""

    def __init__(self, model: AsrModel) -> None:
        super().__init__()
        self.offline = OfflineCtc(model)

    def forward(self, x: Tensor) -> Tensor:
        log_probs: Tensor = self.offline(x, torch.full((1,), x.size(1)))[0]
        return log_probs


class WholeEncoder(nn.Module):
    """WeNet's `encoder.onnx` for whole utterances: chunk (1, T, F) → memory (1, T', D), and two
    caches without use.
    """

    def __init__(self, encoder: SpeechEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, chunk: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        memory_1TD, _, _ = self.encoder(chunk, torch.full((1,), chunk.size(1)))
        return memory_1TD, memory_1TD.new_zeros(1), memory_1TD.new_zeros(1)


class ChunkEncoder(nn.Module):
    """One chunk of a stream with all caches as tensors, as WeNet's exporter defines it and
    sherpa-onnx calls it.
    """

    def __init__(
        self, encoder: EncoderStack, head: OutputHead | None = None, with_memory: bool = False
    ) -> None:
        """`head`: of CTC, whose output is then the first one. `with_memory`: as of `OfflineCtc`."""
        super().__init__()
        self.encoder, self.head, self.with_memory = encoder, head, with_memory

    def forward(
        self,
        chunk: Tensor,
        offset: Tensor,
        required_cache_size: Tensor,
        att_cache: Tensor,
        cnn_cache: Tensor,
        att_mask: Tensor,
    ) -> tuple[Tensor, ...]:
        """The memory of a chunk, or its log-probabilities.

        Args:
            chunk: (1, T, F).
            offset, required_cache_size: 0-dim or (1,) int64. The runtimes begin a stream at an
                offset of `required_cache_size`, the number S of cached frames; its positions begin
                at 0.
            att_cache: (L, H, S, 2 K); cnn_cache: (L, 1, D, kernel - 1); zeros at the beginning.
            att_mask: (1, 1, at least S + T') bool: the frames that exist.
        Returns: (1, T', D or V), the caches for the next chunk, and perhaps the memory.
        """
        layers = zip(att_cache, cnn_cache[:, 0].transpose(1, 2), strict=True)
        caches = [LayerMemory(attention[None], inputs[None]) for attention, inputs in layers]
        seen = att_cache.size(2) + self.encoder.output_length(chunk.size(1))
        position = (offset - required_cache_size).reshape(())
        memory_1TD = self.encoder.forward_chunk(chunk, caches, position, att_mask[:, :, :seen])
        kept_LHSE = torch.cat([cache.attention[:, :, -att_cache.size(2) :] for cache in caches])
        inputs_LKD = torch.cat([cache.convolution for cache in caches])
        first = memory_1TD if self.head is None else self.head.plain_log_probs(memory_1TD)
        outputs = first, kept_LHSE, inputs_LKD.transpose(1, 2)[:, None]
        return (*outputs, memory_1TD) if self.with_memory else outputs


class LogProbs(nn.Module):
    """WeNet's `ctc.onnx`: hidden (1, T', D) → probs (1, T', V), natural logarithms."""

    def __init__(self, head: OutputHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: Tensor) -> Tensor:
        return self.head.plain_log_probs(hidden)


class Rescorer(nn.Module):
    """The decoder over the hypotheses of one utterance, in WeNet's form: `decoder.onnx`."""

    def __init__(self, model: AsrModel) -> None:
        super().__init__()
        self.special = model.special
        self.left_decoder, self.left_head = model.left
        self.right_decoder = (
            model.decoder.right_decoder if isinstance(model.decoder, BiTransformerDecoder) else None
        )
        self.right_head = model.right_head

    def forward(
        self, hyps: Tensor, hyps_lens: Tensor, encoder_out: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The log-probabilities of all units at each position.

        Args:
            hyps: (N, L + 1), begin with <sos>; hyps_lens: (N,) with it; encoder_out: (1, T', D).
        Returns: score (N, L + 1, V) and r_score, that of the reversed hypotheses; one 0 without a
            second decoder.
        """
        labels_NL, lengths_N = hyps[:, 1:], hyps_lens - 1
        score_NMV = self._run(self.left_decoder, self.left_head, labels_NL, lengths_N, encoder_out)
        if self.right_decoder is None or self.right_head is None:
            return score_NMV, score_NMV.new_zeros(1)
        backwards_NL = reverse_labels(labels_NL, lengths_N)
        return score_NMV, self._run(
            self.right_decoder, self.right_head, backwards_NL, lengths_N, encoder_out
        )

    def _run(
        self,
        decoder: TransformerDecoder,
        head: OutputHead,
        labels_NL: Tensor,
        lengths_N: Tensor,
        memory_1TD: Tensor,
    ) -> Tensor:
        units_in_NM, _ = with_sos_eos(labels_NL, lengths_N, self.special)
        memory_NTD = memory_1TD.expand(labels_NL.size(0), -1, -1)
        memory_lengths_N = torch.full_like(lengths_N, memory_1TD.size(1))
        return head.plain_log_probs(
            decoder(memory_NTD, memory_lengths_N, units_in_NM, lengths_N + 1)
        )
