# SPDX-License-Identifier: Apache-2.0
"""Transformer decoders without their output head, for whole sequences or unit by unit; the guided attention penalty.

Dimension key: B utterances, T time, L label, D width, H heads; for nodes M, R, S and E see tree_kv_cache.py.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from wenet_hs.nn.attention import MultiHeadAttention, join_linear
from wenet_hs.nn.cpu import linear
from wenet_hs.nn.layers import FeedForward, Residual, causal_mask, length_mask, run_layer
from wenet_hs.nn.positional import AbsolutePositionalEncoding
from wenet_hs.nn.tree_kv_cache import LayerCache, NewNodes, TreeKVCache, mask_to_bias


class GuidedAttentionLoss:
    """Penalty on attention to the memory far from the diagonal, for early decoder training.

    Speech is monotonic, but an untrained decoder learns a language model long before it learns to align. The penalty is
    small where unit l of L attends to frame t of T with l/L near t/T (Tachibana, Uenoyama and Aihara 2018, "Efficiently
    trainable text-to-speech system based on deep convolutional networks with guided attention", section 4.1).
    """

    def __init__(self, memory_lengths: Tensor, unit_lengths: Tensor, *, width: float) -> None:
        """memory_lengths (B,) in T; unit_lengths (B,) in L, each at least 1; `width`: the deviation, as a fraction of
        the utterance, at which the penalty is 1 - exp(-1/2) ≈ 0.39 of its maximum."""
        self._memory_lengths = memory_lengths
        self._unit_lengths = unit_lengths
        self._width = width
        self._layers: list[Tensor] = []

    def add_layer(self, weights: Tensor) -> None:
        """Adds the attention weights of a layer, (B, H, L, T); each row sums to one."""
        cost_BLT = self._cost(weights.size(2), weights.size(3))
        self._layers.append((weights.float().mean(1) * cost_BLT).sum())

    def total(self) -> Tensor:
        """The mean over layers and heads, summed over the units of the batch: 0-dim, at most 1 per unit."""
        return torch.stack(self._layers).mean()

    def _cost(self, num_labels: int, num_frames: int) -> Tensor:
        """(B, L, T): 1 - exp(-(l/L - t/T)² / 2·width²); 0 in the rows after the last unit of an utterance."""
        device = self._unit_lengths.device
        label_BL1 = (torch.arange(num_labels, device=device) / self._unit_lengths[:, None])[..., None]
        frame_B1T = (torch.arange(num_frames, device=device) / self._memory_lengths.clamp(min=1)[:, None])[:, None]
        cost_BLT = 1 - torch.exp(-(label_BL1 - frame_B1T).square() / (2 * self._width**2))
        return cost_BLT * length_mask(self._unit_lengths, num_labels)[..., None]


class TransformerDecoderLayer(nn.Module):
    """Self-attention, attention to the memory, feed-forward, each on a residual branch."""

    def __init__(
        self,
        self_attn: MultiHeadAttention,
        src_attn: MultiHeadAttention,
        feed_forward: FeedForward,
        *,
        dropout_rate: float = 0.1,
        normalize_before: bool = True,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        size = self_attn.linear_q.in_features
        self.self_attn = self_attn
        self.src_attn = src_attn
        self.feed_forward = feed_forward
        self.norm1 = nn.LayerNorm(size, eps=norm_eps)
        self.norm2 = nn.LayerNorm(size, eps=norm_eps)
        self.norm3 = nn.LayerNorm(size, eps=norm_eps)
        self.residual = Residual(dropout_rate, normalize_before)

    def forward(
        self, x: Tensor, mask: Tensor, memory: Tensor, memory_mask: Tensor, guide: GuidedAttentionLoss | None = None
    ) -> Tensor:
        """x (B, L, D), mask (B, L, L), memory (B, T, D), memory_mask (B, 1, T) → (B, L, D)."""

        def attend_to_memory(y_BLD: Tensor) -> Tensor:
            if guide is None:
                out: Tensor = self.src_attn(y_BLD, memory, memory_mask)
                return out
            context_BLD, weights_BHLT = self.src_attn.forward_with_weights(y_BLD, memory, memory_mask)
            guide.add_layer(weights_BHLT)
            return context_BLD

        x = self.residual(x, self.norm1, lambda y: self.self_attn(y, y, mask))
        x = self.residual(x, self.norm2, attend_to_memory)
        out: Tensor = self.residual(x, self.norm3, self.feed_forward)
        return out

    def init_cache(self, memory: Tensor) -> LayerCache:
        """The cache of this layer before the first unit, from memory (B, T, D)."""
        own, other = self.self_attn, self.src_attn
        memory_BTE = linear(memory, *join_linear(other.linear_k, other.linear_v))
        return LayerCache(memory_BTE, join_linear(own.linear_q, own.linear_k, own.linear_v), memory_BTE[:, :0])

    def decode_step(self, x: Tensor, nodes: NewNodes, bias: Tensor, cache: TreeKVCache, layer: LayerCache) -> Tensor:
        """Computes only the new nodes: x (M, D), bias (B, R, S + R) of `visible` → (M, D). `layer` is extended."""

        def attend_to_units(y_MD: Tensor) -> Tensor:
            joined_BRF = nodes.scatter(linear(y_MD, *layer.projection))
            query_BRD, new_BRE = joined_BRF.tensor_split([y_MD.size(-1)], dim=-1)
            context_BRD = self.self_attn.attend_projected(query_BRD, layer.append(cache.num_nodes, new_BRE), bias)
            out: Tensor = self.self_attn.linear_out(nodes.gather(context_BRD))
            return out

        def attend_to_memory(y_MD: Tensor) -> Tensor:
            # The hypotheses of an utterance are queries of the same memory, so the memory is not repeated.
            query_BRD = nodes.scatter(self.src_attn.linear_q(y_MD))
            context_BRD = self.src_attn.attend_projected(query_BRD, layer.memory, cache.memory_bias)
            out: Tensor = self.src_attn.linear_out(nodes.gather(context_BRD))
            return out

        x = self.residual(x, self.norm1, attend_to_units)
        x = self.residual(x, self.norm2, attend_to_memory)
        out: Tensor = self.residual(x, self.norm3, self.feed_forward)
        return out


class TransformerDecoder(nn.Module):
    """Memory and the units so far → one vector per position, the input of an output head."""

    def __init__(
        self,
        num_units: int,
        positional: AbsolutePositionalEncoding,
        layers: Sequence[TransformerDecoderLayer],
        *,
        normalize_before: bool = True,
        norm_eps: float = 1e-5,
        recompute: bool = False,
    ) -> None:
        """`recompute`: see `run_layer`."""
        super().__init__()
        self.recompute = recompute
        self.normalize_before = normalize_before
        self.embed = nn.Sequential(nn.Embedding(num_units, positional.size), positional)
        self.after_norm = nn.LayerNorm(positional.size, eps=norm_eps)
        self.decoders = nn.ModuleList(layers)

    def forward(
        self,
        memory: Tensor,
        memory_lengths: Tensor,
        units_in: Tensor,
        unit_lengths: Tensor,
        *,
        guide: GuidedAttentionLoss | None = None,
    ) -> Tensor:
        """The hidden vectors of whole sequences.

        Args:
            memory: (B, T, D), memory_lengths: (B,) in T.
            units_in: (B, L) unit ids that begin with <sos>, padded with any valid id; unit_lengths: (B,) in L.
            guide: gets the attention weights of every layer to the memory.
        Returns: (B, L, D) after `after_norm`; padded positions contain unspecified values.
        """
        memory_mask_B1T = length_mask(memory_lengths, memory.size(1))[:, None]
        num_labels = units_in.size(1)
        mask_BLL = length_mask(unit_lengths, num_labels)[:, None] & causal_mask(num_labels, device=units_in.device)
        x_BLD = self._embed(units_in)
        for layer in self.decoders:
            if guide is None:
                inputs = x_BLD, mask_BLL, memory, memory_mask_B1T
                x_BLD = run_layer(layer, *inputs, recompute=self.recompute)
            else:  # without recomputation: the guide must get the weights of each layer once
                x_BLD = layer(x_BLD, mask_BLL, memory, memory_mask_B1T, guide)
        return self._finish(x_BLD)

    def init_cache(self, memory: Tensor, memory_mask: Tensor) -> TreeKVCache:
        """The cache before the first unit, for `decode_step`: memory (B, T, D), memory_mask (B, T) bool."""
        layers = [cast(TransformerDecoderLayer, module).init_cache(memory) for module in self.decoders]
        return TreeKVCache(layers, mask_to_bias(memory_mask[:, None], memory))

    def decode_step(self, cache: TreeKVCache, nodes: NewNodes) -> Tensor:
        """The hidden vectors of new nodes in the trees of hypotheses, (M, D) after `after_norm`. Extends `cache`.

        Raises ValueError if `nodes.visible` does not fit the cached nodes.
        """
        batch, num_slots, num_nodes = nodes.visible.shape
        if num_nodes != cache.num_nodes + num_slots or batch != len(cache.memory_bias):
            known = f"{len(cache.memory_bias)} utterances of {cache.num_nodes} nodes"
            raise ValueError(f"visible: {tuple(nodes.visible.shape)} does not fit {known} and {num_slots} new ones")
        embedding, positional = self.embed[0], cast(AbsolutePositionalEncoding, self.embed[1])
        x_MD = positional.at(embedding(nodes.units), nodes.depths, bound=num_nodes)
        bias_BRS = mask_to_bias(nodes.visible, x_MD)
        for module, layer in zip(self.decoders, cache.layers, strict=True):
            x_MD = cast(TransformerDecoderLayer, module).decode_step(x_MD, nodes, bias_BRS, cache, layer)
        cache.num_nodes = num_nodes
        return self._finish(x_MD)

    def _embed(self, units: Tensor) -> Tensor:
        x: Tensor = self.embed[1](self.embed[0](units))[0]
        return x

    def _finish(self, x: Tensor) -> Tensor:
        out: Tensor = self.after_norm(x) if self.normalize_before else x
        return out


class BiTransformerDecoder(nn.Module):
    """A left-to-right decoder, used by all methods, and a right-to-left one for reversed sequences (Wu et al. 2021)."""

    def __init__(self, left_decoder: TransformerDecoder, right_decoder: TransformerDecoder) -> None:
        super().__init__()
        self.left_decoder = left_decoder
        self.right_decoder = right_decoder

    def forward(
        self,
        memory: Tensor,
        memory_lengths: Tensor,
        units_in: Tensor,
        unit_lengths: Tensor,
        *,
        guide: GuidedAttentionLoss | None = None,
    ) -> Tensor:
        """`TransformerDecoder.forward` of the left-to-right decoder."""
        out: Tensor = self.left_decoder(memory, memory_lengths, units_in, unit_lengths, guide=guide)
        return out

    def init_cache(self, memory: Tensor, memory_mask: Tensor) -> TreeKVCache:
        """`TransformerDecoder.init_cache` of the left-to-right decoder."""
        return self.left_decoder.init_cache(memory, memory_mask)

    def decode_step(self, cache: TreeKVCache, nodes: NewNodes) -> Tensor:
        """`TransformerDecoder.decode_step` of the left-to-right decoder."""
        return self.left_decoder.decode_step(cache, nodes)
