# SPDX-License-Identifier: Apache-2.0
"""Tree and NaryTree: paths, numbering, figures, equality; classes of units; `tree.json`."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import comb, merge_levels, units_below

from wenet_hs.tree import NaryTree, Tree, load_tree
from wenet_hs.tree.errors import DataError

COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=30)
TREES = COUNTS.map(Tree.huffman)
NARY = st.one_of(
    st.builds(NaryTree.frequency_bins, COUNTS, st.integers(1, 12)),
    st.builds(NaryTree.from_binary, TREES, st.integers(1, 12)),
    st.builds(merge_levels, TREES, st.integers(1, 5)),
)
GOOD: dict[str, Any] = {
    "format": "wenet_hs.tree/1", "kind": "huffman", "units": ["a", "▁", "ñ"], "children": [[1, 4], [2, 3]],
    "frequencies": [1, 2.5, 4], "options": {"weighting": "pooled"},
}  # fmt: skip
FIVE = Tree.huffman([5, 9, 12, 13, 16], units=list("abcde"))
# Root: the node 1, unit 0, the node 2; below them units 1 2 3, and 4 5.
SIX = NaryTree.from_rows([[1, 3, 2], [4, 5, 6], [7, 8]], [8, 1, 1, 2, 2, 2], units=list("abcdef"))


def test_paths_of_the_worked_example() -> None:
    nodes, turns = FIVE.paths()
    assert (nodes.dtype, turns.dtype) == (np.int64, np.int8)
    assert nodes.tolist() == [[0, 2, 3], [0, 2, 3], [0, 1, 0], [0, 1, 0], [0, 2, 0]]
    assert turns.tolist() == [[-1, 1, 1], [-1, 1, -1], [1, 1, 0], [1, -1, 0], [-1, -1, 0]]
    assert FIVE.depths().tolist() == [3, 3, 2, 2, 2]
    assert FIVE.num_leaves()[FIVE.children].tolist() == [[2, 3], [1, 1], [2, 1], [1, 1]]
    assert FIVE.first_leaves().tolist() == [0, 0, 2, 2, 2, 3, 0, 1, 4]
    assert FIVE.weights().tolist() == [55, 25, 30, 14, 5, 9, 12, 13, 16]


@settings(max_examples=10, deadline=None)
@given(TREES)
def test_walking_a_path_ends_at_its_leaf(tree: Tree) -> None:
    nodes, turns = tree.paths()
    for unit in range(tree.num_units):
        reached = 0
        for node, turn in zip(nodes[unit], turns[unit], strict=True):
            if turn == 0:  # padding
                break
            assert node == reached
            left, right = tree.children[node].tolist()
            reached = left if turn > 0 else right
        assert reached == tree.num_inner + unit
    assert (np.count_nonzero(turns, axis=1) == tree.depths()).all()
    assert (nodes[turns == 0] == 0).all()


def test_figures_worked_by_hand() -> None:
    tree = Tree.huffman([1, 1, 2])
    assert tree.depth == 2
    assert tree.entropy() == pytest.approx(1.5)
    assert tree.mean_code_length() == pytest.approx(1.5)
    assert tree.probabilities().tolist() == [0.25, 0.25, 0.5]
    unseen = Tree.huffman([0, 0, 0, 0])
    assert (unseen.entropy(), unseen.mean_code_length()) == (2.0, 2.0)


def test_a_single_unit_is_a_tree_without_inner_nodes() -> None:
    binary = Tree.huffman([4.0], units=["a"])
    nodes, turns = binary.paths()
    assert nodes.shape == turns.shape == (1, 0)
    assert binary.first_leaves().shape == (1,)
    classes = NaryTree.frequency_bins([4.0])
    for tree in (binary, classes, classes.binary(), NaryTree.from_binary(binary)):
        assert (tree.depth, tree.num_inner) == (0, 0)
        assert (tree.mean_code_length(), tree.entropy()) == (0.0, 0.0)


def test_figures_of_an_nary_tree_worked_by_hand() -> None:
    assert (SIX.num_units, SIX.num_inner, SIX.num_edges, SIX.depth) == (6, 3, 8, 2)
    assert SIX.level_starts.tolist() == [0, 1, 3]
    assert SIX.edge_nodes.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert SIX.edges.tolist() == [-1, 0, 2, 1, 3, 4, 5, 6, 7]
    assert SIX.parents.tolist() == [-1, 0, 0, 0, 1, 1, 1, 2, 2]
    assert SIX.depths().tolist() == [1, 2, 2, 2, 2, 2]
    assert SIX.weights().tolist() == [16, 4, 4, 8, 1, 1, 2, 2, 2]
    assert SIX.code_lengths() == pytest.approx(np.log2([3, 9, 9, 9, 6, 6]))
    assert SIX.mean_code_length() == pytest.approx(math.log2(3) + (4 * math.log2(3) + 4) / 16)
    assert SIX.entropy() == pytest.approx(0.5 + 2 / 16 * 4 + 3 * 2 / 16 * 3)
    # Binary: at the root 4, 8, 4. The classes are merged first, then they are on the right of "a"
    # (8 and 8: the leaf is first).
    assert SIX.binary().codes() == ["0", "1010", "1011", "100", "110", "111"]
    assert (SIX.binary().kind, SIX.binary().units) == ("classes_binary", SIX.units)


def test_a_tree_is_compared_by_its_content_which_nobody_can_change() -> None:
    frequencies = np.array([5.0, 9.0, 12.0, 13.0, 16.0])
    same = Tree.huffman(frequencies, units=list("abcde"))
    frequencies[0] = 9.0
    assert same == FIVE and hash(same) == hash(FIVE)
    for array in (FIVE.children, FIVE.frequencies):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    changes: list[dict[str, Any]] = [
        {"frequencies": np.ones(5)},
        {"units": tuple("abcdf")},
        {"options": {"a": 1}},
    ]
    assert all(dataclasses.replace(FIVE, **change) != FIVE for change in changes)


# ---- n-ary trees


@settings(max_examples=15, deadline=None)
@given(NARY)
def test_the_numbering_is_breadth_first_and_the_binary_tree_keeps_every_node(
    tree: NaryTree,
) -> None:
    for node, row in enumerate(tree.rows()):
        assert tree.parents[row].tolist() == [node] * len(row)
        assert tree.children[tree.edges[row]].tolist() == row
    assert (2.0 ** -tree.code_lengths()).sum() == pytest.approx(1.0)  # a complete code
    binary = tree.binary()
    assert set(units_below(tree)) <= set(units_below(binary))
    assert min(binary.mean_code_length(), tree.mean_code_length()) >= tree.entropy() - 1e-9


@settings(max_examples=15, deadline=None)
@given(TREES, st.integers(1, 50))
def test_the_most_probable_branches_are_opened_from_the_top(tree: Tree, num_classes: int) -> None:
    two_levels = NaryTree.from_binary(tree, num_classes)
    assert two_levels.depth <= 2
    if 1 < num_classes <= tree.num_units:
        assert len(two_levels.rows()[0]) == num_classes
    binary_nodes = set(units_below(tree))
    root_and_classes = units_below(two_levels)
    assert set(root_and_classes) <= binary_nodes
    # No class is more probable than a node that was opened.
    classes = root_and_classes[1:]
    lightest_opened = math.inf
    for units in binary_nodes:
        if not any(units <= members for members in classes):
            lightest_opened = min(lightest_opened, sum(tree.frequencies[list(units)]))
    if num_classes > 1:
        assert all(two_levels.weights()[1 : two_levels.num_inner] <= lightest_opened)


@settings(max_examples=15, deadline=None)
@given(COUNTS, st.integers(1, 50))
def test_bins_are_ordered_by_falling_frequency(counts: list[int], num_classes: int) -> None:
    tree = NaryTree.frequency_bins(counts, num_classes)
    assert tree.depth <= 2
    leaves = list[int]()
    for child in tree.children_of(0) if tree.num_inner else [0]:
        leaves += tree.children_of(child) if child < tree.num_inner else [child]
    order = [leaf - tree.num_inner for leaf in leaves]
    assert order == sorted(range(len(counts)), key=lambda unit: (-counts[unit], unit))


def test_classes_worked_by_hand_and_of_a_deep_tree() -> None:
    # Of 16 occurrences each of 4 classes takes 4: "8" fills two of them.
    mass = NaryTree.frequency_bins([8, 1, 1, 2, 2, 2], 4)
    assert mass.rows() == [[3, 1, 2], [6, 7], [8, 4, 5]]
    assert mass.options == {"bins": "mass", "num_classes": 4}
    assert NaryTree.frequency_bins([0, 0, 0, 0], 2).rows() == [[1, 2], [3, 4], [5, 6]]
    assert NaryTree.frequency_bins([1] * 100).num_inner == 11
    # A single class is a flat softmax:
    assert NaryTree.frequency_bins([1] * 4, 1).rows() == [[1, 2, 3, 4]]
    two_levels = NaryTree.from_binary(comb(3000), 50)  # thousands of levels need no recursion
    assert len(two_levels.rows()[0]) == 50
    assert two_levels.binary().num_units == 3000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: dataclasses.replace(SIX, offsets=np.array([0, 3])),
            "offsets: expected the start of each .* end, 8",
        ),
        (
            lambda: NaryTree.from_rows([[2, 1], [3, 4], [5, 6]], [1.0] * 4),
            "inner node 2 where breadth-first .* has 1",
        ),
        (lambda: NaryTree.from_binary(FIVE, 0), "num_classes: must be at least 1, got 0"),
        (lambda: Tree.huffman([1e308, 1e308]), "their sum is not finite; scale them down"),
        (
            lambda: Tree.huffman([[1.0, 2.0]]),
            r"one number per unit, got an array of shape \(1, 2\)",
        ),  # type: ignore
        (lambda: Tree.huffman([1.0, 2.0], ["a", ""]), "unit 1 is ''; expected a non-empty text"),
        (lambda: Tree.huffman([1.0, 2.0], ["a", "\ud800"]), "half of a surrogate pair"),
    ],
)
def test_wrong_calls_are_refused(call: Callable[[], Tree | NaryTree], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# ---- tree.json


def test_saves_and_loads_the_documented_format(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tree.json"
    tree = Tree("huffman", GOOD["units"], GOOD["children"], GOOD["frequencies"], GOOD["options"])
    tree.save(path)
    assert json.loads(path.read_text("utf-8")) == GOOD
    assert "▁" in path.read_text("utf-8")  # units can be read in the file
    assert [entry.name for entry in path.parent.iterdir()] == ["tree.json"]
    assert Tree.load(path) == tree


@settings(max_examples=10, deadline=None)
@given(
    tree=st.one_of(
        NARY, TREES, st.lists(st.floats(0, 1e30), min_size=1, max_size=30).map(Tree.huffman)
    )
)
def test_every_bit_and_the_type_of_a_tree_are_saved(
    tmp_path_factory: pytest.TempPathFactory, tree: Tree
) -> None:
    path = tmp_path_factory.getbasetemp() / "tree.json"
    tree.save(path)
    assert load_tree(path) == tree


def test_the_tree_of_the_documentation_loads(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "heads.md").read_text("utf-8")
    block = (
        page.partition("## Write a tree by hand")[2].partition("```json\n")[2].partition("```")[0]
    )
    (tmp_path / "tree.json").write_text(block, "utf-8")
    tree = load_tree(tmp_path / "tree.json")
    assert isinstance(tree, NaryTree)
    assert dict(zip(tree.units, tree.codes(), strict=True)) == {
        "golf": "0.0", "basketball": "0.1.0", "football": "0.1.1", "soccer": "0.1.2", "piano": "1.0", "violin": "1.1"
    }  # fmt: skip


TEXT = json.dumps(GOOD)


def changed(**fields: Any) -> str:
    return json.dumps(GOOD | fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"not JSON \(Expecting value: line 1 column 1 \(char 0\)\); build the tree again"),
        ("[" * 200_000, r"not JSON \(maximum recursion depth exceeded.*\); build the tree again"),
        (TEXT.replace('"pooled"', "1e999"), "options: a number that is not finite"),
        (TEXT.replace("2.5", "1e999"), "frequencies: 1: expected a finite number, found inf"),
        (
            TEXT.replace('"pooled"', '"pooled", "weighting": 1'),
            "the key 'weighting' occurs twice; keep one",
        ),
        (
            changed(format="wenet_hs.tree/2"),
            "format: .* 'wenet_hs.tree/1', found 'wenet_hs.tree/2'; build the tree",
        ),
        (
            changed(kind="two\nlines"),
            r"kind: 'two\\nlines' is not the name of a kind; expected one such as 'huffman'",
        ),
        (
            changed(options={"a": {"b": "\ud800"}}),
            "options: half of a surrogate pair, which is not text",
        ),
        (TEXT.replace('"units"', '"names"'), "units: this field is missing; build the tree again"),
        (changed(surplus=1), "surplus: not a field of a tree, which has format, kind, units"),
        (changed(units=["a", "b"]), "2 names for 3 frequencies; there must be one per unit"),
        (changed(units=["a", "b", "a"]), "'a' is both unit 0 and unit 2; names must differ"),
        (changed(frequencies=[1, -2, 3]), "unit 1 has -2.0; each must be finite and not negative"),
        (
            changed(frequencies=[], units=[], children=[]),
            "the list is empty; a tree needs at least one unit",
        ),
        (changed(children=[[1, 4]]), "1 inner nodes with 2 children for 3 units; every node"),
        (
            changed(children=[[1, 4], [2, 2]]),
            "node 2 is a child 2 times; each must be one exactly once",
        ),
        (changed(children=[[2, 3], [1, 4]]), r"inner node 1 is not under the root \(a cycle\)"),
        (changed(children=[[1, 4], [2, 99]]), "inner node 1 has child 99; a child is 1…4"),
        (
            changed(children=[[1, 4], [2]]),
            "node 1 has one child; .* two or more, put the child in its parent's list",
        ),
        (
            changed(children=[[1, 4], []]),
            "inner node 1 has no children; .* two or more, name them, or leave",
        ),
        (
            changed(children=[[1, 4], [2, 2**70]]),
            r"children: 1: expected a list of numbers from 0 to 2\^31-1, found \[2, 1180591620",
        ),
        (
            changed(children=[[1, 2, 3]]),
            r"n-ary tree \(kind huffman, up to 3 children\), not a binary one; read",
        ),
    ],
)
def test_each_fault_of_a_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tree.json"
    path.write_text(text, "utf-8")
    with pytest.raises(DataError, match=message) as fault:
        Tree.load(path)
    assert str(fault.value).startswith(f"{path}: ")
    assert "\n" not in str(fault.value)
