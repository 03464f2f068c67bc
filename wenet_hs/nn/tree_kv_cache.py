# SPDX-License-Identifier: Apache-2.0
"""Keys and values that a decoder caches between steps: of the memory, once per utterance; of the units, once per node.

The hypotheses of an utterance form a tree, because they share prefixes. A node is a unit after the units above it; its
keys and values are the same for every hypothesis that contains it. So a beam is reordered by a mask that says which
nodes each hypothesis contains, and no key is copied.

Dimension key: B utterances, T frames, S nodes so far, R slots for new nodes per utterance, C capacity, M new nodes, D
width, E = 2 D.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_FIRST_CAPACITY = 64


@dataclass
class LayerCache:
    """The cache of one layer. Keys and values are stored side by side, 2 D wide."""

    memory: Tensor
    """(B, T, 2 D): keys and values of the encoder output."""
    projection: tuple[Tensor, Tensor]
    """Weight (3 D, D) and bias (3 D,) of the joined linear layer for query, key and value of the units."""
    units: Tensor
    """(B, C, 2 D), filled up to the `num_nodes` of the cache."""

    def append(self, past: int, new_BRE: Tensor) -> Tensor:
        """Writes new nodes after the first `past` ones; returns all of them, (B, S, 2 D)."""
        end = past + new_BRE.size(1)
        if end > self.units.size(1):
            self.units = _widened(self.units, past, end)
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
            layer.units[: len(rows), : self.num_nodes] = layer.units[rows, : self.num_nodes]  # copied before written
            layer.units = layer.units[: len(rows)]

    def keep_nodes(self, nodes: Tensor) -> None:
        """Keeps only the nodes (B, S') of each utterance, in that order."""
        batch, num_kept = nodes.shape
        for layer in self.layers:
            capacity, width = layer.units.shape[1:]
            rows_P = (nodes + capacity * torch.arange(batch, device=nodes.device)[:, None]).flatten()
            kept_PE = layer.units.flatten(0, 1).index_select(0, rows_P)
            layer.units[:, :num_kept] = kept_PE.view(batch, num_kept, width)  # in place: new memory costs more
        self.num_nodes = num_kept


def mask_to_bias(visible: Tensor, like: Tensor) -> Tensor:
    """The mask as a bias of the attention scores in the dtype of `like`: 0 where it is True, else -inf."""
    return torch.zeros_like(visible, dtype=like.dtype).masked_fill_(~visible, -math.inf)


def _widened(x_BCE: Tensor, filled: int, needed: int) -> Tensor:
    """Copies the filled part to a buffer of at least twice the capacity."""
    batch, capacity, width = x_BCE.shape
    wider = x_BCE.new_empty(batch, max(_FIRST_CAPACITY, 2 * capacity, needed), width)
    wider[:, :filled] = x_BCE[:, :filled]
    return wider


@dataclass(frozen=True)
class NewNodes:
    """The nodes that a step computes: M nodes in R slots for each of B utterances. Slots may be free."""

    units: Tensor
    """(M,) unit ids."""
    depths: Tensor
    """(M,) number of units above each node: 0 for <sos>."""
    visible: Tensor
    """(B, R, S + R) bool: the nodes of the hypothesis that ends in each slot, itself included; any in a free slot."""
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
