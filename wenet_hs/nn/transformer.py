# SPDX-License-Identifier: Apache-2.0
"""Transformer decoders up to the vectors that an output head reads, one whole sequence or one unit at a time.

Dimension key: B utterances, N hypotheses (N = B · hypotheses of each), T time, L label, D width, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from wenet_hs.nn.attention import MultiHeadAttention
from wenet_hs.nn.conformer import Residual
from wenet_hs.nn.feed_forward import FeedForward
from wenet_hs.nn.guide import AttentionGuide
from wenet_hs.nn.masks import causal_mask, length_mask
from wenet_hs.nn.positional import PositionalEncoding


class LayerCache(NamedTuple):
    """Keys and values of one layer: of the units so far (N, H, L, K), and of the memory (B, H, T, K)."""

    keys: Tensor
    values: Tensor
    memory_keys: Tensor
    memory_values: Tensor


@dataclass(frozen=True)
class DecoderCache:
    """What `step` has computed for the units so far."""

    layers: tuple[LayerCache, ...]

    @property
    def num_units(self) -> int:
        """How many units of each hypothesis are cached."""
        return self.layers[0].keys.size(2) if self.layers else 0

    def select(self, indices: Tensor) -> DecoderCache:
        """The cache of the hypotheses `indices` (N',), an old index for each new row.

        Where a row of the memory serves G > 1 hypotheses, they stay together: rows n·G … n·G + G - 1 of the result come
        from one utterance. With N' = N every utterance keeps its place; with a smaller N' whole utterances leave.
        """
        return DecoderCache(tuple(_select_layer(layer, indices) for layer in self.layers))


def _select_layer(layer: LayerCache, indices: Tensor) -> LayerCache:
    keys, values = layer.keys.index_select(0, indices), layer.values.index_select(0, indices)
    group = len(layer.keys) // len(layer.memory_keys)
    if group > 1 and len(indices) == len(layer.keys):  # beams are reordered inside an utterance: its memory stays
        return LayerCache(keys, values, layer.memory_keys, layer.memory_values)
    rows = indices[::group] // group
    memory_keys, memory_values = layer.memory_keys.index_select(0, rows), layer.memory_values.index_select(0, rows)
    return LayerCache(keys, values, memory_keys, memory_values)


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
            seen_BLD, weights_BHLT = self.src_attn.attend_visibly(y_BLD, memory, memory_mask)
            guide.watch(weights_BHLT)
            return seen_BLD

        x = self.residual(x, self.norm1, lambda y: self.self_attn(y, y, mask))
        x = self.residual(x, self.norm2, attend_to_memory)
        out: Tensor = self.residual(x, self.norm3, self.feed_forward)
        return out

    def step(
        self, x: Tensor, memory: Tensor, memory_mask: Tensor, cache: LayerCache | None
    ) -> tuple[Tensor, LayerCache]:
        """x (N, L, D) of the new units alone, memory (B, T, D), memory_mask (B, 1, T) → (x (N, L, D), new cache)."""
        past = 0 if cache is None else cache.keys.size(2)
        known = self.src_attn.keys_values(memory) if cache is None else (cache.memory_keys, cache.memory_values)
        own: list[tuple[Tensor, Tensor]] = []

        def attend_to_units(y_NLD: Tensor) -> Tensor:
            keys, values = self.self_attn.keys_values(y_NLD)
            if cache is not None:
                keys, values = _append(cache.keys, keys), _append(cache.values, values)
            own.append((keys, values))
            mask = causal_mask(y_NLD.size(1), offset=past, device=y_NLD.device)[None] if y_NLD.size(1) > 1 else None
            return self.self_attn.attend(y_NLD, keys, values, mask)

        def attend_to_memory(y_NLD: Tensor) -> Tensor:
            # The hypotheses of an utterance are more queries of the same memory, which so is never repeated.
            query = y_NLD.reshape(len(known[0]), -1, y_NLD.size(-1))
            return self.src_attn.attend(query, *known, memory_mask).view_as(y_NLD)

        x = self.residual(x, self.norm1, attend_to_units)
        x = self.residual(x, self.norm2, attend_to_memory)
        return self.residual(x, self.norm3, self.feed_forward), LayerCache(*own[0], *known)


def _append(past_NHLK: Tensor, new_NHLK: Tensor) -> Tensor:
    return torch.cat([past_NHLK, new_NHLK], dim=2)


class TransformerDecoder(nn.Module):
    """Memory and the units so far → a vector for each position, to be read by an output head."""

    def __init__(
        self,
        num_units: int,
        positional: PositionalEncoding,
        layers: Sequence[TransformerDecoderLayer],
        *,
        normalize_before: bool = True,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
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
        x_BLD = self._embed(units_in, 0)
        for layer in self.decoders:
            x_BLD = layer(x_BLD, mask_BLL, memory, memory_mask_B1T, guide)
        return self._finish(x_BLD)

    def step(
        self, memory: Tensor, memory_mask: Tensor, units_in: Tensor, cache: DecoderCache | None
    ) -> tuple[Tensor, DecoderCache]:
        """The hidden vector of the last position, computing only what `cache` does not hold.

        Args:
            memory: (B, T, D); memory_mask: (B, T) bool.
            units_in: (N, L) the whole prefixes, <sos> first; N is B times the hypotheses of each utterance, which stand
                together (rows n·N/B … of utterance n).
            cache: of the last step, its rows chosen by `select`; None at the first.
        Returns: hidden (N, D) after `after_norm`, and the cache for the next step.
        """
        past = 0 if cache is None else cache.num_units
        if units_in.size(0) % memory.size(0):
            raise ValueError(f"{units_in.size(0)} hypotheses are no multiple of {memory.size(0)} utterances")
        if units_in.size(1) <= past:
            raise ValueError(f"{units_in.size(1)} units, of which {past} are cached already: nothing to compute")
        x_NLD = self._embed(units_in[:, past:], past)
        caches = []
        for index, module in enumerate(self.decoders):
            layer = cast(TransformerDecoderLayer, module)
            known = None if cache is None else cache.layers[index]
            x_NLD, layer_cache = layer.step(x_NLD, memory, memory_mask[:, None], known)
            caches.append(layer_cache)
        return self._finish(x_NLD[:, -1]), DecoderCache(tuple(caches))

    def _embed(self, units: Tensor, offset: int) -> Tensor:
        x: Tensor = self.embed[1](self.embed[0](units), offset)[0]
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

    def step(
        self, memory: Tensor, memory_mask: Tensor, units_in: Tensor, cache: DecoderCache | None
    ) -> tuple[Tensor, DecoderCache]:
        """As TransformerDecoder.step, from left to right: (B, T, D), (B, T), (N, L) → (N, D) and the cache."""
        return self.left_decoder.step(memory, memory_mask, units_in, cache)
