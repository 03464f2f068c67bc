# SPDX-License-Identifier: Apache-2.0
"""Dropout with a faster random generator for large tensors on a CPU."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

MANY_VALUES = 1 << 16
"""From this size on our generator is faster; smaller tensors use torch's, which needs no Numba."""

_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
_RANGE = 1 << 16


class Dropout(nn.Dropout):
    """nn.Dropout with other random numbers for large tensors on a CPU.

    There torch draws each value from a Mersenne Twister, which takes up to a third of a training
    step. Here one number of torch's generator seeds a hash of the value's index (splitmix64,
    Steele, Lea and Flood 2014). Each value uses 16 bits of the hash. The distribution is the same,
    the result depends only on torch's random state, and it is about ten times as fast.
    """

    def forward(self, input: Tensor) -> Tensor:
        if (
            not (self.training and 0 < self.p < 1)
            or input.device.type != "cpu"
            or input.numel() < MANY_VALUES
            or input.dtype not in _BITS
            or torch.compiler.is_compiling()
        ):
            return super().forward(input)
        return input * random_factors(input.shape, input.dtype, 1 - self.p)


def random_factors(shape: torch.Size, dtype: torch.dtype, keep: float) -> Tensor:
    """Factors of dropout: each is 1/p with probability p, else 0; p is `keep` rounded to a multiple
    of 2^-16.

    `dtype`: float32, bfloat16 or float16.
    """
    threshold = min(_RANGE, max(1, round(keep * _RANGE)))
    kept = torch.tensor(_RANGE / threshold, dtype=dtype).view(_BITS[dtype])
    seed = int(torch.randint(torch.iinfo(torch.int64).max, ()))
    num_values = shape.numel()
    factors_N = torch.empty((num_values + 3) // 4 * 4, dtype=_BITS[dtype])
    _compiled_fill()(factors_N.numpy(), np.uint64(seed), np.uint64(threshold), kept.numpy()[()])
    return factors_N[:num_values].view(dtype).view(shape)


@cache
def _compiled_fill() -> Callable[..., None]:
    from wenet_hs.tree.compiled import njit

    compiled: Callable[..., None] = njit(_fill, nogil=True)
    return compiled


def _fill(out: Any, seed: Any, threshold: Any, kept: Any) -> None:
    """Sets values to the bits `kept` where the hash of the index is below `threshold`, else to 0; 4
    values per hash.
    """
    for quarter in range(len(out) // 4):
        mixed = seed + np.uint64(quarter) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
        for lane in range(4):
            value = (mixed >> np.uint64(16 * lane)) & np.uint64(0xFFFF)
            out[4 * quarter + lane] = kept if value < threshold else 0
