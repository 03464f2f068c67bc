# SPDX-License-Identifier: Apache-2.0
"""The hypotheses of a beam search with the attention decoder: their units, and the decoder's vectors for the next ones.

Dimension key: B utterances still searched, N beam, M hypotheses that go on, P = B · N, L units so far (<sos> first), S
nodes of the trees of hypotheses, T frames, D width, K what is found for each hypothesis.
"""

import torch
from torch import Tensor

from wenet_hs.model import AsrModel
from wenet_hs.nn.layers import length_mask
from wenet_hs.nn.tree_kv_cache import NewNodes

_COMPACT_ABOVE = 64
_CHECK_EVERY_ON_GPU = 8


class Beam:
    """N places for each utterance still searched. Utterances leave, and nodes that no hypothesis goes through.

    On a CPU only the hypotheses that go on are computed. On a GPU to know which they are would stop its queue at every
    unit: there all places are computed, and only every eighth step looks who is done.
    """

    def __init__(self, model: AsrModel, memory: Tensor, lengths: Tensor, beam_size: int) -> None:
        self._decoder = model.decoder
        self._cache = model.decoder.init_cache(memory, length_mask(lengths, memory.size(1)))
        self._waits = self.waits(memory.device)
        shape = (len(memory), beam_size)
        self.units = lengths.new_full((*shape, 1), model.special.sos, dtype=torch.int64)
        """(B, N, L)"""
        self.live = torch.zeros(shape, dtype=torch.bool, device=memory.device)
        """(B, N) which places hold a hypothesis that goes on: at the start <sos> in the first."""
        self.live[:, 0] = True
        self._visible_BNS = self.live.new_zeros(*shape, 0)
        self._itself_NN = torch.eye(beam_size, dtype=torch.bool, device=memory.device)
        self._compact_at = _COMPACT_ABOVE
        self.utterances = torch.arange(len(memory), device=memory.device)
        """(B,) which of the given utterances are still searched."""

    @staticmethod
    def waits(device: torch.device) -> bool:
        """Whether a look at what was computed is free."""
        return device.type == "cpu"

    @property
    def num_units(self) -> int:
        """How many units, without <sos>, the hypotheses that go on have: all the same."""
        return self.units.size(2) - 1

    def looks(self) -> bool:
        """Whether to ask, in this step, what only the device knows."""
        return self._waits or self.num_units % _CHECK_EVERY_ON_GPU == 0

    def hidden(self) -> tuple[Tensor, Tensor | None]:
        """The decoder's vectors (M, D) for the unit behind each hypothesis, and the places (M,) out of B · N that they
        are of; None for the places where they are of all. To be called once a step."""
        places = self.live.flatten().nonzero().flatten() if self._waits else None
        if places is not None and len(places) == self.live.numel():
            places = None
        last_P = self.units[:, :, -1].reshape(-1)
        last_M = last_P if places is None else last_P[places]
        self._visible_BNS = torch.cat([self._visible_BNS, self._itself_NN.expand(len(self.units), -1, -1)], dim=2)
        depths_M = torch.full_like(last_M, self.num_units)
        return self._decoder.decode_step(self._cache, NewNodes(last_M, depths_M, self._visible_BNS, places)), places

    def advance(self, parents: Tensor, units: Tensor, live: Tensor) -> None:
        """Put other hypotheses into the places: the one of place `parents` (B, N) and one of `units` (B, N) behind it.

        `live` (B, N) says which of them go on.
        """
        past_BNL = self.units.gather(1, parents[..., None].expand(-1, -1, self.units.size(2)))
        self.units = torch.cat([past_BNL, units[..., None]], dim=2)
        self._visible_BNS = self._visible_BNS.gather(1, parents[..., None].expand_as(self._visible_BNS))
        self.live = live
        if self._cache.num_nodes >= self._compact_at and self.looks():
            self._compact()

    def keep(self, rows: Tensor) -> None:
        """Go on with the utterances `rows` (B',) alone."""
        self._cache.keep_utterances(rows)
        self.utterances, self.units, self.live = self.utterances[rows], self.units[rows], self.live[rows]
        self._visible_BNS = self._visible_BNS[rows]

    def _compact(self) -> None:
        """Forget the nodes that no hypothesis that goes on has: most, for the survivors of a beam soon begin alike."""
        used_BS = (self._visible_BNS & self.live[..., None]).any(dim=1)
        room = max(1, int(used_BS.sum(dim=1).max())) if len(used_BS) else 1
        nodes_BS = (~used_BS).to(torch.uint8).argsort(dim=1, stable=True)[:, :room]
        self._visible_BNS = self._visible_BNS.gather(2, nodes_BS[:, None].expand(-1, self.live.size(1), -1))
        self._cache.keep_nodes(nodes_BS)
        self._compact_at = max(_COMPACT_ABOVE, room + room // 2)


def place(rows_MK: Tensor, places: Tensor | None, shape: torch.Size, filling: float) -> Tensor:
    """What was found for M hypotheses in their places among all: (M, K) → (B, N, K), `filling` in the others."""
    if places is None:
        return rows_MK.reshape(*shape, -1)
    out_PK = rows_MK.new_full((shape.numel(), rows_MK.size(1)), filling)
    return out_PK.index_copy_(0, places, rows_MK).view(*shape, -1)
