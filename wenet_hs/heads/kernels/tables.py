# SPDX-License-Identifier: Apache-2.0
"""A tree as the tree head's routes want it: small tables, each made when a route first asks, on the device that asks.

Dimension key: N targets, V units, I = V-1 inner nodes, P longest path.
"""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wenet_hs.heads.kernels.reference import PrefixTables
from wenet_hs.tree import Tree

if TYPE_CHECKING:
    from wenet_hs.heads.kernels.nodes import NodeTables
    from wenet_hs.heads.kernels.path import Climb

MAX_PATH_TABLE = 2**26
"""Cells of the table of all paths; of a tree beyond it (a comb of 10,000 units) each target climbs to the root."""


class TreeTables:
    """What `HSoftmaxHead` derives from its tree. Copies and pickles as the tree alone."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._tensors: dict[tuple[torch.device, str], Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"tree": self.tree}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["tree"])  # type: ignore[misc]

    @cached_property
    def up(self) -> NDArray[np.int32]:
        """(2V-1,) twice the inner node above each node, plus 1 for its right child; -1 above the root."""
        children = self.tree.children
        up = np.full(2 * len(children) + 1, -1, dtype=np.int32)
        up[children.reshape(-1)] = np.arange(children.size)
        return up

    @cached_property
    def depths(self) -> NDArray[np.int64]:
        """(V,) the number of decisions above each leaf."""
        return self.tree.depths()

    @cached_property
    def children(self) -> NDArray[np.int32]:
        """(V-1, 2), writeable and half the size of the tree's."""
        return self.tree.children.astype(np.int32)

    @cached_property
    def climb(self) -> "Climb":
        """For the path kernels."""
        from wenet_hs.heads.kernels.path import Climb

        return Climb(self.up, self.depths)

    @cached_property
    def node_tables(self) -> "NodeTables":
        """For the kernels of all node scores."""
        from wenet_hs.heads.kernels.nodes import NodeTables

        left, right = (np.ascontiguousarray(counts) for counts in self.tree.leaf_counts().T.astype(np.float32))
        return NodeTables(self.up, self.depths, left, right)

    def paths(self, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """Each target's path: nodes (N, P) int64, 0 where padded, and turns (N, P) int8, +1 left, -1 right, 0 padding.

        The order of a row's nodes is not said.
        """
        device = targets_N.device
        if self.tree.num_units * self.tree.depth > MAX_PATH_TABLE:
            return self._climb(targets_N)
        if (device, "nodes") not in self._tensors:
            nodes, turns = self.tree.paths()
            self._tensors[device, "turns"] = _on(device, turns)
            self._tensors[device, "nodes"] = _on(device, nodes.astype(np.int32))
        nodes_VP, turns_VP = self._tensors[device, "nodes"], self._tensors[device, "turns"]
        return nodes_VP.index_select(0, targets_N).long(), turns_VP.index_select(0, targets_N)

    def _climb(self, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        up = self._tensor("up", targets_N.device, lambda: self.up.astype(np.int64))
        nodes_NP = targets_N.new_zeros(len(targets_N), self.tree.depth)
        turns_NP = torch.zeros_like(nodes_NP, dtype=torch.int8)
        here_N = targets_N + (self.tree.num_units - 1)
        for step in range(self.tree.depth):
            above_N = up.index_select(0, here_N)
            here_N = (above_N >> 1).clamp(min=0)  # a climber at the root stays there
            nodes_NP[:, step] = here_N
            turns_NP[:, step] = (1 - 2 * (above_N & 1)) * (above_N >= 0)
        return nodes_NP, turns_NP

    def leaves(self, device: torch.device) -> Tensor:
        """(2, V-1) int64: how many leaves are under the left and the right child."""
        return self._tensor("leaves", device, lambda: self.tree.leaf_counts().T)

    def children_on(self, device: torch.device) -> Tensor:
        """(V-1, 2) int64, for the search."""
        return self._tensor("children", device, lambda: self.tree.children)

    def path_lengths(self, targets_N: Tensor) -> Tensor:
        """(N,) int64: how many decisions lead to each target."""
        return self._tensor("depths", targets_N.device, lambda: self.depths).index_select(0, targets_N)

    def prefix(self, device: torch.device) -> PrefixTables:
        """For the log-probabilities of all units."""
        if (device, "prefix") not in self._tensors:
            tables = _prefix_tables(self.tree)
            self._tensors[device, "prefix"] = PrefixTables(*(_on(device, values) for values in tables))
        found: PrefixTables = self._tensors[device, "prefix"]
        return found

    def _tensor(self, name: str, device: torch.device, make: Callable[[], NDArray[np.int64]]) -> Tensor:
        if (device, name) not in self._tensors:
            self._tensors[device, name] = _on(device, make())
        found: Tensor = self._tensors[device, name]
        return found


def _on(device: torch.device, values: NDArray[Any]) -> Tensor:
    with torch.inference_mode(False):  # a table made while recognizing serves a training that follows
        return torch.tensor(values, device=device)


def _prefix_tables(tree: Tree) -> tuple[NDArray[np.int64], ...]:
    num_inner = tree.num_units - 1
    source = np.full(2 * num_inner + 1, 2 * num_inner, dtype=np.int64)
    source[tree.children] = np.arange(2 * num_inner).reshape(2, num_inner).T
    parents = np.where(tree.parents < 0, num_inner, tree.parents)
    jump = np.append(parents[:num_inner], num_inner)
    jumps = []
    while (jump < num_inner).any():
        jumps.append(jump)
        jump = jump[jump]
    return (
        np.append(source[:num_inner], 2 * num_inner),
        source[num_inner:],
        parents[num_inner:],
        np.array(jumps, dtype=np.int64).reshape(-1, num_inner + 1),
    )
