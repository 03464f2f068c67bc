# SPDX-License-Identifier: Apache-2.0
"""Beam search with the attention decoder, for all utterances of a batch at once: the beam, and
search by WeNet's rules.

Dimension key: B utterances still searched, N beam, K candidates per hypothesis, C = N · K, M
hypotheses that continue, P = B · N, L units so far (<sos> first), S nodes of the trees of
hypotheses, T frames, D width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wenet_hs.decode.hypothesis import DIVERGED, DecodeOptions, Hypothesis
from wenet_hs.heads.gpu import copy_to
from wenet_hs.heads.masks import length_mask
from wenet_hs.nn.transformer import NewNodes
from wenet_hs.tree.errors import CheckpointError

if TYPE_CHECKING:
    from wenet_hs.lm.language_model import LanguageModel
    from wenet_hs.model.asr_model import AsrModel

_FUSION_CANDIDATES = 2
"""With shallow fusion, this many times `beam_size` candidates are taken from the head before scores
are added.
"""
_COMPACT_ABOVE = 64
_SYNC_EVERY_ON_GPU = 8
_ROUNDING = 1e-9  # 0.29 · 100 is 28.999999999999996


class BeamSearch(ABC):
    """N hypotheses per utterance: units, decoder state, length limits and shallow fusion.

    Finished utterances leave the batch, unused nodes leave the decoder's cache. On CPU only the
    hypotheses that continue are computed. On GPU reading which ones continue would wait for the
    device at every unit: there all hypotheses are computed, and the device is read at every eighth
    step only.
    """

    def __init__(
        self,
        model: AsrModel,
        memory: Tensor,
        lengths: Tensor,
        options: DecodeOptions,
        lm: LanguageModel | None,
    ) -> None:
        (self._decoder, self._head), self._eos, self._options = (
            model.left,
            model.special.eos,
            options,
        )
        self._cache = self._decoder.init_cache(memory, length_mask(lengths, memory.size(1)))
        self.sync_is_free = memory.device.type == "cpu"
        """Whether reading a computed value costs no waiting."""
        shape = (len(memory), options.beam_size)
        self.units = lengths.new_full((*shape, 1), model.special.sos, dtype=torch.int64)
        """(B, N, L)"""
        self.live = torch.zeros(shape, dtype=torch.bool, device=memory.device)
        """(B, N) hypotheses that continue: at the start only the first one, which is <sos>."""
        self.live[:, 0] = True
        self.utterances = torch.arange(len(memory))
        """(B,) on the CPU: index of each remaining utterance in the given batch."""
        self._visible_BNS = self.live.new_zeros(*shape, 0)
        self._itself_NN = torch.eye(options.beam_size, dtype=torch.bool, device=memory.device)
        self._compact_at = _COMPACT_ABOVE
        self._rows_M: Tensor | None = None
        frames_B = lengths.cpu().double()  # the only wait before the first step
        self.max_units = (frames_B * options.max_len_ratio + _ROUNDING).long().clamp(min=1)
        """(B,) int64 on the CPU: maximum number of units."""
        self._min_units_B = torch.minimum(
            (frames_B * options.min_len_ratio + _ROUNDING).long(), self.max_units
        )
        self._lm, self._lm_weight = lm if options.lm_weight else None, options.lm_weight
        self._length_bonus = options.length_bonus
        self._lm_states = torch.zeros(shape, device=memory.device)
        """(B, N, …), without a language model unused."""
        if self._lm is not None:
            self._lm_states = torch.unflatten(
                self._lm.start(self.live.numel(), memory.device), 0, shape
            )

    @abstractmethod
    def step(self) -> Tensor:
        """Extend all hypotheses by one unit.

        Returns (B,) on the CPU: utterances that are finished.
        """

    @abstractmethod
    def nbest(self, rows: Tensor) -> list[list[Hypothesis]]:
        """The hypotheses of the utterances `rows` (B',), best first."""

    def search(self) -> list[list[Hypothesis]]:
        """The hypotheses of each utterance, best first."""
        results: list[list[Hypothesis]] = [[] for _ in self.utterances]
        while len(self.utterances):
            done_B = self.step()
            if bool(done_B.any()):
                nbests = self.nbest(copy_to(self.live.device, done_B.nonzero().flatten()))
                for utterance, nbest in zip(self.utterances[done_B].tolist(), nbests, strict=True):
                    results[utterance] = nbest[: self._options.nbest]
                self.keep((~done_B).nonzero().flatten())
        return results

    @property
    def num_units(self) -> int:
        """Number of units, without <sos>, of the hypotheses that continue: the same for all."""
        return self.units.size(2) - 1

    @property
    def has_fusion(self) -> bool:
        """Whether `add_fusion` adds anything."""
        return self._lm is not None or self._length_bonus != 0

    def should_sync(self) -> bool:
        """Whether to read computed values in this step."""
        return self.sync_is_free or self.num_units % _SYNC_EVERY_ON_GPU == 0

    def at_limit(self) -> Tensor:
        """(B,) on the CPU: utterances whose hypotheses have the maximum number of units."""
        return self.num_units >= self.max_units

    def too_short(self) -> Tensor | None:
        """(B,) utterances whose hypotheses may not end yet; None if there are none."""
        short_B = self.num_units < self._min_units_B
        return copy_to(self.live.device, short_B) if bool(short_B.any()) else None

    def hidden(self) -> Tensor:
        """Decoder output (M, D) for the next unit of each hypothesis that continues.

        Call it once per step.
        """
        self._rows_M = self.live.flatten().nonzero().flatten() if self.sync_is_free else None
        if self._rows_M is not None and len(self._rows_M) == self.live.numel():
            self._rows_M = None
        last_P = self.units[:, :, -1].reshape(-1)
        last_M = last_P if self._rows_M is None else last_P[self._rows_M]
        self._visible_BNS = torch.cat(
            [self._visible_BNS, self._itself_NN.expand(len(self.units), -1, -1)], dim=2
        )
        depths_M = torch.full_like(last_M, self.num_units)
        return self._decoder.decode_step(
            self._cache, NewNodes(last_M, depths_M, self._visible_BNS, self._rows_M)
        )

    def scatter(self, values_MK: Tensor, fill: float) -> Tensor:
        """Values of the hypotheses of the last `hidden()`, (M, K), as (B, N, K); `fill` for all
        other hypotheses.
        """
        if self._rows_M is None:
            return values_MK.reshape(*self.live.shape, -1)
        out_PK = values_MK.new_full((self.live.numel(), values_MK.size(1)), fill)
        return out_PK.index_copy_(0, self._rows_M, values_MK).view(*self.live.shape, -1)

    def add_fusion(self, scores: Tensor, ids: Tensor) -> Tensor:
        """Scores plus language model and length bonus of each candidate unit; all (B, N, K).

        Shallow fusion (Gulcehre et al. 2015); the bonus is not added for <eos>.
        """
        if not self.has_fusion:
            return scores
        added_BNK = torch.where(ids == self._eos, 0.0, self._length_bonus)
        if self._lm is not None:
            log_probs = self._lm.score(self._lm_states.flatten(0, 1), ids.flatten(0, 1))
            added_BNK = added_BNK + self._lm_weight * log_probs.view_as(ids)
        return scores + added_BNK

    def advance(self, parents: Tensor, units: Tensor, live: Tensor) -> None:
        """Replace the hypotheses: each new one is hypothesis `parents` (B, N) extended by a unit of
        `units` (B, N).

        `live`: (B, N) which of them continue.
        """
        past_BNL = self.units.gather(1, parents[..., None].expand(-1, -1, self.units.size(2)))
        self.units = torch.cat([past_BNL, units[..., None]], dim=2)
        self._visible_BNS = self._visible_BNS.gather(
            1, parents[..., None].expand_as(self._visible_BNS)
        )
        self.live = live
        if self._lm is not None:
            rows_B1 = torch.arange(len(parents), device=parents.device)[:, None]
            states = self._lm_states[rows_B1, parents]
            after = self._lm.advance(states.flatten(0, 1), units.flatten())
            self._lm_states = torch.unflatten(after, 0, units.shape)

    def keep(self, rows_on_cpu: Tensor) -> Tensor:
        """Remove all utterances except these (B',). Returns their rows on the device."""
        rows = copy_to(self.live.device, rows_on_cpu)
        self._cache.keep_utterances(rows)
        self.utterances, self.units, self.live = (
            self.utterances[rows_on_cpu],
            self.units[rows],
            self.live[rows],
        )
        self._visible_BNS = self._visible_BNS[rows]
        self.max_units, self._min_units_B = (
            self.max_units[rows_on_cpu],
            self._min_units_B[rows_on_cpu],
        )
        self._lm_states = self._lm_states[rows]
        return rows

    def without_end(
        self, units: Tensor, scores: Tensor
    ) -> list[list[tuple[tuple[int, ...], float]]]:
        """The units between <sos> and <eos>, and the score, of each hypothesis that is possible,
        per utterance.

        units: (B', N, L), scores: (B', N). They are read together, because each reading waits for
        the device.
        Raises CheckpointError for a score that is NaN.
        """
        found: list[list[tuple[tuple[int, ...], float]]] = []
        for rows in torch.cat([scores.double()[..., None], units.double()], dim=-1).tolist():
            found.append([])
            for score, _, *values in rows:
                if math.isnan(score):
                    raise CheckpointError("scores of the search", "NaN", DIVERGED)
                if score > -math.inf:
                    ids = [int(value) for value in values]
                    found[-1].append(
                        (tuple(ids[: ids.index(self._eos)] if self._eos in ids else ids), score)
                    )
        return found

    def read(self, done: Tensor) -> Tensor:
        """(B,) of the device on the CPU, after a step; and once in a while `_compact`, whose size
        is read with it.
        """
        if self._cache.num_nodes < self._compact_at:
            return done.cpu()
        used_BS = (self._visible_BNS & self.live[..., None]).any(dim=1)
        size, *flags = torch.cat([used_BS.sum(dim=1).amax()[None], done]).tolist()
        self._compact(used_BS, max(1, size))
        return torch.tensor(flags, dtype=torch.bool)

    def _compact(self, used_BS: Tensor, size: int) -> None:
        """Remove the cached nodes that are on no continuing hypothesis: most, as survivors share
        their beginnings.
        """
        nodes_BS = (~used_BS).to(torch.uint8).argsort(dim=1, stable=True)[:, :size]
        self._visible_BNS = self._visible_BNS.gather(
            2, nodes_BS[:, None].expand(-1, self.live.size(1), -1)
        )
        self._cache.keep_nodes(nodes_BS)
        self._compact_at = max(_COMPACT_ABOVE, size + size // 2)


class AttentionSearch(BeamSearch):
    """Search by WeNet's rules.

    There is no length normalisation during the search, and ended hypotheses stay in it.

    The number of units is at most the number of encoder frames, and a hypothesis that is cut at
    this limit competes as if it had ended. WeNet uses the limit of the longest utterance of the
    batch, so its results change with the batch. Here each utterance has its own limit, which is
    WeNet's for batch size 1.

    The final score is the log-probability of units and end, divided by (number of units) **
    length_penalty. With a length penalty an empty hypothesis is last, and its score is not divided.
    """

    def __init__(
        self,
        model: AsrModel,
        memory: Tensor,
        lengths: Tensor,
        options: DecodeOptions,
        lm: LanguageModel | None = None,
    ) -> None:
        """memory: (B, T, D) encoder output; lengths: (B,) in T, at least 1; lm: weighted by
        `lm_weight`.
        """
        super().__init__(model, memory, lengths, options, lm)
        # An unused row of the beam has score -inf.
        self._scores_BN = memory.new_full(self.live.shape, -math.inf, dtype=torch.float32)
        self._scores_BN[:, 0] = 0.0
        self._ended_BN = torch.zeros_like(self.live)

    def step(self) -> Tensor:
        values_BNK, ids_BNK = self._candidates()
        totals_BC = (self._scores_BN[..., None] + values_BNK).flatten(1)
        # A stable sort, not topk: of two equal scores the earlier hypothesis wins, on every
        # machine.
        order_BN = totals_BC.argsort(dim=1, descending=True, stable=True)[:, : values_BNK.size(1)]
        self._scores_BN = totals_BC.gather(1, order_BN)
        units_BN = ids_BNK.flatten(1).gather(1, order_BN)
        self._ended_BN = units_BN == self._eos
        live_BN = ~(self._ended_BN | self._scores_BN.isneginf())
        self.advance(order_BN // values_BNK.size(2), units_BN, live_BN)
        return (
            self.at_limit() | self.read(self._is_complete())
            if self.should_sync()
            else self.at_limit()
        )

    def keep(self, rows_on_cpu: Tensor) -> Tensor:
        rows = super().keep(rows_on_cpu)
        self._scores_BN, self._ended_BN = self._scores_BN[rows], self._ended_BN[rows]
        return rows

    def nbest(self, rows: Tensor) -> list[list[Hypothesis]]:
        penalty, nbests = self._options.length_penalty, []
        for pairs in self.without_end(self.units[rows], self._scores_BN[rows]):
            found = [
                Hypothesis(ids, score / len(ids) ** penalty if ids else score)
                for ids, score in pairs
            ]
            found.sort(key=lambda one: (bool(one.ids) or not penalty, one.score), reverse=True)
            nbests.append(found)
        return nbests

    def _is_complete(self) -> Tensor:
        """(B,) whether no continuing hypothesis can get among the `nbest` that are asked for."""
        done_BN = self._ended_BN | self._scores_BN.isneginf()
        nbest = self._options.nbest
        # Scores never rise, and of two equal scores the earlier one wins: so the first hypotheses
        # that have ended stay first. A length bonus makes scores rise, and a length penalty changes
        # the order at the end: then all must end.
        if nbest is None or self._options.length_penalty or self._options.length_bonus:
            return done_BN.all(dim=1)
        return done_BN[:, :nbest].all(dim=1)

    def _candidates(self) -> tuple[Tensor, Tensor]:
        """Scores and ids (B, N, K) of the best next units per hypothesis; <eos> with score 0 if it
        has ended.
        """
        hidden_MD = self.hidden()
        num_candidates = self._scores_BN.size(1) * (_FUSION_CANDIDATES if self.has_fusion else 1)
        # One more if <eos> may be forbidden for any utterance: the batch must not change the
        # candidates.
        num_candidates += self._options.min_len_ratio > 0
        values_MK, ids_MK = self._head.topk(hidden_MD, min(num_candidates, self._head.num_units))
        values_BNK, ids_BNK = self.scatter(values_MK, -math.inf), self.scatter(ids_MK, self._eos)
        values_BNK = self.add_fusion(values_BNK, ids_BNK)
        too_short_B = self.too_short()
        if too_short_B is not None:
            values_BNK = values_BNK.masked_fill(
                too_short_B[:, None, None] & (ids_BNK == self._eos), -math.inf
            )
        repeated_eos_K = torch.full_like(values_BNK[0, 0], -math.inf)
        repeated_eos_K[0] = 0.0
        values_BNK = torch.where(self._ended_BN[..., None], repeated_eos_K, values_BNK)
        return values_BNK, ids_BNK.masked_fill(self._ended_BN[..., None], self._eos)
