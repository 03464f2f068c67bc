# SPDX-License-Identifier: Apache-2.0
"""Units that a kind knows nothing of: rare ones cost the others nothing, frequent ones stand near the root."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.tree import Tree
from wenet_hs.tree.huffman import breadth_first
from wenet_hs.tree.huffman import add_unplaced

NAN = float("nan")


def completed(frequencies: list[float], placed: list[int]) -> Tree:
    """A comb over the placed units, the first one deepest, and the others hung where they belong."""
    weights, num_units = np.array(frequencies), len(frequencies)
    pairs = [(placed[0] if n == 0 else num_units + n - 1, unit) for n, unit in enumerate(placed[1:])]
    rows = add_unplaced(np.array(pairs, dtype=np.int64).reshape(-1, 2), np.array(placed, dtype=np.int64), weights)
    return Tree("comb", tuple(map(str, range(num_units))), breadth_first(rows), weights)


def test_what_never_occurs_is_the_sibling_of_the_least_frequent_unit() -> None:
    # 0 and 1 never occur; 4 is the least frequent. All other codes are those of the comb.
    tree = completed([0, 0, 5, 4, 2, 4], [2, 3, 4, 5])
    assert tree.codes() == ["0100", "0101", "000", "001", "011", "1"]
    assert completed([0, 5, 4, 2, 4], [1, 2, 3, 4]).codes() == ["010", "000", "001", "011", "1"]


def test_what_occurs_is_as_near_to_the_root_as_it_is_frequent() -> None:
    # <blank>, <unk>, <sos/eos> and three phones: the end of sentence is one decision, and costs the phones one.
    tree = completed([0, 0, 9, 3, 2, 5], [3, 4, 5])
    assert tree.codes() == ["10100", "10101", "0", "100", "1011", "11"]
    # Under CTC <blank> is most of the mass: it comes first, then the end, then the phones.
    assert [len(code) for code in completed([40, 0, 6, 3, 2, 5], [3, 4, 5]).codes()] == [1, 5, 2, 4, 5, 3]
    # Rare ones are one subtree.
    assert [len(code) for code in completed([1, 1, 2, 30, 20, 50], [3, 4, 5]).codes()] == [3, 3, 2, 3, 3, 2]


def test_without_any_place_it_is_huffmans_tree() -> None:
    for frequencies in ([5.0, 9, 12, 13, 16], [0.0, 0, 3, 1, 0], [0.0] * 5):
        weights = np.array(frequencies)
        rows = add_unplaced(np.zeros((0, 2), dtype=np.int64), np.zeros(0, dtype=np.int64), weights)
        assert sorted(Tree("x", tuple("abcde"), breadth_first(rows), weights).depths()) == sorted(
            Tree.huffman(frequencies).depths()
        )


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1, 2, 7, 30]), min_size=1, max_size=12), st.randoms())
def test_always_a_tree_that_costs_no_more_than_a_subtree_at_the_root(frequencies: list[float], rng: object) -> None:
    placed = [unit for unit in range(len(frequencies)) if rng.random() < 0.5]  # type: ignore[attr-defined]
    others = [unit for unit in range(len(frequencies)) if unit not in placed]
    tree = completed(frequencies, placed) if placed else None
    if tree is None or not others:
        return
    alone = completed([frequencies[unit] for unit in placed], list(range(len(placed))))
    beside = Tree.huffman([frequencies[unit] for unit in others])
    at_root = [0] * len(frequencies)
    for units, subtree in ((placed, alone), (others, beside)):
        for unit, depth in zip(units, subtree.depths().tolist(), strict=True):
            at_root[unit] = depth + 1
    assert tree.mean_code_length() <= tree.probabilities() @ at_root + 1e-9
    assert completed(frequencies, placed) == tree
    weights, lighter = tree.weights(), tree.children
    if any(frequencies) and others != [unit for unit in others if frequencies[unit] == 0]:
        root_left, root_right = lighter[0]
        assert weights[root_left] <= weights[root_right]


def test_nothing_occurs() -> None:
    assert completed([0, 0, 0, 0], [1, 2]).num_units == 4
    assert completed([0, 0], [1]).codes() == ["0", "1"]
    assert completed([0], [0]).codes() == [""]


@pytest.mark.parametrize("kind", ["brown", "embedding"])
def test_special_units_cost_the_units_nothing(kind: str) -> None:
    # <blank> and <unk> never occur: without them the others have the same code lengths, but for the rarest one.
    frequencies = np.array([0.0, 0, 6, 4, 3, 2])
    sequences = [[3, 4, 2], [4, 3, 2], [5, 4, 2], [3, 5, 2], [3, 2], [2, 2]]
    vectors = np.array([[NAN], [NAN], [0.0], [1], [1.5], [4]]) * [1.0, 1.0]
    if kind == "brown":
        tree = Tree.brown(sequences, frequencies)
        alone = Tree.brown([[unit - 2 for unit in sequence] for sequence in sequences], frequencies[2:])
    else:
        tree, alone = Tree.embedding(vectors, frequencies), Tree.embedding(vectors[2:], frequencies[2:])
    assert tree.depths()[2:5].tolist() == alone.depths()[:3].tolist()
    assert tree.depths()[5] == alone.depths()[3] + 1
