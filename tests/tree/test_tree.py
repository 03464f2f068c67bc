# SPDX-License-Identifier: Apache-2.0
"""The Tree value: paths, counts, figures, equality; `tree.json`: round trip and one line for each fault."""

import dataclasses
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wenet_hs.errors import DataError
from wenet_hs.tree import Tree
from wenet_hs.tree import tree as tree_module

TREES = st.lists(st.integers(0, 9), min_size=1, max_size=40).map(Tree.huffman)
GOOD: dict[str, Any] = {
    "format": "wenet_hs.tree/1",
    "kind": "huffman",
    "units": ["a", "▁", "ñ"],
    "children": [[1, 4], [2, 3]],
    "frequencies": [1, 2.5, 4],
    "options": {"weighting": "pooled"},
}
FIVE = Tree.huffman([5, 9, 12, 13, 16], units=list("abcde"))


def test_paths_of_the_worked_example() -> None:
    nodes, turns = FIVE.paths()
    assert (nodes.dtype, turns.dtype) == (np.int64, np.int8)
    assert nodes.tolist() == [[0, 2, 3], [0, 2, 3], [0, 1, 0], [0, 1, 0], [0, 2, 0]]
    assert turns.tolist() == [[-1, 1, 1], [-1, 1, -1], [1, 1, 0], [1, -1, 0], [-1, -1, 0]]
    assert FIVE.depths().tolist() == [3, 3, 2, 2, 2]
    assert FIVE.leaf_counts().tolist() == [[2, 3], [1, 1], [2, 1], [1, 1]]
    assert FIVE.weights().tolist() == [55, 25, 30, 14, 5, 9, 12, 13, 16]


@settings(max_examples=20, deadline=None)
@given(TREES)
def test_walking_a_path_ends_at_its_leaf(tree: Tree) -> None:
    nodes, turns = tree.paths()
    for unit in range(tree.num_units):
        here = 0
        for node, turn in itertools.takewhile(lambda step: step[1], zip(nodes[unit], turns[unit], strict=True)):
            assert node == here
            here = int(tree.children[node, 0 if turn > 0 else 1])
        assert here == tree.num_units - 1 + unit
    assert (np.count_nonzero(turns, axis=1) == tree.depths()).all()
    assert (nodes[turns == 0] == 0).all()


@settings(max_examples=20, deadline=None)
@given(TREES)
def test_codes_are_prefix_free_and_complete(tree: Tree) -> None:
    codes = sorted(tree.codes())
    assert not any(later.startswith(code) for code, later in itertools.pairwise(codes))
    assert sum(2.0 ** -len(code) for code in codes) == 1.0  # Kraft's equality: no code is wasted


@settings(max_examples=20, deadline=None)
@given(TREES)
def test_leaf_counts_count_the_leaves_of_each_side(tree: Tree) -> None:
    nodes, turns = tree.paths()
    counts = tree.leaf_counts()
    for node in range(tree.num_units - 1):
        passing = (nodes == node) & (turns != 0)
        assert counts[node].tolist() == [np.sum(passing & (turns > 0)), np.sum(passing & (turns < 0))]


def test_figures_by_hand() -> None:
    tree = Tree.huffman([1, 1, 2])
    assert tree.entropy() == pytest.approx(1.5)
    assert tree.mean_code_length() == pytest.approx(1.5)
    assert tree.depth == 2
    assert tree.probabilities().tolist() == [0.25, 0.25, 0.5]
    unseen = Tree.huffman([0, 0, 0, 0])
    assert (unseen.entropy(), unseen.mean_code_length()) == (2.0, 2.0)


def test_a_single_unit_has_an_empty_path() -> None:
    tree = Tree.huffman([4.0], units=["a"])
    nodes, turns = tree.paths()
    assert nodes.shape == turns.shape == (1, 0)
    assert (tree.depth, tree.mean_code_length(), tree.entropy()) == (0, 0.0, 0.0)
    assert tree.leaf_counts().shape == (0, 2)
    assert tree.weights().tolist() == [4.0]


def test_is_a_frozen_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FIVE.kind = "other"  # type: ignore[misc]
    for array in (FIVE.children, FIVE.frequencies):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    frequencies = np.array([1.0, 2.0])
    tree = Tree.huffman(frequencies)
    frequencies[0] = 9.0
    assert tree.frequencies.tolist() == [1.0, 2.0]


def test_equality_and_hash_look_at_the_content() -> None:
    same = Tree.huffman([5.0, 9.0, 12.0, 13.0, 16.0], units=list("abcde"))
    assert same == FIVE and hash(same) == hash(FIVE)
    assert same != Tree.huffman([5, 9, 12, 13, 17], units=list("abcde"))
    assert same != Tree.huffman([5, 9, 12, 13, 16], units=list("abcdf"))
    assert same != Tree.huffman([5, 9, 12, 13, 16], units=list("abcde"), options={"weighting": "pooled"})
    assert same != "tree"


def test_a_comb_too_deep_for_a_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "MAX_PATH_CELLS", 10)
    with pytest.raises(ValueError, match="5 units at depth 3 are too deep for a table of paths"):
        FIVE.paths()


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "tree.json"
    path.write_text(json.dumps({k: v for k, v in (GOOD | changes).items() if v is not None}), "utf-8")
    return path


def test_loads_the_documented_format(tmp_path: Path) -> None:
    tree = Tree.load(written(tmp_path))
    assert tree == Tree.huffman([1, 2.5, 4], units=["a", "▁", "ñ"], options={"weighting": "pooled"})
    assert tree.codes() == ["00", "01", "1"]


def test_saves_the_documented_format(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tree.json"
    Tree.huffman([1, 2.5, 4], units=["a", "▁", "ñ"], options={"weighting": "pooled"}).save(path)
    text = path.read_text("utf-8")
    assert json.loads(text) == GOOD
    assert "▁" in text  # units can be read in the file
    assert [entry.name for entry in path.parent.iterdir()] == ["tree.json"]


@settings(max_examples=20, deadline=None)
@given(frequencies=st.lists(st.floats(0, 1e30), min_size=1, max_size=30))
def test_round_trip_keeps_every_bit(tmp_path_factory: pytest.TempPathFactory, frequencies: list[float]) -> None:
    path = tmp_path_factory.mktemp("tree") / "tree.json"
    tree = Tree.huffman(frequencies, options={"num_utterances": 3})
    tree.save(path)
    assert Tree.load(path) == tree


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"format": "wenet_hs.tree/2"},
            "format: Input should be 'wenet_hs.tree/1', found 'wenet_hs.tree/2'; build the tree again, or",
        ),
        ({"kind": 3}, "kind: Input should be a valid string, found 3;"),
        ({"kind": "two\nlines"}, r"kind: 'two\\nlines' is not the name of a kind; expected one such as 'huffman'"),
        ({"options": {"a": {"b": "\ud800"}}}, "unexpected end of hex escape at line 1"),
        ({"units": None}, "units: Field required; build the tree again"),
        ({"options": []}, "options: Input should be an object, found "),
        ({"surplus": 1}, "surplus: Extra inputs are not permitted, found 1"),
        ({"units": ["a", "b"]}, "2 names for 3 frequencies; there must be one per unit"),
        ({"units": ["a", "b", 3]}, "units: 2: Input should be a valid string, found 3"),
        ({"units": ["a", "b", "a"]}, "'a' is both unit 0 and unit 2; names must differ"),
        ({"frequencies": [1, 2, "3"]}, "frequencies: 2: Input should be a valid number, found '3'"),
        ({"frequencies": [1, -2, 3]}, "unit 1 has -2.0; each must be finite and not negative"),
        ({"frequencies": [1, 10**400, 3]}, "frequencies: 1: Input should be a"),
        ({"frequencies": [], "units": [], "children": []}, "the list is empty; a tree needs at least one unit"),
        ({"children": [[1, 4]]}, "1 inner nodes for 3 units; there must be 2"),
        ({"children": [[1, 4], [2, 2]]}, "node 2 is a child 2 times; each must be one exactly once"),
        ({"children": [[2, 3], [1, 4]]}, r"inner node 1 is not under the root \(a cycle\)"),
        ({"children": [[1, 4], [2, 99]]}, "inner node 1 has child 99; a child is 1…4"),
        (
            {"children": [[1, 4], [2]]},
            "children: inner node 1 has one child; a node needs two or more, put the child in its parent's list",
        ),
        ({"children": [[1, 4], []]}, "inner node 1 has no children; a node needs two or more, name them, or leave"),
        ({"children": [[1, 4], [2, 3.0]]}, "children: 1: 1: Input should be a valid integer, found 3.0"),
        (
            {"children": [[1, 4], [2, 2**70]]},
            "children: 1: 1: Input should be less than 2147483648, found 1180591620717411303424",
        ),
        ({"children": [[True, 4], [2, 3]]}, "children: 0: 0: Input should be a valid integer, found True"),
        ({"children": [[1, 4], 7]}, "children: 1: Input should be a valid array, found 7"),
        (
            {"children": [[1, 2, 3]]},
            r"an n-ary tree \(kind huffman, up to 3 children\), for `head: class`; build a binary",
        ),
    ],
)
def test_each_fault_is_one_line_with_the_path(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(DataError, match=message) as fault:
        Tree.load(path)
    assert str(fault.value).startswith(f"{path}: ")
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Invalid JSON: EOF while parsing a value at line 1 column 0"),
        ('{"format": 1,\n oops}', "Invalid JSON: .* at line 2"),
        ("[1, 2]", "Input should be an object"),
        ("[" * 200_000, "Invalid JSON: recursion limit exceeded"),
        ('{"a": NaN}', "format: Field required"),
        (json.dumps(GOOD).replace('"pooled"', "1e999"), "options: a number that is not finite"),
        (json.dumps(GOOD).replace("2.5", "1e999"), "frequencies: 1: Input should be a finite number"),
    ],
)
def test_hostile_text_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tree.json"
    path.write_text(text, "utf-8")
    with pytest.raises(DataError, match=message):
        Tree.load(path)


def test_a_missing_file_and_one_that_is_not_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="tree.json: cannot be read"):
        Tree.load(tmp_path / "tree.json")
    (tmp_path / "tree.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(DataError, match="tree.json:1: not UTF-8"):
        Tree.load(tmp_path / "tree.json")


@pytest.mark.slow
def test_a_million_nodes_load_in_seconds(tmp_path: Path) -> None:
    tree = Tree.huffman(1.0 / np.arange(1, 1_000_002))
    tree.save(tmp_path / "tree.json")
    begin = time.perf_counter()
    assert Tree.load(tmp_path / "tree.json") == tree
    assert time.perf_counter() - begin < 10
