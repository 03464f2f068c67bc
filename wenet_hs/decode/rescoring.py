# SPDX-License-Identifier: Apache-2.0
"""Attention rescoring: the hypotheses of the CTC prefix search, ranked again with the attention
decoder.

The hypotheses of an utterance form a prefix tree, so the decoder computes each shared beginning
once.

Dimension key: B trees computed together, R nodes of the largest tree, M nodes of all, E edges of
all, T frames, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from wenet_hs.decode.hypothesis import DIVERGED, DecodeOptions, Hypothesis
from wenet_hs.heads.base import OutputHead
from wenet_hs.heads.gpu import copy_to
from wenet_hs.heads.masks import length_mask
from wenet_hs.lm.language_model import LanguageModel
from wenet_hs.nn.transformer import BiTransformerDecoder, NewNodes, TransformerDecoder
from wenet_hs.text.units import SpecialIds
from wenet_hs.tree.errors import CheckpointError

if TYPE_CHECKING:
    from wenet_hs.model.asr_model import AsrModel

MAX_NODES = 512
"""Maximum size of a tree of more than one hypothesis: attention among its nodes takes quadratic
memory.
"""
MAX_TOTAL_NODES = 8192
"""Maximum of B · R, which bounds the memory of the hidden vectors."""

_Sequences = Sequence[tuple[int, Sequence[int]]]
"""Per sequence the row of its utterance and its units; the sequences of an utterance are next to
each other.
"""


def rescore(
    model: AsrModel,
    memory: Tensor,
    lengths: Tensor,
    candidates: Sequence[Sequence[Hypothesis]],
    options: DecodeOptions,
    lm: LanguageModel | None = None,
) -> list[list[Hypothesis]]:
    """The same hypotheses with the score (1 - r) · left + r · right + ctc_weight · CTC, best first
    (WeNet's formula).

    left and right are the log-probabilities of units and end by the two decoders, without length
    normalisation; r is `reverse_weight`. Language model and length bonus are added.

    Args:
        memory: (B, T, D) encoder output; lengths: (B,) in T, at least 1.
        candidates: per utterance the hypotheses of the prefix search, with scores of CTC only.
    """
    sequences = [
        (row, hypothesis.ids) for row, nbest in enumerate(candidates) for hypothesis in nbest
    ]
    decoder, encoded, weight = model.decoder, (memory, lengths), options.reverse_weight
    scores = score_sequences(*model.left, encoded, sequences, model.special)
    if isinstance(decoder, BiTransformerDecoder) and model.right_head is not None and weight:
        backwards = [(row, ids[::-1]) for row, ids in sequences]
        right = score_sequences(
            decoder.right_decoder, model.right_head, encoded, backwards, model.special
        )
        scores = [
            (1 - weight) * one + weight * other for one, other in zip(scores, right, strict=True)
        ]
    fusion = _fusion_scores(
        lm, options, [ids for _, ids in sequences], model.special.eos, memory.device
    )
    terms = iter(zip(scores, fusion, strict=True))
    results = []
    for nbest in candidates:
        rescored = []
        for hypothesis, (score, added) in zip(nbest, terms, strict=False):
            rescored.append(
                Hypothesis(hypothesis.ids, score + options.ctc_weight * hypothesis.score + added)
            )
        results.append(sorted(rescored, key=lambda hypothesis: hypothesis.score, reverse=True))
    return results


def _fusion_scores(
    lm: LanguageModel | None,
    options: DecodeOptions,
    sequences: Sequence[Sequence[int]],
    eos: int,
    device: torch.device,
) -> list[float]:
    """Language model, including the end, and length bonus of each sequence."""
    bonuses = [options.length_bonus * len(ids) for ids in sequences]
    if lm is None or not options.lm_weight:
        return bonuses
    states, length = lm.start(len(sequences), device), 1 + max(map(len, sequences), default=0)
    units_ML = copy_to(
        device, torch.tensor([[*ids, *[eos] * (length - len(ids))] for ids in sequences])
    )
    is_text_ML = copy_to(
        device, torch.arange(length) <= torch.tensor([[len(ids)] for ids in sequences])
    )
    log_probs_M = torch.zeros(len(sequences), dtype=torch.float64, device=device)
    for units_M, is_text_M in zip(units_ML.T, is_text_ML.T, strict=True):
        log_probs_M += torch.where(
            is_text_M, lm.score(states, units_M[:, None])[:, 0].double(), 0.0
        )
        states = lm.advance(states, units_M)
    return [
        bonus + options.lm_weight * one
        for bonus, one in zip(bonuses, log_probs_M.tolist(), strict=True)
    ]


# ---- prefix trees


@dataclass
class PrefixTree:
    """Some hypotheses of one utterance.

    Node 0 is <sos>; an edge is a node and the unit, or the end, after it.
    """

    row: int
    """Row of the utterance."""
    nodes: dict[tuple[int, int], int]
    """(parent, unit) → number of the node, in the order of the numbers."""
    edges: dict[tuple[int, int], int] = field(default_factory=dict)
    """(node, unit) → number of the edge, in the order of the numbers."""
    paths: list[tuple[int, list[int]]] = field(default_factory=list)
    """Per hypothesis its number among all hypotheses, and its edges."""

    def add(self, number: int, ids: Sequence[int], eos: int) -> None:
        node, path = 0, []
        for unit in ids:
            path.append(self.edges.setdefault((node, unit), len(self.edges)))
            node = self.nodes.setdefault((node, unit), len(self.nodes))
        path.append(self.edges.setdefault((node, eos), len(self.edges)))
        self.paths.append((number, path))


@torch.no_grad()
def score_sequences(
    decoder: TransformerDecoder,
    head: OutputHead,
    memory: tuple[Tensor, Tensor],
    sequences: _Sequences,
    special: SpecialIds,
) -> list[float]:
    """Log-probability of each sequence and its end; memory: (B, T, D) encoder output and its
    lengths (B,).

    Raises CheckpointError for a decoder whose output is NaN.
    """
    trees, scores = list[PrefixTree](), [0.0] * len(sequences)
    for number, (row, ids) in enumerate(sequences):
        if not trees or trees[-1].row != row or len(trees[-1].nodes) + len(ids) >= MAX_NODES:
            trees.append(PrefixTree(row, {(-1, special.sos): 0}))
        trees[-1].add(number, ids, special.eos)
    for batch in _batch_trees(trees):
        for tree, costs_E in zip(batch, _edge_costs(decoder, head, memory, batch), strict=True):
            if np.isnan(costs_E).any():
                raise CheckpointError("decoder output", "NaN", DIVERGED)
            for number, path in tree.paths:
                scores[number] = -float(costs_E[path].sum())
    return scores


def _batch_trees(trees: list[PrefixTree]) -> Iterator[list[PrefixTree]]:
    """Batches of trees of similar size, the largest first, each within MAX_TOTAL_NODES."""
    batch: list[PrefixTree] = []
    for tree in sorted(trees, key=lambda tree: len(tree.nodes), reverse=True):
        if batch and (len(batch) + 1) * len(batch[0].nodes) > MAX_TOTAL_NODES:
            yield batch
            batch = []
        batch.append(tree)
    if batch:
        yield batch


def _edge_costs(
    decoder: TransformerDecoder,
    head: OutputHead,
    memory: tuple[Tensor, Tensor],
    trees: list[PrefixTree],
) -> list[np.ndarray]:
    """Per tree the costs of its edges in nats, float64."""
    device, size = memory[0].device, len(trees[0].nodes)
    rows_B = copy_to(device, torch.tensor([tree.row for tree in trees]))
    memory_BTD, lengths_B = memory[0][rows_B], memory[1][rows_B]
    cache = decoder.init_cache(memory_BTD, length_mask(lengths_B, memory_BTD.size(1)))
    hidden_MD = decoder.decode_step(cache, _new_nodes(trees, size, device))
    begins = np.cumsum([0, *(len(tree.nodes) for tree in trees)])
    sources = [
        begin + node for begin, tree in zip(begins, trees, strict=False) for node, _ in tree.edges
    ]
    targets = [unit for tree in trees for _, unit in tree.edges]
    sources_E, targets_E = (
        copy_to(device, torch.tensor(numbers)) for numbers in (sources, targets)
    )
    costs_E = head.nll(hidden_MD[sources_E], targets_E)
    ends = np.cumsum([len(tree.edges) for tree in trees])
    return np.split(costs_E.double().cpu().numpy(), ends[:-1])


def _new_nodes(trees: list[PrefixTree], size: int, device: torch.device) -> NewNodes:
    """All nodes of the trees; each sees itself and its ancestors."""
    visible_BRR = np.zeros((len(trees), size, size), np.bool_)
    for visible_RR, tree in zip(visible_BRR, trees, strict=True):
        for (parent, _), node in tree.nodes.items():
            if parent >= 0:
                visible_RR[node] = visible_RR[parent]
            visible_RR[node, node] = True
    slots = np.flatnonzero(visible_BRR.diagonal(axis1=1, axis2=2))
    return NewNodes(
        units=copy_to(device, torch.tensor([unit for tree in trees for _, unit in tree.nodes])),
        depths=copy_to(device, torch.from_numpy(visible_BRR.sum(axis=2).ravel()[slots] - 1)),
        visible=copy_to(device, torch.from_numpy(visible_BRR)),
        slots=None if len(slots) == len(trees) * size else copy_to(device, torch.from_numpy(slots)),
    )
