# SPDX-License-Identifier: Apache-2.0
"""Dropout whose random numbers do not cost a sixth of a training step on a CPU.

torch draws a Mersenne Twister's number for each value there, in bfloat16 a third of all the time. Here one number of
torch's generator seeds a hash of the value's place (splitmix64, Steele, Lea and Flood 2014), of which each value takes
16 bits: the same distribution, again a function of torch's random state alone, about ten times as fast.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

MANY_VALUES = 1 << 16
"""From so many on; below, torch has drawn them before Numba would be there."""

_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
_RANGE = 1 << 16


class Dropout(nn.Dropout):
    """nn.Dropout with other random numbers for large tensors on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """Any shape → the same."""
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
    """1 / keep with probability `keep`, else 0; both rounded to a multiple of 2^-16, so that their product is one.

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
    import numba

    compiled: Callable[..., None] = numba.njit(nogil=True, cache=True)(_fill)
    return compiled


def _fill(out: Any, seed: Any, threshold: Any, kept: Any) -> None:
    """The bits `kept` where a hash of the place is below `threshold`, else 0; four values of each hash."""
    for quarter in range(len(out) // 4):
        mixed = seed + np.uint64(quarter) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
        for lane in range(4):
            value = (mixed >> np.uint64(16 * lane)) & np.uint64(0xFFFF)
            out[4 * quarter + lane] = kept if value < threshold else 0
