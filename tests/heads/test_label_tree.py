# SPDX-License-Identifier: Apache-2.0
"""The part of a tree that leads to a few units: its paths are those of the whole tree."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.heads.kernels.tables import TreeTables
from wenet_hs.heads.label_tree import label_tree
from wenet_hs.tree import Tree


def path_to(children: np.ndarray, leaf: int) -> list[tuple[int, int]]:
    """From the root: each inner node and the side taken there."""
    path, here = [], leaf + len(children)
    while here:
        (above,), (side,) = np.nonzero(children == here)
        path.insert(0, (int(above), int(side)))
        here = above
    return path


def test_one_unit_of_four() -> None:
    tables = TreeTables(Tree.huffman([1.0, 1.0, 1.0, 1.0]))  # 0 → (1, 2), 1 → units 0 and 1, 2 → units 2 and 3
    found = label_tree(np.array([3, 3]), tables.up, tables.children)
    assert found.nodes.tolist() == [0, 2]
    assert found.children.tolist() == [[2, 1], [3, 4]]  # left of the root lies a leaf, which stands for node 1
    assert found.leaves.tolist() == [2, 2]


def test_a_tree_of_one_unit() -> None:
    tables = TreeTables(Tree.huffman([1.0]))
    found = label_tree(np.array([0, 0]), tables.up, tables.children)
    assert found.nodes.tolist() == [] and found.children.shape == (0, 2) and found.leaves.tolist() == [0, 0]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 60), st.lists(st.integers(0, 10**6), min_size=1, max_size=8), st.booleans())
def test_paths_are_kept(num_units: int, numbers: list[int], skewed: bool) -> None:
    frequencies = 2.0 ** -np.arange(num_units) if skewed else 1.0 / np.arange(1, num_units + 1)
    tables = TreeTables(Tree.huffman(frequencies))
    units = np.array(numbers) % num_units
    found = label_tree(units, tables.up, tables.children)
    num_nodes = len(found.nodes)
    assert sorted(found.children.reshape(-1)) == list(range(1, 2 * num_nodes + 1))
    assert all((child > node or child >= num_nodes) for node, row in enumerate(found.children) for child in row)
    for unit, leaf in zip(units, found.leaves, strict=True):
        whole, part = path_to(tables.children, unit), path_to(found.children, leaf)
        assert [(found.nodes[node], side) for node, side in part] == whole
