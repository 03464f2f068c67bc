# SPDX-License-Identifier: Apache-2.0
"""Brown clustering: examples worked by hand, and a brute-force search."""

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import units_below

from wenet_hs.tree import Tree, brown
from wenet_hs.tree.brown import brown_children

Class = frozenset[int]


def tree_of(
    sequences: Sequence[Sequence[int]], frequencies: Sequence[float], window: int | None = None
) -> Tree:
    """Brown's tree over units "0", "1", …; with a `window`, of at most so many classes."""
    weights = np.array(frequencies, dtype=np.float64)
    with pytest.MonkeyPatch.context() as patch:
        if window is not None:
            patch.setattr(brown, "FULL_UP_TO", 0)
            patch.setattr(brown, "WINDOW", window)
        children = brown_children(sequences, weights)
    return Tree("brown", tuple(map(str, range(len(weights)))), children, weights)


def count_units(sequences: Sequence[Sequence[int]], num_units: int) -> list[int]:
    """How often each unit 0, 1, … occurs."""
    counts = Counter(itertools.chain.from_iterable(sequences))
    return [counts[unit] for unit in range(num_units)]


def information(bigrams: Counter[tuple[int, int]], classes: Sequence[Class]) -> float:
    """T times the average mutual information of adjacent classes, from its definition, in nats."""
    where = {}  # the number of the class that each unit is in
    for number, members in enumerate(classes):
        where.update(dict.fromkeys(members, number))
    joint = np.zeros((len(classes), len(classes)))
    for (first, second), count in bigrams.items():
        joint[where[first], where[second]] += count
    expected = joint.sum(1, keepdims=True) * joint.sum(0) / joint.sum()
    present = joint > 0
    return float(joint[present] @ np.log(joint[present] / expected[present]))


def brute_force(sequences: Sequence[Sequence[int]], num_units: int, window: int) -> set[Class]:
    """Brown's algorithm word for word, with every pair tried.

    Returns the classes of the window when all units have joined, and those that are merged from
    them; classes of one unit are left out.
    """
    bigrams = Counter[tuple[int, int]]()
    for sequence in sequences:
        bigrams.update(itertools.pairwise(sequence))
    counts = count_units(sequences, num_units)
    occurring = {*itertools.chain.from_iterable(bigrams)}
    not_joined = sorted(occurring, key=lambda unit: (-counts[unit], unit))
    classes = list[Class]()
    of_window = set[Class]()
    while not_joined or len(classes) > 1:
        if not_joined:
            classes.append(frozenset([not_joined.pop(0)]))
        max_classes = window if not_joined else 1
        while len(classes) > max_classes:
            classes = merge_best_pair(bigrams, classes, rest=frozenset(not_joined))
            if not not_joined and len(classes) <= window:
                of_window.update(classes)
    return {members for members in of_window if len(members) > 1}


def merge_best_pair(
    bigrams: Counter[tuple[int, int]], classes: Sequence[Class], rest: Class
) -> list[Class]:
    """The classes after the merge that keeps most information; ties by the lowest unit ids.

    `rest` are the units that have not joined, which count as one class.
    """
    attempts = []
    for first, second in itertools.combinations(classes, 2):
        others = [members for members in classes if members not in (first, second)]
        merged = [*others, first | second]
        lowest_ids = sorted([min(first), min(second)])
        attempts.append((information(bigrams, [*merged, rest]), lowest_ids, merged))
    most = max(kept for kept, _, _ in attempts)
    best = [(ids, merged) for kept, ids, merged in attempts if kept > most - 1e-7]
    return min(best)[1]


def test_three_units_worked_by_hand() -> None:
    # Bigrams 01 (twice), 10, 02 (twice), 20 (twice): between 1 and 2 the contexts are alike. {1, 2}
    # (weight 4) goes beside 0 (weight 5): the lighter is on the left, and in it 1 and 2 (equal)
    # stand by id.
    tree = tree_of([[0, 1, 0, 1], [2, 0, 2, 0, 2]], [5, 4, 4])
    assert tree.children.tolist() == [[2, 1], [3, 4]]
    assert tree.codes() == ["0", "10", "11"]
    assert tree_of([[0, 1, 0, 1], [2, 0, 2, 0, 2]], [9, 4, 3]).codes() == ["1", "01", "00"]


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=25), min_size=1, max_size=6),
    st.sampled_from([1, 2, 3, 4, 8, 100]),
)
def test_equals_brute_force(sequences: list[list[int]], window: int) -> None:
    counts = count_units(sequences, 8)
    with_bigrams = [sequence for sequence in sequences if len(sequence) > 1]
    placed = {*itertools.chain.from_iterable(with_bigrams)}
    tree = tree_of(sequences, counts, window)
    branches = {members & placed for members in units_below(tree)}
    branches = {members for members in branches if len(members) > 1}
    expected = brute_force(sequences, 8, window)
    assert expected <= branches
    if window >= len(placed):  # no class of the window has a tree of its own
        assert branches == expected


def test_a_class_of_the_window_is_a_huffman_tree() -> None:
    # Two classes alternate: 0, and all the others in falling numbers.
    sequence = list[int]()
    for unit, count in enumerate([32, 16, 8, 4, 2, 1], start=1):
        sequence += [0, unit] * count
    sequences = [sequence]
    frequencies = count_units(sequences, 7)
    tree = tree_of(sequences, frequencies, 2)
    assert {1, 2, 3, 4, 5, 6} in units_below(tree)
    assert sorted(tree.depths().tolist()) == [1, 2, 3, 4, 5, 6, 6]
    assert tree.depths()[1] == 2
    one_class = tree_of(sequences, frequencies, 1)
    assert one_class.children.tolist() == Tree.huffman(frequencies).children.tolist()


def test_units_in_no_bigram_cost_the_others_as_little_as_they_can() -> None:
    # 4, 5 have no frequency and stand beside the least frequent; 6 has one, but stands in no
    # bigram.
    sequences = [[0, 1, 3], [0, 2, 3], [0, 1, 3], [0, 2, 3], [6]]
    rare = units_below(tree_of(sequences, [4, 2, 3, 4, 0, 0, 1]))
    assert {4, 5} in rare and {6, 4, 5} in rare
    assert {1, 2} in rare and {0, 1, 2, 3} in rare
    frequent = units_below(tree_of(sequences, [4, 2, 3, 4, 0, 0, 100]))
    assert {1, 4, 5} in frequent and {1, 2, 4, 5} in frequent


def test_bigrams_that_are_left_out() -> None:
    # Those with a unit of frequency 0:
    frequencies = [2, 2, 0]
    assert tree_of([[0, 2, 1], [0, 1]], frequencies) == tree_of([[0, 1]], frequencies)
    # Those across two sequences:
    tree = tree_of([[0, 1], [], [2, 3]], [1, 1, 1, 1])
    assert tree == tree_of([[2, 3], [0, 1], []], [1, 1, 1, 1])
    assert set(units_below(tree)) == brute_force([[0, 1], [2, 3]], 4, 4)


def test_a_tree_with_names() -> None:
    """Units 0 and 2 are both between 1 and 3, so they share a branch."""
    tree = Tree.brown([[1, 0, 3], [1, 2, 3], []], [1, 2, 1, 2], units="abcd")
    assert (tree.kind, tree.units, tree.options) == ("brown", ("a", "b", "c", "d"), {})
    codes = tree.codes()
    assert codes[0][:-1] == codes[2][:-1]


@pytest.mark.parametrize("wrong", [[0, 4], [-1, 2]])
def test_ids_that_are_no_units(wrong: list[int]) -> None:
    shown = f"sequences: unit ids from {wrong[0]} to {wrong[1]}; with 4 units they are 0…3"
    with pytest.raises(ValueError, match=shown):
        Tree.brown([[0, 1], wrong], [1, 1, 1, 1])
