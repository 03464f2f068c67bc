# SPDX-License-Identifier: Apache-2.0
"""The NaryTree value: two levels and more from counts or from a binary tree, back to one, and what is no n-ary tree.

Dimension key: V units, I inner nodes.
"""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import comb, merge_levels, units_below

from wenet_hs.errors import DataError
from wenet_hs.heads import ClassHead
from wenet_hs.tree import NaryTree, Tree, load_tree

COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=40)
TREES = COUNTS.map(Tree.huffman)
NARY = st.one_of(
    st.builds(NaryTree.frequency_bins, COUNTS, st.integers(1, 12)),
    st.builds(NaryTree.from_binary, TREES, st.integers(1, 12)),
    st.builds(merge_levels, TREES, st.integers(1, 5)),
)
# Root: the node 1, unit 0, the node 2; below them units 1 2 3, and 4 5.
SIX = NaryTree.from_rows([[1, 3, 2], [4, 5, 6], [7, 8]], [8, 1, 1, 2, 2, 2], units=list("abcdef"))


def test_figures_by_hand() -> None:
    assert (SIX.num_units, SIX.num_inner, SIX.num_edges, SIX.depth) == (6, 3, 8, 2)
    assert SIX.offsets.tolist() == [0, 3, 6, 8]
    assert SIX.level_starts.tolist() == [0, 1, 3]
    assert SIX.edge_nodes.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert SIX.edges.tolist() == [-1, 0, 2, 1, 3, 4, 5, 6, 7]
    assert SIX.parents.tolist() == [-1, 0, 0, 0, 1, 1, 1, 2, 2]
    assert SIX.depths().tolist() == [1, 2, 2, 2, 2, 2]
    assert SIX.num_leaves().tolist() == [6, 3, 2, 1, 1, 1, 1, 1, 1]
    assert SIX.weights().tolist() == [16, 4, 4, 8, 1, 1, 2, 2, 2]
    assert SIX.mean_code_length() == pytest.approx(math.log2(3) + (4 * math.log2(3) + 4) / 16)
    assert SIX.entropy() == pytest.approx(0.5 + 2 / 16 * 4 + 3 * 2 / 16 * 3)


def test_binary_of_the_worked_example() -> None:
    # At the root 4, 8, 4: the classes are merged first, then stand right of "a" (8 and 8: the leaf comes first).
    tree = SIX.binary()
    assert tree.codes() == ["0", "1010", "1011", "100", "110", "111"]
    assert (tree.kind, tree.units) == ("classes_binary", SIX.units)


@settings(max_examples=20, deadline=None)
@given(NARY)
def test_going_binary_keeps_every_node(tree: NaryTree) -> None:
    binary = tree.binary()
    assert binary.num_units == tree.num_units
    assert set(units_below(tree)) <= set(units_below(binary))
    assert binary.mean_code_length() >= tree.entropy() - 1e-9


@settings(max_examples=20, deadline=None)
@given(NARY)
def test_the_numbering_is_breadth_first(tree: NaryTree) -> None:
    inner = tree.children[tree.children < tree.num_inner]
    assert inner.tolist() == list(range(1, tree.num_inner))
    for node, row in enumerate(tree.rows()):
        assert len(row) >= 2
        assert tree.parents[row].tolist() == [node] * len(row)
        assert tree.children[tree.edges[row]].tolist() == row
    assert sorted(tree.children.tolist()) == list(range(1, tree.num_inner + tree.num_units))[-tree.num_edges :]
    # An untrained head is a distribution, so its code is complete, and no shorter than the entropy.
    lengths = tree.path_sums(np.log2(np.diff(tree.offsets)))
    assert (2.0**-lengths).sum() == pytest.approx(1.0)
    assert tree.mean_code_length() >= tree.entropy() - 1e-9


@settings(max_examples=20, deadline=None)
@given(TREES, st.integers(1, 50))
def test_opening_from_the_top(tree: Tree, num_classes: int) -> None:
    two = NaryTree.from_binary(tree, num_classes)
    assert two.depth <= 2
    binary_nodes = set(units_below(tree))
    assert set(units_below(two)) <= binary_nodes
    if 1 < num_classes <= tree.num_units:
        assert len(two.rows()[0]) == num_classes
    # No class left closed is more probable than a node that was opened: the leaves at the root bound it too.
    weights, below = two.weights(), units_below(two)
    opened = [units for units in binary_nodes if not any(units <= closed for closed in below[1:])]
    lightest = min((sum(tree.frequencies[list(units)]) for units in opened), default=math.inf)
    if num_classes > 1:
        assert all(weight <= lightest for weight in weights[1 : two.num_inner])


@settings(max_examples=20, deadline=None)
@given(COUNTS, st.integers(1, 50))
def test_bins_fall_in_frequency(counts: list[int], num_classes: int) -> None:
    tree = NaryTree.frequency_bins(counts, num_classes)
    assert tree.depth <= 2
    order: list[int] = []
    for child in tree.rows()[0] if tree.num_inner else [0]:
        below = tree.rows()[child] if child < tree.num_inner else [child]
        order += [leaf - tree.num_inner for leaf in below]
    assert order == sorted(range(len(counts)), key=lambda unit: (-counts[unit], unit))


def test_bins_of_equal_mass() -> None:
    counts = [8, 1, 1, 2, 2, 2]
    # Of 16 occurrences each of 4 classes takes 4: "8" fills two of them.
    mass = NaryTree.frequency_bins(counts, 4)
    assert mass.rows() == [[3, 1, 2], [6, 7], [8, 4, 5]]
    assert NaryTree.frequency_bins([0, 0, 0, 0], 2).rows() == [[1, 2], [3, 4], [5, 6]]
    assert NaryTree.frequency_bins([1] * 100).num_inner == 11
    assert mass.options == {"bins": "mass", "num_classes": 4}


@pytest.mark.parametrize("num_units", [1, 2, 3])
def test_small_vocabularies(num_units: int) -> None:
    tree = Tree.huffman([1.0] * num_units)
    for nary in (NaryTree.from_binary(tree), NaryTree.frequency_bins([1.0] * num_units)):
        assert (nary.depth, nary.num_inner) == ((0, 0), (1, 1), (nary.depth, nary.num_inner))[num_units - 1]
        assert nary.binary().num_units == num_units
    assert NaryTree.frequency_bins([3.0]).mean_code_length() == 0


@settings(max_examples=20, deadline=None)
@given(NARY)
def test_the_file_keeps_everything(tmp_path_factory: pytest.TempPathFactory, tree: NaryTree) -> None:
    path = tmp_path_factory.mktemp("nary") / "tree.json"
    tree.save(path)
    assert load_tree(path) == tree
    assert hash(load_tree(path)) == hash(tree)
    assert tree != dataclasses.replace(tree, kind="other") and tree != "a tree"


def test_the_tree_of_the_documentation_loads_and_a_head_of_it_is_a_distribution(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "heads.md").read_text("utf-8")
    block = page.partition("## Write a tree by hand")[2].partition("```json\n")[2].partition("```")[0]
    (tmp_path / "tree.json").write_text(block, "utf-8")
    tree = load_tree(tmp_path / "tree.json")
    assert isinstance(tree, NaryTree)
    codes = [tree.code(tree.num_inner + unit) for unit in range(tree.num_units)]
    assert dict(zip(tree.units, codes, strict=True)) == {
        "golf": "0.0", "basketball": "0.1.0", "football": "0.1.1", "soccer": "0.1.2", "piano": "1.0", "violin": "1.1"
    }  # fmt: skip
    sums = ClassHead(8, tree).log_probs(torch.randn(5, 8)).exp().sum(dim=-1)
    torch.testing.assert_close(sums, torch.ones(5))


def test_which_file_is_which(tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    binary = Tree.huffman([5, 9, 12, 13, 16])
    binary.save(path)
    assert load_tree(path) == binary
    pairs = merge_levels(binary, 1)
    pairs.save(path)
    assert load_tree(path) == pairs
    dataclasses.replace(SIX, kind="hand-made").save(path)
    assert isinstance(load_tree(path), NaryTree)
    with pytest.raises(DataError, match="an n-ary tree .*, for `head: class`"):
        Tree.load(path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1, 2, 3]], "1 inner nodes with 3 children for 4 units; every node except the root must be a child"),
        ([[1, 2, 3, 9]], "inner node 0 has child 9; a child is 1…4"),
        ([[1, 2, 3, 3]], "node 3 is a child 2 times"),
        ([[2, 1], [3, 4], [5, 6]], "found inner node 2 where breadth-first order has 1"),
        ([[3, 4], [1, 2], [5, 6]], "inner node 1 is not under the root"),
    ],
)
def test_what_is_no_tree(tmp_path: Path, rows: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NaryTree.from_rows(rows, [1.0] * 4)
    path = tmp_path / "tree.json"
    fields = {"kind": "classes", "units": list("abcd"), "children": rows, "frequencies": [1] * 4, "options": {}}
    path.write_text(json.dumps({"format": "wenet_hs.tree/1", **fields}), encoding="utf-8")
    with pytest.raises(DataError, match=f"tree.json: .*{message}"):
        load_tree(path)


def test_wrong_calls() -> None:
    with pytest.raises(ValueError, match="inner node 1 has one child; a node needs two or more"):
        NaryTree.from_rows([[1, 2, 3], [4]], [1.0] * 3)
    with pytest.raises(ValueError, match="offsets: expected the start of each inner node's row and, at the end, 4"):
        dataclasses.replace(NaryTree.frequency_bins([1.0] * 4, 1), offsets=np.array([0, 3]))
    with pytest.raises(ValueError, match="0 inner nodes with 0 children for 2 units"):
        NaryTree.from_rows([], [1.0] * 2)
    with pytest.raises(ValueError, match="frequencies: unit 1 has nan"):
        NaryTree.frequency_bins([1.0, math.nan])
    with pytest.raises(ValueError, match="units: 'a' is both unit 0 and unit 1"):
        NaryTree.frequency_bins([1.0, 2.0], units=["a", "a"])
    with pytest.raises(ValueError, match="num_classes: must be at least 1, got 0"):
        NaryTree.frequency_bins([1.0, 2.0], 0)
    with pytest.raises(ValueError, match="num_classes: must be at least 1, got -1"):
        NaryTree.from_binary(Tree.huffman([1, 2]), -1)


def test_a_comb_of_thousands_of_levels_needs_no_recursion() -> None:
    two_levels = NaryTree.from_binary(comb(3000), 50)
    assert len(two_levels.rows()[0]) == 50
    assert two_levels.binary().num_units == 3000
