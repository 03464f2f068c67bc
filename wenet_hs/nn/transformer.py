# SPDX-License-Identifier: Apache-2.0
"""Transformer decoders without their output head, and the guided attention penalty.

A decoder reads whole sequences (`forward`, in training and rescoring) or unit by unit
(`decode_step`, in a search).

Unit by unit, keys and values are cached: of the memory once per utterance, of the units once per
node. The hypotheses of an utterance form a tree, because they share prefixes. A node is a unit
after the units above it; its keys and values are the same for every hypothesis that contains it. So
a beam is reordered by a mask of which nodes each hypothesis contains, and no key is copied.

Dimension key: B utterances, T frames, L label, D width, H heads, E = 2 D, F = 3 D; S nodes so far,
R slots for new nodes per utterance, C capacity, M new nodes, P rows of all utterances.
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

_LEAST_CAPACITY = 64
"""Nodes per utterance for which a cache has memory at first."""


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

    def append(self, num_nodes: int, new_BRE: Tensor) -> Tensor:
        """Writes keys and values of new nodes after those of the first `num_nodes` nodes.

        If the memory has no room for them, it is replaced by one that is at least twice as large.

        new_BRE: (B, R, 2 D), R new nodes for each of B utterances.
        Returns: (B, num_nodes + R, 2 D), those of all nodes.
        """
        end = num_nodes + new_BRE.size(1)
        batch, capacity, width = self.units.shape
        if end > capacity:
            new_capacity = max(_LEAST_CAPACITY, 2 * capacity, end)
            wider_BCE = self.units.new_empty(batch, new_capacity, width)
            wider_BCE[:, :num_nodes] = self.units[:, :num_nodes]
            self.units = wider_BCE
        self.units[:, num_nodes:end] = new_BRE
        return self.units[:, :end]


@dataclass
class TreeKVCache:
    """The cache of all layers of a decoder, for the utterances whose search continues."""

    layers: list[LayerCache]
    memory_bias: Tensor
    """(B, 1, T), added to the attention scores of frames: 0, or -inf for padding."""
    num_nodes: int = 0
    """Nodes of each utterance so far, S."""

    def keep_utterances(self, rows: Tensor) -> None:
        """Keeps only some utterances, in a new order.

        rows: (B',), the present indices of those to keep. B' may be smaller than the present B.
        """
        num_kept = len(rows)
        self.memory_bias = self.memory_bias[rows]
        for layer in self.layers:
            layer.memory = layer.memory[rows]
            # Indexing by `rows` copies, so no row is overwritten before it is read.
            layer.units[:num_kept, : self.num_nodes] = layer.units[rows, : self.num_nodes]
            layer.units = layer.units[:num_kept]

    def keep_nodes(self, nodes: Tensor) -> None:
        """Keeps only some nodes of each utterance, in a new order.

        nodes: (B, S'), the present indices of those to keep, for each of B utterances.
        """
        batch, num_kept = nodes.shape
        utterances_B1 = torch.arange(batch, device=nodes.device)[:, None]
        for layer in self.layers:
            _, capacity, width = layer.units.shape
            all_rows_PE = layer.units.flatten(0, 1)  # `capacity` rows per utterance
            kept_rows_P = (capacity * utterances_B1 + nodes).flatten()
            kept_PE = all_rows_PE.index_select(0, kept_rows_P)
            # In place, because new memory costs more.
            layer.units[:, :num_kept] = kept_PE.view(batch, num_kept, width)
        self.num_nodes = num_kept


def mask_to_bias(visible: Tensor, like: Tensor) -> Tensor:
    """The mask as a bias of attention scores: 0 where it is True, else -inf.

    It has the shape of `visible` and the dtype of `like`.
    """
    return torch.zeros_like(visible, dtype=like.dtype).masked_fill_(~visible, -math.inf)


@dataclass(frozen=True)
class NewNodes:
    """The nodes that a step computes: M nodes in R slots for each of B utterances.

    Some slots may be free; then M is less than B · R.
    """

    units: Tensor
    """(M,) unit ids."""
    depths: Tensor
    """(M,) number of units above each node: 0 for <sos>."""
    visible: Tensor
    """(B, R, S + R) bool: the nodes of the hypothesis that ends in each slot, itself included.

    Values in free slots have no effect.
    """
    slots: Tensor | None = None
    """(M,) the index of each node among the B · R slots; None if no slot is free."""

    def scatter(self, rows_MD: Tensor) -> Tensor:
        """Puts the vectors of nodes into their slots: (M, D) → (B, R, D), 0 in free slots.

        There are M nodes, and R slots for each of B utterances.
        """
        batch, num_slots, _ = self.visible.shape
        if self.slots is None:
            return rows_MD.view(batch, num_slots, -1)
        rows_PD = rows_MD.new_zeros(batch * num_slots, rows_MD.size(-1))
        rows_PD.index_copy_(0, self.slots, rows_MD)
        return rows_PD.view(batch, num_slots, -1)

    def gather(self, rows_BRD: Tensor) -> Tensor:
        """Takes the vectors of nodes out of their slots: (B, R, D) → (M, D), without free slots.

        There are M nodes, and R slots for each of B utterances.
        """
        rows_PD = rows_BRD.reshape(-1, rows_BRD.size(-1))
        if self.slots is None:
            return rows_PD
        return torch.index_select(rows_PD, 0, self.slots)


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
    _, _, num_units, num_frames = weights[0].shape
    device = unit_lengths.device
    units_BL = torch.arange(num_units, device=device) / unit_lengths[:, None]  # l/L
    frames_BT = torch.arange(num_frames, device=device) / memory_lengths.clamp(min=1)[:, None]
    distance_BLT = units_BL[..., None] - frames_BT[:, None]
    cost_BLT = 1 - torch.exp(-distance_BLT.square() / (2 * width**2))
    cost_BLT = cost_BLT * length_mask(unit_lengths, num_units)[..., None]
    costs = []
    for weights_BHLT in weights:
        mean_over_heads_BLT = weights_BHLT.float().mean(1)
        costs.append((mean_over_heads_BLT * cost_BLT).sum())
    return torch.stack(costs).mean()


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
        """A layer of these parts, with a new norm for each; `src_attn` attends to the memory."""
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
        """The vectors of units after this layer.

        Args:
            x: (B, L, D).
            mask: (B, L, L) bool, the units that each unit sees.
            memory: (B, T, D).
            memory_mask: (B, 1, T) bool, the frames that each unit sees.
            weights: a list to which the attention weights to the memory, (B, H, L, T), are
                appended. None: they are not computed, which is faster.
        Returns: (B, L, D).
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
        """The cache of this layer before the first unit, from memory (B, T, D).

        It contains keys and values of the memory, and none of units.
        """
        units_attn = self.self_attn
        memory_attn = self.src_attn
        memory_weight, memory_bias = join_linear(memory_attn.linear_k, memory_attn.linear_v)
        memory_BTE = linear(memory, memory_weight, memory_bias)
        return LayerCache(
            memory=memory_BTE,
            projection=join_linear(units_attn.linear_q, units_attn.linear_k, units_attn.linear_v),
            units=memory_BTE[:, :0],  # no units yet, of the same width
        )

    def decode_step(
        self, x: Tensor, nodes: NewNodes, bias: Tensor, cache: TreeKVCache, layer: LayerCache
    ) -> Tensor:
        """The vectors of new nodes after this layer.

        A node is a unit in the tree of the hypotheses of an utterance. Keys and values of earlier
        nodes are in the cache, and so is the memory.

        Args:
            x: (M, D), the new nodes.
            nodes: where they are in the trees of hypotheses.
            bias: (B, R, S + R), `mask_to_bias` of `nodes.visible`: the nodes that a node sees, of S
                earlier ones and of those in the R slots of its utterance.
            cache: of all layers.
            layer: the cache of this layer, to which keys and values of the new nodes are added.
        Returns: (M, D).
        """

        def attend_to_units(y_MD: Tensor) -> Tensor:
            weight, bias_of_projection = layer.projection
            projected_BRF = nodes.scatter(linear(y_MD, weight, bias_of_projection))
            query_BRD, new_BRE = projected_BRF.tensor_split([y_MD.size(-1)], dim=-1)
            all_BSE = layer.append(cache.num_nodes, new_BRE)
            context_BRD = self.self_attn.attend_projected(query_BRD, all_BSE, bias)
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
    """Computes the input of an output head from the memory and the units so far.

    This is one vector per unit, from which the head predicts the next unit.
    """

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
        """A decoder with these layers.

        Args:
            num_units: V, the size of the unit table.
            normalize_before: whether `after_norm` is applied to the output. It must be that of the
                layers.
            recompute: whether activations are computed again in the backward pass, see `run_layer`.
        """
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
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """The hidden vectors of whole sequences.

        Args:
            memory: (B, T, D).
            memory_lengths: (B,) in T.
            units_in: (B, L) unit ids that begin with <sos>, padded with any valid id.
            unit_lengths: (B,) in L.
            weights: a list to which each layer appends its attention weights to the memory, (B, H,
                L, T).
        Returns: (B, L, D); padded positions contain unspecified values.
        """
        memory_mask_B1T = length_mask(memory_lengths, memory.size(1))[:, None]
        num_units = units_in.size(1)
        is_unit_B1L = length_mask(unit_lengths, num_units)[:, None]
        mask_BLL = is_unit_B1L & causal_mask(num_units, device=units_in.device)
        x_BLD, _ = self.embed(units_in)
        for layer in self.decoders:
            if weights is None:
                x_BLD = run_layer(
                    layer, x_BLD, mask_BLL, memory, memory_mask_B1T, recompute=self.recompute
                )
            else:  # without recomputation, which would append the weights of each layer twice
                x_BLD = layer(x_BLD, mask_BLL, memory, memory_mask_B1T, weights)
        return self._normalize(x_BLD)

    def init_cache(self, memory: Tensor, memory_mask: Tensor) -> TreeKVCache:
        """The cache before the first unit, for `decode_step`.

        Args:
            memory: (B, T, D).
            memory_mask: (B, T) bool, False for padding.
        """
        layers = [
            cast(TransformerDecoderLayer, module).init_cache(memory) for module in self.decoders
        ]
        return TreeKVCache(layers=layers, memory_bias=mask_to_bias(memory_mask[:, None], memory))

    def decode_step(self, cache: TreeKVCache, nodes: NewNodes) -> Tensor:
        """The hidden vectors of new nodes in the trees of hypotheses, (M, D).

        A node is a unit after the units above it. Each of M new nodes has one of R slots of its
        utterance. `cache` gets keys and values for all slots.

        Raises ValueError if `nodes.visible` does not fit the cached nodes.
        """
        batch, num_slots, num_nodes = nodes.visible.shape
        if num_nodes != cache.num_nodes + num_slots or batch != len(cache.memory_bias):
            known = f"{len(cache.memory_bias)} utterances of {cache.num_nodes} nodes"
            raise ValueError(
                f"visible: {tuple(nodes.visible.shape)} does not fit {known} and {num_slots} new ones"
            )
        embedding = self.embed[0]
        positional = cast(PositionalEncoding, self.embed[1])
        # A node has fewer units above it than its tree has nodes.
        x_MD = positional.at(embedding(nodes.units), nodes.depths, bound=num_nodes)
        bias_BRS = mask_to_bias(nodes.visible, x_MD)
        for module, layer_cache in zip(self.decoders, cache.layers, strict=True):
            layer = cast(TransformerDecoderLayer, module)
            x_MD = layer.decode_step(x_MD, nodes, bias_BRS, cache, layer_cache)
        cache.num_nodes = num_nodes
        return self._normalize(x_MD)

    def _normalize(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D): the norm after the last layer, if the layers have theirs before them."""
        return self.after_norm(x) if self.normalize_before else x


class BiTransformerDecoder(nn.Module):
    """A left-to-right decoder and a right-to-left one, for reversed sequences (Wu et al. 2021).

    All methods of decoding use the first one. Rescoring may use both.
    """

    def __init__(self, left_decoder: TransformerDecoder, right_decoder: TransformerDecoder) -> None:
        super().__init__()
        self.left_decoder = left_decoder
        self.right_decoder = right_decoder
