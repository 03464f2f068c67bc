# SPDX-License-Identifier: Apache-2.0
"""Triton kernel of the best-first search for the k best leaves on a GPU: one program per row.

All but the vectors is in registers. An iteration opens the M cheapest open nodes at once, because one node at a time
would wait for memory. It loads their vectors, computes their scores, keeps the leaves that are among the k best, and
appends the other children to the list of open nodes. The search is done when the cheapest open node costs more than the
k-th best leaf. Opening a few nodes too many changes nothing. If the list is full, the program opens all nodes, level by
level, and keeps their costs in memory: so no row has to be computed in another way, for which the host would wait.

Tested with Triton's interpreter and by compilation for sm_80, sm_90 and sm_100. It has not run on a GPU.

Dimension key: N rows, D width, I inner nodes, K best leaves, P the power of two above K, O size of the list of open
nodes, M nodes opened at once, B width of a block.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from wenet_hs.heads.kernels.triton_launch import launch

OPENED_AT_ONCE, SCANNED_AT_ONCE = 8, 32
MAX_BLOCK_D = 256
MAX_COSTS = 2**27
"""Of nodes, kept in memory at once (0.5 GiB); more rows are searched in parts."""
NUM_WARPS = 4


def search(
    hidden_ND: Tensor, weight_ID: Tensor, bias_I: Tensor | None, children_I2: Tensor, levels: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Best-first search. All tensors on one GPU and contiguous, float32 and int32; V ≥ 2.

    `levels`: the first inner node of each level, and I.
    Returns: log-probabilities (N, K), unit ids (N, K) int64, and (N,) int32 how many nodes were opened, negative where
        all of them were.
    """
    num_rows, dim = hidden_ND.shape
    values_NK = hidden_ND.new_empty(num_rows, k)
    ids_NK = torch.empty(num_rows, k, dtype=torch.int64, device=hidden_ND.device)
    opened_N = torch.empty(num_rows, dtype=torch.int32, device=hidden_ND.device)
    at_once = max(1, MAX_COSTS // len(children_I2))
    costs_NI = hidden_ND.new_empty(min(num_rows, at_once), len(children_I2))  # of rows that open all nodes
    tree = weight_ID, weight_ID if bias_I is None else bias_I, children_I2, levels, costs_NI
    numbers = len(children_I2), len(levels) - 1, k
    compiled = constants(dim, k, bias_I is not None)
    for start in range(0, num_rows, at_once):
        rows = slice(start, start + at_once)
        found = values_NK[rows], ids_NK[rows], opened_N[rows]
        launch(
            search_kernel, (len(found[0]),), hidden_ND[rows], *tree, *found, *numbers, **compiled, num_warps=NUM_WARPS
        )
    return values_NK, ids_NK, opened_N


def constants(dim: int, k: int, has_bias: bool) -> dict[str, int | bool]:
    """The kernel's compile-time arguments: sizes of its tensors, which are powers of two."""
    return {
        "DIM": dim,
        "HAS_BIAS": has_bias,
        "BLOCK_D": min(MAX_BLOCK_D, triton.next_power_of_2(dim)),
        "AT_ONCE": OPENED_AT_ONCE,
        "SCANNED": SCANNED_AT_ONCE,
        "LIST_SIZE": 512 if k <= 16 else 1024,  # a search pushes about 2k·log2(V/k) nodes
        "KEPT": triton.next_power_of_2(k),
    }


NO_KEY = tl.constexpr(0x7FFFFFFFFFFFFFFF)
"""Above every key."""
INFINITE = tl.constexpr(0x7F800001)
"""The upper half of the key of an infinite cost; NO_KEY's is above."""


@triton.jit
def _key(cost, number):  # type: ignore[no-untyped-def]
    """1 + the bits of a cost ≥ 0, or 0 for a NaN, which so counts as the best; above a number."""
    bits = tl.where(cost != cost, 0, cost.to(tl.int32, bitcast=True) + 1)
    return (bits.to(tl.int64) << 32) | number


@triton.jit
def _cost(key):  # type: ignore[no-untyped-def]
    bits = (key >> 32).to(tl.int32)
    return tl.where(bits == 0, float("nan"), (bits - 1).to(tl.float32, bitcast=True))


@triton.jit
def _take_cheapest(open_O, AT_ONCE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The cheapest keys of the open list, and the list without them."""
    lane_M = tl.arange(0, AT_ONCE)
    picked_M = tl.full((AT_ONCE,), NO_KEY, tl.int64)
    for turn in tl.static_range(AT_ONCE):
        cheapest = tl.min(open_O, axis=0)
        picked_M = tl.where(lane_M == turn, cheapest, picked_M)
        open_O = tl.where(open_O == cheapest, NO_KEY, open_O)
    return picked_M, open_O


@triton.jit
def _products(  # type: ignore[no-untyped-def]
    hidden_row, weight, node_M, active_M, DIM: tl.constexpr, BLOCK_D: tl.constexpr, AT_ONCE: tl.constexpr
):
    """The scores of some nodes for one row of hidden, in float32."""
    score_M = tl.zeros((AT_ONCE,), tl.float32)
    for start in range(0, DIM, BLOCK_D):
        column_B = start + tl.arange(0, BLOCK_D)
        hidden_B = tl.load(hidden_row + column_B, mask=column_B < DIM, other=0.0)
        mask_MB = active_M[:, None] & (column_B < DIM)[None, :]
        vector_MB = tl.load(weight + node_M[:, None] * DIM + column_B[None, :], mask=mask_MB, other=0.0)
        score_M += tl.sum(vector_MB * hidden_B[None, :], axis=1)
    return score_M


@triton.jit
def softplus(size_M):  # type: ignore[no-untyped-def]
    """log(1 + exp(-size)), by Kahan's log1p: the logarithm of the rounded sum, corrected."""
    small_M = tl.exp(-size_M)
    rounded_M = 1.0 + small_M
    kept_M = rounded_M - 1.0
    ratio_M = small_M / tl.where(kept_M == 0.0, 1.0, kept_M)
    return tl.where(kept_M == 0.0, small_M, tl.log(rounded_M) * ratio_M)


@triton.jit
def _keep_leaves(best_P, left_M, right_M):  # type: ignore[no-untyped-def]
    """The best leaves of `best_P` and two more lists; a key that is no leaf is NO_KEY."""
    worst = tl.max(best_P, axis=0)
    leaf = tl.minimum(tl.min(left_M, axis=0), tl.min(right_M, axis=0))
    while leaf < worst:
        best_P = tl.where(best_P == worst, leaf, best_P)
        worst = tl.max(best_P, axis=0)
        left_M = tl.where(left_M == leaf, NO_KEY, left_M)
        right_M = tl.where(right_M == leaf, NO_KEY, right_M)
        leaf = tl.minimum(tl.min(left_M, axis=0), tl.min(right_M, axis=0))
    return best_P


@triton.jit
def _push(open_O, key_M, is_pushed_M, pushed, LIST_SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The open list with more keys after its first `pushed`, and the new number of keys."""
    push_M = is_pushed_M.to(tl.int32)
    index_M = pushed + tl.cumsum(push_M, axis=0) - push_M
    here_OM = (tl.arange(0, LIST_SIZE)[:, None] == index_M[None, :]) & (push_M[None, :] != 0)
    open_O = tl.minimum(open_O, tl.min(tl.where(here_OM, key_M[None, :], NO_KEY), axis=1))
    return open_O, pushed + tl.sum(push_M, axis=0)


@triton.jit
def _write(best_P, values_row, ids_row, num_inner, k):  # type: ignore[no-untyped-def]
    """The k best leaves in order, as log-probabilities and unit ids."""
    index = 0
    while index < k:
        key = tl.min(tl.where(best_P < 0, NO_KEY, best_P), axis=0)
        best_P = tl.where(best_P == key, NO_KEY, best_P)
        tl.store(values_row + index, 0.0 - _cost(key))
        tl.store(ids_row + index, (key & 0xFFFFFFFF) - num_inner)
        index += 1


@triton.jit
def _open(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    node_M,
    cost_M,
    active_M,
    hidden_row,
    weight,
    bias,
    children,
    DIM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """The keys of the left and the right children of some nodes; NO_KEY where a node is not active."""
    score_M = _products(hidden_row, weight, node_M, active_M, DIM, BLOCK_D, AT_ONCE)
    if HAS_BIAS:
        score_M += tl.load(bias + node_M, mask=active_M, other=0.0)
    both_M = cost_M + softplus(tl.abs(score_M))  # -log σ(z) = max(-z, 0) + log(1 + exp(-|z|))
    left_M = tl.load(children + 2 * node_M, mask=active_M, other=0)
    right_M = tl.load(children + 2 * node_M + 1, mask=active_M, other=0)
    left_M = tl.where(active_M, _key(both_M + tl.maximum(-score_M, 0.0), left_M), NO_KEY)
    right_M = tl.where(active_M, _key(both_M + tl.maximum(score_M, 0.0), right_M), NO_KEY)
    return left_M, right_M


@triton.jit
def _leaf_keys(key_M, num_inner):  # type: ignore[no-untyped-def]
    """The keys of leaves; NO_KEY for others."""
    return tl.where((key_M & 0xFFFFFFFF) >= num_inner, key_M, NO_KEY)


@triton.jit
def _store_inner(costs_row, key_M, active_M, num_inner):  # type: ignore[no-untyped-def]
    """Keep the costs of children that are inner nodes."""
    node_M = key_M & 0xFFFFFFFF
    tl.store(costs_row + node_M, _cost(key_M), mask=active_M & (node_M < num_inner))


@triton.jit
def search_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0915
    hidden,
    weight,
    bias,
    children,
    levels,
    costs,
    values,
    ids,
    opened,
    num_inner,
    num_levels,
    k,
    DIM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    AT_ONCE: tl.constexpr,
    SCANNED: tl.constexpr,
    LIST_SIZE: tl.constexpr,
    KEPT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    hidden += row * DIM
    index_O = tl.arange(0, LIST_SIZE)
    index_P = tl.arange(0, KEPT)
    open_O = tl.where(index_O == 0, 1 << 32, NO_KEY).to(tl.int64)  # the root at cost 0
    # Not sorted: a new leaf replaces the greatest key. Entries beyond k hold a key that is never the greatest.
    best_P = tl.where(index_P < k, NO_KEY - index_P.to(tl.int64), -1)
    pushed = 1
    num_opened = 0
    running = 1
    while running != 0:
        bound = tl.minimum(tl.max(best_P, axis=0) >> 32, INFINITE)  # a node that costs more has no leaf among the best
        picked_M, open_O = _take_cheapest(open_O, AT_ONCE)
        active_M = (picked_M >> 32) <= bound  # the others are dropped: the bound never rises
        node_M = tl.where(active_M, picked_M & 0xFFFFFFFF, 0)
        left_M, right_M = _open(
            node_M, _cost(picked_M), active_M, hidden, weight, bias, children, DIM, HAS_BIAS, BLOCK_D, AT_ONCE
        )
        best_P = _keep_leaves(best_P, _leaf_keys(left_M, num_inner), _leaf_keys(right_M, num_inner))

        bound = tl.minimum(tl.max(best_P, axis=0) >> 32, INFINITE)
        push_left_M = active_M & ((left_M & 0xFFFFFFFF) < num_inner) & ((left_M >> 32) <= bound)
        push_right_M = active_M & ((right_M & 0xFFFFFFFF) < num_inner) & ((right_M >> 32) <= bound)
        open_O, pushed = _push(open_O, left_M, push_left_M, pushed, LIST_SIZE)
        open_O, pushed = _push(open_O, right_M, push_right_M, pushed, LIST_SIZE)

        num_opened += tl.sum(active_M.to(tl.int32), axis=0)
        more = (tl.min(open_O, axis=0) >> 32) <= bound
        running = tl.where(more & (pushed <= LIST_SIZE), 1, 0)

    if pushed > LIST_SIZE:
        costs += row * num_inner
        best_P = tl.where(index_P < k, NO_KEY - index_P.to(tl.int64), -1)
        tl.store(costs, 0.0)
        level = 0
        while level < num_levels:
            tl.debug_barrier()  # the costs of this level are in memory
            start = tl.load(levels + level)
            end = tl.load(levels + level + 1)
            while start < end:
                node_S = start + tl.arange(0, SCANNED)
                active_S = node_S < end
                node_S = tl.where(active_S, node_S, 0).to(tl.int64)
                cost_S = tl.load(costs + node_S, mask=active_S, other=0.0)
                left_S, right_S = _open(
                    node_S, cost_S, active_S, hidden, weight, bias, children, DIM, HAS_BIAS, BLOCK_D, SCANNED
                )
                best_P = _keep_leaves(best_P, _leaf_keys(left_S, num_inner), _leaf_keys(right_S, num_inner))
                _store_inner(costs, left_S, active_S, num_inner)
                _store_inner(costs, right_S, active_S, num_inner)
                start += SCANNED
            level += 1
        num_opened = -num_inner

    tl.store(opened + row, num_opened)
    _write(best_P, values + row * k, ids + row * k, num_inner, k)
