# SPDX-License-Identifier: Apache-2.0
"""CTC's score of a prefix, the sum over all alignments of all texts that begin with it (Watanabe et al. 2017).

It is exact, for all hypotheses and candidates at once, without a loop over frames. With Φ_t the sum over the alignments
of a prefix to the frames before t behind which a unit is a new one, the prefix one unit longer has Σ_t Φ_t · p_t(unit),
and those of its alignments that end in the unit at frame t have Σ_{s ≤ t} Φ_s · p_s(unit) … p_t(unit): a cumulative
sum once the product is divided by the product of all frames so far. Logarithms of float64 keep both exact.

Dimension key: B utterances still searched, N beam, K candidates for each hypothesis, T frames, V units.
"""

import math

import torch
from torch import Tensor

_LEAST = -1e4
"""A log-probability below it counts as this: an alignment through it has no weight, and no infinity is subtracted."""


class CtcPrefixScorer:
    """The alignments of the hypotheses of a beam; at the start each is empty."""

    def __init__(self, log_probs: Tensor, lengths: Tensor, blank: int, beam_size: int) -> None:
        """log_probs: (B, T, V) natural logarithms; lengths: (B,) in T, at least 1."""
        self._blank = blank
        self._log_probs_BVT = log_probs.transpose(1, 2).contiguous()
        positions_T = torch.arange(log_probs.size(1), device=log_probs.device)
        self._outside_BT = positions_T >= lengths[:, None]
        self._last_frame_B = lengths.long() - 1
        self._blank_sums_BT = self._of_blank().cumsum(dim=1)
        shape = (len(log_probs), beam_size, log_probs.size(1))
        self._in_blank_BNT = self._blank_sums_BT[:, None].expand(shape)
        self._in_unit_BNT = torch.full_like(self._in_blank_BNT, -math.inf)
        self._units_BN = lengths.new_full(shape[:2], -1, dtype=torch.int64)
        self._is_empty = True

    def ends(self) -> Tensor:
        """(B, N) float64: log of the sum over the alignments of each hypothesis as the whole text."""
        all_BNT = torch.logaddexp(self._in_blank_BNT, self._in_unit_BNT)
        last_BN1 = self._last_frame_B[:, None, None].expand(-1, all_BNT.size(1), 1)
        return all_BNT.gather(2, last_BN1)[..., 0]

    def score(self, ids: Tensor) -> Tensor:
        """(B, N, K) float64: the score of each hypothesis with a unit of `ids` (B, N, K) behind it; of blank -inf."""
        anew_BNT, again_BNT = self._before()
        repeats_BNK = ids == self._units_BN[..., None]
        terms_BNKT = self._of(ids)
        terms_BNKT += torch.where(repeats_BNK[..., None], again_BNT[:, :, None], anew_BNT[:, :, None])
        scores_BNK = terms_BNKT.logsumexp(dim=-1)
        return scores_BNK.masked_fill(ids == self._blank, -math.inf)

    def advance(self, parents: Tensor, units: Tensor) -> None:
        """Hypotheses of places `parents` (B, N) and `units` (B, N) behind them take the places."""
        anew_BNT, again_BNT = self._before()
        repeats_BN = units == self._units_BN.gather(1, parents)
        rows_BNT = parents[..., None].expand_as(anew_BNT)
        before_BNT = torch.where(repeats_BN[..., None], again_BNT.gather(1, rows_BNT), anew_BNT.gather(1, rows_BNT))
        log_probs_BNT = self._of(units)
        sums_BNT = log_probs_BNT.cumsum(dim=-1)
        self._in_unit_BNT = sums_BNT + (before_BNT - (sums_BNT - log_probs_BNT)).logcumsumexp(dim=-1)
        blank_sums_B1T = self._blank_sums_BT[:, None]
        reached_BNT = blank_sums_B1T + _later((self._in_unit_BNT - blank_sums_B1T).logcumsumexp(dim=-1), -math.inf)
        self._in_blank_BNT = reached_BNT
        self._units_BN, self._is_empty = units, False

    def keep(self, rows: Tensor) -> None:
        """Go on with the utterances `rows` (B',) alone."""
        self._log_probs_BVT, self._outside_BT = self._log_probs_BVT[rows], self._outside_BT[rows]
        self._last_frame_B, self._blank_sums_BT = self._last_frame_B[rows], self._blank_sums_BT[rows]
        self._in_blank_BNT, self._in_unit_BNT = self._in_blank_BNT[rows], self._in_unit_BNT[rows]
        self._units_BN = self._units_BN[rows]

    def _before(self) -> tuple[Tensor, Tensor]:
        """Two (B, N, T): Φ of a unit that is another than the last, and of the last one again. -inf outside."""
        first = 0.0 if self._is_empty else -math.inf
        anew_BNT = _later(torch.logaddexp(self._in_blank_BNT, self._in_unit_BNT), first)
        again_BNT = _later(self._in_blank_BNT, first)
        outside_B1T = self._outside_BT[:, None]
        return anew_BNT.masked_fill(outside_B1T, -math.inf), again_BNT.masked_fill(outside_B1T, -math.inf)

    def _of(self, ids: Tensor) -> Tensor:
        """The log-probabilities of units (B, …) over the frames: (B, …, T) float64."""
        rows = torch.arange(len(ids), device=ids.device).view(-1, *[1] * (ids.dim() - 1))
        return self._log_probs_BVT[rows, ids].double().clamp_(min=_LEAST)

    def _of_blank(self) -> Tensor:
        return self._log_probs_BVT[:, self._blank].double().clamp_(min=_LEAST)


def _later(x_BNT: Tensor, first: float) -> Tensor:
    """Each frame's value at the next frame."""
    return torch.nn.functional.pad(x_BNT[..., :-1], (1, 0), value=first)
