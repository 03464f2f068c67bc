# SPDX-License-Identifier: Apache-2.0
"""The adaptive softmax of Grave et al. 2017 (arXiv 1609.04309): `AdaptiveHead`.

It uses the module of PyTorch. P(v) is softmax(W·h)[v] for a frequent unit, and softmax(W·h)[c] ·
softmax(B_c·A_c·h)[v] for a unit of cluster c. The first softmax has one entry per cluster of rarer
units. A_c reduces the width. A cluster is computed only for the rows that need it.

Dimension key: N rows (M of them chosen), D width, V units, S units in the first softmax (the
shortlist), C = S + clusters choices there, U units of a cluster, W width of a cluster.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from wenet_hs.heads.base import OutputHead, SmoothingKind, divergence, weighted_cost
from wenet_hs.heads.gpu import copy_to, is_gpu
from wenet_hs.heads.products import linear
from wenet_hs.tree.fields import check_frequencies

MASS_SHARES = (1 / 2, 3 / 4, 7 / 8)
"""Where clusters begin by default: after the fewest units with this share of all occurrences."""

DENSE_VALUES_GPU = 2**23
"""Up to this many log-probabilities a GPU computes the cost from all units.

An estimate, not a measurement.
"""


class AdaptiveHead(OutputHead):
    """PyTorch's adaptive softmax over the units in descending order of frequency, equal ones by id.

    Rank 0 is the most frequent unit. Parameters are those of `torch.nn.AdaptiveLogSoftmaxWithLoss`
    under `adaptive.`. The ranking is not in the state_dict, because it follows from the
    frequencies in `tree.json`.
    """

    ranked_units: Tensor
    """(V,) int64: the unit id of each rank."""
    rank_of_unit: Tensor
    """(V,) int64: the rank of each unit id."""
    starts: Tensor
    """The first rank of each cluster, int64: `cutoffs` on the device of the head."""

    def __init__(
        self,
        dim: int,
        frequencies: Sequence[float] | NDArray[np.float64],
        cutoffs: Sequence[int] | None = None,
        div_value: float = 4.0,
    ) -> None:
        """Make the head with PyTorch's initial values; units are ranked by falling frequency.

        Args:
            frequencies: (V,) counts or probabilities, finite, ≥ 0.
            cutoffs: ranks at which the clusters begin, ascending, 1…V-1. None: after the fewest
                units with 1/2, 3/4 and 7/8 of all occurrences, without repetition, and with at
                least one unit in the last cluster.
            div_value: cluster i (from 1) has width D / div_value^i. A value that would give the
                last cluster a width below 1 is lowered; `self.div_value` is the value used.
        Raises ValueError: an argument is invalid.
        """
        weights = check_frequencies(frequencies)
        super().__init__(dim, len(weights))
        ranked_units = np.argsort(-weights, kind="stable")
        rank_of_unit = np.argsort(ranked_units, kind="stable")
        self.cutoffs = default_cutoffs(weights) if cutoffs is None else list(cutoffs)
        if not div_value >= 1:
            raise ValueError(f"div_value: must be at least 1, got {div_value}")
        # The last of n clusters has the width D / div_value^n, which must be at least 1. So the
        # largest value is the n-th root of D, a little less because the root may be rounded up.
        num_clusters = max(1, len(self.cutoffs))
        largest_div_value = dim ** (1 / num_clusters) * (1 - 1e-9)
        self.div_value = min(div_value, largest_div_value)
        self.adaptive = nn.AdaptiveLogSoftmaxWithLoss(
            dim, self.num_units, self.cutoffs, self.div_value
        )
        # The tables contain integers, because .half() does not change these.
        tables = {
            "ranked_units": torch.from_numpy(ranked_units),
            "starts": torch.tensor(self.cutoffs, dtype=torch.int64),
            "rank_of_unit": torch.from_numpy(rank_of_unit),
        }
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    def extra_repr(self) -> str:
        """The sizes, the cutoffs, and the `div_value` that is used."""
        return f"{super().extra_repr()}, cutoffs={self.cutoffs}, div_value={self.div_value:g}"

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) → (N, V) natural logarithms, from the first softmax and those of all clusters."""
        first_NC = self._first_log_probs(hidden_ND)
        shortlist_size = self.cutoffs[0]
        parts_by_rank = [first_NC[:, :shortlist_size]]
        for cluster in range(len(self.cutoffs)):
            cluster_entry_N1 = first_NC[:, shortlist_size + cluster, None]
            parts_by_rank.append(self._cluster_log_probs(hidden_ND, cluster) + cluster_entry_N1)
        return torch.cat(parts_by_rank, dim=-1).index_select(-1, self.rank_of_unit)

    def _cross_entropy(
        self, hidden_ND: Tensor, targets_N: Tensor, on_target: float, on_all: float
    ) -> Tensor:
        """(N,) nats: from all units if `on_all` needs them or that is faster.

        Otherwise each row needs the first softmax and the cluster of its target.
        """
        if on_all or self._is_dense_faster(hidden_ND):
            return weighted_cost(self._log_probs(hidden_ND), targets_N, on_target, on_all)
        return self._node_smoothed_loss(hidden_ND, targets_N, smoothing=0.0)

    def _node_smoothed_loss(self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        """(N,) nats: the divergence of the first softmax, plus that of the target's cluster.

        A target in the shortlist has no cluster.
        """
        first_NC = self._first_log_probs(hidden_ND)
        ranks_N = self.rank_of_unit[targets_N]
        # The cluster of each target, or -1 for a target in the shortlist.
        cluster_N = torch.bucketize(ranks_N, self.starts, right=True) - 1
        # The first softmax has the units of the shortlist by rank, then one entry per cluster.
        first_choices_N = torch.where(cluster_N < 0, ranks_N, self.cutoffs[0] + cluster_N)
        cost_N = divergence(first_NC, first_choices_N, smoothing)
        for cluster, rows_M in enumerate(self._rows_of_clusters(cluster_N)):
            log_probs_MU = self._cluster_log_probs(hidden_ND.index_select(0, rows_M), cluster)
            choices_M = ranks_N[rows_M] - self.cutoffs[cluster]
            cost_M = divergence(log_probs_MU, choices_M, smoothing)
            cost_N = cost_N.index_add(0, rows_M, cost_M)
        return cost_N

    def _rows_of_clusters(self, cluster_N: Tensor) -> tuple[Tensor, ...]:
        """The rows (M,) of each cluster, ascending.

        `cluster_N` is the cluster of each row, or -1 for the shortlist, whose rows are left out.
        The program waits for a GPU once, for the numbers of rows of all clusters.
        """
        numbers_C = torch.arange(-1, len(self.cutoffs), device=cluster_N.device)
        num_rows = (cluster_N[:, None] == numbers_C).sum(0).tolist()
        _, *cluster_rows = torch.split(cluster_N.argsort(stable=True), num_rows)
        return tuple(cluster_rows)

    def loss_and_metrics(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, kind: SmoothingKind = "leaf"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`loss` and both results of `eval_metrics`; all three are (...).

        Without smoothing the loss is also the nll, so that the clusters are computed once for both.
        """
        if smoothing or self._is_dense_faster(self._flatten_hidden(hidden)):
            return super().loss_and_metrics(hidden, targets, smoothing, kind)
        loss = self.loss(hidden, targets)
        with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
            is_best_N = self._is_best(self._flatten_hidden(hidden), targets.reshape(-1))
        return loss, loss.detach(), is_best_N.reshape(targets.shape)

    def _is_dense_faster(self, hidden_ND: Tensor) -> bool:
        """Whether a cost without smoothing is computed from the log-probabilities of all units.

        That is so on a GPU if they are few. The other way waits there for the number of rows in
        each cluster.
        """
        return is_gpu(hidden_ND.device) and len(hidden_ND) * self.num_units <= DENSE_VALUES_GPU

    def _eval_metrics(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """The nll of each target (N,) in nats and whether it is ranked first (N,)."""
        if self._is_dense_faster(hidden_ND):
            return super()._eval_metrics(hidden_ND, targets_N)
        nll_N = self._cross_entropy(hidden_ND, targets_N, on_target=1.0, on_all=0.0)
        return nll_N, self._is_best(hidden_ND, targets_N)

    def _is_best(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """(N,) bool: whether the target is the most probable unit; of equal ones the lowest id is.

        No unit of a cluster is more probable than the cluster in the first softmax. So a cluster is
        computed only for the rows in which it is at least as probable as the best shortlist unit.
        """
        first_NC = self._first_log_probs(hidden_ND)
        shortlist_size = self.cutoffs[0]
        best_N, unit_N = self._best_of_ranks(first_NC[:, :shortlist_size], start=0)
        # On the CPU, where the number of rows of a cluster is known without waiting for each one.
        is_needed_NC = (first_NC[:, shortlist_size:] >= best_N[:, None]).cpu()
        for cluster, start in enumerate(self.cutoffs):
            rows_M = copy_to(first_NC.device, is_needed_NC[:, cluster].nonzero()[:, 0])
            cluster_entry_M1 = first_NC[:, shortlist_size + cluster][rows_M, None]
            given_cluster_MU = self._cluster_log_probs(hidden_ND.index_select(0, rows_M), cluster)
            best_M, unit_M = self._best_of_ranks(given_cluster_MU + cluster_entry_M1, start)
            best_before_M = best_N[rows_M]
            unit_before_M = unit_N[rows_M]
            wins_tie_M = (best_M == best_before_M) & (unit_M < unit_before_M)
            is_ahead_M = (best_M > best_before_M) | wins_tie_M
            best_N[rows_M] = torch.where(is_ahead_M, best_M, best_before_M)
            unit_N[rows_M] = torch.where(is_ahead_M, unit_M, unit_before_M)
        return unit_N == targets_N

    def _best_of_ranks(self, log_probs_MU: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """The greatest log-probability of each row (M,), and the lowest unit id that has it (M,).

        The columns are the units of consecutive ranks from `start` on.
        """
        best_M = log_probs_MU.amax(-1)
        units_U = self.ranked_units[start : start + log_probs_MU.size(-1)]
        above_all_ids = self.num_units
        ids_of_best_MU = torch.where(log_probs_MU == best_M[:, None], units_U, above_all_ids)
        return best_M, ids_of_best_MU.amin(-1)

    def _first_log_probs(self, hidden_ND: Tensor) -> Tensor:
        """(N, C) log-probabilities of the shortlist's units, then of the clusters."""
        weight_CD = self.adaptive.head.weight.to(hidden_ND.dtype)
        return F.log_softmax(linear(hidden_ND, weight_CD), dim=-1)

    def _cluster_log_probs(self, hidden_MD: Tensor, cluster: int) -> Tensor:
        """(M, U) log-probabilities of the cluster's units, given the cluster."""
        to_width, to_units = self.adaptive.tail[cluster].parameters()
        narrow_MW = linear(hidden_MD, to_width.to(hidden_MD.dtype))
        return F.log_softmax(linear(narrow_MW, to_units.to(hidden_MD.dtype)), dim=-1)


def default_cutoffs(frequencies: NDArray[np.float64]) -> list[int]:
    """The ranks at which clusters begin by MASS_SHARES: ascending, distinct, 1…V-1.

    V is at least 2. If no unit occurs, all units count the same.
    """
    num_units = len(frequencies)
    largest = frequencies.max()
    if largest == 0:
        weights = np.ones(num_units)
    else:  # divided by the largest, so that the sum is finite
        weights = np.sort(frequencies / largest)[::-1]
    mass = np.cumsum(weights)
    # For each share the number of the most frequent units that have at least this share.
    num_frequent = np.searchsorted(mass, np.array(MASS_SHARES) * mass[-1]) + 1
    return sorted({min(int(number), num_units - 1) for number in num_frequent})
