# SPDX-License-Identifier: Apache-2.0
"""Embeddings: trained, read from files, taken from a model; their clustering."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import units_below

from wenet_hs.tree import Tree
from wenet_hs.tree.errors import CheckpointError, ConfigError, DataError
from wenet_hs.tree_kinds.embedding import (
    checkpoint_vectors,
    read_embeddings,
    ward_children,
    write_embeddings,
)

NAN = float("nan")
UNITS = ("<blank>", "a", "b", "é", "▁")


# ---- files


def written(tmp_path: Path, content: str | bytes, name: str = "vectors.vec") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        "4 2\na 1 2\n▁ 3 4\ne\u0301 5 6.5\nother -1 1e-3\n",
        "a 1 2\n▁ 3 4\nother 7 x\né 5 6.5",
        "\ufeff4 2 \r\na 1 2 \r\n▁  3 4 \r\né 5 6.5 \r\nother 0 0 \r\n",
    ],
)
def test_text_with_and_without_a_first_line(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, content)
    vectors = read_embeddings(path, UNITS)
    assert np.isnan(vectors[[0, 2]]).all()
    assert vectors[[1, 4, 3]].tolist() == [[1, 2], [3, 4], [5, 6.5]]
    text = f"2 of 5 units have no vector in {path}; they are placed by their frequency"
    assert caplog.messages[0].startswith(text)
    assert caplog.messages[0].endswith(": <blank> b")


def test_only_an_ascii_space_separates(tmp_path: Path) -> None:
    path = written(tmp_path, "\u3000 1 2\n\u2028 3 4\n")
    assert read_embeddings(path, ("\u3000", "\u2028")).tolist() == [[1, 2], [3, 4]]


def test_written_vectors_are_read_back(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(len(UNITS), 3))
    vectors[0] = NAN
    path = tmp_path / "vectors.vec"
    write_embeddings(path, UNITS, vectors)
    assert path.read_text("utf-8").startswith("4 3\na ")
    assert np.array_equal(read_embeddings(path, UNITS), vectors, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "x.txt",
            "a 1 2\nb 3\n",
            ":2: 1 numbers, expected a unit and 2 numbers, separated by spaces",
        ),
        ("x.txt", "2 3\na 1 2\nb 3 4\n", ":2: 2 numbers, expected a unit and 3 numbers"),
        (
            "x.txt",
            "a 1 2\nb 3 nan\n",
            ":2: a value is NaN or infinite; leave the unit out if it has no vector",
        ),
        ("x.txt", "a 1 two\n", ":1: 'two' is not a number; expected a unit and its vector"),
        ("x.txt", "é 1 2\ne\u0301 3 4\n", ":2: 'é' occurs a second time; keep one"),
        (
            "x.txt",
            "9 2\na 1 2\nb 3 4\n",
            ":1: the first line says 9 vectors, but there are 2; copy the file again",
        ),
        (
            "x.txt",
            "2 2\nx 1 2\ny 3 4\n",
            ": has none of the 5 units; its names must be those of units.txt",
        ),
        (
            "x.txt",
            "9" * 5000 + " 2\na 1 2\n",
            ":1: vectors of one number; a table of units is no file of vectors",
        ),
        (
            "x.txt",
            b"1 2\na \x00\x80\x3f\xff\xfe\n",
            ": not UTF-8 text; save the vectors in word2vec's text form",
        ),
        ("x.txt", None, ": cannot be read (No such file"),
    ],
)
def test_each_fault_of_a_file_is_one_line(
    tmp_path: Path, name: str, content: str | bytes | None, message: str
) -> None:
    path = tmp_path / name if content is None else written(tmp_path, content, name)
    with pytest.raises(DataError) as caught:
        read_embeddings(path, UNITS)
    assert str(caught.value).startswith(f"{path}{message}")
    assert "\n" not in str(caught.value)


# ---- checkpoints


def test_output_rows_of_a_softmax() -> None:
    for layer in ("head.output", "decoder.output_layer", "decoder.left_decoder.output_layer"):
        weight = torch.arange(6, dtype=torch.bfloat16).reshape(3, 2).requires_grad_()
        state = {
            "ctc.ctc_lo.weight": torch.zeros(3, 2),
            f"{layer}.weight": weight,
            f"{layer}.bias": torch.ones(3),
        }
        assert checkpoint_vectors(state, 3, "final.pt").tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {"head.inner_vector.weight": torch.zeros(2, 4)},
            "has no flat softmax; give the checkpoint of a model with",
        ),
        (
            {"head.output.weight": torch.zeros(4, 2)},
            r"output.weight has shape \(4, 2\), but there are 3 units; use",
        ),
        (
            {"head.output.weight": torch.full((3, 2), torch.nan)},
            "has a value that is NaN or infinite; use an earlier",
        ),
    ],
)
def test_faults_of_a_checkpoint(state: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"final.pt: .*{message}"):
        checkpoint_vectors(state, 3, "final.pt")


# ---- clustering


def built(
    vectors: object, frequencies: Sequence[float] | None = None, cosine: bool = False
) -> Tree:
    """The tree; its constructor checks it. A flat list of numbers is one number per unit."""
    array = np.asarray(vectors, dtype=np.float64)
    if array.ndim == 1:
        array = array[:, None]
    if frequencies is None:
        frequencies = [1.0] * len(array)
    weights = np.array(frequencies, dtype=np.float64)
    children = ward_children(array, weights, cosine=cosine)
    return Tree("embedding", tuple(map(str, range(len(array)))), children, weights)


def test_clusterings_worked_by_hand() -> None:
    # 0 and 1 first (d² = 1), then 10 and 12 (4), then both pairs. The lighter pair, 10 and 12, is
    # on the left.
    assert built([0, 1, 10, 12], [5, 4, 1, 2]).codes() == ["11", "10", "00", "01"]
    # The centre of 1 and 1.6 is 1.15 from the centre 0.15 of the four first units: 2·4·2/6·1.15² =
    # 3.53. The last unit at 3 is 1.7 from it: 2·2·1/3·1.7² = 3.85; at 2.9 it is 3.41.
    assert frozenset([4, 5, 6]) in units_below(built([0, 0.1, 0.2, 0.3, 1, 1.6, 2.9]))
    assert frozenset([0, 1, 2, 3, 4, 5]) in units_below(built([0, 0.1, 0.2, 0.3, 1, 1.6, 3]))
    # Ties depend only on the unit ids.
    assert units_below(built([0, 1, 2, 3])) == [
        frozenset(range(4)),
        frozenset([0, 1]),
        frozenset([2, 3]),
    ]
    assert frozenset([0, 1]) in units_below(built([0, 1, -1]))
    assert frozenset([0, 1]) in units_below(built([0, -1, 1]))
    assert built([[0.0, 1], [1, 0]]).num_units == 2  # looks like a matrix of distances


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=30),
    st.randoms(),
)
def test_any_input_gives_a_tree_with_the_lighter_child_left(
    points: list[tuple[int, int]], rng: object
) -> None:
    frequencies = [float(rng.randint(0, 3)) for _ in points]  # type: ignore[attr-defined]
    tree = built(points, frequencies)
    left, right = tree.weights()[tree.children].T
    assert (left <= right).all()
    assert built(points, frequencies) == tree


def test_units_without_a_vector_are_placed_by_their_frequency() -> None:
    tree = built([[0.0, 1], [NAN, NAN], [0, 2], [NAN, NAN], [NAN, NAN]], [10, 1, 10, 2, 4])
    assert tree.codes() == ["10", "000", "11", "001", "01"]
    assert frozenset([1, 3, 4]) in units_below(tree)
    # A single one is a leaf at the root:
    assert built([0, NAN, 1], [1, 9, 1]).codes() == ["00", "1", "01"]


def test_without_different_vectors_it_is_huffmans_tree() -> None:
    frequencies = [5.0, 9, 12, 13, 16]
    expected = Tree.huffman(frequencies).children
    for cosine in (False, True):
        for vectors in (np.full((5, 3), NAN), np.full((5, 3), 0.1), [[]] * 5):
            assert np.array_equal(built(vectors, frequencies, cosine).children, expected)


def test_one_and_two_units() -> None:
    for cosine in (False, True):
        for pair in ([1, 2], [1, 1], [NAN, 1], [0, -0.0]):
            assert built(pair, [3, 1], cosine).codes() == ["1", "0"]
    assert built([1]).children.shape == built([NAN]).children.shape == (0, 2)


def test_units_with_the_same_vector_are_one_huffman_tree() -> None:
    # Only some are equal: 0, -0 and 0 are one vector, a tree of units 0, 2 and 3; unit 1 is lighter
    # than the three.
    assert built([0, 5, -0.0, 0]).codes() == ["110", "0", "111", "10"]
    assert built([1, 3] * 512).depth == 10
    vectors = np.repeat(np.random.default_rng(0).normal(size=(60, 5)), 3, axis=0)
    vectors[5::7] = NAN
    branches = units_below(built(vectors, cosine=True))
    assert frozenset([0, 1, 2]) in branches  # three equal vectors
    assert frozenset(range(5, 180, 7)) in branches  # all without a vector


def test_scale_and_offset_change_nothing_and_directions_ignore_length() -> None:
    vectors = np.clip(np.random.default_rng(0).normal(size=(60, 5)), -3, 3)
    for changed in (vectors * 1e-300, vectors * 1e307, vectors + 100):
        assert built(changed) == built(vectors)
    vectors -= vectors.mean(axis=0)
    tree = built(vectors, cosine=True)
    assert built(vectors + [3, -2, 8, 0, 1], cosine=True) == tree
    assert built(vectors * 7, cosine=True) == tree
    # Opposite pairs, so the mean is zero whatever their length: units 0 and 2 have the same
    # direction.
    opposite = np.array([[1, 0.1], [-1, -0.1], [9, 0.8], [-9, -0.8], [0.1, 2], [-0.1, -2.0]])
    assert {frozenset([0, 2]), frozenset([1, 3])} <= set(units_below(built(opposite, cosine=True)))
    assert frozenset([0, 2]) not in units_below(built(opposite))


def test_wrong_and_too_many_vectors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    message = r"vectors: shape \(1, 2\) for 2 units; expected one row per unit"
    with pytest.raises(ValueError, match=message):
        built([[1.0, 2]], [1, 1])
    message = "vectors: unit 1 has NaN or infinite values; only a whole row may be NaN"
    for wrong in (NAN, float("inf")):
        with pytest.raises(ValueError, match=message):
            built([[1.0, 2], [1, wrong]], [1, 1])
    monkeypatch.setattr("wenet_hs.tree_kinds.embedding.MAX_VECTORS", 3)
    message = "vectors: 4 units have one, clustering takes at most 3; use --kind brown"
    with pytest.raises(ConfigError, match=message):
        built([1, 2, 3, 4])
    assert built([1, 2, 3, NAN]).num_units == 4
