# SPDX-License-Identifier: Apache-2.0
"""An encoder of Conformer or Transformer layers after subsampling. Parameters have WeNet's names.

Dimension key: B batch, T time, F features, D width.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from wenet_hs.heads.masks import length_mask
from wenet_hs.model.encoders.base import ChunkRule, SpeechEncoder
from wenet_hs.nn.attention import MultiHeadAttention
from wenet_hs.nn.conformer import ConvolutionModule, GlobalCmvn, LayerMemory
from wenet_hs.nn.layers import Chunk, run_layer
from wenet_hs.nn.subsampling import FrameLength, Subsampling


class EncoderStack(SpeechEncoder):
    """An encoder of ours: features are normalized, subsampled, and passed through layers."""

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
        """
        Args:
            output_size: width of the layers and of the memory, D.
            global_cmvn: normalization of the features; None: they are used as they are.
            normalize_before: whether the layers normalize their inputs. Then the output of the last
                layer is normalized too.
            recompute: whether the backward pass computes the activations of each layer again, which
                saves memory.
            chunk_rule: the chunks of training; None: frames see the whole utterance.
        """
        super().__init__()
        self.chunk_rule = chunk_rule
        self.recompute = recompute
        self.normalize_before = normalize_before
        self.output_size = output_size
        self.num_layers = len(layers)
        self.min_frames = embed.min_frames
        self.stride = embed.stride
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
        """See `SpeechEncoder.forward`."""
        self._check_layers(layers)
        normalized_BTF = inputs if self.global_cmvn is None else self.global_cmvn(inputs)
        x_BTD, positions_1TD = self.embed(self._pad_to_min_frames(normalized_BTF))
        num_frames = x_BTD.size(1)
        out_lengths_B = self.output_length(lengths)
        is_speech_BT = length_mask(out_lengths_B, num_frames)
        visible = is_speech_BT[:, None]  # (B, 1, T): every frame sees the same frames
        if chunk is None:
            chunk = self._default_chunk(num_frames)
        if chunk is not None:
            in_chunks_TT = chunk.mask(num_frames, x_BTD.device)
            # A padded frame sees itself: a row without any key is NaN in some kernels.
            itself_TT = torch.eye(num_frames, dtype=torch.bool, device=x_BTD.device)
            visible = (visible & in_chunks_TT) | itself_TT  # (B, T, T)
        layer_outputs: dict[int, Tensor] = {}
        for number, layer in enumerate(self.encoders, start=1):
            x_BTD = run_layer(
                layer, x_BTD, is_speech_BT, visible, positions_1TD, recompute=self.recompute
            )
            if number in layers:
                layer_outputs[number] = x_BTD
        memory_BTD = self._normalize(x_BTD)
        normalized_outputs = {
            number: self._normalize(output_BTD) for number, output_BTD in layer_outputs.items()
        }
        return memory_BTD, out_lengths_B, normalized_outputs

    def _default_chunk(self, num_frames: int) -> Chunk | None:
        """The chunks of a batch for which the caller gives none; None: frames see everything.

        The chunk rule decides in training. In evaluation it decides only if all chunks have one
        size: chunks of random sizes are for training.
        """
        if self.chunk_rule is None:
            return None
        if self.training or self.chunk_rule.size is not None:
            return self.chunk_rule.draw(num_frames)
        return None

    def forward_chunk(
        self, inputs: Tensor, caches: Sequence[LayerMemory], offset: int | Tensor, visible: Tensor
    ) -> Tensor:
        """The memory of the next chunk of a stream.

        It equals what `forward` computes for these frames with the same chunks.

        Args:
            inputs: (B, (T' - 1) * stride + min_frames, F), which give T' frames.
            caches: per layer, what it needs of the last S frames before the chunk. The frames of
                the chunk are added to the caches.
            offset: the number of frames before the chunk; an int, or 0-dim.
            visible: (B or 1, T' or 1, S + T') bool: the frames that each frame sees.
        Returns: (B, T', D).
        """
        normalized_BTF = inputs if self.global_cmvn is None else self.global_cmvn(inputs)
        num_cached = caches[0].attention.size(2)  # S
        x_BTD, positions_1SD = self.embed(normalized_BTF, offset, num_cached)
        is_speech_BT = x_BTD.new_ones(x_BTD.shape[:2], dtype=torch.bool)  # no padding
        for layer, cache in zip(self.encoders, caches, strict=True):
            x_BTD = layer(x_BTD, is_speech_BT, visible, positions_1SD, cache)
        return self._normalize(x_BTD)

    def new_caches(self) -> list[LayerMemory]:
        """The caches of all layers at the beginning of a stream, for `forward_chunk`.

        They have keys and values of no frame, and zeros as the last inputs of the convolution.
        """
        weight = self.after_norm.weight  # for the device and dtype of the caches
        caches: list[LayerMemory] = []
        for layer in self.encoders:
            attention = cast(MultiHeadAttention, layer.self_attn)
            convolution = cast(ConvolutionModule | None, getattr(layer, "conv_module", None))
            num_before = 0 if convolution is None else convolution.num_before
            key_and_value_size = 2 * attention.head_size
            keys_values = weight.new_zeros(1, attention.num_heads, 0, key_and_value_size)
            last_inputs = weight.new_zeros(1, num_before, self.output_size)
            caches.append(LayerMemory(attention=keys_values, convolution=last_inputs))
        return caches

    def _normalize(self, output_BTD: Tensor) -> Tensor:
        """The output of a layer, normalized unless the layers normalize their outputs themselves."""
        return self.after_norm(output_BTD) if self.normalize_before else output_BTD
