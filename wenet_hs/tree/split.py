# SPDX-License-Identifier: Apache-2.0
"""Trees that divide an order of the units from the top: in equal halves (balanced), or in halves of equal mass (Fano).

Dimension key: V units, N = V-1 inner nodes, R ranges open at one level.
"""

import unicodedata
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Cut = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]
"""From the begins and ends (R,) of ranges of at least two units to where each is cut: begin < cut < end."""


def balanced_children(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """The children (N, 2) of the tree that halves `order` (V,), a permutation of the unit ids.

    Of an odd number of units the left half gets one more, so all codes have ⌊log2 V⌋ or ⌈log2 V⌉ bits.
    """
    return _divided(order, _half)


def fano_children(frequencies: NDArray[np.float64]) -> NDArray[np.int64]:
    """The children (N, 2) of Shannon and Fano's tree (Fano 1949): each half is to have half of the mass.

    Units stand by falling frequency, equal ones by id, and a range is cut where the masses of its halves are nearest;
    of two such places the one with fewer units on the left is taken. Units that never occur are halved.
    """
    order = np.argsort(-frequencies, kind="stable")
    # Summed from the rarest unit on, a small mass is never lost in a large one; mass_from[V] is 0.
    mass_from = np.zeros(len(order) + 1)
    mass_from[:-1] = np.cumsum(frequencies[order][::-1])[::-1]

    def nearest(begins_R: NDArray[np.int64], ends_R: NDArray[np.int64]) -> NDArray[np.int64]:
        before_R, after_R = mass_from[begins_R], mass_from[ends_R]
        middle_R = after_R + (before_R - after_R) / 2
        below_R = np.searchsorted(-mass_from, -middle_R)  # the first place with at most half of the mass behind it
        above_R = np.clip(below_R - 1, begins_R + 1, ends_R - 1)
        below_R = np.clip(below_R, begins_R + 1, ends_R - 1)
        below_is_nearer_R = np.abs(mass_from[below_R] - middle_R) < np.abs(mass_from[above_R] - middle_R)
        cut_R = np.where(below_is_nearer_R, below_R, above_R)
        return np.where(before_R == after_R, _half(begins_R, ends_R), cut_R)

    return _divided(order, nearest)


def alphabetical_order(units: Sequence[str]) -> NDArray[np.int64]:
    """The unit ids (V,) by text: case folded and decomposed (NFD), by code point; equal ones by their own code points.

    So A is beside a and é after e, Cyrillic follows Greek follows Latin. No locale has a say, and Unicode has promised
    that case folding and decomposition of a character never change.
    """
    keys = [(unicodedata.normalize("NFD", unit.casefold()), unit) for unit in units]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


def random_order(num_units: int, seed: int) -> NDArray[np.int64]:
    """A permutation (V,) that depends on the seed (≥ 0) alone: the ids by raw numbers of PCG64.

    The raw stream of a bit generator is part of NumPy's promise of stability; `Generator.permutation` is not.
    """
    if seed < 0:
        raise ValueError(f"seed: must be at least 0, got {seed}")
    return np.argsort(np.random.PCG64(seed).random_raw(num_units), kind="stable")


def _half(begins_R: NDArray[np.int64], ends_R: NDArray[np.int64]) -> NDArray[np.int64]:
    return (begins_R + ends_R + 1) // 2


def _divided(order: NDArray[np.int64], cut: Cut) -> NDArray[np.int64]:
    """Cut all ranges of a level at once, level by level: the numbers come out breadth first by themselves."""
    num_inner = len(order) - 1
    children = np.empty((num_inner, 2), dtype=np.int64)
    begins_R, ends_R = np.array([0])[:num_inner], np.array([len(order)])[:num_inner]
    first = 0
    while len(begins_R):
        cuts_R = cut(begins_R, ends_R)
        begins = np.stack([begins_R, cuts_R], axis=1).reshape(-1)
        ends = np.stack([cuts_R, ends_R], axis=1).reshape(-1)
        is_inner = ends - begins > 1
        next_level = first + len(begins_R)
        numbers = num_inner + order[begins]
        numbers[is_inner] = np.arange(next_level, next_level + np.count_nonzero(is_inner))
        children[first:next_level] = numbers.reshape(-1, 2)
        first, begins_R, ends_R = next_level, begins[is_inner], ends[is_inner]
    return children
