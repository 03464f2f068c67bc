# SPDX-License-Identifier: Apache-2.0
"""Beam search with the attention decoder, all utterances of a batch at once.

WeNet's search: no length normalisation while searching, at most as many steps as the utterance has encoder frames, and
a hypothesis cut off there competes as if it had ended. WeNet takes the frames of the *batch's longest* utterance as the
limit, so that its results change with the batch; here it is each utterance's own, which is WeNet's at batch size 1.

Dimension key: B utterances still searched, N beam, M = B · N, K candidates for each hypothesis, C = N · K, L units so
far (<sos> first), T frames, D width.
"""

import math

import torch
from torch import Tensor

from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.model import AsrModel
from wenet_hs.nn.masks import length_mask
from wenet_hs.nn.transformer import DecoderCache
from wenet_hs.text.units import SpecialIds


def attention_beam_search(
    model: AsrModel, memory: Tensor, lengths: Tensor, options: DecodeOptions
) -> list[list[Hypothesis]]:
    """The best hypotheses of the decoder for each utterance. Utterances that are finished leave the batch.

    Args:
        memory: (B, T, D) encoder output; lengths: (B,) in T, at least 1.
    Returns: for each utterance up to `beam_size` different hypotheses, best first; the score is the log-probability of
        units and end, divided by (number of units) ** length_penalty. With a penalty an empty hypothesis comes last,
        undivided: it has no length to divide by.
    """
    search = _Search(model, memory, lengths, options.beam_size)
    finished: list[list[Hypothesis]] = [[] for _ in range(len(memory))]
    while len(search.utterances):
        for utterance, units_NL, scores_N in search.step():
            finished[utterance] = _rank(units_NL, scores_N, model.special, options.length_penalty)
    return finished


class _Search:
    """The utterances still searched, each with its beam; rows b·N … b·N + N - 1 are the beam of utterance b.

    A row of score -inf is a free place: at the start there is one hypothesis, <sos>, and N - 1 free places.
    """

    def __init__(self, model: AsrModel, memory: Tensor, lengths: Tensor, beam_size: int) -> None:
        self._model = model
        self._memory, self._mask_BT, self._limits_B = memory, length_mask(lengths, memory.size(1)), lengths
        self._units_BNL = lengths.new_full((len(memory), beam_size, 1), model.special.sos)
        self._scores_BN = memory.new_full((len(memory), beam_size), -math.inf, dtype=torch.float32)
        self._scores_BN[:, 0] = 0.0
        self._ended_BN = torch.zeros_like(self._scores_BN, dtype=torch.bool)
        self._cache: DecoderCache | None = None
        self.utterances = torch.arange(len(memory), device=memory.device)
        """(B,) which of the given utterances are still searched."""

    def step(self) -> list[tuple[int, Tensor, Tensor]]:
        """Go on by one unit. Returns (utterance, units (N, L), scores (N,)) of those that are finished, on the CPU."""
        values_BNK, ids_BNK = self._candidates()
        parents_BN = self._prune(values_BNK, ids_BNK)
        done_B = (self._ended_BN | self._scores_BN.isneginf()).all(dim=1)
        done_B |= self._units_BNL.size(2) > self._limits_B
        finished: list[tuple[int, Tensor, Tensor]] = []
        if bool(done_B.any()):
            units, scores = self._units_BNL[done_B].cpu(), self._scores_BN[done_B].cpu()
            finished = list(zip(self.utterances[done_B].tolist(), units, scores, strict=True))
            parents_BN = self._leave(~done_B, parents_BN)
        moved = parents_BN.size(1) > 1 or finished  # a beam of one goes on from itself
        if self._cache is not None and moved and len(self.utterances):
            self._cache = self._cache.select(parents_BN.flatten())
        return finished

    def _candidates(self) -> tuple[Tensor, Tensor]:
        """The K best next units of each hypothesis, two (B, N, K); one that has ended has its end again, for free."""
        hidden_MD, self._cache = self._model.decoder.step(
            self._memory, self._mask_BT, self._units_BNL.flatten(0, 1), self._cache
        )
        head, beam_size = self._model.head, self._scores_BN.size(1)
        values, ids = head.topk(hidden_MD, min(beam_size, head.num_units))
        values_BNK, ids_BNK = (x.view(*self._scores_BN.shape, -1) for x in (values.contiguous(), ids.contiguous()))
        again_K = torch.full_like(values_BNK[0, 0], -math.inf)
        again_K[0] = 0.0
        values_BNK = torch.where(self._ended_BN[..., None], again_K, values_BNK)
        return values_BNK, ids_BNK.masked_fill(self._ended_BN[..., None], self._model.special.eos)

    def _prune(self, values_BNK: Tensor, ids_BNK: Tensor) -> Tensor:
        """Keep the N best of the N · K ways to go on. Returns the flat row that each of them goes on from, (B, N)."""
        num_utterances, beam_size, num_candidates = values_BNK.shape
        totals_BC = (self._scores_BN[..., None] + values_BNK).flatten(1)
        # A stable sort, not topk: of two equal scores the earlier hypothesis wins, on every machine.
        order_BN = totals_BC.argsort(dim=1, descending=True, stable=True)[:, :beam_size]
        self._scores_BN = totals_BC.gather(1, order_BN)
        beams_BN = order_BN // num_candidates
        units_BN = ids_BNK.flatten(1).gather(1, order_BN)
        self._ended_BN = units_BN == self._model.special.eos
        offsets_B1 = torch.arange(num_utterances, device=order_BN.device)[:, None] * beam_size
        parents_BN = offsets_B1 + beams_BN
        past_BNL = self._units_BNL.flatten(0, 1)[parents_BN]
        self._units_BNL = torch.cat([past_BNL, units_BN[..., None]], dim=2)
        return parents_BN

    def _leave(self, kept_B: Tensor, parents_BN: Tensor) -> Tensor:
        """Keep these utterances alone; the cache follows by the rows that are returned."""
        self.utterances, self._limits_B = self.utterances[kept_B], self._limits_B[kept_B]
        self._memory, self._mask_BT = self._memory[kept_B], self._mask_BT[kept_B]
        self._units_BNL = self._units_BNL[kept_B]
        self._scores_BN, self._ended_BN = self._scores_BN[kept_B], self._ended_BN[kept_B]
        return parents_BN[kept_B]


def _rank(units_NL: Tensor, scores_N: Tensor, special: SpecialIds, length_penalty: float) -> list[Hypothesis]:
    """The beam of one utterance as different hypotheses: (N, L) with <sos> first, (N,)."""
    ranked = []
    for units_L, score in zip(units_NL[:, 1:].tolist(), scores_N.tolist(), strict=True):
        if score == -math.inf:
            continue
        ids = tuple(units_L[: units_L.index(special.eos)] if special.eos in units_L else units_L)
        ranked.append(Hypothesis(ids, score / len(ids) ** length_penalty if ids else score))
    return sorted(ranked, key=lambda found: (bool(found.ids) or not length_penalty, found.score), reverse=True)
