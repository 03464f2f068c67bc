# SPDX-License-Identifier: Apache-2.0
"""Exact search for the k most probable units, by a tree head or from all log-probabilities.

Best-first search (`best_first`): a node's log-probability is a bound for every leaf below it,
because a child's is its parent's plus a logarithm ≤ 0. The search always opens the most probable
open node. It ends when no open node is more probable than the k-th best leaf. That takes about
k·log2(V/k) dot products, where a softmax needs V. It runs on a CPU.
Dense search (`topk_lowest_id_first`): from all log-probabilities.

Of equally probable units the lower id is first. A NaN counts as the greatest score, as in
`torch.topk`. A row in which the best-first search meets a NaN is given up; the dense search then
computes it.

Dimension key: N rows, D width, I inner nodes, V = I+1 units, K best leaves, G rows given up.
"""

import math

import torch
from torch import Tensor

from wenet_hs.heads.kernels.search_result import OpenLimits, SearchResult

FEW_ROWS = 128
"""With fewer rows the node vectors stay in the CPU's cache, and memory limits the dense product."""
UNITS_PER_OPENED_NODE = {"few rows": 18 / 7, "many rows": 20 / 3}
"""The search takes as long for one node as the dense search for this many units.

Medians on two threads with width 256, Huffman trees over Zipf frequencies and k = 10.
"""
KERNEL_MAX_K = 32
"""Up to this k one pass that keeps the best sorted is faster than a partial sort."""


def can_use_kernels(rows: Tensor) -> bool:
    """Whether Numba kernels compute with this tensor: it is float32 on a CPU.

    They do not if torch.compile or an export traces the program.
    """
    is_float32_on_cpu = rows.device.type == "cpu" and rows.dtype == torch.float32
    return is_float32_on_cpu and not torch.compiler.is_compiling()


def is_search_faster(num_rows: int, num_units: int, k: int) -> bool:
    """Whether `best_first` is faster for this many rows than all log-probabilities."""
    ratio = UNITS_PER_OPENED_NODE["few rows" if num_rows < FEW_ROWS else "many rows"]
    return ratio * expected_opened(num_units, k) < num_units


def expected_opened(num_units: int, k: int) -> float:
    """About how many nodes a best-first search opens: k·log2(V/k), and at least k.

    This is for a head with initial weights. A trained head needs half as many.
    """
    return k * max(1.0, math.log2(num_units / k))


def limits(num_units: int, k: int) -> OpenLimits:
    """How many nodes the search of a row may open; beyond them the dense search computes the row.

    In a Huffman tree over Zipf frequencies a row finds its first leaf after at most 30 nodes. It
    opens k·log2(V/k) nodes on average, and at most 1.7 times as many. In a balanced tree with
    initial weights the units are about equally probable. There the search is given up, which takes
    5 to 50 % longer than the dense search only, and more than that for a single row.
    """
    return OpenLimits(
        in_all=min(num_units, 32 + int(2 * expected_opened(num_units, k)) + num_units // 32),
        before_first_leaf=32 + num_units // 64,
    )


def best_first(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, children: Tensor, k: int
) -> SearchResult:
    """The k best leaves of each row by Numba's best-first search, without gradients.

    The caller checks that it can run.

    Args:
        hidden, weight, bias: (N, D), the inner nodes' vectors (V-1, D) and biases (V-1,) or None;
            float32 on a CPU, contiguous.
        children: (V-1, 2) int32, of a binary tree over V ≥ 2 units.
        k: 1…V.
    """
    from wenet_hs.heads.kernels import search_numba

    num_units = len(children) + 1
    return search_numba.search(
        hidden.detach(),
        weight.detach(),
        None if bias is None else bias.detach(),
        children,
        k=k,
        limits=limits(num_units, k),
    )


def topk_lowest_id_first(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k greatest values of each row, descending; of equal values the lower index comes first.

    A NaN counts as the greatest value, as in `torch.topk`; of several NaNs any may come first.
    A kernel of ours computes it on a CPU if k is small and no gradient is needed.

    Args:
        scores: (..., V).
        k: 1…V.
    Returns: values (..., K), which carry gradients, and indices (..., K) int64.
    """
    carries_gradient = scores.requires_grad and torch.is_grad_enabled()
    if can_use_kernels(scores) and k <= KERNEL_MAX_K and not carries_gradient:
        from wenet_hs.heads.kernels import numba_common

        rows_NV = scores.detach().reshape(-1, scores.shape[-1]).contiguous()
        best_of_rows = numba_common.best_of_rows(rows_NV, k)
        if best_of_rows is not None:
            values_NK, ids_NK = best_of_rows
            result_shape = (*scores.shape[:-1], k)
            return values_NK.view(result_shape), ids_NK.view(result_shape)
    # One value more than k, to see whether the k-th value is equal to one that is left out.
    best, ids = scores.topk(min(k + 1, scores.shape[-1]))
    # Ties are rare. On a CPU it is cheap to look for them. On a GPU that would wait for the device,
    # so ties are always handled there.
    if scores.device.type == "cpu" and not bool((best[..., 1:] == best[..., :-1]).any()):
        return best[..., :k], ids[..., :k]
    ids = _lowest_best_ids(scores, best[..., k - 1 : k], k)
    return scores.gather(-1, ids), ids


@torch.no_grad()
def _lowest_best_ids(scores: Tensor, kth_best: Tensor, k: int) -> Tensor:
    """The indices (..., K) of the k greatest scores (..., V), by value, then by index.

    Of the scores that are equal to the k-th best one (..., 1), those with the lowest indices are
    kept.
    """
    # Comparisons with a NaN are False. So a NaN becomes inf, the greatest value.
    ranked = scores.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    kth = kth_best.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    above = ranked > kth
    equal = ranked == kth
    num_equal_kept = k - above.sum(-1, keepdim=True)
    keep = above | (equal & (equal.cumsum(-1) <= num_equal_kept))
    kept_ids = keep.to(torch.float32).topk(k).indices.sort(-1).values  # exactly k are kept
    kept_values = ranked.gather(-1, kept_ids)
    order = kept_values.sort(dim=-1, descending=True, stable=True).indices
    return kept_ids.gather(-1, order)
