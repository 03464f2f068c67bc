# SPDX-License-Identifier: Apache-2.0
"""What a decoder keeps between steps: keys and values of the memory, once an utterance, and of the units, once a node.

The hypotheses of an utterance are a tree: they begin alike and part later. A node is a unit behind the units above it,
and its keys and values are the same for every hypothesis that goes through it. So a beam is reordered by saying anew
which nodes each hypothesis goes through, and no key is copied.

Dimension key: B utterances, H heads, K head width, T frames, S nodes so far, R new nodes of each utterance, C capacity,
M new nodes that are real, D width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_FIRST_CAPACITY = 64


@dataclass
class LayerCache:
    """One layer's part. `keys` and `values` (B, H, C, K) are filled up to the cache's `num_nodes`."""

    memory_keys: Tensor
    """(B, H, T, K)"""
    memory_values: Tensor
    keys: Tensor
    values: Tensor

    def append(self, past: int, keys_BHRK: Tensor, values_BHRK: Tensor) -> tuple[Tensor, Tensor]:
        """Write new nodes behind `past` ones; keys and values of all of them, (B, H, S, K) each."""
        end = past + keys_BHRK.size(2)
        if end > self.keys.size(2):
            self.keys, self.values = (_widened(x, past, end) for x in (self.keys, self.values))
        self.keys[:, :, past:end] = keys_BHRK
        self.values[:, :, past:end] = values_BHRK
        return self.keys[:, :, :end], self.values[:, :, :end]


@dataclass
class NodeCache:
    """All layers of a decoder, for the utterances that are still searched."""

    layers: list[LayerCache]
    memory_bias: Tensor
    """(B, 1, T) what is added to the attention scores of frames: 0, or -inf where there is none."""
    num_nodes: int = 0

    def keep_utterances(self, rows: Tensor) -> None:
        """Go on with the utterances `rows` (B',) alone, in that order."""
        self.memory_bias = self.memory_bias[rows]
        for layer in self.layers:
            layer.memory_keys, layer.memory_values = layer.memory_keys[rows], layer.memory_values[rows]
            layer.keys, layer.values = (x[rows, :, : self.num_nodes] for x in (layer.keys, layer.values))

    def keep_nodes(self, nodes: Tensor) -> None:
        """Go on with the nodes (B, S') of each utterance alone, in that order: S' nodes are left."""
        for layer in self.layers:
            heads, width = layer.keys.size(1), layer.keys.size(3)
            index_BHSK = nodes[:, None, :, None].expand(-1, heads, -1, width)
            layer.keys, layer.values = layer.keys.gather(2, index_BHSK), layer.values.gather(2, index_BHSK)
        self.num_nodes = nodes.size(1)


def as_bias(visible: Tensor, like: Tensor) -> Tensor:
    """A mask as attention takes it without converting it, layer by layer: 0 where it is True, else -inf."""
    return torch.zeros_like(visible, dtype=like.dtype).masked_fill_(~visible, -math.inf)


def _widened(x_BHCK: Tensor, filled: int, needed: int) -> Tensor:
    """The filled part in a buffer of at least twice the room: so that all copies together are one of the last size."""
    batch, heads, capacity, width = x_BHCK.shape
    wider = x_BHCK.new_empty(batch, heads, max(_FIRST_CAPACITY, 2 * capacity, needed), width)
    wider[:, :, :filled] = x_BHCK[:, :, :filled]
    return wider


@dataclass(frozen=True)
class NewNodes:
    """The nodes that a step computes: M real ones among R places for each of B utterances."""

    units: Tensor
    """(M,) unit ids."""
    depths: Tensor
    """(M,) how many units stand above each: 0 for <sos>."""
    visible: Tensor
    """(B, R, S + R) bool: the nodes that each place goes through, itself included. A free place may have any."""
    places: Tensor | None = None
    """(M,) where among the B · R places the real ones stand; None where all are real."""

    def spread(self, rows_MD: Tensor) -> Tensor:
        """(M, D) → (B, R, D), 0 in free places."""
        batch, room, _ = self.visible.shape
        if self.places is None:
            return rows_MD.view(batch, room, -1)
        out_PD = rows_MD.new_zeros(batch * room, rows_MD.size(-1))
        return out_PD.index_copy_(0, self.places, rows_MD).view(batch, room, -1)

    def gather(self, rows_BRD: Tensor) -> Tensor:
        """(B, R, D) → (M, D)."""
        rows_PD = rows_BRD.reshape(-1, rows_BRD.size(-1))
        return rows_PD if self.places is None else torch.index_select(rows_PD, 0, self.places)
