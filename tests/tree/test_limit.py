# SPDX-License-Identifier: Apache-2.0
"""Huffman's tree under a limit: hand-worked lengths, the optimum by exhaustion, and the plain tree where it fits."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.tree import Tree
from wenet_hs.tree.huffman import code_lengths, least_depth

FIBONACCI = [1, 1, 2, 3, 5, 8, 13, 21, 34, 55]  # Huffman's tree of these is a comb of depth 9


def least_cost(frequencies: list[int], max_depth: int) -> int:
    """The cost of the best of all codes: every multiset of lengths with Kraft's sum 1, the longest for the rarest."""
    ascending = sorted(frequencies)
    return min(
        sum(length * count for length, count in zip(reversed(lengths), ascending, strict=True))
        for lengths in itertools.combinations_with_replacement(range(1, max_depth + 1), len(frequencies))
        if sum(2 ** (max_depth - length) for length in lengths) == 2**max_depth
    )


def test_code_lengths_worked_by_hand() -> None:
    # Units 1 1 2 3 5. Level 1: these; packages 2 5. Level 2: 1 1 2 [2] 3 5 [5]; packages 2 4 8.
    # Level 3: 1 1 2 [2] 3 [4] 5 [8]; the first 2V-2 = 8: all five units and three packages. They take six of level 2:
    # 1 1 2 [2] 3 5, five units and a package, which takes two of level 1: 1 1.
    assert code_lengths(np.array([1.0, 1, 2, 3, 5]), 3).tolist() == [3, 3, 2, 2, 2]


def test_a_limit_that_binds() -> None:
    assert Tree.huffman(FIBONACCI).depth == 9
    tree = Tree.huffman(FIBONACCI, max_depth=5)
    assert tree.depth == 5
    assert tree.options == {"max_depth": 5}
    assert int(tree.depths() @ tree.frequencies) == least_cost(FIBONACCI, 5)
    weights = tree.weights()
    assert (weights[tree.children[:, 0]] <= weights[tree.children[:, 1]]).all()  # the less probable child is the left


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=7), st.integers(0, 2))
def test_no_code_within_the_limit_is_cheaper(frequencies: list[int], slack: int) -> None:
    max_depth = least_depth(len(frequencies)) + slack
    tree = Tree.huffman(frequencies, max_depth=max_depth)
    assert tree.depth <= max_depth
    assert int(tree.depths() @ tree.frequencies) == least_cost(frequencies, max_depth)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=2, max_size=60))
def test_lengths_are_those_of_huffman_where_the_limit_leaves_room(frequencies: list[int]) -> None:
    plain = Tree.huffman(frequencies)
    assert (Tree.huffman(frequencies, max_depth=plain.depth).children == plain.children).all()
    lengths = code_lengths(np.sort(np.array(frequencies, dtype=np.float64)), plain.depth)
    assert lengths @ np.sort(frequencies) == plain.depths() @ plain.frequencies


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 1e306), min_size=2, max_size=60))
def test_the_tightest_limit_is_a_balanced_tree(frequencies: list[float]) -> None:
    depths = Tree.huffman(frequencies, max_depth=least_depth(len(frequencies))).depths()
    assert depths.max() == math.ceil(math.log2(len(frequencies)))


def test_weights_of_any_size_do_not_overflow() -> None:
    tree = Tree.huffman([2.0**exponent for exponent in range(-1000, 1000)], max_depth=13)
    assert tree.depth == 13
    assert tree.depths()[-1] == 1


def test_a_deep_limit_costs_little_and_a_large_vocabulary_seconds() -> None:
    counts = 1.0 / np.arange(1, 30_001)
    plain, limited = Tree.huffman(counts), Tree.huffman(counts, max_depth=16)
    assert limited.depth == 16 < plain.depth
    assert plain.mean_code_length() < limited.mean_code_length() < plain.mean_code_length() + 0.2
    assert limited == Tree.huffman(counts, max_depth=16)


@pytest.mark.parametrize(
    ("num_units", "max_depth", "message"),
    [
        (12, 3, "max_depth: 3 is too small for 12 units, which need at least 4"),
        (2, 0, "max_depth: 0 is too small for 2 units, which need at least 1"),
        (1, -1, "max_depth: -1 is too small for 1 units, which need at least 0"),
    ],
)
def test_a_limit_that_no_tree_meets_is_refused(num_units: int, max_depth: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tree.huffman([1] * num_units, max_depth=max_depth)


def test_one_unit_needs_no_depth() -> None:
    assert Tree.huffman([5], max_depth=0).depth == 0
    assert [least_depth(num_units) for num_units in (1, 2, 3, 4, 5, 8, 9)] == [0, 1, 2, 2, 3, 3, 4]
