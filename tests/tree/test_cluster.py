# SPDX-License-Identifier: Apache-2.0
"""Ward's clustering: hand-worked trees, scipy as the second opinion, ties, units without a vector, the halved route."""

import logging
import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from wenet_hs.tree import Tree, clustering
from wenet_hs.tree.clustering import ward_children
from wenet_hs.tree.embedding import log_without_vector

NAN = float("nan")


def built(vectors: object, frequencies: Sequence[float] | None = None, cosine: bool = False) -> Tree:
    """The tree, whose constructor checks that it is one."""
    array = np.asarray(vectors, dtype=np.float64)
    weights = np.ones(len(array)) if frequencies is None else np.array(frequencies, dtype=np.float64)
    children = ward_children(array, weights, cosine=cosine)
    return Tree("embedding", tuple(map(str, range(len(array)))), children, weights)


def line(*values: float) -> list[list[float]]:
    return [[value] for value in values]


def clusters(tree: Tree) -> set[frozenset[int]]:
    """The units under each inner node."""
    num_inner = len(tree.children)
    below: list[frozenset[int]] = [frozenset()] * num_inner + [frozenset([unit]) for unit in range(tree.num_units)]
    for node in reversed(range(num_inner)):
        left, right = tree.children[node]
        below[node] = below[left] | below[right]
    return set(below[:num_inner])


def scipy_clusters(vectors: NDArray[np.float64]) -> set[frozenset[int]]:
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    below = [frozenset([unit]) for unit in range(len(vectors))]
    for first, second, *_ in hierarchy.ward(vectors):
        below.append(below[int(first)] | below[int(second)])
    return set(below[len(vectors) :])


def random_vectors(num_units: int, dim: int = 5, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(num_units, dim))


def test_four_points_worked_by_hand() -> None:
    # 0 and 1 first (d² = 1), then 10 and 12 (4), then both pairs; the lighter pair, 10 and 12, is on the left.
    tree = built(line(0, 1, 10, 12), [5, 4, 1, 2])
    assert tree.codes() == ["11", "10", "00", "01"]


def test_ward_and_not_the_nearest_centre() -> None:
    # Sizes count: 0 0.1 0.2 0.3 is a large cluster. The centre of 1 and 1.6 is 1.15 from its centre 0.15, and 3 is 1.7
    # from theirs; but Ward asks for 2·4·2/6·1.15² = 3.53 and 2·2·1/3·1.7² = 3.85 … 3 at 2.9 makes it 3.41.
    assert frozenset([4, 5, 6]) in clusters(built(line(0, 0.1, 0.2, 0.3, 1, 1.6, 2.9)))
    assert frozenset([0, 1, 2, 3, 4, 5]) in clusters(built(line(0, 0.1, 0.2, 0.3, 1, 1.6, 3)))


@pytest.mark.parametrize("num_units", [2, 3, 10, 101, 300])
def test_equals_scipy_where_nothing_is_tied(num_units: int) -> None:
    vectors = random_vectors(num_units, seed=num_units)
    assert clusters(built(vectors)) == scipy_clusters(vectors)


def test_equals_scipy_above_its_duplicates() -> None:
    distinct = random_vectors(20)
    vectors = distinct[np.random.default_rng(1).integers(0, 20, 90)]
    groups = {frozenset(np.flatnonzero((vectors == row).all(axis=1)).tolist()) for row in vectors}
    ours, theirs = clusters(built(vectors)), scipy_clusters(vectors)
    assert {c for c in groups if len(c) > 1} <= ours

    def above(found: set[frozenset[int]]) -> set[frozenset[int]]:
        return {c for c in found if not any(c < group for group in groups)}

    assert above(ours) == above(theirs)


def test_ties_go_by_the_lowest_unit_id() -> None:
    # Every gap is 1: 0 looks for its nearest first and finds 1; 2 and 3; then the pairs.
    assert clusters(built(line(0, 1, 2, 3))) == {frozenset([0, 1]), frozenset([2, 3]), frozenset(range(4))}
    # Unit 0 is the middle one: both neighbours are as near, and 1 has the lower id.
    assert frozenset([0, 1]) in clusters(built(line(0, 1, -1)))
    assert frozenset([0, 1]) in clusters(built(line(0, -1, 1)))
    # The corners of a cube: edges in the order of the ids, along the last axis, which differs between 0 and 1.
    cube = [[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)]
    assert built(cube).codes() == [format(unit, "03b") for unit in range(8)]


def test_a_grid_full_of_ties_is_the_same_tree_wherever_it_lies() -> None:
    grid = np.array([[x, y] for x in range(12) for y in range(12)], dtype=np.float64)
    expected = built(grid)
    assert built(grid / 3) == expected  # thirds are not exact: the noise must not decide
    assert built(grid * 0.1 + 7) == expected
    assert built(grid[:, ::-1]) == built(np.column_stack([grid[:, 1], grid[:, 0], np.zeros(144)]))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=30), st.randoms())
def test_any_input_makes_a_tree_and_the_left_child_is_the_lighter_one(
    points: list[tuple[int, int]], rng: object
) -> None:
    frequencies = [float(rng.randint(0, 3)) for _ in points]  # type: ignore[attr-defined]
    tree = built(points, frequencies)
    weights, lowest = tree.weights(), np.arange(2 * len(points) - 1) - len(points) + 1
    for node in reversed(range(len(tree.children))):
        left, right = tree.children[node]
        lowest[node] = min(lowest[left], lowest[right])
        assert (weights[left], lowest[left]) < (weights[right], lowest[right])
    assert built(points, frequencies) == tree


def test_units_without_a_vector_are_joined_by_their_frequency() -> None:
    tree = built([[0.0, 1], [NAN, NAN], [0, 2], [NAN, NAN], [NAN, NAN]], [10, 1, 10, 2, 4])
    assert tree.codes() == ["10", "000", "11", "001", "01"]
    assert frozenset([1, 3, 4]) in clusters(tree)
    assert built([[0.0], [NAN], [1]], [1, 9, 1]).codes() == ["00", "1", "01"]  # a single one is a leaf at the root


def test_without_any_vector_it_is_huffmans_tree() -> None:
    frequencies = [5.0, 9, 12, 13, 16]
    expected = Tree.huffman(frequencies).children
    for vectors in (np.full((5, 3), NAN), np.zeros((5, 3)), np.full((5, 3), 0.1), np.zeros((5, 0))):
        for cosine in (False, True):
            assert np.array_equal(built(vectors, frequencies, cosine).children, expected)


def test_one_and_two_units() -> None:
    assert built([[1.0, 2]]).children.shape == (0, 2)
    assert built([[NAN, NAN]]).children.shape == (0, 2)
    for vectors in ([[1.0], [2.0]], [[1.0], [1.0]], [[NAN], [1.0]], [[0.0], [-0.0]]):
        for cosine in (False, True):
            assert built(vectors, [3, 1], cosine).codes() == ["1", "0"]


def test_equal_vectors_make_no_comb() -> None:
    assert built(np.repeat([[1.0, 2], [3, 4]], 512, axis=0)).depth == 10
    # 0, -0 and 0 are one vector: Huffman's tree over units 0, 2 and 3; unit 1 is lighter than the three of them.
    assert built([[0.0], [5], [-0.0], [0]]).codes() == ["110", "0", "111", "10"]


@pytest.mark.parametrize("scale", [1e-300, 2.0**-40, 1e150, 1e307])
def test_size_and_place_change_nothing(scale: float) -> None:
    vectors = np.clip(random_vectors(60), -3, 3)
    assert built(vectors * scale) == built(vectors)
    assert built(vectors + 100) == built(vectors)


def test_directions_know_neither_length_nor_a_common_vector() -> None:
    vectors = random_vectors(50)
    vectors -= vectors.mean(axis=0)
    tree = built(vectors, cosine=True)
    assert built(vectors + [3, -2, 8, 0, 1], cosine=True) == tree
    assert built(vectors * 7, cosine=True) == tree
    # Opposite pairs, so the mean stays zero whatever their length: units 0 and 2 point the same way.
    opposite = np.array([[1, 0.1], [-1, -0.1], [9, 0.8], [-9, -0.8], [0.1, 2], [-0.1, -2.0]])
    assert {frozenset([0, 2]), frozenset([1, 3])} <= clusters(built(opposite, cosine=True))
    assert frozenset([0, 2]) not in clusters(built(opposite))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "DIRECT_LIMIT", 50)
    monkeypatch.setattr(clustering, "BLOCK_SIZE", 20)


@pytest.mark.usefixtures("small_blocks")
class TestHalving:
    def test_clear_clusters_stay_whole(self) -> None:
        centres = 100 * random_vectors(8, seed=3)
        vectors = np.repeat(centres, 30, axis=0) + random_vectors(240)
        found = clusters(built(vectors))
        assert {frozenset(range(30 * n, 30 * n + 30)) for n in range(8)} <= found

    def test_ends_where_every_block_has_outliers(self) -> None:
        # 2-means would cut off one unit at a time, a level each.
        vectors = line(*(2.0 ** np.arange(400)))
        assert built(vectors).depth < 70
        assert built(random_vectors(1000, 1) ** 9).depth < 60

    def test_a_tiny_spread_beside_a_large_one(self) -> None:
        vectors = np.concatenate([1 + 1e-13 * random_vectors(100, 2), 1e12 * random_vectors(3, 2)])
        assert built(vectors).num_units == 103

    def test_equal_and_absent_units(self) -> None:
        vectors = np.repeat(random_vectors(60), 3, axis=0)
        vectors[5::7] = NAN
        tree = built(vectors, cosine=True)
        assert frozenset(range(5, 180, 7)) in clusters(tree)
        assert frozenset([0, 1, 2]) in clusters(tree)

    def test_is_the_same_tree_again_and_when_scaled(self) -> None:
        vectors = random_vectors(300)
        assert built(vectors) == built(vectors.copy()) == built(vectors * 2.0**9)


_PROGRAM = """
import numpy as np
from wenet_hs.tree import clustering
clustering.DIRECT_LIMIT, clustering.BLOCK_SIZE = 900, 400
vectors = np.random.default_rng(0).normal(size=(1500, 96))
children = [clustering.ward_children(vectors[:n], np.ones(n), cosine=True).tolist() for n in (700, 1500)]
print(__import__("zlib").crc32(repr(children).encode()))
"""


def test_is_the_same_tree_with_any_number_of_threads() -> None:
    def checksum(threads: str) -> str:
        environment = os.environ | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        run = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, check=True)
        return run.stdout.decode()

    assert checksum("1") == checksum("3")


@pytest.mark.slow
def test_three_hundred_thousand_units() -> None:
    rng = np.random.default_rng(0)
    vectors = (
        rng.normal(size=(300_000, 100)).astype(np.float32) + rng.normal(size=(600, 100))[rng.integers(0, 600, 300_000)]
    )
    assert built(vectors, 1 / np.arange(1, 300_001), cosine=True).depth < 100


@pytest.mark.parametrize(
    ("vectors", "frequencies", "message"),
    [
        ([[1.0, 2]], [1, 1], r"vectors: shape \(1, 2\) for 2 units; expected one row per unit"),
        ([1.0, 2], [1, 1], r"vectors: shape \(2,\) for 2 units"),
        ([[1.0, 2], [1, NAN]], [1, 1], "vectors: unit 1 has NaN or infinite values; only a whole row may be NaN"),
        ([[1.0, np.inf], [1, 2]], [1, 1], "vectors: unit 0 has NaN or infinite"),
    ],
)
def test_wrong_calls(vectors: object, frequencies: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(vectors, frequencies)


def test_units_without_a_vector_are_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    units = ["<blank>", "a", "ж", "b"]
    log_without_vector(np.array([[NAN], [1.0], [NAN], [2.0]]), units, "have no vector")
    log_without_vector(np.array([[NAN], [1.0], [3.0], [2.0]]), units, "have no vector")
    log_without_vector(np.zeros((4, 1)), units, "have no vector")
    many = [f"u{unit}" for unit in range(30)]
    log_without_vector(np.full((30, 2), NAN), many, "have no vector")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
    assert caplog.messages[0] == "2 of 4 units have no vector; they are placed by their frequency only: <blank> ж"
    assert caplog.messages[2].endswith("u18 u19 and 10 more")
