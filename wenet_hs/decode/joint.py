# SPDX-License-Identifier: Apache-2.0
"""Joint attention and CTC beam search in one pass, with a list of finished hypotheses.

Watanabe et al. 2017. At every step each hypothesis is also finished: its text so far is added to
the list. The N best hypotheses that are one unit longer continue. So finished hypotheses take no
row of the beam. The search stops when no continuing hypothesis can get among the best of the list.
This stopping rule is exact, because log-probabilities are never above 0.

Dimension key: B utterances still searched, N beam, K candidates per hypothesis, C = N · K, L units
so far (<sos> first), M hypotheses that continue, T frames, D width, V units.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from wenet_hs.decode.attention_search import UNUSED, BeamSearch
from wenet_hs.decode.hypothesis import DecodeOptions, Hypothesis
from wenet_hs.heads.gpu import copy_to
from wenet_hs.heads.masks import length_mask
from wenet_hs.lm.language_model import LanguageModel

if TYPE_CHECKING:
    from wenet_hs.model.asr_model import AsrModel

_CANDIDATES = 2
"""Each hypothesis is extended by this many times `beam_size` units, the decoder's best; CTC scores
all of them.
"""
_MIN_LOG_PROB = -1e4
"""Lower log-probabilities are raised to this: such an alignment has no weight, and no infinities
are subtracted.
"""
_NO_UNIT = -1
"""The last unit of an empty hypothesis; no unit is equal to it."""


class FinishedListSearch(BeamSearch):
    """Beam search in which finished hypotheses are in a list of their own, not in the beam.

    The score of a hypothesis is the sum of (1 - ctc_weight) · decoder, ctc_weight · CTC, language
    model and length bonus, with the end of the text, divided by (number of units) **
    length_penalty. An empty text counts as one unit. If no text fits the length limits, the only
    hypothesis is the empty one, with score 0.
    """

    def __init__(
        self,
        model: AsrModel,
        memory: Tensor,
        lengths: Tensor,
        options: DecodeOptions,
        *,
        ctc_weight: float,
        lm: LanguageModel | None = None,
    ) -> None:
        """memory: (B, T, D) encoder output; lengths: (B,) in T, at least 1.

        With `ctc_weight` 0, CTC is not computed.
        """
        super().__init__(model, memory, lengths, options, lm)
        self._ctc_weight = ctc_weight
        self._ctc: CtcPrefixScorer | None = None
        if ctc_weight:
            self._ctc = CtcPrefixScorer(
                model.ctc.log_probs(memory), lengths, model.ctc.blank, options.beam_size
            )
        self._decoder_scores_BN = memory.new_full(self.live.shape, UNUSED, dtype=torch.float64)
        """Scores of the hypotheses that continue, without the part of CTC."""
        self._decoder_scores_BN[:, 0] = 0.0  # at the start one hypothesis, with probability 1
        self._scores_BN = self._decoder_scores_BN
        """The same with the part of CTC, which is 0 at the start."""
        self._finished_BN = torch.full_like(self._scores_BN, UNUSED)
        """Final scores of the finished hypotheses, best first."""
        self._finished_units_BNL = self.units
        """Their units, <sos> first; what follows the end is <eos>."""

    def step(self) -> Tensor:
        """Finish each hypothesis, then continue with the N best that are one unit longer.

        If all utterances are at their limit, nothing continues. Returns (B,) bool on the CPU: the
        utterances at their limit, and, if values are read in this step, those that are complete
        (`_is_complete`).
        """
        at_limit_B = self.at_limit()
        hidden_MD = self.hidden()
        self._finish(hidden_MD)
        if bool(at_limit_B.all()):
            return at_limit_B
        should_sync = self.should_sync()  # before `_extend`, which adds a unit
        self._extend(hidden_MD)
        if not should_sync:
            return at_limit_B
        return at_limit_B | self.read_flags(self._is_complete())

    def _finish(self, hidden_MD: Tensor) -> None:
        """Add each hypothesis with its end to the list, and keep the N best.

        Of equal scores the earlier one is better. A hypothesis that is too short to end gets -inf.
        """
        scores_BN = self._final_scores(hidden_MD)
        all_scores_BC = torch.cat([self._finished_BN, scores_BN], dim=1)
        order_BC = all_scores_BC.argsort(dim=1, descending=True, stable=True)
        best_BN = order_BC[:, : scores_BN.size(1)]
        self._finished_BN = all_scores_BC.gather(1, best_BN)
        num_missing = self.units.size(2) - self._finished_units_BNL.size(2)
        padded_BNL = pad(self._finished_units_BNL, (0, num_missing), value=self._eos)
        all_units_BCL = torch.cat([padded_BNL, self.units], dim=1)
        rows_BNL = best_BN[..., None].expand(-1, -1, all_units_BCL.size(2))
        self._finished_units_BNL = all_units_BCL.gather(1, rows_BNL)

    def _final_scores(self, hidden_MD: Tensor) -> Tensor:
        """(B, N) float64: the score of each hypothesis as the whole text, with its end.

        It is -inf for a hypothesis that is too short to end.
        """
        ends_M = torch.full((len(hidden_MD),), self._eos, device=hidden_MD.device)
        eos_scores_M = -(1 - self._ctc_weight) * self._head.nll(hidden_MD, ends_M).double()
        eos_scores_BN1 = self.scatter(eos_scores_M[:, None], -math.inf)
        scores_BN1 = self._decoder_scores_BN[..., None] + eos_scores_BN1
        ends_BN1 = self.units.new_full(scores_BN1.shape, self._eos)
        scores_BN = self.add_fusion(scores_BN1, ends_BN1)[..., 0]
        if self._ctc is not None:
            scores_BN = scores_BN + self._ctc_weight * self._ctc.text_scores()
        too_short_B = self.too_short()
        if too_short_B is not None:
            scores_BN = scores_BN.masked_fill(too_short_B[:, None], -math.inf)
        length = max(1, self.num_units)  # an empty text counts as one unit
        divisor: float = length**self._options.length_penalty
        return scores_BN / divisor

    def _extend(self, hidden_MD: Tensor) -> None:
        """Continue with the N best hypotheses that are one unit longer.

        <eos> is no candidate, because `_finish` adds the ends. Rows of the beam for which there is
        no possible hypothesis do not continue.
        """
        beam_size = self._options.beam_size
        # One more, because <eos> may be among them.
        num_candidates = min(_CANDIDATES * beam_size + 1, self._head.num_units)
        values_MK, ids_MK = self._head.topk(hidden_MD, num_candidates)
        values_BNK = self.scatter((1 - self._ctc_weight) * values_MK.double(), -math.inf)
        ids_BNK = self.scatter(ids_MK, self._eos)
        decoder_scores_BNK = self._decoder_scores_BN[..., None] + values_BNK
        decoder_scores_BNK = self.add_fusion(decoder_scores_BNK, ids_BNK)
        totals_BNK = decoder_scores_BNK
        if self._ctc is not None:
            totals_BNK = decoder_scores_BNK + self._ctc_weight * self._ctc.prefix_scores(ids_BNK)
        totals_BC = totals_BNK.masked_fill(ids_BNK == self._eos, -math.inf).flatten(1)
        order_BC = totals_BC.argsort(dim=1, descending=True, stable=True)
        best_BN = order_BC[:, :beam_size]
        self._scores_BN = totals_BC.gather(1, best_BN)
        is_impossible_BN = self._scores_BN.isneginf()
        decoder_scores_BN = decoder_scores_BNK.flatten(1).gather(1, best_BN)
        self._decoder_scores_BN = decoder_scores_BN.masked_fill(is_impossible_BN, UNUSED)
        candidates_per_hypothesis = ids_BNK.size(2)  # fewer if the head is limited to some units
        parents_BN = best_BN // candidates_per_hypothesis
        units_BN = ids_BNK.flatten(1).gather(1, best_BN)
        if self._ctc is not None:
            self._ctc.advance(parents_BN, units_BN)
        self.advance(parents_BN, units_BN, ~is_impossible_BN)

    def _is_complete(self) -> Tensor:
        """(B,) bool: whether no continuing hypothesis can get among the `nbest` asked for.

        It compares an upper bound of the final scores of all continuing hypotheses with the lowest
        score of these `nbest`.
        """
        options = self._options
        max_units_B = copy_to(self._scores_BN.device, self.max_units)
        units_left_B = (max_units_B - self.num_units).clamp(min=0)
        # Only a positive length bonus makes scores rise.
        best_B = self._scores_BN.amax(dim=1) + max(0.0, options.length_bonus) * units_left_B
        # Division makes a negative score highest with the maximum number of units, and a positive
        # one with the present number.
        lengths_B = torch.where(best_B < 0, max_units_B.double(), float(self.num_units))
        upper_bounds_B = best_B / lengths_B**options.length_penalty
        num_asked_for = options.nbest or options.beam_size
        lowest_B = self._finished_BN[:, :num_asked_for].amin(dim=1)
        return best_B.isneginf() | (lowest_B >= upper_bounds_B)

    def keep(self, rows_on_cpu: Tensor) -> Tensor:
        rows = super().keep(rows_on_cpu)
        if self._ctc is not None:
            self._ctc.keep(rows)
        self._scores_BN = self._scores_BN[rows]
        self._decoder_scores_BN = self._decoder_scores_BN[rows]
        self._finished_BN = self._finished_BN[rows]
        self._finished_units_BNL = self._finished_units_BNL[rows]
        return rows

    def nbest(self, rows: Tensor) -> list[list[Hypothesis]]:
        """The finished hypotheses of the utterances `rows` (B',), best first.

        If there is none, the empty hypothesis with score 0. This happens if the minimum number of
        units is more than CTC has frames for.
        """
        nbests = []
        for texts in self.read_texts(self._finished_units_BNL[rows], self._finished_BN[rows]):
            nbest = [Hypothesis(text.ids, text.score) for text in texts]
            nbests.append(nbest or [Hypothesis((), 0.0)])
        return nbests


class CtcPrefixScorer:
    """CTC score of a prefix: the sum over all alignments of all texts that begin with it.

    Watanabe et al. 2017. It is exact, and computed for all hypotheses and candidates at once,
    without a loop over frames. Let Φ_t be the sum over the alignments of a prefix to the frames
    before t after which a unit is a new one. Then the prefix that is one unit longer has the score
    Σ_t Φ_t · p_t(unit). Its alignments that end in the unit at frame t have Σ_{s ≤ t} Φ_s ·
    p_s(unit) … p_t(unit). This is a cumulative sum after division by the product of all frames so
    far. Logarithms in float64 keep both exact.
    """

    def __init__(self, log_probs: Tensor, lengths: Tensor, blank: int, beam_size: int) -> None:
        """log_probs: (B, T, V) natural logarithms; lengths: (B,) in T, at least 1."""
        self._blank = blank
        self._log_probs_BVT = log_probs.transpose(1, 2).contiguous()
        self._outside_BT = ~length_mask(lengths, log_probs.size(1))
        """The frames after an utterance's length."""
        self._last_frame_B = lengths.long() - 1
        blanks_BT = self._log_probs_BVT[:, blank].double().clamp_(min=_MIN_LOG_PROB)
        self._blank_sums_BT = blanks_BT.cumsum(dim=1)
        shape = (len(log_probs), beam_size, log_probs.size(1))
        self._in_blank_BNT = self._blank_sums_BT[:, None].expand(shape)
        """Log of the sum over the alignments of each hypothesis to the frames up to each frame that
        end in blank; at first only blanks.
        """
        self._in_unit_BNT = torch.full_like(self._in_blank_BNT, -math.inf)
        """The same for alignments that end in the last unit of the hypothesis."""
        self._last_units_BN = lengths.new_full(shape[:2], _NO_UNIT, dtype=torch.int64)
        self._is_empty = True
        """Whether the hypotheses have no unit yet."""

    def text_scores(self) -> Tensor:
        """(B, N) float64: log of the sum over the alignments of each hypothesis as whole text."""
        all_BNT = torch.logaddexp(self._in_blank_BNT, self._in_unit_BNT)
        last_BN1 = self._last_frame_B[:, None, None].expand(-1, all_BNT.size(1), 1)
        return all_BNT.gather(2, last_BN1)[..., 0]

    def prefix_scores(self, ids: Tensor) -> Tensor:
        """(B, N, K) float64: score of each hypothesis extended by a unit of `ids` (B, N, K).

        It is -inf for blank.
        """
        phi_new_BNT, phi_repeated_BNT = self._phi()
        repeats_BNK = ids == self._last_units_BN[..., None]
        # log (Φ_t · p_t(unit)) of each frame, in place: it is the largest tensor here.
        products_BNKT = self._log_probs_of(ids)
        products_BNKT += torch.where(
            repeats_BNK[..., None], phi_repeated_BNT[:, :, None], phi_new_BNT[:, :, None]
        )
        scores_BNK = products_BNKT.logsumexp(dim=-1)
        return scores_BNK.masked_fill(ids == self._blank, -math.inf)

    def advance(self, parents: Tensor, units: Tensor) -> None:
        """Replace the hypotheses by old ones that are extended by one unit.

        Args:
            parents: (B, N) index of the old hypothesis of each new one.
            units: (B, N) the unit that each new one adds.
        """
        phi_new_BNT, phi_repeated_BNT = self._phi()
        repeats_BN = units == self._last_units_BN.gather(1, parents)
        rows_BNT = parents[..., None].expand_as(phi_new_BNT)
        phi_BNT = torch.where(
            repeats_BN[..., None],
            phi_repeated_BNT.gather(1, rows_BNT),
            phi_new_BNT.gather(1, rows_BNT),
        )
        # Alignments that end in the unit: Φ of each frame divided by the product of the unit's
        # probabilities before it, summed, and multiplied by the product up to the last frame.
        log_probs_BNT = self._log_probs_of(units)
        products_BNT = log_probs_BNT.cumsum(dim=-1)
        ratios_BNT = phi_BNT - (products_BNT - log_probs_BNT)
        self._in_unit_BNT = products_BNT + ratios_BNT.logcumsumexp(dim=-1)
        # Alignments that end in blank: the same with the products of blanks, after the unit's last
        # frame.
        blank_sums_B1T = self._blank_sums_BT[:, None]
        ended_BNT = (self._in_unit_BNT - blank_sums_B1T).logcumsumexp(dim=-1)
        self._in_blank_BNT = blank_sums_B1T + _shift_right(ended_BNT, first=-math.inf)
        self._last_units_BN = units
        self._is_empty = False

    def keep(self, rows: Tensor) -> None:
        """Remove all utterances except `rows` (B',)."""
        self._log_probs_BVT = self._log_probs_BVT[rows]
        self._outside_BT = self._outside_BT[rows]
        self._last_frame_B = self._last_frame_B[rows]
        self._blank_sums_BT = self._blank_sums_BT[rows]
        self._in_blank_BNT = self._in_blank_BNT[rows]
        self._in_unit_BNT = self._in_unit_BNT[rows]
        self._last_units_BN = self._last_units_BN[rows]

    def _phi(self) -> tuple[Tensor, Tensor]:
        """log Φ of each hypothesis and frame, (B, N, T), for two kinds of next unit.

        The first tensor is for a unit that differs from the last one, the second for the last one
        repeated. The same unit is a new one only after a blank, so the second lacks the alignments
        that end in the unit. Before the first frame the empty prefix has one alignment (log 1 = 0),
        and all others have none (-inf). Frames after the utterance's length have -inf.
        """
        first = 0.0 if self._is_empty else -math.inf
        all_BNT = torch.logaddexp(self._in_blank_BNT, self._in_unit_BNT)
        phi_new_BNT = _shift_right(all_BNT, first)
        phi_repeated_BNT = _shift_right(self._in_blank_BNT, first)
        outside_B1T = self._outside_BT[:, None]
        return (
            phi_new_BNT.masked_fill(outside_B1T, -math.inf),
            phi_repeated_BNT.masked_fill(outside_B1T, -math.inf),
        )

    def _log_probs_of(self, ids: Tensor) -> Tensor:
        """Log-probabilities of units (B, …) in all frames: (B, …, T) float64.

        They are at least _MIN_LOG_PROB.
        """
        rows_B = torch.arange(len(ids), device=ids.device)
        ones = [1] * (ids.dim() - 1)
        rows = rows_B.view(-1, *ones)  # one per utterance, for all its ids
        return self._log_probs_BVT[rows, ids].double().clamp_(min=_MIN_LOG_PROB)


def _shift_right(x_BNT: Tensor, first: float) -> Tensor:
    """Each frame gets the value of the frame before it, and frame 0 gets `first`."""
    return pad(x_BNT[..., :-1], (1, 0), value=first)
