# SPDX-License-Identifier: Apache-2.0
"""Attention rescoring: the hypotheses of the CTC prefix search, ranked again with the attention
decoder.

`rescore` adds up the scores; `score_sequences` computes those of one decoder. The hypotheses of an
utterance form a prefix tree, so the decoder computes each shared beginning once.

Dimension key: B trees computed together, R nodes of the largest tree, M nodes of all, E edges of
one tree or of all, T frames, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
NO_PARENT = -1
"""The parent of a root."""

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
    """The same hypotheses with the scores of WeNet's formula, best first.

    It is (1 - r) · left + r · right + ctc_weight · CTC. left and right are the log-probabilities of
    units and end by the two decoders, without length normalisation; r is `reverse_weight`. Language
    model and length bonus are added.

    Args:
        memory: (B, T, D) encoder output; lengths: (B,) in T, at least 1.
        candidates: per utterance the hypotheses of the prefix search, with scores of CTC only.
    """
    sequences: list[tuple[int, tuple[int, ...]]] = []
    for row, nbest in enumerate(candidates):
        sequences += [(row, hypothesis.ids) for hypothesis in nbest]
    encoded = (memory, lengths)
    weight = options.reverse_weight
    decoder = model.decoder
    decoder_scores = score_sequences(*model.left, encoded, sequences, model.special)
    # Both are there if `weight` is above 0: `check_options` refuses it for other models.
    if isinstance(decoder, BiTransformerDecoder) and model.right_head is not None and weight:
        reversed_sequences = [(row, ids[::-1]) for row, ids in sequences]
        right_scores = score_sequences(
            decoder.right_decoder, model.right_head, encoded, reversed_sequences, model.special
        )
        decoder_scores = [
            (1 - weight) * left + weight * right
            for left, right in zip(decoder_scores, right_scores, strict=True)
        ]
    texts = [ids for _, ids in sequences]
    fusion_scores = _fusion_scores(lm, options, texts, model.special.eos, memory.device)
    # Of each hypothesis, in the order of the loops.
    scores = zip(decoder_scores, fusion_scores, strict=True)
    results = []
    for nbest in candidates:
        rescored = []
        for hypothesis in nbest:
            decoder_score, fusion_score = next(scores)
            score = decoder_score + options.ctc_weight * hypothesis.score + fusion_score
            rescored.append(Hypothesis(hypothesis.ids, score))
        rescored.sort(key=lambda hypothesis: hypothesis.score, reverse=True)
        results.append(rescored)
    return results


def _fusion_scores(
    lm: LanguageModel | None,
    options: DecodeOptions,
    texts: Sequence[Sequence[int]],
    eos: int,
    device: torch.device,
) -> list[float]:
    """Per text its length bonus, plus the weighted score of the language model, if there is one.

    This score is the log-probability of the units and the end. The model computes all texts
    together, unit by unit; shorter ones are padded.
    """
    bonuses = [options.length_bonus * len(ids) for ids in texts]
    if lm is None or not options.lm_weight:
        return bonuses
    states = lm.start(len(texts), device)
    num_steps = 1 + max(map(len, texts), default=0)  # the longest text and its end
    padded = []
    for ids in texts:
        end_and_padding = [eos] * (num_steps - len(ids))
        padded.append([*ids, *end_and_padding])
    units_ML = copy_to(device, torch.tensor(padded))
    lengths_M1 = torch.tensor([[len(ids)] for ids in texts])
    is_text_ML = copy_to(device, torch.arange(num_steps) <= lengths_M1)  # the end included
    log_probs_M = torch.zeros(len(texts), dtype=torch.float64, device=device)
    for units_M, is_text_M in zip(units_ML.T, is_text_ML.T, strict=True):
        unit_log_probs_M = lm.score(states, units_M[:, None])[:, 0].double()
        log_probs_M += torch.where(is_text_M, unit_log_probs_M, 0.0)
        states = lm.advance(states, units_M)
    return [
        bonus + options.lm_weight * log_prob
        for bonus, log_prob in zip(bonuses, log_probs_M.tolist(), strict=True)
    ]


# ---- prefix trees


@torch.no_grad()
def score_sequences(
    decoder: TransformerDecoder,
    head: OutputHead,
    memory: tuple[Tensor, Tensor],
    sequences: _Sequences,
    special: SpecialIds,
) -> list[float]:
    """Log-probability of each sequence and its end.

    Neighbouring sequences of one utterance share a tree of up to MAX_NODES nodes. Trees of similar
    size are computed together.

    Args:
        memory: (B, T, D) encoder output, and its lengths (B,).
    Raises: CheckpointError for a decoder whose output is NaN.
    """
    trees: list[PrefixTree] = []
    for number, (row, ids) in enumerate(sequences):
        if not trees or not trees[-1].has_room_for(row, ids):
            trees.append(PrefixTree(row, special.sos))
        trees[-1].add(number, ids, special.eos)
    scores = [0.0] * len(sequences)
    for batch in _batch_trees(trees):
        for tree, costs_E in zip(batch, _edge_costs(decoder, head, memory, batch), strict=True):
            if np.isnan(costs_E).any():
                raise CheckpointError("decoder output", "NaN", DIVERGED)
            for path in tree.paths:
                scores[path.number] = -float(costs_E[path.edges].sum())
    return scores


@dataclass(frozen=True)
class _Path:
    """A hypothesis in a tree."""

    number: int
    """Of the hypothesis among all sequences."""
    edges: list[int]
    """The numbers of its edges, from the root on; the last one is that of the end."""


class PrefixTree:
    """Some hypotheses of one utterance, whose common beginnings are the same nodes.

    Node 0, the root, is <sos>; every other node is one unit of a hypothesis. An edge is a node and
    the unit, or the end, after it.
    """

    def __init__(self, row: int, sos: int) -> None:
        """A tree of the root only. `row`: of the utterance."""
        self.row = row
        self.nodes: dict[tuple[int, int], int] = {(NO_PARENT, sos): 0}
        """(parent, unit) → number of the node, in the order of the numbers."""
        self.edges: dict[tuple[int, int], int] = {}
        """(node, unit) → number of the edge, in the order of the numbers."""
        self.paths: list[_Path] = []

    def has_room_for(self, row: int, ids: Sequence[int]) -> bool:
        """Whether a hypothesis of the utterance `row` fits, even if it shares no node."""
        return row == self.row and len(self.nodes) + len(ids) < MAX_NODES

    def add(self, number: int, ids: Sequence[int], eos: int) -> None:
        """Add a hypothesis: the nodes and edges that the tree lacks, and its path.

        `number`: of the hypothesis among all sequences.
        """
        node = 0
        edges = []
        # `setdefault` returns the number that is known, or gives the next one.
        for unit in ids:
            edges.append(self.edges.setdefault((node, unit), len(self.edges)))
            node = self.nodes.setdefault((node, unit), len(self.nodes))
        edges.append(self.edges.setdefault((node, eos), len(self.edges)))
        self.paths.append(_Path(number, edges))


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
    """Per tree the costs (E,) of its edges in nats, float64. The first tree is the largest."""
    memory_of_utterances, lengths_of_utterances = memory
    device = memory_of_utterances.device
    rows_B = copy_to(device, torch.tensor([tree.row for tree in trees]))
    memory_BTD = memory_of_utterances[rows_B]
    lengths_B = lengths_of_utterances[rows_B]
    cache = decoder.init_cache(memory_BTD, length_mask(lengths_B, memory_BTD.size(1)))
    hidden_MD = decoder.decode_step(cache, _new_nodes(trees, len(trees[0].nodes), device))
    sources = []  # per edge the row of its node in hidden_MD
    targets = []  # per edge its unit
    first_node = 0
    for tree in trees:
        for node, unit in tree.edges:
            sources.append(first_node + node)
            targets.append(unit)
        first_node += len(tree.nodes)
    sources_E = copy_to(device, torch.tensor(sources))
    targets_E = copy_to(device, torch.tensor(targets))
    costs_E = head.nll(hidden_MD[sources_E], targets_E)
    ends = np.cumsum([len(tree.edges) for tree in trees])
    return np.split(costs_E.double().cpu().numpy(), ends[:-1])


def _new_nodes(trees: list[PrefixTree], size: int, device: torch.device) -> NewNodes:
    """All nodes of the trees, in `size` slots per tree; each sees itself and its ancestors."""
    visible_BRR = np.zeros((len(trees), size, size), np.bool_)
    for visible_RR, tree in zip(visible_BRR, trees, strict=True):
        for (parent, _), node in tree.nodes.items():  # a parent comes before its children
            if parent != NO_PARENT:
                visible_RR[node] = visible_RR[parent]
            visible_RR[node, node] = True
    units = [unit for tree in trees for _, unit in tree.nodes]
    # A slot without a node does not even see itself.
    slots_M = np.flatnonzero(visible_BRR.diagonal(axis1=1, axis2=2))
    depths_M = visible_BRR.sum(axis=2).ravel()[slots_M] - 1  # without the node itself
    has_free_slots = len(slots_M) < len(trees) * size
    return NewNodes(
        units=copy_to(device, torch.tensor(units)),
        depths=copy_to(device, torch.from_numpy(depths_M)),
        visible=copy_to(device, torch.from_numpy(visible_BRR)),
        slots=copy_to(device, torch.from_numpy(slots_M)) if has_free_slots else None,
    )
