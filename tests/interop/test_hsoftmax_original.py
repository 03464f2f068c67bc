# SPDX-License-Identifier: Apache-2.0
"""Folders and checkpoints of the original implementation, against one written by hand and against its formula."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import NUM_UNITS, small_config, small_model
from torch import Tensor
from trees import comb

from wenet_hs.config.load import dump_config
from wenet_hs.errors import CheckpointError, DataError
from wenet_hs.heads import HSoftmaxHead
from wenet_hs.interop.hsoftmax_original import (
    read_original_tree,
    saved_tree,
    tree_from_paths,
    tree_of_state,
    write_original_tree,
)
from wenet_hs.interop.weights import convert_state_dict, is_wenet, load_weights, to_wenet_state_dict
from wenet_hs.interop.wenet import load_model
from wenet_hs.tree import Tree

UNITS = ("blank", "a", "b", "c", "d")
STRUCT = """{
 "freq": 20.0, "tokenid": null, "idx": 0,
 "left": {
  "freq": 8.0, "tokenid": null, "idx": 1,
  "left": {"freq": 4, "tokenid": 3, "idx": 7, "left": null, "right": null},
  "right": {
   "freq": 4.0, "tokenid": null, "idx": 2,
   "left": {"freq": 1.5, "tokenid": 0, "idx": 4, "left": null, "right": null},
   "right": {"freq": 2.5, "tokenid": 1, "idx": 5, "left": null, "right": null}
  }
 },
 "right": {
  "freq": 12.0, "tokenid": null, "idx": 3,
  "left": {"freq": 5e0, "tokenid": 4, "idx": 8, "left": null, "right": null},
  "right": {"freq": 7.0, "tokenid": 2, "idx": 6, "left": null, "right": null}
 }
}
"""
"""Preorder 0 (1 (c 2 (blank a)) 3 (d b)); breadth first the node 3 comes before 2."""
INDEX = [[0, 1, 2, 0], [0, 1, 2, 0], [0, 3, 0, 0], [0, 1, 0, 0], [0, 3, 0, 0]]
SIGN = [[1, 1, 1, 0], [1, 1, 1, 0], [-1, -1, 0, 0], [1, 1, 0, 0], [-1, 1, 0, 0]]
for _row, _column, _turn in ((0, 1, -1), (1, 1, -1), (1, 2, -1)):
    SIGN[_row][_column] = _turn
BIAS = [[0, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 1, 1], [1, 0, 1, 1]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tree_struct").write_text(STRUCT, "utf-8")
    (tmp_path / "tree_info").write_text('{\n "depth": 4,\n "leaf_cnt": 5\n}', "utf-8")
    for name, values, dtype in (("index", INDEX, "int64"), ("sign", SIGN, "int8"), ("bias", BIAS, "int8")):
        np.save(tmp_path / f"path_{name}.npy", np.array(values, dtype=dtype))
    return tmp_path


def their_probabilities(hidden: Tensor, vectors: Tensor, index: Tensor, sign: Tensor, bias: Tensor) -> Tensor:
    """Their formula without its clip: the product of sigmoid·sign + bias along the paths."""
    decisions = torch.sigmoid(hidden @ vectors.T)
    return (decisions[:, index] * sign + bias).prod(-1)


def test_a_folder_written_by_hand(folder: Path) -> None:
    tree = read_original_tree(folder, UNITS)
    assert (tree.units, tree.kind) == (UNITS, "original")
    assert tree.children.tolist() == [[1, 2], [4 + 3, 3], [4 + 4, 4 + 2], [4 + 0, 4 + 1]]
    assert tree.codes() == ["010", "011", "11", "00", "10"]
    assert tree.frequencies.tolist() == [1.5, 2.5, 7.0, 4.0, 5.0]


def test_vectors_of_their_head_give_their_probabilities() -> None:
    torch.manual_seed(0)
    found = tree_from_paths(np.array(INDEX), np.array(SIGN))
    assert found.rows.tolist() == [0, 1, 3, 2]
    vectors, hidden = torch.randn(4, 6, dtype=torch.float64), torch.randn(20, 6, dtype=torch.float64)
    head = HSoftmaxHead(6, Tree("original", UNITS, found.children, np.ones(5))).double()
    head.load_state_dict({"inner_vector.weight": vectors[torch.from_numpy(found.rows)]})
    expected = their_probabilities(hidden, vectors, torch.tensor(INDEX), torch.tensor(SIGN), torch.tensor(BIAS))
    torch.testing.assert_close(expected.sum(-1), torch.ones(20, dtype=torch.float64))
    torch.testing.assert_close(head.log_probs(hidden).exp(), expected, rtol=1e-12, atol=0)


def test_writing_the_folder_gives_its_arrays_back(folder: Path, tmp_path: Path) -> None:
    write_original_tree(read_original_tree(folder, UNITS), tmp_path / "new")
    assert json.loads((tmp_path / "new" / "tree_struct").read_text("utf-8")) == json.loads(STRUCT)
    assert json.loads((tmp_path / "new" / "tree_info").read_text("utf-8")) == {"depth": 4, "leaf_cnt": 5}
    for name in ("path_index.npy", "path_sign.npy", "path_bias.npy"):
        found, expected = (np.load(path / name, allow_pickle=False) for path in (tmp_path / "new", folder))
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("num_units", [1, 2, 3, 40])
def test_round_trip(tmp_path: Path, num_units: int) -> None:
    tree = Tree.huffman(np.random.default_rng(num_units).exponential(size=num_units) ** 3)
    write_original_tree(tree, tmp_path)
    back = read_original_tree(tmp_path, tree.units)
    assert np.array_equal(back.children, tree.children)
    assert np.array_equal(back.frequencies, tree.frequencies)
    found = tree_from_paths(np.load(tmp_path / "path_index.npy"), np.load(tmp_path / "path_sign.npy"))
    assert np.array_equal(found.children, tree.children)
    assert sorted(found.rows) == list(range(num_units - 1))


def test_a_tree_that_is_too_deep_for_tables_of_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wenet_hs.tree.tree.MAX_PATH_CELLS", 10)
    with pytest.raises(DataError, match="new: tree: 20 units at depth 19 are too deep for a table of paths; the orig"):
        write_original_tree(comb(20), tmp_path / "new")


FAULTS = [
    ("", "Expecting value: line 1"),
    (STRUCT[:200], "Expecting|Unterminated"),
    ('{"left": ' * 100_000, "nested too deeply; a tree of counts has less than a hundred levels"),
    ("[]", "child 0 of node -1 is not a node with freq, tokenid, idx, left and right"),
    (STRUCT.replace('"freq": 4,', '"freq": [4],'), r"tokenid 3: two leaves, or freq \[4\] is not a number"),
    (STRUCT.replace('"idx": 8, "left": null', '"idx": 8, "left": 3'), "child 0 of node 8 is not a node"),
    (STRUCT.replace('"freq": 7.0', '"freq": NaN'), "frequencies: unit 2 has nan"),
    (STRUCT.replace('"tokenid": 4, "idx": 8', '"tokenid": 2, "idx": 6'), "tokenid 2: two leaves, or freq"),
    (STRUCT.replace('"tokenid": 4', '"tokenid": 5'), "a leaf has tokenid 5 and idx 8"),
    (STRUCT.replace('"idx": 3', '"idx": 1'), "idx 1 is two inner nodes"),
    (STRUCT.replace('"idx": 3', '"idx": 4'), "inner node 4: idx is not within 0…3, or tokenid is not null"),
    (
        STRUCT.replace('{"freq": 7.0, "tokenid": 2, "idx": 6, "left": null, "right": null}', "null"),
        "child 1 of node 3 is not a node",
    ),
]


@pytest.mark.parametrize(("text", "message"), FAULTS, ids=range(len(FAULTS)))
def test_faults_of_the_structure(folder: Path, text: str, message: str) -> None:
    (folder / "tree_struct").write_text(text, "utf-8")
    with pytest.raises(DataError, match=message) as caught:
        read_original_tree(folder, UNITS)
    assert str(caught.value).startswith(f"{folder / 'tree_struct'}: ")
    assert "\n" not in str(caught.value)


def test_faults_of_other_units_and_other_files(folder: Path) -> None:
    with pytest.raises(DataError, match="tree_struct: has 5 leaves, but the unit table 6 units; copy"):
        read_original_tree(folder, (*UNITS, "e"))
    for wrong in (np.zeros((5, 4), dtype=np.int8), np.zeros((5, 3), dtype=np.float32)):
        np.save(folder / "path_bias.npy", wrong)
        with pytest.raises(DataError, match="path_bias.npy: not the paths of the tree in tree_struct; copy the folder"):
            read_original_tree(folder, UNITS)
    for damaged in (b"", b"PK\x03\x04 no archive", b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16, b"text"):
        (folder / "path_index.npy").write_bytes(damaged)
        with pytest.raises(DataError, match="path_index.npy: not a readable NumPy file"):
            read_original_tree(folder, UNITS)
    np.save(folder / "path_index.npy", np.array([{"code": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="path_index.npy: not a readable NumPy file .*allow_pickle"):
        read_original_tree(folder, UNITS)
    for name in ("tree_info", "path_index.npy", "path_sign.npy", "path_bias.npy"):
        (folder / name).unlink()
    assert read_original_tree(folder, UNITS).units == UNITS  # the other files are not needed
    (folder / "tree_struct").unlink()
    with pytest.raises(DataError, match="tree_struct: cannot be read"):
        read_original_tree(folder, UNITS)


# ---- paths


@pytest.mark.parametrize(
    ("nodes", "turns", "message"),
    [
        ([[0, 1], [0, 1], [0, 0]], [[1, 1], [1, 0], [-1, 0]], "no path goes to the right child of inner node 1"),
        ([[0, 1], [1, 1], [0, 0]], [[1, 1], [1, -1], [-1, 0]], "the path of unit . contradicts|not one tree"),
        ([[0, 1], [0, 2], [0, 0]], [[1, 1], [1, -1], [-1, 0]], "path of unit 1 has inner node 2; with 3 units"),
        ([[0, 1], [0, 1], [0, 0]], [[1, 1], [1, -1], [0, -1]], "the path of unit 2 contradicts that of another unit"),
        ([[0, 1], [0, 1], [0, 0]], [[1, 1], [1, -1], [0, 0]], "unit 2 has an empty path"),
    ],
)
def test_paths_that_are_no_tree(nodes: list[list[int]], turns: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tree_from_paths(np.array(nodes), np.array(turns))


# ---- checkpoints


def original_state(convert: Callable[[Tensor], Tensor] = lambda buffer: buffer) -> tuple[dict[str, Tensor], Tree]:
    """What the original implementation saves for a model with a tree head, and its tree."""
    torch.manual_seed(4)
    state = to_wenet_state_dict(small_model())
    tree = Tree.huffman(np.arange(NUM_UNITS) ** 2)
    _, rows = _their_arrays(tree)
    index, sign = rows
    state["hsoftmax.inner_vector.weight"] = torch.randn(NUM_UNITS - 1, 16)
    for name, array in (("index", index), ("sign", sign), ("bias", (sign != 1).astype(np.int8))):
        state[f"hsoftmax.path_{name}"] = convert(torch.from_numpy(array.reshape(-1)))
    return state, tree


def _their_arrays(tree: Tree) -> tuple[list[int], tuple[np.ndarray, np.ndarray]]:
    """Preorder numbers by recursion, as their program finds them, and their paths with the column too many."""
    numbers: list[int] = [0] * (tree.num_units - 1)
    index = np.zeros((tree.num_units, tree.depth + 1), dtype=np.int64)
    sign = np.zeros(index.shape, dtype=np.int8)
    count = 0

    def visit(node: int, path: list[tuple[int, int]]) -> None:
        nonlocal count
        if node >= tree.num_units - 1:
            for column, (number, turn) in enumerate(path):
                index[node - tree.num_units + 1, column], sign[node - tree.num_units + 1, column] = number, turn
            return
        numbers[node] = number = count
        count += 1
        for child, turn in zip(tree.children[node], (1, -1), strict=True):
            visit(int(child), [*path, (number, turn)])

    visit(0, [])
    return numbers, (index, sign)


@pytest.mark.parametrize("averaged", [False, True])
def test_a_checkpoint_becomes_ours(averaged: bool) -> None:
    state, tree = original_state((lambda buffer: buffer / 1.0) if averaged else (lambda buffer: buffer))
    assert is_wenet(state)
    converted = convert_state_dict(state)
    model = small_model(head="hsoftmax", head_conf={"tree": "tree.json"})
    head = HSoftmaxHead(16, tree)
    model.head = head
    load_weights(model, converted, "x.pt")
    hidden = torch.randn(9, 16)
    index, sign, bias = (
        state[f"hsoftmax.path_{name}"].long().reshape(NUM_UNITS, -1) for name in ("index", "sign", "bias")
    )
    vectors = state["hsoftmax.inner_vector.weight"]
    expected = their_probabilities(hidden.double(), vectors.double(), index, sign, bias)
    torch.testing.assert_close(head.log_probs(hidden).double().exp(), expected, rtol=1e-5, atol=1e-9)
    assert np.array_equal(tree_of_state(state).children, tree.children)


def test_their_whole_model(tmp_path: Path) -> None:
    state, tree = original_state()
    config = small_config(head="hsoftmax", head_conf={"tree": "tree.json"}, cmvn=None)
    dump_config(config, tmp_path / "train.yaml")
    model = load_model(tmp_path / "train.yaml", state)
    assert isinstance(model.head, HSoftmaxHead)
    assert saved_tree(state).codes() == tree.codes()
    hidden = torch.randn(4, 16)
    head = HSoftmaxHead(16, tree)
    head.load_state_dict(model.head.state_dict())
    torch.testing.assert_close(model.head.log_probs(hidden), head.log_probs(hidden), rtol=0, atol=0)


def test_faults_of_a_checkpoint() -> None:
    state, _ = original_state()
    sign = state["hsoftmax.path_sign"].clone()
    for change, message in (
        (
            {"hsoftmax.path_bias": state["hsoftmax.path_bias"] * 0},
            "hsoftmax.path_sign and hsoftmax.path_bias contradict",
        ),
        ({"hsoftmax.path_index": state["hsoftmax.path_index"] * 0}, "no path goes to the .* child of inner node"),
        ({"hsoftmax.inner_vector.weight": torch.zeros(())}, r"inner_vector.weight has shape \(\), expected \(N, D\)"),
        ({"hsoftmax.path_sign": sign[:-1]}, r"hsoftmax.path_\* of 99, 98, 99 numbers for 11 units"),
    ):
        with pytest.raises(CheckpointError, match=message):
            convert_state_dict({**state, **change})
    del state["hsoftmax.path_sign"]
    with pytest.raises(
        CheckpointError, match="hsoftmax.inner_vector.weight without hsoftmax.path_sign; take the compl"
    ):
        convert_state_dict(state)
