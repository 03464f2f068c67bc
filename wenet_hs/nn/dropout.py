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
"""Type of values → the integers with as many bits."""
_RANGE = 1 << 16
"""Number of the different random numbers: each has 16 bits."""
_VALUES_PER_HASH = 4
"""A hash has 64 bits, four random numbers."""


class Dropout(nn.Dropout):
    """nn.Dropout with other random numbers for large tensors on a CPU.

    There torch draws each value from a Mersenne Twister, which takes up to a third of a training
    step. Here one number of torch's generator seeds a hash of the value's index (splitmix64,
    Steele, Lea and Flood 2014). Each value uses 16 bits of the hash. The distribution is the same,
    the result depends only on torch's random state, and it is about ten times as fast.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Multiplies each value by 0 with probability p, and otherwise by 1 / (1 - p)."""
        if self._should_use_own_generator(input):
            return input * random_factors(input.shape, input.dtype, 1 - self.p)
        return super().forward(input)

    def _should_use_own_generator(self, input: Tensor) -> bool:
        """Whether our generator is used: if dropout changes a tensor that is large and on a CPU.

        It is not used while torch compiles, which cannot compile it, nor for other types than
        those of `_BITS`.
        """
        has_effect = self.training and 0 < self.p < 1
        if not has_effect or input.device.type != "cpu":
            return False
        is_large = input.numel() >= MANY_VALUES
        has_known_type = input.dtype in _BITS
        return is_large and has_known_type and not torch.compiler.is_compiling()


def random_factors(shape: torch.Size, dtype: torch.dtype, keep: float) -> Tensor:
    """Random factors of dropout: each is 1/k with probability k, and 0 otherwise.

    Here k is `keep`, rounded to a multiple of 2^-16 above 0. One random number of torch is drawn,
    as the seed.

    Args:
        dtype: of the factors; float32, bfloat16 or float16.
        keep: the share of values to keep.
    Returns: a tensor with this shape, on the CPU.
    """
    # A value is kept if its random number is below the threshold, so k is threshold / _RANGE.
    threshold = min(_RANGE, max(1, round(keep * _RANGE)))
    bits = _BITS[dtype]  # NumPy has no bfloat16, so the kernel writes the bits of the factors
    kept_factor = torch.tensor([_RANGE / threshold], dtype=dtype)
    kept_factor_bits = kept_factor.view(bits).numpy()[0]
    seed = int(torch.randint(torch.iinfo(torch.int64).max, ()))
    num_values = shape.numel()
    num_hashes = (num_values + _VALUES_PER_HASH - 1) // _VALUES_PER_HASH
    factors_N = torch.empty(num_hashes * _VALUES_PER_HASH, dtype=bits)
    fill = _compiled_fill()
    fill(factors_N.numpy(), np.uint64(seed), np.uint64(threshold), kept_factor_bits)
    return factors_N[:num_values].view(dtype).view(shape)


@cache
def _compiled_fill() -> Callable[..., None]:
    """`_fill`, compiled by Numba, which is imported at the first call."""
    from wenet_hs.tree.compiled import njit

    compiled: Callable[..., None] = njit(_fill, nogil=True)
    return compiled


def _fill(out: Any, seed: Any, threshold: Any, kept: Any) -> None:
    """Sets values of `out` to `kept` if their random number is below `threshold`, else to 0.

    Each group of four values has one hash, of its index and `seed` (splitmix64). The four 16-bit
    parts of the hash are the random numbers. The length of `out` is a multiple of four. `kept` and
    the values are the bits of floats.
    """
    for group in range(len(out) // 4):
        mixed = seed + np.uint64(group) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
        for lane in range(4):
            random_number = (mixed >> np.uint64(16 * lane)) & np.uint64(0xFFFF)
            out[4 * group + lane] = kept if random_number < threshold else 0
