# SPDX-License-Identifier: Apache-2.0
"""Adaptive softmax (Grave et al.

2017, arXiv 1609.04309): PyTorch's module with the contract of the output heads.

P(v) is softmax(W·h)[v] for a frequent unit, and softmax(W·h)[c] · softmax(B_c·A_c·h)[v] for a unit
of cluster c. The first softmax has one entry per cluster of rarer units. A_c reduces the width. A
cluster is computed only for the rows that need it.

Dimension key: N rows (M of them chosen), D width, V units, S units in the first softmax (the
shortlist), C = S + clusters choices there, U units of a cluster.
"""

import itertools
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
"""Default cutoffs: a cluster begins after the fewest units that have this share of all occurrences."""


DENSE_VALUES_GPU = 2**23
"""Up to so many log-probabilities. An estimate, not a measurement."""


class AdaptiveHead(OutputHead):
    """PyTorch's adaptive softmax over the units in descending order of frequency, equal ones by id.

    Parameters are those of `torch.nn.AdaptiveLogSoftmaxWithLoss` under `adaptive.`. The ranking is
    a buffer outside the state_dict, because it follows from the frequencies in `tree.json`.
    """

    ranked_units: Tensor
    rank_of_unit: Tensor
    starts: Tensor
    """The first rank of each cluster."""

    def __init__(
        self,
        dim: int,
        frequencies: Sequence[float] | NDArray[np.float64],
        cutoffs: Sequence[int] | None = None,
        div_value: float = 4.0,
    ) -> None:
        """
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
        ranked = np.argsort(-weights, kind="stable")
        self.cutoffs = default_cutoffs(weights) if cutoffs is None else list(cutoffs)
        if not div_value >= 1:
            raise ValueError(f"div_value: must be at least 1, got {div_value}")
        # Slightly below the root, which may have been rounded up.
        self.div_value = min(div_value, dim ** (1 / max(1, len(self.cutoffs))) * (1 - 1e-9))
        self.adaptive = nn.AdaptiveLogSoftmaxWithLoss(
            dim, self.num_units, self.cutoffs, self.div_value
        )
        # Integers, because .half() does not change them.
        self.register_buffer("ranked_units", torch.from_numpy(ranked), persistent=False)
        self.register_buffer(
            "starts", torch.tensor(self.cutoffs, dtype=torch.int64), persistent=False
        )
        self.register_buffer(
            "rank_of_unit", torch.from_numpy(np.argsort(ranked, kind="stable")), persistent=False
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, cutoffs={self.cutoffs}, div_value={self.div_value:g}"

    @property
    def _bounds(self) -> list[tuple[int, int]]:
        """The first rank of each cluster and the rank after its last."""
        return list(itertools.pairwise([*self.cutoffs, self.num_units]))

    def _log_probs(self, hidden_ND: Tensor) -> Tensor:
        first_NC, size = self._first(hidden_ND), self.cutoffs[0]
        parts = [first_NC[:, :size]]
        for cluster in range(len(self.cutoffs)):
            parts.append(self._cluster(hidden_ND, cluster) + first_NC[:, size + cluster, None])
        return torch.cat(parts, dim=-1).index_select(-1, self.rank_of_unit)

    def _cross_entropy(
        self, hidden_ND: Tensor, targets_N: Tensor, on_target: float, on_all: float
    ) -> Tensor:
        if on_all or self._is_dense(hidden_ND):
            return weighted_cost(self._log_probs(hidden_ND), targets_N, on_target, on_all)
        return self._node_smoothed_loss(hidden_ND, targets_N, 0.0)

    def _node_smoothed_loss(self, hidden_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
        """The divergence of the first softmax, plus that of the cluster's softmax for targets in a
        cluster.
        """
        first_NC = self._first(hidden_ND)
        ranks_N, size = self.rank_of_unit[targets_N], self.cutoffs[0]
        cluster_N = torch.bucketize(ranks_N, self.starts, right=True) - 1  # -1: the shortlist
        choices_N = torch.where(cluster_N < 0, ranks_N, size + cluster_N)
        cost_N = divergence(first_NC, choices_N, smoothing)
        numbers = torch.arange(-1, len(self.cutoffs), device=cluster_N.device)
        num_rows = (
            (cluster_N[:, None] == numbers).sum(0).tolist()
        )  # waits for a GPU, once for all clusters
        rows = cluster_N.argsort(stable=True).split(num_rows)[1:]  # type: ignore[no-untyped-call]
        for cluster, ((start, _), rows_M) in enumerate(zip(self._bounds, rows, strict=True)):
            found_MU = self._cluster(hidden_ND.index_select(0, rows_M), cluster)
            cost_M = divergence(found_MU, ranks_N[rows_M] - start, smoothing)
            cost_N = cost_N.index_add(0, rows_M, cost_M)
        return cost_N

    def loss_and_metrics(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, kind: SmoothingKind = "leaf"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Without smoothing the loss is the nll too, so that the rows of the clusters are found
        once.
        """
        if smoothing or self._is_dense(self._rows(hidden)):
            return super().loss_and_metrics(hidden, targets, smoothing, kind)
        loss = self.loss(hidden, targets)
        with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
            is_best_N = self._is_best(self._rows(hidden), targets.reshape(-1))
        return loss, loss.detach(), is_best_N.reshape(targets.shape)

    def _is_dense(self, hidden_ND: Tensor) -> bool:
        """Whether a cost without smoothing is computed from all units: on a GPU, where few values
        cost less than a wait for the number of rows in each cluster.
        """
        return is_gpu(hidden_ND.device) and len(hidden_ND) * self.num_units <= DENSE_VALUES_GPU

    def _eval_metrics(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        if self._is_dense(hidden_ND):
            return super()._eval_metrics(hidden_ND, targets_N)
        return self._cross_entropy(hidden_ND, targets_N, 1.0, 0.0), self._is_best(
            hidden_ND, targets_N
        )

    def _is_best(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """A cluster's entry in the first softmax is a bound for its units: only few rows need a
        cluster.
        """
        first_NC, size = self._first(hidden_ND), self.cutoffs[0]
        best_N, unit_N = self._best(first_NC[:, :size], 0)
        is_needed_NC = (first_NC[:, size:] >= best_N[:, None]).cpu()
        for cluster, (start, _) in enumerate(self._bounds):
            entry_N = first_NC[:, size + cluster]
            rows_M = copy_to(first_NC.device, is_needed_NC[:, cluster].nonzero()[:, 0])
            found_MU = (
                self._cluster(hidden_ND.index_select(0, rows_M), cluster) + entry_N[rows_M, None]
            )
            best_M, unit_M = self._best(found_MU, start)
            is_ahead_M = (best_M > best_N[rows_M]) | (
                (best_M == best_N[rows_M]) & (unit_M < unit_N[rows_M])
            )
            best_N[rows_M] = torch.where(is_ahead_M, best_M, best_N[rows_M])
            unit_N[rows_M] = torch.where(is_ahead_M, unit_M, unit_N[rows_M])
        return unit_N == targets_N

    def _best(self, log_probs_MU: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """The maximum of each row and the lowest id of its units; the columns begin at rank
        `start`.
        """
        best_M = log_probs_MU.amax(-1)
        units_U = self.ranked_units[start : start + log_probs_MU.size(-1)]
        return best_M, torch.where(log_probs_MU == best_M[:, None], units_U, self.num_units).amin(
            -1
        )

    def _first(self, hidden_ND: Tensor) -> Tensor:
        """(N, C) log-probabilities of the shortlist and of each cluster."""
        return F.log_softmax(
            linear(hidden_ND, self.adaptive.head.weight.to(hidden_ND.dtype)), dim=-1
        )

    def _cluster(self, hidden_MD: Tensor, cluster: int) -> Tensor:
        """(M, U) log-probabilities of a cluster's units given the cluster."""
        for weight in self.adaptive.tail[
            cluster
        ].parameters():  # to the cluster's width, then to its units
            hidden_MD = linear(hidden_MD, weight.to(hidden_MD.dtype))
        return F.log_softmax(hidden_MD, dim=-1)


def default_cutoffs(frequencies: NDArray[np.float64]) -> list[int]:
    """The cutoffs of MASS_SHARES, below V and without repetition; V is at least 2."""
    num_units = len(frequencies)
    largest = frequencies.max()
    weights = np.ones(num_units) if largest == 0 else np.sort(frequencies / largest)[::-1]
    mass = np.cumsum(weights)
    counts = np.searchsorted(mass, np.array(MASS_SHARES) * mass[-1]) + 1
    return sorted({min(int(count), num_units - 1) for count in counts} - {0})
