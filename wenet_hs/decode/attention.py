# SPDX-License-Identifier: Apache-2.0
"""Beam search with the attention decoder, all utterances of a batch at once.

WeNet's search: no length normalisation while searching, at most as many steps as the utterance has encoder frames, and
a hypothesis cut off there competes as if it had ended. WeNet takes the frames of the *batch's longest* utterance as the
limit, so that its results change with the batch; here it is each utterance's own, which is WeNet's at batch size 1.
With `finished_list` it is the search of `joint.py` without CTC.

Dimension key: B utterances still searched, N beam, K candidates for each hypothesis, C = N · K, L units so far
(<sos> first), M hypotheses that go on, T frames, D width, V units.
"""

import math

import torch
from torch import Tensor

from wenet_hs.decode.beam import Beam, place
from wenet_hs.decode.fusion import Fusion
from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.decode.joint import finished_list_search
from wenet_hs.decode.lengths import LengthLimits
from wenet_hs.decode.lm import LanguageModel
from wenet_hs.model import AsrModel
from wenet_hs.text.units import SpecialIds


def attention_beam_search(
    model: AsrModel,
    memory: Tensor,
    lengths: Tensor,
    options: DecodeOptions,
    lm: LanguageModel | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses of the decoder for each utterance. Utterances that are finished leave the batch.

    Args:
        memory: (B, T, D) encoder output; lengths: (B,) in T, at least 1.
        lm: a language model whose log-probabilities count `lm_weight` times.
    Returns: for each utterance up to `beam_size` different hypotheses, best first; the score is the log-probability of
        units and end, divided by (number of units) ** length_penalty. With a penalty an empty hypothesis comes last,
        undivided: it has no length to divide by. With `nbest` as many, found as soon as they are certain.
    """
    if options.finished_list:
        return finished_list_search(model, memory, lengths, options, ctc_weight=0.0, lm=lm)
    search = _Search(model, memory, lengths, options, lm)
    found: list[list[Hypothesis]] = [[] for _ in range(len(memory))]
    while len(search.beam.utterances):
        for utterance, units_NL, scores_N in search.step():
            nbest = _rank(units_NL, scores_N, model.special, options.length_penalty)
            found[utterance] = nbest[: options.nbest]
    return found


class _Search:
    """Scores and ends of the places of a beam. A place of score -inf is free."""

    def __init__(
        self, model: AsrModel, memory: Tensor, lengths: Tensor, options: DecodeOptions, lm: LanguageModel | None
    ) -> None:
        self._head, self._eos, self._options = model.head, model.special.eos, options
        self.beam = Beam(model, memory, lengths, options.beam_size)
        self._limits = LengthLimits(lengths, options)
        self._fusion = Fusion.of(lm, options, self.beam.live.shape, memory.device)
        self._scores_BN = memory.new_full(self.beam.live.shape, -math.inf, dtype=torch.float32)
        self._scores_BN[:, 0] = 0.0
        self._ended_BN = torch.zeros_like(self.beam.live)

    def step(self) -> list[tuple[int, Tensor, Tensor]]:
        """Go on by one unit. Returns (utterance, units (N, L), scores (N,)) of those that are finished, on the CPU."""
        self._prune(*self._candidates())
        beam, done_B = self.beam, self._limits.reached(self.beam.num_units)
        looks = beam.looks()
        if looks:
            done_B = done_B | self._settled().cpu()
        if not bool(done_B.any()):
            return []
        rows = done_B.nonzero().flatten().to(self._scores_BN.device)
        units, scores = beam.units[rows].cpu(), self._scores_BN[rows].cpu()
        finished = list(zip(beam.utterances[rows].tolist(), units, scores, strict=True))
        self._keep(~done_B)
        return finished

    def _settled(self) -> Tensor:
        """(B,) whether nothing that goes on can come among the hypotheses asked for."""
        done_BN = self._ended_BN | self._scores_BN.isneginf()
        nbest = self._options.nbest
        # A score never rises, and of two equal ones the earlier place wins: so the first that have ended stay first.
        # A bonus for units makes it rise, and a final division changes the order: then all have to end.
        if nbest is None or self._options.length_penalty or self._options.length_bonus:
            return done_BN.all(dim=1)
        return done_BN[:, :nbest].all(dim=1)

    def _candidates(self) -> tuple[Tensor, Tensor]:
        """The K best next units of each hypothesis, two (B, N, K); one that has ended has its end again, for free."""
        hidden_MD, places = self.beam.hidden()
        shape = self._scores_BN.shape
        # One more where the end may be forbidden, to whichever utterance: the company must not change the candidates.
        wide = shape[1] * (1 if self._fusion is None else Fusion.WIDER) + (self._options.min_len_ratio > 0)
        values_MK, ids_MK = self._head.topk(hidden_MD, min(wide, self._head.num_units))
        values_BNK = place(values_MK, places, shape, -math.inf)
        ids_BNK = place(ids_MK, places, shape, self._eos)
        if self._fusion is not None:
            values_BNK = values_BNK + self._fusion.gains(ids_BNK, self._eos)
        if self._limits.forbid_end(self.beam.num_units):
            early_B = self._limits.too_early(self.beam.num_units)
            values_BNK = values_BNK.masked_fill(early_B[:, None, None] & (ids_BNK == self._eos), -math.inf)
        again_K = torch.full_like(values_BNK[0, 0], -math.inf)
        again_K[0] = 0.0
        values_BNK = torch.where(self._ended_BN[..., None], again_K, values_BNK)
        return values_BNK, ids_BNK.masked_fill(self._ended_BN[..., None], self._eos)

    def _prune(self, values_BNK: Tensor, ids_BNK: Tensor) -> None:
        """Keep the N best of the N · K ways to go on."""
        totals_BC = (self._scores_BN[..., None] + values_BNK).flatten(1)
        # A stable sort, not topk: of two equal scores the earlier hypothesis wins, on every machine.
        order_BN = totals_BC.argsort(dim=1, descending=True, stable=True)[:, : values_BNK.size(1)]
        self._scores_BN = totals_BC.gather(1, order_BN)
        parents_BN = order_BN // values_BNK.size(2)
        units_BN = ids_BNK.flatten(1).gather(1, order_BN)
        self._ended_BN = units_BN == self._eos
        if self._fusion is not None:
            self._fusion.advance(parents_BN, units_BN)
        self.beam.advance(parents_BN, units_BN, ~(self._ended_BN | self._scores_BN.isneginf()))

    def _keep(self, kept_B: Tensor) -> None:
        """Go on with these utterances alone; `kept_B` is on the CPU."""
        self._limits.keep(kept_B)
        rows = kept_B.nonzero().flatten().to(self._scores_BN.device)
        self.beam.keep(rows)
        self._scores_BN, self._ended_BN = self._scores_BN[rows], self._ended_BN[rows]
        if self._fusion is not None:
            self._fusion.keep(rows)


def _rank(units_NL: Tensor, scores_N: Tensor, special: SpecialIds, length_penalty: float) -> list[Hypothesis]:
    """The beam of one utterance as different hypotheses: (N, L) with <sos> first, (N,)."""
    ranked = []
    for units_L, score in zip(units_NL[:, 1:].tolist(), scores_N.tolist(), strict=True):
        if score == -math.inf:
            continue
        ids = tuple(units_L[: units_L.index(special.eos)] if special.eos in units_L else units_L)
        ranked.append(Hypothesis(ids, score / len(ids) ** length_penalty if ids else score))
    return sorted(ranked, key=lambda found: (bool(found.ids) or not length_penalty, found.score), reverse=True)
