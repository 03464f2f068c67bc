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
    """A head with the distribution of `head` over the units in `source_of`, for decoding.

    The units keep their ids, all other units have probability 0, and the probabilities of the units
    in `source_of` are divided by their sum.

    Args:
        source_of: unit id → the unit of `head` whose probability it gets. That is the unit itself.
            For a unit that `head` does not have, it is the unit beside which it is placed. Units
            with the same source share its probability equally. There must be at least two sources.
        num_units: the number of unit ids; default: that of `head`.
    """
    ordered_sources = dict(sorted(source_of.items()))
    restricted = RestrictedHead(head, ordered_sources, num_units or head.num_units)
    device = next(head.parameters()).device
    return restricted.to(device)


class RestrictedHead(OutputHead):
    """The distribution of another head over a part of the unit ids; see `restrict_head`."""

    unit_ids: Tensor
    """(U,) the units that are left, ascending."""
    sources: Tensor
    """(U,) the unit of `head` whose probability each gets."""
    log_shares: Tensor
    """(U,) float64: the logarithm of each unit's share in the probability of its source."""

    def __init__(self, head: OutputHead, source_of: Mapping[int, int], num_units: int) -> None:
        """`source_of`: unit id, ascending → the unit of `head` whose probability it gets."""
        super().__init__(head.dim, num_units)
        self.head = head
        sources = list(source_of.values())
        units_of_head = list(range(head.num_units))
        # Whether the units of `head` have the same order here, and all are left.
        self._is_renumbering = sources == units_of_head
        # Whether all units of `head` are sources, so that the probabilities sum to one.
        self._is_normalized = sorted(set(sources)) == units_of_head
        num_units_of_source = Counter(sources)
        log_shares = [-math.log(num_units_of_source[source]) for source in sources]
        tables = {
            "unit_ids": torch.tensor(list(source_of)),
            "sources": torch.tensor(sources),
            "log_shares": torch.tensor(log_shares, dtype=torch.float64),
        }
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """As for every head, over the units that are left; K is at most their number."""
        return super().topk(hidden, min(k, len(self.unit_ids)))

    def _remaining_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) → (N, U): the log-probabilities of the units that are left, which sum to one."""
        of_sources_NU = self.head._log_probs(hidden_ND).index_select(-1, self.sources)
        log_probs_NU = of_sources_NU + self.log_shares.to(of_sources_NU)
        if self._is_normalized:
            return log_probs_NU
        return log_probs_NU.log_softmax(-1)

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) → (N, V): -inf for all units that are not left."""
        all_NV = hidden_ND.new_full((hidden_ND.size(0), self.num_units), -math.inf)
        return all_NV.index_copy(-1, self.unit_ids, self._remaining_log_probs(hidden_ND))

    def _cross_entropy(
        self, hidden_ND: Tensor, targets_N: Tensor, on_target: float, on_all: float
    ) -> Tensor:
        return weighted_cost(self._log_probs(hidden_ND), targets_N, on_target, on_all)

    def _topk(self, hidden_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best units of each row: log-probabilities (N, K) and unit ids (N, K) int64.

        If all units of the other head are left, in the same order, its own search finds them.
        """
        if self._is_renumbering:
            values_NK, index_NK = self.head._topk(hidden_ND, k)
        else:
            values_NK, index_NK = topk_lowest_id_first(self._remaining_log_probs(hidden_ND), k)
        return values_NK, self.unit_ids[index_NK]
