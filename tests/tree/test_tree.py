# SPDX-License-Identifier: Apache-2.0
"""The Tree value: paths, counts, figures, equality, and what is not a tree."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.tree import Tree
from wenet_hs.tree import tree as tree_module

TREES = st.lists(st.integers(0, 9), min_size=1, max_size=40).map(Tree.huffman)
FIVE = Tree.huffman([5, 9, 12, 13, 16], units=list("abcde"))


def test_paths_of_the_worked_example() -> None:
    nodes, turns = FIVE.paths()
    assert (nodes.dtype, turns.dtype) == (np.int64, np.int8)
    assert nodes.tolist() == [[0, 2, 3], [0, 2, 3], [0, 1, 0], [0, 1, 0], [0, 2, 0]]
    assert turns.tolist() == [[-1, 1, 1], [-1, 1, -1], [1, 1, 0], [1, -1, 0], [-1, -1, 0]]
    assert FIVE.depths().tolist() == [3, 3, 2, 2, 2]
    assert FIVE.leaf_counts().tolist() == [[2, 3], [1, 1], [2, 1], [1, 1]]
    assert FIVE.weights().tolist() == [55, 25, 30, 14, 5, 9, 12, 13, 16]


@settings(max_examples=20, deadline=None)
@given(TREES)
def test_walking_a_path_ends_at_its_leaf(tree: Tree) -> None:
    nodes, turns = tree.paths()
    for unit in range(tree.num_units):
        here = 0
        for node, turn in itertools.takewhile(lambda step: step[1], zip(nodes[unit], turns[unit], strict=True)):
            assert node == here
            here = int(tree.children[node, 0 if turn > 0 else 1])
        assert here == tree.num_units - 1 + unit
    assert (np.count_nonzero(turns, axis=1) == tree.depths()).all()
    assert (nodes[turns == 0] == 0).all()


@settings(max_examples=20, deadline=None)
@given(TREES)
def test_codes_are_prefix_free_and_complete(tree: Tree) -> None:
    codes = sorted(tree.codes())
    assert not any(later.startswith(code) for code, later in itertools.pairwise(codes))
    assert sum(2.0 ** -len(code) for code in codes) == 1.0  # Kraft's equality: no code is wasted


@settings(max_examples=20, deadline=None)
@given(TREES)
def test_leaf_counts_count_the_leaves_of_each_side(tree: Tree) -> None:
    nodes, turns = tree.paths()
    counts = tree.leaf_counts()
    for node in range(tree.num_units - 1):
        passing = (nodes == node) & (turns != 0)
        assert counts[node].tolist() == [np.sum(passing & (turns > 0)), np.sum(passing & (turns < 0))]


@settings(max_examples=20, deadline=None)
@given(TREES)
def test_numbering_is_breadth_first_and_parents_undo_children(tree: Tree) -> None:
    flat = tree.children.reshape(-1)
    assert flat[flat < tree.num_units - 1].tolist() == list(range(1, tree.num_units - 1))
    assert tree.parents[0] == -1
    for node, pair in enumerate(tree.children.tolist()):
        assert tree.parents[pair].tolist() == [node, node]


def test_figures_by_hand() -> None:
    tree = Tree.huffman([1, 1, 2])
    assert tree.entropy() == pytest.approx(1.5)
    assert tree.mean_code_length() == pytest.approx(1.5)
    assert tree.depth == 2
    assert tree.probabilities().tolist() == [0.25, 0.25, 0.5]
    unseen = Tree.huffman([0, 0, 0, 0])
    assert (unseen.entropy(), unseen.mean_code_length()) == (2.0, 2.0)


def test_a_single_unit_has_an_empty_path() -> None:
    tree = Tree.huffman([4.0], units=["a"])
    nodes, turns = tree.paths()
    assert nodes.shape == turns.shape == (1, 0)
    assert (tree.depth, tree.mean_code_length(), tree.entropy()) == (0, 0.0, 0.0)
    assert tree.leaf_counts().shape == (0, 2)
    assert tree.weights().tolist() == [4.0]


def test_is_a_frozen_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FIVE.kind = "other"  # type: ignore[misc]
    for array in (FIVE.children, FIVE.frequencies):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    frequencies = np.array([1.0, 2.0])
    tree = Tree.huffman(frequencies)
    frequencies[0] = 9.0
    assert tree.frequencies.tolist() == [1.0, 2.0]


def test_equality_and_hash_look_at_the_content() -> None:
    same = Tree.huffman([5.0, 9.0, 12.0, 13.0, 16.0], units=list("abcde"))
    assert same == FIVE and hash(same) == hash(FIVE)
    assert same != Tree.huffman([5, 9, 12, 13, 17], units=list("abcde"))
    assert same != Tree.huffman([5, 9, 12, 13, 16], units=list("abcdf"))
    assert same != Tree.huffman([5, 9, 12, 13, 16], units=list("abcde"), options={"weighting": "pooled"})
    assert same != "tree"


def test_a_comb_too_deep_for_a_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "MAX_PATH_CELLS", 10)
    with pytest.raises(ValueError, match="5 units at depth 3 are too deep for a table of paths"):
        FIVE.paths()


@pytest.mark.parametrize(
    ("children", "message"),
    [
        ([[1, 2]], "1 inner nodes for 3 units; there must be 2"),
        ([[1, 4], [2, 5]], "inner node 1 has child 5; a child is 1…4"),
        ([[0, 4], [2, 3]], "inner node 0 has child 0; a child is 1…4"),
        ([[1, 4], [2, 2]], "node 2 is a child 2 times; each must be one exactly once"),
        ([[2, 3], [1, 4]], r"inner node 1 is not under the root \(a cycle\)"),
    ],
)
def test_what_is_no_tree_is_refused(children: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tree("huffman", ("a", "b", "c"), np.array(children), np.ones(3))


def test_numbering_that_is_not_breadth_first_is_refused() -> None:
    children = np.array([[2, 1], [3, 4], [5, 6]])
    with pytest.raises(ValueError, match="found inner node 2 where breadth-first order has 1"):
        Tree("huffman", tuple("abcd"), children, np.ones(4))
