# SPDX-License-Identifier: Apache-2.0
"""What a decoder keeps between steps: keys and values of the memory, once an utterance, and of the units, once a node.

The hypotheses of an utterance are a tree: they begin alike and part later. A node is a unit behind the units above it,
and its keys and values are the same for every hypothesis that goes through it. So a beam is reordered by saying anew
which nodes each hypothesis goes through, and no key is copied.

Dimension key: B utterances, T frames, S nodes so far, R new nodes of each utterance, C capacity, M new nodes that are
real, D width, E = 2 D.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_FIRST_CAPACITY = 64


@dataclass
class LayerCache:
    """One layer's part. Keys and values stand side by side, 2 D wide."""

    memory: Tensor
    """(B, T, 2 D)"""
    projection: tuple[Tensor, Tensor]
    """Weight (3 D, D) and bias (3 D,) of query, key and value of the units, as one product."""
    units: Tensor
    """(B, C, 2 D), filled up to the cache's `num_nodes`."""

    def append(self, past: int, new_BRE: Tensor) -> Tensor:
        """Write new nodes behind `past` ones; all of them, (B, S, 2 D)."""
        end = past + new_BRE.size(1)
        if end > self.units.size(1):
            self.units = _widened(self.units, past, end)
        self.units[:, past:end] = new_BRE
        return self.units[:, :end]


@dataclass
class TreeKVCache:
    """All layers of a decoder, for the utterances that are still searched."""

    layers: list[LayerCache]
    memory_bias: Tensor
    """(B, 1, T) what is added to the attention scores of frames: 0, or -inf where there is none."""
    num_nodes: int = 0

    def keep_utterances(self, rows: Tensor) -> None:
        """Go on with the utterances `rows` (B',) alone, in that order."""
        self.memory_bias = self.memory_bias[rows]
        for layer in self.layers:
            layer.memory = layer.memory[rows]
            layer.units[: len(rows), : self.num_nodes] = layer.units[rows, : self.num_nodes]  # copied before written
            layer.units = layer.units[: len(rows)]

    def keep_nodes(self, nodes: Tensor) -> None:
        """Go on with the nodes (B, S') of each utterance alone, in that order: S' nodes are left."""
        batch, room = nodes.shape
        for layer in self.layers:
            capacity, width = layer.units.shape[1:]
            rows_P = (nodes + capacity * torch.arange(batch, device=nodes.device)[:, None]).flatten()
            kept_PE = layer.units.flatten(0, 1).index_select(0, rows_P)
            layer.units[:, :room] = kept_PE.view(batch, room, width)  # where they were: fresh memory costs more
        self.num_nodes = room


def as_bias(visible: Tensor, like: Tensor) -> Tensor:
    """A mask as attention takes it without converting it, layer by layer: 0 where it is True, else -inf."""
    return torch.zeros_like(visible, dtype=like.dtype).masked_fill_(~visible, -math.inf)


def _widened(x_BCE: Tensor, filled: int, needed: int) -> Tensor:
    """The filled part in a buffer of at least twice the room: so that all copies together are one of the last size."""
    batch, capacity, width = x_BCE.shape
    wider = x_BCE.new_empty(batch, max(_FIRST_CAPACITY, 2 * capacity, needed), width)
    wider[:, :filled] = x_BCE[:, :filled]
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
