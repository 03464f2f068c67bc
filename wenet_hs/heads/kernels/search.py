# SPDX-License-Identifier: Apache-2.0
"""The exact k best leaves of a binary tree head: best-first search on the tree, or the product with all node vectors.

A node's log-probability bounds that of every leaf below it, in floating point too: a child's is its parent's plus a
logarithm ≤ 0. So a search that always opens the most probable open node has its k best leaves when no open node is
above the k-th of them, after about k·log2(V/k) products where softmax needs V.

Of equally probable leaves the lower unit id is first. A NaN counts as the greatest score, as in `torch.topk`: rows in
which a search meets one are redone by the product, and one under a node that no search opens changes nothing.

Dimension key: N rows, D width, I inner nodes, V = I+1 units, K best leaves.
"""

import heapq
import importlib.util
import math
from functools import lru_cache
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from wenet_hs.heads.kernels.topk import topk_lowest_id_first
from wenet_hs.nn.cpu import linear

SearchMethod = Literal["auto", "torch", "best_first", "dense"]
"""How leaves are searched: "torch" is the plain reference; "best_first" Numba on a CPU and Triton on a GPU; "dense" the
product with all node vectors; "auto" what `choose_search` says."""

# What `choose_search` and `limits` weigh, fitted to medians of two CPU threads, width 256, Huffman trees over Zipf
# frequencies, k = 10, weights as initialised (the worst case for a search) and ten times that.
FEW_ROWS = 128
"""Below this many rows node vectors stay in the cache between the rows of a thread, and the product is bound by memory:
a thread then opens a node in 36 ns and takes 14 ns for a unit of the dense route, above it 60 and 9. As a row opens
k·log2(V/k) nodes, both ways are about equal at V = 100 and few rows, and at V = 300 and many."""
OPEN_COST = {"few": 36, "many": 60}
"""ns a thread takes to open a node."""
DENSE_COST = {"few": 14, "many": 9}
"""ns a thread takes for one unit of one row in the dense route, most of it the product."""
SCAN_MAX_K = 64
"""Up to this k the pass over the leaves keeps the k best by insertion; above it `torch.topk` is faster."""
DENSE_MAX_SCORES = 2**25
"""Scores computed at a time by the dense route: rows beyond that wait, so that memory stays below softmax's."""
GPU_MIN_UNITS = 4096
"""On a GPU the search is taken from this V on: its time hardly depends on V, the dense route launches some twenty
kernels over all scores. Arithmetic, not a measurement: no GPU was at hand."""
GPU_MAX_K = 32
"""The most leaves for which what the Triton kernel keeps, open nodes above all, fits the registers."""


@lru_cache(maxsize=4096)  # a row at V = 150 takes 10 µs in all
def choose_search(
    num_rows: int, num_units: int, k: int, device: torch.device | str, dtype: torch.dtype
) -> SearchMethod:
    """ "best_first" or "dense", whichever should be faster; a pure function of its arguments and what is installed.

    float64 has no kernels and goes to the product, as does a GPU without Triton.
    """
    kind = torch.device(device).type
    if dtype != torch.float32 or num_units < 2:
        return "dense"
    if kind == "cpu":
        rows = "few" if num_rows < FEW_ROWS else "many"
        search = OPEN_COST[rows] * expected_opened(num_units, k)
        return "best_first" if search < DENSE_COST[rows] * num_units else "dense"
    fits = num_units >= GPU_MIN_UNITS and 32 * k <= num_units and k <= GPU_MAX_K
    return "best_first" if kind == "cuda" and fits and has_triton() else "dense"


def expected_opened(num_units: int, k: int) -> float:
    """About how many nodes a best-first search opens: k·log2(V/k) with weights as initialised, half when trained."""
    return k * max(1.0, math.log2(num_units / k))


@lru_cache(maxsize=4096)
def limits(num_units: int, k: int) -> tuple[int, int]:
    """How many nodes a row may open in all, and before its first leaf; beyond that the dense route takes it over.

    In a Huffman tree over Zipf frequencies the first leaf comes after 30 nodes at most (V from 150 to 100,000, weights
    of any size), and the whole search takes k·log2(V/k) on average, 1.7 times that at most. In a balanced tree whose
    weights are as initialised most units are about equally probable, and the first leaf comes after V/10 nodes: there
    the attempt is in vain and costs 5 to 50 % on top, more for one row. Trained weights tell its units apart as well.
    """
    return min(num_units, 32 + int(2 * expected_opened(num_units, k)) + num_units // 32), 32 + num_units // 64


def best_leaves(
    hidden_ND: Tensor,
    weight_ID: Tensor,
    bias_I: Tensor | None,
    children_I2: Tensor,
    k: int,
    *,
    method: SearchMethod = "auto",
) -> tuple[Tensor, Tensor]:
    """The k most probable leaves of each row, sorted: what sorting all log-probabilities would give. No gradients.

    Args:
        hidden_ND: (N, D) float32 or float64.
        weight_ID, bias_I: the inner nodes' vectors (V-1, D) and biases (V-1,) or None, of the same dtype and device.
        children_I2: (V-1, 2) int64, the tree as in `Tree.children`, on the same device.
        k: 1…V.
        method: see `SearchMethod`. "best_first" needs float32.
    Returns:
        log-probabilities (N, K) and unit ids (N, K) int64.
    Raises:
        ValueError: the arguments are not as said.
    """
    num_units = len(children_I2) + 1
    if not 1 <= k <= num_units or hidden_ND.dim() != 2 or weight_ID.shape != (num_units - 1, hidden_ND.shape[1]):
        shapes = f"hidden {tuple(hidden_ND.shape)}, weight {tuple(weight_ID.shape)}, k {k}, {num_units} units"
        raise ValueError(f"best_leaves: {shapes} do not fit together")
    if method == "auto":
        method = choose_search(len(hidden_ND), num_units, k, hidden_ND.device, hidden_ND.dtype)
    hidden_ND, weight_ID = hidden_ND.detach().contiguous(), weight_ID.detach().contiguous()
    bias_I = None if bias_I is None else bias_I.detach()
    if method == "dense" or num_units == 1:
        return _dense(hidden_ND, weight_ID, bias_I, children_I2, k)
    if method == "best_first":
        if hidden_ND.dtype != torch.float32:
            raise ValueError(f'best_leaves: method "best_first" needs float32, got {hidden_ND.dtype}; use "dense"')
        return _best_first(hidden_ND, weight_ID, bias_I, children_I2, k)
    if method == "torch":
        return _reference(hidden_ND, weight_ID, bias_I, children_I2, k)
    raise ValueError(f"search: must be one of {', '.join(get_args(SearchMethod))}, got {method!r}")


def _best_first(
    hidden_ND: Tensor, weight_ID: Tensor, bias_I: Tensor | None, children_I2: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    if hidden_ND.device.type == "cpu":
        from wenet_hs.heads.kernels import search_numba

        values_NK, ids_NK, opened_N, given_up = search_numba.search(
            hidden_ND, weight_ID, bias_I, children_I2, k=k, limits=limits(len(children_I2) + 1, k)
        )
        if not given_up:
            return values_NK, ids_NK
        if given_up == len(hidden_ND):
            return _dense(hidden_ND, weight_ID, bias_I, children_I2, k)
        again_M = torch.from_numpy((opened_N < 0).nonzero()[0])
    else:
        if k > GPU_MAX_K:
            raise ValueError(
                f'best_leaves: method "best_first" on a GPU takes k up to {GPU_MAX_K}, got {k}; use "dense"'
            )
        from wenet_hs.heads.kernels import search_triton

        values_NK, ids_NK, opened_on_gpu_N = search_triton.search(hidden_ND, weight_ID, bias_I, children_I2, k)
        again_M = (opened_on_gpu_N < 0).nonzero()[:, 0]
        if not len(again_M):
            return values_NK, ids_NK
    values_NK[again_M], ids_NK[again_M] = _dense(hidden_ND[again_M], weight_ID, bias_I, children_I2, k)
    return values_NK, ids_NK


def _dense(
    hidden_ND: Tensor, weight_ID: Tensor, bias_I: Tensor | None, children_I2: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    num_rows = max(1, DENSE_MAX_SCORES // (len(children_I2) + 1))
    starts = range(0, max(1, len(hidden_ND)), num_rows)
    parts = [_dense_part(hidden_ND[n : n + num_rows], weight_ID, bias_I, children_I2, k) for n in starts]
    if len(parts) == 1:
        return parts[0]
    values, ids = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(ids)


def _dense_part(
    hidden_ND: Tensor, weight_ID: Tensor, bias_I: Tensor | None, children_I2: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    scores_NI = linear(hidden_ND, weight_ID, bias_I)
    if scores_NI.device.type == "cpu" and scores_NI.dtype == torch.float32 and len(children_I2):
        if k <= SCAN_MAX_K:
            from wenet_hs.heads.kernels import search_numba

            values_NK, ids_NK, with_nan = search_numba.scan(scores_NI, children_I2, k)
            if not with_nan:
                return values_NK, ids_NK
        from wenet_hs.heads.kernels.nodes import tree_log_probs

        return topk_lowest_id_first(tree_log_probs(scores_NI, children_I2.int().numpy()), k)
    return topk_lowest_id_first(_leaf_log_probs(scores_NI, children_I2), k)


def _leaf_log_probs(scores_NI: Tensor, children_I2: Tensor) -> Tensor:
    """(N, V) from the node scores in log2(depth) steps: add what the parent has, what then the 2nd ancestor has, ….

    For devices and dtypes without a kernel.
    """
    num_rows, num_inner = scores_NI.shape
    turns_N2I = torch.stack([F.logsigmoid(scores_NI), F.logsigmoid(-scores_NI)], dim=-1).reshape(
        num_rows, 2 * num_inner
    )
    sums_NA = scores_NI.new_zeros(num_rows, 2 * num_inner + 1)
    sums_NA[:, children_I2.reshape(-1)] = turns_N2I
    up_A = children_I2.new_zeros(2 * num_inner + 1)  # the root is its own parent and adds nothing
    up_A[children_I2.reshape(-1)] = torch.arange(num_inner, device=up_A.device).repeat_interleave(2)
    while bool(up_A.any()):
        sums_NA = sums_NA + sums_NA.index_select(1, up_A)
        up_A = up_A[up_A]
    return sums_NA[:, num_inner:]


def _reference(
    hidden_ND: Tensor, weight_ID: Tensor, bias_I: Tensor | None, children_I2: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """The search as one would write it down: a heap of nodes and leaves, one row after the other."""
    children = children_I2.tolist()
    values, ids = [], []
    for hidden_D in hidden_ND:
        found: list[tuple[float, int]] = []
        queue = [(0.0, 0)]  # cost and number: of equal costs inner nodes come before leaves, leaves go by unit
        while len(found) < k:
            cost, node = heapq.heappop(queue)
            if node >= len(children):
                found.append((-cost, node - len(children)))
                continue
            z = hidden_D @ weight_ID[node] + (0.0 if bias_I is None else bias_I[node])
            if z.isnan():
                part = _dense_part(hidden_D[None], weight_ID, bias_I, children_I2, k)
                found = list(zip(part[0][0].tolist(), part[1][0].tolist(), strict=True))
                break
            for child, turn in zip(children[node], (z, -z), strict=True):
                heapq.heappush(queue, (float(cost - F.logsigmoid(turn)), child))
        values.append([value for value, _ in found])
        ids.append([unit for _, unit in found])
    shape = (len(hidden_ND), k)
    return hidden_ND.new_tensor(values).reshape(shape), children_I2.new_tensor(ids).reshape(shape)


def has_triton() -> bool:
    """Whether its kernels can be compiled here; it comes with torch on Linux."""
    return importlib.util.find_spec("triton") is not None
