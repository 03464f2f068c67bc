# SPDX-License-Identifier: Apache-2.0
"""An encoder of Conformer or Transformer layers after subsampling. Parameters have WeNet's names.

Dimension key: B batch, T time, F features, D width.
"""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wenet_hs.heads.masks import length_mask
from wenet_hs.model.encoders.base import ChunkRule, SpeechEncoder
from wenet_hs.nn.attention import MultiHeadAttention
from wenet_hs.nn.conformer import ConvolutionModule, GlobalCmvn, LayerMemory
from wenet_hs.nn.layers import Chunk, run_layer
from wenet_hs.nn.subsampling import FrameLength, Subsampling


class EncoderStack(SpeechEncoder):
    """Features → normalised features → subsampling → layers → memory."""

    def __init__(
        self,
        embed: Subsampling,
        layers: Sequence[nn.Module],
        *,
        output_size: int,
        global_cmvn: GlobalCmvn | None = None,
        normalize_before: bool = True,
        norm_eps: float = 1e-5,
        recompute: bool = False,
        chunk_rule: ChunkRule | None = None,
    ) -> None:
        """`recompute`: compute the activations of each layer again in the backward pass, which
        saves memory.
        """
        super().__init__()
        self.chunk_rule = chunk_rule
        self.recompute, self.normalize_before = recompute, normalize_before
        self.output_size, self.num_layers = output_size, len(layers)
        self.min_frames, self.stride = embed.min_frames, embed.stride
        self.global_cmvn = global_cmvn
        self.embed = embed
        self.after_norm = nn.LayerNorm(output_size, eps=norm_eps)
        self.encoders = nn.ModuleList(layers)  # WeNet's name, so that its checkpoints load

    def output_length(self, length: FrameLength) -> FrameLength:
        return self.embed.output_length(length)

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor,
        layers: Sequence[int] = (),
        chunk: Chunk | None = None,
    ) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
        if unknown := [layer for layer in layers if not 1 <= layer <= self.num_layers]:
            raise ValueError(f"layers: {unknown[0]}: must be from 1 to {self.num_layers}")
        normalized_BTF = inputs if self.global_cmvn is None else self.global_cmvn(inputs)
        missing = self.min_frames - normalized_BTF.size(1)
        padded_BTF = F.pad(normalized_BTF, (0, 0, 0, missing)) if missing > 0 else normalized_BTF
        x_BTD, positions_1TD = self.embed(padded_BTF)
        out_lengths_B = self.output_length(lengths)
        is_speech_BT = length_mask(out_lengths_B, x_BTD.size(1))
        visible_BTT = is_speech_BT[:, None]
        if (
            chunk is None
            and self.chunk_rule is not None
            and (self.training or self.chunk_rule.size is not None)
        ):
            chunk = self.chunk_rule.draw(x_BTD.size(1))
        if chunk is not None:
            # A padded frame sees itself: a row without any key is NaN in some kernels.
            itself_TT = torch.eye(x_BTD.size(1), dtype=torch.bool, device=x_BTD.device)
            visible_BTT = (visible_BTT & chunk.mask(x_BTD.size(1), x_BTD.device)) | itself_TT
        outputs: dict[int, Tensor] = {}
        for number, layer in enumerate(self.encoders, start=1):
            x_BTD = run_layer(
                layer, x_BTD, is_speech_BT, visible_BTT, positions_1TD, recompute=self.recompute
            )
            if number in layers:
                outputs[number] = x_BTD
        memory_BTD = self._normalize(x_BTD)
        return (
            memory_BTD,
            out_lengths_B,
            {number: self._normalize(output) for number, output in outputs.items()},
        )

    def forward_chunk(
        self, inputs: Tensor, caches: Sequence[LayerMemory], offset: int | Tensor, visible: Tensor
    ) -> Tensor:
        """The memory of the next chunk of a stream: what `forward` computes for it with the same
        chunks.

        Args:
            inputs: (B, (T' - 1) * stride + min_frames, F), which give T' frames.
            caches: per layer, of the last S frames before the chunk. The frames of the chunk are
                added to them.
            offset: the number of frames before the chunk; an int, or 0-dim.
            visible: (B or 1, T' or 1, S + T') bool: the frames that each frame sees.
        Returns: (B, T', D).
        """
        normalized_BTF = inputs if self.global_cmvn is None else self.global_cmvn(inputs)
        x_BTD, positions_1SD = self.embed(normalized_BTF, offset, caches[0].attention.size(2))
        is_speech_BT = x_BTD.new_ones(x_BTD.shape[:2], dtype=torch.bool)
        for layer, cache in zip(self.encoders, caches, strict=True):
            x_BTD = layer(x_BTD, is_speech_BT, visible, positions_1SD, cache)
        return self._normalize(x_BTD)

    def new_caches(self) -> list[LayerMemory]:
        """The caches at the beginning of a stream, for `forward_chunk`."""
        weight, caches = self.after_norm.weight, list[LayerMemory]()
        for layer in self.encoders:
            attention = cast(MultiHeadAttention, layer.self_attn)
            convolution = cast(ConvolutionModule | None, getattr(layer, "conv_module", None))
            num_before = 0 if convolution is None else convolution.num_before
            keys_values = weight.new_zeros(1, attention.num_heads, 0, 2 * attention.head_size)
            caches.append(
                LayerMemory(keys_values, weight.new_zeros(1, num_before, self.output_size))
            )
        return caches

    def _normalize(self, output_BTD: Tensor) -> Tensor:
        return self.after_norm(output_BTD) if self.normalize_before else output_BTD
