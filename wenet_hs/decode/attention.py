# SPDX-License-Identifier: Apache-2.0
"""Beam search with the attention decoder by WeNet's rules, for all utterances of a batch at once.

There is no length normalisation during the search. The number of units is at most the number of encoder frames, and a
hypothesis that is cut at this limit competes as if it had ended. WeNet uses the limit of the longest utterance of the
batch, so its results change with the batch. Here each utterance has its own limit, which is WeNet's for batch size 1.

Dimension key: B utterances still searched, N beam, K candidates per hypothesis, C = N · K, L units so far (<sos>
first), M hypotheses that continue, T frames, D width.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wenet_hs.decode.beam import Beam
from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.decode.lm import LanguageModel
from wenet_hs.text.units import SpecialIds

if TYPE_CHECKING:
    from wenet_hs.model import AsrModel

_FUSION_CANDIDATES = 2
"""With shallow fusion, this many times `beam_size` candidates are taken from the head before scores are added."""


def attention_beam_search(
    model: AsrModel, memory: Tensor, lengths: Tensor, options: DecodeOptions, lm: LanguageModel | None = None
) -> list[list[Hypothesis]]:
    """The best hypotheses of the decoder for each utterance.

    Args:
        memory: (B, T, D) encoder output; lengths: (B,) in T, at least 1.
        lm: language model, weighted by `lm_weight`.
    Returns: per utterance up to `nbest` (default: `beam_size`) different hypotheses, best first. The score is the
        log-probability of units and end, divided by (number of units) ** length_penalty. With a length penalty an empty
        hypothesis is last, and its score is not divided.
    """
    search = _AttentionSearch(model, memory, lengths, options, lm)
    results: list[list[Hypothesis]] = [[] for _ in range(len(memory))]
    while len(search.beam.utterances):
        for utterance, units_NL, scores_N in search.step():
            nbest = _rank(units_NL, scores_N, model.special, options.length_penalty)
            results[utterance] = nbest[: options.nbest]
    return results


class _AttentionSearch:
    """Scores of the hypotheses, and which of them have ended. An empty place in the beam has score -inf."""

    def __init__(
        self, model: AsrModel, memory: Tensor, lengths: Tensor, options: DecodeOptions, lm: LanguageModel | None
    ) -> None:
        self._head, self._eos, self._options = model.head, model.special.eos, options
        self.beam = Beam(model, memory, lengths, options, lm)
        self._scores_BN = memory.new_full(self.beam.live.shape, -math.inf, dtype=torch.float32)
        self._scores_BN[:, 0] = 0.0
        self._ended_BN = torch.zeros_like(self.beam.live)

    def step(self) -> list[tuple[int, Tensor, Tensor]]:
        """Extend all hypotheses by one unit.

        Returns: (utterance, units (N, L), scores (N,)) of each utterance that is finished, on the CPU.
        """
        self._prune(*self._candidates())
        beam = self.beam
        done_B = beam.at_limit()
        if beam.should_sync():
            done_B = done_B | self._is_complete().cpu()
        if not bool(done_B.any()):
            return []
        rows = done_B.nonzero().flatten().to(self._scores_BN.device)
        units, scores = beam.units[rows].cpu(), self._scores_BN[rows].cpu()
        finished = list(zip(beam.utterances[rows].tolist(), units, scores, strict=True))
        kept = beam.keep(~done_B)
        self._scores_BN, self._ended_BN = self._scores_BN[kept], self._ended_BN[kept]
        return finished

    def _is_complete(self) -> Tensor:
        """(B,) whether no continuing hypothesis can get among the `nbest` that are asked for."""
        done_BN = self._ended_BN | self._scores_BN.isneginf()
        nbest = self._options.nbest
        # Scores never rise, and of two equal scores the earlier one wins: so the first hypotheses that have ended stay
        # first. A length bonus makes scores rise, and a length penalty changes the order at the end: then all must end.
        if nbest is None or self._options.length_penalty or self._options.length_bonus:
            return done_BN.all(dim=1)
        return done_BN[:, :nbest].all(dim=1)

    def _candidates(self) -> tuple[Tensor, Tensor]:
        """Scores and ids (B, N, K) of the best next units per hypothesis; <eos> with score 0 if it has ended."""
        hidden_MD = self.beam.hidden()
        num_candidates = self._scores_BN.size(1) * (_FUSION_CANDIDATES if self.beam.has_fusion else 1)
        # One more if <eos> may be forbidden for any utterance: the batch must not change the candidates.
        num_candidates += self._options.min_len_ratio > 0
        values_MK, ids_MK = self._head.topk(hidden_MD, min(num_candidates, self._head.num_units))
        values_BNK, ids_BNK = self.beam.scatter(values_MK, -math.inf), self.beam.scatter(ids_MK, self._eos)
        values_BNK = self.beam.add_fusion(values_BNK, ids_BNK)
        too_short_B = self.beam.too_short()
        if too_short_B is not None:
            values_BNK = values_BNK.masked_fill(too_short_B[:, None, None] & (ids_BNK == self._eos), -math.inf)
        repeated_eos_K = torch.full_like(values_BNK[0, 0], -math.inf)
        repeated_eos_K[0] = 0.0
        values_BNK = torch.where(self._ended_BN[..., None], repeated_eos_K, values_BNK)
        return values_BNK, ids_BNK.masked_fill(self._ended_BN[..., None], self._eos)

    def _prune(self, values_BNK: Tensor, ids_BNK: Tensor) -> None:
        """Keep the N best of the N · K extended hypotheses."""
        totals_BC = (self._scores_BN[..., None] + values_BNK).flatten(1)
        # A stable sort, not topk: of two equal scores the earlier hypothesis wins, on every machine.
        order_BN = totals_BC.argsort(dim=1, descending=True, stable=True)[:, : values_BNK.size(1)]
        self._scores_BN = totals_BC.gather(1, order_BN)
        units_BN = ids_BNK.flatten(1).gather(1, order_BN)
        self._ended_BN = units_BN == self._eos
        live_BN = ~(self._ended_BN | self._scores_BN.isneginf())
        self.beam.advance(order_BN // values_BNK.size(2), units_BN, live_BN)


def _rank(units_NL: Tensor, scores_N: Tensor, special: SpecialIds, length_penalty: float) -> list[Hypothesis]:
    """The final hypotheses of an utterance, sorted; units (N, L) with <sos> first, scores (N,)."""
    ranked = []
    for units_L, score in zip(units_NL[:, 1:].tolist(), scores_N.tolist(), strict=True):
        if score == -math.inf:
            continue
        ids = tuple(units_L[: units_L.index(special.eos)] if special.eos in units_L else units_L)
        ranked.append(Hypothesis(ids, score / len(ids) ** length_penalty if ids else score))
    return sorted(ranked, key=lambda one: (bool(one.ids) or not length_penalty, one.score), reverse=True)
