# SPDX-License-Identifier: Apache-2.0
"""Triton kernel of the flat softmax's cost on a GPU: two passes over the scores of a row, in one
launch.

Tested with Triton's interpreter and by compilation for sm_80, sm_90 and sm_100. It has not run on a
GPU.

Dimension key: N rows, D width, V units, B width of a block.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from wenet_hs.heads.kernels.scores import cost_in_parts
from wenet_hs.heads.kernels.triton_launch import launch

MAX_BLOCK = 4096
"""The most scores of a row that a program reads at a time."""


@triton.jit
def softmax_kernel(scores, targets, costs, num_units, on_target, on_all, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program per row: its cost, and the derivatives of the cost, which replace the scores.

    The cost is w · log Σ exp(score) - on_target · score[target] - on_all · Σ score, with w =
    on_target + on_all · V. It is computed in float32, whatever the dtype of the scores.
    """
    row = tl.program_id(0).to(tl.int64)
    scores += row * num_units
    # First pass: the greatest score, Σ exp(score - greatest) and Σ score, all of the scores so far.
    greatest = tl.load(scores).to(tl.float32)
    sum_exp = 0.0
    sum_of_scores = 0.0
    start = 0
    while start < num_units:
        unit_B = start + tl.arange(0, BLOCK)
        score_B = tl.load(scores + unit_B, mask=unit_B < num_units, other=float("-inf")).to(
            tl.float32
        )
        new_greatest = tl.maximum(greatest, tl.max(score_B, axis=0))
        sum_of_block = tl.sum(tl.exp(score_B - new_greatest), axis=0)
        sum_exp = sum_exp * tl.exp(greatest - new_greatest) + sum_of_block
        sum_of_scores += tl.sum(tl.where(unit_B < num_units, score_B, 0.0), axis=0)
        greatest = new_greatest
        start += BLOCK
    log_sum_exp = greatest + tl.log(sum_exp)
    weight = on_target + on_all * num_units
    target = tl.load(targets + row)
    target_score = tl.load(scores + target).to(tl.float32)
    tl.store(costs + row, weight * log_sum_exp - on_target * target_score - on_all * sum_of_scores)
    tl.debug_barrier()  # the target's score is read before it is replaced
    # Second pass: the derivatives.
    start = 0
    while start < num_units:
        unit_B = start + tl.arange(0, BLOCK)
        score_B = tl.load(scores + unit_B, mask=unit_B < num_units, other=float("-inf")).to(
            tl.float32
        )
        on_target_B = tl.where(unit_B == target, on_target, 0.0)
        slope_B = weight * tl.exp(score_B - log_sum_exp) - on_all - on_target_B
        tl.store(scores + unit_B, slope_B.to(scores.dtype.element_ty), mask=unit_B < num_units)
        start += BLOCK


def block_size(num_units: int) -> int:
    """The constant BLOCK of `softmax_kernel`: a power of 2."""
    return min(MAX_BLOCK, int(triton.next_power_of_2(num_units)))


def softmax_cost(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    on_target: float,
    on_all: float,
) -> Tensor:
    """The weighted cost of each row (N,) float32, for the distribution softmax(W·h + b).

    It is -on_target·log p(target) - on_all·Σ_v log p(v); differentiable once.

    Args:
        hidden: (N, D), weight: (V, D), bias: (V,) or None; all float32 or all bfloat16, on a GPU.
        targets: (N,) int64.
    """

    def compute(scores_NV: Tensor, targets_N: Tensor) -> Tensor:
        num_rows, num_units = scores_NV.shape
        costs_N = scores_NV.new_empty(num_rows, dtype=torch.float32)
        launch(
            softmax_kernel,
            (num_rows,),
            scores_NV,
            targets_N,
            costs_N,
            num_units,
            on_target,
            on_all,
            BLOCK=block_size(num_units),
            num_warps=8,
        )
        return costs_N

    return cost_in_parts(hidden, weight, bias, targets, compute)
