# SPDX-License-Identifier: Apache-2.0
"""Trees of other software: their inner nodes have other numbers, and are often known by the paths of the leaves alone.

Dimension key: V units (leaves), N = V-1 inner nodes, P longest path.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wenet_hs.tree.huffman import breadth_first, breadth_first_order


class Renumbered(NamedTuple):
    """A tree in our numbering, and where its nodes' vectors stand in theirs: `ours = theirs[rows]`."""

    children: NDArray[np.int64]
    """(N, 2) in the numbering of `Tree`."""
    rows: NDArray[np.int64]
    """(N,) their number of each of our inner nodes."""


def renumbered(pairs: NDArray[np.int64], root: int) -> Renumbered:
    """A tree under any numbering of its inner nodes in that of `Tree`.

    Args:
        pairs: (N, 2) the children of their node n: a value below V = N+1 is that unit's leaf, V+m is their node m.
        root: their number of the root; 0 where N is 0.
    Raises:
        ValueError: not every node is a child exactly once, the root never.
    """
    num_inner = len(pairs)
    rows = np.arange(num_inner)
    if num_inner:
        rows[[root, -1]] = rows[[-1, root]]  # `breadth_first` wants the root last; a swap is its own inverse
    number = np.concatenate([np.arange(num_inner + 1), rows + num_inner + 1])
    swapped = number[pairs[rows]] if num_inner else pairs
    uses = np.bincount(swapped.reshape(-1), minlength=2 * num_inner + 1)
    wrong = np.flatnonzero(uses[: 2 * num_inner] != 1) if num_inner else uses[:0]
    order = breadth_first_order(swapped) if not len(wrong) else rows[:0]
    if len(wrong) or len(order) < num_inner:
        raise ValueError("the nodes do not make one tree: some are reached twice, in a circle, or not at all")
    return Renumbered(breadth_first(swapped), rows[order])


def from_paths(nodes: NDArray[np.integer], turns: NDArray[np.integer]) -> Renumbered:
    """The tree whose leaves have these ways from the root.

    Args:
        nodes: (V, P) their inner nodes 0…V-2 on the way; any number where `turns` is 0.
        turns: (V, P) the turn at each: +1 left, -1 right, 0 padding behind the end.
    Raises:
        ValueError: one line that names the first unit or node at which the ways contradict each other or end.
    """
    num_units, longest = nodes.shape
    taken_VP = turns != 0
    lengths_V = taken_VP.sum(1)
    gap = np.flatnonzero((taken_VP != (np.arange(longest) < lengths_V[:, None])).any(1))
    if len(gap):
        raise ValueError(f"the path of unit {gap[0]} goes on behind its end")
    if num_units == 1 and not lengths_V.any():
        return renumbered(np.zeros((0, 2), dtype=np.int64), 0)
    if not lengths_V.all():
        raise ValueError(f"unit {int(np.argmin(lengths_V))} has an empty path, so no other unit could have one")
    units_M, _ = np.nonzero(taken_VP)
    here_M = nodes[taken_VP].astype(np.int64)
    outside = np.flatnonzero((here_M < 0) | (here_M >= num_units - 1))
    if len(outside):
        where = f"the path of unit {units_M[outside[0]]} has inner node {here_M[outside[0]]}"
        raise ValueError(f"{where}; with {num_units} units they are 0…{num_units - 2}")
    return renumbered(_pairs(here_M, turns[taken_VP] < 0, units_M), int(here_M[0]))


def _pairs(here_M: NDArray[np.int64], right_M: NDArray[np.bool_], units_M: NDArray[np.int64]) -> NDArray[np.int64]:
    """The children by what follows each step of the paths, one unit's after the other's."""
    num_units = int(units_M[-1]) + 1
    is_last_M = np.append(units_M[1:] != units_M[:-1], True)
    starts = here_M[np.append(True, is_last_M[:-1])]
    if (starts != starts[0]).any():
        other = int(np.argmax(starts != starts[0]))
        raise ValueError(f"unit 0's path begins at node {starts[0]}, that of unit {other} at node {starts[other]}")
    next_M = np.where(is_last_M, units_M, num_units + np.append(here_M[1:], 0))
    slots_M = 2 * here_M + right_M
    pairs = np.full(2 * (num_units - 1), -1, dtype=np.int64)
    pairs[slots_M] = next_M
    for faults, fault in (
        (slots_M[pairs[slots_M] != next_M], "two different ones"),
        (np.flatnonzero(pairs < 0), "none"),
    ):
        if len(faults):
            side = "right" if faults[0] % 2 else "left"
            raise ValueError(f"inner node {faults[0] // 2} must have one {side} child, the paths give it {fault}")
    return pairs.reshape(-1, 2)
