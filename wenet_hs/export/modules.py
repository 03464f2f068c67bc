# SPDX-License-Identifier: Apache-2.0
"""The parts of a model as modules of tensors only, with the inputs and outputs of each runtime.

Dimension key: B batch, N samples or hypotheses, T input frames, F features, D width, L layers or
labels, M positions of the decoder, H heads, S cached frames, K width of a head, P inputs of a
convolution before a chunk, V units. T' are encoder frames.
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
    """Encoder and CTC over whole utterances, for onnxruntime and sherpa-onnx.

    The inputs and outputs are those of sherpa-onnx's slots `wenet_ctc` and `fire_red_asr_ctc`.
    """

    def __init__(self, model: AsrModel, with_memory: bool = False) -> None:
        """`with_memory`: the encoder output is an output too, because a decoder needs it."""
        super().__init__()
        self.encoder = model.encoder
        self.head = model.ctc.head
        self.with_memory = with_memory

    def forward(self, x: Tensor, x_lens: Tensor) -> tuple[Tensor, ...]:
        """x (B, T, F) or (B, N), x_lens (B,) → log_probs (B, T', V), log_probs_lens (B,).

        With `with_memory`, the third output is encoder_out (B, T', D).
        """
        memory_BTD, lengths_B, _ = self.encoder(x, x_lens)
        log_probs_BTV = self.head.plain_log_probs(memory_BTD)
        if self.with_memory:
            return log_probs_BTV, lengths_B, memory_BTD
        return log_probs_BTV, lengths_B


class WaveformCtc(nn.Module):
    """Encoder and CTC over one waveform, for sherpa-onnx's slot `omnilingual_asr_ctc`."""

    def __init__(self, model: AsrModel) -> None:
        super().__init__()
        self.offline = OfflineCtc(model)

    def forward(self, x: Tensor) -> Tensor:
        """x (1, N) → log_probs (1, T', V)."""
        lengths_1 = torch.full((1,), x.size(1))
        log_probs_1TV: Tensor = self.offline(x, lengths_1)[0]
        return log_probs_1TV


class WholeEncoder(nn.Module):
    """The encoder over one whole utterance, as `encoder.onnx` of WeNet's runtime."""

    def __init__(self, encoder: SpeechEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, chunk: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """chunk (1, T, F) → memory (1, T', D), and two zeros.

        The runtime expects two caches after the memory. A whole utterance has none.
        """
        lengths_1 = torch.full((1,), chunk.size(1))
        memory_1TD, _, _ = self.encoder(chunk, lengths_1)
        return memory_1TD, memory_1TD.new_zeros(1), memory_1TD.new_zeros(1)


class ChunkEncoder(nn.Module):
    """One chunk of a stream, with all caches as tensors.

    The inputs and outputs are those of WeNet's exporter; sherpa-onnx has the same.
    """

    def __init__(
        self, encoder: EncoderStack, head: OutputHead | None = None, with_memory: bool = False
    ) -> None:
        """
        Args:
            head: of CTC: its log-probabilities are then the first output; None: the memory is.
            with_memory: the memory is the last output too, because a decoder needs it.
        """
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.with_memory = with_memory

    def forward(
        self,
        chunk: Tensor,
        offset: Tensor,
        required_cache_size: Tensor,
        att_cache: Tensor,
        cnn_cache: Tensor,
        att_mask: Tensor,
    ) -> tuple[Tensor, ...]:
        """The memory of a chunk or its log-probabilities, and the caches for the next chunk.

        Args:
            chunk: (1, T, F).
            offset, required_cache_size: 0-dim or (1,) int64. The runtimes begin a stream at an
                offset of `required_cache_size`, the number S of cached frames; our positions begin
                at 0.
            att_cache: (L, H, S, 2 K), keys and values; zeros at the beginning.
            cnn_cache: (L, 1, D, P), inputs of the convolutions; zeros at the beginning.
            att_mask: (1, 1, at least S + T') bool: the frames that exist.
        Returns: (1, T', D or V), the next att_cache and cnn_cache, and with `with_memory` the
            memory (1, T', D).
        """
        inputs_LPD = cnn_cache[:, 0].transpose(1, 2)
        caches = [
            LayerMemory(keys_values_HSE[None], inputs_PD[None])
            for keys_values_HSE, inputs_PD in zip(att_cache, inputs_LPD, strict=True)
        ]
        num_cached = att_cache.size(2)
        num_visible = num_cached + self.encoder.output_length(chunk.size(1))
        position = (offset - required_cache_size).reshape(())
        # It also adds the frames of the chunk to `caches`.
        memory_1TD = self.encoder.forward_chunk(
            chunk, caches, position, att_mask[:, :, :num_visible]
        )
        next_att_cache = torch.cat([cache.attention[:, :, -num_cached:] for cache in caches])
        next_inputs_LPD = torch.cat([cache.convolution for cache in caches])
        if self.head is None:
            first_output = memory_1TD
        else:
            first_output = self.head.plain_log_probs(memory_1TD)
        next_cnn_cache = next_inputs_LPD.transpose(1, 2)[:, None]
        if self.with_memory:
            return first_output, next_att_cache, next_cnn_cache, memory_1TD
        return first_output, next_att_cache, next_cnn_cache


class LogProbs(nn.Module):
    """The CTC layer alone, as `ctc.onnx` of WeNet's runtime."""

    def __init__(self, head: OutputHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (1, T', D) → `probs` (1, T', V), which are natural logarithms despite the name."""
        return self.head.plain_log_probs(hidden)


class Rescorer(nn.Module):
    """The decoder over the hypotheses of one utterance, as `decoder.onnx` of WeNet's runtime."""

    def __init__(self, model: AsrModel) -> None:
        """`model` has a decoder; if it has one for reversed hypotheses, that is used too."""
        super().__init__()
        self.special = model.special
        self.left_decoder, self.left_head = model.left
        self.right_decoder: TransformerDecoder | None = None
        if isinstance(model.decoder, BiTransformerDecoder):
            self.right_decoder = model.decoder.right_decoder
        self.right_head = model.right_head

    def forward(
        self, hyps: Tensor, hyps_lens: Tensor, encoder_out: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The log-probabilities of all units at each position of each hypothesis.

        Args:
            hyps: (N, L + 1), each begins with <sos>.
            hyps_lens: (N,), they count the <sos>.
            encoder_out: (1, T', D), the memory of the utterance.
        Returns:
            score: (N, L + 1, V).
            r_score: the same of the reversed hypotheses; (1,) zero without a second decoder.
        """
        labels_NL = hyps[:, 1:]
        lengths_N = hyps_lens - 1
        score_NMV = self._log_probs(
            self.left_decoder, self.left_head, labels_NL, lengths_N, encoder_out
        )
        if self.right_decoder is None or self.right_head is None:
            return score_NMV, score_NMV.new_zeros(1)
        reversed_NL = reverse_labels(labels_NL, lengths_N)
        reversed_score_NMV = self._log_probs(
            self.right_decoder, self.right_head, reversed_NL, lengths_N, encoder_out
        )
        return score_NMV, reversed_score_NMV

    def _log_probs(
        self,
        decoder: TransformerDecoder,
        head: OutputHead,
        labels_NL: Tensor,
        lengths_N: Tensor,
        memory_1TD: Tensor,
    ) -> Tensor:
        """The log-probabilities (N, M, V) by one decoder; M = L + 1, as <sos> is put before."""
        units_NM, _ = with_sos_eos(labels_NL, lengths_N, self.special)
        memory_NTD = memory_1TD.expand(labels_NL.size(0), -1, -1)
        memory_lengths_N = torch.full_like(lengths_N, memory_1TD.size(1))
        hidden_NMD = decoder(memory_NTD, memory_lengths_N, units_NM, lengths_N + 1)
        return head.plain_log_probs(hidden_NMD)
