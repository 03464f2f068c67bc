# SPDX-License-Identifier: Apache-2.0
"""Ward's clustering: hand-worked trees, ties, identical vectors, units without a vector, directions, wrong calls."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from trees import units_below

from wenet_hs.errors import ConfigError
from wenet_hs.tree import Tree, embedding
from wenet_hs.tree.embedding import ward_children

NAN = float("nan")


def built(vectors: object, frequencies: Sequence[float] | None = None, cosine: bool = False) -> Tree:
    """The tree; its constructor checks it."""
    array = np.asarray(vectors, dtype=np.float64)
    weights = np.ones(len(array)) if frequencies is None else np.array(frequencies, dtype=np.float64)
    children = ward_children(array, weights, cosine=cosine)
    return Tree("embedding", tuple(map(str, range(len(array)))), children, weights)


def line(*values: float) -> list[list[float]]:
    return [[value] for value in values]


def random_vectors(num_units: int, dim: int = 5, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(num_units, dim))


def test_four_points_worked_by_hand() -> None:
    # 0 and 1 first (d² = 1), then 10 and 12 (4), then both pairs. The lighter pair, 10 and 12, is on the left.
    assert built(line(0, 1, 10, 12), [5, 4, 1, 2]).codes() == ["11", "10", "00", "01"]


def test_ward_takes_cluster_sizes_into_account() -> None:
    # The centre of 1 and 1.6 is 1.15 from the centre 0.15 of the four first units: 2·4·2/6·1.15² = 3.53.
    # The last unit at 3 is 1.7 from it: 2·2·1/3·1.7² = 3.85; at 2.9 it is 3.41.
    assert frozenset([4, 5, 6]) in units_below(built(line(0, 0.1, 0.2, 0.3, 1, 1.6, 2.9)))
    assert frozenset([0, 1, 2, 3, 4, 5]) in units_below(built(line(0, 0.1, 0.2, 0.3, 1, 1.6, 3)))


def test_clear_clusters_are_subtrees() -> None:
    vectors = np.repeat(100 * random_vectors(8, seed=3), 30, axis=0) + random_vectors(240)
    assert {frozenset(range(30 * n, 30 * n + 30)) for n in range(8)} <= set(units_below(built(vectors)))


def test_ties_are_deterministic() -> None:
    assert units_below(built(line(0, 1, 2, 3))) == [frozenset(range(4)), frozenset([0, 1]), frozenset([2, 3])]
    assert frozenset([0, 1]) in units_below(built(line(0, 1, -1)))
    assert frozenset([0, 1]) in units_below(built(line(0, -1, 1)))
    assert built([[0.0, 1], [1, 0]]).num_units == 2  # looks like a matrix of distances


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=30), st.randoms())
def test_any_input_gives_a_tree_with_the_lighter_child_left(points: list[tuple[int, int]], rng: object) -> None:
    frequencies = [float(rng.randint(0, 3)) for _ in points]  # type: ignore[attr-defined]
    tree = built(points, frequencies)
    weights = tree.weights()
    assert (weights[tree.children[:, 0]] <= weights[tree.children[:, 1]]).all()
    assert built(points, frequencies) == tree


def test_units_without_a_vector_are_placed_by_their_frequency() -> None:
    tree = built([[0.0, 1], [NAN, NAN], [0, 2], [NAN, NAN], [NAN, NAN]], [10, 1, 10, 2, 4])
    assert tree.codes() == ["10", "000", "11", "001", "01"]
    assert frozenset([1, 3, 4]) in units_below(tree)
    assert built([[0.0], [NAN], [1]], [1, 9, 1]).codes() == ["00", "1", "01"]  # a single one is a leaf at the root


@pytest.mark.parametrize("cosine", [False, True])
def test_without_different_vectors_it_is_huffmans_tree(cosine: bool) -> None:
    frequencies = [5.0, 9, 12, 13, 16]
    expected = Tree.huffman(frequencies).children
    for vectors in (np.full((5, 3), NAN), np.zeros((5, 3)), np.full((5, 3), 0.1), np.zeros((5, 0))):
        assert np.array_equal(built(vectors, frequencies, cosine).children, expected)
    for pair in ([[1.0], [2.0]], [[1.0], [1.0]], [[NAN], [1.0]], [[0.0], [-0.0]]):
        assert built(pair, [3, 1], cosine).codes() == ["1", "0"]
    assert built([[1.0, 2]]).children.shape == (0, 2)
    assert built([[NAN, NAN]]).children.shape == (0, 2)


def test_identical_vectors_form_a_huffman_tree() -> None:
    assert built(np.repeat([[1.0, 2], [3, 4]], 512, axis=0)).depth == 10
    # 0, -0 and 0 are one vector: Huffman's tree over units 0, 2 and 3; unit 1 is lighter than the three of them.
    assert built([[0.0], [5], [-0.0], [0]]).codes() == ["110", "0", "111", "10"]
    vectors = np.repeat(random_vectors(60), 3, axis=0)
    vectors[5::7] = NAN
    found = units_below(built(vectors, cosine=True))
    assert frozenset([0, 1, 2]) in found and frozenset(range(5, 180, 7)) in found


@pytest.mark.parametrize("scale", [1e-300, 2.0**-40, 1e150, 1e307])
def test_scale_and_offset_change_nothing(scale: float) -> None:
    vectors = np.clip(random_vectors(60), -3, 3)
    assert built(vectors * scale) == built(vectors)
    assert built(vectors + 100) == built(vectors)


def test_directions_ignore_length_and_a_common_vector() -> None:
    vectors = random_vectors(50)
    vectors -= vectors.mean(axis=0)
    tree = built(vectors, cosine=True)
    assert built(vectors + [3, -2, 8, 0, 1], cosine=True) == tree
    assert built(vectors * 7, cosine=True) == tree
    # Opposite pairs, so the mean is zero whatever their length: units 0 and 2 have the same direction.
    opposite = np.array([[1, 0.1], [-1, -0.1], [9, 0.8], [-9, -0.8], [0.1, 2], [-0.1, -2.0]])
    assert {frozenset([0, 2]), frozenset([1, 3])} <= set(units_below(built(opposite, cosine=True)))
    assert frozenset([0, 2]) not in units_below(built(opposite))


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 2]], r"vectors: shape \(1, 2\) for 2 units; expected one row per unit"),
        ([1.0, 2], r"vectors: shape \(2,\) for 2 units"),
        ([[1.0, 2], [1, NAN]], "vectors: unit 1 has NaN or infinite values; only a whole row may be NaN"),
        ([[1.0, np.inf], [1, 2]], "vectors: unit 0 has NaN or infinite"),
    ],
)
def test_wrong_vectors_are_refused(vectors: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(vectors, [1, 1])


def test_more_vectors_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "MAX_VECTORS", 3)
    with pytest.raises(ConfigError, match="vectors: 4 units have one, clustering takes at most 3; use --kind brown"):
        built(line(1, 2, 3, 4))
    assert built(line(1, 2, 3, NAN)).num_units == 4
