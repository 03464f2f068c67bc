# SPDX-License-Identifier: Apache-2.0
"""Transformer decoders and the guided attention penalty."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from wenet_hs.nn.attention import MultiHeadAttention
from wenet_hs.nn.cpu import linear
from wenet_hs.nn.layers import FeedForward, Residual, causal_mask, length_mask, run_layer
from wenet_hs.nn.positional import AbsolutePositionalEncoding
from wenet_hs.nn.tree_kv_cache import LayerCache, NewNodes, TreeKVCache, as_bias


class AttentionGuide:
    """Watches the attention of a decoder's layers to the memory during one forward pass, and sums the penalty."""

    def __init__(self, memory_lengths: Tensor, unit_lengths: Tensor, *, width: float) -> None:
        """memory_lengths (B,) in T; unit_lengths (B,) in L, each at least 1; `width`: the deviation, as a share of the
        utterance, at which the penalty is 1 - exp(-1/2) ≈ 0.39 of its greatest."""
        self._memory_lengths = memory_lengths
        self._unit_lengths = unit_lengths
        self._width = width
        self._layers: list[Tensor] = []

    def watch(self, weights: Tensor) -> None:
        """Take in the attention weights of a layer, (B, H, L, T); each row sums to one."""
        cost_BLT = self._cost(weights.size(2), weights.size(3))
        self._layers.append((weights.float().mean(1) * cost_BLT).sum())

    def penalty(self) -> Tensor:
        """The mean over layers and heads, summed over the units of the batch: 0-dim, at most 1 a unit."""
        return torch.stack(self._layers).mean()

    def _cost(self, num_labels: int, num_frames: int) -> Tensor:
        """(B, L, T): 1 - exp(-(l/L - t/T)² / 2·width²); 0 in the rows behind an utterance's last unit."""
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
        self, x: Tensor, mask: Tensor, memory: Tensor, memory_mask: Tensor, guide: AttentionGuide | None = None
    ) -> Tensor:
        """x (B, L, D), mask (B, L, L), memory (B, T, D), memory_mask (B, 1, T) → (B, L, D)."""

        def attend_to_memory(y_BLD: Tensor) -> Tensor:
            if guide is None:
                out: Tensor = self.src_attn(y_BLD, memory, memory_mask)
                return out
            seen_BLD, weights_BHLT = self.src_attn.forward_with_weights(y_BLD, memory, memory_mask)
            guide.watch(weights_BHLT)
            return seen_BLD

        x = self.residual(x, self.norm1, lambda y: self.self_attn(y, y, mask))
        x = self.residual(x, self.norm2, attend_to_memory)
        out: Tensor = self.residual(x, self.norm3, self.feed_forward)
        return out

    def init_cache(self, memory: Tensor) -> LayerCache:
        """The cache of this layer before the first unit: memory (B, T, D)."""
        own, other = self.self_attn, self.src_attn
        memory_BTE = linear(memory, *other.joined(other.linear_k, other.linear_v))
        return LayerCache(memory_BTE, own.joined(own.linear_q, own.linear_k, own.linear_v), memory_BTE[:, :0])

    def decode_step(self, x: Tensor, nodes: NewNodes, bias: Tensor, cache: TreeKVCache, layer: LayerCache) -> Tensor:
        """x (M, D) of the new nodes alone, bias (B, R, S + R) of `visible` → (M, D); `layer` gets keys and values."""
        own, other = self.self_attn, self.src_attn

        def attend_to_units(y_MD: Tensor, x_MD: Tensor) -> Tensor:
            joined_BRF = nodes.spread(linear(y_MD, *layer.projection))
            query_BRD, new_BRE = joined_BRF.tensor_split([y_MD.size(-1)], dim=-1)
            seen_BRD = own.mix(query_BRD, layer.append(cache.num_nodes, new_BRE), bias)
            out: Tensor = own.linear_out(nodes.gather(seen_BRD), plus=x_MD)
            return out

        def attend_to_memory(y_MD: Tensor, x_MD: Tensor) -> Tensor:
            # The hypotheses of an utterance are more queries of the same memory, which so is never repeated.
            seen_BRD = other.mix(nodes.spread(other.linear_q(y_MD)), layer.memory, cache.memory_bias)
            out: Tensor = other.linear_out(nodes.gather(seen_BRD), plus=x_MD)
            return out

        x = self.residual.onto(x, self.norm1, attend_to_units)
        x = self.residual.onto(x, self.norm2, attend_to_memory)
        return self.residual.onto(x, self.norm3, lambda y_MD, x_MD: self.feed_forward(y_MD, plus=x_MD))


class TransformerDecoder(nn.Module):
    """Memory and the units so far → a vector for each position, to be read by an output head."""

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
        """`recompute`: layers are computed again in the backward pass, and keep nothing for it."""
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
        guide: AttentionGuide | None = None,
    ) -> Tensor:
        """The hidden vectors of whole sequences.

        Args:
            memory: (B, T, D), memory_lengths: (B,) in T.
            units_in: (B, L) unit ids that begin with <sos>, padded with any valid id; unit_lengths: (B,) in L.
            guide: shown the attention of every layer to the memory.
        Returns: (B, L, D) after `after_norm`; what padded positions hold is unspecified.
        """
        memory_mask_B1T = length_mask(memory_lengths, memory.size(1))[:, None]
        num_labels = units_in.size(1)
        mask_BLL = length_mask(unit_lengths, num_labels)[:, None] & causal_mask(num_labels, device=units_in.device)
        x_BLD = self._embed(units_in)
        for layer in self.decoders:
            if guide is None:
                inputs = x_BLD, mask_BLL, memory, memory_mask_B1T
                x_BLD = run_layer(layer, *inputs, recompute=self.recompute)
            else:  # which watches every computation of a layer, and must see each once
                x_BLD = layer(x_BLD, mask_BLL, memory, memory_mask_B1T, guide)
        return self._finish(x_BLD)

    def init_cache(self, memory: Tensor, memory_mask: Tensor) -> TreeKVCache:
        """What `decode_step` begins with: memory (B, T, D), memory_mask (B, T) bool. It knows no unit yet."""
        layers = [cast(TransformerDecoderLayer, module).init_cache(memory) for module in self.decoders]
        return TreeKVCache(layers, as_bias(memory_mask[:, None], memory))

    def decode_step(self, cache: TreeKVCache, nodes: NewNodes) -> Tensor:
        """The hidden vectors of new nodes in the trees of hypotheses, (M, D) after `after_norm`; `cache` then has them.

        Raises: ValueError where `nodes.visible` does not fit the nodes that are cached.
        """
        batch, room, seen = nodes.visible.shape
        if seen != cache.num_nodes + room or batch != len(cache.memory_bias):
            known = f"{len(cache.memory_bias)} utterances of {cache.num_nodes} nodes"
            raise ValueError(f"visible: {tuple(nodes.visible.shape)} does not fit {known} and {room} new ones")
        embedding, positional = self.embed[0], cast(AbsolutePositionalEncoding, self.embed[1])
        x_MD = positional.at(embedding(nodes.units), nodes.depths, bound=seen)
        bias_BRS = as_bias(nodes.visible, x_MD)
        for module, layer in zip(self.decoders, cache.layers, strict=True):
            x_MD = cast(TransformerDecoderLayer, module).decode_step(x_MD, nodes, bias_BRS, cache, layer)
        cache.num_nodes = seen
        return self._finish(x_MD)

    def _embed(self, units: Tensor) -> Tensor:
        x: Tensor = self.embed[1](self.embed[0](units))[0]
        return x

    def _finish(self, x: Tensor) -> Tensor:
        out: Tensor = self.after_norm(x) if self.normalize_before else x
        return out


class BiTransformerDecoder(nn.Module):
    """A decoder from left to right, which is the one called here, and one for reversed sequences (Wu et al. 2021)."""

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
        guide: AttentionGuide | None = None,
    ) -> Tensor:
        """As TransformerDecoder.forward, from left to right: (B, T, D), (B,), (B, L), (B,) → (B, L, D)."""
        out: Tensor = self.left_decoder(memory, memory_lengths, units_in, unit_lengths, guide=guide)
        return out

    def init_cache(self, memory: Tensor, memory_mask: Tensor) -> TreeKVCache:
        """As TransformerDecoder.init_cache, from left to right: (B, T, D), (B, T)."""
        return self.left_decoder.init_cache(memory, memory_mask)

    def decode_step(self, cache: TreeKVCache, nodes: NewNodes) -> Tensor:
        """As TransformerDecoder.decode_step, from left to right: (M, D)."""
        return self.left_decoder.decode_step(cache, nodes)
