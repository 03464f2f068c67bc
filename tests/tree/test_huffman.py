# SPDX-License-Identifier: Apache-2.0
"""Huffman's algorithm: hand-worked codes, the order of ties, no combs, and a literal heap as the second opinion."""

import heapq
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.tree import Tree

FREQUENCIES = st.lists(st.integers(0, 20), min_size=1, max_size=40)


def literal_codes(frequencies: list[float]) -> list[str]:
    """Algorithm 1 and 2 of the paper, word for word, with a priority queue and tuples as nodes."""
    queue = [(weight, order, order) for order, weight in enumerate(frequencies)]
    heapq.heapify(queue)
    children: dict[int, tuple[int, int]] = {}
    for new in range(len(frequencies), 2 * len(frequencies) - 1):
        first, second = heapq.heappop(queue), heapq.heappop(queue)
        children[new] = (first[2], second[2])
        heapq.heappush(queue, (first[0] + second[0], new, new))
    codes = [""] * len(frequencies)
    waiting = [(queue[0][2], "")]
    while waiting:
        node, code = waiting.pop()
        if node < len(frequencies):
            codes[node] = code
        else:
            waiting += [(children[node][0], code + "0"), (children[node][1], code + "1")]
    return codes


def test_five_units_worked_by_hand() -> None:
    # 5+9=14, 12+13=25, 14+16=30, 25+30=55; the lighter of the two is always on the left.
    tree = Tree.huffman([5, 9, 12, 13, 16], units=list("abcde"))
    assert tree.codes() == ["100", "101", "00", "01", "11"]
    assert tree.children.tolist() == [[1, 2], [6, 7], [3, 8], [4, 5]]
    assert tree.mean_code_length() == pytest.approx((3 * 5 + 3 * 9 + 2 * 12 + 2 * 13 + 2 * 16) / 55)


def test_the_three_leaves_of_figure_2() -> None:
    tree = Tree.huffman([1, 2, 4], units=["w1", "w2", "w3"])
    assert tree.codes() == ["00", "01", "1"]
    assert tree.children.tolist() == [[1, 4], [2, 3]]


def test_ties_go_by_unit_id_and_leaves_before_merged_nodes() -> None:
    # 1+1=2 enters the queue behind the leaf of weight 2, so the leaf is taken first and becomes the left child.
    assert Tree.huffman([1, 1, 2]).codes() == ["10", "11", "0"]
    assert Tree.huffman([3, 3, 3, 3]).codes() == ["00", "01", "10", "11"]


@settings(max_examples=20, deadline=None)
@given(FREQUENCIES)
def test_equals_the_literal_algorithm(frequencies: list[int]) -> None:
    assert Tree.huffman(frequencies).codes() == literal_codes([float(value) for value in frequencies])


@settings(max_examples=20, deadline=None)
@given(FREQUENCIES)
def test_mean_code_length_is_within_one_bit_of_the_entropy(frequencies: list[int]) -> None:
    tree = Tree.huffman(frequencies)
    if sum(frequencies) == 0:
        return
    assert tree.entropy() - 1e-9 <= tree.mean_code_length() < tree.entropy() + 1 + 1e-9


def test_units_that_never_occur_make_no_comb() -> None:
    tree = Tree.huffman([50.0, 30.0, 20.0] + [0.0] * 1000)
    depths = tree.depths()
    attached_at = depths[3:].min() - math.floor(math.log2(1000))
    assert depths[3:].max() - attached_at <= 11
    assert tree.depth <= 14


@pytest.mark.parametrize("value", [0.0, 7.0])
@pytest.mark.parametrize("num_units", [2, 5, 8, 1000])
def test_equal_frequencies_give_a_balanced_tree(num_units: int, value: float) -> None:
    depths = Tree.huffman([value] * num_units).depths()
    assert depths.max() == math.ceil(math.log2(num_units))
    assert depths.max() - depths.min() <= 1


def test_one_and_two_units() -> None:
    one = Tree.huffman([3.0])
    assert one.children.shape == (0, 2)
    assert one.codes() == [""]
    assert Tree.huffman([3.0, 2.0]).codes() == ["1", "0"]


def test_is_deterministic_and_indifferent_to_scale() -> None:
    frequencies = np.random.default_rng(0).zipf(1.5, size=200).clip(max=1000)
    assert Tree.huffman(frequencies) == Tree.huffman(frequencies.tolist())
    assert Tree.huffman(frequencies).codes() == Tree.huffman(frequencies / 1024).codes()


def test_three_hundred_thousand_units_in_seconds() -> None:
    frequencies = 1.0 / np.arange(1, 300_001)
    begin = time.perf_counter()
    tree = Tree.huffman(frequencies)
    assert time.perf_counter() - begin < 10
    assert tree.depth < 40


def test_a_comb_as_deep_as_floats_allow_needs_no_recursion() -> None:
    tree = Tree.huffman([2.0**exponent for exponent in range(-1000, 1000)])
    assert tree.depth == 1999
    assert len(tree.codes()[-1]) == 1


@pytest.mark.parametrize(
    ("frequencies", "units", "message"),
    [
        ([], None, "the list is empty; a tree needs at least one unit"),
        ([1.0, -2.0], None, "unit 1 has -2.0; each must be finite and not negative"),
        ([1.0, math.nan], None, "unit 1 has nan; each must be finite"),
        ([math.inf, 1.0], None, "unit 0 has inf; each must be finite"),
        ([1e308, 1e308], None, "their sum is not finite; scale them down"),
        ([[1.0, 2.0]], None, r"one number per unit, got an array of shape \(1, 2\)"),
        ([1.0, 2.0], ["a"], "1 names for 2 frequencies; there must be one per unit"),
        ([1.0, 2.0, 3.0], ["a", "b", "a"], "'a' is both unit 0 and unit 2; names must differ"),
        ([1.0, 2.0], ["a", ""], "unit 1 is ''; expected a non-empty text"),
        ([1.0, 2.0], ["a", "\ud800"], "half of a surrogate pair"),
    ],
)
def test_wrong_input_is_refused(frequencies: list[float], units: list[str] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tree.huffman(frequencies, units)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 1e300), min_size=2, max_size=60))
def test_any_finite_floats_give_a_valid_tree(frequencies: list[float]) -> None:
    tree = Tree.huffman(frequencies)
    assert sorted(tree.children.reshape(-1).tolist()) == list(range(1, 2 * len(frequencies) - 1))
