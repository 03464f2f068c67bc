# SPDX-License-Identifier: Apache-2.0
"""Beam search with the attention decoder, for all utterances of a batch at once: the beam
(`BeamSearch`), and the search by WeNet's rules (`AttentionSearch`).

Dimension key: B utterances still searched, N beam, K candidates per hypothesis, C = N · K, M
hypotheses that continue, P = B · N, L units so far (<sos> first), S nodes in the decoder's cache, T
frames, D width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
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
"""The decoder's cache is first reduced to the nodes in use when it has this many."""
_SYNC_EVERY_ON_GPU = 8
"""Steps between two readings of a GPU."""
_ROUNDING = 1e-9  # 0.29 · 100 is 28.999999999999996
UNUSED = -math.inf
"""The score of a row of the beam that holds no hypothesis."""


class BeamSearch(ABC):
    """N hypotheses per utterance: units, decoder state, length limits and shallow fusion.

    A subclass holds the scores, and chooses the hypotheses that continue:

    - `step` calls `hidden` once, then `advance` once with the chosen hypotheses. It may leave out
      `advance` if all utterances are finished. Rows of the beam that hold no hypothesis, or one
      that has ended, are False in `live`.
    - `step` reads values of the device only if `should_sync()`, by `read_flags`.
    - `nbest` makes the results of the utterances that `step` returned as finished. They leave the
      batch afterwards, by `keep`.
    - A subclass extends `keep`: it selects the rows of each of its own tensors (B, …).

    On CPU only the hypotheses that continue are computed. On GPU, reading which ones continue would
    wait for the device at every unit. So there all hypotheses are computed, and the device is read
    at every eighth step only. Nodes that no hypothesis uses any more leave the decoder's cache.
    """

    def __init__(
        self,
        model: AsrModel,
        memory: Tensor,
        lengths: Tensor,
        options: DecodeOptions,
        lm: LanguageModel | None,
    ) -> None:
        """memory: (B, T, D) encoder output; lengths: (B,) in T, at least 1.

        `lm` has an effect only with `lm_weight`.
        """
        self._decoder, self._head = model.left
        self._eos = model.special.eos
        self._options = options
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
        """Which nodes of the cache are units of each hypothesis."""
        self._itself_NN = torch.eye(options.beam_size, dtype=torch.bool, device=memory.device)
        self._compact_at = _COMPACT_ABOVE
        self._rows_M: Tensor | None = None
        """The hypotheses of the last `hidden()` as indices into P; None: all P of them."""
        frames_B = lengths.cpu().double()  # the only wait before the first step
        self.max_units = (frames_B * options.max_len_ratio + _ROUNDING).long().clamp(min=1)
        """(B,) int64 on the CPU: maximum number of units."""
        min_units_B = (frames_B * options.min_len_ratio + _ROUNDING).long()
        self._min_units_B = torch.minimum(min_units_B, self.max_units)
        self._lm = lm if options.lm_weight else None
        self._lm_weight = options.lm_weight
        self._length_bonus = options.length_bonus
        self._lm_states = torch.zeros(shape, device=memory.device)
        """(B, N, …), without a language model unused."""
        if self._lm is not None:
            states_P = self._lm.start(self.live.numel(), memory.device)
            self._lm_states = torch.unflatten(states_P, 0, shape)

    @abstractmethod
    def step(self) -> Tensor:
        """Extend all hypotheses by one unit.

        Returns (B,) bool on the CPU: the utterances that are finished.
        """

    @abstractmethod
    def nbest(self, rows: Tensor) -> list[list[Hypothesis]]:
        """The hypotheses of the utterances `rows` (B',), best first. `rows` is on the device."""

    def search(self) -> list[list[Hypothesis]]:
        """The hypotheses of each utterance, best first.

        Raises CheckpointError for a score that is NaN.
        """
        results: list[list[Hypothesis]] = [[] for _ in self.utterances]
        while len(self.utterances):
            is_done_B = self.step()
            if bool(is_done_B.any()):
                done_rows = copy_to(self.live.device, is_done_B.nonzero().flatten())
                done_utterances = self.utterances[is_done_B].tolist()
                for utterance, nbest in zip(done_utterances, self.nbest(done_rows), strict=True):
                    results[utterance] = nbest[: self._options.nbest]
                self.keep((~is_done_B).nonzero().flatten())
        return results

    # ---- what the steps of subclasses use

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
        """(B,) bool on the CPU: utterances whose hypotheses have the maximum number of units."""
        return self.num_units >= self.max_units

    def too_short(self) -> Tensor | None:
        """(B,) bool, on the device: utterances whose hypotheses may not end yet.

        None if there are none.
        """
        short_B = self.num_units < self._min_units_B
        return copy_to(self.live.device, short_B) if bool(short_B.any()) else None

    def hidden(self) -> Tensor:
        """Decoder output (M, D) for the next unit of each hypothesis that continues.

        On a GPU it is that of all P hypotheses. Each call adds their last units to the decoder's
        cache as nodes, so call it once per step.
        """
        self._rows_M = None
        if self.sync_is_free:
            rows_M = self.live.flatten().nonzero().flatten()
            if len(rows_M) < self.live.numel():
                self._rows_M = rows_M
        last_P = self.units[:, :, -1].reshape(-1)
        last_M = last_P if self._rows_M is None else last_P[self._rows_M]
        # Each new node is visible to its own hypothesis only.
        new_nodes_BNN = self._itself_NN.expand(len(self.units), -1, -1)
        self._visible_BNS = torch.cat([self._visible_BNS, new_nodes_BNN], dim=2)
        depths_M = torch.full_like(last_M, self.num_units)
        nodes = NewNodes(last_M, depths_M, self._visible_BNS, self._rows_M)
        return self._decoder.decode_step(self._cache, nodes)

    def scatter(self, values_MK: Tensor, fill: float) -> Tensor:
        """Values (M, K) of the hypotheses of the last `hidden()` as (B, N, K).

        All other hypotheses get `fill`.
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
        """Replace the hypotheses by old ones that are extended by one unit.

        Args:
            parents: (B, N) index of the old hypothesis of each new one.
            units: (B, N) the unit that each new one adds.
            live: (B, N) bool, which of the new ones continue.
        """
        parents_BN1 = parents[..., None]
        past_BNL = self.units.gather(1, parents_BN1.expand_as(self.units))
        self.units = torch.cat([past_BNL, units[..., None]], dim=2)
        self._visible_BNS = self._visible_BNS.gather(1, parents_BN1.expand_as(self._visible_BNS))
        self.live = live
        if self._lm is not None:
            rows_B1 = torch.arange(len(parents), device=parents.device)[:, None]
            states = self._lm_states[rows_B1, parents]
            states_P = self._lm.advance(states.flatten(0, 1), units.flatten())
            self._lm_states = torch.unflatten(states_P, 0, units.shape)

    def keep(self, rows_on_cpu: Tensor) -> Tensor:
        """Remove all utterances except the rows (B',). Returns these rows on the device."""
        rows = copy_to(self.live.device, rows_on_cpu)
        self._cache.keep_utterances(rows)
        self.utterances = self.utterances[rows_on_cpu]
        self.max_units = self.max_units[rows_on_cpu]
        self._min_units_B = self._min_units_B[rows_on_cpu]
        self.units = self.units[rows]
        self.live = self.live[rows]
        self._visible_BNS = self._visible_BNS[rows]
        self._lm_states = self._lm_states[rows]
        return rows

    def read_texts(self, units: Tensor, scores: Tensor) -> list[list[ScoredText]]:
        """Per utterance the text and score of each hypothesis that is possible, in their order.

        A score of -inf is that of no hypothesis. Units and scores are read in one tensor, because
        each reading waits for the device.

        Args:
            units: (B', N, L), <sos> first; what follows <eos> is dropped.
            scores: (B', N).
        Raises: CheckpointError for a score that is NaN.
        """
        texts: list[list[ScoredText]] = []
        for rows in torch.cat([scores.double()[..., None], units.double()], dim=-1).tolist():
            texts_of_utterance = []
            for score, _sos, *units_and_end in rows:
                if math.isnan(score):
                    raise CheckpointError("scores of the search", "NaN", DIVERGED)
                if score > UNUSED:
                    ids = [int(unit) for unit in units_and_end]
                    length = ids.index(self._eos) if self._eos in ids else len(ids)
                    texts_of_utterance.append(ScoredText(tuple(ids[:length]), score))
            texts.append(texts_of_utterance)
        return texts

    def read_flags(self, flags_B: Tensor) -> Tensor:
        """A tensor (B,) bool of the device, copied to the CPU.

        It waits for the device. If the decoder's cache has become large, nodes that are not in use
        are removed from it. The number of those to keep is read in the same tensor as the flags,
        so that there is one wait for both.
        """
        if self._cache.num_nodes < self._compact_at:
            return flags_B.cpu()
        is_used_BS = (self._visible_BNS & self.live[..., None]).any(dim=1)
        most_used = is_used_BS.sum(dim=1).amax()  # of all utterances: they keep equally many
        num_used, *flags = torch.cat([most_used[None], flags_B]).tolist()
        num_kept = max(1, num_used)  # 0 if no hypothesis continues; the cache keeps a node
        self._compact(is_used_BS, num_kept)
        return torch.tensor(flags, dtype=torch.bool)

    def _compact(self, is_used_BS: Tensor, num_kept: int) -> None:
        """Reduce the cache to `num_kept` nodes per utterance, those in use first.

        Most nodes are not in use, because the hypotheses that survive share their beginnings.
        """
        order_BS = (~is_used_BS).to(torch.uint8).argsort(dim=1, stable=True)
        kept_BS = order_BS[:, :num_kept]
        kept_BNS = kept_BS[:, None].expand(-1, self.live.size(1), -1)
        self._visible_BNS = self._visible_BNS.gather(2, kept_BNS)
        self._cache.keep_nodes(kept_BS)
        self._compact_at = max(_COMPACT_ABOVE, num_kept + num_kept // 2)


@dataclass(frozen=True)
class ScoredText:
    """The units of a hypothesis between <sos> and <eos>, and its score."""

    ids: tuple[int, ...]
    score: float


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
        """memory: (B, T, D) encoder output; lengths: (B,) in T, at least 1."""
        super().__init__(model, memory, lengths, options, lm)
        # At the start one hypothesis, with probability 1.
        self._scores_BN = memory.new_full(self.live.shape, UNUSED, dtype=torch.float32)
        self._scores_BN[:, 0] = 0.0
        self._has_ended_BN = torch.zeros_like(self.live)

    def step(self) -> Tensor:
        """Extend the hypotheses that continue by one unit or <eos>, and keep the N best.

        Hypotheses that have ended compete with them. Returns (B,) bool on the CPU: the utterances
        at their limit, and, if values are read in this step, those that are complete
        (`_is_complete`).
        """
        values_BNK, ids_BNK = self._candidates()
        totals_BC = (self._scores_BN[..., None] + values_BNK).flatten(1)
        # A stable sort, not topk: of two equal scores the earlier hypothesis wins, on every
        # machine.
        order_BC = totals_BC.argsort(dim=1, descending=True, stable=True)
        best_BN = order_BC[:, : values_BNK.size(1)]
        self._scores_BN = totals_BC.gather(1, best_BN)
        units_BN = ids_BNK.flatten(1).gather(1, best_BN)
        self._has_ended_BN = units_BN == self._eos
        is_live_BN = ~(self._has_ended_BN | self._scores_BN.isneginf())
        candidates_per_hypothesis = values_BNK.size(2)
        self.advance(best_BN // candidates_per_hypothesis, units_BN, is_live_BN)
        if not self.should_sync():
            return self.at_limit()
        return self.at_limit() | self.read_flags(self._is_complete())

    def _candidates(self) -> tuple[Tensor, Tensor]:
        """Scores and ids (B, N, K) of the best next units of each hypothesis.

        A hypothesis that has ended has one candidate, <eos> with score 0; the scores of its other
        candidates are -inf. In a hypothesis that is too short to end, the score of <eos> is -inf.
        """
        hidden_MD = self.hidden()
        num_candidates = self._options.beam_size
        if self.has_fusion:
            num_candidates *= _FUSION_CANDIDATES
        if self._options.min_len_ratio > 0:
            # One more, because <eos> may be forbidden. Also for utterances where it is not: the
            # batch must not change the candidates.
            num_candidates += 1
        values_MK, ids_MK = self._head.topk(hidden_MD, min(num_candidates, self._head.num_units))
        values_BNK = self.scatter(values_MK, -math.inf)
        ids_BNK = self.scatter(ids_MK, self._eos)
        values_BNK = self.add_fusion(values_BNK, ids_BNK)
        too_short_B = self.too_short()
        if too_short_B is not None:
            is_forbidden_BNK = too_short_B[:, None, None] & (ids_BNK == self._eos)
            values_BNK = values_BNK.masked_fill(is_forbidden_BNK, -math.inf)
        has_ended_BN1 = self._has_ended_BN[..., None]
        repeated_eos_K = torch.full_like(values_BNK[0, 0], -math.inf)
        repeated_eos_K[0] = 0.0  # the first candidate, so that the score stays as it is
        values_BNK = torch.where(has_ended_BN1, repeated_eos_K, values_BNK)
        return values_BNK, ids_BNK.masked_fill(has_ended_BN1, self._eos)

    def _is_complete(self) -> Tensor:
        """(B,) bool: whether no continuing hypothesis can get among the `nbest` asked for."""
        options = self._options
        is_done_BN = self._has_ended_BN | self._scores_BN.isneginf()
        # Scores never rise, and of two equal scores the earlier one wins: so the first hypotheses
        # that have ended stay first. A length bonus makes scores rise, and a length penalty changes
        # the order at the end: then all must end.
        can_order_change = options.length_penalty or options.length_bonus
        if options.nbest is None or can_order_change:
            return is_done_BN.all(dim=1)
        return is_done_BN[:, : options.nbest].all(dim=1)

    def keep(self, rows_on_cpu: Tensor) -> Tensor:
        rows = super().keep(rows_on_cpu)
        self._scores_BN = self._scores_BN[rows]
        self._has_ended_BN = self._has_ended_BN[rows]
        return rows

    def nbest(self, rows: Tensor) -> list[list[Hypothesis]]:
        """The hypotheses of the utterances `rows` (B',) with their final scores, best first."""
        penalty = self._options.length_penalty
        nbests = []
        for texts in self.read_texts(self.units[rows], self._scores_BN[rows]):
            nbest = []
            for text in texts:
                divisor = len(text.ids) ** penalty if text.ids else 1.0
                nbest.append(Hypothesis(text.ids, text.score / divisor))
            nbest.sort(key=lambda hypothesis: hypothesis.score, reverse=True)
            if penalty:
                # The score of an empty hypothesis is not divided, so it cannot be compared: last.
                nbest.sort(key=lambda hypothesis: not hypothesis.ids)
            nbests.append(nbest)
        return nbests
