# SPDX-License-Identifier: Apache-2.0
"""Heads limited to some of their units, for recognition with a known inventory of units.

Dimension key: N rows, D width, V unit ids, U units that are left, K best.
"""

import math
from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from wenet_hs.heads.base import OutputHead, weighted_cost
from wenet_hs.heads.kernels.search import topk_lowest_id_first


def restrict_head(
    head: OutputHead, source_of: Mapping[int, int], num_units: int | None = None
) -> "RestrictedHead":
    """The distribution of a head over some units, which keep their ids.

    All others have probability 0. For decoding.

    It is renormalised over all units that are left.

    Args:
        source_of: per unit id that is left, the unit of `head` that it is computed from: itself, or
            for a unit that `head` does not have the one beside which it is placed. Units with one
            source share its probability equally. At least two sources.
        num_units: the number of unit ids; default: that of `head`.
    """
    restricted = RestrictedHead(head, dict(sorted(source_of.items())), num_units or head.num_units)
    return restricted.to(next(head.parameters()).device)


class RestrictedHead(OutputHead):
    """The distribution of another head, with the unit ids of the whole table; see `restrict_head`."""

    unit_ids: Tensor
    """(U,) the units that are left, ascending."""
    sources: Tensor
    """(U,) the unit of `head` that each is computed from."""
    log_shares: Tensor
    """(U,) minus the logarithm of the number of units with the same source."""

    def __init__(self, head: OutputHead, source_of: Mapping[int, int], num_units: int) -> None:
        """`source_of`: per unit id, ascending, the unit of `head` that it is computed from."""
        super().__init__(head.dim, num_units)
        self.head = head
        sources, all_units = list(source_of.values()), list(range(head.num_units))
        self._is_renumbering = sources == all_units
        self._is_normalized = sorted(set(sources)) == all_units
        counts = Counter(sources)
        shares = [-math.log(counts[source]) for source in sources]
        self.register_buffer("unit_ids", torch.tensor(list(source_of)), persistent=False)
        self.register_buffer("sources", torch.tensor(sources), persistent=False)
        self.register_buffer(
            "log_shares", torch.tensor(shares, dtype=torch.float64), persistent=False
        )

    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """As of every head, of the units that are left: K is at most their number."""
        return super().topk(hidden, min(k, len(self.unit_ids)))

    def _left_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, U)"""
        found_NU = self.head._log_probs(hidden_ND).index_select(-1, self.sources)
        found_NU = found_NU + self.log_shares.to(found_NU)
        return found_NU if self._is_normalized else found_NU.log_softmax(-1)

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        all_NV = hidden_ND.new_full((hidden_ND.size(0), self.num_units), -math.inf)
        return all_NV.index_copy(-1, self.unit_ids, self._left_log_probs(hidden_ND))

    def _cross_entropy(
        self, hidden_ND: Tensor, targets_N: Tensor, on_target: float, on_all: float
    ) -> Tensor:
        return weighted_cost(self._log_probs(hidden_ND), targets_N, on_target, on_all)

    def _topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if self._is_renumbering:
            values_NK, found_NK = self.head._topk(hidden_ND, k)
        else:
            values_NK, found_NK = topk_lowest_id_first(self._left_log_probs(hidden_ND), k)
        return values_NK, self.unit_ids[found_NK]
