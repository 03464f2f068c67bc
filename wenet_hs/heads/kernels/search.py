# SPDX-License-Identifier: Apache-2.0
"""Exact search for the k most probable units of a tree head.

Best-first search: a node's log-probability is a bound for every leaf below it, in floating point too, because a child's
is its parent's plus a logarithm ≤ 0. The search always opens the most probable open node. It is done when no open node
is more probable than the k-th best leaf, after about k·log2(V/k) dot products where softmax needs V.

Dense search: the k best of all log-probabilities, from the product with all node vectors.

Of equally probable units the lower id is first. A NaN counts as the greatest score, as in `torch.topk`. Rows in which a
search meets a NaN are searched again by the dense route. A NaN below a node that no search opens changes nothing.

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
from wenet_hs.heads.kernels.tree import TreeTables, leaf_log_probs
from wenet_hs.nn.cpu import linear

SearchMethod = Literal["auto", "torch", "best_first", "dense"]
"""How leaves are searched. "torch": the plain reference; "best_first": Numba on a CPU, Triton on a GPU; "dense": the
product with all node vectors; "auto": see `choose_search`."""

# The figures of `choose_search` and `limits` are fitted to medians on two CPU threads with width 256, Huffman trees
# over Zipf frequencies and k = 10, with initial weights (the worst case) and with weights ten times larger.
FEW_ROWS = 128
"""Below this many rows the node vectors stay in the cache, and the product is limited by memory. About equal are both
routes at V = 100 with few rows, and at V = 300 with many."""
OPEN_COST = {"few": 36, "many": 60}
"""ns per opened node and thread."""
DENSE_COST = {"few": 14, "many": 9}
"""ns per unit, row and thread in the dense route; most of it is the product."""
SCAN_MAX_K = 64
"""Up to this k the pass over the leaves keeps the k best by insertion. Above it `torch.topk` is faster."""
DENSE_MAX_SCORES = 2**25
"""Scores that the dense route computes at a time. More rows are cut into parts, which limits the memory."""
GPU_MIN_UNITS = 4096
"""On a GPU the search is used from this V on: its time hardly depends on V, and the dense route starts some twenty
kernels over all scores. This is an estimate, not a measurement."""
GPU_MAX_K = 32
"""The largest k for which the Triton kernel's list of open nodes fits the registers."""


@lru_cache(maxsize=4096)  # a search of one row at V = 150 takes 10 µs
def choose_search(
    num_rows: int, num_units: int, k: int, device: torch.device | str, dtype: torch.dtype
) -> SearchMethod:
    """The faster of "best_first" and "dense". Other dtypes than float32, and GPUs without Triton, have "dense" only."""
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
    """About how many nodes a best-first search opens: k·log2(V/k) with initial weights, half of it when trained."""
    return k * max(1.0, math.log2(num_units / k))


@lru_cache(maxsize=4096)
def limits(num_units: int, k: int) -> tuple[int, int]:
    """How many nodes a row may open in all, and before its first leaf. Beyond them the dense route computes the row.

    In a Huffman tree over Zipf frequencies a row finds its first leaf after at most 30 nodes (V from 150 to 100,000,
    weights of any size), and opens k·log2(V/k) nodes on average and 1.7 times that at most. In a balanced tree with
    initial weights most units are about equally probable, and the first leaf comes after V/10 nodes. There the search
    is given up, which costs 5 to 50 % extra, more for one row. Trained weights avoid this.
    """
    return min(num_units, 32 + int(2 * expected_opened(num_units, k)) + num_units // 32), 32 + num_units // 64


def best_leaves(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, tables: TreeTables, k: int, *, method: SearchMethod = "auto"
) -> tuple[Tensor, Tensor]:
    """The k most probable leaves of each row, sorted as all log-probabilities would be. No gradients.

    Args:
        hidden: (N, D) float32 or float64.
        weight, bias: the inner nodes' vectors (V-1, D) and biases (V-1,) or None, of the same dtype and device.
        tables: of the tree.
        k: 1…V.
        method: see `SearchMethod`. "best_first" needs float32.
    Returns:
        log-probabilities (N, K) and unit ids (N, K) int64.
    Raises:
        ValueError: the shapes do not fit together, or the method cannot run.
    """
    num_units = tables.tree.num_units
    if not 1 <= k <= num_units or hidden.dim() != 2 or weight.shape != (num_units - 1, hidden.shape[1]):
        shapes = f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)}, k {k}, {num_units} units"
        raise ValueError(f"best_leaves: {shapes} do not fit together")
    if method == "auto":
        method = choose_search(len(hidden), num_units, k, hidden.device, hidden.dtype)
    hidden, weight = hidden.detach().contiguous(), weight.detach().contiguous()
    bias = None if bias is None else bias.detach()
    if method == "dense" or num_units == 1:
        return _dense(hidden, weight, bias, tables, k)
    if method == "best_first":
        if hidden.dtype != torch.float32:
            raise ValueError(f'best_leaves: method "best_first" needs float32, got {hidden.dtype}; use "dense"')
        return _best_first(hidden, weight, bias, tables, k)
    if method == "torch":
        return _reference(hidden, weight, bias, tables, k)
    raise ValueError(f"search: must be one of {', '.join(get_args(SearchMethod))}, got {method!r}")


def _best_first(
    hidden_ND: Tensor, weight_ID: Tensor, bias_I: Tensor | None, tables: TreeTables, k: int
) -> tuple[Tensor, Tensor]:
    """Numba's or Triton's search; rows that it gives up are computed by the dense route."""
    children_I2 = tables.children_on(hidden_ND.device)
    if hidden_ND.device.type == "cpu":
        from wenet_hs.heads.kernels import search_numba

        values_NK, ids_NK, opened_N, num_given_up = search_numba.search(
            hidden_ND, weight_ID, bias_I, children_I2, k=k, limits=limits(tables.tree.num_units, k)
        )
        if not num_given_up:
            return values_NK, ids_NK
        if num_given_up == len(hidden_ND):
            return _dense(hidden_ND, weight_ID, bias_I, tables, k)
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
    values_NK[again_M], ids_NK[again_M] = _dense(hidden_ND[again_M], weight_ID, bias_I, tables, k)
    return values_NK, ids_NK


def _dense(
    hidden_ND: Tensor, weight_ID: Tensor, bias_I: Tensor | None, tables: TreeTables, k: int
) -> tuple[Tensor, Tensor]:
    """All node scores, for at most DENSE_MAX_SCORES at a time."""
    num_rows = max(1, DENSE_MAX_SCORES // tables.tree.num_units)
    starts = range(0, max(1, len(hidden_ND)), num_rows)
    parts = [_best_of_scores(linear(hidden_ND[n : n + num_rows], weight_ID, bias_I), tables, k) for n in starts]
    if len(parts) == 1:
        return parts[0]
    values, ids = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(ids)


def _best_of_scores(scores_NI: Tensor, tables: TreeTables, k: int) -> tuple[Tensor, Tensor]:
    if scores_NI.device.type == "cpu" and scores_NI.dtype == torch.float32 and scores_NI.size(1):
        if k <= SCAN_MAX_K:
            from wenet_hs.heads.kernels import search_numba

            values_NK, ids_NK, num_with_nan = search_numba.scan(scores_NI, tables.children_on(scores_NI.device), k)
            if not num_with_nan:
                return values_NK, ids_NK
        from wenet_hs.heads.kernels.nodes import tree_log_probs

        return topk_lowest_id_first(tree_log_probs(scores_NI, tables.children), k)
    return topk_lowest_id_first(leaf_log_probs(scores_NI, tables.ancestors_on(scores_NI.device)), k)


def _reference(
    hidden_ND: Tensor, weight_ID: Tensor, bias_I: Tensor | None, tables: TreeTables, k: int
) -> tuple[Tensor, Tensor]:
    """Best-first search in plain Python: a heap of nodes and leaves, one row after the other."""
    children = tables.tree.children.tolist()
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
                part = _dense(hidden_D[None], weight_ID, bias_I, tables, k)
                found = list(zip(part[0][0].tolist(), part[1][0].tolist(), strict=True))
                break
            for child, turn in zip(children[node], (z, -z), strict=True):
                heapq.heappush(queue, (float(cost - F.logsigmoid(turn)), child))
        values.append([value for value, _ in found])
        ids.append([unit for _, unit in found])
    shape = (len(hidden_ND), k)
    device = hidden_ND.device
    return hidden_ND.new_tensor(values).reshape(shape), torch.tensor(ids, device=device).reshape(shape).long()


def has_triton() -> bool:
    """Whether Triton is installed; torch brings it on Linux."""
    return importlib.util.find_spec("triton") is not None
