# SPDX-License-Identifier: Apache-2.0
"""One-pass beam search by attention and CTC together (Watanabe et al. 2017), with a list of finished hypotheses.

At every step each hypothesis may end, and goes on the list as the text that it then is; the N best of those one unit
longer go on. So ended hypotheses take no place from others, and the search stops as soon as nothing that goes on can
come among the best of the list. Exact as a rule of stopping: log-probabilities are never above 0.

Dimension key: B utterances still searched, N beam, K candidates for each hypothesis, C = N · K, L units so far
(<sos> first), M hypotheses that go on, T frames, D width.
"""

import math

import torch
from torch import Tensor

from wenet_hs.decode.beam import Beam, place
from wenet_hs.decode.ctc_prefix import CtcPrefixScorer
from wenet_hs.decode.fusion import Fusion
from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.decode.lengths import LengthLimits
from wenet_hs.decode.lm import LanguageModel
from wenet_hs.model import AsrModel

CANDIDATES = 2
"""A hypothesis is tried with this many times `beam_size` units, the best of the decoder; to all alike CTC is asked."""


def finished_list_search(
    model: AsrModel,
    memory: Tensor,
    lengths: Tensor,
    options: DecodeOptions,
    *,
    ctc_weight: float,
    lm: LanguageModel | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each utterance. Utterances that are finished leave the batch.

    Args:
        memory: (B, T, D) encoder output; lengths: (B,) in T, at least 1.
        ctc_weight: share of CTC in the score, in [0, 1]; with 0 it is not asked.
    Returns: for each utterance up to `nbest` (without it, `beam_size`) different hypotheses, best first; the score is
        (1 - ctc_weight) · decoder + ctc_weight · CTC + what the language model and the bonus add, ends included,
        divided by max(1, number of units) ** length_penalty. Where no text fits the bounds, the empty one of score 0.
    """
    search = _Search(model, memory, lengths, options, ctc_weight=ctc_weight, lm=lm)
    found: list[list[Hypothesis]] = [[] for _ in range(len(memory))]
    while len(search.beam.utterances):
        for utterance, nbest in search.step():
            found[utterance] = nbest
    return found


class _Search:
    """Scores of the places of a beam, -inf where one is free, and the list of the finished."""

    def __init__(
        self,
        model: AsrModel,
        memory: Tensor,
        lengths: Tensor,
        options: DecodeOptions,
        *,
        ctc_weight: float,
        lm: LanguageModel | None,
    ) -> None:
        self._head, self._eos = model.head, model.special.eos
        self._options, self._ctc_weight = options, ctc_weight
        self.beam = Beam(model, memory, lengths, options.beam_size)
        self._limits = LengthLimits(lengths, options)
        shape = self.beam.live.shape
        self._fusion = Fusion.of(lm, options, shape, memory.device)
        self._ctc = None
        if ctc_weight:
            self._ctc = CtcPrefixScorer(model.ctc.log_probs(memory), lengths, model.ctc.blank, options.beam_size)
        self._unaligned_BN = memory.new_full(shape, -math.inf, dtype=torch.float64)  # scores without CTC's part
        self._unaligned_BN[:, 0] = 0.0
        self._scores_BN = self._unaligned_BN
        self._finished_BN = torch.full_like(self._unaligned_BN, -math.inf)
        self._finished_units_BNL = self.beam.units

    def step(self) -> list[tuple[int, list[Hypothesis]]]:
        """Go on by one unit. Returns those that are finished: (utterance, its hypotheses)."""
        reached_B = self._limits.reached(self.beam.num_units)
        hidden_MD, places = self.beam.hidden()
        self._finish(hidden_MD, places)
        if bool(reached_B.all()):
            return self._leave(reached_B)
        looks = self.beam.looks()
        self._extend(hidden_MD, places)
        return self._leave(reached_B | self._settled().cpu() if looks else reached_B)

    def _finish(self, hidden_MD: Tensor, places: Tensor | None) -> None:
        """Let each hypothesis end, and keep the N best of all that ever ended; of equal ones the earlier."""
        ends_M = torch.full((len(hidden_MD),), self._eos, device=hidden_MD.device)
        gains_M = -(1 - self._ctc_weight) * self._head.nll(hidden_MD, ends_M).double()
        shape, length = self._scores_BN.shape, self.beam.num_units
        scores_BN = self._unaligned_BN + place(gains_M[:, None], places, shape, -math.inf)[..., 0]
        if self._fusion is not None:
            ids_BN1 = self.beam.units.new_full((*shape, 1), self._eos)
            scores_BN = scores_BN + self._fusion.gains(ids_BN1, self._eos)[..., 0]
        if self._ctc is not None:
            scores_BN = scores_BN + self._ctc_weight * self._ctc.ends()
        if self._limits.forbid_end(length):
            scores_BN = scores_BN.masked_fill(self._limits.too_early(length)[:, None], -math.inf)
        scores_BN = scores_BN / max(1, length) ** self._options.length_penalty
        all_scores_BC = torch.cat([self._finished_BN, scores_BN], dim=1)
        order_BN = all_scores_BC.argsort(dim=1, descending=True, stable=True)[:, : shape[1]]
        self._finished_BN = all_scores_BC.gather(1, order_BN)
        padding = (0, self.beam.units.size(2) - self._finished_units_BNL.size(2))
        older_BNL = torch.nn.functional.pad(self._finished_units_BNL, padding, value=self._eos)
        all_units_BCL = torch.cat([older_BNL, self.beam.units], dim=1)
        self._finished_units_BNL = all_units_BCL.gather(1, order_BN[..., None].expand(-1, -1, all_units_BCL.size(2)))

    def _extend(self, hidden_MD: Tensor, places: Tensor | None) -> None:
        """Go on with the N best hypotheses that are one unit longer."""
        shape = self._scores_BN.shape
        values_MK, ids_MK = self._head.topk(hidden_MD, min(CANDIDATES * shape[1] + 1, self._head.num_units))
        gains_BNK = place((1 - self._ctc_weight) * values_MK.double(), places, shape, -math.inf)
        ids_BNK = place(ids_MK, places, shape, self._eos)
        unaligned_BNK = self._unaligned_BN[..., None] + gains_BNK
        if self._fusion is not None:
            unaligned_BNK = unaligned_BNK + self._fusion.gains(ids_BNK, self._eos)
        totals_BNK = unaligned_BNK
        if self._ctc is not None:
            totals_BNK = unaligned_BNK + self._ctc_weight * self._ctc.score(ids_BNK)
        totals_BC = totals_BNK.masked_fill(ids_BNK == self._eos, -math.inf).flatten(1)
        order_BN = totals_BC.argsort(dim=1, descending=True, stable=True)[:, : shape[1]]
        self._scores_BN = totals_BC.gather(1, order_BN)
        impossible_BN = self._scores_BN.isneginf()
        self._unaligned_BN = unaligned_BNK.flatten(1).gather(1, order_BN).masked_fill(impossible_BN, -math.inf)
        parents_BN, units_BN = order_BN // ids_BNK.size(2), ids_BNK.flatten(1).gather(1, order_BN)
        for scorer in (self._fusion, self._ctc):
            if scorer is not None:
                scorer.advance(parents_BN, units_BN)
        self.beam.advance(parents_BN, units_BN, ~impossible_BN)

    def _settled(self) -> Tensor:
        """(B,) whether nothing that goes on can come among the hypotheses asked for."""
        options, wanted = self._options, self._options.nbest or self._scores_BN.size(1)
        best_B, most_B = self._scores_BN.amax(dim=1), self._limits.most.to(self._scores_BN.device)
        left_B = (most_B - self.beam.num_units).clamp(min=0)
        best_B = best_B + max(0.0, options.length_bonus) * left_B
        # A negative score is divided by as much as there may be units, a positive one by what it has at least.
        divisors_B = torch.where(best_B < 0, most_B.double(), float(self.beam.num_units)) ** options.length_penalty
        return best_B.isneginf() | (self._finished_BN[:, :wanted].amin(dim=1) >= best_B / divisors_B)

    def _leave(self, done_B: Tensor) -> list[tuple[int, list[Hypothesis]]]:
        """Take out the utterances that `done_B`, on the CPU, marks."""
        if not bool(done_B.any()):
            return []
        rows, kept = (mask_B.nonzero().flatten().to(self._scores_BN.device) for mask_B in (done_B, ~done_B))
        scores, units = self._finished_BN[rows].tolist(), self._finished_units_BNL[rows].tolist()
        found = [self._hypotheses(*pair) for pair in zip(units, scores, strict=True)]
        finished = list(zip(self.beam.utterances[rows].tolist(), found, strict=True))
        self._limits.keep(~done_B)
        self.beam.keep(kept)
        for scorer in (self._fusion, self._ctc):
            if scorer is not None:
                scorer.keep(kept)
        self._scores_BN, self._unaligned_BN = self._scores_BN[kept], self._unaligned_BN[kept]
        self._finished_BN, self._finished_units_BNL = self._finished_BN[kept], self._finished_units_BNL[kept]
        return finished

    def _hypotheses(self, units_NL: list[list[int]], scores_N: list[float]) -> list[Hypothesis]:
        """The list of one utterance, with <sos> first, as hypotheses."""
        nbest = []
        for units_L, score in zip(units_NL, scores_N, strict=True):
            if score > -math.inf:
                ids = units_L[1:]
                nbest.append(Hypothesis(tuple(ids[: ids.index(self._eos)] if self._eos in ids else ids), score))
        # No text may fit the bounds: more units asked for than CTC has frames.
        return nbest[: self._options.nbest] or [Hypothesis((), 0.0)]
