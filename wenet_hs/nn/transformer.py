# SPDX-License-Identifier: Apache-2.0
"""Transformer decoders without their output head, for whole sequences or unit by unit; the guided
attention penalty.

Unit by unit, keys and values are cached: of the memory once per utterance, of the units once per
node. The hypotheses of an utterance form a tree, because they share prefixes. A node is a unit
after the units above it; its keys and values are the same for every hypothesis that contains it. So
a beam is reordered by a mask of which nodes each hypothesis contains, and no key is copied.

Dimension key: B utterances, T frames, L label, D width, H heads, E = 2 D; S nodes so far, R slots
for new nodes per utterance, C capacity, M new nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from wenet_hs.heads.masks import length_mask
from wenet_hs.heads.products import linear
from wenet_hs.nn.attention import MultiHeadAttention, join_linear
from wenet_hs.nn.layers import FeedForward, PositionalEncoding, Residual, causal_mask, run_layer


@dataclass
class LayerCache:
    """The cache of one layer. Keys and values are stored side by side, 2 D wide."""

    memory: Tensor
    """(B, T, 2 D): keys and values of the encoder output."""
    projection: tuple[Tensor, Tensor]
    """Weight (3 D, D) and bias (3 D,) of the joined linear layer for query, key and value of the
    units.
    """
    units: Tensor
    """(B, C, 2 D), filled up to the `num_nodes` of the cache."""

    def append(self, past: int, new_BRE: Tensor) -> Tensor:
        """Writes new nodes after the first `past` ones; returns all of them, (B, S, 2 D)."""
        end = past + new_BRE.size(1)
        batch, capacity, width = self.units.shape
        if end > capacity:
            wider_BCE = self.units.new_empty(batch, max(64, 2 * capacity, end), width)
            wider_BCE[:, :past] = self.units[:, :past]
            self.units = wider_BCE
        self.units[:, past:end] = new_BRE
        return self.units[:, :end]


@dataclass
class TreeKVCache:
    """The cache of all layers of a decoder, for the utterances whose search continues."""

    layers: list[LayerCache]
    memory_bias: Tensor
    """(B, 1, T), added to the attention scores of frames: 0, or -inf for padding."""
    num_nodes: int = 0

    def keep_utterances(self, rows: Tensor) -> None:
        """Keeps only the utterances `rows` (B',), in that order."""
        self.memory_bias = self.memory_bias[rows]
        for layer in self.layers:
            layer.memory = layer.memory[rows]
            layer.units[: len(rows), : self.num_nodes] = layer.units[
                rows, : self.num_nodes
            ]  # copied before written
            layer.units = layer.units[: len(rows)]

    def keep_nodes(self, nodes: Tensor) -> None:
        """Keeps only the nodes (B, S') of each utterance, in that order."""
        batch, num_kept = nodes.shape
        for layer in self.layers:
            capacity, width = layer.units.shape[1:]
            rows_P = (
                nodes + capacity * torch.arange(batch, device=nodes.device)[:, None]
            ).flatten()
            kept_PE = layer.units.flatten(0, 1).index_select(0, rows_P)
            layer.units[:, :num_kept] = kept_PE.view(
                batch, num_kept, width
            )  # in place: new memory costs more
        self.num_nodes = num_kept


def mask_to_bias(visible: Tensor, like: Tensor) -> Tensor:
    """The mask as a bias of the attention scores in the dtype of `like`: 0 where it is True, else
    -inf.
    """
    return torch.zeros_like(visible, dtype=like.dtype).masked_fill_(~visible, -math.inf)


@dataclass(frozen=True)
class NewNodes:
    """The nodes that a step computes: M nodes in R slots for each of B utterances.

    Slots may be free.
    """

    units: Tensor
    """(M,) unit ids."""
    depths: Tensor
    """(M,) number of units above each node: 0 for <sos>."""
    visible: Tensor
    """(B, R, S + R) bool: the nodes of the hypothesis that ends in each slot, itself included; any
    in a free slot.
    """
    slots: Tensor | None = None
    """(M,) the index of each node among the B · R slots; None where no slot is free."""

    def scatter(self, rows_MD: Tensor) -> Tensor:
        """(M, D) → (B, R, D), 0 in free slots."""
        batch, num_slots, _ = self.visible.shape
        if self.slots is None:
            return rows_MD.view(batch, num_slots, -1)
        out_PD = rows_MD.new_zeros(batch * num_slots, rows_MD.size(-1))
        return out_PD.index_copy_(0, self.slots, rows_MD).view(batch, num_slots, -1)

    def gather(self, rows_BRD: Tensor) -> Tensor:
        """(B, R, D) → (M, D)."""
        rows_PD = rows_BRD.reshape(-1, rows_BRD.size(-1))
        return rows_PD if self.slots is None else torch.index_select(rows_PD, 0, self.slots)


def guided_attention_loss(
    weights: Sequence[Tensor], memory_lengths: Tensor, unit_lengths: Tensor, *, width: float
) -> Tensor:
    """Penalty on attention to the memory far from the diagonal, for early decoder training.

    Speech is monotonic, but an untrained decoder learns a language model long before it learns to
    align. The penalty is small where unit l of L attends to frame t of T with l/L near t/T
    (Tachibana, Uenoyama and Aihara 2018, "Efficiently trainable text-to-speech system based on deep
    convolutional networks with guided attention", section 4.1).

    Args:
        weights: per layer (B, H, L, T); each row sums to one.
        memory_lengths: (B,) in T; unit_lengths: (B,) in L, each at least 1.
        width: the deviation, as a fraction of the utterance, at which the penalty is 1 - exp(-1/2)
            ≈ 0.39.
    Returns: the mean over layers and heads, summed over the units of the batch: 0-dim, at most 1
        per unit.
    """
    num_units, num_frames, device = weights[0].size(2), weights[0].size(3), unit_lengths.device
    unit_BL1 = (torch.arange(num_units, device=device) / unit_lengths[:, None])[..., None]
    frame_B1T = (torch.arange(num_frames, device=device) / memory_lengths.clamp(min=1)[:, None])[
        :, None
    ]
    cost_BLT = 1 - torch.exp(-(unit_BL1 - frame_B1T).square() / (2 * width**2))
    cost_BLT = cost_BLT * length_mask(unit_lengths, num_units)[..., None]
    return torch.stack(
        [(weights_BHLT.float().mean(1) * cost_BLT).sum() for weights_BHLT in weights]
    ).mean()


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
        self,
        x: Tensor,
        mask: Tensor,
        memory: Tensor,
        memory_mask: Tensor,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """x (B, L, D), mask (B, L, L), memory (B, T, D), memory_mask (B, 1, T) → (B, L, D).

        The attention weights to the memory, (B, H, L, T), are appended to `weights` if it is given.
        """

        def attend_to_memory(y_BLD: Tensor) -> Tensor:
            if weights is None:
                return self.src_attn(y_BLD, memory, memory_mask)
            context_BLD, weights_BHLT = self.src_attn.forward_with_weights(
                y_BLD, memory, memory_mask
            )
            weights.append(weights_BHLT)
            return context_BLD

        x = self.residual(x, self.norm1, lambda y: self.self_attn(y, y, mask))
        x = self.residual(x, self.norm2, attend_to_memory)
        return self.residual(x, self.norm3, self.feed_forward)

    def init_cache(self, memory: Tensor) -> LayerCache:
        """The cache of this layer before the first unit, from memory (B, T, D)."""
        own, other = self.self_attn, self.src_attn
        memory_BTE = linear(memory, *join_linear(other.linear_k, other.linear_v))
        return LayerCache(
            memory_BTE, join_linear(own.linear_q, own.linear_k, own.linear_v), memory_BTE[:, :0]
        )

    def decode_step(
        self, x: Tensor, nodes: NewNodes, bias: Tensor, cache: TreeKVCache, layer: LayerCache
    ) -> Tensor:
        """Computes only the new nodes: x (M, D), bias (B, R, S + R) of `visible` → (M, D).

        `layer` is extended.
        """

        def attend_to_units(y_MD: Tensor) -> Tensor:
            joined_BRF = nodes.scatter(linear(y_MD, *layer.projection))
            query_BRD, new_BRE = joined_BRF.tensor_split([y_MD.size(-1)], dim=-1)
            context_BRD = self.self_attn.attend_projected(
                query_BRD, layer.append(cache.num_nodes, new_BRE), bias
            )
            return self.self_attn.linear_out(nodes.gather(context_BRD))

        def attend_to_memory(y_MD: Tensor) -> Tensor:
            # The hypotheses of an utterance are queries of the same memory, so the memory is not
            # repeated.
            query_BRD = nodes.scatter(self.src_attn.linear_q(y_MD))
            context_BRD = self.src_attn.attend_projected(query_BRD, layer.memory, cache.memory_bias)
            return self.src_attn.linear_out(nodes.gather(context_BRD))

        x = self.residual(x, self.norm1, attend_to_units)
        x = self.residual(x, self.norm2, attend_to_memory)
        return self.residual(x, self.norm3, self.feed_forward)


class TransformerDecoder(nn.Module):
    """Memory and the units so far → one vector per position, the input of an output head."""

    def __init__(
        self,
        num_units: int,
        positional: PositionalEncoding,
        layers: Sequence[TransformerDecoderLayer],
        *,
        normalize_before: bool = True,
        norm_eps: float = 1e-5,
        recompute: bool = False,
    ) -> None:
        """`recompute`: see `run_layer`."""
        super().__init__()
        self.recompute, self.normalize_before = recompute, normalize_before
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
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """The hidden vectors of whole sequences.

        Args:
            memory: (B, T, D), memory_lengths: (B,) in T.
            units_in: (B, L) unit ids that begin with <sos>, padded with any valid id; unit_lengths:
                (B,) in L.
            weights: a list to which each layer appends its attention weights to the memory, (B, H,
                L, T).
        Returns: (B, L, D) after `after_norm`; padded positions contain unspecified values.
        """
        memory_mask_B1T = length_mask(memory_lengths, memory.size(1))[:, None]
        num_labels = units_in.size(1)
        mask_BLL = length_mask(unit_lengths, num_labels)[:, None] & causal_mask(
            num_labels, device=units_in.device
        )
        x_BLD = self.embed(units_in)[0]
        for layer in self.decoders:
            if weights is None:
                inputs = x_BLD, mask_BLL, memory, memory_mask_B1T
                x_BLD = run_layer(layer, *inputs, recompute=self.recompute)
            else:  # without recomputation, which would append the weights of each layer twice
                x_BLD = layer(x_BLD, mask_BLL, memory, memory_mask_B1T, weights)
        return self.after_norm(x_BLD) if self.normalize_before else x_BLD

    def init_cache(self, memory: Tensor, memory_mask: Tensor) -> TreeKVCache:
        """The cache before the first unit, for `decode_step`: memory (B, T, D), memory_mask (B, T)
        bool.
        """
        layers = [
            cast(TransformerDecoderLayer, module).init_cache(memory) for module in self.decoders
        ]
        return TreeKVCache(layers, mask_to_bias(memory_mask[:, None], memory))

    def decode_step(self, cache: TreeKVCache, nodes: NewNodes) -> Tensor:
        """The hidden vectors of new nodes in the trees of hypotheses, (M, D) after `after_norm`.

        Extends `cache`.

        Raises ValueError if `nodes.visible` does not fit the cached nodes.
        """
        batch, num_slots, num_nodes = nodes.visible.shape
        if num_nodes != cache.num_nodes + num_slots or batch != len(cache.memory_bias):
            known = f"{len(cache.memory_bias)} utterances of {cache.num_nodes} nodes"
            raise ValueError(
                f"visible: {tuple(nodes.visible.shape)} does not fit {known} and {num_slots} new ones"
            )
        embedding, positional = self.embed[0], cast(PositionalEncoding, self.embed[1])
        x_MD = positional.at(embedding(nodes.units), nodes.depths, bound=num_nodes)
        bias_BRS = mask_to_bias(nodes.visible, x_MD)
        for module, layer in zip(self.decoders, cache.layers, strict=True):
            x_MD = cast(TransformerDecoderLayer, module).decode_step(
                x_MD, nodes, bias_BRS, cache, layer
            )
        cache.num_nodes = num_nodes
        return self.after_norm(x_MD) if self.normalize_before else x_MD


class BiTransformerDecoder(nn.Module):
    """A left-to-right decoder, used by all methods, and a right-to-left one for reversed sequences
    (Wu et al. 2021).
    """

    def __init__(self, left_decoder: TransformerDecoder, right_decoder: TransformerDecoder) -> None:
        super().__init__()
        self.left_decoder = left_decoder
        self.right_decoder = right_decoder
