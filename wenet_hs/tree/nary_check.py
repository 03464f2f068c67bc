# SPDX-License-Identifier: Apache-2.0
"""What makes offsets and children an n-ary tree: raises ValueError with one line that names the first fault.

Dimension key: V units, I inner nodes, E = I+V-1 edges.
"""

import numpy as np
from numpy.typing import NDArray


def check_nary(offsets: NDArray[np.int64], children: NDArray[np.int64], num_units: int) -> None:
    """Raise ValueError unless `offsets` (I+1,) and `children` (E,) are one tree in the numbering of `NaryTree`."""
    _check_offsets(offsets, len(children))
    num_inner = len(offsets) - 1
    num_edges = num_inner + num_units - 1 if num_inner else 0
    if len(children) != num_edges or (num_units > 1) != (num_inner > 0):
        raise ValueError(
            f"children: {num_inner} inner nodes with {len(children)} children for {num_units} units; "
            "every node but the root must be a child, and a single unit needs no inner node"
        )
    parents = np.repeat(np.arange(num_inner), np.diff(offsets))
    outside = np.flatnonzero((children < 1) | (children > num_edges))
    if len(outside):
        where, found = parents[outside[0]], children[outside[0]]
        raise ValueError(f"children: inner node {where} has child {found}; a child is 1…{num_edges}")
    uses = np.bincount(children, minlength=num_edges + 1)[1:]
    if (uses != 1).any():
        twice = int(np.argmax(uses)) + 1
        raise ValueError(f"children: node {twice} is a child {uses[twice - 1]} times; each must be one exactly once")
    _check_order(children, parents, num_inner)


def _check_offsets(offsets: NDArray[np.int64], num_children: int) -> None:
    if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or offsets[-1] != num_children:
        raise ValueError(
            f"offsets: expected 0 … {num_children}, one more than inner nodes, where each one's row starts"
        )
    few = np.flatnonzero(np.diff(offsets) < 2)
    if len(few):
        found = offsets[few[0] + 1] - offsets[few[0]]
        raise ValueError(f"children: inner node {few[0]} has {found} children; a decision needs at least two")


def _check_order(children: NDArray[np.int64], parents: NDArray[np.int64], num_inner: int) -> None:
    edges = np.flatnonzero(children < num_inner)
    inner = children[edges]
    wrong = np.flatnonzero(inner != np.arange(1, num_inner))
    if len(wrong):
        raise ValueError(
            f"children: inner node {inner[wrong[0]]} stands where breadth-first order has {wrong[0] + 1}; "
            "number the inner nodes breadth first from the root 0, left before right"
        )
    # In this order a child above its parent is one that the root never reaches: it hangs in a cycle.
    cyclic = np.flatnonzero(parents[edges] >= inner)
    if len(cyclic):
        raise ValueError(f"children: inner node {inner[cyclic[0]]} is not under the root (a cycle)")
