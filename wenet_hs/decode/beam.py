# SPDX-License-Identifier: Apache-2.0
"""The beam of the decoder searches: units, decoder state, length limits and shallow fusion per hypothesis.

Dimension key: B utterances still searched, N beam, K candidates per hypothesis, M hypotheses that continue, P = B · N,
L units so far (<sos> first), S nodes of the trees of hypotheses, T frames, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wenet_hs.decode.hypothesis import DecodeOptions
from wenet_hs.nn.layers import length_mask
from wenet_hs.nn.transformer import NewNodes

if TYPE_CHECKING:
    from wenet_hs.decode.lm import LanguageModel
    from wenet_hs.model import AsrModel

_COMPACT_ABOVE = 64
_SYNC_EVERY_ON_GPU = 8
_ROUNDING = 1e-9  # 0.29 · 100 is 28.999999999999996


class Beam:
    """N hypotheses per utterance. Finished utterances leave the batch, unused nodes leave the decoder's cache.

    On CPU only the hypotheses that continue are computed. On GPU reading which ones continue would wait for the device
    at every unit: there all hypotheses are computed, and the device is read at every eighth step only.
    """

    def __init__(
        self,
        model: AsrModel,
        memory: Tensor,
        lengths: Tensor,
        options: DecodeOptions,
        lm: LanguageModel | None = None,
    ) -> None:
        self._decoder, self._eos = model.left_decoder, model.special.eos
        self._cache = self._decoder.init_cache(memory, length_mask(lengths, memory.size(1)))
        self._sync_is_free = self.sync_is_free(memory.device)
        shape = (len(memory), options.beam_size)
        self.units = lengths.new_full((*shape, 1), model.special.sos, dtype=torch.int64)
        """(B, N, L)"""
        self.live = torch.zeros(shape, dtype=torch.bool, device=memory.device)
        """(B, N) hypotheses that continue: at the start only the first one, which is <sos>."""
        self.live[:, 0] = True
        self.utterances = torch.arange(len(memory), device=memory.device)
        """(B,) index of each remaining utterance in the given batch."""
        self._visible_BNS = self.live.new_zeros(*shape, 0)
        self._itself_NN = torch.eye(options.beam_size, dtype=torch.bool, device=memory.device)
        self._compact_at = _COMPACT_ABOVE
        self._rows_M: Tensor | None = None
        frames_B = lengths.cpu().double()
        self.max_units = (frames_B * options.max_len_ratio + _ROUNDING).long().clamp(min=1)
        """(B,) int64 on the CPU: maximum number of units."""
        self._min_units_B = torch.minimum((frames_B * options.min_len_ratio + _ROUNDING).long(), self.max_units)
        self._lm, self._lm_weight = lm if options.lm_weight else None, options.lm_weight
        self._length_bonus = options.length_bonus
        self._lm_states = None if self._lm is None else _per_beam(self._lm.start(shape[0] * shape[1]), shape)
        if self._lm_states is not None:
            self._lm_states = self._lm_states.to(memory.device)

    @staticmethod
    def sync_is_free(device: torch.device) -> bool:
        """Whether reading a computed value costs no waiting."""
        return device.type == "cpu"

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
        return self._sync_is_free or self.num_units % _SYNC_EVERY_ON_GPU == 0

    def at_limit(self) -> Tensor:
        """(B,) on the CPU: utterances whose hypotheses have the maximum number of units."""
        return self.num_units >= self.max_units

    def too_short(self) -> Tensor | None:
        """(B,) utterances whose hypotheses may not end yet; None if there are none."""
        short_B = self.num_units < self._min_units_B
        return short_B.to(self.live.device) if bool(short_B.any()) else None

    def hidden(self) -> Tensor:
        """Decoder output (M, D) for the next unit of each hypothesis that continues. Call it once per step."""
        self._rows_M = self.live.flatten().nonzero().flatten() if self._sync_is_free else None
        if self._rows_M is not None and len(self._rows_M) == self.live.numel():
            self._rows_M = None
        last_P = self.units[:, :, -1].reshape(-1)
        last_M = last_P if self._rows_M is None else last_P[self._rows_M]
        self._visible_BNS = torch.cat([self._visible_BNS, self._itself_NN.expand(len(self.units), -1, -1)], dim=2)
        depths_M = torch.full_like(last_M, self.num_units)
        return self._decoder.decode_step(self._cache, NewNodes(last_M, depths_M, self._visible_BNS, self._rows_M))

    def scatter(self, values_MK: Tensor, fill: float) -> Tensor:
        """Values of the hypotheses of the last `hidden()`, (M, K), as (B, N, K); `fill` for all other hypotheses."""
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
        if self._lm is not None and self._lm_states is not None:
            log_probs = self._lm.score(self._lm_states.flatten(0, 1), ids.flatten(0, 1))
            added_BNK = added_BNK + self._lm_weight * log_probs.view_as(ids)
        return scores + added_BNK

    def advance(self, parents: Tensor, units: Tensor, live: Tensor) -> None:
        """Replace the hypotheses: each new one is hypothesis `parents` (B, N) extended by a unit of `units` (B, N).

        Args:
            live: (B, N) which of them continue.
        """
        past_BNL = self.units.gather(1, parents[..., None].expand(-1, -1, self.units.size(2)))
        self.units = torch.cat([past_BNL, units[..., None]], dim=2)
        self._visible_BNS = self._visible_BNS.gather(1, parents[..., None].expand_as(self._visible_BNS))
        self.live = live
        if self._lm is not None and self._lm_states is not None:
            rows_B1 = torch.arange(len(parents), device=parents.device)[:, None]
            states = self._lm_states[rows_B1, parents]
            self._lm_states = _per_beam(self._lm.advance(states.flatten(0, 1), units.flatten()), units.shape)
        if self._cache.num_nodes >= self._compact_at and self.should_sync():
            self._compact()

    def keep(self, kept: Tensor) -> Tensor:
        """Remove all utterances except those that `kept` (B,), on the CPU, marks. Returns their rows (B',)."""
        rows = kept.nonzero().flatten().to(self.live.device)
        self._cache.keep_utterances(rows)
        self.utterances, self.units, self.live = self.utterances[rows], self.units[rows], self.live[rows]
        self._visible_BNS = self._visible_BNS[rows]
        self.max_units, self._min_units_B = self.max_units[kept], self._min_units_B[kept]
        if self._lm_states is not None:
            self._lm_states = self._lm_states[rows]
        return rows

    def _compact(self) -> None:
        """Remove the cached nodes that are on no continuing hypothesis: most, as survivors share their beginnings."""
        used_BS = (self._visible_BNS & self.live[..., None]).any(dim=1)
        size = max(1, int(used_BS.sum(dim=1).max())) if len(used_BS) else 1
        nodes_BS = (~used_BS).to(torch.uint8).argsort(dim=1, stable=True)[:, :size]
        self._visible_BNS = self._visible_BNS.gather(2, nodes_BS[:, None].expand(-1, self.live.size(1), -1))
        self._cache.keep_nodes(nodes_BS)
        self._compact_at = max(_COMPACT_ABOVE, size + size // 2)


def _per_beam(states_P: Tensor, shape: Sequence[int]) -> Tensor:
    """(B · N, …) → (B, N, …)."""
    return states_P.view(*shape[:2], *states_P.shape[1:])
