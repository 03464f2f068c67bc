# SPDX-License-Identifier: Apache-2.0
"""Trees from frequencies or from an order of the units, and where units without features stand."""

import heapq
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.tree import Tree
from wenet_hs.tree.huffman import add_unplaced, alphabetical_order, least_depth
from wenet_hs.tree_kinds.kinds import TreeSource, build_tree

FREQUENCIES = st.lists(st.integers(0, 20), min_size=1, max_size=40)


def literal_codes(frequencies: list[int]) -> list[str]:
    """Algorithm 1 and 2 of the paper, with a priority queue of (weight, age, codes of the units)."""
    queue = [(weight, unit, {unit: ""}) for unit, weight in enumerate(frequencies)]
    heapq.heapify(queue)
    for age in range(len(frequencies), 2 * len(frequencies) - 1):
        left_weight, _, left = heapq.heappop(queue)
        right_weight, _, right = heapq.heappop(queue)
        codes = {unit: "0" + code for unit, code in left.items()}
        codes |= {unit: "1" + code for unit, code in right.items()}
        heapq.heappush(queue, (left_weight + right_weight, age, codes))
    _, _, codes = queue[0]
    return [codes[unit] for unit in range(len(frequencies))]


def test_five_units_worked_by_hand() -> None:
    # 5+9=14, 12+13=25, 14+16=30, 25+30=55; the lighter of the two is always on the left.
    tree = Tree.huffman([5, 9, 12, 13, 16], units=list("abcde"))
    assert tree.codes() == ["100", "101", "00", "01", "11"]
    assert tree.children.tolist() == [[1, 2], [6, 7], [3, 8], [4, 5]]
    assert tree.mean_code_length() == pytest.approx((3 * 5 + 3 * 9 + 2 * 12 + 2 * 13 + 2 * 16) / 55)
    # 1+1=2 enters the queue behind the leaf of weight 2, so the leaf is taken first and becomes the
    # left child.
    assert Tree.huffman([1, 1, 2]).codes() == ["10", "11", "0"]
    assert Tree.huffman([3, 3, 3, 3]).codes() == ["00", "01", "10", "11"]


@settings(max_examples=10, deadline=None)
@given(FREQUENCIES)
def test_equals_the_literal_algorithm(frequencies: list[int]) -> None:
    assert Tree.huffman(frequencies).codes() == literal_codes(frequencies)


def test_a_tree_as_deep_as_floats_allow_needs_no_recursion() -> None:
    frequencies = [2.0**exponent for exponent in range(-1000, 1000)]
    for max_depth, depth in ((None, 1999), (13, 13)):
        tree = Tree.huffman(frequencies, max_depth=max_depth)
        assert (tree.depth, tree.depths()[-1]) == (depth, 1)


def test_a_limit_that_binds() -> None:
    # Units 1 1 2 3 5. Level 1: these; packages 2 5. Level 2: 1 1 2 [2] 3 5 [5]; packages 2 4 8.
    # Level 3: 1 1 2 [2] 3 [4] 5 [8]; the first 2V-2 = 8: all five units and three packages. They
    # take six of level 2: 1 1 2 [2] 3 5, five units and a package, which takes two of level 1: 1 1.
    assert Tree.huffman([1, 1, 2, 3, 5], max_depth=3).depths().tolist() == [3, 3, 2, 2, 2]
    fibonacci = [1, 1, 2, 3, 5, 8, 13, 21, 34, 55]
    assert Tree.huffman(fibonacci).depth == 9
    tree = Tree.huffman(fibonacci, max_depth=5)
    assert (tree.depth, tree.options) == (5, {"max_depth": 5})
    left, right = tree.weights()[tree.children].T
    assert (left <= right).all()  # the less probable child is the left
    assert Tree.huffman([5], max_depth=0).depth == 0


def test_a_limit_that_is_too_small() -> None:
    message = "max_depth: 3 is too small for 12 units, which need at least 4"
    with pytest.raises(ValueError, match=message):
        Tree.huffman([1] * 12, max_depth=3)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=7), st.integers(0, 2))
def test_no_code_within_the_limit_is_cheaper(frequencies: list[int], slack: int) -> None:
    max_depth = least_depth(len(frequencies)) + slack
    tree = Tree.huffman(frequencies, max_depth=max_depth)
    assert tree.depth <= max_depth
    # All codes: every multiset of lengths with Kraft's sum 1, the shortest for the most frequent
    # unit.
    falling = sorted(frequencies, reverse=True)
    allowed = range(1, max_depth + 1)
    costs = []
    for lengths in itertools.combinations_with_replacement(allowed, len(frequencies)):
        if sum(2.0**-length for length in lengths) == 1:
            costs.append(np.dot(lengths, falling))
    assert tree.depths() @ tree.frequencies == min(costs)


def literal_fano(frequencies: list[int], units: list[int], code: str = "") -> dict[int, str]:
    """Fano's rule, one range after the other, with every cut tried."""
    if len(units) == 1:
        return {units[0]: code}
    masses = [frequencies[unit] for unit in units]
    cut = (len(units) + 1) // 2
    if sum(masses):
        cuts = range(1, len(units))
        cut = min(cuts, key=lambda cut: abs(sum(masses[:cut]) - sum(masses[cut:])))
    left = literal_fano(frequencies, units[:cut], code + "0")
    right = literal_fano(frequencies, units[cut:], code + "1")
    return left | right


def test_fano_worked_by_hand() -> None:
    # 16 13 | 12 9 5 (29 against 26; 16 against 39 is farther); 16 | 13; 12 | 9 5 (12 against 14); 9 | 5
    assert Tree.fano([5, 9, 12, 13, 16]).codes() == ["111", "110", "10", "01", "00"]
    # Fano's own weakness: 15 | 7 6 6 5 is 15 against 24, 15 7 | 6 6 5 is 22 against 17, which is nearer.
    tree = Tree.fano([15, 7, 6, 6, 5])
    assert tree.codes() == ["00", "01", "10", "110", "111"]
    assert tree.mean_code_length() > Tree.huffman([15, 7, 6, 6, 5]).mean_code_length()
    # Small masses count beside large ones, whose sum may overflow.
    deep = Tree.fano([2.0**-exponent for exponent in range(1000)])
    assert deep.depths().tolist() == [*range(1, 1000), 999]
    assert Tree.fano([8e307, 5e307, 4e307]).depths().tolist() == [1, 2, 2]


@settings(max_examples=10, deadline=None)
@given(FREQUENCIES)
def test_fano_equals_the_literal_rule(frequencies: list[int]) -> None:
    by_frequency = sorted(range(len(frequencies)), key=lambda unit: (-frequencies[unit], unit))
    expected = literal_fano(frequencies, by_frequency)
    assert dict(enumerate(Tree.fano(frequencies).codes())) == expected


def test_an_order_of_the_units_is_halved() -> None:
    tree = Tree.balanced([9, 1, 1, 5, 7])
    assert (tree.kind, tree.codes()) == ("balanced", ["000", "001", "01", "10", "11"])
    assert tree.frequencies.tolist() == [9, 1, 1, 5, 7]


def test_the_alphabetical_order_has_case_and_accents_beside_the_letter() -> None:
    units = ["z", "б", "E", "é", "e", "ea", "f", "α", "a"]
    ordered = [units[unit_id] for unit_id in alphabetical_order(units)]
    assert ordered == ["a", "E", "e", "ea", "é", "f", "z", "α", "б"]
    tree = build_tree("alphabetical", TreeSource(["d", "C", "b", "a"], np.ones(4)))
    assert tree.codes() == ["11", "10", "01", "00"]


def test_a_seed_always_gives_the_same_tree() -> None:
    assert (Tree.random([1] * 8).children[3:] - 7).reshape(-1).tolist() == [3, 2, 1, 6, 0, 7, 4, 5]
    tree = Tree.random([1] * 40, seed=3)
    assert tree.options == {"seed": 3} and set(tree.depths().tolist()) == {5, 6}
    assert tree.codes() != Tree.random([1] * 40, seed=4).codes()


@pytest.mark.parametrize(
    ("frequencies", "placed", "codes"),
    [
        # Units that never occur are the sibling of the least frequent one, 4; other codes are those
        # of the comb.
        ([0, 0, 5, 4, 2, 4], [2, 3, 4, 5], "0100 0101 000 001 011 1"),
        ([0, 5, 4, 2, 4], [1, 2, 3, 4], "010 000 001 011 1"),
        ([0, 0], [1], "0 1"),
        # <blank>, <unk>, <sos/eos> and three phones: the end of sentence is one decision, and costs
        # the phones one.
        ([0, 0, 9, 3, 2, 5], [3, 4, 5], "10100 10101 0 100 1011 11"),
        # Under CTC <blank> is most of the mass: it comes first, then the end, then the phones.
        ([40, 0, 6, 3, 2, 5], [3, 4, 5], "1 01010 00 0100 01011 011"),
        ([1, 1, 3, 30, 20, 50], [3, 4, 5], "000 001 01 100 101 11"),  # rare ones are one subtree
    ],
)
def test_units_without_features_are_placed_by_their_frequency(
    frequencies: list[float], placed: list[int], codes: str
) -> None:
    """The given tree is a comb over the placed units, the first one deepest."""
    weights = np.array(frequencies)
    num_units = len(frequencies)
    rows = []
    below = placed[0]
    for unit in placed[1:]:
        rows.append((below, unit))
        below = num_units + len(rows) - 1  # this row
    children = add_unplaced(
        np.array(rows, dtype=np.int64).reshape(-1, 2), np.array(placed, dtype=np.int64), weights
    )
    tree = Tree("comb", tuple(map(str, range(num_units))), children, weights)
    assert tree.codes() == codes.split()
