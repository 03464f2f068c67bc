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
    """The tree; `window` limits the classes."""
    weights = np.array(frequencies, dtype=np.float64)
    with pytest.MonkeyPatch.context() as patch:
        if window is not None:
            patch.setattr(brown, "FULL_UP_TO", 0)
            patch.setattr(brown, "WINDOW", window)
        return Tree(
            "brown",
            tuple(map(str, range(len(weights)))),
            brown_children(sequences, weights),
            weights,
        )


def counted(sequences: Sequence[Sequence[int]], num_units: int) -> list[int]:
    return [sum(sequence.count(unit) for sequence in sequences) for unit in range(num_units)]


def information(bigrams: Counter[tuple[int, int]], classes: Sequence[Class]) -> float:
    """T times the average mutual information of adjacent classes, from its definition, in nats."""
    where = {unit: number for number, members in enumerate(classes) for unit in members}
    joint = np.zeros((len(classes), len(classes)))
    for (first, second), count in bigrams.items():
        joint[where[first], where[second]] += count
    expected = joint.sum(1, keepdims=True) * joint.sum(0) / joint.sum()
    present = joint > 0
    return float(joint[present] @ np.log(joint[present] / expected[present]))


def brute_force(sequences: Sequence[Sequence[int]], num_units: int, window: int) -> set[Class]:
    """Brown's algorithm word for word: every pair is tried, and the information computed anew each
    time.

    Returns the classes of the window when all units have joined, and those that are merged from
    them.
    """
    bigrams = Counter(pair for sequence in sequences for pair in itertools.pairwise(sequence))
    counts = counted(sequences, num_units)
    waiting = sorted(
        {unit for pair in bigrams for unit in pair}, key=lambda unit: (-counts[unit], unit)
    )
    classes, merged = list[Class](), set[Class]()
    while waiting or len(classes) > 1:
        if waiting:
            classes.append(frozenset([waiting.pop(0)]))
        while len(classes) > window or (not waiting and len(classes) > 1):
            tried = []
            for pair in itertools.combinations(classes, 2):
                union = pair[0] | pair[1]
                after = [*(c for c in classes if not c <= union), union]
                tried.append(
                    (
                        information(bigrams, [*after, frozenset(waiting)]),
                        sorted(map(min, pair)),
                        after,
                    )
                )
            most = max(tried)[0]
            classes = min((ids, after) for kept, ids, after in tried if kept > most - 1e-7)[1]
            if not waiting and len(classes) <= window:
                merged.update(classes)
    return {members for members in merged if len(members) > 1}


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
    counts = counted(sequences, 8)
    seen = {unit for sequence in sequences if len(sequence) > 1 for unit in sequence}
    found = {
        members & seen
        for members in units_below(tree_of(sequences, counts, window))
        if len(members & seen) > 1
    }
    between = brute_force(sequences, 8, window)
    assert between <= found
    if window >= len(seen):  # no class of the window has a tree of its own
        assert found == between


def test_a_class_of_the_window_is_a_huffman_tree() -> None:
    # Two classes alternate: 0, and all the others in falling numbers.
    counts = [0, 32, 16, 8, 4, 2, 1]
    sequences = [
        [part for unit, count in enumerate(counts) for _ in range(count) for part in (0, unit)]
    ]
    frequencies = counted(sequences, 7)
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
    for weight, subtrees in (
        (1, [{4, 5}, {6, 4, 5}, {1, 2}, {0, 1, 2, 3}]),
        (100, [{1, 4, 5}, {1, 2, 4, 5}]),
    ):
        found = units_below(tree_of(sequences, [4, 2, 3, 4, 0, 0, weight]))
        assert set(map(frozenset, subtrees)) <= set(found)


def test_bigrams_that_are_left_out() -> None:
    assert tree_of([[0, 2, 1], [0, 1]], [2, 2, 0]) == tree_of(
        [[0, 1]], [2, 2, 0]
    )  # unit 2 has no frequency
    apart = tree_of([[0, 1], [], [2, 3]], [1, 1, 1, 1])  # none across two sequences
    assert apart == tree_of([[2, 3], [0, 1], []], [1, 1, 1, 1])
    assert brute_force([[0, 1], [2, 3]], 4, 4) == set(units_below(apart))


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
