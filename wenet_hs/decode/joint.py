# SPDX-License-Identifier: Apache-2.0
"""Joint attention and CTC beam search in one pass (Watanabe et al.

2017), with a list of finished hypotheses.

At every step each hypothesis is also finished: its text so far is added to the list. The N best
hypotheses that are one unit longer continue. So finished hypotheses take no row of the beam. The
search stops when no continuing hypothesis can get among the best of the list. This stopping rule is
exact, because log-probabilities are never above 0.

Dimension key: B utterances still searched, N beam, K candidates per hypothesis, C = N · K, L units
so far (<sos> first), M hypotheses that continue, T frames, D width, V units.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wenet_hs.decode.attention_search import BeamSearch
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


class FinishedListSearch(BeamSearch):
    """The beam, and the list of the finished hypotheses.

    The score is (1 - ctc_weight) · decoder + ctc_weight · CTC + language model and length bonus,
    including the ends, divided by max(1, number of units) ** length_penalty. If no text fits the
    length limits: the empty one with score 0.
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
        """memory: (B, T, D) encoder output; lengths: (B,) in T, at least 1; ctc_weight 0: CTC is
        not computed.
        """
        super().__init__(model, memory, lengths, options, lm)
        self._ctc_weight, self._ctc = ctc_weight, None
        if ctc_weight:
            self._ctc = CtcPrefixScorer(
                model.ctc.log_probs(memory), lengths, model.ctc.blank, options.beam_size
            )
        # Scores without CTC's part; -inf for an unused row of the beam.
        self._decoder_scores_BN = memory.new_full(self.live.shape, -math.inf, dtype=torch.float64)
        self._decoder_scores_BN[:, 0] = 0.0
        self._scores_BN = self._decoder_scores_BN
        self._finished_BN = torch.full_like(self._scores_BN, -math.inf)
        self._finished_units_BNL = self.units

    def step(self) -> Tensor:
        at_limit_B = self.at_limit()
        hidden_MD = self.hidden()
        self._finish(hidden_MD)
        if bool(at_limit_B.all()):
            return at_limit_B
        should_sync = self.should_sync()
        self._extend(hidden_MD)
        return at_limit_B | self.read(self._is_complete()) if should_sync else at_limit_B

    def _finish(self, hidden_MD: Tensor) -> None:
        """Add each hypothesis with its end to the list, and keep the N best; of equal scores the
        earlier one.
        """
        length = self.num_units
        ends_M = torch.full((len(hidden_MD),), self._eos, device=hidden_MD.device)
        eos_scores_M = -(1 - self._ctc_weight) * self._head.nll(hidden_MD, ends_M).double()
        scores_BN1 = self._decoder_scores_BN[..., None] + self.scatter(
            eos_scores_M[:, None], -math.inf
        )
        scores_BN = self.add_fusion(scores_BN1, self.units.new_full(scores_BN1.shape, self._eos))[
            ..., 0
        ]
        if self._ctc is not None:
            scores_BN = scores_BN + self._ctc_weight * self._ctc.text_scores()
        too_short_B = self.too_short()
        if too_short_B is not None:
            scores_BN = scores_BN.masked_fill(too_short_B[:, None], -math.inf)
        scores_BN = scores_BN / max(1, length) ** self._options.length_penalty
        all_scores_BC = torch.cat([self._finished_BN, scores_BN], dim=1)
        order_BN = all_scores_BC.argsort(dim=1, descending=True, stable=True)[
            :, : scores_BN.size(1)
        ]
        self._finished_BN = all_scores_BC.gather(1, order_BN)
        padding = (0, self.units.size(2) - self._finished_units_BNL.size(2))
        older_BNL = torch.nn.functional.pad(self._finished_units_BNL, padding, value=self._eos)
        all_units_BCL = torch.cat([older_BNL, self.units], dim=1)
        self._finished_units_BNL = all_units_BCL.gather(
            1, order_BN[..., None].expand(-1, -1, all_units_BCL.size(2))
        )

    def _extend(self, hidden_MD: Tensor) -> None:
        """Continue with the N best hypotheses that are one unit longer."""
        beam_size = self._scores_BN.size(1)
        values_MK, ids_MK = self._head.topk(
            hidden_MD, min(_CANDIDATES * beam_size + 1, self._head.num_units)
        )
        values_BNK = self.scatter((1 - self._ctc_weight) * values_MK.double(), -math.inf)
        ids_BNK = self.scatter(ids_MK, self._eos)
        decoder_scores_BNK = self.add_fusion(
            self._decoder_scores_BN[..., None] + values_BNK, ids_BNK
        )
        totals_BNK = decoder_scores_BNK
        if self._ctc is not None:
            totals_BNK = decoder_scores_BNK + self._ctc_weight * self._ctc.prefix_scores(ids_BNK)
        totals_BC = totals_BNK.masked_fill(ids_BNK == self._eos, -math.inf).flatten(1)
        order_BN = totals_BC.argsort(dim=1, descending=True, stable=True)[:, :beam_size]
        self._scores_BN = totals_BC.gather(1, order_BN)
        impossible_BN = self._scores_BN.isneginf()
        decoder_scores_BN = decoder_scores_BNK.flatten(1).gather(1, order_BN)
        self._decoder_scores_BN = decoder_scores_BN.masked_fill(impossible_BN, -math.inf)
        parents_BN, units_BN = order_BN // ids_BNK.size(2), ids_BNK.flatten(1).gather(1, order_BN)
        if self._ctc is not None:
            self._ctc.advance(parents_BN, units_BN)
        self.advance(parents_BN, units_BN, ~impossible_BN)

    def _is_complete(self) -> Tensor:
        """(B,) whether no continuing hypothesis can get among the `nbest` that are asked for."""
        options, wanted = self._options, self._options.nbest or self._scores_BN.size(1)
        best_B, max_units_B = (
            self._scores_BN.amax(dim=1),
            copy_to(self._scores_BN.device, self.max_units),
        )
        units_left_B = (max_units_B - self.num_units).clamp(min=0)
        best_B = best_B + max(0.0, options.length_bonus) * units_left_B
        # Upper bound of the final score: a negative score is divided by the maximum number of
        # units, a positive one by the present number.
        divisors_B = (
            torch.where(best_B < 0, max_units_B.double(), float(self.num_units))
            ** options.length_penalty
        )
        return best_B.isneginf() | (
            self._finished_BN[:, :wanted].amin(dim=1) >= best_B / divisors_B
        )

    def keep(self, rows_on_cpu: Tensor) -> Tensor:
        rows = super().keep(rows_on_cpu)
        if self._ctc is not None:
            self._ctc.keep(rows)
        self._scores_BN, self._decoder_scores_BN = (
            self._scores_BN[rows],
            self._decoder_scores_BN[rows],
        )
        self._finished_BN, self._finished_units_BNL = (
            self._finished_BN[rows],
            self._finished_units_BNL[rows],
        )
        return rows

    def nbest(self, rows: Tensor) -> list[list[Hypothesis]]:
        pairs = self.without_end(self._finished_units_BNL[rows], self._finished_BN[rows])
        nbests = [[Hypothesis(*one) for one in of_utterance] for of_utterance in pairs]
        # A list is empty if the minimum number of units is more than CTC has frames for.
        return [nbest or [Hypothesis((), 0.0)] for nbest in nbests]


class CtcPrefixScorer:
    """CTC score of a prefix: the sum over all alignments of all texts that begin with it (Watanabe
    et al. 2017).

    It is exact, and computed for all hypotheses and candidates at once, without a loop over frames.
    Let Φ_t be the sum over the alignments of a prefix to the frames before t after which a unit is
    a new one. Then the prefix that is one unit longer has the score Σ_t Φ_t · p_t(unit). Its
    alignments that end in the unit at frame t have Σ_{s ≤ t} Φ_s · p_s(unit) … p_t(unit). This is a
    cumulative sum after division by the product of all frames so far. Logarithms in float64 keep
    both exact.
    """

    def __init__(self, log_probs: Tensor, lengths: Tensor, blank: int, beam_size: int) -> None:
        """log_probs: (B, T, V) natural logarithms; lengths: (B,) in T, at least 1."""
        self._blank = blank
        self._log_probs_BVT = log_probs.transpose(1, 2).contiguous()
        self._outside_BT = ~length_mask(lengths, log_probs.size(1))
        self._last_frame_B = lengths.long() - 1
        blanks_BT = self._log_probs_BVT[:, blank].double().clamp_(min=_MIN_LOG_PROB)
        self._blank_sums_BT = blanks_BT.cumsum(dim=1)
        shape = (len(log_probs), beam_size, log_probs.size(1))
        self._in_blank_BNT = self._blank_sums_BT[:, None].expand(shape)
        self._in_unit_BNT = torch.full_like(self._in_blank_BNT, -math.inf)
        self._units_BN = lengths.new_full(shape[:2], -1, dtype=torch.int64)
        self._is_empty = True

    def text_scores(self) -> Tensor:
        """(B, N) float64: log of the sum over the alignments of each hypothesis as the whole text."""
        all_BNT = torch.logaddexp(self._in_blank_BNT, self._in_unit_BNT)
        last_BN1 = self._last_frame_B[:, None, None].expand(-1, all_BNT.size(1), 1)
        return all_BNT.gather(2, last_BN1)[..., 0]

    def prefix_scores(self, ids: Tensor) -> Tensor:
        """(B, N, K) float64: score of each hypothesis extended by a unit of `ids` (B, N, K); -inf
        for blank.
        """
        new_BNT, repeated_BNT = self._before()
        repeats_BNK = ids == self._units_BN[..., None]
        terms_BNKT = self._frames_of(ids)
        terms_BNKT += torch.where(
            repeats_BNK[..., None], repeated_BNT[:, :, None], new_BNT[:, :, None]
        )
        scores_BNK = terms_BNKT.logsumexp(dim=-1)
        return scores_BNK.masked_fill(ids == self._blank, -math.inf)

    def advance(self, parents: Tensor, units: Tensor) -> None:
        """Replace the hypotheses: each new one is hypothesis `parents` (B, N) extended by a unit of
        `units` (B, N).
        """
        new_BNT, repeated_BNT = self._before()
        repeats_BN = units == self._units_BN.gather(1, parents)
        rows_BNT = parents[..., None].expand_as(new_BNT)
        before_BNT = torch.where(
            repeats_BN[..., None], repeated_BNT.gather(1, rows_BNT), new_BNT.gather(1, rows_BNT)
        )
        log_probs_BNT = self._frames_of(units)
        sums_BNT = log_probs_BNT.cumsum(dim=-1)
        self._in_unit_BNT = sums_BNT + (before_BNT - (sums_BNT - log_probs_BNT)).logcumsumexp(
            dim=-1
        )
        blank_sums_B1T = self._blank_sums_BT[:, None]
        until_frame_BNT = _shift_right(
            (self._in_unit_BNT - blank_sums_B1T).logcumsumexp(dim=-1), -math.inf
        )
        self._in_blank_BNT = blank_sums_B1T + until_frame_BNT
        self._units_BN, self._is_empty = units, False

    def keep(self, rows: Tensor) -> None:
        """Remove all utterances except `rows` (B',)."""
        self._log_probs_BVT, self._outside_BT = self._log_probs_BVT[rows], self._outside_BT[rows]
        self._last_frame_B, self._blank_sums_BT = (
            self._last_frame_B[rows],
            self._blank_sums_BT[rows],
        )
        self._in_blank_BNT, self._in_unit_BNT = self._in_blank_BNT[rows], self._in_unit_BNT[rows]
        self._units_BN = self._units_BN[rows]

    def _before(self) -> tuple[Tensor, Tensor]:
        """Two (B, N, T): Φ of a unit that differs from the last one, and of the last one repeated.
        -inf outside.
        """
        first = 0.0 if self._is_empty else -math.inf
        new_BNT = _shift_right(torch.logaddexp(self._in_blank_BNT, self._in_unit_BNT), first)
        repeated_BNT = _shift_right(self._in_blank_BNT, first)
        outside_B1T = self._outside_BT[:, None]
        return new_BNT.masked_fill(outside_B1T, -math.inf), repeated_BNT.masked_fill(
            outside_B1T, -math.inf
        )

    def _frames_of(self, ids: Tensor) -> Tensor:
        """Log-probabilities of units (B, …) over the frames: (B, …, T) float64."""
        rows = torch.arange(len(ids), device=ids.device).view(-1, *[1] * (ids.dim() - 1))
        return self._log_probs_BVT[rows, ids].double().clamp_(min=_MIN_LOG_PROB)


def _shift_right(x_BNT: Tensor, first: float) -> Tensor:
    """Each frame gets the value of the frame before it."""
    return torch.nn.functional.pad(x_BNT[..., :-1], (1, 0), value=first)
