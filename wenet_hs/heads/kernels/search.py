# SPDX-License-Identifier: Apache-2.0
"""Exact search for the k most probable units: of a tree head, and of all log-probabilities with
ties by unit id.

Best-first search: a node's log-probability is a bound for every leaf below it, because a child's is
its parent's plus a logarithm ≤ 0. The search always opens the most probable open node. It is done
when none is more probable than the k-th best leaf, after about k·log2(V/k) dot products where
softmax needs V. It runs on a CPU. Dense search: from all log-probabilities.

Of equally probable units the lower id is first. A NaN counts as the greatest score, as in
`torch.topk`. Rows in which the search meets a NaN are given up and computed by the dense route.

Dimension key: N rows, D width, I inner nodes, V = I+1 units, K best leaves, G rows given up.
"""

import math

import torch
from torch import Tensor

Found = tuple[Tensor, Tensor, Tensor | None]
"""Log-probabilities (N, K), unit ids (N, K) int64, and the rows given up (G,), whose results have
no meaning.
"""

FEW_ROWS = 128
"""Below this many rows the node vectors stay in the CPU's cache, and the product is limited by
memory.
"""
UNITS_PER_OPENED_NODE = {"few rows": 18 / 7, "many rows": 20 / 3}
"""The search takes as long for one node as the dense route for this many units (medians on two
threads with width 256, Huffman trees over Zipf frequencies, k = 10).
"""


def can_use_kernels(rows: Tensor) -> bool:
    """Whether Numba kernels compute with this tensor: float32 on a CPU, and torch.compile or export
    does not trace.
    """
    return (
        rows.device.type == "cpu"
        and rows.dtype == torch.float32
        and not torch.compiler.is_compiling()
    )


def is_search_faster(num_rows: int, num_units: int, k: int) -> bool:
    """Whether `best_first`, which can run, is faster than all log-probabilities."""
    ratio = UNITS_PER_OPENED_NODE["few rows" if num_rows < FEW_ROWS else "many rows"]
    return ratio * expected_opened(num_units, k) < num_units


def expected_opened(num_units: int, k: int) -> float:
    """About how many nodes a best-first search opens: k·log2(V/k) with initial weights, half of it
    when trained.
    """
    return k * max(1.0, math.log2(num_units / k))


def limits(num_units: int, k: int) -> tuple[int, int]:
    """How many nodes a row may open in all, and before its first leaf.

    Beyond them the dense route computes the row.

    In a Huffman tree over Zipf frequencies a row finds its first leaf after at most 30 nodes, and
    opens k·log2(V/k) nodes on average and 1.7 times that at most. In a balanced tree with initial
    weights the units are about equally probable. There the search is given up, which costs 5 to 50
    % extra, more for one row.
    """
    return min(
        num_units, 32 + int(2 * expected_opened(num_units, k)) + num_units // 32
    ), 32 + num_units // 64


def best_first(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, children: Tensor, k: int
) -> Found:
    """Numba's search. No gradients. `HSoftmaxHead` checks whether it can run.

    Args:
        hidden, weight, bias: (N, D), the inner nodes' vectors (V-1, D) and biases (V-1,) or None;
            float32, contiguous.
        children: (V-1, 2) int32; V ≥ 2.
        k: 1…V.
    """
    from wenet_hs.heads.kernels import search_numba

    fixed_bias = None if bias is None else bias.detach()
    return search_numba.search(
        hidden.detach(),
        weight.detach(),
        fixed_bias,
        children,
        k=k,
        limits=limits(len(children) + 1, k),
    )


# ---- the k best of all log-probabilities

KERNEL_MAX_K = 32
"""Up to this k one pass that keeps the best sorted is faster than a partial sort."""


def topk_lowest_id_first(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k greatest values of each row, descending; of equal values the lower index is kept and
    comes first.

    A NaN counts as the greatest value, as in `torch.topk`; of several any may come first.

    Args:
        scores: (..., V).
        k: 1…V.
    Returns: values (..., K), which carry gradients, and indices (..., K) int64.
    """
    carries_gradient = scores.requires_grad and torch.is_grad_enabled()
    if can_use_kernels(scores) and k <= KERNEL_MAX_K and not carries_gradient:
        from wenet_hs.heads.kernels import numba_common

        found = numba_common.best_of_rows(
            scores.detach().reshape(-1, scores.shape[-1]).contiguous(), k
        )
        if found is not None:
            shape = (*scores.shape[:-1], k)
            return found[0].view(shape), found[1].view(shape)
    best, ids = scores.topk(min(k + 1, scores.shape[-1]))
    # Ties are rare. On a CPU the check is cheap. On a GPU it would wait for the device, so ties are
    # always handled.
    if scores.device.type == "cpu" and not bool((best[..., 1:] == best[..., :-1]).any()):
        return best[..., :k], ids[..., :k]
    with torch.no_grad():
        ranked = scores.nan_to_num(
            torch.inf, torch.inf, -torch.inf
        )  # a NaN is neither above nor equal to anything
        last = best[..., k - 1 : k].nan_to_num(torch.inf, torch.inf, -torch.inf)
        above, equal = ranked > last, ranked == last
        num_equal_kept = k - above.sum(-1, keepdim=True)
        keep = above | (equal & (equal.cumsum(-1) <= num_equal_kept))
        ids = keep.to(torch.float32).topk(k).indices.sort(-1).values
        order = ranked.gather(-1, ids).sort(dim=-1, descending=True, stable=True).indices
        ids = ids.gather(-1, order)
    return scores.gather(-1, ids), ids
