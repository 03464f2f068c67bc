# SPDX-License-Identifier: Apache-2.0
"""What makes arrays a tree: each check raises ValueError with one line that names the first fault.

Dimension key: V units, N = V-1 inner nodes.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def check_frequencies(frequencies: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """The frequencies as a new float64 array (V,), V ≥ 1. Raises ValueError on any that is negative or not finite."""
    array = np.array(frequencies, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"frequencies: expected one number a unit, got an array of shape {array.shape}")
    if not len(array):
        raise ValueError("frequencies: the list is empty; a tree needs at least one unit")
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(wrong):
        raise ValueError(f"frequencies: unit {wrong[0]} has {array[wrong[0]]}; each must be finite and not negative")
    try:
        math.fsum(array)
    except OverflowError as error:
        raise ValueError("frequencies: their sum is not finite; scale them down") from error
    return array


def check_kind(kind: str) -> None:
    """Raise ValueError unless the kind is text of one line, as it is printed and drawn."""
    if not isinstance(kind, str) or not kind or not kind.isprintable():
        raise ValueError(f"kind: {str(kind)[:40]!r} is no name of a kind; expected one such as 'huffman'")


def check_units(units: tuple[str, ...], num_frequencies: int) -> None:
    """Raise ValueError unless there are as many distinct names of encodable text as frequencies."""
    if len(units) != num_frequencies:
        raise ValueError(f"units: {len(units)} names for {num_frequencies} frequencies; there must be one a unit")
    if not set(map(type, units)) <= {str} or not all(units) or len(set(units)) < len(units):
        _refuse_units(units)
    try:
        "".join(units).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError("units: a name holds half of a surrogate pair, which is no text; write it as UTF-8") from error


def _refuse_units(units: tuple[str, ...]) -> None:
    first_id: dict[str, int] = {}
    for unit_id, unit in enumerate(units):
        if not isinstance(unit, str) or not unit:
            raise ValueError(f"units: unit {unit_id} is {repr(unit)[:60]}; expected a non-empty text")
        if first_id.setdefault(unit, unit_id) != unit_id:
            raise ValueError(
                f"units: {repr(unit)[:60]} is both unit {first_id[unit]} and unit {unit_id}; names must differ"
            )


def check_children(children: NDArray[np.int64], num_units: int) -> None:
    """Raise ValueError unless the rows are one complete binary tree in the numbering of `Tree`."""
    num_inner = num_units - 1
    if len(children) != num_inner:
        raise ValueError(f"children: {len(children)} inner nodes for {num_units} units; there must be {num_inner}")
    flat = children.reshape(-1)
    outside = np.flatnonzero((flat < 1) | (flat > 2 * num_inner))
    if len(outside):
        where, found = outside[0] // 2, flat[outside[0]]
        raise ValueError(f"children: inner node {where} has child {found}; a child is 1…{2 * num_inner}")
    uses = np.bincount(flat, minlength=2 * num_inner + 1)[1:]
    if (uses != 1).any():
        twice = int(np.argmax(uses)) + 1
        raise ValueError(f"children: node {twice} is a child {uses[twice - 1]} times; each must be one exactly once")
    slots = np.flatnonzero(flat < num_inner)
    inner = flat[slots]
    if (inner != np.arange(1, num_inner)).any():
        wrong = int(np.argmax(inner != np.arange(1, num_inner)))
        raise ValueError(
            f"children: inner node {inner[wrong]} stands where breadth-first order has {wrong + 1}; "
            "number the inner nodes breadth first from the root 0, left before right"
        )
    # In this order a child above its parent is one that the root never reaches: it hangs in a cycle.
    if (slots // 2 >= inner).any():
        raise ValueError(f"children: inner node {inner[slots // 2 >= inner][0]} is not under the root (a cycle)")
