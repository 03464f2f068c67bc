# SPDX-License-Identifier: Apache-2.0
"""The hypotheses of an utterance as one tree, so that a decoder computes once what many of them begin with.

Dimension key: B trees computed together, R nodes of the largest, M nodes of all, E edges of all, T frames, D width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from wenet_hs.heads.base import OutputHead
from wenet_hs.nn.layers import length_mask
from wenet_hs.nn.transformer import TransformerDecoder
from wenet_hs.nn.tree_kv_cache import NewNodes
from wenet_hs.text.units import SpecialIds

MAX_NODES = 512
"""Of a tree, where it is of more than one hypothesis: the attention of nodes to nodes is quadratic in it."""
MAX_PLACES = 8192
"""Of the trees computed together, B · R: what their hidden vectors take."""


@dataclass
class PrefixTree:
    """Some hypotheses of one utterance. Node 0 is <sos>; an edge is a unit, or the end, behind a node."""

    row: int
    """Which utterance."""
    sos: int
    eos: int
    units: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    edges: dict[tuple[int, int], int] = field(default_factory=dict)
    """(node, unit) → number of the edge."""
    paths: list[tuple[int, list[int]]] = field(default_factory=list)
    """Of each hypothesis its number among all, and its edges."""
    _children: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, number: int, ids: Sequence[int]) -> None:
        """Let hypothesis `number` grow from the root."""
        node, path = self._node((-1, self.sos), 0), []
        for unit in ids:
            path.append(self.edges.setdefault((node, unit), len(self.edges)))
            node = self._node((node, unit), self.depths[node] + 1)
        path.append(self.edges.setdefault((node, self.eos), len(self.edges)))
        self.paths.append((number, path))

    def _node(self, way: tuple[int, int], depth: int) -> int:
        found = self._children.setdefault(way, len(self.units))
        if found == len(self.units):
            self.parents.append(way[0])
            self.units.append(way[1])
            self.depths.append(depth)
        return found


@torch.no_grad()
def score_sequences(
    decoder: TransformerDecoder,
    head: OutputHead,
    memory: tuple[Tensor, Tensor],
    sequences: Sequence[tuple[int, Sequence[int]]],
    special: SpecialIds,
) -> list[float]:
    """Log-probability of each sequence and its end.

    Args:
        memory: (B, T, D) encoder output and its lengths (B,).
        sequences: of each its utterance and its units; those of an utterance stand together.
    """
    scores = [0.0] * len(sequences)
    for trees in _together(_grow(sequences, special)):
        costs = _edge_costs(decoder, head, memory, trees)
        for tree, costs_E in zip(trees, costs, strict=True):
            for number, path in tree.paths:
                scores[number] = -float(costs_E[path].sum())
    return scores


def _grow(sequences: Sequence[tuple[int, Sequence[int]]], special: SpecialIds) -> list[PrefixTree]:
    trees: list[PrefixTree] = []
    for number, (row, ids) in enumerate(sequences):
        if not trees or trees[-1].row != row or len(trees[-1].units) + len(ids) >= MAX_NODES:
            trees.append(PrefixTree(row, special.sos, special.eos))
        trees[-1].add(number, ids)
    return trees


def _together(trees: list[PrefixTree]) -> Iterator[list[PrefixTree]]:
    """Trees of similar size, as many as fit."""
    batch: list[PrefixTree] = []
    for tree in sorted(trees, key=lambda tree: len(tree.units), reverse=True):
        if batch and (len(batch) + 1) * len(batch[0].units) > MAX_PLACES:
            yield batch
            batch = []
        batch.append(tree)
    if batch:
        yield batch


def _edge_costs(
    decoder: TransformerDecoder, head: OutputHead, memory: tuple[Tensor, Tensor], trees: list[PrefixTree]
) -> list[np.ndarray]:
    """Of each tree the cost of its edges in nats, float64."""
    device, room = memory[0].device, len(trees[0].units)
    rows_B = torch.tensor([tree.row for tree in trees], device=device)
    memory_BTD, lengths_B = memory[0][rows_B], memory[1][rows_B]
    cache = decoder.init_cache(memory_BTD, length_mask(lengths_B, memory_BTD.size(1)))
    hidden_MD = decoder.decode_step(cache, _new_nodes(trees, room, device))
    begins = np.cumsum([0, *(len(tree.units) for tree in trees)])
    sources = [begin + node for begin, tree in zip(begins, trees, strict=False) for node, _ in tree.edges]
    targets = [unit for tree in trees for _, unit in tree.edges]
    costs_E = head.nll(hidden_MD[torch.tensor(sources, device=device)], torch.tensor(targets, device=device))
    ends = np.cumsum([len(tree.edges) for tree in trees])
    return np.split(costs_E.double().cpu().numpy(), ends[:-1])


def _new_nodes(trees: list[PrefixTree], room: int, device: torch.device) -> NewNodes:
    visible_BRR = np.zeros((len(trees), room, room), np.bool_)
    for visible_RR, tree in zip(visible_BRR, trees, strict=True):
        for node, parent in enumerate(tree.parents):
            if parent >= 0:
                visible_RR[node] = visible_RR[parent]
            visible_RR[node, node] = True
    places = [index * room + node for index, tree in enumerate(trees) for node in range(len(tree.units))]
    return NewNodes(
        units=torch.tensor([unit for tree in trees for unit in tree.units], device=device),
        depths=torch.tensor([depth for tree in trees for depth in tree.depths], device=device),
        visible=torch.from_numpy(visible_BRR).to(device),
        places=None if len(places) == len(trees) * room else torch.tensor(places, device=device),
    )
