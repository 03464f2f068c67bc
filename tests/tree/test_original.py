# SPDX-License-Identifier: Apache-2.0
"""Folders and checkpoints of the original implementation, against one written by hand and against
its formula.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from model_folders import wenet_state_dict
from small_models import NUM_UNITS, small_config, small_model
from torch import Tensor
from trees import comb

from wenet_hs.config.load import dump_config
from wenet_hs.heads import HSoftmaxHead
from wenet_hs.interop.wenet import load_wenet_model
from wenet_hs.model.foreign_weights import convert_state_dict, is_wenet
from wenet_hs.tree import Tree
from wenet_hs.tree.errors import CheckpointError, DataError
from wenet_hs.tree.original import read_original_tree, tree_from_paths, write_original_tree

UNITS = ("blank", "a", "b", "c", "d")
STRUCT = """{"freq": 20.0, "tokenid": null, "idx": 0, "left":
 {"freq": 8.0, "tokenid": null, "idx": 1, "left":
  {"freq": 4, "tokenid": 3, "idx": 7, "left": null, "right": null}, "right":
  {"freq": 4.0, "tokenid": null, "idx": 2, "left":
   {"freq": 1.5, "tokenid": 0, "idx": 4, "left": null, "right": null}, "right":
   {"freq": 2.5, "tokenid": 1, "idx": 5, "left": null, "right": null}}}, "right":
 {"freq": 12.0, "tokenid": null, "idx": 3, "left":
  {"freq": 5e0, "tokenid": 4, "idx": 8, "left": null, "right": null}, "right":
  {"freq": 7.0, "tokenid": 2, "idx": 6, "left": null, "right": null}}}
"""
"""Preorder 0 (1 (c 2 (blank a)) 3 (d b)); breadth first the node 3 comes before 2."""
PATHS = {
    "index": [[0, 1, 2, 0], [0, 1, 2, 0], [0, 3, 0, 0], [0, 1, 0, 0], [0, 3, 0, 0]],
    "sign": [[1, -1, 1, 0], [1, -1, -1, 0], [-1, -1, 0, 0], [1, 1, 0, 0], [-1, 1, 0, 0]],
    "bias": [[0, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 1, 1], [1, 0, 1, 1]],
}


@pytest.fixture
def by_hand(tmp_path: Path) -> Tree:
    """The tree of `STRUCT`, read from a folder."""
    (tmp_path / "tree_struct").write_text(STRUCT, "utf-8")
    return read_original_tree(tmp_path, UNITS)


def test_a_folder_written_by_hand_is_read(by_hand: Tree) -> None:
    assert (by_hand.units, by_hand.kind) == (UNITS, "original")
    assert by_hand.children.tolist() == [[1, 2], [4 + 3, 3], [4 + 4, 4 + 2], [4 + 0, 4 + 1]]
    assert by_hand.codes() == ["010", "011", "11", "00", "10"]
    assert by_hand.frequencies.tolist() == [1.5, 2.5, 7.0, 4.0, 5.0]


def test_paths_written_by_hand_are_the_same_tree(by_hand: Tree) -> None:
    renumbered = tree_from_paths(np.array(PATHS["index"]), np.array(PATHS["sign"]))
    assert np.array_equal(renumbered.children, by_hand.children)
    assert renumbered.rows.tolist() == [0, 1, 3, 2]


def test_a_written_folder_has_the_files_of_the_original(by_hand: Tree, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    write_original_tree(by_hand, folder)
    assert json.loads((folder / "tree_struct").read_text("utf-8")) == json.loads(STRUCT)
    info = json.loads((folder / "tree_info").read_text("utf-8"))
    assert info == {"depth": 4, "leaf_cnt": 5}
    for name, values in PATHS.items():
        array = np.load(folder / f"path_{name}.npy", allow_pickle=False)
        assert array.dtype == (np.int64 if name == "index" else np.int8)
        assert array.tolist() == values


@pytest.mark.parametrize("num_units", [1, 2, 40])
def test_a_written_tree_is_read_back(tmp_path: Path, num_units: int) -> None:
    tree = Tree.huffman(np.random.default_rng(num_units).exponential(size=num_units) ** 3)
    write_original_tree(tree, tmp_path)
    from_struct = read_original_tree(tmp_path, tree.units)
    assert np.array_equal(from_struct.frequencies, tree.frequencies)
    assert np.array_equal(from_struct.children, tree.children)
    nodes = np.load(tmp_path / "path_index.npy")
    turns = np.load(tmp_path / "path_sign.npy")
    from_paths = tree_from_paths(nodes, turns)
    assert np.array_equal(from_paths.children, tree.children)
    assert sorted(from_paths.rows) == list(range(num_units - 1))


def test_trees_that_are_too_deep_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "new: a tree of 1499 levels cannot be written; the original.s format has no other"
    with pytest.raises(DataError, match=message):
        write_original_tree(comb(1500), tmp_path / "new")
    monkeypatch.setattr("wenet_hs.tree.tree.MAX_PATH_CELLS", 10)
    message = "new: tree: 20 units at depth 19 are too deep for a table of paths; the orig"
    with pytest.raises(DataError, match=message):
        write_original_tree(comb(20), tmp_path / "new")


LEAF = '{"freq": 7.0, "tokenid": 2, "idx": 6, "left": null, "right": null}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value: line 1"),
        (
            STRUCT.replace('"freq": 4,', '"freq": [4],'),
            r"tokenid 3: two leaves, or freq \[4\] is not a number",
        ),
        (
            STRUCT.replace('"idx": 8, "left": null', '"idx": 8, "left": 3'),
            "3 is not a node with freq",
        ),
        (STRUCT.replace('"freq": 7.0', '"freq": NaN'), "frequencies: unit 2 has nan"),
        (STRUCT.replace('"tokenid": 4', '"tokenid": 2'), "tokenid 2: two leaves, or freq"),
        (
            STRUCT.replace('"tokenid": 4', '"tokenid": 5'),
            "a leaf has tokenid 5; with 5 units it is 0…4",
        ),
        (STRUCT.replace(LEAF, "null"), "None is not a node"),
        (
            STRUCT.replace(LEAF, '{"left": ' * 100_000),
            "nested too deeply; a tree of counts has less than a hundred",
        ),
        (LEAF, "has 1 leaves, but the unit table 5 units; copy the folder again"),
        (None, "cannot be read"),
    ],
)
def test_each_fault_of_the_structure_is_one_line(
    tmp_path: Path, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "tree_struct").write_text(text, "utf-8")
    with pytest.raises(DataError, match=message) as caught:
        read_original_tree(tmp_path, UNITS)
    assert str(caught.value).startswith(f"{tmp_path / 'tree_struct'}: ")
    assert "\n" not in str(caught.value)


# ---- paths


@pytest.mark.parametrize(
    ("nodes", "turns", "message"),
    [
        ([[0, 1], [0, 1], [0, 0]], [[1, 1], [1, 0], [-1, 0]], "unit 0 contradicts"),
        ([[0, 1], [1, 1], [0, 0]], [[1, 1], [1, -1], [-1, 0]], "unit 0 contradicts"),  # two roots
        (
            [[0, 1], [0, 2], [0, 0]],
            [[1, 1], [1, -1], [-1, 0]],
            "unit 1 is empty, has a gap, or has an inner .* 0…1",
        ),
        (
            [[0, 1], [0, 1], [0, 2], [2, 0]],
            [[1, 1], [1, -1], [-1, 1], [-1, 0]],
            "unit 3 contradicts",
        ),
        ([[0, 1], [0, 1], [0, 0]], [[1, 1], [1, -1], [0, 0]], "unit 2 is empty"),
        (
            [[0, 0, 1], [0, 1, 0], [0, 0, 0]],
            [[1, 0, 1], [1, -1, 0], [-1, 0, 0]],
            "unit 0 is empty, has a gap",
        ),
        ([[0, 1], [0, 1], [0, 1]], [[1, 1], [1, -1], [1, -1]], "unit 1 contradicts"),
        ([[0], [0], [0]], [[1], [-1], [-1]], "unit 1 contradicts"),
    ],
)
def test_paths_that_are_not_a_tree_are_refused(
    nodes: list[list[int]], turns: list[list[int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tree_from_paths(np.array(nodes), np.array(turns))


# ---- checkpoints


@pytest.fixture
def original(tmp_path: Path) -> tuple[dict[str, Tensor], Tree]:
    """What the original implementation saves for a model with a tree head, and its tree."""
    torch.manual_seed(4)
    state = wenet_state_dict(small_model())
    tree = Tree.huffman(np.arange(NUM_UNITS) ** 2)
    state["hsoftmax.inner_vector.weight"] = torch.randn(NUM_UNITS - 1, 16)
    write_original_tree(tree, tmp_path)
    for name in PATHS:
        table = np.load(tmp_path / f"path_{name}.npy")
        state[f"hsoftmax.path_{name}"] = torch.from_numpy(table.ravel())
    return state, tree


@pytest.mark.parametrize("factor", [1, 1.0])  # averaging turns the buffers into floats
def test_a_model_of_the_original_has_the_same_probabilities(
    original: tuple[dict[str, Tensor], Tree], factor: float, tmp_path: Path
) -> None:
    state, tree = original
    state |= {name: value * factor for name, value in state.items() if "hsoftmax.path_" in name}
    assert is_wenet(state)
    dump_config(
        small_config(head="hsoftmax", head_conf={"tree": "tree.json"}, cmvn=None),
        tmp_path / "train.yaml",
    )
    head = load_wenet_model(tmp_path / "train.yaml", state).head
    assert isinstance(head, HSoftmaxHead)
    assert np.array_equal(head.tree.children, tree.children)
    # The original's formula without its clip: the product of sigmoid·sign + bias along the paths.
    hidden = torch.randn(9, 16)
    index, sign, bias = (
        state[f"hsoftmax.path_{name}"].long().reshape(NUM_UNITS, -1) for name in PATHS
    )
    decisions = torch.sigmoid(hidden.double() @ state["hsoftmax.inner_vector.weight"].double().T)
    expected = (decisions[:, index] * sign + bias).prod(-1)
    torch.testing.assert_close(
        head.log_probs(hidden).double().exp(), expected, rtol=1e-5, atol=1e-9
    )
    state["decoder.embed.0.weight"] = state["decoder.embed.0.weight"][:-2]
    with pytest.raises(
        CheckpointError,
        match="^state_dict: its tree has 11 units, but its decoder has 9; take another",
    ):
        load_wenet_model(tmp_path / "train.yaml", state)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "path_bias",
            lambda bias: bias * 0,
            "hsoftmax.path_sign and hsoftmax.path_bias contradict",
        ),
        (
            "path_index",
            lambda index: index * 0,
            "the path of unit . contradicts that of another unit",
        ),
        (
            "inner_vector.weight",
            lambda _: torch.zeros(()),
            r"inner_vector.weight has shape \(\), expected \(N, D\)",
        ),
        (
            "path_sign",
            lambda sign: sign[:-1],
            r"hsoftmax.path_\* of 99, 98, 99 numbers for 11 units",
        ),
        (
            "path_sign",
            None,
            "hsoftmax.inner_vector.weight without hsoftmax.path_sign; take the compl",
        ),
    ],
)
def test_faults_of_a_checkpoint(
    original: tuple[dict[str, Tensor], Tree],
    name: str,
    change: Callable[[Tensor], Tensor] | None,
    message: str,
) -> None:
    state, _ = original
    value = state.pop(f"hsoftmax.{name}")
    if change is not None:
        state[f"hsoftmax.{name}"] = change(value)
    with pytest.raises(CheckpointError, match=message):
        convert_state_dict(state)
