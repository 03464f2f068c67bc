# SPDX-License-Identifier: Apache-2.0
"""Trees that divide an order: Fano's, the balanced ones, the alphabet and chance; by hand and by their properties."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.tree import Tree
from wenet_hs.tree.huffman import alphabetical_order, random_order

COUNTS = st.lists(st.integers(0, 30), min_size=1, max_size=50)


def literal_fano(frequencies: list[int]) -> list[str]:
    """Fano's rule word for word, one range after the other, with every cut tried."""
    codes = [""] * len(frequencies)
    waiting = [sorted(range(len(frequencies)), key=lambda unit: (-frequencies[unit], unit))]
    while waiting:
        units = waiting.pop()
        if len(units) == 1:
            continue
        masses = [frequencies[unit] for unit in units]
        if sum(masses):
            cut = min(range(1, len(units)), key=lambda place: abs(sum(masses[:place]) - sum(masses[place:])))
        else:
            cut = (len(units) + 1) // 2
        for half, bit in ((units[:cut], "0"), (units[cut:], "1")):
            for unit in half:
                codes[unit] += bit
            waiting.append(half)
    return codes


def test_fano_worked_by_hand() -> None:
    # 16 13 | 12 9 5 (29 against 26; 16 against 39 is farther); 16 | 13; 12 | 9 5 (12 against 14); 9 | 5
    assert Tree.fano([5, 9, 12, 13, 16], units=list("abcde")).codes() == ["111", "110", "10", "01", "00"]
    # Fano's own weakness: 15 | 7 6 6 5 is 15 against 24, 15 7 | 6 6 5 is 22 against 17, which is nearer.
    tree = Tree.fano([15, 7, 6, 6, 5])
    assert tree.codes() == ["00", "01", "10", "110", "111"]
    assert tree.mean_code_length() > Tree.huffman([15, 7, 6, 6, 5]).mean_code_length()


def test_fano_ties_go_by_id_and_to_fewer_units_on_the_left() -> None:
    assert Tree.fano([2, 2, 2]).codes() == ["0", "10", "11"]  # 2 | 2 2 is as near as 2 2 | 2
    assert Tree.fano([0, 3, 0, 0, 3, 0, 0]).codes() == ["11000", "0", "11001", "1101", "10", "1110", "1111"]


@settings(max_examples=20, deadline=None)
@given(COUNTS)
def test_fano_equals_the_literal_rule(frequencies: list[int]) -> None:
    assert Tree.fano(frequencies).codes() == literal_fano(frequencies)


@settings(max_examples=20, deadline=None)
@given(COUNTS)
def test_entropy_huffman_fano_in_this_order(frequencies: list[int]) -> None:
    huffman, fano = Tree.huffman(frequencies), Tree.fano(frequencies)
    assert fano.entropy() - 1e-9 <= huffman.mean_code_length() <= fano.mean_code_length() + 1e-9
    assert fano.mean_code_length() <= fano.entropy() + 1 + 1e-9 or not any(frequencies)


def test_fano_keeps_small_masses_beside_large_ones() -> None:
    tree = Tree.fano([2.0**-exponent for exponent in range(1000)])
    assert tree.depths().tolist() == [*range(1, 1000), 999]
    assert Tree.fano([1e300, 1e-300, 1e-300, 1e-300]).depths().tolist() == [1, 2, 3, 3]
    assert Tree.fano([8e307, 5e307, 4e307]).depths().tolist() == [1, 2, 2]


def test_balanced_halves_the_order_of_the_ids() -> None:
    tree = Tree.balanced([9, 1, 1, 5, 7], units=list("abcde"))
    assert (tree.kind, tree.codes()) == ("balanced", ["000", "001", "01", "10", "11"])
    assert tree.frequencies.tolist() == [9, 1, 1, 5, 7]
    assert Tree.balanced([1, 2]).codes() == ["0", "1"]


def test_alphabetical_halves_the_order_of_the_texts() -> None:
    units = ["z", "б", "E", "é", "e", "ea", "f", "α", "a"]
    assert [units[unit] for unit in alphabetical_order(units)] == ["a", "E", "e", "ea", "é", "f", "z", "α", "б"]
    tree = Tree.alphabetical([1, 1, 1, 1], ["d", "C", "b", "a"])
    assert (tree.kind, tree.codes()) == ("alphabetical", ["11", "10", "01", "00"])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, unique=True))
def test_the_alphabet_does_not_depend_on_the_order_of_the_ids(units: list[str]) -> None:
    forward = [units[unit] for unit in alphabetical_order(units)]
    assert [units[::-1][unit] for unit in alphabetical_order(units[::-1])] == forward
    assert sorted(forward) == sorted(units)


def test_a_seed_is_one_tree_for_ever() -> None:
    assert random_order(8, 0).tolist() == [3, 2, 1, 6, 0, 7, 4, 5]
    tree = Tree.random([1] * 40, seed=3)
    assert tree == Tree.random([1] * 40, seed=3)
    assert tree.options == {"seed": 3}
    assert tree.codes() != Tree.random([1] * 40, seed=4).codes()
    with pytest.raises(ValueError, match="seed: must be at least 0, got -1"):
        Tree.random([1, 2], seed=-1)


@pytest.mark.parametrize("num_units", [1, 2, 3, 17, 1000])
def test_halving_gives_codes_of_one_or_two_lengths(num_units: int) -> None:
    counts, names = np.ones(num_units), [f"u{unit}" for unit in range(num_units)]
    for tree in (Tree.balanced(counts), Tree.alphabetical(counts, names), Tree.random(counts), Tree.fano(0 * counts)):
        depths = tree.depths()
        assert (depths.min(), depths.max()) == (math.floor(math.log2(num_units)), math.ceil(math.log2(num_units)))


def test_three_hundred_thousand_units_in_seconds() -> None:
    begin = time.perf_counter()
    assert Tree.fano(1.0 / np.arange(1, 300_001)).depth < 40
    assert time.perf_counter() - begin < 10


@pytest.mark.slow
def test_three_hundred_thousand_units_in_any_order_in_seconds() -> None:
    counts, names = np.ones(300_000), [f"u{unit}" for unit in range(300_000)]
    begin = time.perf_counter()
    for tree in (Tree.balanced(counts), Tree.alphabetical(counts, names), Tree.random(counts)):
        assert tree.depth == 19
    assert time.perf_counter() - begin < 30
